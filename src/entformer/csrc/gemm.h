// One matrix product for all of attention, and the layouts it reads.
//
// tile(r, :) += sum_k a[r, k] b[k, :]   for TILE rows and PANEL columns kept in registers. `a` is read one number at a time with
// any strides, `b` one row of PANEL floats at a time; which tensor plays which part is the caller's choice:
//   scores = q k^T, dP = dO v^T : a = rows of q or dO, b = a panel of k or v (transposed once by pack_panel)
//   out = p v, dQ = dS k        : a = rows of weights, b = rows of v or k
//   dV = p^T dO, dK = dS^T q    : a = columns of weights, b = rows of dO or q
#pragma once

#include "ahead.h"
#include "convert.h"
#include "transpose.h"

namespace {

// A tile of R rows and C vectors: R * C accumulators, one row of b and one broadcast, 6*4+4+1 of 32 registers with AVX-512, 6*2+2+1 of 16
// with AVX2. Narrow ones are twice as tall, where there are registers for it, so that a row of b is read half as often.
constexpr int COLS = VL == 16 ? 4 : 2;
constexpr int TILE = VL >= 8 ? 6 : 4;
constexpr int64_t PANEL = COLS * VL;

template <int R, int C>
struct Tile {
  static constexpr int rows = R, vectors = C;
  vf at[R][C];

  static ENTFORMER_INLINE Tile scaled(const float* from, int64_t stride, float scale) {
    Tile t;
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) t.at[r][c] = load(from + r * stride + c * VL) * scale;
    return t;
  }
  // Calls use(row, vector, value) for all of it. Every loop over a tile is unrolled, or it would lie in memory instead of registers.
  template <class Use>
  ENTFORMER_INLINE void each(const Use& use) const {
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) use(r, c, at[r][c]);
  }
  // Calls use(row, the largest of its vectors, lane by lane).
  template <class Use>
  ENTFORMER_INLINE void each_max(const Use& use) const {
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      vf most = at[r][0];
#pragma GCC unroll 4
      for (int c = 1; c < C; ++c) most = vmax(at[r][c], most);
      use(r, most);
    }
  }
  // NaN in the lanes that hold a number that is not finite.
  ENTFORMER_INLINE vf zero_if_finite() const {
    vf zero{};
    each([&](int, int, vf value) { zero = fused(value, vf{}, zero); });
    return zero;
  }
  // To, or added to, rows that are `stride` floats apart.
  ENTFORMER_INLINE void store_to(float* to, int64_t stride) const {
    each([&](int r, int c, vf value) { store(to + r * stride + c * VL, value); });
  }
  ENTFORMER_INLINE void add_to(float* to, int64_t stride) const {
    each([&](int r, int c, vf value) { store(to + r * stride + c * VL, load(to + r * stride + c * VL) + value); });
  }
};

template <int R, int C>
ENTFORMER_INLINE Tile<R, C> multiply(int64_t depth, const float* a, int64_t a_row, int64_t a_depth, const float* b,
                                     int64_t b_depth, Ahead& ahead) {
  Tile<R, C> t{};
  const char *line = ahead.at, *row_end = ahead.row_end;
  const int64_t stride = ahead.stride, skip = ahead.skip;
  for (int64_t k = 0; k < depth; ++k, a += a_depth, b += b_depth) {
    __builtin_prefetch(line, 0, 2);  // to the second-level cache
    line += Ahead::kLine;
    if (line == row_end) line += skip, row_end += stride;
    vf bs[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) bs[c] = load(b + c * VL);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      vf ar = splat(a[r * a_row]);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) t.at[r][c] += ar * bs[c];
    }
  }
  ahead.at = line, ahead.row_end = row_end;
  ahead.advance(depth);
  return t;
}

