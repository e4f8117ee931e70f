// alpha-entmax of rows, forward and backward: sorts rows by the path they take (dispatch.h) and runs each path in batches.
//
// Up to VL rows are worked on together, while their scratch stays in the cache. bfloat16 and float16 rows are converted to float32 first.
#pragma once

#include "kernel_table.h"
#include "row_gradient.h"
#include "scratch.h"
#include "solver_double.h"
#include "solver_short.h"

namespace {

inline int64_t batch_rows(int64_t n) {
  const int64_t fit = 32768 / n;
  return fit < 1 ? 1 : fit < VL ? fit : VL;
}

// What decides the path of a row.
struct EntmaxCase {
  bool is_float64, has_tables, needs_alpha_grad, shares_alpha;
  int64_t n;
  double e;
  const float* scores;
  float* row_max;
  bool has_finite_max() const {  // looked up only by the paths that reach this entry of the list
    *row_max = row_maximum(scores, n);
    return *row_max - *row_max == 0.0f;
  }
};

// Up to VL rows at once. Rows that need no iteration, or the float64 one, are written at once, the others by `run`.
struct RowBatch {
  Row rows[3][VL];  // by AlphaCase: Entmax15, Sparsemax, General
  int counts[3] = {};
  TableSolver table;

  void add(const float* s, float* p, int64_t n, double e, float* scratch) {
    float row_max = 0.0f;
    const EntmaxForwardPath path = choose_entmax_forward(EntmaxCase{false, kHasTables, false, false, n, e, s, &row_max});
    if (path == EntmaxForwardPath::Float64) return solve_row_double(s, p, n, e, (double*)scratch);
    if (path == EntmaxForwardPath::Table) return table.add(s, p, n, e, scratch);
    if (path == EntmaxForwardPath::NonFinite) return write_non_finite_row(s, p, n, row_max != row_max || e != e, row_max);
    if (path == EntmaxForwardPath::Softmax) return softmax_row(s, p, n, row_max);
    const int which = path == EntmaxForwardPath::Entmax15 ? 0 : path == EntmaxForwardPath::Sparsemax ? 1 : 2;
    Row& row = rows[which][counts[which]++];
    row.start(s, n, row_max, e, scratch);
    row.p = p;
  }
  template <AlphaCase alpha_case>
  void run_case(int which, int64_t n, int64_t ahead) {
    solve<alpha_case>(rows[which], counts[which]);
    for (int r = 0; r < counts[which]; ++r) write_weights<alpha_case>(rows[which][r], n, ahead);
    counts[which] = 0;
  }
  // `ahead`: from a row to the same row of the next batch.
  void run(int64_t n, int64_t ahead) {
    run_case<AlphaCase::Entmax15>(0, n, ahead);
    run_case<AlphaCase::Sparsemax>(1, n, ahead);
    run_case<AlphaCase::General>(2, n, ahead);
    table.run(n, ahead);
  }
};

// Whether all rows of the batch that `row` belongs to have the same alpha. Batches begin at multiples of VL, wherever a thread begins, so
// that the path of a row does not depend on threads.
inline bool shares_alpha(const EntmaxForward& a, int64_t row) {
  const int64_t first = row - row % VL, end = first + VL < a.rows ? first + VL : a.rows;
  for (int64_t r = first; a.alpha_stride != 0 && r < end; ++r)
    if (a.alpha[r * a.alpha_stride] != a.alpha[row * a.alpha_stride]) return false;
  return true;
}

// Up to VL short rows with one alpha, each `stride` floats after the one before.
struct ShortBatch {
  TableSolver tables;

