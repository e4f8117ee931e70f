// Attention backward for all queries of one key head: only the support is touched where it is small.
//
// With g = dO v^T on the support, w = p^(1-e), delta = sum(w g)/sum(w) (rela: w = 1, delta = 0):
//   dS = w (g - delta),  dQ = scale dS k,  dK = scale dS^T q,  dV = p^T dO,  dalpha = sum a (g - delta).
// One task owns its dK and dV, so no two threads write the same element and the order of sums is fixed.
#pragma once

#include "attention_forward.h"

namespace {

// k and v of a key head as float rows, and the gradients of both, rows of padded D and E.
struct HeadGradient {
  FloatRows k, v;
  float *grad_k, *grad_v;
};

// dS, times scale, in place of g, from weights; returns dL/dalpha of the row. g is finite where the weight is zero. `scratch` holds two
// rows in whole vectors.
inline double score_gradient(const HeadNormalizer& m, bool needs_alpha_grad, const float* p, float* g, int64_t count, float scale, float* scratch) {
  if (m.rela || m.in_double) {
    const double grad_alpha = m.in_double ? backward_row_double(p, g, g, count, m.e, needs_alpha_grad) : 0.0;
    for (int64_t i = 0; i < count; ++i) g[i] *= scale;
    return grad_alpha;
  }
  if (count == 0) return 0.0;
  SupportGradients gradients;
  gradients.weight = p;
  gradients.grad = gradients.out = g;
  gradients.slope = scratch;
  gradients.effect = scratch + round_up(count, VL);
  gradients.add(0, count, m.e, m.alpha_case, m.slopes);
  return needs_alpha_grad ? gradients.run<true>(scale)[0] : (gradients.run<false>(scale), 0.0);
}

// Applies the dropout mask to x, a row of the weights or of their gradients at `columns` (null: at 0, 1, ...).
inline void apply_dropout(const AttentionProblem& p, int64_t row, const int32_t* columns, int64_t count, float* x) {
  if (p.dropout == 0.0f) return;
  const float scale = inv_keep_prob(p);
  for (int64_t i = 0; i < count; ++i) x[i] = keep_mask(p, row, columns ? columns[i] : i) ? x[i] * scale : 0.0f;
}

// Whether query i of head (b, h) may attend to key j.
inline bool may_attend(const AttentionProblem& p, int64_t b, int64_t h, int64_t i, int64_t j) {
  if (p.causal && j > i + p.causal_offset) return false;
  if (p.key_mask && !p.key_mask[b * p.Lk + j]) return false;
  return !p.mask || p.mask[b * p.mask_batch + h * p.mask_head + i * p.mask_row + j];
}

inline bool is_nan(float x) { return x != x; }

// Rows that are NaN have no support, so nothing of them has reached dK, dV and dalpha yet: here they make NaN what they may attend to.
inline void spread_nan_rows(const AttentionBackward& a, int64_t b, int64_t h, int64_t first, int64_t end, const HeadGradient& head,
                            double& grad_alpha) {
  const AttentionProblem& p = a.problem;
  const int64_t Dp = padded_d(p), Ep = padded_e(p);
  for (int64_t i = first; i < end; ++i) {
    if (!is_nan(a.rows.row_max[(b * p.H + h) * p.Lq + i])) continue;
    if (!p.rela) grad_alpha = __builtin_nan("");
    for (int64_t j = 0; j < p.Lk; ++j) {
      if (!may_attend(p, b, h, i, j)) continue;
      for (int64_t d = 0; d < Dp; ++d) head.grad_k[j * Dp + d] = __builtin_nanf("");
      for (int64_t d = 0; d < Ep; ++d) head.grad_v[j * Ep + d] = __builtin_nanf("");
    }
  }
}

// Panels of the key head in work, made when a block first needs them: most heads never do.
struct Panels {
  const AttentionProblem& p;
  Scratch memory{};
  bool has_k = false, has_v = false;

