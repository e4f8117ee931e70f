// k and v of one key head as the products read them: float rows, panels of transposed rows, and pairs of bfloat16.
#pragma once

#include "attention.h"
#include "pairs.h"
#include "scratch.h"

namespace {

// Whether n numbers are neither NaN nor infinite.
inline bool all_finite(const float* x, int64_t n) {
  vf sum[4] = {};  // of x - x, which is NaN for both; four, so that none waits for the one before
  int64_t i = 0;
  for (; i + 4 * VL <= n; i += 4 * VL)
    for (int c = 0; c < 4; ++c) sum[c] += load(x + i + c * VL) - load(x + i + c * VL);
  for (; i + VL <= n; i += VL) sum[0] += load(x + i) - load(x + i);
  if (i < n) {
    vf v = load_tail(x + i, n - i, 0.0f);
    sum[1] += v - v;
  }
  return !any_nan((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

// Calls use(row) for each of `count` rows, `stride` apart, that is not finite. Rows without space between them are first read as one.
template <class Use>
inline void each_not_finite(const float* rows, int64_t count, int64_t stride, int64_t width, const Use& use) {
  if (count == 0 || width == 0) return;  // there may be no memory
  if (stride - width < VL && all_finite(rows, (count - 1) * stride + width)) return;
  for (int64_t r = 0; r < count; ++r)
    if (!all_finite(rows + r * stride, width)) use(r);
}

// The keys of a batch from the first to the last that the key mask lets be attended: padding lies before or behind them.
struct KeyRange {
  int64_t first, end;
};
inline KeyRange attended_keys(const AttentionProblem& p, int64_t b) {
  KeyRange keys{0, p.Lk};
  if (!p.key_mask) return keys;
  const uint8_t* may = p.key_mask + b * p.all_keys;
  while (keys.end > 0 && !may[keys.end - 1]) --keys.end;
  while (keys.first < keys.end && !may[keys.first]) ++keys.first;
  return keys;
}

inline int64_t padded_keys(const AttentionProblem& p) { return round_up(p.Lk, VL); }
// How many keys the panel that begins at key j holds: the last one may be narrower.
inline int64_t panel_width(const AttentionProblem& p, int64_t j) {
  return padded_keys(p) - j < PANEL ? padded_keys(p) - j : PANEL;
}
// What makes a product NaN, as a factor of it: a pair of NaN of bfloat16 is one of float32, too.
inline float product_nan() {
  const uint32_t bits = 0x7fc07fc0u;
  float nan;
  memcpy(&nan, &bits, sizeof nan);
  return nan;
}
inline int64_t padded_d(const AttentionProblem& p) { return round_up(p.D, VL); }
inline int64_t padded_e(const AttentionProblem& p) { return round_up(p.E, VL); }

// Rows of k or v as floats: the tensor itself where it is float32 with whole vectors, else the prepared copy.
struct FloatRows {
  const float* data;
  int64_t stride;
};
inline FloatRows rows_of(const AttentionProblem& p, const AttentionView& view, const float* copy, int64_t width, int64_t b,
                         int64_t g) {
  if (!copy) return {(const float*)view.data + b * view.batch + g * view.head, view.row};
  const int64_t padded = round_up(width, VL);
  return {copy + (b * p.G + g) * p.Lk * padded, padded};
}

// Panels and float rows, each where a place for it is given, of one head of k or v. `staging` has capacity for three times PANEL padded rows. In
// panels of k a row that is not finite becomes NaN throughout, so that its scores are, whatever the query.
inline void pack_head(const AttentionProblem& p, const AttentionView& view, int64_t width, int64_t b, int64_t g, float* staging,
                      float* panels, float* copy, bool keys) {
  const int64_t padded = round_up(width, VL), depth = panel_depth(p, width);
  for (int64_t first = 0, end = attended_keys(p, b).end; first < end; first += PANEL) {
    const int64_t count = p.Lk - first < PANEL ? p.Lk - first : PANEL;
    const int64_t at = b * view.batch + g * view.head + first * view.row;
    const float* rows = (const float*)view.data + at;
    int64_t stride = view.row;
    if (copy || p.dtype != kFloat32) {
      rows = copy ? copy + first * padded : staging;
      stride = padded;
      for (int64_t j = 0; j < count; ++j)
        to_float32(view.data, p.dtype, at + j * view.row, width, padded, 1.0f, (float*)rows + j * padded);
    }
    if (!panels) continue;
    const int64_t across = panel_width(p, first);
    float* panel = panels + first * depth;
    if (p.products == Products::Float32) {
      pack_panel(rows, stride, count, width, panel, across);
    } else {
      float* pairs = staging + PANEL * padded;
      pair_rows(rows, stride, count, width, pair_parts(p), (uint32_t*)pairs, pair_depth(width));
      pack_panel(pairs, depth, count, depth, panel, across);
    }
    if (keys)
      each_not_finite(rows, count, stride, width, [&](int64_t j) {
        for (int64_t d = 0; d < depth; ++d) panel[d * across + j] = product_nan();
      });
  }
}

inline size_t staging_floats(const AttentionProblem& p) { return (size_t)(3 * PANEL * round_up(p.D > p.E ? p.D : p.E, VL)); }

// Fills those of k_panels, k_rows, v_rows and key_bias that the problem has, of the key heads [begin, end).
bool pack(const AttentionProblem& p, int64_t begin, int64_t end) {
  const int64_t keys = padded_keys(p);
  Scratch scratch(staging_floats(p) * sizeof(float));
  if (!scratch.data) return false;
  float* staging = (float*)scratch.data;
  for (int64_t task = begin; task < end; ++task) {
    const int64_t b = task / p.G, g = task % p.G;
    if (p.key_bias && g == 0)
      for (int64_t j = 0; j < keys; ++j) p.key_bias[b * keys + j] = j < p.Lk && p.key_mask[b * p.all_keys + j] ? 0.0f : -kInf;
    float* panels = p.k_panels ? p.k_panels + task * keys * panel_depth(p, p.D) : nullptr;
    if (panels || p.k_rows)
      pack_head(p, p.k, p.D, b, g, staging, panels, p.k_rows ? p.k_rows + task * p.Lk * padded_d(p) : nullptr, true);
    if (p.v_rows) pack_head(p, p.v, p.E, b, g, staging, nullptr, p.v_rows + task * p.Lk * padded_e(p), false);
  }
  return true;
}

// Panels of k or v that one thread makes of the key head in work when a block first needs them.
struct Panels {
  const AttentionProblem& p;
  bool keys;  // of k, else of v
  Scratch memory{};
  int64_t b = -1, g = -1;

  // Null if there is not enough memory.
  const float* of(int64_t b_of_block, int64_t g_of_block) {
    const int64_t width = keys ? p.D : p.E;
    if (!memory.data) memory.allocate((staging_floats(p) + (size_t)(padded_keys(p) * panel_depth(p, width))) * sizeof(float));
    if (!memory.data) return nullptr;
    float *staging = (float*)memory.data, *panels = staging + staging_floats(p);
    if (b != b_of_block || g != g_of_block)
      pack_head(p, keys ? p.k : p.v, width, b = b_of_block, g = g_of_block, staging, panels, nullptr, keys);
    return panels;
  }
};

// Rows of k or v of one key head as floats: the tensor itself where it has them, else the prepared copy, else one that this thread makes.
struct HeadRows {
  const AttentionProblem& p;
  bool keys;  // of k, else of v
  Scratch memory{};
  int64_t b = -1, g = -1;

  // Null data if there is not enough memory.
  FloatRows of(int64_t b_of_block, int64_t g_of_block) {
    const AttentionView& view = keys ? p.k : p.v;
    const int64_t width = keys ? p.D : p.E, padded = round_up(width, VL);
    const float* copy = keys ? p.k_rows : p.v_rows;
    if (copy || (p.dtype == kFloat32 && width == padded)) return rows_of(p, view, copy, width, b_of_block, g_of_block);
    if (!memory.data) memory.allocate((size_t)(p.Lk * padded) * sizeof(float));
    float* rows = (float*)memory.data;
    if (rows && (b != b_of_block || g != g_of_block)) {
      b = b_of_block, g = g_of_block;
      for (int64_t j = 0; j < p.Lk; ++j)
        to_float32(view.data, p.dtype, b * view.batch + g * view.head + j * view.row, width, padded, 1.0f, rows + j * padded);
    }
    return {rows, padded};
  }
};

// k or v as right factor of products along the keys (pairs.h).
struct PairedRows {
  const AttentionProblem& p;
  bool keys;  // of k, else of v
  Scratch memory{};
  int64_t b = -1, g = -1;

  // Makes it of the rows of a key head; false if there is not enough memory.
  bool prepare(const FloatRows& rows, int64_t b_of_block, int64_t g_of_block) {
    const int64_t padded = round_up(keys ? p.D : p.E, VL), depth = pair_depth(p.Lk), parts = pair_parts(p);
    if (!memory.data) memory.allocate((size_t)(parts * depth * padded) * sizeof(uint32_t));
    if (memory.data && (b != b_of_block || g != g_of_block)) {
      b = b_of_block, g = g_of_block;
      pair_columns(rows.data, rows.stride, p.Lk, padded, parts, (uint32_t*)memory.data, depth);
    }
    return memory.data;
  }
  // The factor from key `first` on, an even number.
  RightFactor from(int64_t first) const {
    const int64_t padded = round_up(keys ? p.D : p.E, VL);
    return {(const uint32_t*)memory.data + first / 2 * padded, padded, pair_depth(p.Lk) * padded};
  }
};

}  // namespace
