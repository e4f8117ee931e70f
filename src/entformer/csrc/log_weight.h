// exp_e(u - lam) by a logarithm, where a power of the rounded base 1 + e (u - lam) would lose digits (small e), and where there are no
// tables of powers. With c = 1 - e lam, computed in float64 once per row:
//   ln p = ln c / e + log1p(y) / e,   y = e u / c,   1/q = (1/c) / (1 + y)
#pragma once

#include <math.h>

#include "simd.h"

namespace {

struct LogWeight {
  float inv_e, per_c, e_per_c, log_P;  // 1/c, e/c, and ln of the largest weight, that of u = 0
  LogWeight(double e, double lam)
      : inv_e((float)(1.0 / e)),
        per_c((float)(1.0 / (1.0 - e * lam))),
        e_per_c((float)(e / (1.0 - e * lam))),
        log_P((float)(log1p(-e * lam) / e)) {}

  // ln p, very low where p is zero, and c/q = 1/(1 + y), large there.
  ENTFORMER_INLINE vf log_at(vf u, vf& c_over_q) const {
    const vf x = u * per_c, y = u * e_per_c;
    if (bits_greater(splat(-0.25f), y)) return far_log_at(y, c_over_q);
    const vf y2 = y * y;  // of log1p(y)/y, by pairs of terms; relative error 2e-10
    vf poly = (-0.333613055f * y + 0.0419920349f) * y2 + (-0.189869127f * y + 0.197147108f);
    poly = poly * y2 + (-0.250186955f * y + 0.333327387f);
    c_over_q = reciprocal_exact(1.0f + y);
    return (x * y) * (poly * y - 0.500000071f) + (x + log_P);
  }
  vf at(vf u) const {
    vf unused;
    return vexp(log_at(u, unused));
  }

 private:
  ENTFORMER_INLINE vf far_log_at(vf y, vf& c_over_q) const {
    y = vmax(y, splat(-1.0f));
    c_over_q = reciprocal_exact(vmax(y + 1.0f, splat(1e-30f)));
    return vlog1p(y, y + 1.0f) * inv_e + log_P;
  }
};

}  // namespace
