// The dtypes of tensors, and conversion of rows between them and float32.
#pragma once

#include <stdint.h>
#include <string.h>

#if defined(__F16C__)
#include <immintrin.h>
#endif

enum Dtype : int32_t { kFloat32, kFloat64, kBFloat16, kFloat16 };

namespace {

inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

inline float from_bf16(uint16_t h) {
  uint32_t b = (uint32_t)h << 16;
  float f;
  memcpy(&f, &b, 4);
  return f;
}
inline uint16_t to_bf16(float f) {
  uint32_t b;
  memcpy(&b, &f, 4);
  if (f != f) return (uint16_t)((b >> 16) | 0x40);
  return (uint16_t)((b + 0x7fff + ((b >> 16) & 1)) >> 16);  // round to nearest, ties to even
}

// The compilers' own type of half precision is missing in gcc before 12 and clang before 15, and without an instruction it calls a
// function that older systems do not have. Conversion to half precision rounds to nearest, ties to even.
#if defined(__F16C__)
inline float from_half(uint16_t h) { return _cvtsh_ss(h); }
inline uint16_t to_half(float f) { return _cvtss_sh(f, _MM_FROUND_TO_NEAREST_INT); }
#elif defined(__aarch64__)
inline float from_half(uint16_t h) {
  __fp16 x;
  memcpy(&x, &h, 2);
  return (float)x;
}
inline uint16_t to_half(float f) {
  const __fp16 x = (__fp16)f;
  uint16_t h;
  memcpy(&h, &x, 2);
  return h;
}
#else
inline uint32_t float_bits(float f) {
  uint32_t bits;
  memcpy(&bits, &f, 4);
  return bits;
}
inline float from_half(uint16_t h) {
  const float subnormal = (float)(h & 0x3ffu) * 0x1p-24f;
  const uint32_t exponent = h & 0x7c00u, sign = (h & 0x8000u) << 16;
  const uint32_t bias = exponent == 0x7c00u ? (255 - 31) << 23 : (127 - 15) << 23;  // infinities and NaN keep all bits set
  const uint32_t bits = sign | (exponent == 0 ? float_bits(subnormal) : ((h & 0x7fffu) << 13) + bias);
  float f;
  memcpy(&f, &bits, 4);
  return f;
}
inline uint16_t to_half(float f) {
  const uint32_t sign = float_bits(f) >> 16 & 0x8000u, magnitude = float_bits(f) & 0x7fffffffu;
  uint32_t half;
  if (magnitude > 0x7f800000u)
    half = 0x7e00u | (magnitude >> 13 & 0x3ffu);  // NaN
  else if (magnitude >= 0x47800000u)
    half = 0x7c00u;  // from 2^16 on; what lies between the largest half and 2^16 is carried to infinity by rounding
  else if (magnitude < 0x38800000u)
    half = float_bits(__builtin_fabsf(f) + 0.5f) - float_bits(0.5f);  // subnormal: a unit in the last place of 0.5 is 2^-24
  else
    half = (magnitude - ((127 - 15) << 23) + 0xfffu + (magnitude >> 13 & 1)) >> 13;
  return (uint16_t)(sign | half);
}
#endif

// out = scale * elements [at, at + n) of `base`, a tensor of any dtype but float64; zeros up to `padded`.
inline void to_float32(const void* base, Dtype dtype, int64_t at, int64_t n, int64_t padded, float scale,
                       float* __restrict out) {
  if (dtype == kFloat32) {
    const float* in = (const float*)base + at;
    for (int64_t i = 0; i < n; ++i) out[i] = in[i] * scale;
  } else if (dtype == kBFloat16) {
    const uint16_t* in = (const uint16_t*)base + at;
    for (int64_t i = 0; i < n; ++i) out[i] = from_bf16(in[i]) * scale;
  } else {
    const uint16_t* in = (const uint16_t*)base + at;
    int64_t i = 0;
#if defined(__F16C__)
    for (; i + 8 <= n; i += 8)
      _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(in + i))) * _mm256_set1_ps(scale));
#endif
    for (; i < n; ++i) out[i] = from_half(in[i]) * scale;
  }
  for (int64_t i = n; i < padded; ++i) out[i] = 0.0f;
}

// The inverse, without scale: rounds to nearest even.
inline void from_float32(const float* in, Dtype dtype, int64_t at, int64_t n, void* base) {
  if (n == 0) return;  // an empty tensor has no memory to name
  if (dtype == kFloat32) {
    memcpy((float*)base + at, in, (size_t)n * sizeof(float));
  } else if (dtype == kBFloat16) {
    for (int64_t i = 0; i < n; ++i) ((uint16_t*)base)[at + i] = to_bf16(in[i]);
  } else {
    uint16_t* out = (uint16_t*)base + at;
    int64_t i = 0;
#if defined(__F16C__)
    for (; i + 8 <= n; i += 8)
      _mm_storeu_si128((__m128i*)(out + i), _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT));
#endif
    for (; i < n; ++i) out[i] = to_half(in[i]);
  }
}

}  // namespace
