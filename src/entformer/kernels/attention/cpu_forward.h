// Attention forward for one block of queries: scores, roots, support, output; nothing of size Lq x Lk is ever stored.
#pragma once

#include "cpu_kept.h"

namespace {

// Floats of scratch for one thread; `set_up` cuts them into a Workspace.
inline size_t workspace_floats(const AttentionProblem& p) {
  const int64_t ld = padded_keys(p), run = ld + 2 * VL, tall = round_up(block_rows(p.Lk), TILE);
  const int64_t wide = padded_d(p) + padded_e(p);
  return (size_t)(2 * tall * ld + VL * 3 * run + 8 * run + tall * (2 * wide + 8));
}
inline Workspace set_up(const AttentionProblem& p, float* at, HeadTables& tables) {
  Workspace w{};
  w.tables = &tables;
  w.ld = padded_keys(p);
  w.tall = round_up(block_rows(p.Lk), TILE);
  w.batch = 32768 / (w.ld + 1) < 1 ? 1 : 32768 / (w.ld + 1) < VL ? 32768 / (w.ld + 1) : VL;
  const int64_t run = w.ld + 2 * VL;
  w.scores = at;
  w.grads = w.scores + w.tall * w.ld;
  w.solver = w.grads + w.tall * w.ld;
  w.weights = w.solver + VL * 3 * run;  // then a spare row of weights and one of doubles, see `extract`
  w.columns = (int32_t*)(w.weights + 4 * run);
  w.top = (float*)w.columns + run;
  w.lam = w.top + w.tall;
  w.low = w.lam + w.tall;
  w.q = w.top + 8 * w.tall + 2 * run;
  return w;
}

// lam of a row that was solved elsewhere, from its largest weight: p = exp_e(0 - lam).
inline float root_from_best(const float* p, int64_t count, double e) {
  float best = 0.0f;
  for (int64_t i = 0; i < count; ++i) best = p[i] > best ? p[i] : best;
  return (float)(-expm1(e * log((double)best)) / e);
}

inline void forward_block(const AttentionForward& a, const Block& block, const Workspace& w) {
  const AttentionProblem& p = a.problem;
  const Mapping m = mapping_of(p, block.b, block.h, *w.tables);
  const FloatRows v = rows_of(p, p.v, p.v_rows, p.E, block.b, block.g);
  const int64_t wide = padded_e(p), seen = block.keys < p.Lk ? block.keys : p.Lk;
  const int64_t first_row = (block.b * p.H + block.h) * p.Lq + block.first;
  float* spare = w.weights + (w.ld + 2 * VL);
  float* out = w.q + w.tall * padded_d(p);
  const float rescue = p.dropout > 0.0f ? 1.0f / (1.0f - p.dropout) : 1.0f;

  load_queries(p, block, round_up(block.rows, TILE), w.q);
  score_block(p, block, w.q, w.scores, w.ld, w.top);
  solve_block(m, block, w);
  auto state_of = [&](int64_t r) { return RowState{w.top[r], w.lam[r], w.low[r]}; };

  // Two rows tell whether the block is dense.
  int64_t probe = 0;
  for (int half = 0; half < 2; ++half) {
    const int64_t r = half * block.rows / 2;
    probe += extract(m, w.scores + r * w.ld, block.keys, state_of(r), spare, w.columns, w.weights);
  }
  const bool dense = probe > kDenseShare * 2.0 * block.keys;

  for (int64_t r = 0; r < block.rows; ++r) {
    const int64_t row = first_row + r;
    float* s = w.scores + r * w.ld;
    int64_t count;
    if (dense) {
      count = densify(m, s, block.keys, state_of(r), spare);
      if (a.entropy) a.entropy[row] = entropy_of(s, block.keys);
      if (kept_of(p, m, w.top[r], count)) extract_weights(s, block.keys, w.columns, w.weights);
    } else {
      count = extract(m, s, block.keys, state_of(r), spare, w.columns, w.weights);
      if (a.entropy) a.entropy[row] = entropy_of(w.weights, count);
    }
    keep_support(p, kept_of(p, m, w.top[r], count), w.columns, w.weights, count, a.kept + row * p.room);
    if (m.in_double && count > 0) w.lam[r] = root_from_best(dense ? s : w.weights, dense ? block.keys : count, m.e);  // before dropout
    if (dense) {
      for (int64_t j = 0; p.dropout > 0.0f && j < seen; ++j) s[j] = survives(p, row, j) ? s[j] * rescue : 0.0f;
    } else {
      for (int64_t i = 0; p.dropout > 0.0f && i < count; ++i)
        w.weights[i] = survives(p, row, w.columns[i]) ? w.weights[i] * rescue : 0.0f;
      gather_rows(w.weights, w.columns, count, v.data, v.stride, wide, out + r * wide);
    }
    a.count[row] = (int32_t)count;
    a.row_state[row] = state_of(r);
  }
  if (dense) dense_product(w.scores, w.ld, block.rows, seen, v.data, v.stride, wide, out);
  for (int64_t r = 0; r < block.rows; ++r) {
    float* row = out + r * wide;
    if (dense && !all_finite(row, p.E)) {  // the product has multiplied values by zero; some are not finite
      const int64_t count = extract_weights(w.scores + r * w.ld, block.keys, w.columns, w.weights);
      gather_rows(w.weights, w.columns, count, v.data, v.stride, wide, row);
    }
    if (w.top[r] != w.top[r] || !all_finite(row, p.E))
      for (int64_t c = 0; c < wide; ++c) row[c] = __builtin_nanf("");
    narrow(out + r * wide, p.dtype, (first_row + r) * p.E, p.E, a.out);
  }
}

// The block of a task. Threads take runs of tasks, so over long keys the tasks are ordered such that threads are at the same head at
// the same time: its k and v then lie in the shared cache once. Every kWays-th block, so that causal rows are shared out evenly.
constexpr int64_t kWays = 8;
inline Block block_of_task(const AttentionProblem& p, int64_t task) {
  const int64_t blocks = (p.Lq + block_rows(p.Lk) - 1) / block_rows(p.Lk), heads = p.B * p.H;
  const int64_t ways = p.Lk * (p.D + p.E) >= 1 << 20 ? kWays : 1;
  for (int64_t way = 0;; ++way) {
    const int64_t here = (blocks - way + ways - 1) / ways;  // blocks of this way in each head
    if (task < here * heads) return block_at(p, task / here / p.H, task / here % p.H, way + ways * (task % here));
    task -= here * heads;
  }
}

bool forward(const AttentionForward& a, int64_t begin, int64_t end) {
  const AttentionProblem& p = a.problem;
  Scratch scratch(workspace_floats(p) * sizeof(float));
  if (!scratch.data) return false;
  HeadTables tables;
  const Workspace w = set_up(p, (float*)scratch.data, tables);
  for (int64_t task = begin; task < end; ++task) forward_block(a, block_of_task(p, task), w);
  return true;
}

}  // namespace
