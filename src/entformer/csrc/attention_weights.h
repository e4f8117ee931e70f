// From a block of scores to weights: the threshold of each row, then its support, packed (columns and weights) or in place.
#pragma once

#include "attention_scores.h"
#include "solver_dense.h"
#include "solver_double.h"
#include "solver_short.h"

namespace {

// How a head turns scores into weights.
struct HeadNormalizer {
  Normalizer kind;
  double e;
  AlphaCase alpha_case;
  bool in_double;                      // alpha > 2 is solved in float64, row by row
  const PowerTable *weights, *slopes;  // tables of the powers 1/e - 1 and 1 - e, or null
  const PowerTable* rounded;           // `weights`, if they do not feel how a base is rounded, else null
  bool uses_table_solver;

  bool sums_to_one() const { return kind == Normalizer::Entmax; }
  // Whether rows are solved in float32 with the same steps for all.
  bool is_vectorized() const { return sums_to_one() && e > 0.0 && !in_double && alpha_case != AlphaCase::Softmax; }
  // Whether a weight costs an exponential or a power, computed in float32.
  bool has_power() const {
    return sums_to_one() && !in_double && (alpha_case == AlphaCase::Softmax || alpha_case == AlphaCase::General);
  }
};

// What one thread reuses from head to head.
struct HeadTables {
  TableSolver solver;
  PowerTables slopes;
};

// The normalizer of head (b, h). Its tables are valid until the next call.
inline HeadNormalizer head_normalizer(const AttentionProblem& p, int64_t b, int64_t h, HeadTables& tables) {
  const double e = p.normalizer == Normalizer::Entmax ? p.alpha[b * p.H + h] - 1.0 : 0.0;
  HeadNormalizer m{p.normalizer, e, alpha_case(e), e > 1.0, nullptr, nullptr, nullptr, false};
  tables.solver.clear();
  tables.slopes.end_batch();
  if (!m.sums_to_one() || !kHasTables || m.alpha_case != AlphaCase::General || !(e < 1.0)) return m;
  m.slopes = tables.slopes.of((float)e, 1.0 - (double)(float)e, false);
  if (!has_table(e) && !has_steepest_table(e)) return m;
  m.weights = tables.solver.table_of(e);
  if (!has_table(e)) return m;
  m.rounded = m.weights;
  m.uses_table_solver = most_keys(p) + (p.sinks ? VL : 0) <= kTableMaxRow;
  return m;
}

// The state of one row, see RowStates. The last bit of a threshold marks a row that is computed in float64 (solver_fine.h).
struct RowState {
  float row_max;
  double threshold;
  bool is_fine() const {
    uint64_t bits;
    memcpy(&bits, &threshold, sizeof bits);
    return bits & 1;
  }
  // What is subtracted from a score before `with_weight`.
  float base(const HeadNormalizer& m) const { return m.sums_to_one() ? row_max : (float)threshold; }
};
inline double marked(double threshold, bool is_fine) {
  uint64_t bits;
  memcpy(&bits, &threshold, sizeof bits);
  bits = (bits & ~(uint64_t)1) | is_fine;
  memcpy(&threshold, &bits, sizeof bits);
  return threshold;
}
inline RowState load_state(const RowStates& rows, int64_t row) { return {rows.row_max[row], rows.threshold[row]}; }

// use(weight), weight being exp_e(u - threshold) of one vector for this head's alpha, u = score - row_max; or what an elementwise normalizer
// makes of score - threshold.
template <class Use>
inline auto with_weight(const HeadNormalizer& m, const RowState& state, const Use& use) {
#define ENTFORMER_ELEMENTWISE_WEIGHT(id, text, weight, slope) \
  if (m.kind == Normalizer::id) return use([](vf x) { return weight; });
  ELEMENTWISE_NORMALIZERS(ENTFORMER_ELEMENTWISE_WEIGHT)
  const float lam = (float)state.threshold, c = rounded_c(m.e, state.threshold);
  if (m.alpha_case == AlphaCase::Softmax) return use([lam](vf u) { return vexp(u - lam); });
  if (m.alpha_case == AlphaCase::Sparsemax) return use([c](vf u) { return vmax(u + c, vf{}); });
  if (m.alpha_case == AlphaCase::Entmax15)
    return use([c](vf u) {
      vf q = vmax(0.5f * u + c, vf{});
      return q * q;
    });
#if defined(__AVX2__)
  if (m.weights) {
    const TableWeight weight(*m.weights, m.e, c, 1.0 - m.e * state.threshold);
    return with_terms(weight.table, [&](auto terms) {
      return use([&](vf u) {
        const vf q = weight.base(u);
        return weight.slopes<terms.value>(u, q) * q;
      });
    });
  }
#endif
  const LogWeight weight(m.e, state.threshold);
  return use([weight](vf u) { return weight.at(u); });
}

// Space for one block at a time. Every run of keys has capacity for whole vectors beyond its end.
struct Workspace {
  int64_t ld, tall, batch;
  float *q, *scores, *solver, *weights, *grads;
  float* cap_slopes;  // (tall, ld) in backward with a soft-cap, else null
  float* row_max;     // of each row
  double* threshold;  // of each row
  int32_t* columns;
  HeadTables* tables;
};

// How many weights of a part of a block are not zero, of how many.
struct Density {
  double nonzero = 0.0, weights = 0.0;
  int64_t keys;  // of the block
  double least;  // that is dense: dense tiles then take less time than one row of keys and values for each weight
  Density(const AttentionProblem& p, const Block& block) : keys(block.keys), least(VL == 16 ? 0.22 : 0.33) {
    if (block.pairs) least = 0.14;
    // What a row costs beside its floats counts more the shorter it is.
    if (VL == 16 && keys <= kShortRow && p.D <= 32) least = 0.12;
  }
  // Rows of keys and values that lie far apart come from slower caches.
  bool is_dense() const { return nonzero * (1.0 + (double)keys / 3000.0) > least * weights; }
};

// The threshold of sigmoid for a row of scores.
inline float sigmoid_threshold(const AttentionProblem& p, const float* s, int64_t keys) {
  if (!p.counts_keys) return p.sigmoid_threshold;
  int64_t count = 0;
  for (int64_t j = 0; j < keys; j += VL) count += __builtin_popcount(bits_greater(load(s + j), splat(-kInf)));
  return count > 0 ? (float)log((double)count) : 0.0f;
}

// The threshold of the rows of a block whose maximum is finite.
inline void solve_block(const AttentionProblem& p, const HeadNormalizer& m, const Block& block, const Workspace& w) {
  const int64_t keys = solved_keys(p, block);
  const float* scores = w.scores;
  const float* row_max = w.row_max;
  Row rows[VL];
  const float* scores_of[VL];
  int count = 0;
  auto keep = [&](const float* s, double found, float slopes) {
    const int64_t r = (s - scores) / w.ld;
    w.threshold[r] = marked(found, false);
    if (is_sensitive(m.e, found, slopes))  // the solver is done with its scratch
      w.threshold[r] = marked(fine_row(m.alpha_case, s, keys, row_max[r], m.e, found, m.rounded, w.solver).lam, true);
  };
  auto flush = [&]() {
    if (m.uses_table_solver) {
      float maxima[VL];
      uint32_t good;
      const Roots roots = w.tables->solver.solve(keys, maxima, good);
      w.tables->solver.clear();
      for (int r = 0; r < count; ++r) keep(scores_of[r], rounded_lam((float)m.e, roots.at[r]) + roots.last_step[r], roots.W[r]);
    } else {
      if (m.alpha_case == AlphaCase::Entmax15)
        solve<AlphaCase::Entmax15>(rows, count);
      else if (m.alpha_case == AlphaCase::Sparsemax)
        solve<AlphaCase::Sparsemax>(rows, count);
      else
        solve<AlphaCase::General>(rows, count, false);
      for (int r = 0; r < count; ++r) keep(rows[r].s, rows[r].lam, rows[r].slopes);
    }
    count = 0;
  };
  for (int64_t r = 0; r < block.rows; ++r) {
    w.threshold[r] = 0.0;
    const float* s = scores + r * w.ld;
    if (m.kind == Normalizer::Sigmoid) w.threshold[r] = sigmoid_threshold(p, s, keys);
    if (!m.sums_to_one() || m.in_double || !(row_max[r] - row_max[r] == 0.0f)) continue;
    if (m.alpha_case == AlphaCase::Softmax) {
      w.threshold[r] = log_sum_exp(s, keys, row_max[r]);
      continue;
    }
    float* scratch = w.solver + count * 3 * (w.ld + 2 * VL);
    if (m.uses_table_solver)
      w.tables->solver.add(scores_of[count] = s, nullptr, keys, m.e, scratch);
    else
      rows[count].start(s, keys, row_max[r], m.e, scratch);
    if (++count == w.batch) flush();
  }
  if (count) flush();
}

inline int64_t count_above(const float* x, int64_t keys, float limit) {
  int64_t count = 0;
  for (int64_t j = 0; j < keys; j += VL) count += __builtin_popcount(bits_greater(load(x + j), splat(limit)));
  return count;
}

// About how many keys of some rows have weight, where weights are powers. Near alpha = 1 what can have weight is a good measure of it, else
// what has weight at the solver's first guess.
inline int64_t estimated_support(const AttentionProblem& p, const HeadNormalizer& m, const Block& block, const Workspace& w,
                                 const int64_t* rows, int count) {
  const int64_t columns = solved_keys(p, block);
  DenseRows dense(m.e, m.weights, columns);
  for (int i = 0; i < count; ++i)
    if (w.row_max[rows[i]] - w.row_max[rows[i]] == 0.0f)
      dense.rows[dense.size++] = {w.scores + rows[i] * w.ld, nullptr, w.row_max[rows[i]]};
  const vf lam = m.e > kSmallE && dense.size > 0 ? dense.guess(dense.spread_of_rows()) : vf{};
  int64_t support = 0;
  for (int i = 0; i < dense.size; ++i)
    support += count_above(dense.rows[i].s, block.keys, dense.rows[i].row_max + lam[i] - (float)(1.0 / m.e));
  return support;
}

// Thresholds of all rows of a block, their weights in place of the scores (solver_dense.h) and the sizes of their supports.
inline void solve_in_place(const AttentionProblem& p, const HeadNormalizer& m, const Block& block, const Workspace& w,
                           int64_t* counts) {
  const int64_t columns = solved_keys(p, block);
  DenseRows rows(m.e, m.weights, columns);
  const int64_t fit = kDenseFloats / columns;
  const int most = fit < 1 ? 1 : fit < VL ? (int)fit : VL, first = most < kFirstRows ? most : kFirstRows;
  int64_t row_of[VL];
  auto flush = [&]() {
    const Roots roots = rows.solve();
    for (int r = 0; r < rows.size; ++r) {
      const DenseRows::One& row = rows.rows[r];
      const double lam = rows.evaluated_at(roots.at[r]) + roots.last_step[r];
      const bool is_fine = is_sensitive(m.e, lam, roots.W[r]);
      w.threshold[row_of[r]] = marked(lam, false);
      if (!is_fine) {
        counts[row_of[r]] = rows.write(r, roots.at[r], roots.last_step[r], w.threshold[row_of[r]], block.keys);
        continue;
      }
      const FineRow fine = fine_row(m.alpha_case, row.s, columns, row.row_max, m.e, lam, m.rounded, row.kept);
      w.threshold[row_of[r]] = marked(fine.lam, true);
      fine.write(row.s, columns, row.s);
      counts[row_of[r]] = count_above(row.s, block.keys, 0.0f);
    }
    rows.size = 0;
  };
  for (int64_t r = 0; r < block.rows; ++r) {
    float* s = w.scores + r * w.ld;
    w.threshold[r] = 0.0;
    if (!(w.row_max[r] - w.row_max[r] == 0.0f)) {
      for (int64_t j = 0; j < columns; ++j) s[j] = 0.0f;
      counts[r] = 0;
    } else if (m.alpha_case == AlphaCase::Softmax) {
      w.threshold[r] = softmax_in_place(s, columns, w.row_max[r], w.solver);
      counts[r] = count_above(s, block.keys, 0.0f);
    } else {
      row_of[rows.size] = r;
      rows.rows[rows.size] = {s, w.solver + rows.size * 3 * (w.ld + 2 * VL), w.row_max[r]};
      if (++rows.size == (rows.solved.rows > 0.0f ? most : first)) flush();
    }
  }
  if (rows.size) flush();
}

// The same for few keys (solver_short.h).
inline void solve_short(const AttentionProblem& p, const HeadNormalizer& m, const Block& block, const Workspace& w,
                        int64_t* counts) {
  const int64_t columns = solved_keys(p, block);
  ShortRows rows{m.e, m.alpha_case, m.weights, 0};
  for (int64_t first = 0; first < block.rows; first += VL) {
    rows.size = (int)(block.rows - first < VL ? block.rows - first : VL);
    // Of what the last of these rows may see.
    const int64_t end = block.first + first + rows.size + p.causal_offset + p.right - block.start;
    rows.n = p.sinks ? block.keys + 1 : end < block.real_keys ? (end > 0 ? end : 0) : block.real_keys;
    float* s = w.scores + first * w.ld;
    rows.read(s, w.ld, w.row_max + first);
    const Roots roots = rows.solve();
    vd lam = rows.lam_at(roots);
    for (int r = 0; r < VL; ++r) lam[r] = marked(lam[r], false);
    const uint32_t sensitive = rows.sensitive(lam, roots);
    const vf count = rows.weigh(lam, rows.n < block.real_keys ? rows.n : block.real_keys);
    rows.write(s, w.ld, columns, rows.finite & ~sensitive);
    for (int r = 0; r < rows.size; ++r) {
      float* row = s + r * w.ld;
      w.threshold[first + r] = lam[r];
      counts[first + r] = (int64_t)count[r];
      if (!(rows.finite >> r & 1)) {
        zero_vectors(row, columns);
        w.threshold[first + r] = 0.0;
        counts[first + r] = 0;
      } else if (sensitive >> r & 1) {
        const FineRow fine = fine_row(m.alpha_case, row, columns, w.row_max[first + r], m.e, lam[r], m.rounded, w.solver);
        w.threshold[first + r] = marked(fine.lam, true);
        fine.write(row, columns, row);
        counts[first + r] = count_above(row, block.keys, 0.0f);
      }
    }
  }
}

// The weights of rows that need float64: alpha > 2, or a threshold that float32 does not hold. `out` may be the scores; whole vectors.
// Returns false for any other row. At alpha > 2 `keys` include a sink.
inline bool double_weights(const HeadNormalizer& m, int64_t keys, const RowState& state, const float* s, float* out,
                           double* scratch) {
  if (!m.sums_to_one()) return false;
  if (m.in_double)
    solve_row_double(s, out, keys, m.e, scratch);
  else if (state.is_fine())
    FineRow{m.alpha_case, m.e, state.row_max, state.threshold, m.rounded}.write(s, keys, out);
  else
    return false;
  return true;
}

// What of a row, less `base`, lies above `edge`, and its columns, packed; returns how much.
inline int64_t compact_support(const float* s, int64_t keys, float base, float edge, int32_t* columns, float* out) {
  int64_t count = 0;
  vi column = lane_numbers();
  for (int64_t j = 0; j < keys; j += VL, column += VL) {
    vf x = load(s + j) - base;
    const uint32_t bits = bits_greater(x, splat(edge));
    if (!bits) continue;
    compress((float*)columns + count, as_float(column), bits);
    count += compress(out + count, x, bits);
  }
  return count;
}
// dL/dp, g, of an elementwise normalizer becomes dL/dscore: times the slope at the weights p.
inline void multiply_slopes(Normalizer kind, const float* weights, int64_t count, float* g) {
  for (int64_t i = 0; i < count; i += VL) {
    const int64_t here = count - i < VL ? count - i : VL;
    const vf p = here < VL ? load_tail(weights + i, here, 0.0f) : load(weights + i);
    vf slopes{};
#define ENTFORMER_ELEMENTWISE_SLOPE(id, text, weight, slope) \
  if (kind == Normalizer::id) slopes = slope;
    ELEMENTWISE_NORMALIZERS(ENTFORMER_ELEMENTWISE_SLOPE)
    for (int64_t l = 0; l < here; ++l) g[i + l] *= slopes[l];
  }
}

// The support of a row that holds its weights.
inline int64_t compact_weights(const float* p, int64_t keys, int32_t* columns, float* weights) {
  return compact_support(p, keys, 0.0f, 0.0f, columns, weights);
}

// The support of one row of `keys` columns, of which the solver has seen `solved`: columns and weights, packed; returns its size.
// `scratch` holds a row of weights and as many doubles; at alpha > 2 it is left with the weights, that of the sink included.
inline int64_t sparse_weights(const HeadNormalizer& m, const float* s, int64_t keys, int64_t solved, const RowState& state,
                              float* scratch, int32_t* columns, float* weights) {
  const float row_max = state.row_max;
  if (row_max == -kInf || row_max != row_max) return 0;
  if (m.kind == Normalizer::Relu) return compact_weights(s, keys, columns, weights);
  if (double_weights(m, solved, state, s, scratch, (double*)(scratch + solved + 2 * VL)))
    return compact_weights(scratch, keys, columns, weights);
  // A little beyond lam - 1/e, where the base may still round to more than zero; what has no weight leaves below.
  const float zero = m.alpha_case == AlphaCase::Softmax ? -87.0f : (float)(-1.0 / m.e) * 1.000001f;
  const float edge = m.sums_to_one() ? (float)state.threshold + zero : zero;
  const int64_t count = compact_support(s, keys, state.base(m), edge, columns, weights);
  // Powers of what is barely inside may underflow to zero: the support is what has weight, here as in `dense_weights`.
  return with_weight(m, state, [&](const auto& weight) {
    int64_t nonzero = 0;
    for (int64_t i = 0; i < count; i += VL) {
      vf p = weight(load(weights + i)), at = load((const float*)columns + i);
      if (i + VL > count) p = load_tail((const float*)&p, count - i, 0.0f);
      const uint32_t bits = bits_greater(p, vf{});
      compress((float*)columns + nonzero, at, bits);
      nonzero += compress(weights + nonzero, p, bits);
    }
    return nonzero;
  });
}

// The weights of one row in place of its scores, also that of a sink behind its keys; returns the size of the support.
inline int64_t dense_weights(const HeadNormalizer& m, float* s, int64_t keys, int64_t solved, const RowState& state,
                             float* scratch) {
  const float row_max = state.row_max;
  if (row_max == -kInf || row_max != row_max) {
    for (int64_t j = 0; j < solved; ++j) s[j] = 0.0f;
    return 0;
  }
  if (double_weights(m, solved, state, s, s, (double*)scratch)) return count_above(s, keys, 0.0f);
  const float base = state.base(m);
  int64_t count = 0;
  return with_weight(m, state, [&](const auto& weight) {
    for (int64_t j = 0; j < solved; j += VL) {
      vf p = weight(load(s + j) - base);
      if (j < keys) count += __builtin_popcount(bits_greater(p, vf{}));
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

}  // namespace
