// Vectors of floats as wide as the instruction set this file is compiled for: loads, stores, reductions, exp, log, compress.
//
// Arithmetic uses the compiler's vector extensions, so the portable path is the same source (SSE2 on x86, NEON on aarch64);
// intrinsics appear only where the extensions have no operation for it. Everything is in an anonymous namespace and nothing here
// includes a C++ standard header: the file is compiled once per instruction set, and a shared inline function would let the
// linker hand AVX-512 code to a machine without it.
#pragma once

#include <stdint.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__)
#define ENTFORMER_VL 16
#elif defined(__AVX2__)
#define ENTFORMER_VL 8
#else
#define ENTFORMER_VL 4
#endif

// A loop that fills the registers with its tables is compiled by itself, or the compiler spills them around it.
#define ENTFORMER_NOINLINE __attribute__((noinline))
// A call in an inner loop would store every vector register.
#define ENTFORMER_INLINE inline __attribute__((always_inline))

namespace {

constexpr int VL = ENTFORMER_VL;  // floats per vector
typedef float vf __attribute__((vector_size(VL * 4)));
typedef int32_t vi __attribute__((vector_size(VL * 4)));
typedef double vd __attribute__((vector_size(VL * 8)));
typedef uint32_t vu __attribute__((vector_size(VL * 4)));  // for bits that may wrap

constexpr int64_t kSumBlock = 64 * VL;  // float32 sums run over at most this many numbers; longer ones are added in float64
constexpr float kInf = __builtin_inff();
constexpr float kSmallestNormal = 1.17549435e-38f;

inline vf splat(float x) { return x - vf{}; }
inline vf load(const float* p) {
  vf v;
  memcpy(&v, p, sizeof v);
  return v;
}
inline void store(float* p, vf v) { memcpy(p, &v, sizeof v); }

// Short rows of n floats in whole vectors: a call of memcpy or memset takes longer.
inline void copy_vectors(float* to, const float* from, int64_t n) {
  for (int64_t i = 0; i < n; i += VL) store(to + i, load(from + i));
}
inline void zero_vectors(float* to, int64_t n) {
  for (int64_t i = 0; i < n; i += VL) store(to + i, vf{});
}

// Asks the second cache for the line at `p`, which need not be ours. A batch of rows is read in one pass and worked on in others, between
// which the processor's own prefetcher stops: the pass that writes one batch asks for what is read of the next.
inline void fetch(const float* p) { __builtin_prefetch(p, 0, 2); }

// 0, 1, 2, ... and 1, 2, 4, ... by lane, from memory: a loop over lanes would set them one by one.
struct LaneTable {
  alignas(64) int32_t number[VL], bit[VL];
  constexpr LaneTable() : number{}, bit{} {
    for (int i = 0; i < VL; ++i) number[i] = i, bit[i] = 1 << i;
  }
};
constexpr LaneTable kLaneTable;
inline vi lane_numbers() {
  vi v;
  memcpy(&v, kLaneTable.number, sizeof v);
  return v;
}

inline vi as_int(vf v) { return (vi)v; }  // the bits
inline vf as_float(vi v) { return (vf)v; }

// What the vector extensions have no operation for, once per instruction set:
//   load_tail, store_tail   the last `count` < VL floats of a row; the other lanes hold `fill`
//   reciprocal              1/a to a few parts in 10^4: for the size of a step, not for a result
//   bits_greater, bits_nan  one bit per lane where a > b (false where either is NaN), or where a is NaN
//   fused                   a b + c, rounded once where there is an instruction for it
//   blend                   lane by lane: `a` where the bit is set, else `b`
//   hsum, hmax              over the lanes
//   sum_each, max_each      lane r is hsum, or hmax, of v[r], to the bit: VL of them for little more than the price of one
//   lane_bits               (not AVX) one bit per lane of a comparison
//   compress                the lanes whose bit is set to dst, packed; may write up to VL floats; returns how many count
//   expand                  the inverse: lane i is the next packed float where its bit is set, else 0; reads up to VL floats

#if defined(__AVX512F__)

inline vf load_tail(const float* p, int64_t count, float fill) {
  return (vf)_mm512_mask_loadu_ps((__m512)splat(fill), (__mmask16)((1u << count) - 1), p);
}
inline void store_tail(float* p, vf v, int64_t count) { _mm512_mask_storeu_ps(p, (__mmask16)((1u << count) - 1), (__m512)v); }
inline vf vmax(vf a, vf b) { return (vf)_mm512_max_ps((__m512)a, (__m512)b); }
inline vf vmin(vf a, vf b) { return (vf)_mm512_min_ps((__m512)a, (__m512)b); }
inline vf vsqrt(vf a) { return (vf)_mm512_sqrt_ps((__m512)a); }
inline vf reciprocal(vf a) { return (vf)_mm512_rcp14_ps((__m512)a); }
inline uint32_t bits_greater(vf a, vf b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GT_OQ); }
inline vf blend(uint32_t bits, vf a, vf b) { return (vf)_mm512_mask_blend_ps((__mmask16)bits, (__m512)b, (__m512)a); }
inline uint32_t bits_nan(vf a) { return _mm512_cmp_ps_mask((__m512)a, (__m512)a, _CMP_UNORD_Q); }
inline vf fused(vf a, vf b, vf c) { return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
inline float hsum(vf v) {  // in the order of sum_each
  __m512 t = (__m512)v;
  t += _mm512_shuffle_ps(t, t, 0xb1);
  t += _mm512_shuffle_ps(t, t, 0x4e);
  t += _mm512_shuffle_f32x4(t, t, 0xb1);
  return (t + _mm512_shuffle_f32x4(t, t, 0x4e))[0];
}
inline float hmax(vf v) { return _mm512_reduce_max_ps((__m512)v); }
inline vf expand(const float* src, uint32_t bits) { return (vf)_mm512_maskz_expand_ps((__mmask16)bits, _mm512_loadu_ps(src)); }
inline int compress(float* dst, vf v, uint32_t bits) {
  // Compress in a register and store whole: the memory form of vcompressps is microcoded on Zen 4.
  _mm512_storeu_ps(dst, _mm512_maskz_compress_ps((__mmask16)bits, (__m512)v));
  return __builtin_popcount(bits);
}
template <class Join>
inline vf join_each(const vf* v, const Join& join) {
  const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  const __m512i odd = _mm512_set_epi32(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
  __m512 t[16];
  for (int i = 0; i < 16; ++i) t[i] = (__m512)v[i];
  for (int left = 8; left > 0; left /= 2)
    for (int i = 0; i < left; ++i)
      t[i] = join(_mm512_permutex2var_ps(t[2 * i], even, t[2 * i + 1]), _mm512_permutex2var_ps(t[2 * i], odd, t[2 * i + 1]));
  return (vf)t[0];
}
inline vf sum_each(const vf* v) {
  return join_each(v, [](__m512 a, __m512 b) { return a + b; });
}
inline vf max_each(const vf* v) {
  return join_each(v, [](__m512 a, __m512 b) { return _mm512_max_ps(a, b); });
}

#else

inline vf blend(uint32_t bits, vf a, vf b) {
  vi lanes;
  memcpy(&lanes, kLaneTable.bit, sizeof lanes);
  return (((int32_t)bits - vi{}) & lanes) != 0 ? a : b;
}

#if defined(__AVX2__)

inline __m256i lanes_below(int64_t count) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)count), _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0));
}
inline vf load_tail(const float* p, int64_t count, float fill) {
  const __m256i inside = lanes_below(count);
  return (vf)_mm256_blendv_ps((__m256)splat(fill), _mm256_maskload_ps(p, inside), (__m256)inside);
}
inline void store_tail(float* p, vf v, int64_t count) { _mm256_maskstore_ps(p, lanes_below(count), (__m256)v); }
inline vf vmax(vf a, vf b) { return (vf)_mm256_max_ps((__m256)a, (__m256)b); }
inline vf vmin(vf a, vf b) { return (vf)_mm256_min_ps((__m256)a, (__m256)b); }
inline vf vsqrt(vf a) { return (vf)_mm256_sqrt_ps((__m256)a); }
inline vf reciprocal(vf a) { return (vf)_mm256_rcp_ps((__m256)a); }
inline uint32_t bits_greater(vf a, vf b) {
  return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_GT_OQ));
}
inline uint32_t bits_nan(vf a) { return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps((__m256)a, (__m256)a, _CMP_UNORD_Q)); }
inline vf fused(vf a, vf b, vf c) { return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }

