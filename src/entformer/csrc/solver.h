// The threshold lam of rows, in float32 vectors for 1 <= alpha <= 2, and the weights it gives.
//
// With e = alpha - 1, u = s - max(s), p = q^(1/e), q = [1 + e (u - lam)]_+, the root lam of sum p = 1 is found by Newton's (or
// Halley's) steps on ln_e(S) = (S^e - 1)/e, S(lam) = sum p. S^e is a norm of order 1/e of an affine function of lam, so it is
// convex and Newton from the left never overshoots; at e = 0, and for rows of equal scores, one step is exact. Only keys with
// u > -1/e can have weight, so the steps run on those alone, packed, for as many rows at once as a vector has lanes.
#pragma once

#include "dispatch.h"
#include "simd.h"
#include "softmax.h"
#include "solver_fine.h"

namespace {

constexpr float kTolerance = 2e-7f;  // how far a row's sum may stay from one
constexpr float kRough = 0.1f;       // the same, where only a bound is needed
constexpr float kLastStep =
    3e-5f;  // S'' is bounded for e <= 1/2: a Newton step from this close leaves residual^2, below rounding
constexpr float kLastHalley = 1e-3f;     // and a step of third order from this close leaves residual^3
constexpr float kLastFromRight = 1e-6f;  // to the right of the root, what is barely inside the support has been cut off
constexpr float kTooFar = 0.1f;          // below one, where Halley's step is not to be trusted again
constexpr float kSmallE = 0.1f;       // up to here a row is smooth at both sides of its root, and softmax tells where it lies
constexpr float kThirdOrder = 1e-6f;  // there, Halley's step leaves about residual^3 e^2 / 20
constexpr float kAimShort = 4e-4f;    // the residual that far steps of third order aim for, so that they stay left of the root

// ---- Newton and Halley --------------------------------------------------------------------------------------------------

// (1 - S^-e)/e from ln S; ln S itself at e = 0.
inline vf deformed_log(vf e, vf log_S) {
  vf t = e * log_S;
  vf series = 1.0f + t * (-0.5f + t * (1.0f / 6 + t * (-1.0f / 24 + t * (1.0f / 120 - t * (1.0f / 720)))));
  const vi small = (t < 0.25f) & (t > -0.25f);  // a guess far to the right of the root has t well below zero
  return log_S * (small ? series : (1.0f - vexp(-t)) / (small ? splat(1.0f) : t));
}
inline double deformed_log(double e, double log_S) { return fabs(e) < kSoftmaxBelow ? log_S : -expm1(-e * log_S) / e; }
inline vf natural_log(vf x) { return vlog(vmax(x, splat(kSmallestNormal))); }
inline double natural_log(double x) { return log(x); }

// Newton's step on ln_e(S), from S = sum p and W = sum w; one row a lane, or one row in float64.
template <class T>
inline T newton_step(T S, T W, T e) {
  return S * deformed_log(e, natural_log(S)) / W;
}

// The sums of one evaluation, one row a lane: S - 1, W, and C = sum w/q.
struct Evaluation {
  vf residual, W, C;
};

// Newton's step where no logarithm is needed for it, else as above; Halley's where `third_order` has a bit.
template <AlphaCase alpha_case>
inline vf step_of(const Evaluation& at, vf e, uint32_t third_order) {
  vf S = at.residual + 1.0f, W = vmax(at.W, splat(kSmallestNormal)), change;
  if (alpha_case == AlphaCase::Sparsemax)
    change = at.residual / W;
  else if (alpha_case == AlphaCase::Entmax15)
    change = 2.0f * (S - vsqrt(S)) / W;
  else
    change = newton_step(S, W, e);
  if (third_order) {  // the curvature of ln_e(S) over its slope
    vf curvature = (1.0f - e) * (W / vmax(S, splat(kSmallestNormal)) - at.C / W);
    change = blend(third_order, change / vmax(1.0f + 0.5f * change * curvature, splat(0.5f)), change);
  }
  return change;
}

// Where the rows stand: the last evaluation, how far the root lies from it, and the sum of slopes there.
struct Roots {
  vf at, last_step, W;
};

// Moves lam of the `open` rows, one a lane, to their roots: evaluate(open, lam) returns an Evaluation. So the latency of a reduction, a
// root and a division is paid once for VL rows. Rows in `third_order` take Halley's steps, which may end on either side of the root; one
// that went too far continues with Newton's, which stay on the left once they are there. No root is larger than `most`. Halley's step is
// the last one from a residual of at most `last_left`, or on the other side of the root `last_right`.
template <AlphaCase alpha_case, class Evaluate>
inline Roots solve_lanes(uint32_t open, vf e, vf lam, vf most, uint32_t third_order, float tolerance, vf last_left,
                         vf last_right, const Evaluate& evaluate) {
  Roots roots{};
  const uint32_t smooth = ~bits_greater(e, splat(0.5f)), returns = third_order;  // rows that may step left
  const uint32_t small = alpha_case == AlphaCase::General ? ~bits_greater(e, splat(kSmallE)) : 0;
  for (int step = 0; step < 64 && open; ++step) {
    const Evaluation at = evaluate(open, lam);
    const uint32_t far = bits_greater(at.residual, last_left) | bits_greater(-last_right, at.residual);
    vf change = step_of<alpha_case>(at, e, third_order);
    if (alpha_case == AlphaCase::General)
      change = blend(far & third_order, change - kAimShort / vmax(at.W, splat(kSmallestNormal)), change);
    vf next = vmin(vmax(lam + change, vf{}), most);
    // From the left every Newton step goes right; only a start to the right of the root makes one step left.
    uint32_t moving = bits_greater(at.residual, splat(tolerance)) & bits_greater(next, lam);
    moving |= bits_greater(splat(-tolerance), at.residual) & (step == 0 ? ~0u : returns);
    moving &= open;
    roots.at = blend(open, lam, roots.at);
    roots.W = blend(open, at.W, roots.W);
    roots.last_step = blend(open, blend(moving | small, next - lam, vf{}), roots.last_step);
    lam = blend(moving, next, lam);
    const uint32_t near_left = bits_greater(at.residual, vf{}) & bits_greater(splat(kLastStep), at.residual) & smooth;
    open = moving & ((third_order & far) | (~third_order & ~near_left));
    third_order &= ~bits_greater(splat(-kTooFar), at.residual) | small;
  }
  return roots;
}

// ---- the first guess -----------------------------------------------------------------------------------------------------

// The root of n equal scores, (1 - n^-e)/e, or a little more: no row of n candidates has a larger one.
inline vf largest_root(vf e, vf n) {
  vf log_n = vlog(n), t = e * log_n;
  return (t < 0.25f ? log_n : (1.0f - vexp(-t)) / vmax(e, splat(kSmallestNormal))) * (1.0f + 1e-6f);
}

// The first lam of rows of n scores at e, from ln P, P the largest weight, (1 - e lam)^(1/e), at an e' that costs no powers:
//   Bound     P is that at an e' >= e. The largest weight grows with alpha, so lam lies left of the root, and Newton stays there.
//   Estimate  P is about that at e' = 1/2. lam lies on either side, near the root for rows of many kinds.
enum class FirstGuess { Bound, Estimate };
constexpr float kDrift = 1.3f;  // of ln P from e' to e
template <FirstGuess kind>
inline vf first_guess(vf e, vf log_P, vf n) {
  if (kind == FirstGuess::Estimate)
    log_P = vmax(log_P * (1.0f + kDrift * (0.5f - e)), -vlog(n));  // the largest weight is at least 1/n
  const vf root = (1.0f - vexp(e * log_P)) / e;
  return kind == FirstGuess::Bound ? root * (1.0f - 1e-6f) : vmin(vmax(root, vf{}), -log_P);
}

// lam from the moments of softmax, E = sum exp(u), M1 = sum u exp(u), M2 = sum u^2 exp(u): -ln P is ln E + e (ln E m1 - m2/2) up to e^2,
// where m = M/E, and ln n for n equal scores at any e.
inline vf guess_from_softmax(vf e, vf E, vf M1, vf M2) {
  vf log_E = natural_log(E);
  return deformed_log(e, vmax(log_E + e * (log_E * M1 - 0.5f * M2) / E, vf{}));
}

// ---- packed rows ---------------------------------------------------------------------------------------------------------

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
  double e_exact;                // e before it was rounded
  float lam, last_step, slopes;  // found: the root, how far it lies from the last evaluation, and the sum of slopes there

