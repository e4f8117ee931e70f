// The gradient of alpha-entmax in float32 vectors for 1 <= alpha <= 2: from weights p and dL/dp to dL/dscores and dL/dalpha.
//
// w = p^(1-e);  delta = sum(w g)/sum(w);  dS = w (g - delta);  dalpha = sum a (g - delta) with a = dp/dalpha at fixed lam
//   = -p (ln p)^2 psi(t), t = -e ln p, psi(t) = (exp(t) - 1 - t)/t^2, by its series near 0: nothing cancels as alpha -> 1.
#pragma once

#include "../simd.h"
#include "cpu_forward.h"
#include "cpu_powers.h"

namespace {

// One row whose slope needs no power (softmax, 1.5, sparsemax): two straight passes, w kept in `slopes` between them.
template <Shape shape>
void backward_row_direct(const float* p, const float* g, float* out, int64_t n, float* slopes, bool past_cache) {
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
    for (; i + VL <= stop; i += VL) store(slopes + i, add(load(p + i), load(g + i)));
    if (i < stop) store_tail(slopes + i, add(load_tail(p + i, stop - i, 0.0f), load_tail(g + i, stop - i, 0.0f)), stop - i);
    W += hsum(w0);
    WG += hsum(wg0);
  }
  const float delta = W == 0.0 ? 0.0f : (float)WG / (float)W;
  auto result = [&](vf w, vf grad) { return w == 0.0f ? vf{} : w * (grad - delta); };
  int64_t i = 0;
  for (; i + VL <= n; i += VL) put(out + i, result(load(slopes + i), load(g + i)), past_cache);
  if (i < n) store_tail(out + i, result(load_tail(slopes + i, n - i, 0.0f), load_tail(g + i, n - i, 0.0f)), n - i);
}

inline vf slope_of(Shape shape, vf p) {  // p^(1-e) where that needs no power
  if (shape == kSoftmax) return p;
  if (shape == kHalf) return vsqrt(p);
  return p > 0.0f ? splat(1.0f) : p;
}

// The slopes w = p^(1-e) of a vector of weights and, on request, a = dp/dalpha; both 0 where p is.
inline vf slopes_and_alpha(vf p, float e, bool want_alpha, vf& a) {
  vi inside = p > 0.0f;
  p = inside ? p : splat(1.0f);  // ln 1 = 0 makes `a` vanish
  vf log_p = vlog(p), t = -e * log_p, grown = vexp(t);
  if (want_alpha) {
    vf series = 0.5f + t * (1.0f / 6 + t * (1.0f / 24 + t * (1.0f / 120 + t * (1.0f / 720))));
    const float per_e2 = e > 0.0f ? 1.0f / (e * e) : 0.0f;  // (ln p)^2 / t^2; at e = 0 the series serves all
    a = -p * (t < 0.25f ? log_p * log_p * series : (grown - 1.0f - t) * per_e2);
  }
  return inside ? p * grown : vf{};
}

#if defined(__AVX512F__)
// The same from a table of the power 1 - e. What has no weight gets some slope: the caller leaves it out. A NaN stays one.
inline vf slopes_and_alpha(const PowerTable& table, vf p, bool want_alpha, vf& a) {
  vf x = vmax(splat(kSmallestNormal), p);
  const Split at(x);
  vf w = power_wide(table, at);
  if (want_alpha) {
    const float e = table.e, per_e2 = e > 0.0f ? 1.0f / (e * e) : 0.0f;
    vf log_p = log_of(x, at), t = -e * log_p;
    vf psi = t * (t * (t * (t * 0.00166198481f + 0.00821262452f) + 0.0416874136f) + 0.166665542f) + 0.500000003f;
    a = t < 0.5f ? -p * (log_p * log_p * psi) : (p * t + p - w) * per_e2;
  }
  return w;
}
#endif

// The gradient of one row from its packed support, in three runs of whole vectors:
//   measure   weight -> slope, `effect` = a; returns the sums of w and w g, whose ratio is delta
//   residue   the sum of w (g - delta), which ought to be 0: what the rounding of delta leaves when all g share a large part
//   conclude  grad -> dS = w (g - delta); returns the sum of a (g - delta)
struct PackedRow {
  float *weight, *grad, *effect;
  int64_t count;
  float e;
  const PowerTable* table;  // of the power 1 - e, or none

  // Lane by lane for a short row. A long one is summed block by block in double; its total comes in lane 0.
  template <class Step>
  vf sum_blocks(const Step& step) const {
    double total = 0.0;
    for (int64_t block = 0; block < count; block += kShort) {
      vf sum{};
      for (int64_t i = block; i < count && i < block + kShort; i += VL) sum += step(i);
      if (count <= kShort) return sum;
      total += hsum(sum);
    }
    vf sum{};
    sum[0] = (float)total;
    return sum;
  }

