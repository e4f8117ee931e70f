// The threshold lam of up to VL rows at once, one a lane, from sums that an evaluation of their weights gives: first guess and steps.
//
// With e = alpha - 1, u = s - max(s), p = q^(1/e), q = [1 + e (u - lam)]_+, the root lam of sum p = 1 is found by Newton's (or
// Halley's) steps on ln_e(S) = (S^e - 1)/e, S(lam) = sum p. S^e is a norm of order 1/e of an affine function of lam, so it is
// convex and Newton from the left never overshoots; at e = 0, and for rows of equal scores, one step is exact.
#pragma once

#include "dispatch.h"
#include "simd.h"

namespace {

constexpr float kTolerance = 2e-7f;  // how far a row's sum may stay from one
constexpr float kRough = 0.1f;       // the same, where only a bound is needed
constexpr float kLastStep =
    3e-5f;  // S'' is bounded for e <= 1/2: a Newton step from this close leaves residual^2, below rounding
constexpr float kLastHalley = 1e-3f;     // and a step of third order from this close leaves residual^3
constexpr float kLastFromRight = 1e-6f;  // to the right of the root, what is barely inside the support has been cut off
constexpr float kNearOne = 0.25f;        // how far from one a sum has its Newton step by a series
constexpr float kTooFar = 0.1f;          // below one, where Halley's step is not to be trusted again
constexpr float kSmallE = 0.1f;       // up to here a row is smooth at both sides of its root, and softmax tells where it lies
constexpr float kThirdOrder = 1e-6f;  // there, Halley's step leaves about residual^3 e^2 / 20
constexpr float kAimShort = 4e-4f;    // the residual that far steps of third order aim for, so that they stay left of the root

// ---- sums ---------------------------------------------------------------------------------------------------------------

// Sums over a row, lane by lane: the weights p, their slopes w = -dp/dlam and, where a step uses them, w/q and w/q^2.
struct Sums {
  vf p, w, w_over_q, w_over_q2;
};

// Zeros for the rows beyond a batch of `size`. An initializer would fill all lanes, which takes as long as a short row.
template <class... Arrays>
inline void zero_beyond(int size, Arrays*... sums) {
  for (int r = size; r < VL; ++r) ((sums[r] = vf{}), ...);
}

// The sums of one evaluation, one row a lane: S - 1, W, C = sum w/q, and D = sum w/q^2, zero where no step uses it.
struct Evaluation {
  vf residual, W, C, D;
};

// Evaluates the open rows, of length(r) columns: add(r, begin, end, sums) adds those of a part, of which the first `kinds` are used. Long
// rows are summed in float64 over short blocks.
template <int kinds, class Length, class Add>
inline Evaluation evaluate_lanes(uint32_t open, const Length& length, const Add& add) {
  vf parts[kinds][VL], total[4] = {};
  for (uint32_t closed = ~open & ((1u << VL) - 1); closed; closed &= closed - 1)
    for (int kind = 0; kind < kinds; ++kind) parts[kind][__builtin_ctz(closed)] = vf{};
  auto each_kind = [](const Sums& sums, const auto& use) {
    const vf all[] = {sums.p, sums.w, sums.w_over_q, sums.w_over_q2};
    for (int kind = 0; kind < kinds; ++kind) use(kind, all[kind]);
  };
  uint32_t is_long = 0;
  for (uint32_t left = open; left; left &= left - 1) {
    const int r = __builtin_ctz(left);
    const int64_t end = length(r);
    if (end <= kSumBlock) {
      Sums sums{};
      add(r, 0, end, sums);
      each_kind(sums, [&](int kind, vf sum) { parts[kind][r] = sum; });
      continue;
    }
    double exact[4] = {-1.0};  // S - 1 is rounded, not S
    for (int64_t block = 0; block < end; block += kSumBlock) {
      Sums sums{};
      add(r, block, block + kSumBlock < end ? block + kSumBlock : end, sums);
      each_kind(sums, [&](int kind, vf sum) { exact[kind] += hsum(sum); });
    }
    is_long |= 1u << r;
    for (int kind = 0; kind < kinds; ++kind) parts[kind][r] = vf{}, total[kind][r] = (float)exact[kind];
  }
  for (int kind = 0; kind < kinds; ++kind)
    total[kind] = blend(is_long, total[kind], sum_each(parts[kind]) - (kind ? 0.0f : 1.0f));
  return {total[0], total[1], total[2], total[3]};
}

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

// The same without a logarithm for sums near one: (S - S^(1-e))/e as a series in r = S - 1, of which what is left out is below 3e-8 up to
// |r| = 0.07, the farthest last step, and below 1e-5 up to kNearOne.
inline vf newton_step_near_one(vf r, vf W, vf e) {
  vf series = 1.0f - (3.0f + e) * r * (1.0f / 5);
  series = 1.0f - (2.0f + e) * r * (1.0f / 4) * series;
  series = 1.0f - (1.0f + e) * r * (1.0f / 3) * series;
  return r * (1.0f + (1.0f - e) * r * (1.0f / 2) * series) / W;
}

// Newton's step of the `open` rows, without a logarithm where none is needed for it; Halley's where `third_order` has a bit, and
// Householder's of fourth order there where D is known. With f = ln_e(S): curvature = f''/f' and twist = f'''/f'.
template <AlphaCase alpha_case>
inline vf step_of(const Evaluation& at, vf e, uint32_t open, uint32_t third_order) {
  vf S = at.residual + 1.0f, W = vmax(at.W, splat(kSmallestNormal)), change;
  if (alpha_case == AlphaCase::Sparsemax) {
    change = at.residual / W;
  } else if (alpha_case == AlphaCase::Entmax15) {
    change = 2.0f * (S - vsqrt(S)) / W;
  } else {
    change = newton_step_near_one(at.residual, W, e);
    const uint32_t far = open & (bits_greater(at.residual, splat(kNearOne)) | bits_greater(splat(-kNearOne), at.residual));
    if (far) change = blend(far, newton_step(S, W, e), change);
  }
  if (third_order) {
    const vf per_S = W / vmax(S, splat(kSmallestNormal)), per_W = at.C / W;
    const vf half = 0.5f * change * ((1.0f - e) * (per_S - per_W));  // of the curvature
    vf corrected = change / vmax(1.0f + half, splat(0.5f));
    if (const uint32_t has_D = bits_greater(at.D, vf{})) {
      const vf twist =
          (1.0f - e) * ((1.0f - 2.0f * e) * (at.D / W) - 3.0f * (1.0f - e) * (per_S * per_W) + (2.0f - e) * (per_S * per_S));
      corrected =
          blend(has_D, change * (1.0f + half) / vmax(1.0f + 2.0f * half + change * change * twist * (1.0f / 6), splat(0.5f)),
                corrected);
    }
    change = blend(third_order, corrected, change);
  }
  return change;
}

// Where the rows stand: the last evaluation, how far the root lies from it, and the sums of slopes and weights there.
struct Roots {
  vf at, last_step, W, S;
};

// Moves lam of the `open` rows, one a lane, to their roots: evaluate(open, lam) returns an Evaluation. So the latency of a reduction, a
// root and a division is paid once for VL rows. Rows in `third_order` take Halley's steps, which may end on either side of the root; one
// that went too far continues with Newton's, which stay on the left once they are there. No root is larger than `most`.
struct LastStep {
  vf left, right;    // Halley's step is the last one from a residual of at most this, on either side of the root
  uint32_t is_free;  // rows whose steps go on from any distance to the right
  uint32_t by_curvature =
      0;  // rows whose Newton step to the right is the last one if C tells that it leaves less than the tolerance
};
template <AlphaCase alpha_case, class Evaluate>
inline Roots solve_lanes(uint32_t open, vf e, vf lam, vf most, uint32_t third_order, float tolerance, const LastStep& last,
                         const Evaluate& evaluate) {
  Roots roots{};
  const uint32_t smooth = ~bits_greater(e, splat(0.5f)), returns = third_order;  // rows that may step left
  for (int step = 0; step < 64 && open; ++step) {
    const Evaluation at = evaluate(open, lam);
    const uint32_t far = bits_greater(at.residual, last.left) | bits_greater(-last.right, at.residual);
    vf change = step_of<alpha_case>(at, e, open, third_order);
    if (alpha_case == AlphaCase::General)
      change = blend(far & third_order, change - kAimShort / vmax(at.W, splat(kSmallestNormal)), change);
    change = vmin(vmax(change, -lam), most - lam);
    vf next = lam + change;
    // From the left every Newton step goes right; only a start to the right of the root makes one step left.
    uint32_t moving = bits_greater(at.residual, splat(tolerance)) & bits_greater(next, lam);
    moving |= bits_greater(splat(-tolerance), at.residual) & (step == 0 ? ~0u : returns);
    moving &= open;
    roots.at = blend(open, lam, roots.at);
    roots.W = blend(open, at.W, roots.W);
    roots.S = blend(open, at.residual + 1.0f, roots.S);
    roots.last_step = blend(open, change, roots.last_step);  // not next - lam: many weights feel the rounding of lam
    lam = blend(moving, next, lam);
    // A weight that the step cuts off leaves up to e C times its square, the others (1 - e) C times it.
    const uint32_t leaves_little =
        last.by_curvature & bits_greater(splat(tolerance), vmax(1.0f - e, e) * at.C * (change * change));
    const uint32_t near_left =
        bits_greater(at.residual, vf{}) & ((bits_greater(splat(kLastStep), at.residual) & smooth) | leaves_little);
    const uint32_t near_right = bits_greater(vf{}, at.residual) & ~far & returns;  // rounding may keep it from the tolerance
    open = moving & ((third_order & far) | (~third_order & ~near_left & ~near_right));
    third_order &= ~bits_greater(splat(-kTooFar), at.residual) | last.is_free;
  }
  return roots;
}

// ---- the first guess -----------------------------------------------------------------------------------------------------

// The root of n equal scores, (1 - n^-e)/e, or a little more: no row of n candidates has a larger one.
inline vf largest_root(vf e, vf n) {
  vf log_n = vlog(n), t = e * log_n;
  return (t < 0.25f ? log_n : (1.0f - vexp(-t)) / vmax(e, splat(kSmallestNormal))) * (1.0f + 1e-6f);
}

// A bound of lam at e from P, the largest weight, (1 - e lam)^(1/e), at an e' >= e: the largest weight grows with alpha, so this lies left of
// the root, and Newton stays there.
inline vf bound_from(vf e, vf log_P) { return (1.0f - vexp(e * log_P)) / e * (1.0f - 1e-6f); }

// lam of rows of n scores near the root, on either side, from the sums of q, q^2 and q^3 at e = 1/2, lam = 0: -ln P is ln sum q^2 for equal
// scores at any e; of others it is that times a polynomial fitted to normal, uniform and Laplacian scores of many scales.
struct PowersOfHalf {
  vf first, second, third;
};
inline vf guess_from_half(vf e, const PowersOfHalf& sums, vf n) {
  const vf f = 1.0f - sums.second / sums.first, t = 1.0f - sums.third / sums.second;
  const vf at_half = f * (27.0f * t - 12.05f * f - 4.15f) - t * (11.23f * t + 1.02f);
  const vf factor = 1.0f + 2.222f * f - t * (2.104f + 0.982f * (t * t)) + e * (at_half + e * (3.84f * f - 2.33f * t));
  const vf log_per_P = vmin(vmax(natural_log(sums.second) * factor, vf{}), natural_log(n));
  return (1.0f - vexp(-e * log_per_P)) / e;
}

// lam from the moments of softmax, E = sum exp(u), M1 = sum u exp(u), M2 = sum u^2 exp(u): -ln P is ln E + e (ln E m1 - m2/2) up to e^2,
// where m = M/E, and ln n for n equal scores at any e.
inline vf guess_from_softmax(vf e, vf E, vf M1, vf M2) {
  vf log_E = natural_log(E);
  return deformed_log(e, vmax(log_E + e * (log_E * M1 - 0.5f * M2) / E, vf{}));
}

}  // namespace
