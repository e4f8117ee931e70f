// Rows of which most keys have weight, for 1 < alpha < 2 but 1.5: the root is found and weights are written in place of the scores.
//
// Nothing is packed, since little would be left out, and the weights of the last evaluation are kept: what the last step changes in
// them are a few terms. As elsewhere, up to VL rows are solved at once. Every row begins with its maximum known and finite.
#pragma once

#include "guess.h"
#include "log_weight.h"
#include "solver_table.h"

namespace {

constexpr int64_t kDenseFloats = 4096;   // of all rows that are solved at once: scores and kept weights stay in the first cache
constexpr float kLastDenseStep = 0.07f;  // residual from which a last step may be taken: see `last_step_from`
constexpr float kFourthOrder = 1.0f / 3;     // of e: up to here w/q^2 is bounded, so that steps use its sum
constexpr int kFirstRows = 2;                // are solved before the others, which are guessed from them
constexpr float kBarelyInside = 1e-4f;       // of q: above, the weight is larger than any rounding and the last step,
constexpr float kBarelyInsideSteep = 2e-3f;  // and with e > 1/2 its slope, which falls to zero at once, is exact
constexpr float kTiny = 1e-30f;              // of a weight: above, it is not zero, however it is rounded
constexpr float kLongStep = 0.25f;           // over q: above, the terms of a last step do not end soon enough
constexpr float kExactMoments = 0.03f;       // of e: below, they guess well enough for one evaluation of any row
constexpr float kMomentsOfSoftmax = 0.3f;    // of e: below, they guess better than the root at e = 1/2
constexpr float kLeastPolynomial = 0.15f;    // of e: from here on up to kMostPower whole powers stand in for the weights,
constexpr int kMostPower = 6;
constexpr float kUnlike =
    1.3f;  // of the deviation of the scores over that of a weight's base: below, guesses are good without them

// use(power): as a constant.
template <int most, class Use>
inline auto with_power(int power, const Use& use) {
  if constexpr (most == 1)
    return use(Constant<1>());
  else
    return power == most ? use(Constant<most>()) : with_power<most - 1>(power, use);
}
template <int power>
ENTFORMER_INLINE vf whole_power(vf x) {
  if constexpr (power == 0) return splat(1.0f);
  if constexpr (power == 1) return x;
  const vf half = whole_power<power / 2>(x);
  return power % 2 ? half * half * x : half * half;
}

// Softmax of n scores in whole vectors, in their place; returns ln sum exp(s - row_max). `kept` holds n floats of scratch. For doubtful
// weights see `DenseRows::write`.
inline float softmax_in_place(float* s, int64_t n, float row_max, float* kept) {
  double total = 0.0;
  for (int64_t block = 0; block < n; block += kSumBlock) {
    vf sum{};
    for (int64_t i = block; i < n && i < block + kSumBlock; i += VL) {
      const vf p = vexp(load(s + i) - row_max);
      store(kept + i, p);
      sum += p;
    }
    total += hsum(sum);
  }
  const float scale = (float)(1.0 / total), lam = (float)log(total);
  for (int64_t i = 0; i < n; i += VL) {
    const vf u = load(s + i) - row_max;
    vf p = load(kept + i) * scale;
    if (bits_greater(splat(kTiny), p) & bits_greater(u, splat(-kInf))) p = vexp(u - lam);
    store(s + i, p);
  }
  return lam;
}

// 1/q, of which one part in 10^4 is up to 2e-7 of a weight after a last step from far.
inline vf dense_reciprocal(vf q) { return VL == 16 ? reciprocal(q) : reciprocal_exact(q); }

// How far the sum may be from one for a step to be the last: what it then leaves is below 2e-7, by experiment with rows of 64 to 8,192
// normal scores. The closer e is to 1/2 the less smooth is the sum.
inline float last_step_from(double e) {
  const float below_half = fmaxf(1.0f - 2.0f * (float)e, 0.0f);
  return fminf(kLastDenseStep, 0.17f * below_half * below_half + 0.0025f);
}

struct DenseRows {
  double e;
  const PowerTable* table;  // of the power 1/e - 1, or null
  int64_t columns;          // in whole vectors
  int size = 0;
  struct One {
    float *s, *kept;  // scores; of the last evaluation: slopes (with a table), or weights and then c/q (without)
    float row_max;
  } rows[VL];
  SolvedRows solved;
  // Over the rows solved before: ln of the sum of the polynomials over that of the weights they stand in for.
  struct {
    float rows = 0.0f, log_ratio = 0.0f;
  } stood_in;
  bool misleads = false;  // they lead to a second evaluation more often than not, which the moments of softmax would save
  float smallest;         // base whose weight is neither below any rounding nor below kTiny

