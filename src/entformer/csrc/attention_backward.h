// Attention backward for all queries of one key head: only the support is touched where it is small.
//
// With g = dO v^T on the support, w = p^(1-e), delta = sum(w g)/sum(w) (rela: w = 1, sigmoid: w = p (1 - p), delta = 0 for both):
//   dS = w (g - delta),  dQ = scale dS k,  dK = scale dS^T q,  dV = p^T dO,  dalpha = sum a (g - delta).
// A sink is one more entry of the support with g = 0. dS is the gradient of a bias; dQ and dK have the slope of a soft-cap in it.
// One task owns its dK and dV, so no two threads write the same element and the order of sums is fixed; it begins with zeros there.
#pragma once

#include "attention_gradient.h"

namespace {

// k and v of a key head as float rows, and the gradients of both, whose rows of padded D and E are `k_stride` and `v_stride` apart.
struct HeadGradient {
  FloatRows k, v;
  float *grad_k, *grad_v;
  int64_t k_stride, v_stride;
  bool has_memory(const AttentionProblem& p) const {
    return (p.D == 0 || (k.data && grad_k)) && (p.E == 0 || (v.data && grad_v));
  }
};

// Where gradients of k or v of one key head are summed: rows of the caller, or of this thread, which writes them to `out` at the end.
struct GradientSpace {
  const AttentionProblem& p;
  const GradientRows& rows;
  const AttentionRows& out;
  int64_t width;
  Scratch memory{};

