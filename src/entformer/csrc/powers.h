// Powers x^a of one fixed exponent 0 <= a <= 24 for 0 < x <= 1, from tables that live in registers (AVX-512 and AVX2).
//
// x^a to about one unit in the last place in some dozen instructions, where a logarithm and an exponential take forty. x = 2^k m with m
// near one of the centers c = 1, 1 + 1/kCenters, ...; rounding x to its first bits gives both, and
//   x^a = 2^(a k) c^a (1 + r)^a,   r = m/c - 1,   |r| <= 1/(2 kCenters),
// where the first two factors are looked up by permutations of registers and the last is a polynomial. The same r gives ln x.
#pragma once

#include "simd.h"

#if defined(__AVX2__)

namespace {

constexpr bool kHasTables = true;

constexpr int kCenterBits = VL == 16 ? 5 : 3, kCenters = 1 << kCenterBits;
constexpr int kLaneBits = VL == 16 ? 4 : 3;  // of the index of a lane
constexpr int kBias = VL - 1;                // is added to k, so that the scales of k = 0 are one: 1^a is exact
// Terms of (1 + r)^a that are left: for a <= 3, a <= 11 and a <= 24, and of ln(1 + r).
constexpr int kTerms = VL == 16 ? 4 : 5, kSteepTerms = VL == 16 ? 6 : 7, kSteepestTerms = VL == 16 ? 8 : 12;
constexpr int kLogTerms = VL == 16 ? 4 : 6;
constexpr float kLeast = VL == 16 ? 4.65661287e-10f : 8.67361738e-19f;  // 2^-31, 2^-60: the base whose near power is zero

// 1/c of the centers, times 2^kBias, and log2 c: c is the reciprocal of the rounded 1/c, so r = m (1/c) - 1 has no error but its rounding.
struct Centers {
  alignas(64) float inverse[kCenters], log2_single[kCenters];
  alignas(64) double log2[kCenters];
  constexpr Centers() : inverse{}, log2_single{}, log2{} {
    for (int i = 0; i < kCenters; ++i) {
      inverse[i] = (float)(1.0 / (1.0 + (double)i / kCenters));
      const double c = 1.0 / (double)inverse[i], z = (c - 1.0) / (c + 1.0);
      double sum = 0.0;
      for (int k = 41; k > 0; k -= 2) sum = sum * z * z + 1.0 / k;  // atanh z = ln(c)/2
      log2[i] = 2.0 * z * sum / 0.69314718055994531;
      log2_single[i] = (float)log2[i];
      inverse[i] *= (float)(1 << kBias);
    }
  }
};
constexpr Centers kCenterTable;

// Entry `at` of VL, or of 2 VL, floats; higher bits of `at` do not count.
#if defined(__AVX512F__)
inline vf pick(vf from, vi at) { return (vf)_mm512_permutexvar_ps((__m512i)at, (__m512)from); }
inline vf pick_center(const float* from, vi at) {
  return (vf)_mm512_permutex2var_ps(_mm512_load_ps(from), (__m512i)at, _mm512_load_ps(from + VL));
}
#else
inline vf pick(vf from, vi at) { return (vf)_mm256_permutevar8x32_ps((__m256)from, (__m256i)at); }
inline vf pick_center(const float* from, vi at) { return pick(load(from), at); }
#endif

// 2^t for t < 900 in double, zero in float below -900: what is looked up should be rounded once.
inline vf exp2_rounded(const vd& exponent) {
  const vd t = exponent > -900.0 ? exponent : vd{} - 900.0;
  const double magic = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer
  vd shifted_t = t + magic, f = t - (shifted_t - magic);
  const double taylor[] = {1.01780860e-7,    1.32154868e-6,    1.52527338e-5,     1.54035304e-4,     1.33335581e-3,
                           9.61812910763e-3, 5.55041086648e-2, 0.240226506959101, 0.693147180559945, 1.0};  // ln2^k / k!
  vd poly = vd{} + 7.05491e-9;
  for (double c : taylor) poly = poly * f + c;
  typedef int64_t vl __attribute__((vector_size(VL * 8)));
  vl bits, power;
  memcpy(&bits, &poly, sizeof bits);
  memcpy(&power, &shifted_t, sizeof power);
  bits += power << 52;
  memcpy(&poly, &bits, sizeof poly);
  return __builtin_convertvector(poly, vf);
}

struct PowerTable {
  alignas(64) float center[kCenters];  // c^a
  vf scale_low, scale_high;            // 2^(a k), see below
  float scale_far;                     // 2^(-64 a)
  float binomial[kSteepestTerms];      // (1 + r)^a = sum over j of binomial[j] r^j
  int terms;                           // of these
  float e = -1.0f;                     // the deformation this was built for; none yet

