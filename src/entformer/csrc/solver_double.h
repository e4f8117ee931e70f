// alpha-entmax of one row in float64 scalars: any alpha, any float type, forward and backward.
//
// Serves float64 input, alpha > 2 (where the weight has infinite slope at the edge of the support, so float32 is not enough)
// and alpha < 1. The solver is the one of solver.h with a bracket around it, because for alpha > 2 the sum is not convex.
#pragma once

#include <math.h>

#include "dispatch.h"
#include "solver.h"

namespace {

// Rows with no finite maximum: all masked -> zeros; NaN -> NaN; +inf -> shared by the +inf entries.
template <class T>
void write_non_finite_row(const T* s, T* p, int64_t n, bool has_nan, T row_max) {
  T share = 0;
  if (has_nan) {
    share = (T)__builtin_nan("");
  } else if (row_max > 0) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; ++i) count += s[i] == row_max;
    share = (T)1 / (T)count;
  }
  for (int64_t i = 0; i < n; ++i) p[i] = has_nan ? share : (row_max > 0 && s[i] == row_max ? share : (T)0);
}

template <class T>
void solve_row_double(const T* s, T* p, int64_t n, double e, double* u) {
  double row_max = -INFINITY;
  bool has_nan = e != e;
  for (int64_t i = 0; i < n; ++i) {
    has_nan |= s[i] != s[i];
    if (s[i] > row_max) row_max = s[i];
  }
  if (has_nan || !(row_max - row_max == 0.0)) return write_non_finite_row<T>(s, p, n, has_nan, (T)row_max);
  const bool softmax = fabs(e) < kSoftmaxBelow;
  const double edge = e > 0 ? -1.0 / e : -INFINITY;
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) {
    u[count] = (double)s[i] - row_max;
    count += u[count] > edge;
  }
  auto weight = [&](double x) {  // exp_e(x)
    if (softmax) return exp(x);
    const double y = e * x;
    return y > -1.0 ? exp(log1p(y) / e) : 0.0;
  };
  // For alpha > 2 the sum is not convex in lam: keep a bracket, and halve it whenever Newton leaves it or gains too little.
  double low = 0.0, high = deformed_log(e, log((double)count));
  double lam = 0.0, last_gap = INFINITY, best = 0.0, best_gap = INFINITY;
  for (int step = 0; step < 200; ++step) {
    double S = 0.0, W = 0.0;
    for (int64_t i = 0; i < count; ++i) {
      const double x = u[i] - lam, y = e * x;
      if (!softmax && y <= -1.0) continue;
      const double w = weight(x);
      S += w;
      W += w / (1.0 + y);
    }
    const double gap = S - 1.0;
    if (fabs(gap) < best_gap) best = lam, best_gap = fabs(gap);  // rounding makes the last steps wander; the best one counts
    if (fabs(gap) <= 4e-16) break;
    (gap > 0 ? low : high) = lam;
    double next = W > 0 ? lam + newton_step(S, W, e) : high;
    const bool halve = !(next > low && next < high) || (e > 1.0 && fabs(gap) > 0.5 * last_gap);
    if (halve) next = 0.5 * (low + high);
    if (next == lam || !(high > low)) break;
    last_gap = fabs(gap);
    lam = next;
  }
  // Of many equal scores at alpha > 2, 1 + e x = n^-e is beyond what 1 - e lam can hold. All are off alike, so divide by the
  // sum; where nothing is left of it give all to the best.
  double total = 1.0, ties = 0.0;
  if (e > 1.0 && 1.0 - e * best < 1e-6) {
    total = 0.0;
    for (int64_t i = 0; i < count; ++i) {
      total += weight(u[i] - best);
      ties += u[i] == 0.0;
    }
  }
  for (int64_t i = 0; i < n; ++i) {
    const double above = (double)s[i] - row_max;
    p[i] = s[i] == -INFINITY ? (T)0 : total > 0.0 ? (T)(weight(above - best) / total) : (T)(above == 0.0 ? 1.0 / ties : 0.0);
  }
}

}  // namespace
