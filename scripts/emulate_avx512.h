// The AVX-512 intrinsics that the kernels use, as plain loops, so that their AVX-512 code runs on processors without it:
//   CXX="g++ -mavx2 -mfma -mf16c -include scripts/emulate_avx512.h" RUN=env scripts/cross_compile.sh
#pragma once

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define __AVX512F__ 1
#define ENTFORMER_EMULATED

namespace emulated {

typedef float v16 __attribute__((vector_size(64)));
typedef int32_t i16 __attribute__((vector_size(64)));

inline v16 loaded(const void* p) {
  v16 v;
  memcpy(&v, p, sizeof v);
  return v;
}
template <class Lane>
inline __m512 lanes(const Lane& lane) {
  v16 v;
  for (int i = 0; i < 16; ++i) v[i] = lane(i);
  return (__m512)v;
}
template <class Lane>
inline __mmask16 bits(const Lane& lane) {
  uint32_t found = 0;
  for (int i = 0; i < 16; ++i) found |= (uint32_t)(lane(i) ? 1 : 0) << i;
  return (__mmask16)found;
}

inline __m512 mask_loadu(__m512 src, __mmask16 k, const float* p) {
  return lanes([&](int i) { return k >> i & 1 ? p[i] : ((v16)src)[i]; });
}
inline void mask_storeu(float* p, __mmask16 k, __m512 v) {
  for (int i = 0; i < 16; ++i)
    if (k >> i & 1) p[i] = ((v16)v)[i];
}
inline __m512 greater(__m512 a, __m512 b) {  // the second where either is NaN
  return lanes([&](int i) { return ((v16)a)[i] > ((v16)b)[i] ? ((v16)a)[i] : ((v16)b)[i]; });
}
inline __m512 smaller(__m512 a, __m512 b) {
  return lanes([&](int i) { return ((v16)a)[i] < ((v16)b)[i] ? ((v16)a)[i] : ((v16)b)[i]; });
}
inline __m512 root(__m512 a) {
  return lanes([&](int i) { return sqrtf(((v16)a)[i]); });
}
inline __m512 rcp14(__m512 a) {  // rounded to 14 bits
  return lanes([&](int i) {
    float r = 1.0f / ((v16)a)[i];
    uint32_t b;
    memcpy(&b, &r, 4);
    if ((b & 0x7f800000u) != 0x7f800000u) b = (b + 0x100u) & ~0x1ffu;
    memcpy(&r, &b, 4);
    return r;
  });
}
inline __mmask16 compared(__m512 a, __m512 b, int how) {
  return bits([&](int i) {
    const float x = ((v16)a)[i], y = ((v16)b)[i];
    return how == _CMP_GT_OQ ? x > y : x != x || y != y;  // _CMP_UNORD_Q
  });
}
inline __m512 blended(__mmask16 k, __m512 a, __m512 b) {
  return lanes([&](int i) { return k >> i & 1 ? ((v16)b)[i] : ((v16)a)[i]; });
}
inline __m512 fused(__m512 a, __m512 b, __m512 c) {
  return lanes([&](int i) { return fmaf(((v16)a)[i], ((v16)b)[i], ((v16)c)[i]); });
}
inline __m512 shuffled(__m512 a, __m512 b, int how) {  // within each 128 bits: two of a, two of b
  return lanes([&](int i) {
    const int from = i / 4 * 4 + (how >> (2 * (i % 4)) & 3);
    return i % 4 < 2 ? ((v16)a)[from] : ((v16)b)[from];
  });
}
inline __m512 shuffled_fours(__m512 a, __m512 b, int how) {
  return lanes([&](int i) {
    const int from = (how >> (2 * (i / 4)) & 3) * 4 + i % 4;
    return i < 8 ? ((v16)a)[from] : ((v16)b)[from];
  });
}
inline float reduced_max(__m512 a) {
  float most = ((v16)a)[0];
  for (int i = 1; i < 16; ++i) most = ((v16)a)[i] > most ? ((v16)a)[i] : most;
  return most;
}
inline __m512 expanded(__mmask16 k, __m512 a) {
  int next = 0;
  return lanes([&](int i) { return k >> i & 1 ? ((v16)a)[next++] : 0.0f; });
}
inline __m512 compressed(__mmask16 k, __m512 a) {
  v16 v{};
  for (int i = 0, next = 0; i < 16; ++i)
    if (k >> i & 1) v[next++] = ((v16)a)[i];
  return (__m512)v;
}
inline __m512 permuted(__m512i at, __m512 a) {
  return lanes([&](int i) { return ((v16)a)[((i16)at)[i] & 15]; });
}
inline __m512 permuted(__m512 a, __m512i at, __m512 b) {
  return lanes([&](int i) {
    const int from = ((i16)at)[i] & 31;
    return from < 16 ? ((v16)a)[from] : ((v16)b)[from - 16];
  });
}
template <class... Numbers>
inline __m512i numbers(Numbers... highest_first) {
  const int32_t given[] = {highest_first...};
  i16 v;
  for (int i = 0; i < 16; ++i) v[i] = given[15 - i];
  return (__m512i)v;
}

}  // namespace emulated

#define _mm512_mask_loadu_ps emulated::mask_loadu
#define _mm512_mask_storeu_ps emulated::mask_storeu
#define _mm512_max_ps emulated::greater
#define _mm512_min_ps emulated::smaller
#define _mm512_sqrt_ps emulated::root
#define _mm512_rcp14_ps emulated::rcp14
#define _mm512_cmp_ps_mask emulated::compared
#define _mm512_mask_blend_ps emulated::blended
#define _mm512_fmadd_ps emulated::fused
#define _mm512_shuffle_ps emulated::shuffled
#define _mm512_shuffle_f32x4 emulated::shuffled_fours
#define _mm512_reduce_max_ps emulated::reduced_max
#define _mm512_maskz_expand_ps emulated::expanded
#define _mm512_maskz_compress_ps emulated::compressed
#define _mm512_permutexvar_ps emulated::permuted
#define _mm512_permutex2var_ps emulated::permuted
#define _mm512_set_epi32 emulated::numbers
#define _mm512_loadu_ps(p) ((__m512)emulated::loaded(p))
#define _mm512_load_ps(p) ((__m512)emulated::loaded(p))
#define _mm512_load_si512(p) ((__m512i)emulated::loaded(p))
#define _mm512_storeu_ps(p, v) memcpy(p, &(const __m512&)(v), 64)
