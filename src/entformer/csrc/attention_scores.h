// Scores of a block of queries: cap(scale q k^T) + bias + ALiBi, -inf where a key may not be attended, and the row maxima. A block holds
// the keys that some of its queries may see, and its columns count from the first of them.
//
// A query, or a key it may attend, that holds NaN or infinity makes its row NaN, and so does a score of +inf. What a masked key
// holds does not matter: masks choose, they do not add.
#pragma once

#include <math.h>

#include "attention_pairs.h"
#include "dispatch.h"
#include "rng.h"

namespace {

constexpr int64_t kMostRows = 96;  // of a block, with few keys
constexpr int64_t kManyRows = 48;  // with more
constexpr int64_t kCausalRows =
    VL == 16 ? 32 : 24;  // with few keys, of which a mask excludes a large part: those after the queries of the block
constexpr int64_t kBlockScores = 393216;  // 1.5 MB
constexpr int64_t kFewKeys = 341;

// The most keys a block may hold, in whole vectors.
inline int64_t most_keys(const AttentionProblem& p) {
  const int64_t within = round_up(p.left + p.right + kMostRows, PANEL) + PANEL, keys = padded_keys(p);
  return within < keys ? within : keys;
}

// Queries per task: each block reads all of k and v, so it has many rows, unless their scores would not stay in a cache.
int64_t block_rows(const AttentionProblem& p) {
  const int64_t keys = most_keys(p), fit = kBlockScores / (keys > 0 ? keys : VL) / TILE * TILE;
  const int64_t most = keys > kFewKeys ? kManyRows : p.right == kUnlimited ? kMostRows : kCausalRows;
  return fit < TILE ? TILE : fit > most ? most : fit;
}

struct Block {
  int64_t b, h, g, first, rows;      // rows = queries in this block
  int64_t start;                     // the first key that any of them may see, rounded down to a panel; padding is left out
  int64_t keys;                      // keys from there on, in whole vectors
  int64_t real_keys;                 // of these
  int64_t most_keys;                 // of any block
  const float *k_panels, *v_panels;  // of its key head
  HeadRows* v_rows;                  // of its key head, in forward
  PairSpace* pairs;                  // null where products are of float32
  Ahead* ahead;                      // what its products fetch for themselves and the next block
};
inline Block block_at(const AttentionProblem& p, int64_t b, int64_t h, int64_t number) {
  const int64_t tall = block_rows(p), all = padded_keys(p);
  Block block{b, h, h / (p.H / p.G), number * tall, 0, 0, 0, 0, most_keys(p), nullptr, nullptr, nullptr, nullptr, nullptr};
  if (p.k_panels) block.k_panels = p.k_panels + (b * p.G + block.g) * all * panel_depth(p, p.D);
  block.rows = p.Lq - block.first < tall ? p.Lq - block.first : tall;
  int64_t low = block.first + p.causal_offset - p.left, end = block.first + block.rows + p.causal_offset + p.right;
  const KeyRange keys = attended_keys(p, b);
  low = (low < keys.first ? keys.first : low) / PANEL * PANEL;
  end = end < 0 ? 0 : round_up(end < keys.end ? end : keys.end, VL);
  if (low >= end) return block;
  block.start = low;
  block.keys = end - low;
  block.real_keys = (end < keys.end ? end : keys.end) - low;
  return block;
}

// Has the products of a block fetch rows [first, first + count) of head h.
inline void fetch_rows(const AttentionProblem& p, const AttentionView& view, int64_t b, int64_t h, int64_t first, int64_t count,
                       int64_t width, Ahead& ahead) {
  const int64_t element = p.dtype == kFloat32 ? 4 : 2;
  const int64_t at = b * view.batch + h * view.head + first * view.row;
  ahead.add((const char*)view.data + at * element, view.row * element, width * element, count);
}
// The row of a query of the block in tensors (B, H, all_queries).
inline int64_t row_at(const AttentionProblem& p, const Block& block, int64_t r) {
  return (block.b * p.H + block.h) * p.all_queries + p.first_query + block.first + r;
}

// Writes that row of a tensor (B, H, all_queries, width).
inline void write_row(const AttentionProblem& p, const Block& block, int64_t r, const float* from, int64_t width,
                      const AttentionRows& to) {
  const int64_t at = block.b * to.batch + block.h * to.head + (p.first_query + block.first + r) * to.row;
  if (p.dtype == kFloat32 && width % VL == 0)
    copy_vectors((float*)to.data + at, from, width);
  else
    from_float32(from, p.dtype, at, width, to.data);
}

typedef uint8_t Bytes __attribute__((vector_size(VL)));

// Scores of row r, one or one a lane, at some columns of the block with what ALiBi adds.
inline vf alibi(const AttentionProblem& p, const Block& block, vi r, vi column, vf s) {
  const int64_t offset = block.start - block.first - p.causal_offset;
  vf distance = __builtin_convertvector(column - r + (int32_t)offset, vf);
  return s - p.slopes[block.b * p.H + block.h] * vmax(distance, -distance);
}

// Where the bias of query i at column j of the block lies.
inline const float* bias_at(const AttentionProblem& p, const Block& block, int64_t i, int64_t column) {
  return p.bias + block.b * p.bias_batch + block.h * p.bias_head + i * p.bias_row + (block.start + column) * p.bias_key;
}

inline const float* key_bias_of(const AttentionProblem& p, const Block& block) {
  return p.key_bias ? p.key_bias + block.b * padded_keys(p) : nullptr;
}

// What becomes of the products of a row: soft-cap, bias, ALiBi, masks.
struct RowTerms {
  const AttentionProblem& p;
  const Block& block;
  const float* key_bias;  // of the batch, or null
  float* cap_slopes;      // (rows, ld): the derivatives of the soft-cap, written, or null
  int64_t ld;