  int64_t stride() const { return rows.data ? rows.row : round_up(width, VL); }
  // Zeros; null if there is not enough memory.
  float* zeroed(int64_t chunk, int64_t b, int64_t g) {
    float* first = rows.data + chunk * rows.chunk + b * rows.batch + g * rows.head;
    if (!rows.data) {
      if (!memory.data) memory.allocate((size_t)(p.Lk * stride()) * sizeof(float));
      if (!(first = (float*)memory.data)) return nullptr;
    }
    for (int64_t j = 0; j < p.Lk; ++j) zero_vectors(first + j * stride(), round_up(width, VL));
    return first;
  }
  void finish(int64_t b, int64_t g) const {
    for (int64_t j = 0; !rows.data && j < p.Lk; ++j)
      from_float32((const float*)memory.data + j * stride(), p.dtype,
                   b * out.batch + g * out.head + (p.first_key + j) * out.row, width, out.data);
  }
};

// Applies the dropout mask to x, a row of the weights or of their gradients at `columns` (null: at 0, 1, ...) of the block.
inline void apply_dropout(const AttentionProblem& p, const Block& block, int64_t row, const int32_t* columns, int64_t count,
                          float* x) {
  if (p.dropout == 0.0f) return;
  const float scale = inv_keep_prob(p);
  for (int64_t i = 0; i < count; ++i) x[i] = keep_mask(p, row, block.start + (columns ? columns[i] : i)) ? x[i] * scale : 0.0f;
}

// Whether query i of head (b, h) may attend to key j.
inline bool may_attend(const AttentionProblem& p, int64_t b, int64_t h, int64_t i, int64_t j) {
  const int64_t ahead = j - i - p.causal_offset;
  if (ahead > p.right || -ahead > p.left) return false;
  if (p.key_mask && !p.key_mask[b * p.all_keys + j]) return false;
  if (p.bias && p.bias[b * p.bias_batch + h * p.bias_head + i * p.bias_row + j * p.bias_key] <= kExcluded) return false;
  return !p.mask || p.mask[b * p.mask_batch + h * p.mask_head + i * p.mask_row + j];
}

inline bool is_nan(float x) { return x != x; }

// Where the gradient of the bias of a head begins; null if it is not asked for.
inline float* bias_gradient(const AttentionBackward& a, int64_t chunk, int64_t b, int64_t h) {
  return a.grad_bias ? a.grad_bias + chunk * a.grad_bias_chunk + b * a.grad_bias_batch + h * a.grad_bias_head : nullptr;
}

// Rows that are NaN have no support, so nothing of them has reached the gradients yet: here they make NaN what they may attend to.
inline void spread_nan_rows(const AttentionBackward& a, int64_t b, int64_t h, int64_t first, int64_t end,
                            const HeadGradient& head, float* grad_bias, HeadSums& sums) {
  const AttentionProblem& p = a.problem;
  const int64_t Dp = padded_d(p), Ep = padded_e(p);
  for (int64_t i = first; i < end; ++i) {
    if (!is_nan(a.rows.row_max[(b * p.H + h) * p.all_queries + p.first_query + i])) continue;
    if (p.normalizer == Normalizer::Entmax) sums.alpha = __builtin_nan("");
    sums.sink = sums.slope = __builtin_nan("");
    for (int64_t j = 0; j < p.Lk; ++j) {
      if (!may_attend(p, b, h, i, j)) continue;
      for (int64_t d = 0; d < Dp; ++d) head.grad_k[j * head.k_stride + d] = __builtin_nanf("");
      for (int64_t d = 0; d < Ep; ++d) head.grad_v[j * head.v_stride + d] = __builtin_nanf("");
      if (grad_bias) grad_bias[i * a.grad_bias_row + j * a.grad_bias_key] = __builtin_nanf("");
    }
  }
}

// What decides the path of a block.
struct BackwardCase : BlockSupports {
  using BlockSupports::BlockSupports;
  const float* grad_out;
  int64_t grad_floats;
  bool has_finite_grad() const { return all_finite(grad_out, grad_floats); }  // dense products multiply by zero too
};

struct BlockBuffers {
  float *queries, *grad_out, *grad_q, *scratch;
  float* grad_bias;  // of the head, or null
};

// The size of the support of a row; arbitrary numbers give at most the keys of the block.
inline int64_t support_size(const AttentionBackward& a, const Block& block, int64_t row) {
  const int64_t count = a.rows.support_size[row];
  return count < block.real_keys ? count : block.real_keys;
}

// The block as dense matrices. w.scores holds the scores, unless the weights of all rows were saved.
inline void backward_dense(const AttentionBackward& a, const Block& block, bool saved, const HeadNormalizer& m,
                           const HeadGradient& head, const Workspace& w, const BlockBuffers& x, HeadSums& sums) {
  const AttentionProblem& p = a.problem;
  const int64_t Dp = padded_d(p), Ep = padded_e(p), seen = block.real_keys, solved = solved_keys(p, block);
  const bool is_plain = !a.needs_raw_gradient() && !a.grad_support && p.dropout == 0.0f;
  value_products(p, block, x.grad_out, w.grads, w.ld);
  for (int64_t r = 0; r < round_up(block.rows, TILE); ++r) {
    float *s = w.scores + r * w.ld, *g = w.grads + r * w.ld;
    if (r >= block.rows) {
      memset(s, 0, (size_t)block.keys * sizeof(float));
      memset(g, 0, (size_t)block.keys * sizeof(float));
      continue;
    }
    const int64_t row = row_at(p, block, r), count = support_size(a, block, row);
    const RowState state = load_state(a.rows, row);
    if (saved) load_row(p, m, block, state, a.reserve + row * p.reserve_stride, count, w.columns, w.weights, s);
    if (is_plain && (saved ? has_slopes_of_weights(m) : has_slopes_of(m, state))) {
      if (a.needs_alpha_grad)
        sums.alpha += dense_row_gradient<true>(m, s, g, block.keys, state, saved, p.scale, x.scratch);
      else
        dense_row_gradient<false>(m, s, g, block.keys, state, saved, p.scale, x.scratch);
      continue;
    }
    float sink = 0.0f;
    bool has_slopes = false;
    if (saved) {
      if (p.sinks) sink = sink_weight(p, m, block, state);
    } else {
      has_slopes = !p.sinks && has_slopes_of(m, state);
      float* effect = x.scratch + round_up(block.keys, VL);
      if (has_slopes && a.needs_alpha_grad)
        dense_weights_and_slopes<true>(m, s, block.keys, state, x.scratch, effect);
      else if (has_slopes)
        dense_weights_and_slopes<false>(m, s, block.keys, state, x.scratch, effect);
      else
        dense_weights(m, s, block.keys, solved, state, x.scratch);
      if (p.sinks) sink = s[block.keys];
    }
    apply_dropout(p, block, row, nullptr, seen, g);
    for (int64_t j = 0; j < block.keys; j += VL)
      store(g + j, load(s + j) > 0.0f ? load(g + j) : vf{});  // values there may not be finite
    if (a.grad_support) {
      int64_t next = a.support_offset[row];
      for (int64_t j = 0; j < seen && next < a.support_offset[row + 1]; ++j)
        if (s[j] > 0.0f) g[j] += a.grad_support[next++];
    }
    row_gradient(a, m, block, r, nullptr, block.keys, s, g, sink, w.cap_slopes ? w.cap_slopes + r * w.ld : nullptr, x.grad_bias,
                 sums, x.scratch, has_slopes);
    apply_dropout(p, block, row, nullptr, seen, s);
  }
  for (int64_t j = 0; j < seen; j += kPart) {  // part by part, so that what one product has read is in the cache for the next
    const int64_t here = seen - j < kPart ? seen - j : kPart;
    float *grad_k = head.grad_k + j * head.k_stride, *grad_v = head.grad_v + j * head.v_stride;
    if (block.pairs) {
      const PairSpace& pairs = *block.pairs;
      pairs.dense_product(w.grads + j, w.ld, block.rows, here, pairs.k.from(block.start + j), x.grad_q, j > 0);
      pairs.add_gradient(true, w.grads + j, w.ld, here, block.rows, grad_k, head.k_stride);
      pairs.add_gradient(false, w.scores + j, w.ld, here, block.rows, grad_v, head.v_stride);
      continue;
    }
    dense_product(w.grads + j, w.ld, block.rows, here, head.k.data + j * head.k.stride, head.k.stride, Dp, x.grad_q,
                  *block.ahead, j > 0);
    dense_transposed_add(w.grads + j, w.ld, here, block.rows, x.queries, Dp, Dp, grad_k, head.k_stride, *block.ahead);
    dense_transposed_add(w.scores + j, w.ld, here, block.rows, x.grad_out, Ep, Ep, grad_v, head.v_stride, *block.ahead);
  }
  each_not_finite(x.grad_q, block.rows, Dp, p.D, [&](int64_t r) {  // zeros may have met keys that are not finite
    int64_t count = 0;
    for (int64_t j = 0; j < seen; ++j) {
      w.columns[count] = (int32_t)j;
      w.weights[count] = w.grads[r * w.ld + j];
      count += w.weights[count] != 0.0f;
    }
    gather_rows(w.weights, w.columns, count, head.k.data, head.k.stride, Dp, x.grad_q + r * Dp);
  });
}

// The block row by row, on the support alone: saved, or found again in w.scores.
inline void backward_sparse(const AttentionBackward& a, const Block& block, bool saved, const HeadNormalizer& m,
                            const HeadGradient& head, const FloatRows& k, const Workspace& w, const BlockBuffers& x,
                            HeadSums& sums) {
  const AttentionProblem& p = a.problem;
  const int64_t Dp = padded_d(p), Ep = padded_e(p);
  for (int64_t r = 0; r < block.rows; ++r) {
    const int64_t row = row_at(p, block, r);
    RowState state = load_state(a.rows, row);
    int64_t count = support_size(a, block, row);
    float sink = 0.0f;
    if (saved) {
      load_support(p, m, block, r, state, a.reserve + row * p.reserve_stride, count, w.q + r * Dp, k, w.columns, w.weights,
                   x.scratch);
      if (p.sinks) sink = sink_weight(p, m, block, state);
    } else {
      count = sparse_weights(m, w.scores + r * w.ld, block.keys, solved_keys(p, block), state, x.scratch, w.columns, w.weights);
      if (p.sinks) sink = m.in_double && count > 0 ? x.scratch[block.keys] : sink_weight(p, m, block, state);
    }
    const float* cap_slopes = nullptr;
    if (p.softcap != 0.0f) {  // in w.grads behind g: the rows of the block have no other use for it
      float* slopes = w.grads + w.ld;
      if (saved)
        support_scores(p, block, r, w.q + r * Dp, k, w.columns, count, x.scratch, slopes);
      else
        for (int64_t i = 0; i < count; ++i) slopes[i] = w.cap_slopes[r * w.ld + w.columns[i]];
      cap_slopes = slopes;
    }
    float* g = w.grads;
    gather_dots(x.grad_out + r * Ep, w.columns, count, head.v.data, head.v.stride, Ep, g);
    apply_dropout(p, block, row, w.columns, count, g);
    if (a.grad_support) {
      const int64_t from = a.support_offset[row], there = a.support_offset[row + 1] - from;
      for (int64_t i = 0; i < count && i < there; ++i) g[i] += a.grad_support[from + i];
    }
    row_gradient(a, m, block, r, w.columns, count, w.weights, g, sink, cap_slopes, x.grad_bias, sums, x.scratch);
    apply_dropout(p, block, row, w.columns, count, w.weights);
    gather_rows(g, w.columns, count, head.k.data, head.k.stride, Dp, x.grad_q + r * Dp);
    scatter_rows(g, w.columns, count, x.queries + r * Dp, Dp, head.grad_k, head.k_stride);
    scatter_rows(w.weights, w.columns, count, x.grad_out + r * Ep, Ep, head.grad_v, head.v_stride);
  }
}

// Adds to `sums`; false when there is no memory for the panels.
inline bool backward_block(const AttentionBackward& a, Block block, HeadGradient head, float* grad_bias, const Workspace& w,
                           Panels& k_panels, Panels& v_panels, HeadSums& sums) {
  const AttentionProblem& p = a.problem;
  const HeadNormalizer m = head_normalizer(p, block.b, block.h, *w.tables);
  const int64_t Dp = padded_d(p), Ep = padded_e(p), tall = round_up(block.rows, TILE);
  const int64_t first_row = row_at(p, block, 0);
  const FloatRows k = head.k;  // from key 0 on; the others from the first key of the block
  head.k.data += block.start * head.k.stride;
  head.v.data += block.start * head.v.stride;
  head.grad_k += block.start * head.k_stride;
  head.grad_v += block.start * head.v_stride;
  float* queries = w.q + w.tall * Dp;
  const BlockBuffers x{queries, queries + w.tall * Dp, queries + w.tall * (Dp + Ep), w.weights + (w.ld + 2 * VL), grad_bias};

  load_rows(p, p.q, block, p.D, 1.0f, tall, x.queries);
  load_rows(p, a.grad_out, block, p.E, 1.0f, tall, x.grad_out);
  BackwardCase c(p, block);
  c.grad_out = x.grad_out;
  c.grad_floats = block.rows * Ep;
  for (int64_t r = 0; r < block.rows; ++r) {
    const int64_t row = first_row + r, count = support_size(a, block, row);
    c.add(p, block, m.in_double, a.rows.row_max[row], count);
    if (count > 0) continue;  // a row without support gives nothing, whatever it holds; for NaN see spread_nan_rows
    memset(x.queries + r * Dp, 0, (size_t)Dp * sizeof(float));
    memset(x.grad_out + r * Ep, 0, (size_t)Ep * sizeof(float));
  }
  c.all_saved &= c.are_saved();
  const BackwardPath path = choose_backward(c);
  // The dense path needs the slopes of a soft-cap at every pair; the sparse one computes those of the support.
  const bool saved = path == BackwardPath::Dense ? c.all_weights_saved && p.softcap == 0.0f : c.all_saved;
  if (!saved) {
    load_factor(p, block, tall, w.q);
    if (!p.is_decode && !(block.k_panels = k_panels.of(block.b, block.g))) return false;
    if (p.is_decode || p.sinks)
      score_block(p, block, w.q, w.scores, w.ld, w.row_max, w.cap_slopes);
    else
      score_again(p, block, w.q, w.scores, w.ld, w.cap_slopes);
  }
  if (saved && path != BackwardPath::Dense && (!c.all_weights_saved || p.softcap != 0.0f))
    load_queries(p, block, tall, p.scale, w.q);
  if (path == BackwardPath::Dense) {
    if (!(block.v_panels = v_panels.of(block.b, block.g))) return false;
    if (PairSpace* pairs = block.pairs) {
      if (!pairs->k.prepare(k, block.b, block.g)) return false;
      pairs->set_grad_out(x.grad_out, block.rows);
      pairs->set_right(x.queries, x.grad_out, block.rows);
    }
    backward_dense(a, block, saved, m, head, w, x, sums);
  } else {
    backward_sparse(a, block, saved, m, head, k, w, x, sums);
  }
  for (int64_t r = 0; r < block.rows; ++r) {
    if (is_nan(a.rows.row_max[first_row + r]))
      for (int64_t d = 0; d < Dp; ++d) x.grad_q[r * Dp + d] = __builtin_nanf("");
    write_row(p, block, r, x.grad_q + r * Dp, p.D, a.grad_q);
  }
  return true;
}

// Has the products of a block fetch what the next one reads.
inline void fetch_next(const AttentionBackward& a, const Block& block, const Block& next, Ahead& ahead) {
  const AttentionProblem& p = a.problem;
  fetch_rows(p, p.q, next.b, next.h, next.first, next.rows, p.D, ahead);
  fetch_rows(p, a.grad_out, next.b, next.h, next.first, next.rows, p.E, ahead);
  ahead.add(a.reserve + row_at(p, next, 0) * p.reserve_stride, p.reserve_stride, p.reserve_bytes, next.rows);
  if (next.b == block.b && next.g == block.g) return;
  fetch_rows(p, p.k, next.b, next.g, 0, p.Lk, p.D, ahead);
  fetch_rows(p, p.v, next.b, next.g, 0, p.Lk, p.E, ahead);
}

bool attention_backward(const AttentionBackward& a, int64_t begin, int64_t end) {
  const AttentionProblem& p = a.problem;
  const int64_t blocks = num_blocks(p), group = p.H / p.G, tall = block_rows(p);
  const size_t floats = workspace_floats(p) + (size_t)(tall + TILE) * (size_t)(padded_d(p) + padded_e(p)) * 2;
  const size_t cap_floats = p.softcap != 0.0f ? (size_t)(round_up(tall, TILE) * row_floats(p)) : 0;
  Scratch scratch((floats + cap_floats) * sizeof(float));
  if (!scratch.data) return false;
  HeadTables tables;
  Workspace w = set_up(p, (float*)scratch.data, tables);
  if (cap_floats) w.cap_slopes = (float*)scratch.data + floats;
  Panels k_panels{p, true}, v_panels{p, false};
  HeadRows k_rows{p, true}, v_rows{p, false};
  GradientSpace grad_k{p, a.grad_k, a.out_k, p.D}, grad_v{p, a.grad_v, a.out_v, p.E};
  PairSpace pairs(p, w.tall);
  if (!pairs.has_memory()) return false;
  const int64_t batches = a.joins_batches ? p.B : 1, key_heads = a.joins_heads ? p.G : 1;  // of a task
  const int64_t groups = p.B / batches * (p.G / key_heads);
  Ahead ahead;
  for (int64_t task = begin; task < end; ++task) {
    const int64_t chunk = task / groups, first_b = task % groups / (p.G / key_heads) * batches,
                  first_g = task % groups % (p.G / key_heads) * key_heads;
    const int64_t first = chunk * blocks / a.chunks, last = (chunk + 1) * blocks / a.chunks;
    for (int64_t n = 0; n < batches * key_heads; ++n) {
      const int64_t b = first_b + n / key_heads, g = first_g + n % key_heads;
      const HeadGradient gradient{k_rows.of(b, g), v_rows.of(b, g), grad_k.zeroed(chunk, b, g), grad_v.zeroed(chunk, b, g),
                                  grad_k.stride(), grad_v.stride()};
      if (!gradient.has_memory(p)) return false;
      for (int64_t h = g * group; h < (g + 1) * group; ++h) {
        HeadSums sums{};
        float* grad_bias = bias_gradient(a, chunk, b, h);
        for (int64_t number = first; number < last; ++number) {
          Block block = block_at(p, b, h, number);
          ahead.clear();
          block.ahead = &ahead;
          block.pairs = pairs.of_block();
          if (number + 1 < last)
            fetch_next(a, block, block_at(p, b, h, number + 1), ahead);
          else if (h + 1 < (g + 1) * group)
            fetch_next(a, block, block_at(p, b, h + 1, first), ahead);
          else if (task + 1 < end && a.chunks == 1 && batches * key_heads == 1)
            fetch_next(a, block, block_at(p, (task + 1) / p.G, (task + 1) % p.G * group, 0), ahead);
          if (!backward_block(a, block, gradient, grad_bias, w, k_panels, v_panels, sums)) return false;
        }
        spread_nan_rows(a, b, h, first * tall, last * tall < p.Lq ? last * tall : p.Lq, gradient, grad_bias, sums);
        a.head_sums[(chunk * p.B + b) * p.H + h] = sums;
      }
      grad_k.finish(b, g);
      grad_v.finish(b, g);
    }
  }
  return true;
}

}  // namespace
