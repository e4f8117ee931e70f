// The threshold of rows of at most kTableMaxRow scores for 13/12 <= alpha < 2, with powers from tables (AVX-512 and AVX2).
//
// Every stage runs over up to VL rows before the next begins; reductions and steps are taken for all of them at once. Sums at
// e = 1/2 guess where the root is; what can have weight from a little left of there is packed, and two evaluations end most rows. A
// root that turns out further left is searched again among all candidates. No row's result depends on the others'.
#pragma once

#include "powers.h"
#include "solver.h"
#include "solver_double.h"

namespace {

#if defined(__AVX2__)

// How far left of its guess a root may lie before it is searched again, which fewer than one in ten thousand is (normal scores): the first
// times e, or the second over e if that is more. Where e is small guesses are worse, and a margin costs little.
constexpr float kLeftOfGuess = 0.35f, kLeftOfRange = 0.06f;

// Weights are summed in parts of this many: hundreds of equal terms round alike.
constexpr int64_t kPartOfSum = 16 * VL;

struct TableSolver {
  struct One {
    const float* s;
    float *p, *u, *slope;  // candidates less the maximum, and their w, later their p
    uint16_t* chosen;      // which scores they are: one bit a score, a word a vector
    const PowerTable* table;
    int64_t padded;
    float e, inv_e;
    double e_exact;  // e before it was rounded
  } rows[VL];
  PowerTables tables;
  int size = 0;

  // `scratch` holds three runs of n + 2 VL floats.
  void add(const float* s, float* p, int64_t n, double e, float* scratch) {
    One& row = rows[size++];
    row.s = s;
    row.p = p;
    row.u = scratch;
    row.slope = scratch + n + 2 * VL;
    row.chosen = (uint16_t*)(row.slope + n + 2 * VL);
    row.e_exact = e;
    row.e = (float)e;
    row.inv_e = (float)(1.0 / e);
    row.table = table_of(e);
  }
  // The powers 1/e - 1.
  const PowerTable* table_of(double e) { return tables.of((float)e, 1.0 / (double)(float)e - 1.0, true); }

  // Calls step(scores) for the vectors of a row.
  template <class Step>
  static void each_score(const float* s, int64_t n, const Step& step) {
    int64_t i = 0;
    for (; i + VL <= n; i += VL) step(load(s + i));
    if (i < n) step(load_tail(s + i, n - i, -kInf));
  }

  // The maxima, and a guess of the roots. Returns the rows that have a finite maximum and no NaN.
  ENTFORMER_NOINLINE uint32_t begin(int64_t n, vf e, float* row_max, vf& lam) const {
    vf first[VL], second[VL], third[VL];
    for (int r = size; r < VL; ++r) first[r] = second[r] = third[r] = splat(1.0f);
    for (int r = 0; r < size; ++r) {
      vf most = splat(-kInf);
      each_score(rows[r].s, n, [&](vf scores) { most = vmax(scores, most); });  // in this order a NaN is ignored
      first[r] = most;
    }
    store(row_max, max_each(first));
    for (int r = 0; r < size; ++r) {
      const float most = row_max[r];
      vf sum{}, squares{}, cubes{};
      each_score(rows[r].s, n, [&](vf scores) {
        const vf q = vmax(vf{}, fused(scores - most, splat(0.5f), splat(1.0f))), square = q * q;  // and in this one it stays
        sum += q;
        squares += square;
        cubes = fused(square, q, cubes);
      });
      first[r] = sum, second[r] = squares, third[r] = cubes;
    }
    const PowersOfHalf sums{sum_each(first), sum_each(second), sum_each(third)};
    lam = guess_from_half(e, sums, splat((float)n));
    return ((1u << size) - 1) & ~bits_nan(sums.second);
  }