  void run(const float* s, float* p, int64_t stride, int64_t n, int count, double e, float* scratch) {
    const PowerTable* table = kHasTables && has_steepest_table(e) ? tables.table_of(e) : nullptr;
    ShortRows rows{e, alpha_case(e), table, n, count};
    rows.read(s, stride, nullptr);
    const Roots roots = rows.solve();
    const vd lam = rows.lam_at(roots);
    const uint32_t sensitive = rows.sensitive(lam, roots);
    rows.weigh(lam, n);
    rows.write(p, stride, n, rows.finite & ~sensitive);
    for (int r = 0; r < count; ++r) {
      const float *from = s + r * stride, row_max = rows.row_max[r];
      if (!(rows.finite >> r & 1))
        write_non_finite_row(from, p + r * stride, n, row_max != row_max, row_max);
      else if (sensitive >> r & 1)
        fine_row(rows.alpha_case, from, n, row_max, e, lam[r], nullptr, scratch).write(from, n, p + r * stride);
    }
    tables.clear();
  }
};

bool entmax_forward(const EntmaxForward& a, int64_t begin, int64_t end) {
  const int64_t n = a.n;
  if (a.dtype == kFloat64) {
    Scratch scratch((size_t)(n + 1) * sizeof(double));
    if (!scratch.data) return false;
    for (int64_t row = begin; row < end; ++row)
      solve_row_double((const double*)a.scores + row * n, (double*)a.weights + row * n, n, a.alpha[row * a.alpha_stride] - 1.0,
                       (double*)scratch.data);
    return true;
  }
  const int64_t most = batch_rows(n);
  const bool converts = a.dtype != kFloat32;
  const int64_t stride = round_up(3 * (n + 2 * VL), 2);  // three runs of floats, or n doubles, which are aligned to two floats
  Scratch scratch((size_t)(most * stride) * sizeof(float) * (converts ? 2 : 1));
  if (!scratch.data) return false;
  float* candidates = (float*)scratch.data;
  float* staging = candidates + most * stride;  // converted scores, then weights to convert
  RowBatch batch;
  ShortBatch short_batch;
  for (int64_t first = begin, count; first < end; first += count) {
    count = most - first % most < end - first ? most - first % most : end - first;
    for (int64_t r = 0; converts && r < count; ++r)
      to_float32(a.scores, a.dtype, (first + r) * n, n, n, 1.0f, staging + r * stride);
    const float* in = converts ? staging : (const float*)a.scores + first * n;
    float* out = converts ? staging + n + 2 * VL : (float*)a.weights + first * n;
    const int64_t step = converts ? stride : n;
    const double e = a.alpha[first * a.alpha_stride] - 1.0;
    float row_max;
    if (n <= kShortRow && choose_entmax_forward(EntmaxCase{false, kHasTables, false, shares_alpha(a, first), n, e, in,
                                                           &row_max}) == EntmaxForwardPath::Short) {
      short_batch.run(in, out, step, n, (int)count, e, candidates);
    } else {
      for (int64_t r = 0; r < count; ++r)
        batch.add(in + r * step, out + r * step, n, a.alpha[(first + r) * a.alpha_stride] - 1.0, candidates + r * stride);
      batch.run(n, converts ? 0 : count * n);
    }
    for (int64_t r = 0; converts && r < count; ++r)
      from_float32(staging + r * stride + n + 2 * VL, a.dtype, (first + r) * n, n, a.weights);
  }
  return true;
}

// Rows whose slopes need a power: packs their supports, and unpacks dS.
struct PackedRows {
  struct Target {
    const float *p, *g;
    float* out;
    double* grad_alpha;
  } targets[VL];
  SupportGradients gradients;
  PowerTables tables;
  float* weight;
  uint16_t* support;  // one bit per key, a word per vector, row after row
  int64_t used = 0;

  static int64_t scratch_floats(int64_t rows, int64_t n) { return 5 * rows * (n + 2 * VL); }
  PackedRows(float* scratch, int64_t most, int64_t n) {
    const int64_t run = most * (n + 2 * VL);
    weight = gradients.out = scratch;
    gradients.weight = weight;
    gradients.grad = scratch + run;
    gradients.slope = scratch + 2 * run;
    gradients.effect = scratch + 3 * run;
    support = (uint16_t*)(scratch + 4 * run);
  }

  void add(const float* p, const float* g, float* out, double* grad_alpha, int64_t n, double e) {
    uint16_t* bits_of = support + gradients.size * ((n + VL - 1) / VL);
    float *weight_of = weight + used, *grad_of = gradients.grad + used;
    int64_t count = 0;
    vf total{};
    auto pack = [&](vf weights, vf grad) {
      const uint32_t bits = bits_greater(weights, vf{});
      compress(weight_of + count, weights, bits);
      count += compress(grad_of + count, grad, bits);
      *bits_of++ = (uint16_t)bits;
      total += weights;
    };
    int64_t i = 0;
    for (; i + VL <= n; i += VL) {
      fetch(out + i);
      pack(load(p + i), load(g + i));
    }
    if (i < n) pack(load_tail(p + i, n - i, 0.0f), load_tail(g + i, n - i, 0.0f));
    if (any_nan(total) || e != e) {
      for (i = 0; i < n; ++i) out[i] = __builtin_nanf("");
      if (grad_alpha) *grad_alpha = __builtin_nan("");
      return;
    }
    targets[gradients.size] = {p, g, out, grad_alpha};
    gradients.add(used, count, e, AlphaCase::General, tables.of((float)e, 1.0 - (double)(float)e, false));
    used += count;
  }

