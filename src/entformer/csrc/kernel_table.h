// The kernels of one instruction set as a table of functions, their arguments, and the choice of the instruction set.
//
// kernels.cpp is compiled once per instruction set and fills one KernelTable each. Equations: docs/mathematics.md.
#pragma once

#include "attention.h"
#include "convert.h"

// A row is `n` scores; `alpha` is read per row with stride `alpha_stride` (0: one value for all rows).
struct EntmaxForward {
  Dtype dtype;
  int64_t n;
  const void* scores;   // (rows, n)
  const double* alpha;  // (rows,) or one value
  int64_t alpha_stride;
  void* weights;  // (rows, n), written
  int64_t rows;
};

struct EntmaxBackward {
  Dtype dtype;
  int64_t n;
  const void* weights;       // (rows, n), the output of forward
  const void* grad_weights;  // (rows, n)
  const double* alpha;
  int64_t alpha_stride;
  void* grad_scores;   // (rows, n), written
  double* grad_alpha;  // (rows,), written, or null
};

// Each function works on the tasks [begin, end) and returns false if it could not allocate its scratch memory.
struct KernelTable {
  const char* name;
  int64_t vector_length;                                                           // floats
  Products pair_products;                                                          // of attention with inputs in half precision
  bool has_pairs;                                                                  // other Products than Float32 are compiled
  bool (*entmax_forward)(const EntmaxForward&, int64_t begin, int64_t end);        // over rows
  bool (*entmax_backward)(const EntmaxBackward&, int64_t begin, int64_t end);      // over rows
  int64_t (*attention_block_rows)(const AttentionProblem&);                        // queries per task
  bool (*attention_pack)(const AttentionProblem&, int64_t begin, int64_t end);     // over B * G
  bool (*attention_forward)(const AttentionForward&, int64_t begin, int64_t end);  // over B * H * blocks
  bool (*attention_backward)(const AttentionBackward&, int64_t begin, int64_t end);  // see AttentionBackward
  bool (*attention_support)(const AttentionSupport&, int64_t begin, int64_t end);    // over B * H * blocks
};

extern "C" {
const KernelTable* entformer_kernels_portable();
const KernelTable* entformer_kernels_avx2();
const KernelTable* entformer_kernels_avx512();
}

// The table of the instruction set in use: the widest this CPU has, or the one forced by entformer_set_isa.
const KernelTable& kernel_table();

#define ENTFORMER_EXPORT extern "C" __attribute__((visibility("default")))

// "amx" and "avx512_bf16" (AVX-512 with products of bfloat16 by these), "avx512", "avx2" or "portable".
ENTFORMER_EXPORT const char* entformer_isa();
// Returns 0, and changes nothing, if this CPU does not support `name`.
ENTFORMER_EXPORT int entformer_set_isa(const char* name);
// The lists of dispatch.h as text: "operator<TAB>path<TAB>condition" lines.
ENTFORMER_EXPORT const char* entformer_dispatch_table();
