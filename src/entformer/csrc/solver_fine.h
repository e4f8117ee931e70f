// Weights of a row that float32 cannot hold a root for: many scores, equal or nearly so, barely inside the support.
//
// Elsewhere the base of a weight is q = e u + c with u = s - row_max and c = 1 - e lam, rounded once. A rounding of u, 6e-8 |u|, moves the
// sum of the row by at most 6e-8 sum(w |u|): scores that are equal round alike, and what they have too much the others lack. Since
// sum(w q) = 1, that sum is (c W - 1)/e with W = sum(w). Where it is large the base is computed in float64, where it cancels, and rounded
// to float32 after; powers and sums are computed from there as elsewhere. Only rows of a few high scores and thousands of equal low ones
// are like this: among nearly equal scores |u| is small.
#pragma once

#include <math.h>

#include "dispatch.h"
#include "powers.h"
#include "simd.h"

namespace {

constexpr double kSensitive = 16.0;   // of sum(w |u|): below, 6e-8 of it is some units of float32
constexpr double kFineEnough = 1e-7;  // how far the sum of a row may stay from one
constexpr int64_t kFineBlock = 8 * VL;

// c = 1 - e lam as it is rounded where bases are computed in float32, and the lam that this is.
inline float rounded_c(double e, double lam) { return (float)(1.0 - e * lam); }
inline double rounded_lam(double e, double lam) { return (1.0 - (double)rounded_c(e, lam)) / e; }

inline bool is_sensitive(double e, double lam, double W) {
  return W > kSensitive && ((1.0 - e * lam) * W - 1.0) / e > kSensitive;
}

struct FineRow {
  AlphaCase alpha_case;
  double e, row_max, lam;
  const PowerTable* table;  // of the power 1/e - 1, or null

  // The weights of VL scores and their slopes; zero for -inf.
  vf weights(vf scores, vf& slopes) const {
    const vd y = ((__builtin_convertvector(scores, vd) - row_max) - lam) * e;
    const vf q = vmax(__builtin_convertvector(y + 1.0, vf), vf{});
    if (alpha_case == AlphaCase::Sparsemax) {
      slopes = q > 0.0f ? splat(1.0f) : vf{};
      return q;
    }
    if (alpha_case == AlphaCase::Entmax15) {
      slopes = q;
      return q * q;
    }
#if defined(__AVX2__)
    if (table) {
      const Split x(vmax(q, splat(kLeast)));
      slopes = power_near(*table, x);
      return slopes * q;
    }
#endif
    const vf low = vmax(__builtin_convertvector(y, vf), splat(-1.0f));
    slopes = q > 0.0f ? vexp(vlog1p(low, q) * (float)(1.0 / e - 1.0)) : vf{};
    return slopes * q;
  }

  // S and W of n scores, -inf beyond them up to a whole vector.
  void sums(const float* s, int64_t n, double& S, double& W) const {
    S = W = 0.0;
    for (int64_t block = 0; block < n; block += kFineBlock) {
      vf p{}, w{}, slopes;
      for (int64_t i = block; i < n && i < block + kFineBlock; i += VL) {
        p += weights(load(s + i), slopes);
        w += slopes;
      }
      S += hsum(p);
      W += hsum(w);
    }
  }

  // The weights of n scores, which `out` may be. Touches nothing beyond n.
  void write(const float* s, int64_t n, float* out) const {
    const float most = (float)row_max;
    const vf edge = splat((float)(-1.0 / e) * 1.000001f);
    int64_t i = 0;
    auto written = [&](vf scores) {
      vf slopes;
      return bits_greater(scores - most, edge) ? weights(scores, slopes) : vf{};  // most vectors of a long row have no weight
    };
    for (; i + VL <= n; i += VL) store(out + i, written(load(s + i)));
    if (i < n) store_tail(out + i, written(load_tail(s + i, n - i, -kInf)), n - i);
  }
};

// The row of n scores with maximum `row_max` at its root, which lies near `lam`. `packed` holds n + 2 VL floats of scratch: sums run over
// what can have weight alone, so that scores far below do not change a bit.
ENTFORMER_NOINLINE FineRow fine_row(AlphaCase alpha_case, const float* s, int64_t n, float row_max, double e, double lam,
                                    const PowerTable* table, float* packed) {
  const double most = -expm1(-e * log((double)n)) / e;  // the root of n equal scores: no row has a larger one
  FineRow row{alpha_case, e, row_max, lam < most ? lam : most, table};
  const vf edge = splat((float)(-1.0 / e) * 1.000001f);
  int64_t count = 0;
  for (int64_t i = 0; i < n; i += VL) {
    const vf scores = i + VL <= n ? load(s + i) : load_tail(s + i, n - i, -kInf);
    count += compress(packed + count, scores, bits_greater(scores - row_max, edge));
  }
  store(packed + count, splat(-kInf));
  for (int step = 0; step < 16; ++step) {
    double S, W;
    row.sums(packed, count, S, W);
    if (!(W > 0.0) || fabs(S - 1.0) <= kFineEnough) break;
    row.lam += (S - 1.0) / W;
    if (row.lam > most) row.lam = most;
  }
  return row;
}

}  // namespace
