// alpha-entmax of rows in float32 vectors for 1 <= alpha <= 2: from scores to weights.
//
// With e = alpha - 1, u = s - max(s), p = q^(1/e), q = [1 + e (u - lam)]_+, the root lam of sum p = 1 is found by Newton's (or
// Halley's) steps on ln_e(S) = (S^e - 1)/e, S(lam) = sum p. S^e is a norm of order 1/e of an affine function of lam, so it is
// convex and Newton from the left never overshoots; at e = 0, and for rows of equal scores, one step is exact. Only keys with
// u > -1/e can have weight, so the steps run on those alone, packed, for as many rows at once as a vector has lanes.
#pragma once

#include "simd.h"
#include "solver_double.h"
#include "solver_fine.h"
#include "softmax.h"

namespace {

// One row on its way. Its candidates are the scores above `edge`, in `from`, less `base`: packed, already less the maximum
// (base 0) and padded with -inf to whole vectors; or, in a row of few whole vectors, the row itself (base = maximum).
// Where weights cost a power, the last evaluation of them and of their slopes is kept in `weight` and `slope`.
struct Row {
  const float* s;
  float* p;
  float *packed, *weight, *slope;
  const float* from;
  int64_t padded;
  float base, row_max, e, inv_e, edge;
  double e_exact;  // e before it was rounded
  float lam, last_step, slopes;  // found: the root, how far it lies from the last evaluation, and the sum of slopes there