  template <bool needs_alpha_grad>
  void run(int64_t n, int64_t ahead) {
    const int size = gradients.size;
    if (size == 0) return;
    const vf grad_alpha = gradients.run<needs_alpha_grad>(1.0f);
    const uint16_t* bits = support;
    const float* next = weight;
    for (int r = 0; r < size; ++r) {
      const Target& to = targets[r];
      int64_t i = 0;
      for (; i + VL <= n; i += VL, next += __builtin_popcount(*bits++)) {
        fetch(to.p + ahead + i), fetch(to.g + ahead + i);
        store(to.out + i, expand(next, *bits));
      }
      if (i < n) {
        store_tail(to.out + i, expand(next, *bits), n - i);
        next += __builtin_popcount(*bits++);
      }
      if (needs_alpha_grad) *to.grad_alpha = grad_alpha[r];
    }
    tables.end_batch();
    used = 0;
  }
};

bool entmax_backward(const EntmaxBackward& a, int64_t begin, int64_t end) {
  const int64_t n = a.n;
  const bool needs_alpha_grad = a.grad_alpha != nullptr;
  if (a.dtype == kFloat64) {
    for (int64_t row = begin; row < end; ++row) {
      const double grad_alpha =
          backward_row_double((const double*)a.weights + row * n, (const double*)a.grad_weights + row * n,
                              (double*)a.grad_scores + row * n, n, a.alpha[row * a.alpha_stride] - 1.0, needs_alpha_grad);
      if (needs_alpha_grad) a.grad_alpha[row] = grad_alpha;
    }
    return true;
  }
  const bool converts = a.dtype != kFloat32;
  const int64_t most = batch_rows(n), run = n + 2 * VL, stride = (converts ? 4 : 1) * run;  // slopes; copies of p, g and dS
  Scratch scratch((size_t)(most * stride + PackedRows::scratch_floats(most, n)) * sizeof(float));
  if (!scratch.data) return false;
  PackedRows packed((float*)scratch.data + most * stride, most, n);
  for (int64_t first = begin; first < end; first += most) {
    const int64_t count = end - first < most ? end - first : most, ahead = converts ? 0 : count * n;
    for (int64_t r = 0; r < count; ++r) {
      const int64_t row = first + r;
      const double e = a.alpha[row * a.alpha_stride] - 1.0;
      float* slopes = (float*)scratch.data + r * stride;
      const float* p = (const float*)a.weights + row * n;
      const float* g = (const float*)a.grad_weights + row * n;
      float* out = (float*)a.grad_scores + row * n;
      double* grad_alpha = needs_alpha_grad ? a.grad_alpha + row : nullptr;
      if (converts) {
        to_float32(a.weights, a.dtype, row * n, n, n, 1.0f, slopes + run);
        to_float32(a.grad_weights, a.dtype, row * n, n, n, 1.0f, slopes + 2 * run);
        p = slopes + run, g = slopes + 2 * run, out = slopes + 3 * run;
      }
      const EntmaxBackwardPath path =
          choose_entmax_backward(EntmaxCase{false, kHasTables, needs_alpha_grad, false, n, e, nullptr, nullptr});
      if (path == EntmaxBackwardPath::Float64) {
        const double value = backward_row_double(p, g, out, n, e, needs_alpha_grad);
        if (needs_alpha_grad) *grad_alpha = value;
      } else if (path == EntmaxBackwardPath::InPlace) {
        if (alpha_case(e) == AlphaCase::Softmax)
          backward_row_in_place<AlphaCase::Softmax>(p, g, out, n, ahead, slopes);
        else if (alpha_case(e) == AlphaCase::Entmax15)
          backward_row_in_place<AlphaCase::Entmax15>(p, g, out, n, ahead, slopes);
        else
          backward_row_in_place<AlphaCase::Sparsemax>(p, g, out, n, ahead, slopes);
      } else {
        packed.add(p, g, out, grad_alpha, n, e);
      }
    }
    if (needs_alpha_grad)
      packed.run<true>(n, ahead);
    else
      packed.run<false>(n, ahead);
    for (int64_t r = 0; converts && r < count; ++r)
      from_float32((float*)scratch.data + r * stride + 3 * run, a.dtype, (first + r) * n, n, a.grad_scores);
  }
  return true;
}

}  // namespace
