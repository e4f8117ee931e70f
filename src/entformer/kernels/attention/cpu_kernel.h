// The arguments of the fused attention kernels and the table of functions that each instruction set fills in.
//
// Letters: B batch, H query heads, G key heads (H is a multiple of G), Lq queries, Lk keys, D and E the head sizes of
// query/key and of value. Tensors are (B, H, L, D) with any strides but a last one of 1, counted in elements.
#pragma once

#include "../storage.h"

struct AttentionView {
  const void* data;
  int64_t batch, head, row;  // strides
};

struct AttentionProblem {
  EntformerDtype dtype;  // of q, k, v, out and their gradients; not float64
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
  int64_t room;  // bytes in which forward may keep a row's support for backward

  // Prepared once per (batch, key head) by `pack`; row counts and row lengths are padded to whole vectors.
  float* k_panels;   // (B, G, panels, D, panel), the last panel narrower, or null when the queries are too few to be worth it, and in backward
  float* k_rows;     // (B, G, Lk, D padded), or null
  float* v_rows;     // (B, G, Lk, E padded)
  float* key_bias;   // (B, Lk padded): 0, or -inf where masked or beyond Lk
};

// What a row's scores became weights by: p = exp_e((score - top) - (lam + low)). `low` is what float32 cannot hold of lam; it is not
// zero only where the weights are so many that it shows (rows/cpu_fine.h). top is NaN for a row that is NaN throughout.
struct RowState {
  float top, lam, low;
};
constexpr int64_t kStateFloats = sizeof(RowState) / sizeof(float);

struct AttentionForward {
  AttentionProblem problem;
  void* out;          // (B, H, Lq, E)
  RowState* row_state;  // (B, H, Lq)
  int32_t* count;     // (B, H, Lq): support size
  float* entropy;     // (B, H, Lq) or null
  uint8_t* kept;      // (B, H, Lq, room): supports for backward, see cpu_kept.h
};

struct AttentionBackward {
  AttentionProblem problem;
  AttentionView grad_out;
  const RowState* row_state;
  const int32_t* count;
  const uint8_t* kept;
  int64_t chunks;      // the queries of a key head are cut in this many parts, whatever the number of threads
  void* grad_q;        // (B, H, Lq, D)
  float* grad_k;       // (chunks, B, G, Lk, D padded), zeroed by the caller
  float* grad_v;       // (chunks, B, G, Lk, E padded), zeroed by the caller
  double* grad_alpha;  // (chunks, B, H) or null
};

// CSR of the exact support; `offset` (B, H, Lq, and one more) is where each row begins.
struct AttentionSupport {
  AttentionProblem problem;
  const RowState* row_state;
  const int64_t* offset;
  int32_t* columns;
  float* weights;
};

struct AttentionTable {
  const char* name;
  int64_t vector;
  int64_t (*block_rows)(int64_t Lk);                                     // queries per task
  bool (*pack)(const AttentionProblem&, int64_t begin, int64_t end);         // over B * G
  bool (*forward)(const AttentionForward&, int64_t begin, int64_t end);      // over B * H * blocks
  bool (*backward)(const AttentionBackward&, int64_t begin, int64_t end);    // over chunks * B * G
  bool (*support)(const AttentionSupport&, int64_t begin, int64_t end);      // over B * H * blocks
};

extern "C" {
const AttentionTable* entformer_flash_portable();
const AttentionTable* entformer_flash_avx2();
const AttentionTable* entformer_flash_avx512();
}
