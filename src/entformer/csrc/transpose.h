// Transposes VL x VL floats in registers.
#pragma once

#include "simd.h"

namespace {

#if defined(__AVX512F__)
// VL x VL floats in place: at stage S, rows i and i+S exchange their off-diagonal blocks of S columns.
template <int S>
inline void transpose_stage(__m512* row) {
  struct Lanes {
    int32_t keep[16], take[16];
    constexpr Lanes() : keep{}, take{} {
      for (int l = 0; l < 16; ++l) {
        keep[l] = l & S ? 16 + l - S : l;
        take[l] = l & S ? 16 + l : l + S;
      }
    }
  };
  alignas(64) static constexpr Lanes lanes;
  const __m512i keep = _mm512_load_si512(lanes.keep), take = _mm512_load_si512(lanes.take);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    if (i & S) continue;
    const __m512 a = row[i], b = row[i + S];
    row[i] = _mm512_permutex2var_ps(a, keep, b);
    row[i + S] = _mm512_permutex2var_ps(a, take, b);
  }
}
inline void transpose(vf* block) {
  __m512 row[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) row[i] = (__m512)block[i];
  transpose_stage<1>(row);
  transpose_stage<2>(row);
  transpose_stage<4>(row);
  transpose_stage<8>(row);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) block[i] = (vf)row[i];
}
#elif defined(__AVX2__)
// 8 x 8 floats in place: pairs, then fours, then halves.
inline void transpose(vf* block) {
  __m256 t[8], u[8];
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps((__m256)block[i], (__m256)block[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps((__m256)block[i], (__m256)block[i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    block[i] = (vf)_mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
    block[i + 4] = (vf)_mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
  }
}
#else
inline void transpose(vf* block) {
  for (int i = 0; i < VL; ++i)
    for (int j = i + 1; j < VL; ++j) {
      const float a = block[i][j];
      block[i][j] = block[j][i];
      block[j][i] = a;
    }
}
#endif

}  // namespace
