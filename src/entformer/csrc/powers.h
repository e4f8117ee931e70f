// Powers x^a of one fixed exponent 0 <= a <= 11 for 0 < x <= 1, from tables that live in registers (AVX-512 only).
//
// x^a to about one unit in the last place in some dozen instructions, where a logarithm and an exponential take forty. x = 2^k m with 1 <= m < 2; the first five bits of m choose a center c, and
//   x^a = 2^(a k) c^a (1 + r)^a,   r = m/c - 1,   |r| <= 1/64 (1/32 around c = 1, which makes 1^a exact),
// where the first two factors are looked up by a permutation of registers and the last is a cubic, or for a > 3 of the sixth degree.
// The same r gives ln x.
#pragma once

#include "simd.h"

#if defined(__AVX512F__)

namespace {

constexpr bool kHasTables = true;

// 1/c of the 32 centers, and log2 c: c is the reciprocal of the rounded 1/c, so r = m (1/c) - 1 has no error but its rounding.
alignas(64) constexpr float kInverseCenter[32] = {
    1.0f,         0.955223858f, 0.927536249f, 0.901408434f, 0.876712322f, 0.853333354f, 0.83116883f,  0.810126603f,
    0.790123463f, 0.771084309f, 0.752941191f, 0.735632181f, 0.719101131f, 0.703296721f, 0.688172042f, 0.673684239f,
    0.659793794f, 0.646464646f, 0.633663356f, 0.621359229f, 0.609523833f, 0.598130822f, 0.587155938f, 0.576576591f,
    0.566371679f, 0.556521714f, 0.547008574f, 0.537815154f, 0.528925598f, 0.520325184f, 0.512000024f, 0.503937006f};
alignas(64) constexpr double kLog2Center[32] = {0.0,
                                                0.066089224048134321,
                                                0.10852442990588011,
                                                0.14974714637697151,
                                                0.18982456962893295,
                                                0.22881865556190534,
                                                0.26678654203851582,
                                                0.30378071189951296,
                                                0.33984999213570909,
                                                0.37503948509150415,
                                                0.40939090792179837,
                                                0.44294350122318615,
                                                0.47573341618663877,
                                                0.50779460392110631,
                                                0.53915881245164585,
                                                0.56985554652468401,
                                                0.59991288652640554,
                                                0.62935662142322408,
                                                0.65821150559324074,
                                                0.68650051374707384,
                                                0.71424546257793083,
                                                0.74146703208403931,
                                                0.76818438658319284,
                                                0.79441583141613043,
                                                0.82017896778964556,
                                                0.84549011678148526,
                                                0.87036464837183991,
                                                0.89481768940915012,
                                                0.91886329773724647,
                                                0.94251455908381927,
                                                0.96578421613775122,
                                                0.9886846921466237};

struct SingleCenters {
  alignas(64) float log2[32];
  constexpr SingleCenters() : log2{} {
    for (int i = 0; i < 32; ++i) log2[i] = (float)kLog2Center[i];
  }
};
constexpr SingleCenters kSingle;

inline vf fused(vf a, vf b, vf c) { return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }  // a b + c, rounded once
inline vf pick(vf low, vf high, vi at) { return (vf)_mm512_permutex2var_ps((__m512)low, (__m512i)at, (__m512)high); }
inline vf pick(vf from, vi at) { return (vf)_mm512_permutexvar_ps((__m512i)at, (__m512)from); }
inline vi shifted(vi bits, int by) { return (vi)((vu)bits >> by); }

// 2^t for |t| < 900 in double: what is looked up should be rounded once.
inline vf exp2_rounded(const vd& t) {
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
  vf center_low, center_high;  // c^a
  vf scale_low, scale_high;    // 2^(a k), see below
  float binomial[7];           // (1 + r)^a = sum over j of binomial[j] r^j
  bool steep;                  // a > 3: all seven terms are needed, else four
  float e = -1.0f;             // the deformation this was built for; none yet

  // `near`: the scales are those of k = -31..0, and that of -31 is zero. Else they are 2^(a j) for j = 0..15 and
  // 2^(a (16 j - 127)): two factors for the low and the high half of the exponent's bits.
  void build(double a, bool near) {
    vd j, low, high;
    for (int i = 0; i < VL; ++i) j[i] = i;
    memcpy(&low, kLog2Center, sizeof low);
    memcpy(&high, kLog2Center + VL, sizeof high);
    center_low = exp2_rounded(a * low);
    center_high = exp2_rounded(a * high);
    scale_low = exp2_rounded(a * (near ? j - 31.0 : j));
    scale_high = exp2_rounded(a * (near ? j - 15.0 : 16.0 * j - 127.0));
    if (near) scale_low[0] = 0.0f;
    double term = 1.0;
    for (int i = 0; i < 7; term *= (a - i) / (i + 1), ++i) binomial[i] = (float)term;
    steep = a > 3.0;
  }
};

// x in the two halves of a PowerTable's look-up.
struct Split {
  vi bits, center;
  vf r;
  explicit Split(vf x) : bits(as_int(x)), center(shifted(bits, 18)) {
    vf inverse = pick(load(kInverseCenter), load(kInverseCenter + VL), center);
    r = fused((vf)_mm512_getmant_ps((__m512)x, _MM_MANT_NORM_1_2, _MM_MANT_SIGN_zero), inverse, splat(-1.0f));
  }
};

template <int terms>
inline vf power_of(const PowerTable& of, const Split& x, vf scale) {
  vf poly = splat(of.binomial[terms - 1]);
#pragma GCC unroll 6
  for (int i = terms - 2; i >= 0; --i) poly = fused(x.r, poly, splat(of.binomial[i]));
  return (pick(of.center_low, of.center_high, x.center) * scale) * poly;
}
// For 2^-31 <= x <= 1: zero below 2^-30.
template <bool steep>
inline vf power_near(const PowerTable& of, const Split& x) {
  return power_of<steep ? 7 : 4>(of, x, pick(of.scale_low, of.scale_high, shifted(x.bits, 23)));
}
// For every normal x <= 1 and a <= 3.
inline vf power_wide(const PowerTable& of, const Split& x) {
  return power_of<4>(of, x, pick(of.scale_low, shifted(x.bits, 23)) * pick(of.scale_high, shifted(x.bits, 27)));
}

// ln x to an absolute error of 1e-7, or that relative to it.
inline vf log_of(vf x, const Split& at) {
  vf k = (vf)_mm512_getexp_ps((__m512)x), log2_c = pick(load(kSingle.log2), load(kSingle.log2 + VL), at.center);
  vf tail = at.r * (at.r * (at.r * -0.25f + 1.0f / 3) - 0.5f);
  return fused(k + log2_c, splat(0.693147181f), fused(tail, at.r, at.r));
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
