// Products of numbers in half precision with sums in float32, by AMX or AVX512-BF16: what gemm.h is for float32.
//
//   out (rows, width) = or += a (rows, depth) b (depth, width)
// Two numbers that follow each other along the depth lie in one 32-bit pair, since the instructions multiply and add two of them at once:
//   left factor a:  its rows, a number of pairs each           (rows, depth / 2)
//   right factor b: pairs of a row of b and the one below it   (depth / 2, width)
// Depths are padded with zeros to whole tiles of kTilePairs pairs. Numbers are of bfloat16, which has 8 bits, or the sum of two such parts, a
// rounded number and what rounding has taken from it: so float16, which has 11, is exact. Numbers below 1.2e-38 count as zero.
#pragma once

#include "gemm.h"

// Compilers that know the instructions; with scripts/emulate_avx512.h there are none.
#if defined(__AVX512F__) && !defined(ENTFORMER_EMULATED) && (defined(__clang__) ? __clang_major__ >= 12 : __GNUC__ >= 11)
#define ENTFORMER_HAS_PAIRS 1
#define ENTFORMER_BF16 __attribute__((target("avx512bf16")))
#define ENTFORMER_AMX __attribute__((target("avx512bf16,amx-tile,amx-bf16")))
#else
#define ENTFORMER_HAS_PAIRS 0
#endif

namespace {

constexpr int64_t kTilePairs = 16;  // of the depth
constexpr int64_t kTileRows = 16;

// A right factor: rows of pairs `stride` apart, and `part` from there to those of the second part. A left factor has its rows, all parts of each, behind each
// other.
struct RightFactor {
  const uint32_t* pairs;
  int64_t stride, part;
};

#if ENTFORMER_HAS_PAIRS

// Two vectors of floats as bfloat16, one behind the other, and what a vector loses by that.
ENTFORMER_BF16 inline __m512i rounded(__m512 first, __m512 second) { return (__m512i)_mm512_cvtne2ps_pbh(second, first); }
ENTFORMER_BF16 inline __m512 rest(__m512 x) {
  return x - (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(x)), 16);
}
// Calls use(part, its pairs) for one or two parts of two vectors.
template <class Use>
ENTFORMER_BF16 inline void each_part(__m512 first, __m512 second, int64_t parts, const Use& use) {
  use(0, rounded(first, second));
  if (parts == 2) use(1, rounded(rest(first), rest(second)));
}

// Left factor of rows of floats: row r, numbers 2 n and 2 n + 1 -> pair n. `depth` pairs a row, with zeros behind `width`, then as many of
// the second part.
ENTFORMER_BF16 void pair_rows(const float* rows, int64_t stride, int64_t count, int64_t width, int64_t parts, uint32_t* out,
                              int64_t depth) {
  for (int64_t r = 0; r < count; ++r, out += parts * depth)
    for (int64_t n = 0; n < depth; n += VL) {
      const float* from = rows + r * stride + 2 * n;
      const int64_t left = width - 2 * n;
      const __m512 first = left >= VL ? _mm512_loadu_ps(from) : left > 0 ? (__m512)load_tail(from, left, 0.0f) : __m512{};
      const __m512 second = left >= 2 * VL ? _mm512_loadu_ps(from + VL)
                            : left > VL    ? (__m512)load_tail(from + VL, left - VL, 0.0f)
                                           : __m512{};
      each_part(first, second, parts,
                [&](int64_t part, __m512i pairs) ENTFORMER_BF16 { _mm512_storeu_si512(out + part * depth + n, pairs); });
    }
}

// Right factor of `count` rows of floats: rows 2 n and 2 n + 1 -> row n of pairs. `depth` rows, zeros behind the last, then as many of the
// second part.
ENTFORMER_BF16 void pair_columns(const float* rows, int64_t stride, int64_t count, int64_t width, int64_t parts, uint32_t* out,
                                 int64_t depth) {
  struct Lanes {  // of two rows, number by number
    int16_t from[32];
    constexpr Lanes() : from{} {
      for (int l = 0; l < 32; ++l) from[l] = (int16_t)(l / 2 + l % 2 * 16);
    }
  };
  alignas(64) static constexpr Lanes lanes;
  for (int64_t n = 0; n < depth; ++n)
    for (int64_t at = 0; at < width; at += VL) {
      const float* from = rows + 2 * n * stride + at;
      const __m512 even = 2 * n < count ? _mm512_loadu_ps(from) : __m512{};
      const __m512 odd = 2 * n + 1 < count ? _mm512_loadu_ps(from + stride) : __m512{};
      each_part(even, odd, parts, [&](int64_t part, __m512i numbers) ENTFORMER_BF16 {
        _mm512_storeu_si512(out + (part * depth + n) * width + at,
                            _mm512_permutexvar_epi16(_mm512_load_si512(lanes.from), numbers));
      });
    }
}

