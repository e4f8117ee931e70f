// Gradients of one row of attention: from weights, or from scores of a row of which most keys have weight.
#pragma once

#include "attention_forward.h"

namespace {

// dS, times scale, in place of g, from weights; returns dL/dalpha of the row. g is finite where the weight is zero. `scratch` holds two
// rows in whole vectors, which are the slopes and the effects of alpha if `has_slopes`.
inline double score_gradient(const HeadNormalizer& m, bool needs_alpha_grad, const float* p, float* g, int64_t count,
                             float scale, float* scratch, bool has_slopes) {
  if (!m.sums_to_one() || m.in_double) {
    const double grad_alpha = m.in_double ? backward_row_double(p, g, g, count, m.e, needs_alpha_grad) : 0.0;
    if (!m.sums_to_one()) multiply_slopes(m.kind, p, count, g);
    for (int64_t i = 0; i < count; ++i) g[i] *= scale;
    return grad_alpha;
  }
  if (count == 0) return 0.0;
  SupportGradients gradients;
  gradients.weight = p;
  gradients.grad = gradients.out = g;
  gradients.slope = scratch;
  gradients.effect = scratch + round_up(count, VL);
  gradients.add(0, count, m.e, m.alpha_case, m.slopes);
  return needs_alpha_grad ? gradients.run<true>(scale, has_slopes)[0] : (gradients.run<false>(scale, has_slopes), 0.0);
}

// The gradients of one row from its weights p and g = dL/dp: dS times scale and the slope of the soft-cap in place of g, and what the row
// adds to the sums of its head and to the gradient of the bias. Entries are at `columns` (null: at 0, 1, ...) of the block; behind them
// there is capacity for a vector, into which the weight of the sink, `sink`, is written where there is one. g is finite where p is zero.
inline void row_gradient(const AttentionBackward& a, const HeadNormalizer& m, const Block& block, int64_t r,
                         const int32_t* columns, int64_t count, float* p, float* g, float sink, const float* cap_slopes,
                         float* grad_bias, HeadSums& sums, float* scratch, bool has_slopes = false) {
  const AttentionProblem& problem = a.problem;
  if (!a.needs_raw_gradient()) {
    sums.alpha += score_gradient(m, a.needs_alpha_grad, p, g, count, problem.scale, scratch, has_slopes);
    return;
  }
  const int64_t all = problem.sinks ? count + 1 : count;
  if (problem.sinks) p[count] = sink, g[count] = 0.0f;
  sums.alpha += score_gradient(m, a.needs_alpha_grad, p, g, all, 1.0f, scratch, has_slopes);
  if (problem.sinks) sums.sink += g[count];
  if (grad_bias) {
    float* to = grad_bias + (block.first + r) * a.grad_bias_row + block.start * a.grad_bias_key;
    const int64_t real = columns ? count : block.real_keys;
    if (a.grad_bias_key == 0) {
      double sum = 0.0;
      for (int64_t i = 0; i < real; ++i) sum += g[i];
      *to += (float)sum;
    } else if (columns) {
      for (int64_t i = 0; i < real; ++i) to[columns[i]] += g[i];
    } else {
      for (int64_t i = 0; i < real; ++i) to[i] += g[i];
    }
  }
  if (a.needs_slopes_grad) {
    const int64_t at = block.first + r + problem.causal_offset - block.start;
    double sum = 0.0;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t distance = at - (columns ? columns[i] : i);
      sum -= (double)g[i] * (double)(distance < 0 ? -distance : distance);
    }
    sums.slope += sum;
  }
  for (int64_t i = 0; i < count; ++i) g[i] *= problem.scale;
  if (!cap_slopes) return;
  for (int64_t i = 0; i < count; ++i) g[i] = g[i] == 0.0f ? 0.0f : g[i] * cap_slopes[i];  // a masked key may hold NaN
}