  // Packs what can have weight when lam >= floor.
  ENTFORMER_NOINLINE void compact(int64_t n, uint32_t which, const float* row_max, const float* floor) {
    for (; which; which &= which - 1) {
      const int r = __builtin_ctz(which);
      const float most = row_max[r];
      const vf edge = splat(floor[r] - rows[r].inv_e * (1.0f + 1e-6f));
      float *first = rows[r].u, *next = first;
      uint16_t* chosen = rows[r].chosen;
      each_score(rows[r].s, n, [&](vf scores) {
        vf u = scores - most;
        const uint32_t bits = bits_greater(u, edge);
        next += compress(next, u, bits);
        *chosen++ = (uint16_t)bits;
      });
      store(next, splat(-kInf));
      rows[r].padded = (next - first + VL - 1) / VL * VL;
    }
  }

  // q at lam, at least kLeast, of one vector of u. Written once: the last pass must see what the evaluation saw.
  static vf base_of(float e, vf u, float lam) { return vmax(fused(splat(e), u, splat(rounded_c(e, lam))), splat(kLeast)); }

  // Sums p, w and w/q of row r at lam; stores w. All three fade out where q is kLeast.
  template <int terms>
  void evaluate_row(int r, float lam, vf* p, vf* w_sum, vf* w_over_q) const {
    const float *u = rows[r].u, e = rows[r].e;
    const int64_t padded = rows[r].padded;
    float* slopes = rows[r].slope;
    vf S{}, W{}, C{};
    const PowerTable table = *rows[r].table;
    for (int64_t part = 0; part < padded; part += kPartOfSum) {
      vf sum{};
      for (int64_t i = part; i < padded && i < part + kPartOfSum; i += VL) {
        vf q = base_of(e, load(u + i), lam), w = power_near<terms>(table, Split(q));
        store(slopes + i, w);
        sum = fused(w, q, sum);
        W += w;
        C = fused(w, reciprocal(q), C);
      }
      S += sum;
    }
    p[r] = S, w_sum[r] = W, w_over_q[r] = C;
  }
  ENTFORMER_NOINLINE Evaluation evaluate(uint32_t open, vf lam) const {
    vf p[VL], w[VL], w_over_q[VL];
    float lam_of[VL];
    for (uint32_t closed = ~open & ((1u << VL) - 1); closed; closed &= closed - 1) {
      const int r = __builtin_ctz(closed);
      p[r] = w[r] = w_over_q[r] = vf{};
    }
    store(lam_of, lam);
    for (; open; open &= open - 1) {
      const int r = __builtin_ctz(open);
      if (rows[r].table->terms == kTerms)
        evaluate_row<kTerms>(r, lam_of[r], p, w, w_over_q);
      else
        evaluate_row<kSteepTerms>(r, lam_of[r], p, w, w_over_q);
    }
    return {sum_each(p) - 1.0f, sum_each(w), sum_each(w_over_q), vf{}};
  }

  ENTFORMER_NOINLINE Roots solve_from(int64_t n, uint32_t open, vf e, vf guess) const {
    const LastStep last{splat(kLastHalley), splat(kLastFromRight), ~bits_greater(e, splat(kSmallE)), ~0u};
    return solve_lanes<AlphaCase::General>(open, e, guess, largest_root(e, splat((float)n)), ~bits_greater(e, splat(0.5f)),
                                           kTolerance, last, [&](uint32_t now, vf lam) { return evaluate(now, lam); });
  }

  // p at lam + beyond, in place of w at lam, by two terms of the effect of `last_step`; returns its sum lane by lane.
  static vf apply_last_step(const One& row, float lam, float last_step) {
    const float e = row.e, *u = row.u, half_curve = 0.5f * (1.0f - e) * last_step * last_step, lost = e * last_step;
    const int64_t padded = row.padded;
    float* slope = row.slope;
    vf total{};
    for (int64_t part = 0; part < padded; part += kPartOfSum) {
      vf sum{};
      for (int64_t i = part; i < padded && i < part + kPartOfSum; i += VL) {
        vf q = base_of(e, load(u + i), lam), moved = fused(splat(half_curve), reciprocal(q), q - last_step);
        vf p = q > lost ? load(slope + i) * moved : vf{};
        store(slope + i, p);
        sum += p;
      }
      total += sum;
    }
    return total;
  }