// Left factor of the transpose of `count` rows of floats: column j -> row j, with `depth` pairs of numbers of two rows each, then as many
// of the second part.
ENTFORMER_BF16 void pair_transposed(const float* rows, int64_t stride, int64_t count, int64_t columns, int64_t parts,
                                    uint32_t* out, int64_t depth) {
  for (int64_t j = 0; j < columns; j += VL)
    for (int64_t n = 0; n < depth; n += VL) {
      vf block[2][VL];
      for (int64_t half = 0; half < 2; ++half) {
        const int64_t first = 2 * n + half * VL;
#pragma GCC unroll 16
        for (int64_t i = 0; i < VL; ++i) block[half][i] = first + i < count ? load(rows + (first + i) * stride + j) : vf{};
        transpose(block[half]);
      }
      for (int64_t i = 0; i < VL; ++i)
        each_part((__m512)block[0][i], (__m512)block[1][i], parts, [&](int64_t part, __m512i pairs) ENTFORMER_BF16 {
          _mm512_storeu_si512(out + ((j + i) * parts + part) * depth + n, pairs);
        });
    }
}

// Where a product of `tall` rows goes, of which `rows` are asked for: out, or memory for all of them, from which `finish` copies.
struct TileRows {
  float *out, *to;
  int64_t out_stride, stride, rows, wide;
  ENTFORMER_INLINE TileRows(int64_t rows_, int64_t tall, int64_t wide_, float* out_, int64_t out_stride_, float* all, bool add)
      : out(out_), to(rows_ < tall ? all : out_), out_stride(out_stride_), stride(rows_ < tall ? wide_ : out_stride_) {
    rows = rows_, wide = wide_;
    for (int64_t r = 0; to != out && add && r < rows; ++r) copy_vectors(to + r * stride, out + r * out_stride, wide);
  }
  ENTFORMER_INLINE void finish() const {
    for (int64_t r = 0; to != out && r < rows; ++r) copy_vectors(out + r * out_stride, to + r * stride, wide);
  }
};
constexpr int64_t kTileFloats = 2 * kTileRows * 4 * VL;  // at most

// M * 16 rows and N * 16 columns in tiles 0 to 3; tiles 4 and 5 are of `a`, 6 and 7 of `b`.
template <int M, int N>
ENTFORMER_AMX inline void amx_tiles(int64_t depth, int64_t parts, int terms, const uint32_t* left, const uint32_t* right,
                                    int64_t b_stride, int64_t b_part, float* out, int64_t stride, bool add) {
  const int64_t a_stride = parts * depth;
  const size_t a_bytes = (size_t)a_stride * 4, b_bytes = (size_t)b_stride * 4, bytes = (size_t)stride * 4;
  float* below = out + kTileRows * stride;
  if (add) {
    _tile_loadd(0, out, bytes);
    if constexpr (N > 1) _tile_loadd(1, out + kTileRows, bytes);
    if constexpr (M > 1) _tile_loadd(2, below, bytes);
    if constexpr (M > 1 && N > 1) _tile_loadd(3, below + kTileRows, bytes);
  } else {
    _tile_zero(0);
    if constexpr (N > 1) _tile_zero(1);
    if constexpr (M > 1) _tile_zero(2);
    if constexpr (M > 1 && N > 1) _tile_zero(3);
  }
  for (int term = 0; term < terms; ++term) {  // first first, second first, first second, second second
    const uint32_t *a = left + (term & 1 ? depth : 0), *b = right + (term & 2 ? b_part : 0);
    for (int64_t n = 0; n < depth; n += kTilePairs, a += kTilePairs, b += kTilePairs * b_stride) {
      _tile_loadd(4, a, a_bytes);
      _tile_loadd(6, b, b_bytes);
      _tile_dpbf16ps(0, 4, 6);
      if constexpr (N > 1) {
        _tile_loadd(7, b + kTileRows, b_bytes);
        _tile_dpbf16ps(1, 4, 7);
      }
      if constexpr (M > 1) {
        _tile_loadd(5, a + kTileRows * a_stride, a_bytes);
        _tile_dpbf16ps(2, 5, 6);
      }
      if constexpr (M > 1 && N > 1) _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, out, bytes);
  if constexpr (N > 1) _tile_stored(1, out + kTileRows, bytes);
  if constexpr (M > 1) _tile_stored(2, below, bytes);
  if constexpr (M > 1 && N > 1) _tile_stored(3, below + kTileRows, bytes);
}

// Numbers, not a RightFactor: two of them would be read at once right after they were stored one by one, and wait for all stores before.
ENTFORMER_AMX void amx_product(int64_t rows, int64_t width, int64_t depth, int64_t parts, int terms, const uint32_t* a,
                               const uint32_t* b, int64_t b_stride, int64_t b_part, float* out, int64_t stride, bool add) {
  float all[kTileFloats];
  for (int64_t r = 0; r < rows; r += 2 * kTileRows) {
    const uint32_t* left = a + r * parts * depth;
    const bool tall = rows - r > kTileRows;
    for (int64_t at = 0; at < width; at += 2 * kTileRows) {
      const bool wide = width - at > kTileRows;
      const TileRows tile(rows - r, tall ? 2 * kTileRows : kTileRows, wide ? 2 * kTileRows : kTileRows, out + r * stride + at,
                          stride, all, add);
      if (tall && wide)
        amx_tiles<2, 2>(depth, parts, terms, left, b + at, b_stride, b_part, tile.to, tile.stride, add);
      else if (tall)
        amx_tiles<2, 1>(depth, parts, terms, left, b + at, b_stride, b_part, tile.to, tile.stride, add);
      else if (wide)
        amx_tiles<1, 2>(depth, parts, terms, left, b + at, b_stride, b_part, tile.to, tile.stride, add);
      else
        amx_tiles<1, 1>(depth, parts, terms, left, b + at, b_stride, b_part, tile.to, tile.stride, add);
      tile.finish();
    }
  }
}

// R rows and C vectors, as `multiply` of gemm.h.
template <int R, int C>
ENTFORMER_BF16 inline void bf16_tile(int64_t depth, const uint32_t* a, int64_t a_stride, const uint32_t* b, int64_t b_stride,
                                     float* out, int64_t stride, bool add) {
  __m512 sum[R][C];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) sum[r][c] = add ? _mm512_loadu_ps(out + r * stride + c * VL) : __m512{};
  for (int64_t n = 0; n < depth; ++n, b += b_stride) {
    __m512bh right[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) right[c] = (__m512bh)_mm512_loadu_si512(b + c * VL);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const __m512bh left = (__m512bh)_mm512_set1_epi32((int32_t)a[r * a_stride + n]);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) sum[r][c] = _mm512_dpbf16_ps(sum[r][c], left, right[c]);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) _mm512_storeu_ps(out + r * stride + c * VL, sum[r][c]);
}

