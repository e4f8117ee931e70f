// The gradient of alpha-entmax from weights p and dL/dp = g, for rows of entmax and of attention.
//
// w = p^(1-e);  delta = sum(w g)/sum(w);  dS = w (g - delta);  dalpha = sum a (g - delta) with a = dp/dalpha at fixed lam
//   = -p (ln p)^2 psi(t), t = -e ln p, psi(t) = (exp(t) - 1 - t)/t^2, by its series near 0: nothing cancels as alpha -> 1.
#pragma once

#include <math.h>

#include "dispatch.h"
#include "powers.h"
#include "simd.h"

namespace {

// ---- float64 -----------------------------------------------------------------------------------------------------------

inline double alpha_effect_double(double p, double w, double log_p, double e) {
  const double t = -e * log_p;
  if (fabs(t) >= 0.5) return (p * (t + 1.0) - w) / (e * e);
  double psi = 0.0;
  for (int k = 16; k >= 1; --k) psi = (psi + 1.0) * t / (k + 2);
  return -p * log_p * log_p * (psi + 1.0) * 0.5;
}

// dS of one row in float64, of any alpha; returns dL/dalpha. `out` may be g.
template <class T>
double backward_row_double(const T* p, const T* g, T* out, int64_t n, double e, bool needs_alpha_grad) {
  double W = 0.0, WG = 0.0, A = 0.0, AG = 0.0;
  for (int64_t i = 0; i < n; ++i) {
    if (p[i] == 0) continue;
    const double log_p = log((double)p[i]), w = exp((1.0 - e) * log_p);
    W += w;
    WG += w * g[i];
    if (needs_alpha_grad) {
      const double a = alpha_effect_double(p[i], w, log_p, e);
      A += a;
      AG += a * g[i];
    }
  }
  const double delta = W == 0.0 ? 0.0 : WG / W;
  for (int64_t i = 0; i < n; ++i) out[i] = p[i] == 0 ? (T)0 : (T)(exp((1.0 - e) * log((double)p[i])) * (g[i] - delta));
  return AG - delta * A;
}

// ---- float32 vectors, 1 <= alpha <= 2 ----------------------------------------------------------------------------------

inline vf slope_of(AlphaCase alpha_case, vf p) {  // p^(1-e) where that needs no power
  if (alpha_case == AlphaCase::Softmax) return p;
  if (alpha_case == AlphaCase::Entmax15) return vsqrt(p);
  return p > 0.0f ? splat(1.0f) : p;
}

constexpr float kPsiRange = 0.5f;
inline vf psi_near_zero(vf t) {  // psi(t) for 0 <= t < kPsiRange; beyond, exp(t) - 1 - t loses little
  return t * (t * (t * (t * 0.00166198481f + 0.00821262452f) + 0.0416874136f) + 0.166665542f) + 0.500000003f;
}

// The slopes w = p^(1-e) and, on request, a = dp/dalpha; both 0 where p is, NaN where p is.
inline vf slopes_and_alpha(vf p, float e, bool needs_alpha_grad, vf& a) {
  vf log_p = vlog(p), t = -e * log_p, grown = vexp(t);
  if (needs_alpha_grad) {
    const float per_e2 = e > 0.0f ? 1.0f / (e * e) : 0.0f;  // (ln p)^2 / t^2; at e = 0 every t is near zero
    a = -p * (t < kPsiRange ? log_p * log_p * psi_near_zero(t) : (grown - 1.0f - t) * per_e2);
  }
  return p * grown;
}

#if defined(__AVX2__)
// The same, of a p that is no NaN, from a table of the power 1 - e.
inline vf slopes_and_alpha(const PowerTable& table, vf p, bool needs_alpha_grad, vf& a) {
  vf x = vmax(splat(kSmallestNormal), p);
  const Split at(x);
  vf w = p == 0.0f ? vf{} : power_wide(table, at);
  if (needs_alpha_grad) {
    const float e = table.e, per_e2 = e > 0.0f ? 1.0f / (e * e) : 0.0f;
    vf log_p = log_of(at), t = -e * log_p;
    a = t < kPsiRange ? -p * (log_p * log_p * psi_near_zero(t)) : (p * t + p - w) * per_e2;
  }
  return w;
}
#endif

// One row whose slope needs no power, in place: two passes over the row, w stored in `slopes` between them. `ahead`: see RowBatch::run.
template <AlphaCase alpha_case>
void backward_row_in_place(const float* p, const float* g, float* out, int64_t n, int64_t ahead, float* slopes) {
  double W = 0.0, WG = 0.0;
  for (int64_t block = 0; block < n; block += kSumBlock) {
    vf w_sum{}, wg_sum{};
    auto add = [&](vf weights, vf grad) {
      vf w = slope_of(alpha_case, weights);
      w_sum += w;
      wg_sum += w == 0.0f ? vf{} : w * grad;  // outside the support the gradient does not count, NaN included
      return w;
    };
    const int64_t stop = block + kSumBlock < n ? block + kSumBlock : n;
    int64_t i = block;
    for (; i + VL <= stop; i += VL) {
      fetch(out + i);
      store(slopes + i, add(load(p + i), load(g + i)));
    }
    if (i < stop) store_tail(slopes + i, add(load_tail(p + i, stop - i, 0.0f), load_tail(g + i, stop - i, 0.0f)), stop - i);
    W += hsum(w_sum);
    WG += hsum(wg_sum);
  }
  const float delta = W == 0.0 ? 0.0f : (float)WG / (float)W;
  auto result = [&](vf w, vf grad) { return w == 0.0f ? vf{} : w * (grad - delta); };
  int64_t i = 0;
  for (; i + VL <= n; i += VL) {
    fetch(p + ahead + i), fetch(g + ahead + i);
    store(out + i, result(load(slopes + i), load(g + i)));
  }
  if (i < n) store_tail(out + i, result(load_tail(slopes + i, n - i, 0.0f), load_tail(g + i, n - i, 0.0f)), n - i);
}

// The gradient of up to VL rows from their supports, which lie one after the other without gaps: so the costly part, slopes and
// effects of alpha, fills every lane and has no short loops, and reductions are taken for all rows at once. No row's result depends on
// the others'. Weights of zero among the entries are allowed if their g is finite.
struct SupportGradients {
  struct Row {
    int64_t first, count;  // its entries
    float e;
    AlphaCase alpha_case;
    const PowerTable* table;  // of the power 1 - e, or null
  } rows[VL];
  int size = 0;
  int64_t widest = 0;
  const float* weight;
  float *grad, *slope, *effect;  // g, w and a of all entries, with capacity for a vector more
  float* out;                    // dS: may be `weight`, or for a single row `grad`

