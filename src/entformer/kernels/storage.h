// How numbers lie in memory: the narrow float types, and scratch space for one call.
//
// In: rows of bfloat16, float16 or float32.  Out: rows of float32, and back, rounded to nearest even.
#pragma once

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum EntformerDtype : int32_t { kFloat32 = 0, kFloat64 = 1, kBFloat16 = 2, kFloat16 = 3 };

namespace {

inline float from_bf16(uint16_t h) { uint32_t b = (uint32_t)h << 16; float f; memcpy(&f, &b, 4); return f; }
inline uint16_t to_bf16(float f) {
  uint32_t b;
  memcpy(&b, &f, 4);
  if (f != f) return (uint16_t)((b >> 16) | 0x40);
  return (uint16_t)((b + 0x7fff + ((b >> 16) & 1)) >> 16);  // round to nearest, ties to even
}

inline void read_row(const void* base, EntformerDtype dtype, int64_t row, int64_t n, float* out) {
  if (dtype == kBFloat16) {
    const uint16_t* in = (const uint16_t*)base + row * n;
    for (int64_t i = 0; i < n; ++i) out[i] = from_bf16(in[i]);
  } else if (dtype == kFloat16) {
    const _Float16* in = (const _Float16*)base + row * n;
    for (int64_t i = 0; i < n; ++i) out[i] = (float)in[i];
  } else {
    memcpy(out, (const float*)base + row * n, (size_t)n * sizeof(float));
  }
}
inline void write_row(const float* in, EntformerDtype dtype, int64_t row, int64_t n, void* base) {
  if (dtype == kBFloat16) {
    uint16_t* out = (uint16_t*)base + row * n;
    for (int64_t i = 0; i < n; ++i) out[i] = to_bf16(in[i]);
  } else {
    _Float16* out = (_Float16*)base + row * n;
    for (int64_t i = 0; i < n; ++i) out[i] = (_Float16)in[i];
  }
}

// Scratch that grows once per call and is freed at the end of it.
struct Scratch {
  void* data = nullptr;
  Scratch() = default;
  explicit Scratch(size_t bytes) { take(bytes); }
  void take(size_t bytes) {  // once
    if (posix_memalign(&data, 64, bytes + 64) != 0) data = nullptr;
  }
  ~Scratch() { free(data); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
};

}  // namespace
