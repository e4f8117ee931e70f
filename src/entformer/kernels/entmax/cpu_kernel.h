// The arguments of the row kernels and the table of functions that each instruction set fills in.
//
// Equations: docs/mathematics.md. A row is `n` scores; `alpha` is read per row with stride `alpha_stride` (0: one for all).
#pragma once

#include "../storage.h"

struct EntmaxForward {
  EntformerDtype dtype;
  int64_t n;
  const void* scores;    // (rows, n)
  const double* alpha;   // (rows,) or one value
  int64_t alpha_stride;
  void* weights;         // (rows, n), written
  bool past_cache;       // weights are too many for the cache, float32, and every row begins on a border of 64 bytes
};

struct EntmaxBackward {
  EntformerDtype dtype;
  int64_t n;
  const void* weights;       // (rows, n), what forward wrote
  const void* grad_weights;  // (rows, n)
  const double* alpha;
  int64_t alpha_stride;
  void* grad_scores;         // (rows, n), written
  double* grad_alpha;        // (rows,), written; null when nobody asks
  bool past_cache;           // as above, for grad_scores
};

// Each works on rows [begin, end). Returns false when scratch memory could not be had.
struct EntmaxRowsTable {
  const char* name;
  bool (*forward)(const EntmaxForward&, int64_t begin, int64_t end);
  bool (*backward)(const EntmaxBackward&, int64_t begin, int64_t end);
};

extern "C" {
const EntmaxRowsTable* entformer_rows_portable();
const EntmaxRowsTable* entformer_rows_avx2();
const EntmaxRowsTable* entformer_rows_avx512();
}