  vf apply(vf s, int64_t row, int64_t column) const {
    const int64_t i = block.first + row, j = block.start + column;
    if (p.softcap != 0.0f) {
      vf bounded = vtanh(s * (1.0f / p.softcap));
      if (cap_slopes) store(cap_slopes + row * ld + column, 1.0f - bounded * bounded);
      s = p.softcap * bounded;
    }
    const vi lane = lane_numbers();
    const bool inside = i < p.Lq && j < p.Lk;  // of the tensors
    if (p.bias && inside) {
      const float* from = bias_at(p, block, i, column);
      vf added = p.bias_key == 0 ? splat(*from) : p.Lk - j >= VL ? load(from) : load_tail(from, p.Lk - j, 0.0f);
      s = added <= kExcluded ? splat(-kInf) : s + added;
    }
    if (p.slopes) s = alibi(p, block, (int32_t)row - vi{}, lane + (int32_t)column, s);
    const int64_t last = i + p.causal_offset + p.right + 1, end = (last < p.Lk ? last : p.Lk) - j,
                  first = i + p.causal_offset - p.left - j;  // that the row may see
    if (end < VL || first > 0) s = within(s, first, end);
    if (p.mask && inside) {
      const uint8_t* may = p.mask + block.b * p.mask_batch + block.h * p.mask_head + i * p.mask_row + j;
      Bytes bytes{};
      memcpy(&bytes, may, (size_t)(p.Lk - j < VL ? p.Lk - j : VL));
      s = __builtin_convertvector(bytes, vi) != 0 ? s : splat(-kInf);
    }
    return key_bias ? seen_by_all(s, j) : s;
  }
  // The rows of a tile, from row r0 and `column` on, as they were stored; then use(row, scores).
  template <class T, class Use>
  void apply_to(const T& tile, float* to, int64_t stride, int64_t r0, int64_t column, const Use& use) const {
    const bool adds = adds_terms();
    for (int64_t r = 0; r < tile.rows; ++r) {
      const int64_t at = block.first + r0 + r + p.causal_offset - block.start, limit = p.Lk - block.start;
      const int64_t first = at - p.left,
                    end = at + p.right + 1 < limit ? at + p.right + 1 : limit;  // columns that the row may see
      for (int64_t c = 0; c < tile.vectors * VL; c += VL) {
        float* place = to + r * stride + c;
        vf s = load(place);
        if (adds) {
          s = apply(s, r0 + r, column + c);
        } else {
          if (column + c < first || column + c + VL > end) s = within(s, first - column - c, end - column - c);
          if (key_bias) s = seen_by_all(s, block.start + column + c);
        }
        store(place, s);
        use(r0 + r, s);
      }
    }
  }
  // -inf at masked keys. Chosen, not added: a masked key may hold anything, NaN included.
  vf seen_by_all(vf s, int64_t j) const {
    const vf seen = load(key_bias + j);
    return seen == 0.0f ? s : seen;
  }
  // -inf but for the lanes from `first` on that are before `end`.
  static vf within(vf s, int64_t first, int64_t end) {
    const vi lane = lane_numbers();
    const int32_t low = (int32_t)(first < 0 ? 0 : first > VL ? VL : first), high = (int32_t)(end < 0 ? 0 : end > VL ? VL : end);
    return (lane >= low) & (lane < high) ? s : splat(-kInf);
  }
  bool adds_terms() const { return p.slopes || p.mask || p.bias || p.softcap != 0.0f; }
  bool needed(int64_t column) const {  // for a tile that begins at this column
    if (key_bias || adds_terms()) return true;
    const int64_t j = block.start + column, at = block.first + p.causal_offset;
    return j + PANEL > p.Lk || j + PANEL > at + p.right || j < at + block.rows - p.left;
  }
};

// Rows of q or dO of a block as floats, padded to whole vectors and times `scale`; rows beyond the block are zero.
inline void load_rows(const AttentionProblem& p, const AttentionView& view, const Block& block, int64_t width, float scale,
                      int64_t tall, float* out) {
  const int64_t padded = round_up(width, VL);
  const int64_t first = block.b * view.batch + block.h * view.head + block.first * view.row;
  const bool is_whole = p.dtype == kFloat32 && width == padded;
  for (int64_t r = 0; r < block.rows; ++r) {
    const float* from = (const float*)view.data + first + r * view.row;
    if (is_whole)
      for (int64_t d = 0; d < width; d += VL) store(out + r * padded + d, load(from + d) * scale);
    else
      to_float32(view.data, p.dtype, first + r * view.row, width, padded, scale, out + r * padded);
  }
  for (int64_t r = block.rows; r < tall; ++r) zero_vectors(out + r * padded, padded);
}

// Rows of q times scale, for scores: a row that is not finite becomes NaN throughout.
inline void load_queries(const AttentionProblem& p, const Block& block, int64_t tall, float scale, float* out) {
  load_rows(p, p.q, block, p.D, scale, tall, out);
  each_not_finite(out, block.rows, padded_d(p), p.D, [&](int64_t r) {
    for (int64_t d = 0; d < p.D; ++d) out[r * padded_d(p) + d] = __builtin_nanf("");
  });
}

// Rows of q as `score_block` reads them.
inline void load_factor(const AttentionProblem& p, const Block& block, int64_t tall, float* out) {
  load_queries(p, block, tall, block.pairs ? 1.0f : p.scale, out);
  if (block.pairs) block.pairs->set_queries(out, block.rows);
}

// The maximum of a row of scores, or NaN if the row holds one or an infinite score.
inline float finite_max(vf best, uint32_t bad) {
  const float row_max = hmax(best);
  return bad || row_max == kInf ? __builtin_nanf("") : row_max;
}

// The same scores for at most kDecodeQueries queries, from k as it lies: transposing k would cost more than the products.
inline void decode_scores(const AttentionProblem& p, const Block& block, const RowTerms& terms, const float* q, float* scores,
                          int64_t ld, float* row_max) {
  const FloatRows k = rows_of(p, p.k, p.k_rows, p.D, block.b, block.g);
  const int64_t wide = padded_d(p);
  for (int64_t r = 0; r < block.rows; ++r) {
    vf best = splat(-kInf);
    bool bad = false;
    for (int64_t column = 0; column < block.keys; column += VL) {
      const int64_t j = block.start + column;
      vf sums[VL];
      for (int64_t n = 0; n < VL; ++n) {
        vf sum{};
        if (j + n < p.Lk)
          for (int64_t at = 0; at < wide; at += VL) sum += load(q + r * wide + at) * load(k.data + (j + n) * k.stride + at);
        sums[n] = sum;
      }
      vf s = sum_each(sums);
      uint32_t infinite = bits_greater(splat(-3.4e38f), s) | bits_greater(s, splat(3.4e38f));
      for (; infinite; infinite &= infinite - 1) {  // by a key that holds infinity, or by an overflow
        const int l = __builtin_ctz(infinite);
        if (!all_finite(k.data + (j + l) * k.stride, p.D)) s[l] = __builtin_nanf("");
      }
      s = terms.apply(s, r, column);
      store(scores + r * ld + column, s);
      best = vmax(s, best);
      bad |= any_nan(s);
    }
    row_max[r] = finite_max(best, bad);
  }
}

// The columns of a row that the solvers read: its keys, and a vector that begins with the sink.
inline int64_t solved_keys(const AttentionProblem& p, const Block& block) { return block.keys + (p.sinks ? VL : 0); }

// Writes the sink behind the keys of every row. A row that may attend to no key has none, so that it stays zero.
inline void add_sinks(const AttentionProblem& p, const Block& block, float* scores, int64_t ld, float* row_max) {
  const float sink = p.sinks[block.b * p.H + block.h];
  for (int64_t r = 0; r < block.rows; ++r) {
    vf behind = splat(-kInf);
    if (row_max[r] != -kInf) {
      behind[0] = sink;
      if (!(sink <= row_max[r])) row_max[r] = sink < kInf && row_max[r] == row_max[r] ? sink : __builtin_nanf("");
    }
    store(scores + r * ld + block.keys, behind);
  }
}

// Products of rows x of the block, the queries or grad_out, with the panels of its keys or values: use(tile, row, column). Where they are
// of pairs, they are those of what the block has as factors, times `scale`.
template <class Use>
inline void multiply_panels(const AttentionProblem& p, const Block& block, bool keys, const float* x, float scale,
                            const Use& use) {
  const int64_t size = keys ? p.D : p.E, depth = panel_depth(p, size), rows = round_up(block.rows, TILE);
  const float* panels = keys ? block.k_panels : block.v_panels;
  float* products = block.pairs ? block.pairs->panel : nullptr;
  for (int64_t r = block.rows; products && r < rows; ++r) zero_vectors(products + r * PANEL, PANEL);
  for (int64_t column = 0; column < block.keys; column += PANEL) {
    const int64_t j = block.start + column, across = panel_width(p, j), left = block.keys - column;
    const int64_t width = left < across ? left : across;
    const float* panel = panels + j * depth;
    if (!products) {
      multiply_all(rows, width, depth, x, round_up(size, VL), 1, panel, across, *block.ahead,
                   [&](const auto& tile, int64_t r, int64_t at) { use(tile, r, column + at); });
      continue;
    }
    block.pairs->panel_product(keys, block.rows, width, panel, across);
    for (int64_t r = 0; r < rows; r += TILE) {
      const float* from = products + r * PANEL;
      if (width == PANEL) {
        use(Tile<TILE, COLS>::scaled(from, PANEL, scale), r, column);
        continue;
      }
      for (int64_t at = 0; at < width; at += VL) use(Tile<TILE, 1>::scaled(from + at, PANEL, scale), r, column + at);
    }
  }
}

// scores (tall, ld), tall = block rows in whole tiles; row_max[r] = the row's maximum, or NaN; `cap_slopes`: see RowTerms.
inline void score_block(const AttentionProblem& p, const Block& block, const float* q, float* scores, int64_t ld,
                        float* row_max, float* cap_slopes) {
  const RowTerms terms{p, block, key_bias_of(p, block), cap_slopes, ld};
  if (p.is_decode) {
    decode_scores(p, block, terms, q, scores, ld, row_max);
    if (p.sinks) add_sinks(p, block, scores, ld, row_max);
    return;
  }
  vf best[kMostRows + TILE], not_finite{};  // NaN once such a score was seen, where no mask can have made it
  uint32_t bad[kMostRows + TILE] = {};
  for (int64_t r = 0; r < round_up(block.rows, TILE); ++r) best[r] = splat(-kInf);
  multiply_panels(p, block, true, q, p.scale, [&](const auto& t, int64_t r0, int64_t column) {
    float* to = scores + r0 * ld + column;
    t.store_to(to, ld);
    if (!terms.needed(column)) {
      t.each_max([&](int r, vf most) { best[r0 + r] = vmax(most, best[r0 + r]); });
      not_finite += t.zero_if_finite();
      return;
    }
    terms.apply_to(t, to, ld, r0, column, [&](int64_t r, vf s) {
      best[r] = vmax(s, best[r]);  // keeps the old one where s is NaN
      bad[r] |= bits_nan(s);
    });
  });
  for (int64_t r = 0; any_nan(not_finite) && r < block.rows; ++r)
    for (int64_t column = 0; column < block.keys; column += VL) bad[r] |= bits_nan(load(scores + r * ld + column));
  for (int64_t r = 0; r < block.rows; ++r) row_max[r] = finite_max(best[r], bad[r]);
  if (p.sinks) add_sinks(p, block, scores, ld, row_max);
}

// The same scores where the maxima are known and there is no sink.
inline void score_again(const AttentionProblem& p, const Block& block, const float* q, float* scores, int64_t ld,
                        float* cap_slopes) {
  const RowTerms terms{p, block, key_bias_of(p, block), cap_slopes, ld};
  multiply_panels(p, block, true, q, p.scale, [&](const auto& t, int64_t r0, int64_t column) {
    float* to = scores + r0 * ld + column;
    t.store_to(to, ld);
    if (terms.needed(column)) terms.apply_to(t, to, ld, r0, column, [](int64_t, vf) {});
  });
}

// The same product for v: out (tall, ld) = x v^T, with no bias.
inline void value_products(const AttentionProblem& p, const Block& block, const float* x, float* out, int64_t ld) {
  multiply_panels(p, block, false, x, 1.0f,
                  [&](const auto& t, int64_t r, int64_t column) { t.store_to(out + r * ld + column, ld); });
}

}  // namespace
