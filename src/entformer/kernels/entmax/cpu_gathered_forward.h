// alpha-entmax of rows of moderate length in float32 for 13/12 <= alpha < 2 (AVX-512 only): cpu_forward.h in straight lines.
//
// In: up to VL rows of at most kGatheredRow scores, an alpha for each.  Out: their weights.
// Every stage runs over all rows before the next begins; reductions and steps are taken for VL rows at once. One Halley step
// at e = 1/2 guesses where the root is; what could have weight from a little left of there is packed; powers come from tables,
// and two evaluations end most rows. A root that turns out further left is looked for again among all candidates.
// No row's result depends on the others'.
#pragma once

#include "cpu_forward.h"
#include "cpu_powers.h"

namespace {

#if defined(__AVX512F__)

constexpr int64_t kGatheredRow = 1024;
constexpr double kGatheredFrom = 1.0 / 12;  // the least e: below, 1/e - 1 is too high a power for the tables and for a rounded q
constexpr float kLeast = 4.65661287e-10f;  // 2^-31: q below it counts as outside the support
// Of the largest weight P at e = 1/2 and p at e: ln p = (1 + kDrift (1/2 - e)) ln P is a fair guess for rows of many kinds.
constexpr float kDrift = 1.3f;
constexpr float kLeftOfGuess = 0.2f;  // about one root in 500 lies further left
constexpr float kLeftOfRange = 0.05f;  // of 1/e at least: where e is small guesses are worse, and room to the left costs little

// Asks for a row before it is needed; beyond the last one nothing happens.
inline void expect_row(const float* row, int64_t n) {
  for (int64_t i = 0; i < n; i += 64 / (int64_t)sizeof(float)) __builtin_prefetch(row + i);
}

struct GatheredRows {
  struct One {
    const float* s;
    float *p, *u, *slope;  // candidates less the maximum, and their w, later their p
    uint16_t* chosen;      // which scores they are: one bit a score, a word a vector
    const PowerTable* table;
    int64_t padded;
    float e, inv_e;
    double excess;  // e before it was rounded
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
    row.excess = e;
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
  ENTFORMER_APART uint32_t begin(int64_t n, vf e, float* top, vf& lam) const {
    vf S_of[VL], W_of[VL];
    float inside[VL];
    for (int r = size; r < VL; ++r) S_of[r] = W_of[r] = vf{}, inside[r] = 1.0f;
    for (int r = 0; r < size; ++r) {
      vf most = splat(-kInf);
      each_score(rows[r].s, n, [&](vf scores) { most = vmax(scores, most); });  // in this order a NaN is left out
      S_of[r] = most;
    }
    store(top, max_each(S_of));
    for (int r = 0; r < size; ++r) {
      const float most = top[r];
      vf S{}, W{};
      int count = 0;
      each_score(rows[r].s, n, [&](vf scores) {
        vf q = vmax(vf{}, fused(scores - most, splat(0.5f), splat(1.0f)));  // and in this one it stays
        S = fused(q, q, S);
        W += q;
        count += __builtin_popcount(bits_greater(q, vf{}));
      });
      S_of[r] = S;
      W_of[r] = W;
      inside[r] = (float)count;
    }
    vf S = sum_each(S_of), W = sum_each(W_of), change = 2.0f * (S - vsqrt(S)) / W;
    change /= vmax(1.0f + 0.25f * change * (W / S - load(inside) / W), splat(0.5f));
    vf log_p = 2.0f * vlog(vmax(1.0f - 0.5f * change, splat(kSmallestNormal)));
    log_p = vmax(log_p * (1.0f + kDrift * (0.5f - e)), -vlog(splat((float)n)));  // the largest weight is at least 1/n
    lam = vmin(vmax((1.0f - vexp(e * log_p)) / e, vf{}), -log_p);
    return ((1u << size) - 1) & ~(uint32_t)_mm512_cmp_ps_mask((__m512)S, (__m512)S, _CMP_UNORD_Q);
  }

