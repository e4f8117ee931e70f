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
// The same for a tensor that a kernel writes.
struct AttentionRows {
  void* data;
  int64_t batch, head, row;
};
// Gradients of k or v in float32, (chunks, B, G, Lk, padded size).
struct GradientRows {
  float* data;
  int64_t chunk, batch, head, row;
};

// Normalizers whose weight depends on one score alone, less the threshold of its row, and not on alpha: X(name, name in the operators,
// weight of the vector x, slope dp/dx from the weights p). kernels/attention/elementwise.py has the same list.
#define ELEMENTWISE_NORMALIZERS(X)            \
  X(Relu, "relu", vmax(x, vf{}), splat(1.0f)) \
  X(Sigmoid, "sigmoid", vsigmoid(x), p * (1.0f - p))

// How scores become weights: exp_e(score - c), or one of the list.
#define ENTFORMER_NORMALIZER_NAME(name, text, weight, slope) name,
enum class Normalizer : int32_t { Entmax, ELEMENTWISE_NORMALIZERS(ENTFORMER_NORMALIZER_NAME) };

// How dense products are computed (gemm.h, pairs.h). float16 needs several products of bfloat16 numbers, which pay with AMX alone.
enum class Products : int32_t { Float32, Avx512Bf16, Amx };

constexpr int64_t kUnlimited = (int64_t)1 << 40;  // of a window: beyond any difference of positions
constexpr float kExcluded = -3.38953139e38f;      // a bias at or below bfloat16's lowest number excludes the pair

// One sequence of queries and one of keys for every batch and head. Packed sequences are several problems whose rows lie in the same
// tensors: pointers begin at the sequence's first query and key, and `first_query`, `first_key` say which these are.
struct AttentionProblem {
  Dtype dtype;  // of q, k, v, out and their gradients; not float64
  Products products;
  int64_t B, H, G, Lq, Lk, D, E;
  int64_t first_query, first_key;  // of this sequence in tensors (B, H, all_queries) of rows, and in masks
  int64_t all_queries, all_keys;   // Lq and Lk, unless sequences are packed
  AttentionView q, k, v;
  const double* alpha;  // (B, H)
  Normalizer normalizer;
  const uint8_t* mask;  // or null; True = may attend; strides below, 0 where broadcast
  int64_t mask_batch, mask_head, mask_row;
  const uint8_t* key_mask;  // (B, all_keys) or null
  const float* slopes;      // (B, H) or null: ALiBi adds -slope |i + causal_offset - j|
  const float* bias;        // or null; added to the scores; strides below, 0 where broadcast
  int64_t bias_batch, bias_head, bias_row, bias_key;
  const float* sinks;  // (B, H) or null: the score of one more key, which has no value
  float scale;
  float softcap;  // or 0: scores become softcap tanh(score / softcap) before bias and ALiBi
  int64_t causal_offset;
  int64_t left, right;  // query i sees keys i + causal_offset - left <= j <= i + causal_offset + right
  bool counts_keys;     // the threshold of sigmoid is log(number of keys of the row), not `sigmoid_threshold`
  float sigmoid_threshold;
  float dropout;         // probability of dropping a weight
  const int64_t* seeds;  // of dropout, one for every `rows_per_seed` rows (B, H, all_queries)
  int64_t rows_per_seed;
  int64_t reserve_bytes;   // per row, in which forward may save the support for backward (attention_saved.h)
  int64_t reserve_stride;  // from row to row
  bool is_decode;          // too few queries per key head to transpose k into panels: k is read as it lies

  // Prepared once per (batch, key head) by `pack`, or null; row counts and row lengths are padded to whole vectors.
  float* k_panels;  // (B, G, panels, panel_depth, panel), the last panel narrower; null where each thread makes those it needs
  float* k_rows;    // (B, G, Lk, D padded)
  float* v_rows;    // (B, G, Lk, E padded)
  float* key_bias;  // (B, Lk padded): 0, or -inf where masked or beyond Lk; null without a key mask
};

// The depth of products over `width` numbers as pairs.h counts it, in how many parts a number is split, and the depth of panels of k or v.
inline int64_t pair_depth(int64_t width) { return round_up(width, 32) / 2; }
inline int64_t pair_parts(const AttentionProblem& p) { return p.dtype == kFloat16 ? 2 : 1; }
inline int64_t panel_depth(const AttentionProblem& p, int64_t width) {
  return p.products == Products::Float32 ? width : pair_depth(width) * pair_parts(p);
}

// The state of the rows that forward hands to backward and support: p = exp_e((score - row_max) - threshold). row_max is NaN for a row
// that is NaN throughout. A threshold that float32 does not hold exactly marks a row of so many weights that it shows (solver_fine.h).
struct RowStates {
  float* row_max;         // (B, H, Lq)
  double* threshold;      // (B, H, Lq)
  int32_t* support_size;  // (B, H, Lq)
};

struct AttentionForward {
  AttentionProblem problem;
  AttentionRows out;  // (B, H, Lq, E)
  RowStates rows;     // written
  float* entropy;     // (B, H, Lq) or null
  uint8_t* reserve;   // (B, H, Lq, reserve_stride): saved supports, see attention_saved.h
};

// What a head sums over its rows.
struct HeadSums {
  double alpha, sink, slope;
};

// A task is a chunk of the queries of every head of one key head, so that one task owns the gradients of k and v; or of all batches or
// all key heads (`joins_batches`, `joins_heads`), where these share the rows of a bias whose gradient is asked for.
struct AttentionBackward {
  AttentionProblem problem;
  AttentionView grad_out;
  RowStates rows;  // read
  const uint8_t* reserve;
  const int64_t* support_offset;  // as in AttentionSupport, with the gradient of its weights; or null
  const float* grad_support;
  int64_t chunks;  // the queries of a key head are cut in this many parts, whatever the number of threads
  bool joins_batches, joins_heads;
  bool needs_alpha_grad, needs_slopes_grad;
  AttentionRows grad_q;         // (B, H, Lq, D)
  GradientRows grad_k, grad_v;  // null where each thread sums the gradients of a key head for itself, to write them to:
  AttentionRows out_k, out_v;   // (B, G, all_keys, size)
  HeadSums* head_sums;          // (chunks, B, H)
  float* grad_bias;             // or null; zeroed by the caller; strides below, 0 where a task adds up
  int64_t grad_bias_chunk, grad_bias_batch, grad_bias_head, grad_bias_row, grad_bias_key;

  bool needs_raw_gradient() const { return problem.softcap != 0.0f || problem.sinks || grad_bias || needs_slopes_grad; }
};

// CSR of the exact support; `offset` (B, H, Lq, and one more) is where each row begins. Columns count from the first key of all.
struct AttentionSupport {
  AttentionProblem problem;
  RowStates rows;  // read; support_size is null
  const int64_t* offset;
  int32_t* columns;
  float* weights;
};