  bool get(bool value, Block& block) {
    const int64_t keys = padded_keys(p);
    if (!memory.data) memory.allocate((staging_floats(p) + (size_t)(keys * (p.D + p.E))) * sizeof(float));
    if (!memory.data) return false;
    float *staging = (float*)memory.data, *k = staging + staging_floats(p), *v = k + keys * p.D;
    if (value && !has_v) pack_head(p, p.v, p.E, block.b, block.g, staging, v, nullptr, false);
    if (!value && !has_k) pack_head(p, p.k, p.D, block.b, block.g, staging, k, nullptr, true);
    (value ? has_v : has_k) = true;
    (value ? block.v_panels : block.k_panels) = value ? v : k;
    return true;
  }
};

// What decides the path of a block.
struct BackwardCase {
  double nonzero = 0.0, weights;
  bool all_saved = true, all_weights_saved = true;
  const float* grad_out;
  int64_t grad_floats;
  bool has_finite_grad() const { return all_finite(grad_out, grad_floats); }  // dense products multiply by zero too
};

struct BlockBuffers {
  float *queries, *grad_out, *grad_q, *scratch;
};

// The block as dense matrices. w.scores holds the scores, unless the weights of all rows were saved.
inline void backward_dense(const AttentionBackward& a, const Block& block, bool saved, const HeadNormalizer& m, const HeadGradient& head,
                           const Workspace& w, const BlockBuffers& x, double& grad_alpha) {
  const AttentionProblem& p = a.problem;
  const int64_t Dp = padded_d(p), Ep = padded_e(p), seen = block.keys < p.Lk ? block.keys : p.Lk;
  const int64_t first_row = (block.b * p.H + block.h) * p.Lq + block.first;
  value_products(p, block, x.grad_out, Ep, w.grads, w.ld);
  for (int64_t r = 0; r < round_up(block.rows, TILE); ++r) {
    float *s = w.scores + r * w.ld, *g = w.grads + r * w.ld;
    if (r >= block.rows) {
      memset(s, 0, (size_t)block.keys * sizeof(float));
      memset(g, 0, (size_t)block.keys * sizeof(float));
      continue;
    }
    const int64_t row = first_row + r, count = a.rows.support_size[row];
    if (saved) {
      load_columns(p, SavedFormat::Weights, a.reserve + row * p.reserve_bytes, count, w.columns, w.weights);
      memset(s, 0, (size_t)block.keys * sizeof(float));
      for (int64_t i = 0; i < count; ++i) s[w.columns[i]] = w.weights[i];
    } else {
      dense_weights(m, s, block.keys, load_state(a.rows, row), x.scratch);
    }
    apply_dropout(p, row, nullptr, seen, g);
    for (int64_t j = 0; j < block.keys; j += VL) store(g + j, load(s + j) > 0.0f ? load(g + j) : vf{});  // values there may not be finite
    grad_alpha += score_gradient(m, a.grad_alpha != nullptr, s, g, block.keys, p.scale, x.scratch);
    apply_dropout(p, row, nullptr, seen, s);
  }
  dense_product(w.grads, w.ld, block.rows, seen, head.k.data, head.k.stride, Dp, x.grad_q);
  for (int64_t r = 0; r < block.rows; ++r) {
    if (all_finite(x.grad_q + r * Dp, p.D)) continue;  // else zeros have met keys that are not finite
    int64_t count = 0;
    for (int64_t j = 0; j < seen; ++j) {
      w.columns[count] = (int32_t)j;
      w.weights[count] = w.grads[r * w.ld + j];
      count += w.weights[count] != 0.0f;
    }
    gather_rows(w.weights, w.columns, count, head.k.data, head.k.stride, Dp, x.grad_q + r * Dp);
  }
  dense_transposed_add(w.grads, w.ld, seen, block.rows, x.queries, Dp, Dp, head.grad_k, Dp);
  dense_transposed_add(w.scores, w.ld, seen, block.rows, x.grad_out, Ep, Ep, head.grad_v, Ep);
}

// The block row by row, on the support alone: saved, or found again in w.scores.
inline void backward_sparse(const AttentionBackward& a, const Block& block, bool saved, const HeadNormalizer& m, const HeadGradient& head,
                            const Workspace& w, const BlockBuffers& x, double& grad_alpha) {
  const AttentionProblem& p = a.problem;
  const int64_t Dp = padded_d(p), Ep = padded_e(p);
  for (int64_t r = 0; r < block.rows; ++r) {
    const int64_t row = (block.b * p.H + block.h) * p.Lq + block.first + r;
    const RowState state = load_state(a.rows, row);
    int64_t count = a.rows.support_size[row];
    if (saved) load_support(p, m, block, r, state, a.reserve + row * p.reserve_bytes, count, w.q + r * Dp, head.k, w.columns, w.weights, x.scratch);
    else count = sparse_weights(m, w.scores + r * w.ld, block.keys, state, x.scratch, w.columns, w.weights);
    float* g = w.grads;
    gather_dots(x.grad_out + r * Ep, w.columns, count, head.v.data, head.v.stride, Ep, g);
    apply_dropout(p, row, w.columns, count, g);
    grad_alpha += score_gradient(m, a.grad_alpha != nullptr, w.weights, g, count, p.scale, x.scratch);
    apply_dropout(p, row, w.columns, count, w.weights);
    gather_rows(g, w.columns, count, head.k.data, head.k.stride, Dp, x.grad_q + r * Dp);
    scatter_rows(g, w.columns, count, x.queries + r * Dp, Dp, head.grad_k, Dp);
    scatter_rows(w.weights, w.columns, count, x.grad_out + r * Ep, Ep, head.grad_v, Ep);
  }
}

// Adds to `grad_alpha`; false when there is no memory for the panels.
inline bool backward_block(const AttentionBackward& a, Block block, const HeadGradient& head, const Workspace& w, Panels& panels, double& grad_alpha) {
  const AttentionProblem& p = a.problem;
  const HeadNormalizer m = head_normalizer(p, block.b, block.h, *w.tables);
  const int64_t Dp = padded_d(p), Ep = padded_e(p), tall = round_up(block.rows, TILE);
  const int64_t first_row = (block.b * p.H + block.h) * p.Lq + block.first;
  float* queries = w.q + w.tall * Dp;
  const BlockBuffers x{queries, queries + w.tall * Dp, queries + w.tall * (Dp + Ep), w.weights + (w.ld + 2 * VL)};

  load_rows(p, p.q, block, p.D, 1.0f, tall, x.queries);
  load_rows(p, a.grad_out, block, p.E, 1.0f, tall, x.grad_out);
  BackwardCase c;
  c.weights = (double)(block.rows * block.keys);
  c.grad_out = x.grad_out;
  c.grad_floats = block.rows * Ep;
  for (int64_t r = 0; r < block.rows; ++r) {
    const int64_t row = first_row + r, count = a.rows.support_size[row];
    const SavedFormat format = saved_format(p, m.in_double, a.rows.row_max[row], count);
    c.nonzero += (double)count;
    c.all_saved &= format != SavedFormat::Nothing;
    c.all_weights_saved &= format == SavedFormat::Weights;
    if (count > 0) continue;  // a row without support gives nothing, whatever it holds; for NaN see spread_nan_rows
    memset(x.queries + r * Dp, 0, (size_t)Dp * sizeof(float));
    memset(x.grad_out + r * Ep, 0, (size_t)Ep * sizeof(float));
  }
  const BackwardPath path = choose_backward(c);
  const bool saved = c.all_weights_saved || path == BackwardPath::Saved;
  if (!c.all_weights_saved) load_queries(p, block, tall, w.q);
  if (!saved) {
    if (!p.is_decode && !panels.get(false, block)) return false;
    score_block(p, block, w.q, w.scores, w.ld, w.row_max);
  }
  if (path == BackwardPath::Dense) {
    if (!panels.get(true, block)) return false;
    backward_dense(a, block, saved, m, head, w, x, grad_alpha);
  } else {
    backward_sparse(a, block, saved, m, head, w, x, grad_alpha);
  }
  for (int64_t r = 0; r < block.rows; ++r) {
    if (is_nan(a.rows.row_max[first_row + r]))
      for (int64_t d = 0; d < Dp; ++d) x.grad_q[r * Dp + d] = __builtin_nanf("");
    from_float32(x.grad_q + r * Dp, p.dtype, (first_row + r) * p.D, p.D, a.grad_q);
  }
  return true;
}

bool attention_backward(const AttentionBackward& a, int64_t begin, int64_t end) {
  const AttentionProblem& p = a.problem;
  const int64_t blocks = num_blocks(p), heads = p.B * p.G, group = p.H / p.G, tall = block_rows(p.Lk);
  Scratch scratch((workspace_floats(p) + (size_t)(tall + TILE) * (size_t)(padded_d(p) + padded_e(p)) * 2) * sizeof(float));
  if (!scratch.data) return false;
  HeadTables tables;
  const Workspace w = set_up(p, (float*)scratch.data, tables);
  Panels panels{p};
  for (int64_t task = begin; task < end; ++task) {
    const int64_t chunk = task / heads, head = task % heads, b = head / p.G, g = head % p.G;
    const HeadGradient gradient{rows_of(p, p.k, p.k_rows, p.D, b, g), rows_of(p, p.v, p.v_rows, p.E, b, g),
                                a.grad_k + (chunk * heads + head) * p.Lk * padded_d(p),
                                a.grad_v + (chunk * heads + head) * p.Lk * padded_e(p)};
    const int64_t first = chunk * blocks / a.chunks, last = (chunk + 1) * blocks / a.chunks;
    panels.has_k = panels.has_v = false;
    for (int64_t h = g * group; h < (g + 1) * group; ++h) {
      double grad_alpha = 0.0;
      for (int64_t n = first; n < last; ++n)
        if (!backward_block(a, block_at(p, b, h, n), gradient, w, panels, grad_alpha)) return false;
      spread_nan_rows(a, b, h, first * tall, last * tall < p.Lq ? last * tall : p.Lq, gradient, grad_alpha);
      if (a.grad_alpha) a.grad_alpha[(chunk * p.B + b) * p.H + h] = grad_alpha;
    }
  }
  return true;
}

}  // namespace