template <int C>
ENTFORMER_BF16 inline void bf16_columns(int64_t rows, int64_t depth, const uint32_t* a, const uint32_t* b, int64_t b_stride,
                                        float* out, int64_t stride, bool add) {
  constexpr int tall = COLS >= 2 * C ? 2 * TILE : TILE;
  float all[kTileFloats];
  for (int64_t r = 0; r < rows; r += tall) {
    const TileRows tile(rows - r, tall, C * VL, out + r * stride, stride, all, add);
    bf16_tile<tall, C>(depth, a + r * depth, depth, b, b_stride, tile.to, tile.stride, add);
    tile.finish();
  }
}

// For numbers of one part.
ENTFORMER_BF16 void bf16_product(int64_t rows, int64_t width, int64_t depth, const uint32_t* a, const uint32_t* b,
                                 int64_t b_stride, float* out, int64_t stride, bool add) {
  int64_t at = 0;
  for (; at + PANEL <= width; at += PANEL) bf16_columns<COLS>(rows, depth, a, b + at, b_stride, out + at, stride, add);
  for (; at + 2 * VL <= width; at += 2 * VL) bf16_columns<2>(rows, depth, a, b + at, b_stride, out + at, stride, add);
  for (; at < width; at += VL) bf16_columns<1>(rows, depth, a, b + at, b_stride, out + at, stride, add);
}

// While one is alive, the tiles of this thread have 16 rows of 64 bytes each.
class TileState {
 public:
  explicit TileState(Products products) : configured(products == Products::Amx) {
    if (configured) configure();
  }
  ~TileState() {
    if (configured) release();
  }
  TileState(const TileState&) = delete;
  TileState& operator=(const TileState&) = delete;

 private:
  struct Config {
    uint8_t palette = 1, start_row = 0, reserved[14]{};
    uint16_t row_bytes[16]{};
    uint8_t rows[16]{};
    constexpr Config() {
      for (int t = 0; t < 8; ++t) row_bytes[t] = 64, rows[t] = kTileRows;
    }
  };
  bool configured;
  ENTFORMER_AMX static void configure() {
    alignas(64) static constexpr Config config;  // a constant: gcc's intrinsic does not say that it reads all of it
    _tile_loadconfig(&config);
  }
  ENTFORMER_AMX static void release() { _tile_release(); }
};

// The product at the top of this file: `rows` rows are written, `width` floats each, a whole number of vectors; `depth` is in pairs. Of the
// four products of two parts the first `terms` are added. `a` has capacity for 2 * kTileRows rows behind its last tile.
inline void pair_product(Products products, int64_t rows, int64_t width, int64_t depth, int64_t parts, int terms,
                         const uint32_t* a, const RightFactor& b, float* out, int64_t stride, bool add) {
  if (products == Products::Amx)
    amx_product(rows, width, depth, parts, terms, a, b.pairs, b.stride, b.part, out, stride, add);
  else
    bf16_product(rows, width, depth, a, b.pairs, b.stride, out, stride, add);
}

#else

inline void pair_rows(const float*, int64_t, int64_t, int64_t, int64_t, uint32_t*, int64_t) {}
inline void pair_columns(const float*, int64_t, int64_t, int64_t, int64_t, uint32_t*, int64_t) {}
inline void pair_transposed(const float*, int64_t, int64_t, int64_t, int64_t, uint32_t*, int64_t) {}
inline void pair_product(Products, int64_t, int64_t, int64_t, int64_t, int, const uint32_t*, const RightFactor&, float*,
                         int64_t, bool) {}
struct TileState {
  explicit TileState(Products) {}
};

#endif

}  // namespace
