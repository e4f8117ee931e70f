// alpha-entmax of rows on the CPU, forward and backward; compiled once per instruction set (see kernels/native.py).
//
// In: a block of rows [begin, end) of scores (or weights and their gradients) and an alpha per row.  Out: weights (or gradients).
// This file only sorts rows by what they need: float32 vectors (cpu_forward.h, cpu_backward.h) for 1 <= alpha <= 2, float64
// scalars (cpu_double.h) otherwise. bfloat16 and float16 rows are widened to float32 first.
#include "cpu_kernel.h"

#include "cpu_backward.h"
#include "cpu_batch.h"
#include "cpu_double.h"
#include "cpu_gathered_backward.h"

namespace {

// Rows worked on together: as many as a vector has lanes, while their scratch stays in the cache.
int64_t batch_rows(int64_t n) {
  const int64_t fit = 32768 / n;
  return fit < 1 ? 1 : fit < VL ? fit : VL;
}

bool forward(const EntmaxForward& a, int64_t begin, int64_t end) {
  const int64_t n = a.n;
  if (a.dtype == kFloat64) {
    Scratch scratch((size_t)(n + 1) * sizeof(double));
    if (!scratch.data) return false;
    for (int64_t row = begin; row < end; ++row)
      double_row((const double*)a.scores + row * n, (double*)a.weights + row * n, n, a.alpha[row * a.alpha_stride] - 1.0,
                 (double*)scratch.data);
    return true;
  }
  const int64_t most = batch_rows(n);
  const bool narrow = a.dtype != kFloat32;
  const int64_t stride = (3 * (n + 2 * VL) + 1) / 2 * 2;  // three runs of floats, or n doubles, which want even places
  Scratch scratch((size_t)(most * stride) * sizeof(float) * (narrow ? 2 : 1));
  if (!scratch.data) return false;
  float* candidates = (float*)scratch.data;
  float* copies = candidates + most * stride;  // of narrow rows: in, then out
  RowBatch batch(a.past_cache);
  for (int64_t first = begin; first < end; first += most) {
    const int64_t count = end - first < most ? end - first : most;
    for (int64_t r = 0; r < count; ++r) {
      const int64_t row = first + r;
      const float* in = (const float*)a.scores + row * n;
      float* out = (float*)a.weights + row * n;
      if (narrow) {
        read_row(a.scores, a.dtype, row, n, copies + r * stride);
        in = copies + r * stride;
        out = copies + r * stride + n + 2 * VL;
      }
      batch.add(in, out, n, a.alpha[row * a.alpha_stride] - 1.0, candidates + r * stride);
    }
    batch.run(n);
    for (int64_t r = 0; narrow && r < count; ++r)
      write_row(copies + r * stride + n + 2 * VL, a.dtype, first + r, n, a.weights);
  }
  end_of_puts();
  return true;
}

bool backward(const EntmaxBackward& a, int64_t begin, int64_t end) {
  const int64_t n = a.n;
  const bool narrow = a.dtype == kBFloat16 || a.dtype == kFloat16, want = a.grad_alpha != nullptr;
  if (a.dtype == kFloat64) {
    for (int64_t row = begin; row < end; ++row) {
      const double grad_alpha =
          backward_row_double((const double*)a.weights + row * n, (const double*)a.grad_weights + row * n,
                              (double*)a.grad_scores + row * n, n, a.alpha[row * a.alpha_stride] - 1.0, want);
      if (want) a.grad_alpha[row] = grad_alpha;
    }
    return true;
  }
  const int64_t most = batch_rows(n), run = n + 2 * VL, stride = (narrow ? 6 : 3) * run;
  Scratch scratch((size_t)(most * stride + GatheredGradients::scratch_floats(most, n)) * sizeof(float));
  if (!scratch.data) return false;
  GatheredGradients gathered((float*)scratch.data + most * stride, most, n);
  for (int64_t first = begin; first < end; first += most) {
    const int64_t count = end - first < most ? end - first : most;
    SupportBatch batch;
    for (int64_t r = 0; r < count; ++r) {
      const int64_t row = first + r;
      const double e = a.alpha[row * a.alpha_stride] - 1.0;
      float* packed = (float*)scratch.data + r * stride;
      const float* p = (const float*)a.weights + row * n;
      const float* g = (const float*)a.grad_weights + row * n;
      float* out = (float*)a.grad_scores + row * n;
      double* grad_alpha = want ? a.grad_alpha + row : nullptr;
      if (narrow) {
        float* copies = packed + 3 * run;
        read_row(a.weights, a.dtype, row, n, copies);
        read_row(a.grad_weights, a.dtype, row, n, copies + run);
        p = copies, g = copies + run, out = copies + 2 * run;
      }
      if (e > 1.0 || e < 0.0) {
        const double value = backward_row_double(p, g, out, n, e, want);
        if (want) *grad_alpha = value;
      } else if (!want && fabs(e) < kSoftmaxBelow) {
        backward_row_direct<kSoftmax>(p, g, out, n, packed, a.past_cache);
      } else if (!want && e == 0.5) {
        backward_row_direct<kHalf>(p, g, out, n, packed, a.past_cache);
      } else if (!want && e == 1.0) {
        backward_row_direct<kOne>(p, g, out, n, packed, a.past_cache);
      } else if (n <= kStraightRow && e == e) {
        const PowerTable& table = *gathered.table_of(e);
        if (want) backward_row_straight<true>(table, p, g, out, grad_alpha, n, packed, a.past_cache);
        else backward_row_straight<false>(table, p, g, out, grad_alpha, n, packed, a.past_cache);
      } else if (n <= kGatheredRow && e == e) {
        gathered.add(p, g, out, grad_alpha, n, e);
      } else {
        batch.add(p, g, out, grad_alpha, n, e, packed);
      }
    }
    if (want) batch.run<true>(n, a.past_cache), gathered.run<true>(n, a.past_cache);
    else batch.run<false>(n, a.past_cache), gathered.run<false>(n, a.past_cache);
    for (int64_t r = 0; narrow && r < count; ++r)
      write_row((float*)scratch.data + r * stride + 5 * run, a.dtype, first + r, n, a.grad_scores);
  }
  end_of_puts();
  return true;
}

}  // namespace

#if defined(__AVX512F__)
#define ENTFORMER_NAME "avx512"
#define ENTFORMER_TABLE entformer_rows_avx512
#elif defined(__AVX2__)
#define ENTFORMER_NAME "avx2"
#define ENTFORMER_TABLE entformer_rows_avx2
#else
#define ENTFORMER_NAME "portable"
#define ENTFORMER_TABLE entformer_rows_portable
#endif

extern "C" const EntmaxRowsTable* ENTFORMER_TABLE() {
  static const EntmaxRowsTable table = {ENTFORMER_NAME, forward, backward};
  return &table;
}
