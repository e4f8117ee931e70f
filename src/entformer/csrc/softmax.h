// What a row of float32 scores needs before any root: its maximum; and softmax, alpha = 1, which needs no more.
#pragma once

#include <math.h>

#include "simd.h"

namespace {

// The row's maximum; +NaN when the row holds a NaN.
inline float row_maximum(const float* s, int64_t n) {
  vf row_max = splat(-kInf);
  bool has_nan = false;
  int64_t i = 0;
  for (; i + VL <= n; i += VL) {
    vf v = load(s + i);
    row_max = vmax(v, row_max);  // keeps `row_max` where v is NaN
    has_nan |= any_nan(v);
  }
  if (i < n) {
    vf v = load_tail(s + i, n - i, -kInf);
    row_max = vmax(v, row_max);
    has_nan |= any_nan(v);
  }
  return has_nan ? __builtin_nanf("") : hmax(row_max);
}

inline void softmax_row(const float* s, float* p, int64_t n, float row_max) {
  double total = 0.0;
  int64_t i = 0;
  while (i + VL <= n) {
    vf sum{};
    int64_t stop = i + 64 * VL < n ? i + 64 * VL : n;
    for (; i + VL <= stop; i += VL) {
      vf v = vexp(load(s + i) - row_max);
      store(p + i, v);
      sum += v;
    }
    total += hsum(sum);
  }
  if (i < n) {
    vf v = vexp(load_tail(s + i, n - i, -kInf) - row_max);
    store_tail(p + i, v, n - i);
    total += hsum(v);
  }
  const float scale = (float)(1.0 / total);
  for (i = 0; i + VL <= n; i += VL) store(p + i, load(p + i) * scale);
  for (; i < n; ++i) p[i] *= scale;
}

// ln sum exp(s - row_max) of n scores in whole vectors.
inline float log_sum_exp(const float* s, int64_t n, float row_max) {
  double total = 0.0;
  for (int64_t block = 0; block < n; block += 64 * VL) {
    vf sum{};
    for (int64_t i = block; i < n && i < block + 64 * VL; i += VL) sum += vexp(load(s + i) - row_max);
    total += hsum(sum);
  }
  return (float)log(total);
}

}  // namespace
