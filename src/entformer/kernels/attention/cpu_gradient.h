// The gradient of one row of attention, shared by the ways through backward (cpu_backward.h, cpu_runs.h).
//
// With g = dO v^T on the support, w = p^(1-e), delta = sum(w g)/sum(w) (rela: w = 1, delta = 0):
//   dS = w (g - delta),  dQ = scale dS k,  dK = scale dS^T q,  dV = p^T dO,  dalpha = sum a (g - delta).
#pragma once

#include "cpu_forward.h"

namespace {

// dS, times scale, in place of g, from packed weights; returns dL/dalpha of the row. `spare` holds two runs of scratch.
inline double score_gradient(const Mapping& m, bool want_alpha, const float* p, float* g, int64_t count, float scale, float* spare) {
  if (m.rela || m.in_double) {
    const double grad_alpha = m.in_double ? backward_row_double(p, g, g, count, m.e, want_alpha) : 0.0;
    for (int64_t i = 0; i < count; ++i) g[i] *= scale;
    return grad_alpha;
  }
  if (count == 0) return 0.0;
  const int64_t padded = round_up(count, VL);
  const PackedRow row{spare, g, spare + padded, count, (float)m.e, m.slopes};
  for (int64_t i = 0; i < count; i += VL) store(spare + i, i + VL <= count ? load(p + i) : load_tail(p + i, count - i, 0.0f));
  vf W, WG;
  if (want_alpha || m.shape == kGeneral) {
    row.measure(want_alpha, W, WG);
  } else {
    W = row.sum_blocks([&](int64_t i) {
      vf w = slope_of(m.shape, load(spare + i));
      store(spare + i, w);
      return w;
    });
    WG = row.products();
  }
  float products = hsum(WG);
  if (!(products - products == 0.0f)) {  // some g is not finite: without a weight it does not count, with one the row is NaN
    for (int64_t i = 0; i < count; ++i) g[i] = p[i] > 0.0f ? g[i] : 0.0f;
    products = hsum(row.products());
    if (!(products - products == 0.0f)) {
      for (int64_t i = 0; i < count; ++i) g[i] = p[i] > 0.0f ? __builtin_nanf("") : 0.0f;
      return __builtin_nan("");
    }
  }
  const float total = hsum(W), delta = total == 0.0f ? 0.0f : products / total;
  const float correction = total == 0.0f ? 0.0f : hsum(row.residue(delta)) / total;
  const float grad_alpha = hsum(row.conclude(want_alpha, delta, correction));
  for (int64_t i = 0; i < count; i += VL) store(g + i, load(g + i) * scale);
  return grad_alpha;
}

struct HeadGradient {
  FloatRows k, v;
  float *grad_k, *grad_v;  // rows of padded D and E
};

// From g, the products of dO with the values of the support: dS times scale in its place, and the weights as dropout left them.
// Returns the row's part of dL/dalpha.
inline double row_gradient(const AttentionProblem& p, const Mapping& m, bool want_alpha, int64_t row, const int32_t* columns, int64_t count,
                           float* weights, float* g, float* spare) {
  if (p.dropout == 0.0f) return score_gradient(m, want_alpha, weights, g, count, p.scale, spare);
  const float rescue = 1.0f / (1.0f - p.dropout);
  for (int64_t i = 0; i < count; ++i) g[i] = survives(p, row, columns[i]) ? g[i] * rescue : 0.0f;
  const double grad_alpha = score_gradient(m, want_alpha, weights, g, count, p.scale, spare);
  for (int64_t i = 0; i < count; ++i) weights[i] = survives(p, row, columns[i]) ? weights[i] * rescue : 0.0f;
  return grad_alpha;
}

inline bool is_nan(const RowState& state) { return state.top != state.top; }

// Whether query i of head (b, h) may attend to key j.
inline bool may_attend(const AttentionProblem& p, int64_t b, int64_t h, int64_t i, int64_t j) {
  if (p.causal && j > i + p.causal_offset) return false;
  if (p.key_mask && !p.key_mask[b * p.Lk + j]) return false;
  return !p.mask || p.mask[b * p.mask_batch + h * p.mask_head + i * p.mask_row + j];
}

// Rows that are NaN have no support, so nothing of them has reached dK, dV and dalpha yet: here they make NaN what they may attend to.
inline void spread_nan_rows(const AttentionBackward& a, int64_t b, int64_t h, int64_t first, int64_t end, const HeadGradient& head,
                            double& grad_alpha) {
  const AttentionProblem& p = a.problem;
  const int64_t Dp = padded_d(p), Ep = padded_e(p);
  for (int64_t i = first; i < end; ++i) {
    if (!is_nan(a.row_state[(b * p.H + h) * p.Lq + i])) continue;
    if (!p.rela) grad_alpha = __builtin_nan("");
    for (int64_t j = 0; j < p.Lk; ++j) {
      if (!may_attend(p, b, h, i, j)) continue;
      for (int64_t d = 0; d < Dp; ++d) head.grad_k[j * Dp + d] = __builtin_nanf("");
      for (int64_t d = 0; d < Ep; ++d) head.grad_v[j * Ep + d] = __builtin_nanf("");
    }
  }
}

// dQ of a block in the dtype of q; a row whose maximum is NaN has no gradient to give.
inline void write_query_gradient(const AttentionBackward& a, const Block& block, float* grad_q) {
  const AttentionProblem& p = a.problem;
  const int64_t Dp = padded_d(p), first_row = (block.b * p.H + block.h) * p.Lq + block.first;
  for (int64_t r = 0; r < block.rows; ++r) {
    if (is_nan(a.row_state[first_row + r]))
      for (int64_t c = 0; c < Dp; ++c) grad_q[r * Dp + c] = __builtin_nanf("");
    narrow(grad_q + r * Dp, p.dtype, (first_row + r) * p.D, p.D, a.grad_q);
  }
}

}  // namespace
