// Sorts the rows of a batch by the solver they need: gathered rows, float32 vectors of three shapes, softmax, float64, none.
//
// In: up to VL rows of n float32 scores, an alpha for each.  Out: their weights, once `run` has been called.
#pragma once

#include "cpu_forward.h"
#include "cpu_gathered_forward.h"

namespace {

// Up to VL rows at once. Rows that need no solver, or the float64 one, are written straight away.
struct RowBatch {
  Row half[VL], one[VL], general[VL];
  int halves = 0, ones = 0, generals = 0;
  GatheredRows gathered;
  bool past_cache;

  explicit RowBatch(bool past_cache_) : past_cache(past_cache_) {}

  void add(const float* s, float* p, int64_t n, double e, float* scratch) {
    if (n <= kGatheredRow && has_table(e)) return gathered.add(s, p, n, e, scratch);
    const float top = row_top(s, n);
    const bool broken = top != top || e != e;  // NaN in the scores or in alpha
    if (broken || !(top - top == 0.0f)) return special_row(s, p, n, broken, top);
    if (fabs(e) < kSoftmaxBelow) return softmax_row(s, p, n, top);
    if (e > 1.0 || e < 0.0) return double_row(s, p, n, e, (double*)scratch);
    Row& row = e == 0.5 ? half[halves++] : e == 1.0 ? one[ones++] : general[generals++];
    row.start(s, n, top, e, scratch);
    row.p = p;
  }
  template <Shape shape>
  void run_shape(Row* rows, int count, int64_t n) const {
    solve<shape>(rows, count);
    for (int r = 0; r < count; ++r) finish<shape>(rows[r], n, past_cache);
  }
  void run(int64_t n) {
    run_shape<kHalf>(half, halves, n);
    run_shape<kOne>(one, ones, n);
    run_shape<kGeneral>(general, generals, n);
    gathered.run(n, past_cache);
    halves = ones = generals = 0;
  }
};

}  // namespace
