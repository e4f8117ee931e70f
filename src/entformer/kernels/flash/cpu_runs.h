// Attention backward over long keys for a run of queries whose supports were all kept: key by key tile, so that k, v and their
// gradients stay in the second-level cache.
//
// Row by row, each entry of a support touches rows of k, v, dK and dV that lie anywhere in megabytes, and waits for each. Here a
// few hundred queries take their entries in the first tile of keys, then in the next one. Within a row of a result the
// order of additions is the same, so the bits are those of the way row by row.
#pragma once

#include "cpu_gradient.h"
#include "cpu_kept.h"

namespace {

constexpr int64_t kRunRows = 512, kRunEntries = 131072;

// Keys whose rows of k, dK and dV fill some of the second-level cache.
inline int64_t tile_keys(const FlashProblem& p) { return 393216 / 4 / (2 * padded_d(p) + padded_e(p)); }
inline bool runs_pay(const FlashProblem& p) { return p.Lk >= 4 * tile_keys(p) && !few_queries(p); }

struct Run {
  Block block;      // its rows are those of all blocks in the run
  int64_t entries;  // of all supports, each in whole vectors
};

struct RunSpace {
  Scratch held{};
  float *queries, *scaled, *grad_out, *grad_q, *weights, *grads, *spare;
  int32_t *columns, *start, *next;  // row r has columns[start[r]] and on; `next` is where its next tile begins
  int64_t* count;