  DenseRows(double e_, const PowerTable* table_, int64_t columns_)
      : e(e_),
        table(table_),
        columns(columns_),
        smallest(fmaxf(e > 0.5 ? kBarelyInsideSteep : kBarelyInside, powf(kTiny, (float)e))) {}

  bool by_log() const { return table == nullptr; }
  // lam as the evaluation at `at` had it.
  double evaluated_at(float at) const { return by_log() ? (double)at : rounded_lam(e, at); }

  template <class Use>
  static void each_vector(const One& row, int64_t begin, int64_t end, const Use& use) {
    for (int64_t i = begin; i < end; i += VL) use(load(row.s + i) - row.row_max, i);
  }

  void accumulate(const One& row, int64_t begin, int64_t end, float lam, Sums& total) const {
    Sums sums{};  // not `total`: it has an address
    float* kept = row.kept;
    if (by_log()) {
      const LogWeight at(e, lam);
      each_vector(row, begin, end, [&](vf u, int64_t i) {
        vf ratio, p = vexp(at.log_at(u, ratio)), w = p * ratio;
        store(kept + i, p);
        store(kept + columns + i, ratio);
        const vf w_over_q = w * ratio;
        sums.p += p, sums.w += w, sums.w_over_q += w_over_q, sums.w_over_q2 = fused(w_over_q, ratio, sums.w_over_q2);
      });
      const vf per_c2 = at.per_c * at.per_c;
      total = {sums.p, sums.w * at.per_c, sums.w_over_q * per_c2, sums.w_over_q2 * (per_c2 * at.per_c)};
      return;
    }
#if defined(__AVX2__)
    const float c = rounded_c(e, lam);
    const TableWeight weight(*table, e, c, c);
    auto with = [&](vf u, int64_t i, auto terms) {
      const vf q = weight.base(u), w = weight.slopes<terms.value>(u, q);
      const vf inverse = dense_reciprocal(q), w_over_q = w * inverse;
      store(kept + i, w);
      sums.p = fused(w, q, sums.p), sums.w += w, sums.w_over_q += w_over_q;
      sums.w_over_q2 = fused(w_over_q, inverse, sums.w_over_q2);
    };
    with_terms(*table, [&](auto terms) { each_vector(row, begin, end, [&](vf u, int64_t i) { with(u, i, terms); }); });
    total = sums;
#endif
  }

  Spread spread_of_rows() const {
    vf n[VL], first[VL], second[VL];
    zero_beyond(size, n, first, second);
    for (int r = 0; r < size; ++r) {
      Sums sums{};
      each_vector(rows[r], 0, columns, [&](vf u, int64_t) {
        const vi counts = u > kVeryLow;
        u = counts ? u : vf{};
        sums.p += counts ? splat(1.0f) : vf{}, sums.w += u, sums.w_over_q = fused(u, u, sums.w_over_q);
      });
      n[r] = sums.p, first[r] = sums.w, second[r] = sums.w_over_q;
    }
    return Spread(sum_each(n), sum_each(first), sum_each(second));
  }

  // The first lam of each row: from rows solved before, for nearly equal scores, or else from the moments of softmax, or from sums at
  // e = 1/2.
  vf guess(const Spread& at) const {
    const vf e_all = splat((float)e), log_n = natural_log(at.n);
    const vf q = vexp(-e_all * log_n), aim_short = kAimShort * q;
    uint32_t open = (1u << size) - 1;
    vf lam{};
    auto take = [&](const Guess& guess) {
      lam = blend(open, guess.lam, lam);
      open &= guess.rough;
    };
    if (solved.rows > 0.0f && !misleads) take(solved.guess(at, log_n, aim_short));
    if (open) take(guess_nearly_equal((float)e, at, q, aim_short));
    if (!open) return lam;
    vf S[VL], W[VL], C[VL];
    for (int r = 0; r < VL; ++r) S[r] = W[r] = C[r] = vf{};
    const bool by_softmax = e <= kMomentsOfSoftmax;
    for (uint32_t left = open; left; left &= left - 1) {
      const int r = __builtin_ctz(left);
      Sums sums{};
      if (by_softmax)
        each_vector(rows[r], 0, columns, [&](vf u, int64_t) {
          u = vmax(u, splat(-100.0f));
          vf p = vexp(u), first = p * u;
          sums.p += p, sums.w += first, sums.w_over_q += first * u;
        });
      else
        each_vector(rows[r], 0, columns, [&](vf u, int64_t) {
          const vf half = vmax(fused(u, splat(0.5f), splat(1.0f)), vf{}), square = half * half;
          sums.p += half, sums.w += square, sums.w_over_q = fused(square, half, sums.w_over_q);
        });
      S[r] = sums.p, W[r] = sums.w, C[r] = sums.w_over_q;
    }
    const vf s = sum_each(S), w = sum_each(W), c = sum_each(C);
    return blend(open, by_softmax ? guess_from_softmax(e_all, s, w, c) : guess_from_half(e_all, {s, w, c}, at.n), lam);
  }

