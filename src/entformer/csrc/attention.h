// The arguments of the attention kernels: the problem, its tensors, and what each of the three operators reads and writes.
//
// Letters: B batch, H query heads, G key heads (H is a multiple of G), Lq queries, Lk keys, D and E the head sizes of
// query/key and of value. Tensors are (B, H, L, D) with any strides but a last one of 1, counted in elements.
#pragma once

#include "convert.h"

struct AttentionView {
  const void* data;
  int64_t batch, head, row;  // strides
};

struct AttentionProblem {
  Dtype dtype;  // of q, k, v, out and their gradients; not float64
  int64_t B, H, G, Lq, Lk, D, E;
  AttentionView q, k, v;
  const double* alpha;  // (B, H)
  int32_t rela;         // weights are max(score, 0) and alpha is not read
  const uint8_t* mask;  // or null; True = may attend; strides below, 0 where broadcast
  int64_t mask_batch, mask_head, mask_row;
  const uint8_t* key_mask;  // (B, Lk) or null
  const float* slopes;      // (B, H) or null: ALiBi adds -slope |i + causal_offset - j|
  float scale;
  int32_t causal;  // query i sees keys j <= i + causal_offset
  int64_t causal_offset;
  float dropout;  // probability of dropping a weight
  const int64_t* seeds;   // of dropout, one for every `rows_per_seed` rows (B, H, Lq)
  int64_t rows_per_seed;
  int64_t reserve_bytes;  // per row, in which forward may save the support for backward (attention_saved.h)
  bool is_decode;         // too few queries per key head to transpose k into panels: k is read as it lies

  // Prepared once per (batch, key head) by `pack`; row counts and row lengths are padded to whole vectors.
  float* k_panels;   // (B, G, panels, D, panel), the last panel narrower; null if is_decode, and in backward
  float* k_rows;     // (B, G, Lk, D padded), or null
  float* v_rows;     // (B, G, Lk, E padded)
  float* key_bias;   // (B, Lk padded): 0, or -inf where masked or beyond Lk
};

// The state of the rows that forward hands to backward and support: p = exp_e((score - row_max) - threshold). row_max is NaN for a row
// that is NaN throughout. A threshold that float32 does not hold exactly marks a row of so many weights that it shows (solver_fine.h).
struct RowStates {
  float* row_max;     // (B, H, Lq)
  double* threshold;  // (B, H, Lq)
  int32_t* support_size;  // (B, H, Lq)
};

struct AttentionForward {
  AttentionProblem problem;
  void* out;          // (B, H, Lq, E)
  RowStates rows;     // written
  float* entropy;     // (B, H, Lq) or null
  uint8_t* reserve;   // (B, H, Lq, reserve_bytes): saved supports, see attention_saved.h
};

struct AttentionBackward {
  AttentionProblem problem;
  AttentionView grad_out;
  RowStates rows;      // read
  const uint8_t* reserve;
  int64_t chunks;      // the queries of a key head are cut in this many parts, whatever the number of threads
  void* grad_q;        // (B, H, Lq, D)
  float* grad_k;       // (chunks, B, G, Lk, D padded), zeroed by the caller
  float* grad_v;       // (chunks, B, G, Lk, E padded), zeroed by the caller
  double* grad_alpha;  // (chunks, B, H) or null
};

// CSR of the exact support; `offset` (B, H, Lq, and one more) is where each row begins.
struct AttentionSupport {
  AttentionProblem problem;
  RowStates rows;         // read; support_size is null
  const int64_t* offset;
  int32_t* columns;
  float* weights;
};