  template <class Slopes>
  vf measure_with(bool want_alpha, const Slopes& slopes) const {
    return sum_blocks([&](int64_t i) {
      vf a{}, w = slopes(load(weight + i), a);
      if (want_alpha) store(effect + i, a);
      store(weight + i, w);
      return w;
    });
  }
  vf measure_slopes(bool want_alpha) const {
#if defined(__AVX512F__)
    if (table) {
      const PowerTable of = *table;
      return measure_with(want_alpha, [&](vf p, vf& a) {
        vf w = slopes_and_alpha(of, p, want_alpha, a);
        a = p > 0.0f ? a : vf{};
        return p > 0.0f ? w : vf{};
      });
    }
#endif
    return measure_with(want_alpha, [&](vf p, vf& a) { return slopes_and_alpha(p, e, want_alpha, a); });
  }
  void measure(bool want_alpha, vf& W, vf& WG) const {
    W = measure_slopes(want_alpha);
    WG = products();
  }
  vf products() const {
    return sum_blocks([&](int64_t i) { return load(weight + i) * load(grad + i); });
  }
  vf residue(float delta) const {
    return sum_blocks([&](int64_t i) { return load(weight + i) * (load(grad + i) - delta); });
  }
  vf conclude(bool want_alpha, float delta, float correction) const {
    return sum_blocks([&](int64_t i) {
      vf centerd = (load(grad + i) - delta) - correction;
      store(grad + i, load(weight + i) * centerd);
      return want_alpha ? load(effect + i) * centerd : vf{};
    });
  }
};

// Up to VL rows of any alpha in [1, 2] at once: each row's support is packed, worked on there, and put back in place.
struct SupportBatch {
  struct Support {
    const float *p, *g;
    float* out;
    double* grad_alpha;
    PackedRow packed;
  };
  Support rows[VL];
  int size = 0;

  // `scratch` holds three runs of n + 2 VL floats.
  void add(const float* p, const float* g, float* out, double* grad_alpha, int64_t n, double e, float* scratch) {
    const int64_t run = n + 2 * VL;
    float *weight = scratch, *grad = scratch + run;
    int64_t count = 0;
    bool has_nan = e != e;
    for (int64_t i = 0; i < n; i += VL) {
      vf weights = i + VL <= n ? load(p + i) : load_tail(p + i, n - i, 0.0f);
      has_nan |= any_nan(weights);
      const uint32_t bits = bits_greater(weights, vf{});
      compress(weight + count, weights, bits);
      count += compress(grad + count, i + VL <= n ? load(g + i) : load_tail(g + i, n - i, 0.0f), bits);
    }
    if (has_nan) {
      for (int64_t i = 0; i < n; ++i) out[i] = __builtin_nanf("");
      if (grad_alpha) *grad_alpha = __builtin_nan("");
      return;
    }
    store(weight + count, vf{});
    store(grad + count, vf{});
    Support& row = rows[size++];
    row.p = p;
    row.g = g;
    row.out = out;
    row.grad_alpha = grad_alpha;
    row.packed.weight = weight;
    row.packed.grad = grad;
    row.packed.effect = grad + run;
    row.packed.count = count;
    row.packed.e = (float)e;
    row.packed.table = nullptr;
  }

  template <bool want_alpha>
  void run(int64_t n, bool past_cache) {
    if (size == 0) return;
    vf W_of[VL] = {}, WG_of[VL] = {}, A_of[VL] = {};
    for (int r = 0; r < size; ++r) rows[r].packed.measure(want_alpha, W_of[r], WG_of[r]);
    vf W = sum_each(W_of);
    W = W == 0.0f ? splat(1.0f) : W;
    vf delta = sum_each(WG_of) / W;
    for (int r = 0; r < size; ++r) WG_of[r] = rows[r].packed.residue(delta[r]);
    vf correction = sum_each(WG_of) / W;
    for (int r = 0; r < size; ++r) A_of[r] = rows[r].packed.conclude(want_alpha, delta[r], correction[r]);
    vf grad_alpha = want_alpha ? sum_each(A_of) : vf{};
    for (int r = 0; r < size; ++r) {
      if (want_alpha) *rows[r].grad_alpha = grad_alpha[r];
      const float* packed = rows[r].packed.grad;
      for (int64_t i = 0; i < n; i += VL) {
        const bool whole = i + VL <= n;
        const uint32_t bits = bits_greater(whole ? load(rows[r].p + i) : load_tail(rows[r].p + i, n - i, 0.0f), vf{});
        vf value = expand(packed, bits);
        packed += __builtin_popcount(bits);
        if (whole) put(rows[r].out + i, value, past_cache);
        else store_tail(rows[r].out + i, value, n - i);
      }
    }
  }
};

}  // namespace