// Calls use(tile, row, column) for tiles that cover `rows` rows, the last tile maybe beyond them, and `width` floats of b's rows.
template <class Use>
inline void multiply_all(int64_t rows, int64_t width, int64_t depth, const float* a, int64_t a_row, int64_t a_depth,
                         const float* b, int64_t b_depth, Ahead& ahead, const Use& use) {
  auto down = [&](auto vectors, int64_t at) {
    constexpr int C = decltype(vectors)::value, tall = COLS >= 2 * C ? 2 * TILE : TILE;
    int64_t r = 0;
    for (; r + tall <= rows; r += tall)
      use(multiply<tall, C>(depth, a + r * a_row, a_row, a_depth, b + at, b_depth, ahead), r, at);
    for (; r < rows; r += TILE) use(multiply<TILE, C>(depth, a + r * a_row, a_row, a_depth, b + at, b_depth, ahead), r, at);
  };
  int64_t at = 0;
  for (; at + PANEL <= width; at += PANEL) down(Constant<COLS>(), at);
  for (; at + 2 * VL <= width; at += 2 * VL) down(Constant<2>(), at);
  for (; at < width; at += VL) down(Constant<1>(), at);
}

// Sums along the keys are taken in parts of this many, which are then added: thousands of equal terms round alike, and one after the
// other they would lose the last digits of the sum one by one.
constexpr int64_t kPart = 256;

// out (rows, width) = weights (rows, depth) times b (depth, width), or added to it. `weights` and `out` have capacity for whole tiles of
// rows. A part of b stays in the cache for all rows.
inline void dense_product(const float* weights, int64_t ld, int64_t rows, int64_t depth, const float* b, int64_t b_stride,
                          int64_t width, float* out, Ahead& ahead, bool add = false) {
  for (int64_t k = 0; k == 0 || k < depth; k += kPart)
    multiply_all(rows, width, depth - k < kPart ? depth - k : kPart, weights + k, ld, 1, b + k * b_stride, b_stride, ahead,
                 [&](const auto& tile, int64_t r, int64_t at) {
                   if (k == 0 && !add)
                     tile.store_to(out + r * width + at, width);
                   else
                     tile.add_to(out + r * width + at, width);
                 });
}

// out (columns, width) += transpose of weights (depth, columns) times b (depth, width).
inline void dense_transposed_add(const float* weights, int64_t ld, int64_t columns, int64_t depth, const float* b,
                                 int64_t b_stride, int64_t width, float* out, int64_t out_stride, Ahead& ahead) {
  multiply_all(columns, width, depth, weights, 1, ld, b, b_stride, ahead, [&](const auto& tile, int64_t j, int64_t at) {
    const int64_t rows = tile.rows, wide = tile.vectors * VL;
    if (j + rows <= columns) return tile.add_to(out + j * out_stride + at, out_stride);
    float last[2 * TILE * PANEL];
    tile.store_to(last, wide);
    for (int64_t r = 0; j + r < columns; ++r)
      for (int64_t c = 0; c < wide; ++c) out[(j + r) * out_stride + at + c] += last[r * wide + c];
  });
}

// Rows (count <= across of them, `depth` long, `stride` apart) -> panel[depth][across]; missing rows become zeros. `across` is
// PANEL, or fewer whole vectors for the last panel: sentences are often shorter than one.
inline void pack_panel(const float* rows, int64_t stride, int64_t count, int64_t depth, float* panel, int64_t across) {
  int64_t k = 0;
#if defined(__AVX2__)
  for (; k + VL <= depth; k += VL) {
    for (int64_t j = 0; j < across; j += VL) {
      vf block[VL];
#pragma GCC unroll 16
      for (int64_t i = 0; i < VL; ++i) block[i] = j + i < count ? load(rows + (j + i) * stride + k) : vf{};
      transpose(block);
#pragma GCC unroll 16
      for (int64_t i = 0; i < VL; ++i) store(panel + (k + i) * across + j, block[i]);
    }
  }
#endif
  for (; k < depth; ++k)
    for (int64_t j = 0; j < across; ++j) panel[k * across + j] = j < count ? rows[j * stride + k] : 0.0f;
}