  bool ready(const FlashProblem& p) {
    if (held.data) return true;
    const int64_t rows = round_up(kRunRows + 48, TILE), wide = padded_d(p) + padded_e(p), entries = kRunEntries + VL;
    const int64_t longest = round_up(p.room, VL) + VL;  // a support has at most as many entries as bytes
    held.take((size_t)(rows * (wide * 2 + padded_d(p) + 6) + 3 * entries + 2 * longest) * sizeof(float));
    if (!held.data) return false;
    count = (int64_t*)held.data;
    queries = (float*)(count + rows);
    scaled = queries + rows * padded_d(p);
    grad_q = scaled + rows * padded_d(p);
    grad_out = grad_q + rows * padded_d(p);
    weights = grad_out + rows * padded_e(p);
    grads = weights + entries;
    columns = (int32_t*)(grads + entries);
    spare = (float*)columns + entries;
    start = (int32_t*)(spare + 2 * longest);
    next = start + rows;
    return true;
  }
};

// VL entries of any rows at a time: entry l lies at `at[l]` and pairs row x[l] of the queries' side with row y[l] of the keys'.
struct Pairs {
  int count = 0;
  int32_t at[VL], row[VL];
  const float *x[VL], *y[VL];
  void add(int32_t entry, int64_t r, const float* left, const float* right) {
    at[count] = entry, row[count] = (int32_t)r, x[count] = left, y[count] = right;
    ++count;
  }
  void fill() {
    for (int l = count; l < VL; ++l) x[l] = x[0], y[l] = y[0], row[l] = row[0], at[l] = at[0];
  }
};

// out[at[l]] = <x[l], y[l]>, the bits of gather_dots.
inline void pair_dots(Pairs& pairs, int64_t width, float* out) {
  if (pairs.count == 0) return;
  pairs.fill();
  vf sums[VL];
  for (int l = 0; l < VL; ++l) {
    vf sum{};
    for (int64_t at = 0; at < width; at += VL) sum += load(pairs.x[l] + at) * load(pairs.y[l] + at);
    sums[l] = sum;
  }
  const vf found = sum_each(sums);
  for (int l = 0; l < pairs.count; ++l) out[pairs.at[l]] = found[l];
  pairs.count = 0;
}

// Scores of the pairs, x a query times scale and y a key: the bits of scores_at.
inline void pair_scores(const FlashProblem& p, const Block& block, Pairs& pairs, const int32_t* columns, float* out) {
  if (pairs.count == 0) return;
  pairs.fill();
  vf sum{};
  int64_t d = 0;
#if defined(__AVX512F__)
  for (; d + 16 <= p.D; d += 16) {
    __m512 left[16], right[16];
#pragma GCC unroll 16
    for (int l = 0; l < 16; ++l) left[l] = _mm512_loadu_ps(pairs.x[l] + d);
    transpose16(left);
#pragma GCC unroll 16
    for (int l = 0; l < 16; ++l) right[l] = _mm512_loadu_ps(pairs.y[l] + d);
    transpose16(right);
#pragma GCC unroll 16
    for (int l = 0; l < 16; ++l) sum += (vf)left[l] * (vf)right[l];
  }
#endif
  for (; d < p.D; ++d) {
    vf left, right;
    for (int l = 0; l < VL; ++l) left[l] = pairs.x[l][d], right[l] = pairs.y[l][d];
    sum += left * right;
  }
  if (p.slopes) {
    vi column, row;
    for (int l = 0; l < VL; ++l) column[l] = columns[pairs.at[l]], row[l] = pairs.row[l];
    sum = alibi(p, block, row, column, sum);
  }
  for (int l = 0; l < pairs.count; ++l) out[pairs.at[l]] = sum[l];
  pairs.count = 0;
}

// Asks for the rows [begin, end) of one side, in the order in which they lie: the processor then streams them.
inline void fetch_tile(const float* rows, int64_t stride, int64_t width, int64_t begin, int64_t end) {
  for (int64_t j = begin; j < end; ++j)
    for (int64_t at = 0; at < width; at += 16) __builtin_prefetch(rows + j * stride + at, 1, 2);
}

// Calls use(r, from, to) for every row with entries [from, to) among the keys of the tile that ends before `end`.
template <class Use>
inline void each_row_of_tile(const RunSpace& s, int64_t rows, int64_t end, const Use& use) {
  for (int64_t r = 0; r < rows; ++r) {
    const int32_t from = s.next[r], last = s.start[r] + (int32_t)s.count[r];
    int32_t to = from;
    while (to < last && s.columns[to] < end) ++to;
    if (to == from) continue;
    s.next[r] = to;
    use(r, from, to);
  }
}

inline void backward_run(const FlashBackward& a, const Run& run, const HeadGradient& head, const RunSpace& s, double& grad_alpha) {
  const FlashProblem& p = a.problem;
  const Block& block = run.block;
  const Mapping m = mapping_of(p, block.b, block.h);
  const int64_t Dp = padded_d(p), Ep = padded_e(p), tile = tile_keys(p);
  const int64_t first_row = (block.b * p.H + block.h) * p.Lq + block.first;
  const float* state = a.row_state + 2 * first_row;
  auto kept = [&](int64_t r) { return kept_of(p, m, state[2 * r], s.count[r]); };

  load_rows(p, p.q, block, p.D, 1.0f, block.rows, s.queries);
  load_rows(p, p.q, block, p.D, p.scale, block.rows, s.scaled);
  load_rows(p, a.grad_out, block, p.E, 1.0f, block.rows, s.grad_out);
  memset(s.grad_q, 0, (size_t)(block.rows * Dp) * sizeof(float));
  int64_t entries = 0;
  bool any_again = false;
  for (int64_t r = 0; r < block.rows; ++r) {
    s.count[r] = a.count[first_row + r];
    s.start[r] = s.next[r] = (int32_t)entries;
    recall_columns(p, kept(r), a.kept + (first_row + r) * p.room, s.count[r], s.columns + entries, s.weights + entries);
    entries += round_up(s.count[r], VL);
    any_again |= kept(r) == kColumns;
    for (int64_t i = s.start[r] + s.count[r]; i < entries; ++i) s.weights[i] = s.grads[i] = 0.0f;  // vectors are read whole
  }

  for (int64_t end = tile; end < p.Lk + tile; end += tile) {
    Pairs values, keys;
    const int64_t last = end < p.Lk ? end : p.Lk;
    fetch_tile(head.v.data, head.v.stride, Ep, end - tile, last);
    if (any_again) fetch_tile(head.k.data, head.k.stride, Dp, end - tile, last);
    each_row_of_tile(s, block.rows, end, [&](int64_t r, int32_t from, int32_t to) {
      const bool again = kept(r) == kColumns;
      for (int32_t i = from; i < to; ++i) {
        values.add(i, r, s.grad_out + r * Ep, head.v.data + s.columns[i] * head.v.stride);
        if (values.count == VL) pair_dots(values, Ep, s.grads);
        if (!again) continue;
        keys.add(i, r, s.scaled + r * Dp, head.k.data + s.columns[i] * head.k.stride);
        if (keys.count == VL) pair_scores(p, block, keys, s.columns, s.weights);
      }
    });
    pair_dots(values, Ep, s.grads);
    pair_scores(p, block, keys, s.columns, s.weights);
  }
  for (int64_t r = 0; r < block.rows; ++r) {
    float* weights = s.weights + s.start[r];
    if (kept(r) == kColumns) weights_of(m, state + 2 * r, s.count[r], weights);
    grad_alpha += row_gradient(p, m, a.grad_alpha != nullptr, first_row + r, s.columns + s.start[r], s.count[r], weights,
                               s.grads + s.start[r], s.spare);
    s.next[r] = s.start[r];
  }
  for (int64_t end = tile; end < p.Lk + tile; end += tile) {
    const int64_t last = end < p.Lk ? end : p.Lk;
    fetch_tile(head.k.data, head.k.stride, Dp, end - tile, last);
    fetch_tile(head.grad_k, Dp, Dp, end - tile, last);
    fetch_tile(head.grad_v, Ep, Ep, end - tile, last);
    each_row_of_tile(s, block.rows, end, [&](int64_t r, int32_t from, int32_t to) {
      gather_rows<true>(s.grads + from, s.columns + from, to - from, head.k.data, head.k.stride, Dp, s.grad_q + r * Dp);
      scatter_rows(s.grads + from, s.columns + from, to - from, s.queries + r * Dp, Dp, head.grad_k, Dp);
      scatter_rows(s.weights + from, s.columns + from, to - from, s.grad_out + r * Ep, Ep, head.grad_v, Ep);
    });
  }
  write_query_gradient(a, block, s.grad_q);
}

}  // namespace