  void add(int64_t first, int64_t count, double e, AlphaCase alpha_case, const PowerTable* table) {
    rows[size++] = {first, count, (float)e, alpha_case, table};
    widest = count > widest ? count : widest;
  }

  // Slopes, and effects of alpha, of entries [begin, end), which share the alpha of `row`. May write up to a vector beyond.
  template <bool needs_alpha_grad>
  ENTFORMER_NOINLINE void compute_slopes(const Row& row, int64_t begin, int64_t end) const {
    auto each = [&](const auto& slopes) {
      for (int64_t i = begin; i < end; i += VL) {
        vf a;
        store(slope + i, slopes(load(weight + i), a));
        if (needs_alpha_grad) store(effect + i, a);
      }
    };
    if (!needs_alpha_grad && row.alpha_case != AlphaCase::General)
      return each([&](vf p, vf&) { return slope_of(row.alpha_case, p); });
#if defined(__AVX2__)
    if (row.table) {
      const PowerTable table = *row.table;
      return each([&](vf p, vf& a) { return slopes_and_alpha(table, p, needs_alpha_grad, a); });
    }
#endif
    const float e = row.e;
    each([&](vf p, vf& a) { return slopes_and_alpha(p, e, needs_alpha_grad, a); });
  }

  // The sums of term(row, index) over the entries of each row, in its lane, for the `kinds` of sums that term adds to. All rows take as
  // many vectors as the largest support needs, since loops of unlike lengths mispredict; term gets the lanes that are the row's own.
  // Long supports are summed in float64 over short blocks.
  template <int kinds, class Term>
  void sum_rows(vf* sums, const Term& term) const {
    vf parts[kinds][VL];
    for (int r = size; size > 1 && r < VL; ++r)
      for (int k = 0; k < kinds; ++k) parts[k][r] = vf{};
    const vi lanes = lane_numbers();
    for (int r = 0; r < size; ++r) {
      double totals[kinds] = {};
      for (int k = 0; k < kinds; ++k) parts[k][r] = vf{};
      for (int64_t block = 0; block < widest; block += kSumBlock) {
        vf part[kinds] = {};
        for (int64_t i = block; i < widest && i < block + kSumBlock; i += VL)
          term(r, rows[r].first + i, lanes < (int32_t)(rows[r].count - i), part);
        for (int k = 0; k < kinds; ++k) {
          if (size > 1 && widest <= kSumBlock)
            parts[k][r] = part[k];
          else
            totals[k] += hsum(part[k]);
        }
      }
      for (int k = 0; k < kinds && !(size > 1 && widest <= kSumBlock); ++k) parts[k][r][0] = (float)totals[k];
    }
    for (int k = 0; k < kinds; ++k) {
      if (size > 1)
        sums[k] = sum_each(parts[k]);
      else
        sums[k] = parts[k][0];
    }
  }