// Rows of long keys lie beyond the second-level cache and no processor foresees which comes next; they are prefetched
// kPrefetchDistance ahead.
constexpr int64_t kPrefetchDistance = 32;
inline void prefetch_row(const float* rows, int64_t stride, int64_t width, const int32_t* index, int64_t n, int64_t count) {
  if (n >= count) return;
  const float* row = rows + index[n] * stride;
  for (int64_t at = 0; at < width; at += 16) __builtin_prefetch(row + at, 1, 3);
}

// out[0:width] = sum_n weight[n] * rows[index[n]]; width a whole number of vectors.
template <int WIDE>
inline void gather_columns(const float* weight, const int32_t* index, int64_t count, const float* rows, int64_t stride,
                           float* out) {
  vf sum[WIDE] = {};
  for (int64_t first = 0; first < count; first += kPart) {
    const int64_t end = count - first < kPart ? count : first + kPart;
    vf part[WIDE] = {};
    for (int64_t n = first; n < end; ++n) {
      prefetch_row(rows, stride, WIDE * VL, index, n + kPrefetchDistance, count);
      const float* row = rows + index[n] * stride;
      vf w = splat(weight[n]);
#pragma GCC unroll 4
      for (int c = 0; c < WIDE; ++c) part[c] += w * load(row + c * VL);
    }
    for (int c = 0; c < WIDE; ++c) sum[c] += part[c];
  }
  for (int c = 0; c < WIDE; ++c) store(out + c * VL, sum[c]);
}
inline void gather_rows(const float* weight, const int32_t* index, int64_t count, const float* rows, int64_t stride,
                        int64_t width, float* out) {
  int64_t at = 0;
  for (; at + 4 * VL <= width; at += 4 * VL) gather_columns<4>(weight, index, count, rows + at, stride, out + at);
  for (; at + 2 * VL <= width; at += 2 * VL) gather_columns<2>(weight, index, count, rows + at, stride, out + at);
  for (; at < width; at += VL) gather_columns<1>(weight, index, count, rows + at, stride, out + at);
}

// rows[index[n]] += weight[n] * x
template <int WIDE>
inline void scatter_columns(const float* weight, const int32_t* index, int64_t count, const float* x, float* rows,
                            int64_t stride) {
  vf staged[WIDE];
  for (int c = 0; c < WIDE; ++c) staged[c] = load(x + c * VL);
  for (int64_t n = 0; n < count; ++n) {
    prefetch_row(rows, stride, WIDE * VL, index, n + kPrefetchDistance, count);
    float* row = rows + index[n] * stride;
    vf w = splat(weight[n]);
#pragma GCC unroll 4
    for (int c = 0; c < WIDE; ++c) store(row + c * VL, load(row + c * VL) + w * staged[c]);
  }
}
inline void scatter_rows(const float* weight, const int32_t* index, int64_t count, const float* x, int64_t width, float* rows,
                         int64_t stride) {
  int64_t at = 0;
  for (; at + 4 * VL <= width; at += 4 * VL) scatter_columns<4>(weight, index, count, x + at, rows + at, stride);
  for (; at + 2 * VL <= width; at += 2 * VL) scatter_columns<2>(weight, index, count, x + at, rows + at, stride);
  for (; at < width; at += VL) scatter_columns<1>(weight, index, count, x + at, rows + at, stride);
}

// out[n] = <x, rows[index[n]]>, VL of them at a time so that VL products share one reduction. Writes whole vectors.
inline void gather_dots(const float* x, const int32_t* index, int64_t count, const float* rows, int64_t stride, int64_t width,
                        float* out) {
  for (int64_t first = 0; first < count; first += VL) {
    vf sums[VL];
    const int64_t here = count - first < VL ? count - first : VL;
    for (int64_t n = 0; n < VL; ++n) {
      vf sum{};
      prefetch_row(rows, stride, width, index, first + n + kPrefetchDistance, count);
      if (n < here) {
        const float* row = rows + index[first + n] * stride;
        for (int64_t at = 0; at < width; at += VL) sum += load(x + at) * load(row + at);
      }
      sums[n] = sum;
    }
    store(out + first, sum_each(sums));
  }
}

}  // namespace
