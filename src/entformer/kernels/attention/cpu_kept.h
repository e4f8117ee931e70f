// What forward keeps of a row's support, so that backward need not find it again. In: columns and weights. Out: `room` bytes.
//
// Weights and columns where both fit; columns alone, as gaps of one byte, where these do, and their scores are computed again: here
// to the bit, over long keys (cpu_runs.h) to rounding; else nothing, and backward computes the whole block again. So memory grows
// with Lq, and time jumps late.
#pragma once

#include "cpu_weights.h"

namespace {

enum Kept { kNothing, kColumns, kAll };

inline int64_t column_bytes(const AttentionProblem& p) { return p.Lk <= 65536 ? 2 : 4; }

// A gap byte below kSkip says how many keys without weight come before the next column; kSkip says kSkip of them, and no column yet.
constexpr int64_t kSkip = 255;

inline Kept kept_of(const AttentionProblem& p, const Mapping& m, float top, int64_t count) {
  if (count * (column_bytes(p) + 4) <= p.room) return kAll;
  // Rows that the float64 solver served cannot be told from their scores and lam.
  return count + p.Lk / kSkip <= p.room && !m.in_double && top - top == 0.0f ? kColumns : kNothing;
}

// What the support does not fill is zero: outputs of an operator should not depend on what memory held before.
inline void keep_support(const AttentionProblem& p, Kept what, const int32_t* columns, const float* weights, int64_t count, uint8_t* to) {
  if (p.room == 0) return;
  const uint8_t* end = to + p.room;
  if (what == kAll) {
    memcpy(to, weights, (size_t)count * sizeof(float));
    to += count * sizeof(float);
    if (column_bytes(p) == 4) memcpy(to, columns, (size_t)count * sizeof(int32_t));
    else
      for (int64_t i = 0; i < count; ++i) {
        const uint16_t column = (uint16_t)columns[i];
        memcpy(to + 2 * i, &column, sizeof column);  // `room` may be odd
      }
    to += count * column_bytes(p);
  } else if (what == kColumns) {
    int64_t next = 0;
    for (int64_t i = 0; i < count; ++i) {
      for (; columns[i] - next >= kSkip; next += kSkip) *to++ = kSkip;
      *to++ = (uint8_t)(columns[i] - next);
      next = columns[i] + 1;
    }
  }
  memset(to, 0, (size_t)(end - to));
}

// Scores of one query at some keys: the bits that score_block gives, since products are added in the order of `multiply` (or of
// score_few). Writes whole vectors.
inline void scores_at(const AttentionProblem& p, const Block& block, int64_t r, const float* q, const FloatRows& k, const int32_t* columns,
                      int64_t count, float* out) {
  if (block.few) gather_dots(q, columns, count, k.data, k.stride, padded_d(p), out);
  for (int64_t first = 0; first < count; first += VL) {
    vi column;
    const float* rows[VL];
    for (int l = 0; l < VL; ++l) {
      column[l] = columns[first + l < count ? first + l : first];
      rows[l] = k.data + column[l] * k.stride;
    }
    vf sum{};
    int64_t d = block.few ? p.D : 0;
    if (block.few) sum = load(out + first);
#if defined(__AVX512F__)
    for (; d + 16 <= p.D; d += 16) {
      __m512 part[16];
#pragma GCC unroll 16
      for (int l = 0; l < 16; ++l) part[l] = _mm512_loadu_ps(rows[l] + d);
      transpose16(part);
#pragma GCC unroll 16
      for (int l = 0; l < 16; ++l) sum += splat(q[d + l]) * (vf)part[l];
    }
#endif
    for (; d < p.D; ++d) {
      vf part;
      for (int l = 0; l < VL; ++l) part[l] = rows[l][d];
      sum += splat(q[d]) * part;
    }
    store(out + first, p.slopes ? alibi(p, block, (int32_t)r - vi{}, column, sum) : sum);
  }
}

// The columns of a kept support, and its weights if they were kept. Bytes that forward did not write lead to some column, never beyond.
inline void recall_columns(const AttentionProblem& p, Kept what, const uint8_t* from, int64_t count, int32_t* columns, float* weights) {
  if (count == 0) return;
  const int32_t last = (int32_t)p.Lk - 1;
  auto within = [last](int32_t column) { return column < 0 || column > last ? last : column; };
  if (what == kAll) {
    memcpy(weights, from, (size_t)count * sizeof(float));
    from += count * sizeof(float);
    if (column_bytes(p) == 4) memcpy(columns, from, (size_t)count * sizeof(int32_t));
    else
      for (int64_t i = 0; i < count; ++i) {
        uint16_t column;
        memcpy(&column, from + 2 * i, sizeof column);
        columns[i] = column;
      }
    for (int64_t i = 0; i < count; ++i) columns[i] = within(columns[i]);
    return;
  }
  const uint8_t* end = from + p.room;
  int64_t next = 0;
  for (int64_t i = 0; i < count; ++i) {
    for (; from < end && *from == kSkip; ++from) next += kSkip;
    columns[i] = within(from < end ? (int32_t)(next + *from++) : last);
    next = columns[i] + 1;
  }
}

// The weights of a row in place of its scores on the support. Reads and writes whole vectors.
inline void weights_of(const Mapping& m, const RowState& state, int64_t count, float* scores) {
  if (!m.rela && double_weights(m, round_up(count, VL), state, scores, scores, nullptr)) return;
  const float base = m.rela ? 0.0f : state.top, further = m.rela ? 0.0f : state.lam;
  with_weight(m, [&](const auto& weight) {
    for (int64_t i = 0; i < count; i += VL) store(scores + i, weight((load(scores + i) - base) - further));
  });
}

// The kept support of a row as columns and weights. `scaled` is its query times scale.
inline void recall_support(const AttentionProblem& p, const Mapping& m, const Block& block, int64_t r, Kept what, const uint8_t* from,
                           int64_t count, const RowState& state, const float* scaled, const FloatRows& k, int32_t* columns,
                           float* weights) {
  recall_columns(p, what, from, count, columns, weights);
  if (what == kAll) return;
  scores_at(p, block, r, scaled, k, columns, count, weights);
  weights_of(m, state, count, weights);
}

}  // namespace
