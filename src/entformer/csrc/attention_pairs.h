// Products of attention with inputs in half precision: rows of a block as factors of pairs.h, and products along keys and queries.
#pragma once

#include "attention_heads.h"

namespace {

// Factors that one thread makes of k, v and a block.
class PairSpace {
 public:
  PairedRows k, v;
  float* panel;  // (rows, PANEL) products

  // For blocks of `tall` rows at most.
  PairSpace(const AttentionProblem& problem, int64_t tall)
      : k{problem, true}, v{problem, false}, p(problem), parts(pair_parts(problem)), tiles(problem.products) {
    if (!of_block()) return;
    const int64_t rows = round_up(tall, 2 * kTileRows), all = rows + kRowsBehind;
    const int64_t below = rows / 2 * (padded_d(p) + padded_e(p)), part = kPart / 2 * all + kPart * kRowsBehind;
    memory.allocate((size_t)(all * PANEL + parts * (all * (pair_depth(p.D) + pair_depth(p.E)) + below + part)) * sizeof(float));
    panel = (float*)memory.data;
    left_q = (uint32_t*)(panel + all * PANEL);
    left_grad = left_q + parts * all * pair_depth(p.D);
    right_q = left_grad + parts * all * pair_depth(p.E);
    right_grad = right_q + parts * rows / 2 * padded_d(p);
    weights = right_grad + parts * rows / 2 * padded_e(p);
  }
  // What a block has of it: nothing where products are of float32.
  PairSpace* of_block() { return p.products == Products::Float32 ? nullptr : this; }
  bool has_memory() { return !of_block() || memory.data; }

  // Rows of the block as factors of scores and of dO v^T; `rows` floats, padded to whole vectors.
  void set_queries(const float* from, int64_t rows) { pair_rows(from, padded_d(p), rows, p.D, parts, left_q, pair_depth(p.D)); }
  void set_grad_out(const float* from, int64_t rows) {
    pair_rows(from, padded_e(p), rows, p.E, parts, left_grad, pair_depth(p.E));
  }
  // The same rows as right factors, of dS^T q and p^T dO.
  void set_right(const float* queries, const float* grad_out, int64_t rows) {
    pair_columns(queries, padded_d(p), rows, padded_d(p), parts, right_q, pair_depth(rows));
    pair_columns(grad_out, padded_e(p), rows, padded_e(p), parts, right_grad, pair_depth(rows));
  }

  // panel (rows, width) = queries, or grad_out, times a panel of k or v that is `across` wide. All parts are multiplied: of exact inputs
  // the products are exact, but for rounding their sums in float32.
  void panel_product(bool keys, int64_t rows, int64_t width, const float* of_head, int64_t across) const {
    const int64_t depth = pair_depth(keys ? p.D : p.E);
    product(rows, width, depth, parts == 2 ? 4 : 1, keys ? left_q : left_grad,
            {(const uint32_t*)of_head, across, depth * across}, panel, PANEL, false);
  }
  // out (rows, width) = weights (rows, depth) times b (depth, width), or added to it.
  void dense_product(const float* from, int64_t ld, int64_t rows, int64_t depth, const RightFactor& b, float* out,
                     bool add) const {
    for (int64_t at = 0; at == 0 || at < depth; at += kPart) {
      const int64_t here = depth - at < kPart ? depth - at : kPart, pairs = pair_depth(here);
      pair_rows(from + at, ld, rows, here, parts, weights, pairs);
      product(rows, b.stride, pairs, parts == 2 ? 3 : 1, weights, {b.pairs + at / 2 * b.stride, b.stride, b.part}, out,
              b.stride, add || at > 0);
    }
  }
  // grad (columns, width), rows `stride` apart, += transpose of weights (rows, columns) times the queries or grad_out; at most kPart columns.
  void add_gradient(bool keys, const float* from, int64_t ld, int64_t columns, int64_t rows, float* grad,
                    int64_t stride) const {
    const int64_t pairs = pair_depth(rows), width = keys ? padded_d(p) : padded_e(p);
    pair_transposed(from, ld, rows, columns, parts, weights, pairs);
    product(columns, width, pairs, parts == 2 ? 3 : 1, weights, {keys ? right_q : right_grad, width, pairs * width}, grad,
            stride, true);
  }

 private:
  static constexpr int64_t kRowsBehind = 12;  // that products read behind whole tiles
  const AttentionProblem& p;
  const int64_t parts;
  Scratch memory;
  TileState tiles;
  uint32_t *left_q, *left_grad, *right_q, *right_grad;
  uint32_t* weights;  // a part of the weights of the block, or of their transpose

  void product(int64_t rows, int64_t width, int64_t depth, int terms, const uint32_t* a, const RightFactor& b, float* out,
               int64_t stride, bool add) const {
    pair_product(p.products, rows, width, depth, parts, terms, a, b, out, stride, add);
  }
};

}  // namespace