  // `scratch` holds three runs of n + 2 VL floats. Filled in place: a struct copied right after it was written stalls the
  // copy until the writes land.
  void start(const float* scores, int64_t n, float maximum, double alpha_less_one, float* scratch);
};
constexpr int64_t kFewVectors = 4;

// Sums over a row, lane by lane: the weights p, their slopes w = -dp/dlam and, where a step uses it, w/q.
struct Sums {
  vf p, w, w_over_q;
};

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
  const float e = alpha_case == AlphaCase::Entmax15 ? 0.5f : 1.0f, offset = 1.0f - e * lam;
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

// Evaluates the open rows. Long rows are summed in float64 over short blocks. From the left every step raises the edge below which no key
// has weight, so a long row is thinned out as it goes; not where weights are stored, which lie as they were packed.
template <AlphaCase alpha_case>
inline Evaluation evaluate_rows(Row* rows, uint32_t open, vf lam, bool needs_C) {
  vf p[VL], w[VL], w_over_q[VL];
  for (uint32_t closed = ~open & ((1u << VL) - 1); closed; closed &= closed - 1) {
    const int r = __builtin_ctz(closed);
    p[r] = w[r] = w_over_q[r] = vf{};
  }
  Evaluation at{};
  uint32_t is_long = 0;
  for (uint32_t left = open; left; left &= left - 1) {
    const int r = __builtin_ctz(left);
    Row& row = rows[r];
    if (alpha_case != AlphaCase::General && row.padded > kSumBlock && lam[r] - row.inv_e > row.edge)
      compact_candidates(row, lam[r] - row.inv_e);
    Sums sums{};
    if (row.padded <= kSumBlock) {
      accumulate<alpha_case>(row, 0, row.padded, lam[r], sums);
      p[r] = sums.p, w[r] = sums.w, w_over_q[r] = sums.w_over_q;
      continue;
    }
    double S = 0.0, W = 0.0, C = 0.0;
    for (int64_t block = 0; block < row.padded; block += kSumBlock) {
      sums = Sums{};
      accumulate<alpha_case>(row, block, block + kSumBlock < row.padded ? block + kSumBlock : row.padded, lam[r], sums);
      S += hsum(sums.p), W += hsum(sums.w), C += hsum(sums.w_over_q);
    }
    is_long |= 1u << r;
    p[r] = w[r] = w_over_q[r] = vf{};
    at.residual[r] = (float)(S - 1.0), at.W[r] = (float)W, at.C[r] = (float)C;
  }
  const Evaluation together{sum_each(p) - 1.0f, sum_each(w), needs_C ? sum_each(w_over_q) : vf{}};
  if (!is_long) return together;
  return {blend(is_long, at.residual, together.residual), blend(is_long, at.W, together.W), blend(is_long, at.C, together.C)};
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
  vf e = splat(1.0f), count = splat(1.0f), last_left = splat(kLastHalley), last_right = splat(kLastFromRight);
  uint32_t thinned = 0;
  for (uint32_t left = open; left; left &= left - 1) {
    const int r = __builtin_ctz(left);
    e[r] = alpha_case == AlphaCase::Entmax15 ? 0.5f : alpha_case == AlphaCase::Sparsemax ? 1.0f : rows[r].e;
    count[r] = (float)rows[r].padded;
    if (alpha_case != AlphaCase::General && rows[r].padded > kSumBlock) thinned |= 1u << r;
    if (alpha_case == AlphaCase::General && e[r] <= kSmallE)
      last_left[r] = last_right[r] = has_short_step ? kLastHalley : fminf(cbrtf(kThirdOrder / (e[r] * e[r])), 0.3f);
  }
  const vf most = alpha_case == AlphaCase::Sparsemax  ? splat(kInf)
                  : alpha_case == AlphaCase::Entmax15 ? (2.0f - 2.0f / vsqrt(count)) * (1.0f + 1e-6f)
                                                      : largest_root(e, count);
  const uint32_t third_order =
      alpha_case == AlphaCase::Sparsemax || tolerance == kRough ? 0 : ~bits_greater(e, splat(0.5f)) & ~thinned;
  return solve_lanes<alpha_case>(open, e, lam, most, third_order, tolerance, last_left, last_right, [&](uint32_t now, vf at) {
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
    lam = first_guess<FirstGuess::Bound>(e, natural_log(blend(above_half, at_one, at_half * at_half)), vf{});
    if (small) lam = blend(small, softmax_guess(rows, small, e), lam);
    for (int r = 0; r < count; ++r) {
      const bool is_small = small >> r & 1;  // the guess of a small row may lie to the right of its root: nothing is left out
      if (!is_small || rows[r].from != rows[r].packed)
        compact_candidates(rows[r], is_small ? rows[r].edge : lam[r] - rows[r].inv_e);
    }
  }
  const Roots roots = solve_rows<alpha_case>(rows, all, lam, kTolerance, has_short_step);
  for (int r = 0; r < count; ++r) {
    rows[r].lam = roots.at[r] + roots.last_step[r];
    rows[r].last_step = roots.last_step[r];
    rows[r].slopes = roots.W[r];
  }
}

// Writes the weights of a row whose root is known.
template <AlphaCase alpha_case>
void write_weights(const Row& row, int64_t n) {
  if (row.slopes > kSensitive) {
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
  const float lam = row.lam;
  const float* packed = row.weight;
  auto weights = [&](vf scores) {
    vf u = scores - row.row_max;
    if (alpha_case == AlphaCase::General) {
      const uint32_t bits = bits_greater(u, edge);
      vf p = expand(packed, bits);
      packed += __builtin_popcount(bits);
      return p;
    }
    vf q = vmax(row.e * (u - lam) + 1.0f, vf{});
    return alpha_case == AlphaCase::Entmax15 ? q * q : q;
  };
  double total = 0.0;
  for (int64_t block = 0; block < n; block += kSumBlock) {
    const int64_t end = block + kSumBlock < n ? block + kSumBlock : n;
    vf sum{};
    int64_t i = block;
    for (; i + VL <= end; i += VL) {
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
