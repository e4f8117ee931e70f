// The gradient of alpha-entmax in float32 vectors for 1 <= alpha <= 2: from weights p and dL/dp to dL/dscores and dL/dalpha.
//
// w = p^(1-e);  delta = sum(w g)/sum(w);  dS = w (g - delta);  dalpha = sum a (g - delta) with a = dp/dalpha at fixed lam
//   = -p (ln p)^2 psi(t), t = -e ln p, psi(t) = (exp(t) - 1 - t)/t^2, by its series near 0: nothing cancels as alpha -> 1.
#pragma once

#include "../simd.h"
#include "cpu_forward.h"

namespace {

// One row whose slope needs no power (softmax, 1.5, sparsemax): two straight passes, w kept in `out` between them.
template <Shape shape>
void backward_row_direct(const float* p, const float* g, float* out, int64_t n) {
  double W = 0.0, WG = 0.0;
  for (int64_t block = 0; block < n; block += 64 * VL) {
    vf w0{}, wg0{};
    auto add = [&](vf weights, vf grad) {
      vf w = shape == kSoftmax ? weights : shape == kHalf ? vsqrt(weights) : (weights > 0.0f ? splat(1.0f) : weights);
      w0 += w;
      wg0 += w == 0.0f ? vf{} : w * grad;  // whatever the gradient is outside the support, NaN included, it does not count
      return w;
    };
    const int64_t stop = block + 64 * VL < n ? block + 64 * VL : n;
    int64_t i = block;
    for (; i + VL <= stop; i += VL) store(out + i, add(load(p + i), load(g + i)));
    if (i < stop) store_tail(out + i, add(load_tail(p + i, stop - i, 0.0f), load_tail(g + i, stop - i, 0.0f)), stop - i);
    W += hsum(w0);
    WG += hsum(wg0);
  }
  const float delta = W == 0.0 ? 0.0f : (float)WG / (float)W;
  auto result = [&](vf w, vf grad) { return w == 0.0f ? vf{} : w * (grad - delta); };
  int64_t i = 0;
  for (; i + VL <= n; i += VL) store(out + i, result(load(out + i), load(g + i)));
  if (i < n) store_tail(out + i, result(load_tail(out + i, n - i, 0.0f), load_tail(g + i, n - i, 0.0f)), n - i);
}

inline vf slope_of(Shape shape, vf p) {  // p^(1-e) where that needs no power
  if (shape == kSoftmax) return p;
  if (shape == kHalf) return vsqrt(p);
  return p > 0.0f ? splat(1.0f) : p;
}

// Up to VL rows of any alpha in [1, 2] at once: each row's support is packed, worked on there, and put back in place.
struct SupportBatch {
  struct Support {
    const float *p, *g;
    float* out;
    double* grad_alpha;
    float *weight, *grad;  // packed; `weight` becomes the slope, then the gradient
    int64_t count;
    float e;
  };
  Support rows[VL];
  int size = 0;

  void add(const float* p, const float* g, float* out, double* grad_alpha, int64_t n, double e, float* scratch) {
    Support row{p, g, out, grad_alpha, scratch, scratch + n + 2 * VL, 0, (float)e};
    bool has_nan = false;
    for (int64_t i = 0; i < n; i += VL) {
      vf weights = i + VL <= n ? load(p + i) : load_tail(p + i, n - i, 0.0f);
      has_nan |= any_nan(weights);
      const uint32_t bits = bits_greater(weights, vf{});
      compress(row.weight + row.count, weights, bits);
      row.count += compress(row.grad + row.count, i + VL <= n ? load(g + i) : load_tail(g + i, n - i, 0.0f), bits);
    }
    if (has_nan) {
      for (int64_t i = 0; i < n; ++i) out[i] = __builtin_nanf("");
      if (grad_alpha) *grad_alpha = __builtin_nan("");
      return;
    }
    store(row.weight + row.count, vf{});
    store(row.grad + row.count, vf{});
    rows[size++] = row;
  }

  struct Sums {
    vf w, wg, a, ag;
  };

  // Adds one vector of weights p and gradients g, 0 where p is; returns the slopes w.
  static inline vf add_vector(vf p, vf g, float e, bool want_alpha, Sums& sums) {
    vi inside = p > 0.0f;
    p = inside ? p : splat(1.0f);  // ln 1 = 0: the alpha term vanishes
    vf log_p = vlog(p), t = -e * log_p, grown = vexp(t);
    vf w = inside ? p * grown : vf{};  // p^(1-e)
    g = inside ? g : vf{};
    sums.w += w;
    sums.wg += w * g;
    if (want_alpha) {
      vf series = 0.5f + t * (1.0f / 6 + t * (1.0f / 24 + t * (1.0f / 120 + t * (1.0f / 720 + t * (1.0f / 5040)))));
      vf at_least = vmax(t, splat(0.25f));
      vf psi = t < 0.25f ? series : (grown - 1.0f - t) / (at_least * at_least);
      vf a = -p * (log_p * log_p) * psi;
      sums.a += a;
      sums.ag += a * g;
    }
    return w;
  }

  template <bool want_alpha>
  static inline void accumulate(const Support& row, int64_t begin, int64_t end, Sums& sums) {
    for (int64_t i = begin; i < end; i += VL)
      store(row.weight + i, add_vector(load(row.weight + i), load(row.grad + i), row.e, want_alpha, sums));
  }

  template <bool want_alpha>
  void run(int64_t n) {
    vf W_of[VL] = {}, WG_of[VL] = {}, A_of[VL] = {}, AG_of[VL] = {};
    for (int r = 0; r < size; ++r) {
      double W = 0.0, WG = 0.0, A = 0.0, AG = 0.0;  // of the blocks of a long row but the last
      Sums sums{};
      for (int64_t block = 0; block < rows[r].count; block += kShort) {
        const int64_t end = block + kShort < rows[r].count ? block + kShort : rows[r].count;
        accumulate<want_alpha>(rows[r], block, end, sums);
        if (rows[r].count <= kShort) break;
        W += hsum(sums.w), WG += hsum(sums.wg), A += hsum(sums.a), AG += hsum(sums.ag);
        sums = Sums{};
      }
      W_of[r] = sums.w, WG_of[r] = sums.wg, A_of[r] = sums.a, AG_of[r] = sums.ag;
      if (rows[r].count > kShort) W_of[r][0] = (float)W, WG_of[r][0] = (float)WG, A_of[r][0] = (float)A, AG_of[r][0] = (float)AG;
    }
    vf W = sum_each(W_of), delta = W == 0.0f ? vf{} : sum_each(WG_of) / W;
    vf grad_alpha = want_alpha ? sum_each(AG_of) - delta * sum_each(A_of) : vf{};
    for (int r = 0; r < size; ++r) {
      const Support& row = rows[r];
      if (want_alpha) *row.grad_alpha = grad_alpha[r];
      for (int64_t i = 0; i < row.count; i += VL)
        store(row.weight + i, load(row.weight + i) * (load(row.grad + i) - delta[r]));
    }
    for (int r = 0; r < size; ++r) {
      const float* packed = rows[r].weight;
      for (int64_t i = 0; i < n; i += VL) {
        const bool whole = i + VL <= n;
        const uint32_t bits = bits_greater(whole ? load(rows[r].p + i) : load_tail(rows[r].p + i, n - i, 0.0f), vf{});
        vf value = expand(packed, bits);
        packed += __builtin_popcount(bits);
        if (whole) store(rows[r].out + i, value);
        else store_tail(rows[r].out + i, value, n - i);
      }
    }
  }
};

}  // namespace