  // `scratch` holds three runs of n + 2 VL floats. Filled in place: a struct copied right after it was written stalls the
  // copy until the writes land.
  void start(const float* scores, int64_t n, float maximum, double alpha_less_one, float* scratch);
};
constexpr int64_t kFewVectors = 4;
constexpr int64_t kShort = kSumBlock;  // candidates of a row that is solved together with others

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

constexpr double kTolerance = 2e-7;   // how far a row's sum may stay above one
constexpr float kRough = 0.1f;      // the same, where only a bound is wanted
constexpr double kLastStep = 3e-5;  // S'' is bounded for e <= 1/2: a step from this close leaves residual^2, below rounding
constexpr float kLastHalley = 1e-3f;  // and a step of third order from this close leaves residual^3
constexpr float kLastFromRight = 1e-6f;  // to the right of the root, what is barely inside the support has been cut off
constexpr float kTooFar = 0.1f;  // below one, where Halley's step is not to be trusted again

// Where a row stands: its root, how far that lies from the last evaluation, and the sum of slopes there.
template <class T>
struct Root {
  T lam, last_step, slopes;
};

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

// The root for one row of any length; the sums run in double over short float blocks. From the left every step raises the edge
// below which no key has weight, so a long row is thinned out as it goes; not where weights are kept, which lie as they were packed.
template <AlphaCase alpha_case>
Root<float> solve_one(Row& row, float lam, double tolerance) {
  const float e = alpha_case == AlphaCase::Entmax15 ? 0.5f : alpha_case == AlphaCase::Sparsemax ? 1.0f : row.e;
  float last_step = 0.0f;
  double W = 0.0;
  for (int step = 0; step < 64; ++step) {
    double S = 0.0;
    W = 0.0;
    for (int64_t block = 0; block < row.padded; block += 64 * VL) {
      Sums sums{};
      accumulate<alpha_case>(row, block, block + 64 * VL < row.padded ? block + 64 * VL : row.padded, lam, sums);
      S += hsum(sums.p);
      W += hsum(sums.w);
    }
    last_step = 0.0f;
    if (S - 1.0 <= tolerance) break;
    const double gain = alpha_case == AlphaCase::Sparsemax ? S - 1.0 : S * -expm1(-(double)e * log(S)) / e;
    const float next = lam + (float)(gain / W);
    if (next <= lam) break;
    last_step = next - lam;
    lam = next;
    if (e <= 0.5f && S - 1.0 < kLastStep) break;
    if (alpha_case != AlphaCase::General && row.padded > kShort) compact_candidates(row, lam - row.inv_e);
  }
  return {lam, last_step, (float)W};
}

// The sums of VL rows.
struct RowSums {
  vf p[VL], w[VL], w_over_q[VL];
};

// The step of VL rows from their sums: Newton's on ln_e(S), or Halley's where `third_order` has a bit.
template <AlphaCase alpha_case>
inline vf step_of(const RowSums& of, vf S, vf W, vf e, uint32_t third_order) {
  W = vmax(W, splat(kSmallestNormal));
  vf change;
  if (alpha_case == AlphaCase::Sparsemax) {
    change = (S - 1.0f) / W;
  } else if (alpha_case == AlphaCase::Entmax15) {
    change = 2.0f * (S - vsqrt(S)) / W;
  } else {  // (S - S^(1-e))/e = S log(S) (1 - exp(-t))/t with t = e log(S), by its series while t is small
    vf log_S = vlog(vmax(S, splat(kSmallestNormal))), t = e * log_S;
    vf series = 1.0f + t * (-0.5f + t * (1.0f / 6 + t * (-1.0f / 24 + t * (1.0f / 120 - t * (1.0f / 720)))));
    change = S * log_S * (t < 0.25f ? series : (1.0f - vexp(-t)) / vmax(t, splat(0.25f))) / W;
  }
  if (third_order) {  // the curvature of ln_e(S) over its slope
    vf curvature = (1.0f - e) * (W / vmax(S, splat(kSmallestNormal)) - sum_each(of.w_over_q) / W);
    change = blend(third_order, change / vmax(1.0f + 0.5f * change * curvature, splat(0.5f)), change);
  }
  return change;
}

// The root of n equal scores, (1 - n^-e)/e, or a little more: ln n where e is small and the difference would cancel.
inline vf largest_root(vf e, vf n) {
  vf log_n = vlog(n), t = e * log_n;
  return t < 0.25f ? log_n : (1.0f - vexp(-t)) / vmax(e, splat(kSmallestNormal));
}

// The roots of up to VL rows of at most kShort candidates: sums of all rows are taken together and the steps run one row a lane,
// so the latency of a reduction, a root and a division is paid once for VL rows.
template <AlphaCase alpha_case>
Root<vf> solve_together(const Row* rows, int count, vf lam, float tolerance) {
  vf e{}, last_step{}, W{};
  RowSums of;
  // A little more than the root of as many equal scores: no row has a larger one. Halley's step may go beyond, where no weight is left
  // to step back by; a row that it took too far goes on by Newton's.
  vf most = splat(1.0f);
  for (int r = 0; r < count; ++r) e[r] = rows[r].e, most[r] = (float)rows[r].padded;
  if (alpha_case == AlphaCase::Entmax15) most = 2.0f - 2.0f / vsqrt(most);
  else if (alpha_case == AlphaCase::General) most = largest_root(e, most);
  else most = splat(kInf);
  most *= 1.0f + 1e-6f;
  for (int r = count; r < VL; ++r) of.p[r] = of.w[r] = of.w_over_q[r] = vf{};
  const uint32_t all = (1u << count) - 1;
  uint32_t open = all;
  // Where S'' is bounded Halley's steps are taken, which may end on either side of the root; a bound needs Newton's.
  const uint32_t smooth = ~bits_greater(e, splat(0.5f));
  const uint32_t returns = alpha_case == AlphaCase::Sparsemax || tolerance == kRough ? 0 : smooth;  // rows that may step left
  uint32_t third_order = returns;
  for (int step = 0; step < 64 && open; ++step) {
    for (uint32_t left = open; left; left &= left - 1) {
      const int r = __builtin_ctz(left);
      Sums sums{};
      accumulate<alpha_case>(rows[r], 0, rows[r].padded, lam[r], sums);
      of.p[r] = sums.p;
      of.w[r] = sums.w;
      of.w_over_q[r] = sums.w_over_q;
    }
    vf S = sum_each(of.p), residual = S - 1.0f;
    W = sum_each(of.w);
    vf change = vmin(step_of<alpha_case>(of, S, W, e, third_order), most - lam), next = lam + change;
    // From the left every Newton step goes right; only a start to the right of the root makes one step left.
    uint32_t moving = bits_greater(residual, splat(tolerance)) & bits_greater(next, lam);
    moving |= bits_greater(splat(-tolerance), residual) & (step == 0 ? ~0u : returns);
    moving &= open;
    last_step = blend(open, blend(moving, change, vf{}), last_step);
    lam = blend(moving, next, lam);
    open = moving;
    open &= bits_greater(residual, splat(kLastHalley)) | bits_greater(splat(-kLastFromRight), residual) | ~third_order;
    third_order &= ~bits_greater(splat(-kTooFar), residual);
  }
  return {lam, last_step, W};
}

// Writes the weights of a row whose root is known.
template <AlphaCase alpha_case>
void write_weights(const Row& row, int64_t n) {
  if (row.slopes > kSensitive) {
    fine_row(alpha_case, row.s, n, row.row_max, row.e_exact, row.lam, row.packed).write(row.s, n, row.p);
    return;
  }
  if (alpha_case == AlphaCase::General && row.last_step != 0.0f) {  // the last step was so short that two terms of its effect are all of it
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
  for (int64_t block = 0; block < n; block += kShort) {
    const int64_t end = block + kShort < n ? block + kShort : n;
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

inline void swap_rows(Row& a, Row& b) {
  const Row c = a;
  a = b;
  b = c;
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

// Computes the roots of up to VL rows: long rows one by one, the others together. Reorders `rows`.
template <AlphaCase alpha_case>
void solve(Row* rows, int count) {
  for (int r = count - 1; r >= 0; --r) {
    rows[r].lam = 0.0f;
    if (rows[r].padded <= kShort) continue;
    if (alpha_case == AlphaCase::General) {  // the bound explained below
      rows[r].lam = (rows[r].e <= 0.5f ? solve_one<AlphaCase::Entmax15>(rows[r], 0.0f, kRough) : solve_one<AlphaCase::Sparsemax>(rows[r], 0.0f, kRough)).lam;
      compact_candidates(rows[r], rows[r].lam - rows[r].inv_e);
      if (rows[r].padded <= kShort) continue;
    }
    const Root<float> root = solve_one<alpha_case>(rows[r], rows[r].lam, kTolerance);
    rows[r].lam = root.lam;
    rows[r].last_step = root.last_step;
    rows[r].slopes = root.slopes;
    swap_rows(rows[r], rows[--count]);
  }
  if (count == 0) return;
  vf start{};
  if (alpha_case == AlphaCase::General) {
    // The largest weight, (1 - e lam)^(1/e), grows with alpha. So the roots at e = 1/2 and e = 1, which cost no powers, bound
    // it from above, and thereby lam from the left; a rough one is enough to start from and to thin out the candidates.
    int wide = 0;  // rows with e <= 1/2 come first
    for (int r = 0; r < count; ++r)
      if (rows[r].e <= 0.5f && wide++ != r) swap_rows(rows[wide - 1], rows[r]);
    vf from_half{}, from_one{};
    for (int r = 0; r < count; ++r) (r < wide ? from_half[r] : from_one[r - wide]) = rows[r].lam;
    vf half = wide ? solve_together<AlphaCase::Entmax15>(rows, wide, from_half, kRough).lam : vf{};
    vf one = wide < count ? solve_together<AlphaCase::Sparsemax>(rows + wide, count - wide, from_one, kRough).lam : vf{};
    vf e{};
    for (int r = 0; r < count; ++r) {
      const float largest = r < wide ? 1.0f - 0.5f * half[r] : 1.0f - one[r - wide];
      start[r] = r < wide ? largest * largest : largest;
      e[r] = rows[r].e;
    }
    start = (1.0f - vexp(e * vlog(vmax(start, splat(kSmallestNormal))))) / e * (1.0f - 1e-6f);
    for (int r = 0; r < count; ++r) compact_candidates(rows[r], start[r] - rows[r].inv_e);
  }
  const Root<vf> roots = solve_together<alpha_case>(rows, count, start, (float)kTolerance);
  for (int r = 0; r < count; ++r) {
    rows[r].lam = roots.lam[r];
    rows[r].last_step = roots.last_step[r];
    rows[r].slopes = roots.slopes[r];
  }
}

}  // namespace
