// The gradient of rows of moderate length in float32 for 1 <= alpha <= 2 (AVX-512 only): cpu_backward.h in straight lines.
//
// In: weights p and dL/dp of up to VL rows, an alpha for each.  Out: dL/dscores and dL/dalpha.
// The supports of all rows stand in one run without gaps, so the costly part, slopes and effects of alpha, fills every lane and
// has no short loops. w = p^(1-e) comes from a table of that power, and so does ln p. Where t = -e ln p is not small,
// dp/dalpha = (p (1 + t) - w)/e^2 loses little; below, it is -p (ln p)^2 psi(t) with psi a polynomial.
// Rows of at most kStraightRow scores are not packed: backward_row_straight takes them one by one.
// No row's result depends on the others'.
#pragma once

#include "cpu_backward.h"
#include "cpu_gathered_forward.h"

namespace {

#if defined(__AVX512F__)

struct GatheredGradients {
  struct One {
    const float *p, *g;
    float* out;
    double* grad_alpha;
    const PowerTable* table;
    int64_t first, count;  // where its support stands
    float e;
  } rows[VL];
  PowerTables tables;
  int size = 0;
  int64_t used = 0, widest = 0;
  float *weight, *grad, *slope, *effect;  // of all supports, one after the other
  uint16_t* support;                      // one bit a key, a word a vector, row after row

  static int64_t scratch_floats(int64_t rows, int64_t n) { return n <= kGatheredRow ? 5 * rows * (n + 2 * VL) : 0; }
  GatheredGradients(float* scratch, int64_t most, int64_t n) {
    const int64_t run = most * (n + 2 * VL);
    weight = scratch;
    grad = scratch + run;
    slope = scratch + 2 * run;
    effect = scratch + 3 * run;
    support = (uint16_t*)(scratch + 4 * run);
  }

  // The powers 1 - e.
  const PowerTable* table_of(double e) { return tables.of((float)e, 1.0 - (double)(float)e, false); }

  // Up to VL rows at a time, then `run`.
  ENTFORMER_APART void add(const float* p, const float* g, float* out, double* grad_alpha, int64_t n, double e) {
    One& row = rows[size];
    row.p = p;
    row.g = g;
    row.out = out;
    row.grad_alpha = grad_alpha;
    row.e = (float)e;
    row.table = table_of(e);
    row.first = used;
    uint16_t* bits_of = support + size * ((n + VL - 1) / VL);
    float *weight_of = weight + used, *grad_of = grad + used;
    int64_t at = 0;
    auto gather = [&](vf weights, vf gradients) {
      // NaN counts as support, so that it shows.
      const uint32_t bits = _mm512_cmp_ps_mask((__m512)weights, _mm512_setzero_ps(), _CMP_NLE_UQ);
      compress(weight_of + at, weights, bits);
      at += compress(grad_of + at, gradients, bits);
      *bits_of++ = (uint16_t)bits;
    };
    int64_t i = 0;
    for (; i + VL <= n; i += VL) gather(load(p + i), load(g + i));
    if (i < n) gather(load_tail(p + i, n - i, 0.0f), load_tail(g + i, n - i, 0.0f));
    row.count = at;
    used += at;
    widest = at > widest ? at : widest;
    ++size;
  }

  // Slopes, and effects of alpha, of entries [begin, end), which share an alpha. May write up to a vector beyond.
  template <bool want_alpha>
  ENTFORMER_APART void measure(const PowerTable& shared, int64_t begin, int64_t end) const {
    const PowerTable table = shared;
    const float *weights = weight;
    float *slopes = slope, *effects = effect;
    for (int64_t i = begin; i < end; i += VL) {
      vf a;
      store(slopes + i, slopes_and_alpha(table, load(weights + i), want_alpha, a));
      if (want_alpha) store(effects + i, a);
    }
  }

  // Calls step(place, lanes) for the vectors of a row, `lanes` being those that are its own. All rows take as many vectors as the
  // largest support needs, since loops of unlike lengths mispredict.
  template <class Step>
  void each_vector(const One& row, const Step& step) const {
    const int64_t end = widest;
    for (int64_t i = 0; i < end; i += VL)
      step(row.first + i, _mm512_cmpgt_epi32_mask(_mm512_set1_epi32((int)(row.count - i)), (__m512i)kLanes));
  }

  // Sums of w; `products`, lane by lane, those of w (g - origin), origin being the row's first g: what all g share would otherwise
  // take the digits in which they differ.
  ENTFORMER_APART vf totals(int64_t n, vf* products, float* origin) const {
    vf W_of[VL] = {};
    for (int r = 0; r < size; ++r) {
      vf W{}, WG{};
      expect_row(rows[r].p + VL * n, n);  // of the next batch
      expect_row(rows[r].g + VL * n, n);
      origin[r] = grad[rows[r].first];
      each_vector(rows[r], [&](int64_t i, __mmask16 lanes) {
        vf w = (vf)_mm512_maskz_loadu_ps(lanes, slope + i);
        W += w;
        WG = (vf)_mm512_mask3_fmadd_ps((__m512)w, (__m512)(load(grad + i) - origin[r]), (__m512)WG, lanes);
      });
      W_of[r] = W;
      products[r] = WG;
    }
    return sum_each(W_of);
  }

  // dS in place of the weights; returns the sums of a (g - delta).
  template <bool want_alpha>
  ENTFORMER_APART vf conclude(const float* origin, const float* delta) const {
    vf sum_of[VL] = {};
    for (int r = 0; r < size; ++r) {
      vf sum{};
      each_vector(rows[r], [&](int64_t i, __mmask16 lanes) {
        vf centerd = (load(grad + i) - origin[r]) - delta[r];
        store(weight + i, load(slope + i) * centerd);
        if (want_alpha) sum = (vf)_mm512_mask3_fmadd_ps((__m512)load(effect + i), (__m512)centerd, (__m512)sum, lanes);
      });
      sum_of[r] = sum;
    }
    return sum_each(sum_of);
  }