template <class Join>
inline vf join_each(const vf* v, const Join& join) {
  __m256 t[4], u[2];
  for (int i = 0; i < 4; ++i) {
    const __m256 a = (__m256)v[2 * i], b = (__m256)v[2 * i + 1];
    t[i] = join(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
  }
  for (int i = 0; i < 2; ++i) {
    const __m256 a = t[2 * i], b = t[2 * i + 1];
    u[i] = join(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xee));
  }
  return (vf)join(_mm256_permute2f128_ps(u[0], u[1], 0x20), _mm256_permute2f128_ps(u[0], u[1], 0x31));
}
inline vf sum_each(const vf* v) {
  return join_each(v, [](__m256 a, __m256 b) { return a + b; });
}
inline vf max_each(const vf* v) {
  return join_each(v, [](__m256 a, __m256 b) { return _mm256_max_ps(a, b); });
}
template <class Join>
inline float join_lanes(vf v, const Join& join) {
  __m256 t = (__m256)v;
  t = join(t, _mm256_permute_ps(t, 0x4e));
  t = join(t, _mm256_permute_ps(t, 0xb1));
  return join(t, _mm256_permute2f128_ps(t, t, 1))[0];
}
inline float hsum(vf v) {
  return join_lanes(v, [](__m256 a, __m256 b) { return a + b; });
}
inline float hmax(vf v) {
  return join_lanes(v, [](__m256 a, __m256 b) { return _mm256_max_ps(a, b); });
}

