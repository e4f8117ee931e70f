// Up to VL short rows that share alpha, 1 < alpha <= 2, transposed: lane r of every vector belongs to row r.
//
// Sums over a row are sums of vectors, and what differs from row to row (maximum, threshold) is a vector too: nothing is reduced, packed
// or set up row by row. No row's result depends on the others'.
#pragma once

#include "solver_dense.h"
#include "transpose.h"

namespace {

constexpr int64_t kShortPart = 16;  // vectors that are summed one after the other

inline vf rounded_c(double e, vf lam) { return __builtin_convertvector(1.0 - e * __builtin_convertvector(lam, vd), vf); }

struct ShortRows {
  double e;
  AlphaCase alpha_case;
  const PowerTable* table;  // of the power 1/e - 1, or null
  int64_t n;                // scores of each row
  int size;                 // rows
  uint32_t finite = 0;      // those whose maximum is
  vf row_max{};
  Spread spread{vf{}, vf{}, vf{}};  // of the scores less the maximum, for powers
  vf u[kShortRow];                  // scores less the maximum, then weights

  // Not an aggregate, which would fill u.
  ShortRows(double e_, AlphaCase alpha_case_, const PowerTable* table_, int64_t n_, int size_ = 0)
      : e(e_), alpha_case(alpha_case_), table(table_), n(n_), size(size_) {}

  // The scores of rows that are `stride` apart, less `maxima`, or where these are not given their own; other lanes get zeros.
  void read(const float* s, int64_t stride, const float* maxima) {
    vf most = splat(-kInf);
    vi is_nan{};
    for (int64_t j = 0; j < n; j += VL) {
      const int64_t here = n - j < VL ? n - j : VL;
      vf block[VL];
      for (int r = 0; r < VL; ++r) {
        const float* at = s + r * stride + j;
        block[r] = r >= size ? vf{} : here == VL ? load(at) : load_tail(at, here, -kInf);
      }
      transpose(block);
      vf* to = u + j;  // up to a whole vector of scores beyond n
      for (int i = 0; i < VL; ++i) {
        to[i] = block[i];
        if (!maxima) most = vmax(block[i], most), is_nan |= block[i] != block[i];
      }
    }
    row_max = maxima ? load_tail(maxima, size, 0.0f) : is_nan ? splat(__builtin_nanf("")) : most;
    finite = bits_greater(splat(kInf), row_max) & bits_greater(row_max, splat(-kInf)) & ((1u << size) - 1);
    const vf base = blend(finite, row_max, vf{});
    if (alpha_case != AlphaCase::General) {
      for (int64_t j = 0; j < n; ++j) u[j] -= base;
      return;
    }
    vf count{}, sum{}, squares{};
    for (int64_t j = 0; j < n; ++j) {
      const vf x = u[j] - base;
      const vi counts = x > kVeryLow;
      const vf counted = counts ? x : vf{};
      u[j] = x;
      count += counts ? splat(1.0f) : vf{}, sum += counted, squares = fused(counted, counted, squares);
    }
    spread = Spread(count, sum, squares);
  }
  // The weights of the rows in `which` to rows that are `stride` apart, and zeros from n up to `width`.
  void write(float* p, int64_t stride, int64_t width, uint32_t which) const {
    for (int64_t j = 0; j < width; j += VL) {
      const int64_t here = width - j < VL ? width - j : VL;
      vf block[VL];
      for (int i = 0; i < VL; ++i) block[i] = j + i < n ? u[j + i] : vf{};
      transpose(block);
      for (int r = 0; r < size; ++r) {
        if (!(which >> r & 1)) continue;
        if (here == VL)
          store(p + r * stride + j, block[r]);
        else
          store_tail(p + r * stride + j, block[r], here);
      }
    }
  }

  // Sums of terms(u, sums) over each row.
  template <class Term>
  Sums sum_up(const Term& term) const {
    Sums total{};
    for (int64_t part = 0; part < n; part += kShortPart) {
      const int64_t end = part + kShortPart < n ? part + kShortPart : n;
      Sums sums{};
      for (int64_t j = part; j < end; ++j) term(u[j], sums);
      total.p += sums.p, total.w += sums.w, total.w_over_q += sums.w_over_q, total.w_over_q2 += sums.w_over_q2;
    }
    return total;
  }

  Sums sums_at(vf lam) const {
    const vf c = rounded_c(e, lam);
    if (alpha_case == AlphaCase::Entmax15)
      return sum_up([&](vf x, Sums& sums) {
        const vf q = vmax(fused(splat(0.5f), x, c), vf{});
        sums.p = fused(q, q, sums.p), sums.w += q, sums.w_over_q += q > 0.0f ? splat(1.0f) : vf{};
      });
    if (alpha_case == AlphaCase::Sparsemax)
      return sum_up([&](vf x, Sums& sums) {
        const vf q = vmax(x + c, vf{});
        sums.p += q, sums.w += q > 0.0f ? splat(1.0f) : vf{};
      });
#if defined(__AVX2__)
    if (table) {
      const TableWeight weight(*table, e, c, vf{});
      return with_terms(*table, [&](auto terms) {
        return sum_up([&](vf x, Sums& sums) {
          const vf q = weight.base(x), w = weight.slopes<terms.value>(x, q), inverse = dense_reciprocal(q), ratio = w * inverse;
          sums.p = fused(w, q, sums.p), sums.w += w, sums.w_over_q += ratio;
          sums.w_over_q2 = fused(ratio, inverse, sums.w_over_q2);
        });
      });
    }
#endif
    const LogWeight weight(e, __builtin_convertvector(lam, vd));
    Sums sums = sum_up([&](vf x, Sums& sums) {
      vf ratio, p = vexp(weight.log_at(x, ratio)), w = p * ratio, w_over_q = w * ratio;
      sums.p += p, sums.w += w, sums.w_over_q += w_over_q, sums.w_over_q2 = fused(w_over_q, ratio, sums.w_over_q2);
    });
    const vf per_c = weight.per_c, unrounded = weight.rounding * per_c;
    return {sums.p * weight.rounding, sums.w * unrounded, sums.w_over_q * (unrounded * per_c),
            sums.w_over_q2 * (unrounded * per_c * per_c)};
  }