// The effect of alpha on weights p with slopes w, see row_gradient.h, from ln p and t = -e ln p: (p (1 + t) - w) / e^2, since
// w = p exp(t).
ENTFORMER_INLINE vf effect_of_alpha(vf p, vf w, vf log_p, vf t, float per_e2) {
  const vf direct = fused(p, t + 1.0f, -w) * per_e2;
  // kPsiRange would be more exact, but most vectors of a dense row would take both ways. At 0.18 the difference still has six digits of
  // those that p has: 1e-5 of a term.
  const vf near = splat(0.18f);
  return bits_greater(near, t) ? (t < near ? -p * (log_p * log_p) * psi_near_zero(t) : direct) : direct;
}

// use(slopes), slopes(p, w, a) being the slopes w of one vector of weights and, if needed, the effects of alpha a; it returns p. See
// `has_slopes_of_weights`.
template <bool needs_alpha_grad, class Use>
inline void with_slopes_of_weights(const HeadNormalizer& m, const Use& use) {
  const float e = (float)m.e;
  if (m.alpha_case != AlphaCase::General && !needs_alpha_grad)
    return use([&](vf p, vf& w, vf&) {
      w = slope_of(m.alpha_case, p);
      return p;
    });
#if defined(__AVX2__)
  if (m.alpha_case != AlphaCase::Softmax && m.slopes) {
    const PowerTable table = *m.slopes;
    const float per_e2 = (float)(1.0 / (m.e * m.e));
    return use([&](vf p, vf& w, vf& a) {
      const Split at(vmax(p, splat(kSmallestNormal)));
      w = p > 0.0f ? power_wide(table, at) : vf{};
      if (needs_alpha_grad) {
        const vf log_p = log_of(at);
        a = p > 0.0f ? effect_of_alpha(p, w, log_p, -e * log_p, per_e2) : vf{};
      }
      return p;
    });
  }
#endif
  use([&](vf p, vf& w, vf& a) {
    w = slopes_and_alpha(p, e, needs_alpha_grad, a);
    return p;
  });
}
inline bool has_slopes_of_weights(const HeadNormalizer& m) { return m.sums_to_one() && !m.in_double; }

// use(weight), weight(u, w, a) being the weights of one vector u = score - row_max, their slopes w and, if needed, the effects of alpha a:
// what a weight is computed from gives both for little. See `has_slopes_of`.
template <bool needs_alpha_grad, class Use>
inline void with_slopes(const HeadNormalizer& m, const RowState& state, const Use& use) {
  const float e = (float)m.e, per_e2 = (float)(1.0 / (m.e * m.e));
  auto effect_of = [&](vf p, vf w, vf log_p, vf t) { return effect_of_alpha(p, w, log_p, t, per_e2); };
  if (m.alpha_case == AlphaCase::Softmax) {
    const float lam = (float)state.threshold;
    return use([lam](vf u, vf& w, vf& a) {
      vf log_p = vmax(u - lam, splat(-100.0f));
      w = vexp(log_p);
      a = w * (log_p * log_p * -0.5f);
      return w;
    });
  }
  const float c = rounded_c(m.e, state.threshold), inv_e = (float)(1.0 / m.e);
  if (m.alpha_case != AlphaCase::General) {
    const bool is_half = m.alpha_case == AlphaCase::Entmax15;
    return use([&](vf u, vf& w, vf& a) {
      vf q = vmax(fused(splat(e), u, splat(c)), vf{}), p = is_half ? q * q : q;
      w = is_half ? q : slope_of(AlphaCase::Sparsemax, q);
      if (needs_alpha_grad) {
        vf log_q = vlog(q);
        a = p > 0.0f ? effect_of(p, w, log_q * inv_e, -log_q) : vf{};
      }
      return p;
    });
  }
#if defined(__AVX2__)
  if (m.weights) {
    const TableWeight weight(*m.weights, m.e, c, 1.0 - m.e * state.threshold);
    auto of_table = [&](vf u, vf& w, vf& a, auto terms) {
      const vf q = weight.base(u);
      const Split split = weight.split<terms.value>(u, q);
      w = power_near<terms.value>(weight.table, split);
      const vf p = w * q;
      if (needs_alpha_grad) {
        vf log_q = log_of(split), y = q - 1.0f;
        if (bits_greater(y, splat(-0.05f)))  // there the table is not exact enough
          log_q = y > -0.05f ? y - y * y * (0.5f - y * (1.0f / 3 - y * (0.25f - y * 0.2f))) : log_q;
        a = effect_of(p, w, log_q * inv_e, -log_q);
      }
      return p;
    };
    return with_terms(weight.table, [&](auto terms) { use([&](vf u, vf& w, vf& a) { return of_table(u, w, a, terms); }); });
  }
#endif
  const LogWeight weight(m.e, state.threshold);
  use([&](vf u, vf& w, vf& a) {
    vf inverse, log_p = weight.log_at(u, inverse), p = vexp(log_p);
    inverse *= weight.per_c;
    w = p * inverse;
    a = p > 0.0f ? effect_of(p, w, log_p, -e * log_p) : vf{};  // else 1/q may not be finite
    return p;
  });
}