// Row `bits` of `packed`: the positions of its set bits, packed to the front. Of `spread`: for each set bit how many are set below it,
// for the others a negative number.
struct Permutations {
  int8_t packed[256][8], spread[256][8];
  constexpr Permutations() : packed{}, spread{} {
    for (int bits = 0; bits < 256; ++bits)
      for (int i = 0, count = 0; i < 8; ++i) {
        const bool is_set = bits >> i & 1;
        spread[bits][i] = is_set ? (int8_t)count : (int8_t)-1;
        if (is_set) packed[bits][count++] = (int8_t)i;
      }
  }
};
constexpr Permutations kPermutations;
inline __m256i permutation(const int8_t* positions) { return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)positions)); }
inline int compress(float* dst, vf v, uint32_t bits) {
  _mm256_storeu_ps(dst, _mm256_permutevar8x32_ps((__m256)v, permutation(kPermutations.packed[bits])));
  return __builtin_popcount(bits);
}
inline vf expand(const float* src, uint32_t bits) {
  const __m256i from = permutation(kPermutations.spread[bits]);
  return (vf)_mm256_blendv_ps(_mm256_permutevar8x32_ps(_mm256_loadu_ps(src), from), _mm256_setzero_ps(), (__m256)from);
}

#else

inline vf load_tail(const float* p, int64_t count, float fill) {
  vf v = splat(fill);
  memcpy(&v, p, (size_t)count * sizeof(float));
  return v;
}
inline void store_tail(float* p, vf v, int64_t count) { memcpy(p, &v, (size_t)count * sizeof(float)); }
inline vf vmax(vf a, vf b) { return a > b ? a : b; }
inline vf vmin(vf a, vf b) { return a < b ? a : b; }