  // Writes dS times `scale`; returns dL/dalpha of each row in its lane. `has_slopes`: slopes and effects are there already. A row whose g is not finite becomes NaN on its support. g is
  // measured from that of some entry of the support: what all g share would otherwise take the digits in which they differ.
  template <bool needs_alpha_grad>
  vf run(float scale, bool has_slopes = false) {
    for (int r = 0, end = 1; r < size && !has_slopes; r = end++) {
      while (end < size && rows[end].e == rows[r].e) ++end;
      compute_slopes<needs_alpha_grad>(rows[r], rows[r].first, rows[end - 1].first + rows[end - 1].count);
    }
    float origin[VL] = {}, delta[VL];
    for (int r = 0; r < size; ++r) {
      int64_t i = rows[r].first, end = i + rows[r].count;
      while (i < end && weight[i] == 0.0f) ++i;
      origin[r] = i < end ? grad[i] : 0.0f;
    }
    vf sums[2], grad_alpha{};
    sum_rows<2>(sums, [&](int r, int64_t i, vi inside, vf* part) {
      vf w = inside ? load(slope + i) : vf{};
      part[0] += w;
      part[1] += inside ? w * (load(grad + i) - origin[r]) : vf{};
    });
    store(delta, sums[1] / (sums[0] == 0.0f ? splat(1.0f) : sums[0]));
    // Row after row, so that what one row writes beyond its end the next one overwrites.
    sum_rows<1>(&grad_alpha, [&](int r, int64_t i, vi inside, vf* part) {
      vf centered = (load(grad + i) - origin[r]) - delta[r];
      if (needs_alpha_grad) part[0] += inside ? load(effect + i) * centered : vf{};
      store(out + i, load(slope + i) * (centered * scale));
    });
    for (int r = 0; r < size; ++r) {
      if (delta[r] - delta[r] == 0.0f) continue;
      for (int64_t i = rows[r].first; i < rows[r].first + rows[r].count; ++i)
        out[i] = slope[i] == 0.0f ? 0.0f : __builtin_nanf("");
      grad_alpha[r] = __builtin_nanf("");
    }
    size = 0;
    widest = 0;
    return grad_alpha;
  }
};

}  // namespace
