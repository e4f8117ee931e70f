// Attention backward over long keys for a run of queries whose supports were all kept: key by key tile, so that k, v and their
// gradients stay in the second-level cache.
//
// Row by row, each entry of a support touches rows of k, v, dK and dV that lie anywhere in megabytes, and waits for each. Here the
// entries of a thousand queries are sorted by tile, one list that is worked through without a branch. Within a row of a result
// the order of additions is that of the way row by row.
#pragma once

#include "cpu_gradient.h"
#include "cpu_kept.h"

namespace {

constexpr int64_t kRunRows = 1024, kRunEntries = 262144;

// Keys of a tile, 2^shift of them: their rows of k, dK and dV fill some of the second-level cache.
inline int tile_shift(const AttentionProblem& p) {
  const int64_t wide = 2 * padded_d(p) + padded_e(p), fit = 196608 / 4 / (wide > 0 ? wide : 1);
  int shift = 0;
  while (fit >> (shift + 1)) ++shift;
  return shift;
}
inline bool runs_pay(const AttentionProblem& p) { return p.Lk >= 8ll << tile_shift(p) && !few_queries(p); }

struct Run {
  Block block;      // its rows are those of all blocks in the run
  int64_t entries;  // of all supports, each in whole vectors
};

// One entry of a support: number `at` of the arrays that go row by row, at row `row` of the run and key `key`.
struct Entry {
  int32_t at, row, key;
};

struct RunSpace {
  Scratch held{};
  float *queries, *scaled, *grad_out, *grad_q;
  float *weights, *grads, *spare;  // row r has weights[start[r]] and on, in whole vectors
  int32_t *columns, *start, *tile_end;
  Entry* entries;  // tile by tile, and within a tile row by row
  int64_t* count;

  bool ready(const AttentionProblem& p) {
    if (held.data) return true;
    const int64_t rows = round_up(kRunRows + 48, TILE), wide = padded_d(p) + padded_e(p), entry_room = kRunEntries + VL;
    const int64_t longest = round_up(p.room, VL) + VL;  // a support has at most as many entries as bytes
    const int64_t tiles = (p.Lk >> tile_shift(p)) + 1;
    held.take((size_t)(rows * (wide * 2 + padded_d(p) + 3) + 6 * entry_room + 2 * longest + tiles) * sizeof(float));
    if (!held.data) return false;
    count = (int64_t*)held.data;
    queries = (float*)(count + rows);
    scaled = queries + rows * padded_d(p);
    grad_q = scaled + rows * padded_d(p);
    grad_out = grad_q + rows * padded_d(p);
    weights = grad_out + rows * padded_e(p);
    grads = weights + entry_room;
    columns = (int32_t*)(grads + entry_room);
    entries = (Entry*)(columns + entry_room);
    spare = (float*)(entries + entry_room);
    start = (int32_t*)(spare + 2 * longest);
    tile_end = start + rows;
    return true;
  }

  // Fills `entries`; those of tile t end before tile_end[t].
  void sort_by_tile(const AttentionProblem& p, int64_t rows) {
    const int shift = tile_shift(p);
    const int64_t tiles = (p.Lk >> shift) + 1;
    memset(tile_end, 0, (size_t)tiles * sizeof(int32_t));
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = start[r]; i < start[r] + count[r]; ++i) ++tile_end[columns[i] >> shift];
    int32_t total = 0;
    for (int64_t t = 0; t < tiles; ++t) {
      const int32_t first = total;
      total += tile_end[t];
      tile_end[t] = first;  // moves on to the tile's end below
    }
    for (int64_t r = 0; r < rows; ++r)
      for (int32_t i = start[r]; i < start[r] + (int32_t)count[r]; ++i)
        entries[tile_end[columns[i] >> shift]++] = {i, (int32_t)r, columns[i]};
  }
};

// Some entries at once, at most one a lane.
struct Lanes {
  int count = 0;
  const Entry* entry[VL];
  void fill() {
    for (int l = count; l < VL; ++l) entry[l] = entry[0];
  }
};

// out[at] = <x[row], y[key]> for each entry: the bits of gather_dots.
inline void entry_dots(Lanes& lanes, const float* x, const FloatRows& y, int64_t width, float* out) {
  if (lanes.count == 0) return;
  lanes.fill();
  vf sums[VL];
  for (int l = 0; l < VL; ++l) {
    const float *left = x + lanes.entry[l]->row * width, *right = y.data + lanes.entry[l]->key * y.stride;
    vf sum{};
    for (int64_t at = 0; at < width; at += VL) sum += load(left + at) * load(right + at);
    sums[l] = sum;
  }
  const vf found = sum_each(sums);
  for (int l = 0; l < lanes.count; ++l) out[lanes.entry[l]->at] = found[l];
  lanes.count = 0;
}

// The scores of a row in `weights` -> its weights. These scores were summed in another order than forward's, so their root is a
// rounding away from forward's too: one step on S = sum p follows it, also where a long row of equal scores shifted as one.
inline void settle_weights(const AttentionProblem& p, const Mapping& m, const Block& block, int64_t r, const RowState& state,
                           const int32_t* columns, int64_t count, float* weights, float* spare) {
  if (p.slopes)
    for (int64_t i = 0; i < count; i += VL) {
      vi column;
      for (int l = 0; l < VL; ++l) column[l] = columns[i + l < count ? i + l : i];
      store(weights + i, alibi(p, block, (int32_t)r - vi{}, column, load(weights + i)));
    }
  RowState moved = state;
  if (!m.rela) {
    memcpy(spare, weights, (size_t)round_up(count, VL) * sizeof(float));
    weights_of(m, state, count, spare);
    vf S{}, W{};
    for (int64_t i = 0; i < count; i += VL) {
      vf weight = i + VL <= count ? load(spare + i) : load_tail(spare + i, count - i, 0.0f), unused;
      S += weight;
      W += m.shape == kGeneral ? slopes_and_alpha(weight, (float)m.e, false, unused) : slope_of(m.shape, weight);
    }
    const float slope = hsum(W);
    if (slope > 0.0f) (state.low == 0.0f ? moved.lam : moved.low) += (hsum(S) - 1.0f) / slope;
  }
  weights_of(m, moved, count, weights);
}