#if defined(__aarch64__)

inline vf vsqrt(vf a) { return (vf)vsqrtq_f32((float32x4_t)a); }
inline vf reciprocal(vf a) {
  const float32x4_t r = vrecpeq_f32((float32x4_t)a);
  return (vf)vmulq_f32(r, vrecpsq_f32((float32x4_t)a, r));
}
inline uint32_t lane_bits(vi m) { return vaddvq_u32((uint32x4_t)(m & vi{1, 2, 4, 8})); }
inline vf fused(vf a, vf b, vf c) { return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b); }
inline vf sum_each(const vf* v) {
  return (vf)vpaddq_f32(vpaddq_f32((float32x4_t)v[0], (float32x4_t)v[1]), vpaddq_f32((float32x4_t)v[2], (float32x4_t)v[3]));
}
inline vf max_each(const vf* v) {
  return (vf)vpmaxq_f32(vpmaxq_f32((float32x4_t)v[0], (float32x4_t)v[1]), vpmaxq_f32((float32x4_t)v[2], (float32x4_t)v[3]));
}
inline float hsum(vf v) { return (v[0] + v[1]) + (v[2] + v[3]); }
inline float hmax(vf v) { return vmaxvq_f32((float32x4_t)v); }

// Bytes of the lanes whose bit is set, packed to the front, and the inverse; 255 is beyond the vector and gives zero.
struct Permutations {
  uint8_t packed[16][16], spread[16][16];
  constexpr Permutations() : packed{}, spread{} {
    for (int bits = 0; bits < 16; ++bits) {
      for (int at = 0; at < 16; ++at) packed[bits][at] = spread[bits][at] = 255;
      for (int i = 0, count = 0; i < 4; ++i) {
        if (!(bits >> i & 1)) continue;
        for (int byte = 0; byte < 4; ++byte) {
          packed[bits][4 * count + byte] = (uint8_t)(4 * i + byte);
          spread[bits][4 * i + byte] = (uint8_t)(4 * count + byte);
        }
        ++count;
      }
    }
  }
};
constexpr Permutations kPermutations;
inline vf permuted(vf v, const uint8_t* bytes) { return (vf)vqtbl1q_u8((uint8x16_t)v, vld1q_u8(bytes)); }
inline int compress(float* dst, vf v, uint32_t bits) {
  store(dst, permuted(v, kPermutations.packed[bits]));
  return __builtin_popcount(bits);
}
inline vf expand(const float* src, uint32_t bits) { return permuted(load(src), kPermutations.spread[bits]); }

#else

inline vf vsqrt(vf a) {
  vf r;
  for (int i = 0; i < VL; ++i) r[i] = __builtin_sqrtf(a[i]);
  return r;
}
inline vf reciprocal(vf a) { return 1.0f / a; }
inline uint32_t lane_bits(vi m) {
  uint32_t bits = 0;
  for (int i = 0; i < VL; ++i) bits |= (uint32_t)(m[i] & 1) << i;
  return bits;
}
inline vf fused(vf a, vf b, vf c) { return a * b + c; }
inline float hsum(vf v) { return (v[0] + v[2]) + (v[1] + v[3]); }
inline float hmax(vf v) {
  const float a = v[0] > v[2] ? v[0] : v[2], b = v[1] > v[3] ? v[1] : v[3];
  return a > b ? a : b;
}
inline vf sum_each(const vf* v) { return vf{hsum(v[0]), hsum(v[1]), hsum(v[2]), hsum(v[3])}; }
inline vf max_each(const vf* v) { return vf{hmax(v[0]), hmax(v[1]), hmax(v[2]), hmax(v[3])}; }
inline int compress(float* dst, vf v, uint32_t bits) {
  for (int i = 0, count = 0; i < VL; ++i) {
    dst[count] = v[i];
    count += (bits >> i) & 1;
  }
  return __builtin_popcount(bits);
}
inline vf expand(const float* src, uint32_t bits) {
  vf v{};
  for (int count = 0; bits; bits &= bits - 1) v[__builtin_ctz(bits)] = src[count++];
  return v;
}