  // Puts dS where it belongs. Apart from `conclude`: a load across two stores that are still on their way would wait for them.
  ENTFORMER_APART void spread(int64_t n, bool past_cache) const {
    const uint16_t* bits = support;
    const float* next = weight;
    for (int r = 0; r < size; ++r) {
      float* out = rows[r].out;
      int64_t i = 0;
      for (; i + VL <= n; i += VL, next += __builtin_popcount(*bits++)) put(out + i, expand(next, *bits), past_cache);
      if (i == n) continue;
      store_tail(out + i, expand(next, *bits), n - i);
      next += __builtin_popcount(*bits++);
    }
  }

  template <bool want_alpha>
  void run(int64_t n, bool past_cache) {
    tables.end_batch();  // of rows that went straight, too
    if (size == 0) return;
    store(weight + used, vf{});
    for (int r = 0, end = 1; r < size; r = end++) {
      while (end < size && rows[end].table == rows[r].table) ++end;
      measure<want_alpha>(*rows[r].table, rows[r].first, end < size ? rows[end].first : used);
    }
    vf products[VL] = {};
    float origin[VL], delta[VL];
    vf W = totals(n, products, origin), some = W == 0.0f ? splat(1.0f) : W;
    store(delta, sum_each(products) / some);
    vf grad_alpha = conclude<want_alpha>(origin, delta);
    spread(n, past_cache);
    for (int r = 0; want_alpha && r < size; ++r) *rows[r].grad_alpha = grad_alpha[r];
    for (uint32_t broken = _mm512_cmp_ps_mask((__m512)W, (__m512)W, _CMP_UNORD_Q); broken; broken &= broken - 1) {
      const One& row = rows[__builtin_ctz(broken)];
      for (int64_t i = 0; i < n; ++i) row.out[i] = __builtin_nanf("");
      if (want_alpha) *row.grad_alpha = __builtin_nan("");
    }
    size = 0;
    used = widest = 0;
  }
};

// One row of at most kStraightRow scores, support or not: more arithmetic than packing, but memory is waited for all the while.
// `scratch` holds two runs of n + 2 VL floats.
constexpr int64_t kStraightRow = 128;
template <bool want_alpha>
ENTFORMER_APART void backward_row_straight(const PowerTable& shared, const float* p, const float* g, float* out, double* grad_alpha,
                                           int64_t n, float* scratch, bool past_cache) {
  const PowerTable table = shared;
  float *slopes = scratch, *effects = scratch + n + 2 * VL;
  auto support = [](vf weights) -> uint32_t {
    return _mm512_cmp_ps_mask((__m512)weights, _mm512_setzero_ps(), _CMP_NLE_UQ);  // NaN too, so that it shows
  };
  // g is measured from that of some key with weight, see GatheredGradients: mostly one of the first vector.
  int64_t some = 0;
  for (uint32_t bits; some < n; some += VL)
    if ((bits = support(some + VL <= n ? load(p + some) : load_tail(p + some, n - some, 0.0f)))) {
      some += __builtin_ctz(bits);
      break;
    }
  const float origin = some < n ? g[some] : 0.0f;
  vf W{}, WG{}, sum{};
  auto measure = [&](int64_t i, vf weights, vf grad) {
    const __mmask16 inside = (__mmask16)support(weights);
    vf a, w = (vf)_mm512_maskz_mov_ps(inside, (__m512)slopes_and_alpha(table, weights, want_alpha, a));
    store(slopes + i, w);
    if (want_alpha) store(effects + i, (vf)_mm512_maskz_mov_ps(inside, (__m512)a));
    W += w;
    WG = (vf)_mm512_mask3_fmadd_ps((__m512)w, (__m512)(grad - origin), (__m512)WG, inside);
  };
  int64_t i = 0;
  expect_row(p + VL * n, n);
  expect_row(g + VL * n, n);
  for (; i + VL <= n; i += VL) measure(i, load(p + i), load(g + i));
  if (i < n) measure(i, load_tail(p + i, n - i, 0.0f), load_tail(g + i, n - i, 0.0f));
  const float total = hsum(W), delta = hsum(WG) / (total == 0.0f ? 1.0f : total);
  auto conclude = [&](int64_t at, vf grad) {
    vf w = load(slopes + at), centerd = w == 0.0f ? vf{} : (grad - origin) - delta;
    if (want_alpha) sum += load(effects + at) * centerd;
    return w * centerd;
  };
  for (i = 0; i + VL <= n; i += VL) put(out + i, conclude(i, load(g + i)), past_cache);
  if (i < n) store_tail(out + i, conclude(i, load_tail(g + i, n - i, 0.0f)), n - i);
  if (want_alpha) *grad_alpha = hsum(sum);
  if (total == total) return;
  for (i = 0; i < n; ++i) out[i] = __builtin_nanf("");
  if (want_alpha) *grad_alpha = __builtin_nan("");
}

#else

constexpr int64_t kStraightRow = 0;
template <bool want_alpha>
void backward_row_straight(const PowerTable&, const float*, const float*, float*, double*, int64_t, float*, bool) {}
struct GatheredGradients {
  const PowerTable* table_of(double) { return nullptr; }
  static int64_t scratch_floats(int64_t, int64_t) { return 0; }
  GatheredGradients(float*, int64_t, int64_t) {}
  void add(const float*, const float*, float*, double*, int64_t, double) {}
  template <bool want_alpha>
  void run(int64_t, bool) {}
};

#endif

}  // namespace