  ENTFORMER_NOINLINE void finish(int64_t n, int64_t ahead, uint32_t good, const float* at, const float* last_step) const {
    vf sum_of[VL];
    for (int r = 0; r < VL; ++r) sum_of[r] = good >> r & 1 ? apply_last_step(rows[r], at[r], last_step[r]) : vf{};
    for (uint32_t left = good; left; left &= left - 1) {
      const One& row = rows[__builtin_ctz(left)];
      const float* next = row.slope;
      const uint16_t* bits = row.chosen;
      float* out = row.p;
      int64_t i = 0;
      for (; i + VL <= n; i += VL, next += __builtin_popcount(*bits++)) {
        fetch(row.s + ahead + i), fetch(out + ahead + i);
        store(out + i, expand(next, *bits));
      }
      if (i < n) store_tail(out + i, expand(next, *bits), n - i);
    }
    vf total = sum_each(sum_of);
    uint32_t off = good & (bits_greater(total - 1.0f, splat(2e-6f)) | bits_greater(1.0f - total, splat(2e-6f)));
    for (; off; off &= off - 1) {  // as in write_weights
      const int r = __builtin_ctz(off);
      for (int64_t i = 0; i < n; ++i) rows[r].p[i] /= total[r];
    }
    for (int r = 0; r < size; ++r) {
      if (good >> r & 1) continue;
      const float row_max = row_maximum(rows[r].s, n);
      write_non_finite_row(rows[r].s, rows[r].p, n, row_max != row_max, row_max);
    }
  }

  // The roots of the rows that were added, and the maxima. `good` are the rows that have a root.
  Roots solve(int64_t n, float* row_max, uint32_t& good) {
    float floor_of[VL];
    vf e = splat(1.0f), guess;
    for (int r = 0; r < size; ++r) e[r] = rows[r].e;
    good = begin(n, e, row_max, guess);
    vf floor = vmax(guess - vmax(kLeftOfGuess * e, kLeftOfRange / e), vf{});
    store(floor_of, floor);
    compact(n, good, row_max, floor_of);
    Roots roots = solve_from(n, good, e, guess);
    if (const uint32_t lost =
            good & bits_greater(floor, vmin(roots.at, roots.at + roots.last_step))) {  // search again among all candidates
      store(floor_of, vf{});
      compact(n, lost, row_max, floor_of);
      const Roots again = solve_from(n, lost, e, guess);
      roots = {blend(lost, again.at, roots.at), blend(lost, again.last_step, roots.last_step), blend(lost, again.W, roots.W),
               blend(lost, again.S, roots.S)};
    }
    return roots;
  }

  void clear() {
    size = 0;
    tables.end_batch();
  }

  // `ahead`: see RowBatch::run.
  void run(int64_t n, int64_t ahead) {
    if (size == 0) return;
    float at_of[VL], last_step_of[VL], row_max[VL];
    uint32_t good;
    const Roots roots = solve(n, row_max, good);
    store(at_of, roots.at);
    store(last_step_of, roots.last_step);
    finish(n, ahead, good, at_of, last_step_of);
    for (uint32_t left = good; left; left &= left - 1) {
      const int r = __builtin_ctz(left);
      const One& row = rows[r];
      if (!is_sensitive(row.e_exact, at_of[r], roots.W[r])) continue;
      fine_row(AlphaCase::General, row.s, n, row_max[r], row.e_exact, at_of[r] + last_step_of[r], row.table, row.u)
          .write(row.s, n, row.p);
    }
    clear();
  }
};

#else

struct TableSolver {
  int size = 0;
  void add(const float*, float*, int64_t, double, float*) {}
  const PowerTable* table_of(double) { return nullptr; }
  Roots solve(int64_t, float*, uint32_t&) { return Roots{}; }
  void clear() {}
  void run(int64_t, int64_t) {}
};

#endif

}  // namespace