#endif

inline uint32_t bits_greater(vf a, vf b) { return lane_bits(a > b); }
inline uint32_t bits_nan(vf a) { return lane_bits(a != a); }

#endif
#endif

// An integer that is known when the code is compiled.
template <int N>
struct Constant {
  static constexpr int value = N;
};

inline vf reciprocal_exact(vf a) {  // up to rounding
  vf r = reciprocal(a);
  return r * (2.0f - a * r);
}

inline bool any_nan(vf a) { return bits_nan(a) != 0; }

// exp(z) for z <= 88, zero below the smallest normal float; relative error 4e-9 of the polynomial plus rounding.
ENTFORMER_INLINE vf vexp(vf z) {
  const vf magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  vf k = z * 1.44269504f + magic;
  vu shift = (vu)as_int(k) << 23;
  k -= magic;
  vf r = z - k * 0.693145752f - k * 1.42860677e-6f;  // ln 2 in two parts
  vf poly = 0.00139357848f * r + 0.00836915616f;
  poly = poly * r + 0.0416664556f;
  poly = poly * r + 0.166665167f;
  vf r2 = r * r;
  vf value = poly * (r2 * r) + (r2 * 0.5f + (r + 1.0f));
  vf result = as_float((vi)((vu)as_int(value) + shift));
  return z > -87.0f ? result : vf{};
}

// log(1 + y) for -1 < y <= 0 with q = 1 + y rounded; relative accuracy is kept as y -> 0. q below the normal range counts as it.
ENTFORMER_INLINE vf vlog1p(vf y, vf q) {
  q = vmax(q, splat(kSmallestNormal));
  vi bits = as_int(q);
  vi k = (bits - 0x3f3504f3) >> 23;  // exponent after moving the mantissa to [sqrt(1/2), sqrt(2))
  vf mantissa = as_float(bits - (k << 23));
  vf f = k == 0 ? y : mantissa - 1.0f;  // while no power of two is split off, y itself is exact
  vf poly = -0.0765817314f * f + 0.127853721f;
  poly = poly * f - 0.13162124f;
  poly = poly * f + 0.141980469f;
  poly = poly * f - 0.166227192f;
  poly = poly * f + 0.20001404f;
  poly = poly * f - 0.250008464f;
  poly = poly * f + 0.333333284f;
  vf f2 = f * f;
  vf log1p_f = f + (poly * (f2 * f) - f2 * 0.5f);
  return __builtin_convertvector(k, vf) * 0.693147181f + log1p_f;
}
inline vf vlog(vf q) { return vlog1p(q - 1.0f, q); }

inline vf vsigmoid(vf x) {  // 1/(1 + exp(-x)) without overflow
  vf small = vexp(-vmax(x, -x)), p = 1.0f / (1.0f + small);
  return x < 0.0f ? small * p : p;
}

// tanh(x), NaN for NaN; relative error 2e-8 of the polynomial plus rounding.
inline vf vtanh(vf x) {
  vf size = vmax(x, -x), z = x * x;
  vf poly = -0.00606219906f * z + 0.0209741264f;
  poly = poly * z - 0.0538462592f;
  poly = poly * z + 0.133327412f;
  poly = poly * z - 0.333333287f;
  vf far = 1.0f - 2.0f / (vexp(vmin(2.0f * size, splat(80.0f))) + 1.0f);
  vf found = size < 0.625f ? x + x * (z * poly) : (x < 0.0f ? -far : far);
  return x == x ? found : x;
}

}  // namespace
