// The support of a row as forward saves it in the reserve for backward.
//
// SavedFormat (dispatch.h): the weights of all keys of the block; columns and weights of the support; columns alone, as gaps of one byte,
// whose scores are computed again; or nothing, and backward computes the scores of the whole block again. So memory grows with Lq, and
// time only for rows of large supports.
#pragma once

#include "attention_weights.h"
#include "row_gradient.h"

namespace {

inline int64_t column_bytes(const Block& block) { return block.most_keys <= 65536 ? 2 : 4; }

inline SavedFormat saved_format(const AttentionProblem& p, const Block& block, bool in_double, float row_max,
                                int64_t support_size) {
  struct {
    int64_t support_size, block_keys, keys, column_bytes, reserve_bytes;
    bool in_double;  // the float64 solver's weights do not follow from scores and threshold
    bool has_sink;
    float row_max;
  } c{support_size, block.keys, block.most_keys, column_bytes(block), p.reserve_bytes, in_double, p.sinks != nullptr, row_max};
  return choose_saved_format(c);
}

// The supports of a block. A dense block goes backward as matrices, for which supports are of use only if all weights are among them: else
// none is saved. Forward and backward find the same from the same sizes.
struct BlockSupports : Density {
  bool all_saved = true, all_weights_saved = true;
  BlockSupports(const AttentionProblem& p, const Block& block) : Density(p, block) {
    weights = (double)(block.rows * block.keys);
  }

