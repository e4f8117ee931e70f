// From a block of scores to weights: the root of each row, then its support, packed or in place.
//
// In: scores (rows, keys) and their maxima; alpha.  Out: the RowState of each row; the support as columns and weights p; or p in place.
#pragma once

#include "../entmax/cpu_backward.h"
#include "../entmax/cpu_double.h"
#include "../entmax/cpu_forward.h"
#include "../entmax/cpu_gathered_forward.h"
#include "cpu_scores.h"

namespace {

// How a head turns scores into weights.
struct Mapping {
  bool rela;
  double e;
  Shape shape;
  bool in_double;  // alpha > 2 is solved in float64 scalars, row by row
  const PowerTable *weights, *slopes;  // tables of the powers 1/e - 1 and 1 - e, where there are any
  bool gathers;                        // its rows are solved by GatheredRows
};
inline Mapping mapping_of(const AttentionProblem& p, int64_t b, int64_t h) {
  const double e = p.rela ? 0.0 : p.alpha[b * p.H + h] - 1.0;
  const Shape shape = fabs(e) < kSoftmaxBelow ? kSoftmax : e == 0.5 ? kHalf : e == 1.0 ? kOne : kGeneral;
  return {p.rela != 0, e, shape, e > 1.0, nullptr, nullptr, false};
}

// What one thread keeps from head to head.
struct HeadTables {
  GatheredRows gathered;
  PowerTables slopes;
};
// The same with tables, which are good until the next call. Weights are always computed with them, since bits depend on that.
inline Mapping mapping_of(const AttentionProblem& p, int64_t b, int64_t h, HeadTables& tables) {
  Mapping m = mapping_of(p, b, h);
  tables.gathered.clear();
  tables.slopes.end_batch();
  if (m.rela || !has_table(m.e)) return m;
  m.weights = tables.gathered.table_of(m.e);
  m.slopes = tables.slopes.of((float)m.e, 1.0 - (double)(float)m.e, false);
  // The first guess of GatheredRows rounds by where keys lie. A head with ALiBi has a window, and to drop the keys beyond it must
  // not change a bit (nn/window.py).
  m.gathers = p.Lk <= kGatheredRow && !(p.slopes && p.slopes[b * p.H + h] != 0.0f);
  return m;
}

// use(weight), weight being exp_e(x) of one vector for this head's alpha, or for ReLA x itself where it is above zero.
template <class Use>
inline auto with_weight(const Mapping& m, const Use& use) {
  const float e = (float)m.e, inv_e = (float)(1.0 / m.e);
  if (m.rela) return use([](vf x) { return vmax(x, vf{}); });
  if (m.shape == kSoftmax) return use([](vf x) { return vexp(x); });
  if (m.shape == kOne) return use([](vf x) { return vmax(x, splat(-1.0f)) + 1.0f; });
  if (m.shape == kHalf)
    return use([](vf x) {
      vf q = vmax(0.5f * x, splat(-1.0f)) + 1.0f;
      return q * q;
    });
#if defined(__AVX512F__)
  if (m.weights) {
    const PowerTable table = *m.weights;
    auto base_of = [e](vf x) { return vmax(fused(splat(e), x, splat(1.0f)), splat(kLeast)); };
    if (table.steep)
      return use([&](vf x) {
        vf q = base_of(x);
        return power_near<true>(table, Split(q)) * q;
      });
    return use([&](vf x) {
      vf q = base_of(x);
      return power_near<false>(table, Split(q)) * q;
    });
  }
#endif
  return use([e, inv_e](vf x) {
    vf y = vmax(e * x, splat(-1.0f)), q = y + 1.0f, p = vexp(vlog1p(y, q) * inv_e);
    return q > 0.0f ? p : vf{};
  });
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
  float *q, *scores, *solver, *weights, *grads, *top, *lam, *low;  // the last three: a RowState of each row
  int32_t* columns;
  HeadTables* tables;
};

// lam and low of every row of a block whose maximum is finite.
inline void solve_block(const Mapping& m, const Block& block, const Workspace& w) {
  const float* scores = w.scores;
  float* top = w.top;
  for (int64_t r = 0; m.e != m.e && r < block.rows; ++r)  // an alpha of NaN makes the rows of its head NaN
    if (top[r] != -kInf) top[r] = __builtin_nanf("");
  Row rows[VL];
  const float* gathered[VL];
  int count = 0;
  auto keep = [&](const float* s, float found, float slopes) {
    const int64_t r = (s - scores) / w.ld;
    w.lam[r] = found;
    if (!(slopes > 0.25f * kSensitive)) return;  // sooner than for rows alone, whose weights are divided by their sum
    const double lam = fine_row(m.shape, s, block.keys, top[r], m.e, found, w.solver).lam;  // the solver is done with its scratch
    w.lam[r] = (float)lam;
    w.low[r] = (float)(lam - w.lam[r]);
  };
  auto flush = [&]() {
    if (m.gathers) {
      vf at{}, beyond{}, slopes{};
      float tops[VL];
      w.tables->gathered.solve(block.keys, at, beyond, slopes, tops);
      w.tables->gathered.clear();
      for (int r = 0; r < count; ++r) keep(gathered[r], at[r] + beyond[r], slopes[r]);
    } else {
      if (m.shape == kHalf) solve<kHalf>(rows, count);
      else if (m.shape == kOne) solve<kOne>(rows, count);
      else solve<kGeneral>(rows, count);
      for (int r = 0; r < count; ++r) keep(rows[r].s, rows[r].lam, rows[r].slopes);  // in whatever order they are now
    }
    count = 0;
  };
  for (int64_t r = 0; r < block.rows; ++r) {
    w.lam[r] = w.low[r] = 0.0f;
    if (m.rela || m.in_double || !(top[r] - top[r] == 0.0f)) continue;
    const float* s = scores + r * w.ld;
    if (m.shape == kSoftmax) {
      w.lam[r] = log_sum_exp(s, block.keys, top[r]);
      continue;
    }
    float* scratch = w.solver + count * 3 * (w.ld + 2 * VL);
    if (m.gathers) w.tables->gathered.add(gathered[count] = s, nullptr, block.keys, m.e, scratch);
    else rows[count].start(s, block.keys, top[r], m.e, scratch);
    if (++count == w.batch) flush();
  }
  if (count) flush();
}

// Rows that float32 cannot serve, since alpha > 2 or by their RowState. Weights go to `out`, which may be the scores; whole vectors.
inline bool double_weights(const Mapping& m, int64_t keys, const RowState& state, const float* s, float* out, double* scratch) {
  if (m.in_double) double_row(s, out, keys, m.e, scratch);
  else if (state.low != 0.0f) FineRow{m.shape, m.e, state.top, (double)state.lam + state.low}.write(s, keys, out);
  else return false;
  return true;
}

// What of a row lies above `edge`, less `base`, and its columns, packed; returns how much.
inline int64_t pack_above(const float* s, int64_t keys, float base, float further, float edge, int32_t* columns, float* out) {
  int64_t count = 0;
  vi column;
  for (int l = 0; l < VL; ++l) column[l] = l;
  for (int64_t j = 0; j < keys; j += VL, column += VL) {
    vf x = (load(s + j) - base) - further;
    const uint32_t bits = bits_greater(x, splat(edge));
    if (!bits) continue;
    compress((float*)columns + count, as_float(column), bits);
    count += compress(out + count, x, bits);
  }
  return count;
}
// The support of a row that holds its weights.
inline int64_t extract_weights(const float* p, int64_t keys, int32_t* columns, float* weights) {
  return pack_above(p, keys, 0.0f, 0.0f, 0.0f, columns, weights);
}

// The support of one row: columns and weights, packed; returns its size. `spare` holds a row of weights and n doubles.
inline int64_t extract(const Mapping& m, const float* s, int64_t keys, const RowState& state, float* spare, int32_t* columns, float* weights) {
  const float top = state.top, lam = state.lam;
  if (top == -kInf || top != top) return 0;
  if (m.rela) return extract_weights(s, keys, columns, weights);
  if (double_weights(m, keys, state, s, spare, (double*)(spare + keys + 2 * VL))) return extract_weights(spare, keys, columns, weights);
  // A little beyond -1/e, where 1 + e x may still round to more than zero; what has no weight leaves below.
  const float edge = m.shape == kSoftmax ? -87.0f : (float)(-1.0 / m.e) * 1.000001f;
  const int64_t count = pack_above(s, keys, top, lam, edge, columns, weights);
  // Powers of what is barely inside may underflow to zero: the support is what has weight, here as in `densify`.
  return with_weight(m, [&](const auto& weight) {
    int64_t kept = 0;
    for (int64_t i = 0; i < count; i += VL) {
      vf p = weight(load(weights + i)), at = load((const float*)columns + i);
      if (i + VL > count) p = load_tail((const float*)&p, count - i, 0.0f);
      const uint32_t bits = bits_greater(p, vf{});
      compress((float*)columns + kept, at, bits);
      kept += compress(weights + kept, p, bits);
    }
    return kept;
  });
}

// The weights of one row in place of its scores; returns the size of the support.
inline int64_t densify(const Mapping& m, float* s, int64_t keys, const RowState& state, float* spare) {
  const float top = state.top, lam = state.lam;
  if (top == -kInf || top != top) {
    for (int64_t j = 0; j < keys; ++j) s[j] = 0.0f;
    return 0;
  }
  int64_t count = 0;
  if (double_weights(m, keys, state, s, s, (double*)spare)) {
    for (int64_t j = 0; j < keys; j += VL) count += __builtin_popcount(bits_greater(load(s + j), vf{}));
    return count;
  }
  const float base = m.rela ? 0.0f : top, further = m.rela ? 0.0f : lam;
  return with_weight(m, [&](const auto& weight) {
    for (int64_t j = 0; j < keys; j += VL) {
      vf p = weight((load(s + j) - base) - further);
      count += __builtin_popcount(bits_greater(p, vf{}));
      store(s + j, p);
    }
    return count;
  });
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
