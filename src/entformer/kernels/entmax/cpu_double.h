// alpha-entmax of one row in float64 scalars: any alpha, any float type, forward and backward.
//
// Serves float64 input, alpha > 2 (where the weight has infinite slope at the edge of the support, so float32 is not enough)
// and alpha < 1. The solver is the one of cpu_forward.h with a bracket around it, because for alpha > 2 the sum is not convex.
#pragma once

#include <math.h>
#include <stdint.h>

namespace {

constexpr double kSoftmaxBelow = 1e-30;  // |alpha - 1| under this is softmax to the last bit

// Rows with no finite maximum: all masked -> zeros; NaN -> NaN; +inf -> shared by the +inf entries.
template <class T>
void special_row(const T* s, T* p, int64_t n, bool has_nan, T top) {
  T share = 0;
  if (has_nan) {
    share = (T)__builtin_nan("");
  } else if (top > 0) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; ++i) count += s[i] == top;
    share = (T)1 / (T)count;
  }
  for (int64_t i = 0; i < n; ++i) p[i] = has_nan ? share : (top > 0 && s[i] == top ? share : (T)0);
}

template <class T>
void double_row(const T* s, T* p, int64_t n, double e, double* u) {
  double top = -INFINITY;
  bool has_nan = e != e;
  for (int64_t i = 0; i < n; ++i) {
    has_nan |= s[i] != s[i];
    if (s[i] > top) top = s[i];
  }
  if (has_nan || !(top - top == 0.0)) return special_row<T>(s, p, n, has_nan, (T)top);
  const bool softmax = fabs(e) < kSoftmaxBelow;
  const double edge = e > 0 ? -1.0 / e : -INFINITY;
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) {
    u[count] = (double)s[i] - top;
    count += u[count] > edge;
  }
  auto weight = [&](double x) {  // exp_e(x)
    if (softmax) return exp(x);
    const double y = e * x;
    return y > -1.0 ? exp(log1p(y) / e) : 0.0;
  };
  // For alpha > 2 the sum is not convex in lam: keep a bracket, and halve it whenever Newton leaves it or gains too little.
  double low = 0.0, high = softmax ? log((double)count) : -expm1(-e * log((double)count)) / e;
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
    double next = W > 0 ? lam + (softmax ? log(S) : S * -expm1(-e * log(S)) / (e * W)) : high;
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
    const double above = (double)s[i] - top;
    p[i] = s[i] == -INFINITY ? (T)0 : total > 0.0 ? (T)(weight(above - best) / total) : (T)(above == 0.0 ? 1.0 / ties : 0.0);
  }
}

double alpha_slope_double(double p, double w, double log_p, double e) {
  const double t = -e * log_p;
  if (fabs(t) >= 0.5) return (p * (t + 1.0) - w) / (e * e);
  double psi = 0.0;
  for (int k = 16; k >= 1; --k) psi = (psi + 1.0) * t / (k + 2);
  return -p * log_p * log_p * (psi + 1.0) * 0.5;
}

template <class T>
double backward_row_double(const T* p, const T* g, T* out, int64_t n, double e, bool want_alpha) {
  double W = 0.0, WG = 0.0, A = 0.0, AG = 0.0;
  for (int64_t i = 0; i < n; ++i) {
    if (p[i] == 0) continue;
    const double log_p = log((double)p[i]), w = exp((1.0 - e) * log_p);
    W += w;
    WG += w * g[i];
    if (want_alpha) {
      const double a = alpha_slope_double(p[i], w, log_p, e);
      A += a;
      AG += a * g[i];
    }
  }
  const double delta = W == 0.0 ? 0.0 : WG / W;
  for (int64_t i = 0; i < n; ++i)
    out[i] = p[i] == 0 ? (T)0 : (T)(exp((1.0 - e) * log((double)p[i])) * (g[i] - delta));
  return AG - delta * A;
}

}  // namespace