  // With h = k + kBias, 2^(a k) is the product of two digits of h: 2^(a ((h mod VL) - kBias)) and 2^(a VL (h div VL)), and for wide
  // powers with AVX2, whose two digits end at 2^-63, scale_far. `near` powers end before; with AVX-512 the next VL of their scales
  // are one more half of the first digit. kLeast has the scale 0.
  void build(double a, bool near) {
    vd j, centers;
    for (int i = 0; i < VL; ++i) j[i] = i;
    for (int i = 0; i < kCenters; i += VL) {
      memcpy(&centers, kCenterTable.log2 + i, sizeof centers);
      store(center + i, exp2_rounded(a * centers));
    }
    vd groups = (j - (double)VL) * (double)VL;
    groups[0] = 0.0;
    const bool one_digit = near && VL == 16;
    scale_low = exp2_rounded(a * (j - (double)kBias));
    scale_high = exp2_rounded(a * (one_digit ? j - (double)(kBias + VL) : groups));
    if (near) scale_high[one_digit ? 0 : 1] = 0.0f;
    scale_far = exp2_rounded(vd{} - 64.0 * a)[0];
    terms = a <= 3.0 ? kTerms : a <= 11.001 ? kSteepTerms : kSteepestTerms;
    double term[kSteepestTerms + 1] = {1.0};
    for (int i = 0; i < terms; ++i) term[i + 1] = term[i] * (a - i) / (i + 1);
    // The last term that is left out is replaced by the best combination of lower ones, from Chebyshev's polynomials 5 and 7.
    if (VL == 8 && terms != kSteepestTerms) {
      const double w2 = 1.0 / (4 * kCenters * kCenters), last = term[terms];
      if (terms == kSteepTerms)
        term[5] += last * w2 * 112 / 64, term[3] -= last * w2 * w2 * 56 / 64, term[1] += last * w2 * w2 * w2 * 7 / 64;
      else
        term[3] += last * w2 * 20 / 16, term[1] -= last * w2 * w2 * 5 / 16;
    }
    for (int i = 0; i < terms; ++i) binomial[i] = (float)term[i];
  }
};

// x in the parts that look-ups need.
struct Split {
  vi biased;  // x rounded to its center, as bits, less those of 2^-kBias: k + kBias in the bits from 23 on, the center below
  vf r;
  explicit Split(vf x) : biased(as_int(x) + ((1 << (22 - kCenterBits)) - ((127 - kBias) << 23))) {
    vf scaled = as_float(as_int(x) - (biased & (int32_t)0xff800000));  // m 2^-kBias
    r = fused(scaled, pick_center(kCenterTable.inverse, center()), splat(-1.0f));
  }
  vi center() const { return biased >> (23 - kCenterBits); }
};

template <int terms>
inline vf power_of(const PowerTable& of, const Split& x, vf scale) {
  vf poly = splat(of.binomial[terms - 1]);
#pragma GCC unroll 12
  for (int i = terms - 2; i >= 0; --i) poly = fused(x.r, poly, splat(of.binomial[i]));
  return (pick_center(of.center, x.center()) * scale) * poly;
}
// For kLeast <= x <= 1: zero near kLeast.
template <int terms>
inline vf power_near(const PowerTable& of, const Split& x) {
#if defined(__AVX512F__)
  const vf scale = (vf)_mm512_permutex2var_ps((__m512)of.scale_low, (__m512i)(x.biased >> 23), (__m512)of.scale_high);
#else
  const vf scale = pick(of.scale_low, x.biased >> 23) * pick(of.scale_high, x.biased >> (23 + kLaneBits));
#endif
  return power_of<terms>(of, x, scale);
}
// use(terms): as a constant, the terms that the table needs.
template <class Use>
inline auto with_terms(const PowerTable& of, const Use& use) {
  return of.terms == kTerms        ? use(Constant<kTerms>())
         : of.terms == kSteepTerms ? use(Constant<kSteepTerms>())
                                   : use(Constant<kSteepestTerms>());
}
inline vf power_near(const PowerTable& of, const Split& x) {
  return with_terms(of, [&](auto terms) { return power_near<terms.value>(of, x); });
}

// The base q = e u + c of weights with c = 1 - e lam, and the slopes q^(1/e - 1). A high power also feels how q was rounded.
struct TableWeight {
  PowerTable table;
  vf e, c, c_low;  // c_low: what c lacks
  TableWeight(const PowerTable& of, double e_of_row, float rounded_c, double exact_c)
      : table(of), e(splat((float)e_of_row)), c(splat(rounded_c)), c_low(splat((float)(exact_c - (double)rounded_c))) {}

