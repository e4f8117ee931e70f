// Attention forward and the exact support, one block of queries at a time; nothing of size Lq x Lk is ever stored.
#pragma once

#include "attention_saved.h"

namespace {

// From row to row of the scores: an odd number of cache lines, since rows a power of two apart would share few places in the cache.
inline int64_t row_floats(const AttentionProblem& p) {
  constexpr int64_t line = 16;
  const int64_t floats = round_up(most_keys(p) + (p.sinks ? VL : 0), line);
  return floats % (2 * line) ? floats : floats + line;
}

// Floats of scratch for one thread; `set_up` cuts them into a Workspace.
inline size_t workspace_floats(const AttentionProblem& p) {
  const int64_t ld = row_floats(p), run = ld + 2 * VL, tall = round_up(block_rows(p), TILE);
  const int64_t wide = padded_d(p) + padded_e(p);
  return (size_t)(2 * tall * ld + VL * 3 * run + 8 * run + tall * (2 * wide + 8));
}
inline Workspace set_up(const AttentionProblem& p, float* at, HeadTables& tables) {
  Workspace w{};
  w.tables = &tables;
  w.ld = row_floats(p);
  w.tall = round_up(block_rows(p), TILE);
  w.batch = 32768 / (w.ld + 1) < 1 ? 1 : 32768 / (w.ld + 1) < VL ? 32768 / (w.ld + 1) : VL;
  const int64_t run = w.ld + 2 * VL;  // every array begins at a multiple of VL floats
  w.scores = at;
  w.grads = w.scores + w.tall * w.ld;
  w.solver = w.grads + w.tall * w.ld;
  w.weights = w.solver + VL * 3 * run;  // then a scratch row of weights and one of doubles, see `sparse_weights`
  w.columns = (int32_t*)(w.weights + 4 * run);
  w.row_max = (float*)w.columns + run;
  w.threshold = (double*)(w.row_max + round_up(w.tall, 2));
  w.q = w.row_max + 8 * w.tall + 2 * run;
  return w;
}

// The threshold of a row that the float64 solver solved, from its largest weight, that of the sink or another: p = exp_e(0 - lam).
inline float threshold_from_largest(const float* p, int64_t count, float sink, double e) {
  float best = sink;
  for (int64_t i = 0; i < count; ++i) best = p[i] > best ? p[i] : best;
  return (float)(-expm1(e * log((double)best)) / e);
}

// False when there is no memory for the rows of v.
inline bool forward_block(const AttentionForward& a, const Block& block, const Workspace& w) {
  const AttentionProblem& p = a.problem;
  const HeadNormalizer m = head_normalizer(p, block.b, block.h, *w.tables);
  const FloatRows all_v = block.v_rows->of(block.b, block.g), v{all_v.data + block.start * all_v.stride, all_v.stride};
  if (!all_v.data && p.E > 0) return false;
  const int64_t wide = padded_e(p), seen = block.real_keys, solved = solved_keys(p, block);
  const int64_t first_row = row_at(p, block, 0);
  float* scratch = w.weights + (w.ld + 2 * VL);
  float* out = w.q + w.tall * padded_d(p);
  const float scale = inv_keep_prob(p);

  load_factor(p, block, round_up(block.rows, TILE), w.q);
  score_block(p, block, w.q, w.scores, w.ld, w.row_max, nullptr);
  for (int64_t r = 0; m.e != m.e && r < block.rows; ++r)  // an alpha of NaN makes the rows of its head NaN
    if (w.row_max[r] != -kInf) w.row_max[r] = __builtin_nanf("");
  auto state_of = [&](int64_t r) { return RowState{w.row_max[r], w.threshold[r]}; };

  // Two rows tell how dense the block is, also where a causal mask leaves later rows more keys.
  const int64_t samples[] = {block.rows / 4, 3 * block.rows / 4};
  const int sample_size = block.rows > 1 ? 2 : 1;
  const bool has_power = m.has_power();
  struct Sample : Density {
    bool has_power, is_short;
  } sample{Density(p, block), has_power, solved <= kShortRow && m.is_vectorized()};
  sample.weights = (double)(sample_size * block.keys);
  int64_t counts[kMostRows + TILE];
  if (sample.is_short) {
    solve_short(p, m, block, w, counts);
    sample.weights = (double)(block.rows * block.keys);
    for (int64_t r = 0; r < block.rows; ++r) sample.nonzero += (double)counts[r];
  } else if (has_power) {
    sample.nonzero = (double)estimated_support(p, m, block, w, samples, sample_size);
  } else {
    solve_block(p, m, block, w);
    for (int i = 0; i < sample_size; ++i) {
      const int64_t r = samples[i];
      sample.nonzero +=
          (double)sparse_weights(m, w.scores + r * w.ld, block.keys, solved, state_of(r), scratch, w.columns, w.weights);
    }
  }
  const bool dense = choose_output(sample) == OutputPath::Dense;
  const SolverPath solver = choose_solver(sample);
  if (solver == SolverPath::InPlace)
    solve_in_place(p, m, block, w, counts);
  else if (solver == SolverPath::Packed && has_power)
    solve_block(p, m, block, w);
  const bool in_place = solver != SolverPath::Packed;  // w.scores holds weights

  BlockSupports supports(p, block);
  for (int64_t r = 0; dense && r < block.rows; ++r) {
    float* s = w.scores + r * w.ld;
    if (!in_place) counts[r] = dense_weights(m, s, block.keys, solved, state_of(r), scratch);
    supports.add(p, block, m.in_double, w.row_max[r], counts[r]);
  }
  const bool saves = !dense || supports.are_saved();
  for (int64_t r = 0; r < block.rows; ++r) {
    const int64_t row = first_row + r;
    float* s = w.scores + r * w.ld;
    const int64_t count = dense      ? counts[r]
                          : in_place ? compact_weights(s, block.keys, w.columns, w.weights)
                                     : sparse_weights(m, s, block.keys, solved, state_of(r), scratch, w.columns, w.weights);
    const SavedFormat format = saves ? saved_format(p, block, m.in_double, w.row_max[r], count) : SavedFormat::Nothing;
    uint8_t* saved = a.reserve + row * p.reserve_stride;
    if (a.entropy) a.entropy[row] = dense ? entropy_of(s, block.keys) : entropy_of(w.weights, count);
    if (format == SavedFormat::Row) {
      save_row(p, dense || in_place ? s : nullptr, block.keys, w.columns, w.weights, count, saved);
    } else {
      if (dense && format != SavedFormat::Nothing) compact_weights(s, block.keys, w.columns, w.weights);
      save_support(p, block, format, w.columns, w.weights, count, saved);
    }
    if (m.in_double && count > 0) {  // before dropout
      const float sink = p.sinks ? (dense ? s : scratch)[block.keys] : 0.0f;
      w.threshold[r] = threshold_from_largest(dense ? s : w.weights, dense ? block.keys : count, sink, m.e);
    }
    if (dense) {
      for (int64_t j = 0; p.dropout > 0.0f && j < seen; ++j) s[j] = keep_mask(p, row, block.start + j) ? s[j] * scale : 0.0f;
    } else {
      for (int64_t i = 0; p.dropout > 0.0f && i < count; ++i)
        w.weights[i] = keep_mask(p, row, block.start + w.columns[i]) ? w.weights[i] * scale : 0.0f;
      gather_rows(w.weights, w.columns, count, v.data, v.stride, wide, out + r * wide);
    }
    a.rows.support_size[row] = (int32_t)count;
    a.rows.row_max[row] = w.row_max[r];
    a.rows.threshold[row] = w.threshold[r];
  }
  if (dense && block.pairs) {
    if (!block.pairs->v.prepare(all_v, block.b, block.g)) return false;
    block.pairs->dense_product(w.scores, w.ld, block.rows, seen, block.pairs->v.from(block.start), out, false);
  } else if (dense) {
    dense_product(w.scores, w.ld, block.rows, seen, v.data, v.stride, wide, out, *block.ahead);
  }
  each_not_finite(out, block.rows, wide, p.E, [&](int64_t r) {
    if (dense) {  // the product has multiplied values by zero; some are not finite
      const int64_t count = compact_weights(w.scores + r * w.ld, block.keys, w.columns, w.weights);
      gather_rows(w.weights, w.columns, count, v.data, v.stride, wide, out + r * wide);
    }
    if (!all_finite(out + r * wide, p.E)) w.row_max[r] = __builtin_nanf("");
  });
  for (int64_t r = 0; r < block.rows; ++r) {
    if (w.row_max[r] != w.row_max[r])
      for (int64_t c = 0; c < wide; ++c) out[r * wide + c] = __builtin_nanf("");
    write_row(p, block, r, out + r * wide, p.E, a.out);
  }
  return true;
}

inline int64_t num_blocks(const AttentionProblem& p) { return (p.Lq + block_rows(p) - 1) / block_rows(p); }

// Calls use(block, workspace) for the blocks of the tasks [begin, end) until one returns false.
template <class Use>
bool each_block(const AttentionProblem& p, int64_t begin, int64_t end, const Use& use) {
  Scratch scratch(workspace_floats(p) * sizeof(float));
  if (!scratch.data) return false;
  HeadTables tables;
  const Workspace w = set_up(p, (float*)scratch.data, tables);
  Panels panels{p, true};
  HeadRows v_rows{p, false};
  PairSpace pairs(p, w.tall);
  if (!pairs.has_memory()) return false;
  Ahead ahead;
  const int64_t blocks = num_blocks(p);
  auto block_of = [&](int64_t task) { return block_at(p, task / blocks / p.H, task / blocks % p.H, task % blocks); };
  for (int64_t task = begin; task < end; ++task) {
    Block block = block_of(task);
    if (!p.is_decode && !block.k_panels && !(block.k_panels = panels.of(block.b, block.g))) return false;
    ahead.clear();
    block.ahead = &ahead;
    block.v_rows = &v_rows;
    block.pairs = pairs.of_block();
    if (block.first == 0) fetch_rows(p, p.v, block.b, block.g, 0, p.Lk, p.E, ahead);
    if (task + 1 < end) {
      const Block next = block_of(task + 1);
      fetch_rows(p, p.q, next.b, next.h, next.first, next.rows, p.D, ahead);
      if (next.b != block.b || next.g != block.g) fetch_rows(p, p.k, next.b, next.g, 0, p.Lk, p.D, ahead);
    }
    if (!use(block, w)) return false;
  }
  return true;
}

bool attention_forward(const AttentionForward& a, int64_t begin, int64_t end) {
  return each_block(a.problem, begin, end, [&](const Block& block, const Workspace& w) { return forward_block(a, block, w); });
}

// The exact support as CSR; false also if it has not the sizes that `offset` gives.
bool attention_support(const AttentionSupport& a, int64_t begin, int64_t end) {
  const AttentionProblem& p = a.problem;
  return each_block(p, begin, end, [&](const Block& block, const Workspace& w) {
    const HeadNormalizer m = head_normalizer(p, block.b, block.h, *w.tables);
    load_factor(p, block, round_up(block.rows, TILE), w.q);
    score_block(p, block, w.q, w.scores, w.ld, w.row_max, nullptr);
    for (int64_t r = 0; r < block.rows; ++r) {
      const int64_t row = row_at(p, block, r);
      const int64_t count = sparse_weights(m, w.scores + r * w.ld, block.keys, solved_keys(p, block), load_state(a.rows, row),
                                           w.weights + (w.ld + 2 * VL), w.columns, w.weights);
      if (count != a.offset[row + 1] - a.offset[row]) return false;
      for (int64_t i = 0; i < count; ++i) w.columns[i] += (int32_t)(p.first_key + block.start);
      memcpy(a.columns + a.offset[row], w.columns, (size_t)count * sizeof(int32_t));
      memcpy(a.weights + a.offset[row], w.weights, (size_t)count * sizeof(float));
    }
    return true;
  });
}

}  // namespace