  void add(const AttentionProblem& p, const Block& block, bool in_double, float row_max, int64_t support_size) {
    const SavedFormat format = saved_format(p, block, in_double, row_max, support_size);
    nonzero += (double)support_size;
    all_saved &= format != SavedFormat::Nothing;
    all_weights_saved &= format == SavedFormat::Row || format == SavedFormat::Weights;
  }
  bool are_saved() const { return all_weights_saved || choose_output(*this) == OutputPath::Sparse; }
};

// A gap byte below kColumnSkip is the number of zero weights before the next column; kColumnSkip stands for that many, and no column yet.
// What the support does not fill is zero: outputs of an operator do not depend on uninitialized memory.
inline void save_support(const AttentionProblem& p, const Block& block, SavedFormat format, const int32_t* columns,
                         const float* weights, int64_t count, uint8_t* to) {
  if (p.reserve_bytes == 0) return;
  const uint8_t* end = to + p.reserve_bytes;
  if (format == SavedFormat::Weights) {
    memcpy(to, weights, (size_t)count * sizeof(float));
    to += count * sizeof(float);
    if (column_bytes(block) == 4)
      memcpy(to, columns, (size_t)count * sizeof(int32_t));
    else
      for (int64_t i = 0; i < count; ++i) {
        const uint16_t column = (uint16_t)columns[i];
        memcpy(to + 2 * i, &column, sizeof column);  // maybe unaligned
      }
    to += count * column_bytes(block);
  } else if (format == SavedFormat::Columns) {
    int64_t next = 0;
    for (int64_t i = 0; i < count; ++i) {
      for (; columns[i] - next >= kColumnSkip; next += kColumnSkip) *to++ = kColumnSkip;
      *to++ = (uint8_t)(columns[i] - next);
      next = columns[i] + 1;
    }
  }
  memset(to, 0, (size_t)(end - to));
}

// The same where the weights of all `keys` are saved: `row` holds them, or is null, and they are those of the support.
inline void save_row(const AttentionProblem& p, const float* row, int64_t keys, const int32_t* columns, const float* weights,
                     int64_t count, uint8_t* to) {
  float* all = (float*)to;
  const int64_t rest = p.reserve_bytes - keys * (int64_t)sizeof(float);
  if (rest > 0) memset(all + keys, 0, (size_t)rest);
  if (row) return copy_vectors(all, row, keys);
  zero_vectors(all, keys);
  for (int64_t i = 0; i < count; ++i) all[columns[i]] = weights[i];
}

// The columns of a saved support, and its weights in the format that has them. Arbitrary bytes give columns within the block.
inline void load_columns(const AttentionProblem& p, const Block& block, SavedFormat format, const uint8_t* from, int64_t count,
                         int32_t* columns, float* weights) {
  if (count == 0) return;
  const int32_t last = (int32_t)block.real_keys - 1;
  auto within = [last](int32_t column) { return column < 0 || column > last ? last : column; };
  if (format == SavedFormat::Row) {
    int64_t there = compact_weights((const float*)from, block.keys, columns, weights);
    for (; there < count; ++there) columns[there] = last, weights[there] = 0.0f;
    for (int64_t i = 0; i < count; ++i) columns[i] = within(columns[i]);
    return;
  }
  if (format == SavedFormat::Weights) {
    memcpy(weights, from, (size_t)count * sizeof(float));
    from += count * sizeof(float);
    if (column_bytes(block) == 4)
      memcpy(columns, from, (size_t)count * sizeof(int32_t));
    else
      for (int64_t i = 0; i < count; ++i) {
        uint16_t column;
        memcpy(&column, from + 2 * i, sizeof column);
        columns[i] = column;
      }
    for (int64_t i = 0; i < count; ++i) columns[i] = within(columns[i]);
    return;
  }
  const uint8_t* end = from + p.reserve_bytes;
  int64_t next = 0;
  for (int64_t i = 0; i < count; ++i) {
    for (; from < end && *from == kColumnSkip; ++from) next += kColumnSkip;
    columns[i] = within(from < end ? (int32_t)(next + *from++) : last);
    next = columns[i] + 1;
  }
}

// The saved weights of all keys of a block, zeros included, of a row that saved them in one form or the other.
inline void load_row(const AttentionProblem& p, const HeadNormalizer& m, const Block& block, const RowState& state,
                     const uint8_t* from, int64_t count, int32_t* columns, float* weights, float* row) {
  const SavedFormat format = saved_format(p, block, m.in_double, state.row_max, count);
  if (format == SavedFormat::Row) {
    copy_vectors(row, (const float*)from, block.keys);
    return;
  }
  load_columns(p, block, format, from, count, columns, weights);
  memset(row, 0, (size_t)block.keys * sizeof(float));
  for (int64_t i = 0; i < count; ++i) row[columns[i]] = weights[i];
}

// The weights of `count` scores of a support. Reads and writes whole vectors; `out` may be the scores.
inline void support_weights(const HeadNormalizer& m, const RowState& state, int64_t count, const float* scores, float* out) {
  if (double_weights(m, round_up(count, VL), state, scores, out, nullptr)) return;
  const float base = state.base(m);
  with_weight(m, state, [&](const auto& weight) {
    for (int64_t i = 0; i < count; i += VL) store(out + i, weight(load(scores + i) - base));
  });
}

// The weight of the sink of a head in one of its rows; alpha is at most 2, or the row has no key with weight, so that it is of no use.
inline float sink_weight(const AttentionProblem& p, const HeadNormalizer& m, const Block& block, const RowState& state) {
  if (m.in_double || !(state.row_max - state.row_max == 0.0f)) return 0.0f;
  float vector[VL];
  store(vector, splat(p.sinks[block.b * p.H + block.h]));
  support_weights(m, state, VL, vector, vector);
  return vector[0];
}

// The scores of row r at some columns, as in `score_block`, which these keys have passed. `cap_slopes` as there, or null.
inline void support_scores(const AttentionProblem& p, const Block& block, int64_t r, const float* query, const FloatRows& k,
                           const int32_t* columns, int64_t count, float* scores, float* cap_slopes) {
  gather_dots(query, columns, count, k.data + block.start * k.stride, k.stride, padded_d(p), scores);
  for (int64_t i = 0; i < count; i += VL) {
    vi column;
    for (int l = 0; l < VL; ++l) column[l] = columns[i + l < count ? i + l : i];
    vf s = load(scores + i);
    if (p.softcap != 0.0f) {
      vf bounded = vtanh(s * (1.0f / p.softcap));
      if (cap_slopes) store(cap_slopes + i, 1.0f - bounded * bounded);
      s = p.softcap * bounded;
    }
    if (p.bias)
      for (int l = 0; l < VL; ++l) s[l] += *bias_at(p, block, block.first + r, column[l]);
    if (p.slopes) s = alibi(p, block, (int32_t)r - vi{}, column, s);
    store(scores + i, s);
  }
}

// The saved support of row r of a block: columns and weights. `query` is its query times scale, `scratch` holds the row in whole vectors.
// Scores that are computed again are summed in another order than in forward, so their threshold is a rounding away too: one Newton
// step on S = sum p follows it, also where a long row of equal scores moved as one. `state` is moved with it.
inline void load_support(const AttentionProblem& p, const HeadNormalizer& m, const Block& block, int64_t r, RowState& state,
                         const uint8_t* from, int64_t count, const float* query, const FloatRows& k, int32_t* columns,
                         float* weights, float* scratch) {
  const SavedFormat format = saved_format(p, block, m.in_double, state.row_max, count);
  load_columns(p, block, format, from, count, columns, weights);
  if (format == SavedFormat::Row || format == SavedFormat::Weights) return;
  support_scores(p, block, r, query, k, columns, count, weights, nullptr);
  if (m.sums_to_one()) {
    support_weights(m, state, count, weights, scratch);
    auto slope_at = [&](vf weight) {
      vf unused;
      return m.alpha_case == AlphaCase::General ? slopes_and_alpha(weight, (float)m.e, false, unused)
                                                : slope_of(m.alpha_case, weight);
    };
    double S = 0.0, W = 0.0;
    for (int64_t first = 0; first < count; first += kSumBlock) {
      vf sum{}, slopes{};
      for (int64_t i = first; i < count && i < first + kSumBlock; i += VL) {
        vf weight = i + VL <= count ? load(scratch + i) : load_tail(scratch + i, count - i, 0.0f);
        sum += weight;
        slopes += slope_at(weight);
      }
      S += hsum(sum);
      W += hsum(slopes);
    }
    if (p.sinks) {
      const float sink = sink_weight(p, m, block, state);
      S += sink;
      W += slope_at(splat(sink))[0];
    }
    const double threshold = state.threshold + (W > 0.0 ? (S - 1.0) / W : 0.0);
    state.threshold = marked(threshold, state.is_fine());
  }
  support_weights(m, state, count, weights, weights);
}

}  // namespace