  // Polynomials stand in for weights: with Q = 1 - e lam, x = q/Q and 1/e = k + f the weight is Q^(1/e) x^(k + f), and x^(f + 1) is about
  // the parabola through three of its points; at k = 1 x^f is about 1 - f + f x. ln of their sums, its slope, and the curvature of ln_e
  // (see `step_of`), zero at k = 1.
  struct StandIn {
    vf log_S, slope, curvature;
  };
  StandIn stand_in(vf lam) const {
    const vf Q = vmax(1.0f - (float)e * lam, splat(kSmallestNormal)), per_Q = (float)e / Q;
    const int k = (int)(1.0 / e);
    const float f = (float)(1.0 / e - k);
    vf lowest[VL], below[VL], at[VL], above[VL];
    zero_beyond(size, lowest, below, at, above);
    with_power<kMostPower>(k, [&](auto power) {
      for (int r = 0; r < size; ++r) {
        vf sum_lowest{}, sum_below{}, sum_at{}, sum_above{};
        const vf per = splat(per_Q[r]);
        each_vector(rows[r], 0, columns, [&](vf u, int64_t) {
          const vf x = vmax(fused(per, u, splat(1.0f)), vf{});
          constexpr int k_here = decltype(power)::value;
          const vf inside = x > 0.0f ? splat(1.0f) : vf{};
          const vf least = k_here <= 2 ? inside : whole_power<k_here <= 2 ? 0 : k_here - 2>(x);
          const vf low = k_here == 1 ? inside : least * x, middle = low * x;
          if (k_here > 1) sum_lowest += least;
          sum_below += low, sum_at += middle, sum_above = fused(middle, x, sum_above);
        });
        lowest[r] = sum_lowest, below[r] = sum_below, at[r] = sum_at, above[r] = sum_above;
      }
    });
    float of_below = 0.0f, of_at = 1.0f - f, of_above = f;
    if (k > 1) {
      const float x1 = 0.55f, x2 = 0.2f, y1 = powf(x1, f + 1.0f), y2 = powf(x2, f + 1.0f);
      const float rise = (1.0f - y1) / (1.0f - x1);
      of_above = (rise - (y1 - y2) / (x1 - x2)) / (1.0f - x2);
      of_at = rise - of_above * (1.0f + x1);
      of_below = 1.0f - rise + of_above * x1;
    }
    const vf low = sum_each(below), middle = sum_each(at);
    const vf S = vmax(of_below * low + of_at * middle + of_above * sum_each(above), splat(kSmallestNormal));
    const vf W = vmax((1.0f - f) * low + f * middle, splat(kSmallestNormal)), C = (1.0f - f) * sum_each(lowest) + f * low;
    const vf curvature = k > 1 ? (1.0f - (float)e) * (W / S - C / W) / Q : vf{};
    return {natural_log(S) + natural_log(Q) * (float)(1.0 / e), W / (S * Q), curvature};
  }