// Whether `with_slopes` has the weights of a row.
inline bool has_slopes_of(const HeadNormalizer& m, const RowState& state) {
  return m.sums_to_one() && !m.in_double && !state.is_fine() && state.row_max - state.row_max == 0.0f;
}

// The weights of one row in place of its scores, their slopes and the effects of alpha.
template <bool needs_alpha_grad>
inline void dense_weights_and_slopes(const HeadNormalizer& m, float* s, int64_t keys, const RowState& state, float* slope,
                                     float* effect) {
  with_slopes<needs_alpha_grad>(m, state, [&](const auto& weight) {
    for (int64_t j = 0; j < keys; j += VL) {
      vf w, a;
      store(s + j, weight(load(s + j) - state.row_max, w, a));
      store(slope + j, w);
      if (needs_alpha_grad) store(effect + j, a);
    }
  });
}

// The weights of one row in place of its scores, unless `has_weights`, and dS times scale in place of g = dL/dp; returns dL/dalpha. g counts
// only where there is weight, and is measured from that of some key, see SupportGradients::run. `slope` holds a row.
template <bool needs_alpha_grad>
inline double dense_row_gradient(const HeadNormalizer& m, float* s, float* g, int64_t keys, const RowState& state,
                                 bool has_weights, float scale, float* slope) {
  int64_t some = 0;
  while (some + 1 < keys && s[some] == (has_weights ? 0.0f : -kInf)) ++some;
  const float origin = g[some] - g[some] == 0.0f ? g[some] : 0.0f, base = has_weights ? 0.0f : state.row_max;
  double W = 0.0, WG = 0.0, A = 0.0, AG = 0.0;
  auto sum_up = [&](const auto& weight) {
    for (int64_t block = 0; block < keys; block += kSumBlock) {
      vf w_sum{}, wg_sum{}, a_sum{}, ag_sum{};
      for (int64_t j = block; j < keys && j < block + kSumBlock; j += VL) {
        vf w, a, p = weight(load(s + j) - base, w, a), from_origin = p > 0.0f ? load(g + j) - origin : vf{};
        store(s + j, p);
        store(slope + j, w);
        store(g + j, from_origin);
        w_sum += w, wg_sum += w * from_origin;
        if (needs_alpha_grad) a_sum += a, ag_sum += a * from_origin;
      }
      W += hsum(w_sum), WG += hsum(wg_sum);
      if (needs_alpha_grad) A += hsum(a_sum), AG += hsum(ag_sum);
    }
  };
  if (has_weights)
    with_slopes_of_weights<needs_alpha_grad>(m, sum_up);
  else
    with_slopes<needs_alpha_grad>(m, state, sum_up);
  const float delta = W > 0.0 ? (float)(WG / W) : 0.0f;
  if (delta - delta == 0.0f)
    for (int64_t j = 0; j < keys; j += VL) store(g + j, load(slope + j) * ((load(g + j) - delta) * scale));
  else  // values that have weight are not finite
    for (int64_t j = 0; j < keys; ++j) g[j] = slope[j] == 0.0f ? 0.0f : __builtin_nanf("");
  return needs_alpha_grad ? AG - delta * A : 0.0;
}

}  // namespace
