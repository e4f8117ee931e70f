// Attention backward for all queries of one key head: only the support is touched where it is small.
//
// The equations are in cpu_gradient.h. Blocks whose rows all stored their support (AttentionForward) start from it, over long keys many
// of them at once (cpu_runs.h); the others compute their scores again. Those with many non-zero weights go on as dense
// matrices. One task owns its dK and dV, so there are no races and one order of sums.
#pragma once

#include "cpu_runs.h"

namespace {

// Panels of the key head in work, made when a block first asks for them: most heads never do.
struct Panels {
  const AttentionProblem& p;
  Scratch space{};
  bool has_k = false, has_v = false;

  bool get(bool value, Block& block) {
    const int64_t keys = padded_keys(p);
    if (!space.data) space.take((held_floats(p) + (size_t)(keys * (p.D + p.E))) * sizeof(float));
    if (!space.data) return false;
    float *held = (float*)space.data, *k = held + held_floats(p), *v = k + keys * p.D;
    if (value && !has_v) pack_head(p, p.v, p.E, block.b, block.g, held, v, nullptr, false);
    if (!value && !has_k) pack_head(p, p.k, p.D, block.b, block.g, held, k, nullptr, true);
    (value ? has_v : has_k) = true;
    (value ? block.v_panels : block.k_panels) = value ? v : k;
    return true;
  }
};

// What forward kept of a block.
struct Survey {
  Kept least;
  int64_t nonzero, entries;  // entries: each row's support in whole vectors
};
inline Survey survey(const AttentionBackward& a, const Block& block) {
  const AttentionProblem& p = a.problem;
  const Mapping m = mapping_of(p, block.b, block.h);
  Survey found{kAll, 0, 0};
  for (int64_t row = (block.b * p.H + block.h) * p.Lq + block.first, end = row + block.rows; row < end; ++row) {
    const Kept kept = kept_of(p, m, a.row_state[row].top, a.count[row]);
    found.least = kept < found.least ? kept : found.least;
    found.nonzero += a.count[row];
    found.entries += round_up(a.count[row], VL);
  }
  return found;
}

// Adds to `grad_alpha`; false when there is no memory for the panels.
inline bool backward_block(const AttentionBackward& a, Block block, const Survey& kept, const HeadGradient& head, const Workspace& w, Panels& panels,
                           double& grad_alpha) {
  const AttentionProblem& p = a.problem;
  const Mapping m = mapping_of(p, block.b, block.h, *w.tables);
  const int64_t Dp = padded_d(p), Ep = padded_e(p), tall = round_up(block.rows, TILE);
  const int64_t first_row = (block.b * p.H + block.h) * p.Lq + block.first, seen = block.keys < p.Lk ? block.keys : p.Lk;
  const bool want_alpha = a.grad_alpha != nullptr;
  const float rescue = p.dropout > 0.0f ? 1.0f / (1.0f - p.dropout) : 1.0f;
  float* queries = w.q + w.tall * Dp;
  float* grad_out = queries + w.tall * Dp;
  float* grad_q = grad_out + w.tall * Ep;
  float* spare = w.weights + (w.ld + 2 * VL);

  load_rows(p, p.q, block, p.D, 1.0f, tall, queries);
  load_rows(p, a.grad_out, block, p.E, 1.0f, tall, grad_out);
  for (int64_t r = 0; r < block.rows; ++r) {
    if (a.count[first_row + r] > 0) continue;  // a row without support gives nothing, whatever it holds; for NaN see spread_nan_rows
    memset(queries + r * Dp, 0, (size_t)Dp * sizeof(float));
    memset(grad_out + r * Ep, 0, (size_t)Ep * sizeof(float));
  }
  // Dense products multiply by zero as well, which only finite gradients allow; keys and values are looked at below.
  const bool dense = (double)kept.nonzero > kDenseShare * (double)(block.rows * block.keys) && all_finite(grad_out, block.rows * Ep);
  const bool stored = kept.least == kAll || (kept.least == kColumns && !dense);
  if (kept.least != kAll) load_queries(p, block, tall, w.q);
  if (!stored) {
    if (!block.few && !panels.get(false, block)) return false;
    score_block(p, block, w.q, w.scores, w.ld, w.top);
  }

  if (dense) {
    if (!panels.get(true, block)) return false;
    value_products(p, block, grad_out, Ep, w.grads, w.ld);
    for (int64_t r = 0; r < tall; ++r) {
      float* s = w.scores + r * w.ld;
      float* g = w.grads + r * w.ld;
      if (r >= block.rows) {
        memset(s, 0, (size_t)block.keys * sizeof(float));
        memset(g, 0, (size_t)block.keys * sizeof(float));
        continue;
      }
      const int64_t row = first_row + r;
      if (stored) {
        recall_columns(p, kAll, a.kept + row * p.room, a.count[row], w.columns, w.weights);
        memset(s, 0, (size_t)block.keys * sizeof(float));
        for (int64_t i = 0; i < a.count[row]; ++i) s[w.columns[i]] = w.weights[i];
      } else {
        densify(m, s, block.keys, a.row_state[row], spare);
      }
      for (int64_t j = 0; p.dropout > 0.0f && j < seen; ++j) g[j] = survives(p, row, j) ? g[j] * rescue : 0.0f;
      if (m.rela)
        for (int64_t j = 0; j < block.keys; ++j) g[j] = s[j] > 0.0f ? g[j] : 0.0f;
      grad_alpha += score_gradient(m, want_alpha, s, g, block.keys, p.scale, spare);
      for (int64_t j = 0; p.dropout > 0.0f && j < seen; ++j) s[j] = survives(p, row, j) ? s[j] * rescue : 0.0f;
    }
    dense_product(w.grads, w.ld, block.rows, seen, head.k.data, head.k.stride, Dp, grad_q);
    for (int64_t r = 0; r < block.rows; ++r) {
      if (all_finite(grad_q + r * Dp, p.D)) continue;  // else zeros have met keys that are not finite
      int64_t count = 0;
      for (int64_t j = 0; j < seen; ++j) {
        w.columns[count] = (int32_t)j;
        w.weights[count] = w.grads[r * w.ld + j];
        count += w.weights[count] != 0.0f;
      }
      gather_rows(w.weights, w.columns, count, head.k.data, head.k.stride, Dp, grad_q + r * Dp);
    }
    dense_transposed_add(w.grads, w.ld, seen, block.rows, queries, Dp, Dp, head.grad_k, Dp);
    dense_transposed_add(w.scores, w.ld, seen, block.rows, grad_out, Ep, Ep, head.grad_v, Ep);
  } else {
    for (int64_t r = 0; r < block.rows; ++r) {
      const int64_t row = first_row + r;
      int64_t count = a.count[row];
      if (stored) {
        recall_support(p, m, block, r, kept_of(p, m, a.row_state[row].top, count), a.kept + row * p.room, count,
                       a.row_state[row], w.q + r * Dp, head.k, w.columns, w.weights);
      } else {
        count = extract(m, w.scores + r * w.ld, block.keys, a.row_state[row], spare, w.columns, w.weights);
      }
      float* g = w.grads;
      gather_dots(grad_out + r * Ep, w.columns, count, head.v.data, head.v.stride, Ep, g);
      grad_alpha += row_gradient(p, m, want_alpha, row, w.columns, count, w.weights, g, spare);
      gather_rows(g, w.columns, count, head.k.data, head.k.stride, Dp, grad_q + r * Dp);
      scatter_rows(g, w.columns, count, queries + r * Dp, Dp, head.grad_k, Dp);
      scatter_rows(w.weights, w.columns, count, grad_out + r * Ep, Ep, head.grad_v, Ep);
    }
  }
  write_query_gradient(a, block, grad_q);
  return true;
}

bool backward(const AttentionBackward& a, int64_t begin, int64_t end) {
  const AttentionProblem& p = a.problem;
  const int64_t blocks = (p.Lq + block_rows(p.Lk) - 1) / block_rows(p.Lk), heads = p.B * p.G, group = p.H / p.G;
  Scratch scratch((workspace_floats(p) + (size_t)(block_rows(p.Lk) + TILE) * (size_t)(padded_d(p) + padded_e(p)) * 2) * sizeof(float));
  if (!scratch.data) return false;
  HeadTables tables;
  const Workspace w = set_up(p, (float*)scratch.data, tables);
  Panels panels{p};
  RunSpace run_space{};
  const bool use_runs = runs_pay(p);
  if (use_runs && !run_space.ready(p)) return false;
  for (int64_t task = begin; task < end; ++task) {
    const int64_t chunk = task / heads, head = task % heads, b = head / p.G, g = head % p.G;
    const HeadGradient gradient{rows_of(p, p.k, p.k_rows, p.D, b, g), rows_of(p, p.v, p.v_rows, p.E, b, g),
                                a.grad_k + (chunk * heads + head) * p.Lk * padded_d(p),
                                a.grad_v + (chunk * heads + head) * p.Lk * padded_e(p)};
    panels.has_k = panels.has_v = false;
    for (int64_t h = g * group; h < (g + 1) * group; ++h) {
      double grad_alpha = 0.0;
      Run run{};
      auto finish_run = [&]() {
        if (run.block.rows) backward_run(a, run, gradient, run_space, tables, grad_alpha);
        run = {};
      };
      for (int64_t n = chunk * blocks / a.chunks; n < (chunk + 1) * blocks / a.chunks; ++n) {
        const Block block = block_at(p, b, h, n);
        const Survey kept = survey(a, block);
        const bool joins = use_runs && kept.least != kNothing && kept.entries <= kRunEntries;
        if (!joins || run.block.rows >= kRunRows || run.entries + kept.entries > kRunEntries) finish_run();
        if (joins) {
          if (!run.block.rows) run.block = block;
          else run.block.rows += block.rows;
          run.entries += kept.entries;
        } else if (!backward_block(a, block, kept, gradient, w, panels, grad_alpha)) {
          return false;
        }
      }
      finish_run();
      const int64_t tall = block_rows(p.Lk), from = chunk * blocks / a.chunks * tall, to = (chunk + 1) * blocks / a.chunks * tall;
      spread_nan_rows(a, b, h, from, to < p.Lq ? to : p.Lq, gradient, grad_alpha);
      if (a.grad_alpha) a.grad_alpha[(chunk * p.B + b) * p.H + h] = grad_alpha;
    }
  }
  return true;
}

}  // namespace
