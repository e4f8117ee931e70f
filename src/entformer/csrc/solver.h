// The threshold lam of rows, in float32 vectors for 1 <= alpha <= 2, and the weights it gives. Only keys with u > -1/e can have weight, so
// the steps of newton.h run on those alone, packed, for as many rows at once as a vector has lanes.
#pragma once

#include "newton.h"
#include "softmax.h"
#include "solver_fine.h"

namespace {

// One row while it is solved. Its candidates are the scores above `edge`, in `from`, less `base`: packed, already less the maximum
// (base 0) and padded with -inf to whole vectors; or, in a row of few whole vectors, the row itself (base = maximum).
// Where weights cost a power, the last evaluation of them and of their slopes is stored in `weight` and `slope`.
struct Row {
  const float* s;
  float* p;
  float *packed, *weight, *slope;
  const float* from;
  int64_t padded;
  float base, row_max, e, inv_e, edge;
  double e_exact;           // e before it was rounded
  double lam;               // found: the root,
  float last_step, slopes;  // how far it lies from the last evaluation, and the sum of slopes there

  // `scratch` holds three runs of n + 2 VL floats. Filled in place: a struct copied right after it was written stalls the
  // copy until the writes land.
  void start(const float* scores, int64_t n, float maximum, double alpha_less_one, float* scratch);
};
constexpr int64_t kFewVectors = 8;

// Adds one vector of weights where they cost a power. The power taken is the slope, w = q^(1/e - 1); the weight is then w q.
inline void accumulate_powers(vf x, float e, float power, float* weight, float* slope, Sums& sums) {
  vf y = vmax(e * x, splat(-1.0f)), q = y + 1.0f;
  vf w = vexp(vlog1p(y, q) * power);
  w = q > 0.0f ? w : vf{};
  vf p = w * q;
  store(weight, p);
  store(slope, w);
  sums.p += p;
  sums.w += w;
  sums.w_over_q += w * reciprocal(vmax(q, splat(1e-6f)));
}

// Adds candidates [begin, end) of a row at `lam`.
template <AlphaCase alpha_case>
inline void accumulate(const Row& row, int64_t begin, int64_t end, float lam, Sums& sums) {
  const float e = alpha_case == AlphaCase::Entmax15 ? 0.5f : 1.0f, offset = rounded_c(e, lam);
  for (int64_t i = begin; i < end; i += VL) {
    vf u = load(row.from + i) - row.base;
    if (alpha_case == AlphaCase::General) {
      accumulate_powers(u - lam, row.e, row.inv_e - 1.0f, row.weight + i, row.slope + i, sums);
    } else {
      vf q = vmax(e * u + offset, vf{}), counted = q > 0.0f ? splat(1.0f) : vf{};
      sums.p += alpha_case == AlphaCase::Entmax15 ? q * q : q;
      sums.w += alpha_case == AlphaCase::Entmax15 ? q : counted;
      if (alpha_case == AlphaCase::Entmax15) sums.w_over_q += counted;
    }
  }
}

// Packs the candidates above `edge`; in place when they are packed already.
void compact_candidates(Row& row, float edge) {
  const int64_t whole = row.padded / VL * VL;
  int64_t count = 0;
  for (int64_t i = 0; i < whole; i += VL) {
    vf u = load(row.from + i) - row.base;
    count += compress(row.packed + count, u, bits_greater(u, splat(edge)));
  }
  if (whole < row.padded) {
    vf u = load_tail(row.from + whole, row.padded - whole, -kInf) - row.base;
    count += compress(row.packed + count, u, bits_greater(u, splat(edge)));
  }
  store(row.packed + count, splat(-kInf));
  row.from = row.packed;
  row.base = 0.0f;
  row.edge = edge;
  row.padded = (count + VL - 1) / VL * VL;
}

inline void Row::start(const float* scores, int64_t n, float maximum, double alpha_less_one, float* scratch) {
  e_exact = alpha_less_one;
  s = from = scores;
  packed = scratch;
  weight = scratch + n + 2 * VL;
  slope = weight + n + 2 * VL;
  padded = n;
  base = row_max = maximum;
  e = (float)e_exact;
  inv_e = (float)(1.0 / e_exact);
  edge = -inv_e;
  if (n > kFewVectors * VL || n % VL) compact_candidates(*this, edge);
}

// Evaluates packed rows. From the left every step raises the edge below which no key has weight, so a long row is thinned out as it goes;
// not where weights are stored, which lie as they were packed.
template <AlphaCase alpha_case>
inline Evaluation evaluate_rows(Row* rows, uint32_t open, vf lam, bool needs_C) {
  auto length = [&](int r) {
    Row& row = rows[r];
    if (alpha_case != AlphaCase::General && row.padded > kSumBlock && lam[r] - row.inv_e > row.edge)
      compact_candidates(row, lam[r] - row.inv_e);
    return row.padded;
  };
  auto add = [&](int r, int64_t begin, int64_t end, Sums& sums) { accumulate<alpha_case>(rows[r], begin, end, lam[r], sums); };
  return needs_C ? evaluate_lanes<3>(open, length, add) : evaluate_lanes<2>(open, length, add);
}

// The first lam of the rows in `open`, whose e is small.
inline vf softmax_guess(const Row* rows, uint32_t open, vf e) {
  vf E[VL], M1[VL], M2[VL];
  for (int r = 0; r < VL; ++r) {
    E[r] = M1[r] = M2[r] = vf{};
    if (!(open >> r & 1)) continue;
    const Row& row = rows[r];
    for (int64_t i = 0; i < row.padded; i += VL) {
      vf u = vmax(load(row.from + i) - row.base, splat(-100.0f)), p = vexp(u), first = p * u;
      E[r] += p, M1[r] += first, M2[r] += first * u;
    }
  }
  return guess_from_softmax(e, sum_each(E), sum_each(M1), sum_each(M2));
}

// The roots of the rows in `open`. Halley's steps are taken where S'' is bounded, but not for a bound, which needs Newton's from the left,
// nor where a long row is thinned out. Where the effect of the last step on stored weights is to be small, so is the step.
template <AlphaCase alpha_case>
inline Roots solve_rows(Row* rows, uint32_t open, vf lam, float tolerance, bool has_short_step = true) {
  vf e = splat(1.0f), count = splat(1.0f);
  LastStep last{splat(kLastHalley), splat(kLastFromRight), 0};
  uint32_t thinned = 0;
  for (uint32_t left = open; left; left &= left - 1) {
    const int r = __builtin_ctz(left);
    e[r] = alpha_case == AlphaCase::Entmax15 ? 0.5f : alpha_case == AlphaCase::Sparsemax ? 1.0f : rows[r].e;
    count[r] = (float)rows[r].padded;
    if (alpha_case != AlphaCase::General && rows[r].padded > kSumBlock) thinned |= 1u << r;
    if (alpha_case == AlphaCase::General && e[r] <= kSmallE) {
      last.left[r] = last.right[r] = has_short_step ? kLastHalley : fminf(cbrtf(kThirdOrder / (e[r] * e[r])), 0.3f);
      last.is_free |= 1u << r;
    }
  }
  const vf most = alpha_case == AlphaCase::Sparsemax  ? splat(kInf)
                  : alpha_case == AlphaCase::Entmax15 ? (2.0f - 2.0f / vsqrt(count)) * (1.0f + 1e-6f)
                                                      : largest_root(e, count);
  const uint32_t third_order =
      alpha_case == AlphaCase::Sparsemax || tolerance == kRough ? 0 : ~bits_greater(e, splat(0.5f)) & ~thinned;
  return solve_lanes<alpha_case>(open, e, lam, most, third_order, tolerance, last, [&](uint32_t now, vf at) {
    return evaluate_rows<alpha_case>(rows, now, at, third_order != 0);
  });
}

// Computes the roots of up to VL rows; `has_short_step` as in solve_rows.
template <AlphaCase alpha_case>
void solve(Row* rows, int count, bool has_short_step = true) {
  if (count == 0) return;
  const uint32_t all = (1u << count) - 1;
  vf lam{};
  if (alpha_case == AlphaCase::General) {
    vf e = splat(1.0f);
    for (int r = 0; r < count; ++r) e[r] = rows[r].e;
    const uint32_t small = all & ~bits_greater(e, splat(kSmallE)), above_half = all & bits_greater(e, splat(0.5f));
    const uint32_t below_half = all & ~small & ~above_half;
    Roots half{}, one{};
    if (below_half) half = solve_rows<AlphaCase::Entmax15>(rows, below_half, vf{}, kRough);
    if (above_half) one = solve_rows<AlphaCase::Sparsemax>(rows, above_half, vf{}, kRough);
    const vf at_half = 1.0f - 0.5f * (half.at + half.last_step), at_one = 1.0f - (one.at + one.last_step);
    lam = bound_from(e, natural_log(blend(above_half, at_one, at_half * at_half)));
    if (small) lam = blend(small, softmax_guess(rows, small, e), lam);
    for (int r = 0; r < count; ++r) {
      const bool is_small = small >> r & 1;  // the guess of a small row may lie to the right of its root: nothing is left out
      if (!is_small || rows[r].from != rows[r].packed)
        compact_candidates(rows[r], is_small ? rows[r].edge : lam[r] - rows[r].inv_e);
    }
  }
  const Roots roots = solve_rows<alpha_case>(rows, all, lam, kTolerance, has_short_step);
  for (int r = 0; r < count; ++r) {
    const double at = roots.at[r];
    rows[r].lam = (alpha_case == AlphaCase::General ? at : rounded_lam(rows[r].e_exact, at)) + roots.last_step[r];
    rows[r].last_step = roots.last_step[r];
    rows[r].slopes = roots.W[r];
  }
}

// Writes the weights of a row whose root is known. `ahead`: see RowBatch::run.
template <AlphaCase alpha_case>
void write_weights(const Row& row, int64_t n, int64_t ahead) {
  if (is_sensitive(row.e_exact, row.lam, row.slopes)) {
    fine_row(alpha_case, row.s, n, row.row_max, row.e_exact, row.lam, nullptr, row.packed).write(row.s, n, row.p);
    return;
  }
  if (alpha_case == AlphaCase::General &&
      row.last_step != 0.0f) {  // the last step was so short that two terms of its effect are all of it
    const float half_curve = 0.5f * (1.0f - row.e);
    for (int64_t i = 0; i < row.padded; i += VL) {
      vf p = load(row.weight + i), change = load(row.slope + i) * row.last_step;
      vf ratio = change * reciprocal(vmax(p, splat(kSmallestNormal)));
      store(row.weight + i, p > row.e * change ? p - change * (1.0f - half_curve * ratio) : vf{});  // else 1 + y < 0 now
    }
  }
  const vf edge = splat(row.edge);
  const float offset = rounded_c(row.e_exact, row.lam);
  const float* packed = row.weight;
  auto weights = [&](vf scores) {
    vf u = scores - row.row_max;
    if (alpha_case == AlphaCase::General) {
      const uint32_t bits = bits_greater(u, edge);
      vf p = expand(packed, bits);
      packed += __builtin_popcount(bits);
      return p;
    }
    vf q = vmax(row.e * u + offset, vf{});
    return alpha_case == AlphaCase::Entmax15 ? q * q : q;
  };
  double total = 0.0;
  for (int64_t block = 0; block < n; block += kSumBlock) {
    const int64_t end = block + kSumBlock < n ? block + kSumBlock : n;
    vf sum{};
    int64_t i = block;
    for (; i + VL <= end; i += VL) {
      fetch(row.s + ahead + i), fetch(row.p + ahead + i);
      vf p = weights(load(row.s + i));
      store(row.p + i, p);
      sum += p;
    }
    if (i < end) {
      vf p = weights(load_tail(row.s + i, end - i, -kInf));
      store_tail(row.p + i, p, end - i);
      sum += p;
    }
    total += hsum(sum);
  }
  // A long row of nearly equal scores has weights n^-1 = q^(1/e) with a q so small that the rounding of lam shows. It shows
  // alike in all of them, so dividing by the sum takes it out.
  if (fabs(total - 1.0) <= 2e-6 || !(total > 0.0)) return;
  const float scale = (float)(1.0 / total);
  for (int64_t i = 0; i < n; ++i) row.p[i] *= scale;
}

}  // namespace
