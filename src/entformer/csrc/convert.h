// The dtypes of tensors, and conversion of rows between them and float32.
#pragma once

#include <stdint.h>
#include <string.h>

enum Dtype : int32_t { kFloat32, kFloat64, kBFloat16, kFloat16 };

namespace {

#if defined(__aarch64__)
typedef __fp16 Half;  // gcc has no _Float16 in C++ there before version 13
#else
typedef _Float16 Half;
#endif

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

// out = scale * elements [at, at + n) of `base`, a tensor of any dtype but float64; zeros up to `padded`.
inline void to_float32(const void* base, Dtype dtype, int64_t at, int64_t n, int64_t padded, float scale, float* out) {
  if (dtype == kFloat32) {
    const float* in = (const float*)base + at;
    for (int64_t i = 0; i < n; ++i) out[i] = in[i] * scale;
  } else if (dtype == kBFloat16) {
    const uint16_t* in = (const uint16_t*)base + at;
    for (int64_t i = 0; i < n; ++i) out[i] = from_bf16(in[i]) * scale;
  } else {
    const Half* in = (const Half*)base + at;
    for (int64_t i = 0; i < n; ++i) out[i] = (float)in[i] * scale;
  }
  for (int64_t i = n; i < padded; ++i) out[i] = 0.0f;
}

// The inverse, without scale: rounds to nearest even.
inline void from_float32(const float* in, Dtype dtype, int64_t at, int64_t n, void* base) {
  if (n == 0) return;  // an empty tensor has no memory to name
  if (dtype == kFloat32)
    memcpy((float*)base + at, in, (size_t)n * sizeof(float));
  else if (dtype == kBFloat16)
    for (int64_t i = 0; i < n; ++i) ((uint16_t*)base)[at + i] = to_bf16(in[i]);
  else
    for (int64_t i = 0; i < n; ++i) ((Half*)base)[at + i] = (Half)in[i];
}

}  // namespace
