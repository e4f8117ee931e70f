// From a block of scores to weights: the root of each row, then its support, packed or in place.
//
// In: scores (rows, keys) and their maxima; alpha.  Out: per row (top, lam); the support as columns and weights p; or p in place.
#pragma once

#include "../rows/cpu_backward.h"
#include "../rows/cpu_double.h"
#include "../rows/cpu_forward.h"
#include "cpu_scores.h"

namespace {

// How a head turns scores into weights.
struct Mapping {
  bool rela;
  double e;
  Shape shape;
  bool in_double;  // alpha > 2 is solved in float64 scalars, row by row
};
inline Mapping mapping_of(const FlashProblem& p, int64_t b, int64_t h) {
  const double e = p.rela ? 0.0 : p.alpha[b * p.H + h] - 1.0;
  return {p.rela != 0, e, fabs(e) < kSoftmaxBelow ? kSoftmax : e == 0.5 ? kHalf : e == 1.0 ? kOne : kGeneral, e > 1.0};
}

template <Shape shape>
inline vf weight_at(vf x, float e, float inv_e) {  // exp_e(x)
  if (shape == kSoftmax) return vexp(x);
  vf y = vmax(e * x, splat(-1.0f)), q = y + 1.0f;
  if (shape == kHalf) return q * q;
  if (shape == kOne) return q;
  vf p = vexp(vlog1p(y, q) * inv_e);
  return q > 0.0f ? p : vf{};
}

float log_sum_exp(const float* s, int64_t n, float top) {
  double total = 0.0;
  for (int64_t block = 0; block < n; block += 64 * VL) {
    vf sum{};
    for (int64_t i = block; i < n && i < block + 64 * VL; i += VL) sum += vexp(load(s + i) - top);
    total += hsum(sum);
  }
  return (float)log(total);
}

// Space for one block at a time. Every run of keys has room for whole vectors beyond its end.
struct Workspace {
  int64_t ld, tall, batch;
  float *q, *scores, *solver, *weights, *grads, *top;
  int32_t* columns;
};

// lam of every row of a block whose maximum is finite.
inline void solve_block(const Mapping& m, const Block& block, const Workspace& w, const float* scores, float* top, float* lam) {
  for (int64_t r = 0; m.e != m.e && r < block.rows; ++r) top[r] = __builtin_nanf("");  // a broken alpha breaks its head
  Row rows[VL];
  int count = 0;
  auto flush = [&]() {
    if (m.shape == kHalf) solve<kHalf>(rows, count);
    else if (m.shape == kOne) solve<kOne>(rows, count);
    else solve<kGeneral>(rows, count);
    for (int r = 0; r < count; ++r) lam[(rows[r].s - scores) / w.ld] = rows[r].lam;
    count = 0;
  };
  for (int64_t r = 0; r < block.rows; ++r) {
    lam[r] = 0.0f;
    if (m.rela || m.in_double || !(top[r] - top[r] == 0.0f)) continue;
    const float* s = scores + r * w.ld;
    if (m.shape == kSoftmax) {
      lam[r] = log_sum_exp(s, block.keys, top[r]);
      continue;
    }
    rows[count].start(s, block.keys, top[r], m.e, w.solver + count * 3 * (w.ld + 2 * VL));
    if (++count == w.batch) flush();
  }
  if (count) flush();
}

// Rows the vectors cannot serve: alpha > 2, and maxima of +inf. Weights go to `out`, which may be the scores.
inline bool scalar_row(const Mapping& m, int64_t keys, float top, const float* s, float* out, double* scratch) {
  if (m.rela || (!m.in_double && top - top == 0.0f)) return false;
  if (top - top == 0.0f) double_row(s, out, keys, m.e, scratch);
  else special_row(s, out, keys, top != top, top);
  return true;
}

// The support of one row: columns and weights, packed; returns its size. `spare` holds a row of weights and n doubles.
template <Shape shape>
int64_t extract_shape(const float* s, int64_t keys, float top, float lam, float e, float inv_e, bool rela, int32_t* columns, float* weights) {
  int64_t count = 0;
  vi column;
  for (int l = 0; l < VL; ++l) column[l] = l;
  // A little beyond -1/e, where 1 + e x may still round to more than zero; what has no weight leaves below.
  const vf edge = splat(rela ? 0.0f : shape == kSoftmax ? -87.0f : -inv_e * 1.000001f);
  for (int64_t j = 0; j < keys; j += VL, column += VL) {
    vf x = rela ? load(s + j) : (load(s + j) - top) - lam;
    const uint32_t bits = bits_greater(x, edge);
    if (!bits) continue;
    compress((float*)columns + count, as_float(column), bits);
    count += compress(weights + count, x, bits);
  }
  if (rela) return count;
  // Powers of what is barely inside may underflow to zero: the support is what has weight, here as in `densify`.
  int64_t kept = 0;
  for (int64_t i = 0; i < count; i += VL) {
    vf p = weight_at<shape>(load(weights + i), e, inv_e), at = load((const float*)columns + i);
    if (i + VL > count) p = load_tail((const float*)&p, count - i, 0.0f);
    const uint32_t bits = bits_greater(p, vf{});
    compress((float*)columns + kept, at, bits);
    kept += compress(weights + kept, p, bits);
  }
  return kept;
}
inline int64_t extract(const Mapping& m, const float* s, int64_t keys, float top, float lam, float* spare, int32_t* columns, float* weights) {
  if (top == -kInf || top != top) return 0;
  const float e = (float)m.e, inv_e = (float)(1.0 / m.e);
  if (scalar_row(m, keys, top, s, spare, (double*)(spare + keys + 2 * VL))) {
    return extract_shape<kOne>(spare, keys, 0.0f, 0.0f, 1.0f, 1.0f, true, columns, weights);  // copies what is above zero
  }
  switch (m.shape) {
    case kSoftmax: return extract_shape<kSoftmax>(s, keys, top, lam, 0.0f, 0.0f, m.rela, columns, weights);
    case kHalf: return extract_shape<kHalf>(s, keys, top, lam, e, inv_e, m.rela, columns, weights);
    case kOne: return extract_shape<kOne>(s, keys, top, lam, e, inv_e, m.rela, columns, weights);
    default: return extract_shape<kGeneral>(s, keys, top, lam, e, inv_e, m.rela, columns, weights);
  }
}

// The weights of one row in place of its scores; returns the size of the support.
template <Shape shape>
int64_t densify_shape(float* s, int64_t keys, float top, float lam, float e, float inv_e, bool rela) {
  int64_t count = 0;
  for (int64_t j = 0; j < keys; j += VL) {
    vf x = load(s + j);
    vf p = rela ? vmax(x, vf{}) : weight_at<shape>((x - top) - lam, e, inv_e);
    count += __builtin_popcount(bits_greater(p, vf{}));
    store(s + j, p);
  }
  return count;
}
inline int64_t densify(const Mapping& m, float* s, int64_t keys, float top, float lam, float* spare) {
  const float e = (float)m.e, inv_e = (float)(1.0 / m.e);
  if (top == -kInf || top != top) {
    for (int64_t j = 0; j < keys; ++j) s[j] = 0.0f;
    return 0;
  }
  if (scalar_row(m, keys, top, s, s, (double*)spare)) return densify_shape<kOne>(s, keys, 0.0f, 0.0f, 1.0f, 1.0f, true);
  switch (m.shape) {
    case kSoftmax: return densify_shape<kSoftmax>(s, keys, top, lam, 0.0f, 0.0f, m.rela);
    case kHalf: return densify_shape<kHalf>(s, keys, top, lam, e, inv_e, m.rela);
    case kOne: return densify_shape<kOne>(s, keys, top, lam, e, inv_e, m.rela);
    default: return densify_shape<kGeneral>(s, keys, top, lam, e, inv_e, m.rela);
  }
}

inline float entropy_of(const float* p, int64_t count) {  // -sum p ln p
  vf sum{};
  for (int64_t i = 0; i < count; i += VL) {
    vf w = i + VL <= count ? load(p + i) : load_tail(p + i, count - i, 0.0f);
    sum += w > 0.0f ? w * vlog(w > 0.0f ? w : splat(1.0f)) : vf{};
  }
  return -hsum(sum);
}

// Above this share of non-zero weights a block is worked on as dense matrices: a gathered row then costs as much as a tile's.
constexpr double kDenseShare = 0.35;

}  // namespace