  // The first lam of each row, for powers: as in DenseRows::guess.
  vf guess() const {
    const float e_all = (float)e;
    const vf log_n = natural_log(spread.n), q = vexp(-e_all * log_n), aim_short = kAimShort * q;
    const Guess equal = guess_nearly_equal(e_all, spread, q, aim_short);
    const uint32_t open = equal.rough & finite;
    if (!open) return equal.lam;
    if (e <= kMomentsOfSoftmax) {
      const Sums of_softmax = sum_up([&](vf x, Sums& sums) {
        x = vmax(x, splat(-100.0f));
        const vf p = vexp(x), first = p * x;
        sums.p += p, sums.w += first, sums.w_over_q = fused(first, x, sums.w_over_q);
      });
      return blend(open, guess_from_softmax(splat(e_all), of_softmax.p, of_softmax.w, of_softmax.w_over_q), equal.lam);
    }
    const Sums at_half = sum_up([&](vf x, Sums& sums) {
      const vf half = vmax(fused(x, splat(0.5f), splat(1.0f)), vf{}), square = half * half;
      sums.p += half, sums.w += square, sums.w_over_q = fused(square, half, sums.w_over_q);
    });
    return blend(open, guess_from_half(splat(e_all), {at_half.p, at_half.w, at_half.w_over_q}, spread.n), equal.lam);
  }

  Roots solve() const {
    const uint32_t open = finite;
    const vf e_all = splat((float)e);
    auto evaluate = [&](uint32_t, vf lam) {
      const Sums sums = sums_at(lam);
      return Evaluation{sums.p - 1.0f, sums.w, sums.w_over_q, sums.w_over_q2};
    };
    const vf many = splat((float)n);
    if (alpha_case == AlphaCase::Sparsemax)
      return solve_lanes<AlphaCase::Sparsemax>(open, e_all, vf{}, splat(kInf), 0, kTolerance,
                                               {splat(kLastHalley), splat(kLastFromRight), 0}, evaluate);
    if (alpha_case == AlphaCase::Entmax15)
      return solve_lanes<AlphaCase::Entmax15>(open, e_all, vf{}, (2.0f - 2.0f / vsqrt(many)) * (1.0f + 1e-6f), open, kTolerance,
                                              {splat(kLastHalley), splat(kLastFromRight), 0}, evaluate);
    const vf first = guess(), most = largest_root(e_all, spread.n);
    const uint32_t is_smooth = e <= 0.5 ? open : 0;
    const vf near = splat(last_step_from(e));
    return solve_lanes<AlphaCase::General>(open, e_all, vmin(vmax(first, vf{}), most), most, is_smooth, kTolerance,
                                           {near, near, is_smooth, open}, evaluate);
  }

  // lam of each row: a table sees c = 1 - e lam as rounded.
  vd lam_at(const Roots& roots) const {
    vd lam = __builtin_convertvector(roots.at, vd);
    if (table || alpha_case != AlphaCase::General) lam = (1.0 - __builtin_convertvector(rounded_c(e, roots.at), vd)) / e;
    return lam + __builtin_convertvector(roots.last_step, vd);
  }
  // Rows whose weights float32 does not hold well enough (solver_fine.h).
  uint32_t sensitive(const vd& lam, const Roots& roots) const {
    uint32_t bits = 0;
    for (int r = 0; r < size; ++r) bits |= (uint32_t)is_sensitive(e, lam[r], roots.W[r]) << r;
    return bits & finite;
  }

  // The weights at lam, one a lane; returns how many of the first `keys` are not zero.
  vf weigh(const vd& lam, int64_t keys) {
    const vd exact_c = 1.0 - e * lam;
    const vf c = __builtin_convertvector(exact_c, vf);
    vf count{};
    auto each = [&](const auto& weight) {
      for (int64_t j = 0; j < keys; ++j) {
        u[j] = weight(u[j]);
        count += u[j] > 0.0f ? splat(1.0f) : vf{};
      }
      for (int64_t j = keys; j < n; ++j) u[j] = weight(u[j]);
      return count;
    };
    if (alpha_case == AlphaCase::Sparsemax) return each([&](vf x) { return vmax(x + c, vf{}); });
    if (alpha_case == AlphaCase::Entmax15)
      return each([&](vf x) {
        const vf q = vmax(0.5f * x + c, vf{});
        return q * q;
      });
#if defined(__AVX2__)
    if (table) {
      const TableWeight weight(*table, e, c, __builtin_convertvector(exact_c - __builtin_convertvector(c, vd), vf));
      return with_terms(*table, [&](auto terms) {
        return each([&](vf x) {
          const vf q = weight.base(x);
          return weight.slopes<terms.value>(x, q) * q;
        });
      });
    }
#endif
    const LogWeight weight(e, lam);
    return each([&](vf x) { return weight.at(x) * weight.rounding; });
  }
};

}  // namespace