  Roots solve() {
    const vf e_all = splat((float)e);
    const Spread spread = spread_of_rows();
    const vf most = largest_root(e_all, spread.n);
    const vf guessed = vmin(vmax(guess(spread), vf{}), most);  // where the largest weight is at least 1/n
    vf first = guessed;
    const bool stands_in = e >= kLeastPolynomial && are_unlike(spread), corrects = stands_in && stood_in.rows > 0.0f;
    StandIn standing;
    if (corrects) {  // Halley's step to where the sum is what it was at the roots of the rows before
      standing = stand_in(guessed);
      const vf log_S = standing.log_S - stood_in.log_ratio / stood_in.rows;
      const vf change = (deformed_log(e_all, log_S) - kAimShort) / standing.slope;
      first = vmin(vmax(guessed + change / vmax(1.0f + 0.5f * change * standing.curvature, splat(0.5f)), vf{}), most);
    }
    const uint32_t open = (1u << size) - 1, is_smooth = e <= 0.5 ? open : 0;
    const LastStep last{splat(last_step_from(e)), splat(last_step_from(e)), is_smooth, open};
    auto add = [&](uint32_t now, vf lam, auto kinds) {
      return evaluate_lanes<decltype(kinds)::value>(
          now, [&](int) { return columns; },
          [&](int r, int64_t begin, int64_t end, Sums& sums) { accumulate(rows[r], begin, end, lam[r], sums); });
    };
    const Roots roots = solve_lanes<AlphaCase::General>(
        open, e_all, first, most, is_smooth, kTolerance, last,
        [&](uint32_t now, vf lam) { return e <= kFourthOrder ? add(now, lam, Constant<4>{}) : add(now, lam, Constant<3>{}); });
    const uint32_t again = open & (bits_greater(roots.at, first) | bits_greater(first, roots.at));
    misleads |= e <= kExactMoments && solved.rows > 0.0f && 2 * __builtin_popcount(again) > size;
    solved.remember((float)e, spread, roots, size);
    if (stands_in) {
      const vf by = roots.at - guessed, moved = (float)e * standing.slope * (by + 0.5f * standing.curvature * by * by);
      const vf log_S = corrects ? standing.log_S + natural_log(1.0f - moved) * (float)(1.0 / e) : stand_in(roots.at).log_S;
      SolvedRows::remember_in(stood_in.rows, splat(1.0f), size);
      SolvedRows::remember_in(stood_in.log_ratio, log_S - natural_log(roots.S), size);
    }
    return roots;
  }
  // Whether guesses from two moments are rough for most rows.
  bool are_unlike(const Spread& of) const {
    const vf ratio = of.deviation * vexp((float)e * natural_log(of.n));
    return 2 * __builtin_popcount(bits_greater(ratio, splat(kUnlike)) & ((1u << size) - 1)) > size;
  }
  // The weights of row r in place of its scores at its root `lam`, a `step` to the right of the last evaluation at `at`; returns the number
  // of those that are not zero among the first `keys`. What may not have weight is computed from scores and root, so that whoever does so
  // again finds the same support.
  int64_t write(int r, float at, float step, double lam, int64_t keys) const {
    int64_t count = 0;
    auto keep = [&](int64_t i, vf p) {
      store(rows[r].s + i, p);
      if (i < keys) count += __builtin_popcount(bits_greater(p, vf{}));
    };
    const One& row = rows[r];
    if (by_log()) {
      const LogWeight exact(e, lam);
      const float first = step * (float)(1.0 / (1.0 - e * at)), e_first = (float)e * first;
      each_vector(row, 0, columns, [&](vf u, int64_t i) {  // p (1 - e step/q)^(1/e)
        vf ratio = load(row.kept + columns + i), z = ratio * first, ez = ratio * e_first, p = load(row.kept + i);
        z += z * ez * (0.5f + ez * (1.0f / 3));
        p = p > 0.0f ? p * (1.0f - z * (1.0f - z * (0.5f - z * (1.0f / 6 - z * (1.0f / 24)))))
                     : vf{};  // where q is zero, z is not finite
        if ((bits_greater(splat(kTiny), p) | bits_greater(vmax(z, -z), splat(kLongStep))) & bits_greater(u, splat(-kInf)))
          p = exact.at(u);
        keep(i, p);
      });
      return count;
    }
#if defined(__AVX2__)
    const TableWeight weight(*table, e, rounded_c(e, lam), 1.0 - e * lam);
    const vf c = splat(rounded_c(e, at));
    // q (1 - e step/q)^(1/e) = q - step + second/q - third/q^2 + fourth/q^3
    const float second = 0.5f * (1.0f - (float)e) * step * step, third = (1.0f - 2.0f * (float)e) / 3.0f * second * step;
    const float fourth = (1.0f - 3.0f * (float)e) / 4.0f * third * step;
    const vf barely = splat(fmaxf(smallest, fabsf(step) / kLongStep));
    each_vector(row, 0, columns, [&](vf u, int64_t i) {
      const vf q = vmax(fused(weight.e, u, c), splat(kLeast)), root_q = fused(weight.e, u, weight.c),
               inverse = dense_reciprocal(q);
      vf p = load(row.kept + i) *
             fused(fused(fused(inverse, splat(fourth), splat(-third)), inverse, splat(second)), inverse, q - step);
      const uint32_t inside = bits_greater(root_q, vf{});
      p = root_q > 0.0f ? p : vf{};
      if (bits_greater(barely, root_q) & inside) {
        const vf base = weight.base(u);
        p = with_terms(*table, [&](auto terms) { return weight.slopes<terms.value>(u, base); }) * base;
      }
      keep(i, p);
    });
#endif
    return count;
  }
};

}  // namespace