  // The same with one c a lane.
  TableWeight(const PowerTable& of, double e_of_rows, vf rounded_c, vf lacks)
      : table(of), e(splat((float)e_of_rows)), c(rounded_c), c_low(lacks) {}

  ENTFORMER_INLINE vf base(vf u) const { return vmax(fused(e, u, c), splat(kLeast)); }
  template <int terms>
  ENTFORMER_INLINE Split split(vf u, vf q) const {
    Split x(q);
    if (terms == kSteepestTerms) {
      const vf low = fused(e, u, (c - q) + c_low);
      x.r = q > kLeast ? fused(low, reciprocal(q), x.r) : x.r;
    }
    return x;
  }
  template <int terms>
  ENTFORMER_INLINE vf slopes(vf u, vf q) const {
    return power_near<terms>(table, split<terms>(u, q));
  }
};
// For every normal x <= 1 and a <= 3.
inline vf power_wide(const PowerTable& of, const Split& x) {
  vf scale = pick(of.scale_low, x.biased >> 23) * pick(of.scale_high, x.biased >> (23 + kLaneBits));
  if (VL == 8) scale *= x.biased < -(7 << (23 + kLaneBits)) ? splat(of.scale_far) : splat(1.0f);
  return power_of<kTerms>(of, x, scale);
}

// ln x to an absolute error of 1e-7, or that relative to it.
inline vf log_of(const Split& x) {
  vf k = __builtin_convertvector((x.biased >> 23) - kBias, vf), log2_c = pick_center(kCenterTable.log2_single, x.center());
  vf tail = splat((kLogTerms % 2 ? 1.0f : -1.0f) / kLogTerms);
#pragma GCC unroll 6
  for (int i = kLogTerms - 1; i > 1; --i) tail = fused(x.r, tail, splat((i % 2 ? 1.0f : -1.0f) / (float)i));
  tail *= x.r;
  return fused(k + log2_c, splat(0.693147181f), fused(tail, x.r, x.r));
}

// The tables of the latest alphas. What `of` returns is good until the batch ends, for up to VL alphas in a batch.
struct PowerTables {
  static constexpr int kCapacity = 2 * VL;
  PowerTable tables[kCapacity];
  uint32_t used[kCapacity] = {}, batch = 1;  // the batch in which a table was last used
  int latest = 0, oldest = 0;

  void end_batch() { ++batch; }
  const PowerTable* of(float e, double exponent, bool near) {
    if (tables[latest].e != e) latest = find_or_build(e, exponent, near);
    used[latest] = batch;
    return &tables[latest];
  }

 private:
  ENTFORMER_NOINLINE int find_or_build(float e, double exponent, bool near) {
    for (int i = 0; i < kCapacity; ++i)
      if (tables[i].e == e) return i;
    while (used[oldest] == batch) oldest = (oldest + 1) % kCapacity;
    const int place = oldest;
    tables[place].build(exponent, near);
    tables[place].e = e;
    oldest = (oldest + 1) % kCapacity;
    return place;
  }
};

}  // namespace

#else

namespace {

constexpr bool kHasTables = false;

struct PowerTable;
struct PowerTables {
  void end_batch() {}
  const PowerTable* of(float, double, bool) { return nullptr; }
};

}  // namespace

#endif
