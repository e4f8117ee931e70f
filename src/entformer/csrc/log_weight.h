// exp_e(u - lam) by a logarithm, where a power of the rounded base 1 + e (u - lam) would lose digits (small e), and where there are no
// tables of powers. With c = 1 - e lam, computed in float64 once per row:
//   ln p = ln c / e + log1p(y) / e,   y = e u / c,   1/q = (1/c) / (1 + y)
#pragma once

#include <math.h>

#include "simd.h"

namespace {

struct LogWeight {
  vf inv_e, per_c, e_per_c, log_P;  // 1/c, e/c, and ln of the largest weight, that of u = 0
  LogWeight(double e, double lam)
      : inv_e(splat((float)(1.0 / e))),
        per_c(splat((float)(1.0 / (1.0 - e * lam)))),
        e_per_c(splat((float)(e / (1.0 - e * lam)))),
        log_P(splat((float)(log1p(-e * lam) / e))) {}
  // The same with one lam a lane, and `rounding`: what weights lack because log_P is rounded.
  vf rounding;
  LogWeight(double e, const vd& lam) : inv_e(splat((float)(1.0 / e))) {
    const vd inverse = 1.0 / (1.0 - e * lam), y = e * lam;
    per_c = __builtin_convertvector(inverse, vf), e_per_c = __builtin_convertvector(e * inverse, vf);
    vd series = vd{} + 1.0 / 17;  // log1p(-y)/y: a call for each lane takes longer than a short row
    for (int k = 16; k > 0; --k) series = series * y + 1.0 / k;
    vd exact = -lam * series;
    for (int r = 0; r < VL; ++r)
      if (!(fabs(y[r]) < 0.25)) exact[r] = log1p(-y[r]) / e;
    log_P = __builtin_convertvector(exact, vf);
    rounding = __builtin_convertvector(1.0 + (exact - __builtin_convertvector(log_P, vd)), vf);
  }

  // ln p, very low where p is zero, and c/q = 1/(1 + y), large there.
  ENTFORMER_INLINE vf log_at(vf u, vf& c_over_q) const {
    const vf x = u * per_c, y = u * e_per_c;
    const vf y2 = y * y;  // of log1p(y)/y, by pairs of terms; relative error 2e-10
    vf poly = (-0.333613055f * y + 0.0419920349f) * y2 + (-0.189869127f * y + 0.197147108f);
    poly = poly * y2 + (-0.250186955f * y + 0.333327387f);
    c_over_q = reciprocal_exact(1.0f + y);
    const vf near = (x * y) * (poly * y - 0.500000071f) + (x + log_P);
    const uint32_t is_far = bits_greater(splat(-0.25f), y);
    if (!is_far) return near;
    vf far_ratio;
    const vf far = far_log_at(y, far_ratio);
    c_over_q = blend(is_far, far_ratio, c_over_q);
    return blend(is_far, far, near);
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