  // Packs what can have weight when lam >= floor, and asks for the same row of the next batch: its solver runs meanwhile.
  ENTFORMER_APART void gather(int64_t n, uint32_t which, const float* top, const float* floor) {
    for (; which; which &= which - 1) {
      const int r = __builtin_ctz(which);
      const float most = top[r];
      const vf edge = splat(floor[r] - rows[r].inv_e * (1.0f + 1e-6f));
      float *first = rows[r].u, *next = first;
      uint16_t* chosen = rows[r].chosen;
      expect_row(rows[r].s + VL * n, n);
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
  static vf base_of(float e, vf u, float lam) { return vmax(fused(splat(e), u, splat(1.0f - e * lam)), splat(kLeast)); }

  // Adds up p, w and w/q of row r at lam; keeps w. All three fade out where q is kLeast.
  template <bool steep>
  void evaluate(int r, float lam, RowSums& of) const {
    const float *u = rows[r].u, e = rows[r].e;
    const int64_t padded = rows[r].padded;
    float* slopes = rows[r].slope;
    vf S{}, W{}, C{};
    const PowerTable table = *rows[r].table;
    for (int64_t i = 0; i < padded; i += VL) {
      vf q = base_of(e, load(u + i), lam), w = power_near<steep>(table, Split(q));
      store(slopes + i, w);
      S = fused(w, q, S);
      W += w;
      C = fused(w, reciprocal(q), C);
    }
    of.p[r] = S;
    of.w[r] = W;
    of.w_over_q[r] = C;
  }
  ENTFORMER_APART void evaluate(uint32_t open, const float* lam_of, RowSums& of) const {
    for (; open; open &= open - 1) {
      const int r = __builtin_ctz(open);
      if (rows[r].table->steep) evaluate<true>(r, lam_of[r], of);
      else evaluate<false>(r, lam_of[r], of);
    }
  }

  // Moves lam of the open rows to their roots: the last evaluation is `at`, the root lies `beyond` it, `slopes` is the sum of w there.
  ENTFORMER_APART void solve_rows(int64_t n, uint32_t open, vf e, vf lam, vf& at, vf& beyond, vf& slopes) const {
    RowSums of;
    const vf most = largest_root(e, splat((float)n)) * (1.0f + 1e-6f);  // as in solve_together
    for (int r = 0; r < VL; ++r)
      if (!(open >> r & 1)) of.p[r] = of.w[r] = of.w_over_q[r] = vf{};
    const uint32_t returns = ~bits_greater(e, splat(0.5f));  // rows that may step left
    uint32_t third_order = returns;
    for (int step = 0; step < 64 && open; ++step) {
      float lam_of[VL];
      store(lam_of, lam);
      evaluate(open, lam_of, of);
      at = blend(open, lam, at);
      vf S = sum_each(of.p), W = sum_each(of.w), excess = S - 1.0f, change = step_of<kGeneral>(of, S, W, e, third_order);
      slopes = blend(open, W, slopes);
      const uint32_t far = bits_greater(excess, splat(kLastHalley)) | bits_greater(splat(-kLastFromRight), excess);
      vf less = kAimShort / vmax(W, splat(kSmallestNormal));
      vf next = vmin(vmax(lam + blend(far & third_order, change - less, change), vf{}), most);
      uint32_t moving = bits_greater(excess, splat((float)kSettled)) & bits_greater(next, lam);
      moving |= bits_greater(splat((float)-kSettled), excess) & (step == 0 ? ~0u : returns);
      moving &= open;
      beyond = blend(open, blend(moving, next - lam, vf{}), beyond);
      lam = blend(moving, next, lam);
      open = moving & (far | ~third_order);
      third_order &= ~bits_greater(splat(-kTooFar), excess);
    }
  }

  // p at lam + beyond, in place of w at lam, by two terms of the effect of `beyond`; returns its sum lane by lane.
  static vf settle(const One& row, float lam, float beyond) {
    const float e = row.e, *u = row.u, half_curve = 0.5f * (1.0f - e) * beyond * beyond, lost = e * beyond;
    const int64_t padded = row.padded;
    float* slope = row.slope;
    vf sum{};
    for (int64_t i = 0; i < padded; i += VL) {
      vf q = base_of(e, load(u + i), lam), moved = fused(splat(half_curve), reciprocal(q), q - beyond);
      vf p = q > lost ? load(slope + i) * moved : vf{};
      store(slope + i, p);
      sum += p;
    }
    return sum;
  }

  ENTFORMER_APART void finish(int64_t n, bool past_cache, uint32_t good, const float* at, const float* beyond) const {
    vf sum_of[VL];
    for (int r = 0; r < VL; ++r) sum_of[r] = good >> r & 1 ? settle(rows[r], at[r], beyond[r]) : vf{};
    for (uint32_t left = good; left; left &= left - 1) {
      const One& row = rows[__builtin_ctz(left)];
      const float* next = row.slope;
      const uint16_t* bits = row.chosen;
      float* out = row.p;
      int64_t i = 0;
      for (; i + VL <= n; i += VL, next += __builtin_popcount(*bits++)) put(out + i, expand(next, *bits), past_cache);
      if (i < n) store_tail(out + i, expand(next, *bits), n - i);
    }
    vf total = sum_each(sum_of);
    uint32_t off = good & (bits_greater(total - 1.0f, splat(2e-6f)) | bits_greater(1.0f - total, splat(2e-6f)));
    for (; off; off &= off - 1) {  // as in cpu_forward.h
      const int r = __builtin_ctz(off);
      for (int64_t i = 0; i < n; ++i) rows[r].p[i] /= total[r];
    }
    for (int r = 0; r < size; ++r) {
      if (good >> r & 1) continue;
      const float top = row_top(rows[r].s, n);
      special_row(rows[r].s, rows[r].p, n, top != top, top);
    }
  }

  // The roots of the rows that were added, as solve_rows has them, and the maxima. Returns the rows that have a root.
  uint32_t solve(int64_t n, vf& at, vf& beyond, vf& slopes, float* top) {
    float floor_of[VL];
    vf e = splat(1.0f), guess;
    for (int r = 0; r < size; ++r) e[r] = rows[r].e;
    const uint32_t good = begin(n, e, top, guess);
    vf floor = vmax(guess - vmax(splat(kLeftOfGuess), kLeftOfRange / e), vf{});
    store(floor_of, floor);
    gather(n, good, top, floor_of);
    solve_rows(n, good, e, guess, at, beyond, slopes);
    if (const uint32_t lost = good & bits_greater(floor, vmin(at, at + beyond))) {
      store(floor_of, vf{});
      gather(n, lost, top, floor_of);
      solve_rows(n, lost, e, guess, at, beyond, slopes);
    }
    return good;
  }

  void clear() {
    size = 0;
    tables.end_batch();
  }

  void run(int64_t n, bool past_cache) {
    if (size == 0) return;
    float at_of[VL], beyond_of[VL], top[VL];
    vf at{}, beyond{}, slopes{};
    const uint32_t good = solve(n, at, beyond, slopes, top);
    store(at_of, at);
    store(beyond_of, beyond);
    finish(n, past_cache, good, at_of, beyond_of);
    for (uint32_t fine = good & bits_greater(slopes, splat(kSensitive)); fine; fine &= fine - 1) {
      const int r = __builtin_ctz(fine);
      const One& row = rows[r];
      fine_row(kGeneral, row.s, n, top[r], row.excess, at_of[r] + beyond_of[r], row.u).write(row.s, n, row.p);
    }
    clear();
  }
};

#else

constexpr int64_t kGatheredRow = 0;
constexpr double kGatheredFrom = 1.0;
struct GatheredRows {
  int size = 0;
  void add(const float*, float*, int64_t, double, float*) {}
  const PowerTable* table_of(double) { return nullptr; }
  uint32_t solve(int64_t, vf&, vf&, vf&, float*) { return 0; }
  void clear() {}
  void run(int64_t, bool) {}
};

#endif

// Whether powers for this e come from tables.
inline bool has_table(double e) { return e >= kGatheredFrom && e < 1.0 && e != 0.5; }

}  // namespace