// Asks for the rows [begin, end) of one side, in the order in which they lie: the processor then streams them.
inline void fetch_tile(const float* rows, int64_t stride, int64_t width, int64_t begin, int64_t end) {
  for (int64_t j = begin; j < end; ++j)
    for (int64_t at = 0; at < width; at += 16) __builtin_prefetch(rows + j * stride + at, 1, 2);
}

// to[0:width] += weight * from[0:width]
inline void add_row(float weight, const float* from, float* to, int64_t width) {
  const vf w = splat(weight);
  for (int64_t at = 0; at < width; at += VL) store(to + at, load(to + at) + w * load(from + at));
}

// Calls use(entries, end of them, first key, end of keys) for every tile that has an entry.
template <class Use>
inline void each_tile(const AttentionProblem& p, const RunSpace& s, const Use& use) {
  const int64_t tile = 1ll << tile_shift(p);
  const Entry* first = s.entries;
  for (int64_t t = 0; t * tile < p.Lk; ++t) {
    const Entry* end = s.entries + s.tile_end[t];
    if (end != first) use(first, end, t * tile, (t + 1) * tile < p.Lk ? (t + 1) * tile : p.Lk);
    first = end;
  }
}

inline void backward_run(const AttentionBackward& a, const Run& run, const HeadGradient& head, RunSpace& s, HeadTables& tables,
                         double& grad_alpha) {
  const AttentionProblem& p = a.problem;
  const Block& block = run.block;
  const Mapping m = mapping_of(p, block.b, block.h, tables);
  const int64_t Dp = padded_d(p), Ep = padded_e(p);
  const int64_t first_row = (block.b * p.H + block.h) * p.Lq + block.first;
  const RowState* state = a.row_state + first_row;
  auto kept = [&](int64_t r) { return kept_of(p, m, state[r].top, s.count[r]); };

  load_rows(p, p.q, block, p.D, 1.0f, block.rows, s.queries);
  load_queries(p, block, block.rows, s.scaled);
  load_rows(p, a.grad_out, block, p.E, 1.0f, block.rows, s.grad_out);
  memset(s.grad_q, 0, (size_t)(block.rows * Dp) * sizeof(float));
  int64_t entries = 0;
  bool any_again = false;
  for (int64_t r = 0; r < block.rows; ++r) {
    s.count[r] = a.count[first_row + r];
    s.start[r] = (int32_t)entries;
    recall_columns(p, kept(r), a.kept + (first_row + r) * p.room, s.count[r], s.columns + entries, s.weights + entries);
    entries += round_up(s.count[r], VL);
    any_again |= kept(r) == kColumns;
    for (int64_t i = s.start[r] + s.count[r]; i < entries; ++i) s.weights[i] = s.grads[i] = 0.0f;  // vectors are read whole
  }
  s.sort_by_tile(p, block.rows);

  each_tile(p, s, [&](const Entry* entry, const Entry* end, int64_t first_key, int64_t end_key) {
    fetch_tile(head.v.data, head.v.stride, Ep, first_key, end_key);
    if (any_again) fetch_tile(head.k.data, head.k.stride, Dp, first_key, end_key);
    Lanes values, keys;
    for (; entry < end; ++entry) {
      values.entry[values.count++] = entry;
      if (values.count == VL) entry_dots(values, s.grad_out, head.v, Ep, s.grads);
      if (!any_again || kept(entry->row) != kColumns) continue;
      keys.entry[keys.count++] = entry;
      if (keys.count == VL) entry_dots(keys, s.scaled, head.k, Dp, s.weights);
    }
    entry_dots(values, s.grad_out, head.v, Ep, s.grads);
    entry_dots(keys, s.scaled, head.k, Dp, s.weights);
  });
  for (int64_t r = 0; r < block.rows; ++r) {
    float* weights = s.weights + s.start[r];
    if (kept(r) == kColumns)
      settle_weights(p, m, block, r, state[r], s.columns + s.start[r], s.count[r], weights, s.spare);
    grad_alpha += row_gradient(p, m, a.grad_alpha != nullptr, first_row + r, s.columns + s.start[r], s.count[r], weights,
                               s.grads + s.start[r], s.spare);
  }
  each_tile(p, s, [&](const Entry* entry, const Entry* end, int64_t first_key, int64_t end_key) {
    fetch_tile(head.k.data, head.k.stride, Dp, first_key, end_key);
    fetch_tile(head.grad_k, Dp, Dp, first_key, end_key);
    fetch_tile(head.grad_v, Ep, Ep, first_key, end_key);
    for (; entry < end; ++entry) {
      const float grad = s.grads[entry->at], weight = s.weights[entry->at];
      add_row(grad, head.k.data + entry->key * head.k.stride, s.grad_q + entry->row * Dp, Dp);
      add_row(grad, s.queries + entry->row * Dp, head.grad_k + entry->key * Dp, Dp);
      add_row(weight, s.grad_out + entry->row * Ep, head.grad_v + entry->key * Ep, Ep);
    }
  });
  write_query_gradient(a, block, s.grad_q);
}

}  // namespace
