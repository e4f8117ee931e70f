// Cross entropy of rows with its gradient, and dropout, on the CPU; compiled once per instruction set (see kernels/native.py).
//
//   p = softmax(scores);  loss = (1 - s) (-ln p_y) + s mean_v(-ln p_v);  gradient = p - s / V - (1 - s) [v = y]
//
// A row of scores stays in the cache between the passes over it: maximum and sum, exponentials, gradient.
#include "cpu_kernel.h"

#include <math.h>

#include "../simd.h"

namespace {

inline void row_maximum_and_sum(const float* x, int64_t n, float* top, double* total) {
  vf best[2] = {splat(-kInf), splat(-kInf)}, sum[2] = {vf{}, vf{}};
  int64_t i = 0;
  for (; i + 2 * VL <= n; i += 2 * VL)
    for (int u = 0; u < 2; ++u) {
      const vf v = load(x + i + u * VL);
      best[u] = vmax(best[u], v);
      sum[u] += v;
    }
  float m = hmax(vmax(best[0], best[1])), rest = 0.0f;
  for (; i < n; ++i) {
    m = x[i] > m ? x[i] : m;
    rest += x[i];
  }
  *top = m;
  *total = (double)hsum(sum[0] + sum[1]) + rest;
}

// x becomes exp(x - top); returns the sum.
inline float exponentials(float* x, int64_t n, float top) {
  vf sum[2] = {vf{}, vf{}};
  int64_t i = 0;
  for (; i + 2 * VL <= n; i += 2 * VL)
    for (int u = 0; u < 2; ++u) {
      const vf e = vexp(load(x + i + u * VL) - top);
      store(x + i + u * VL, e);
      sum[u] += e;
    }
  for (; i < n; i += VL) {
    const int64_t count = n - i < VL ? n - i : VL;
    const vf e = vexp(count < VL ? load_tail(x + i, count, -kInf) - top : load(x + i) - top);
    if (count < VL) store_tail(x + i, e, count);
    else store(x + i, e);
    sum[0] += e;
  }
  return hsum(sum[0] + sum[1]);
}

bool cross_entropy(const CrossEntropy& a, int64_t begin, int64_t end) {
  const int64_t n = a.n;
  Scratch scratch((size_t)n * sizeof(float));
  if (!scratch.data) return false;
  for (int64_t row = begin; row < end; ++row) {
    float* x = (float*)scratch.data;
    if (a.dtype == kFloat32 && a.differentiate) x = (float*)a.scores + row * n;  // in place
    else read_row(a.scores, a.dtype, row, n, x);
    float top;
    double total;
    row_maximum_and_sum(x, n, &top, &total);
    if (total != total) top = (float)total;  // a NaN anywhere spoils the row: training has to see it
    const float of_target = x[a.target[row]];
    const float sum = exponentials(x, n, top);
    const double log_sum = (double)top + log((double)sum);
    const double nll = log_sum - of_target, s = a.smoothing;
    a.sums[3 * row] = (float)((1.0 - s) * nll + s * (log_sum - total / (double)n));
    a.sums[3 * row + 1] = (float)nll;
    a.sums[3 * row + 2] = of_target == top ? 1.0f : 0.0f;
    if (!a.differentiate) continue;
    const float inverse = total != total ? top : 1.0f / sum, share = a.smoothing / (float)n;
    for (int64_t i = 0; i < n; ++i) x[i] = x[i] * inverse - share;
    x[a.target[row]] -= 1.0f - a.smoothing;
    if (a.dtype != kFloat32) write_row(x, a.dtype, row, n, a.scores);
  }
  return true;
}

inline uint64_t mixed(uint64_t x) {  // splitmix64's finaliser
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// A hash of 32 bits per element: its number and the two halves of the seed, mixed twice.
inline uint32_t hash(uint32_t i, uint32_t low, uint32_t high) {
  uint32_t x = i ^ low;
  x = (x ^ (x >> 16)) * 0x7feb352du + high;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

constexpr int64_t kBlock = 1024;  // elements whose masks are drawn together

bool dropout(const Dropout& a, int64_t begin, int64_t end) {
  float x[kBlock], base[kBlock];
  for (int64_t at = begin; at < end;) {
    // Blocks start at multiples of kBlock whatever the threads, and never straddle 2^32 elements, where the seed changes.
    const int64_t first = at / kBlock * kBlock;
    const int64_t stop = first + kBlock < end ? first + kBlock : end;
    const int64_t count = stop - at;
    const uint64_t seed = mixed(a.seed + 0x9e3779b97f4a7c15ull * (uint64_t)((at >> 32) + 1));
    const uint32_t low = (uint32_t)seed, high = (uint32_t)(seed >> 32), from = (uint32_t)at;
    const float* in = (const float*)a.x + at;
    if (a.x_dtype != kFloat32) {
      const uint16_t* narrow = (const uint16_t*)a.x + at;
      for (int64_t i = 0; i < count; ++i) x[i] = from_bf16(narrow[i]);
      in = x;
    }
    const float* add = (const float*)a.residual + (a.residual ? at : 0);
    if (a.residual && a.residual_dtype != kFloat32) {
      const uint16_t* narrow = (const uint16_t*)a.residual + at;
      for (int64_t i = 0; i < count; ++i) base[i] = from_bf16(narrow[i]);
      add = base;
    }
    float* out = a.out_dtype == kFloat32 ? (float*)a.out + at : x;
    const float scale = a.scale;
    const uint32_t threshold = a.threshold;
    if (a.residual)
      for (int64_t i = 0; i < count; ++i) {
        const float kept = in[i] * scale;
        out[i] = add[i] + (hash(from + (uint32_t)i, low, high) < threshold ? 0.0f : kept);
      }
    else
      for (int64_t i = 0; i < count; ++i) {
        const float kept = in[i] * scale;
        out[i] = hash(from + (uint32_t)i, low, high) < threshold ? 0.0f : kept;
      }
    if (a.out_dtype != kFloat32) {
      uint16_t* narrow = (uint16_t*)a.out + at;
      for (int64_t i = 0; i < count; ++i) narrow[i] = to_bf16(x[i]);
    }
    at = stop;
  }
  return true;
}

}  // namespace

#if defined(__AVX512F__)
#define ENTFORMER_NAME "avx512"
#define ENTFORMER_TABLE entformer_training_avx512
#elif defined(__AVX2__)
#define ENTFORMER_NAME "avx2"
#define ENTFORMER_TABLE entformer_training_avx2
#else
#define ENTFORMER_NAME "portable"
#define ENTFORMER_TABLE entformer_training_portable
#endif

extern "C" const TrainingTable* ENTFORMER_TABLE() {
  static const TrainingTable table = {ENTFORMER_NAME, cross_entropy, dropout};
  return &table;
}
