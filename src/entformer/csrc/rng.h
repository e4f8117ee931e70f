// The dropout mask: a hash of (seed, row, key), so that backward computes the same mask without storing it.
#pragma once

#include "attention.h"

namespace {

// Whether dropout keeps the weight of `row` (over B, H, Lq) at key j. kernels/attention/reference.py has the same hash.
inline bool keep_mask(const AttentionProblem& p, int64_t row, int64_t j) {
  const uint64_t seed = (uint64_t)p.seeds[row / p.rows_per_seed],
                 position = (uint64_t)(row % p.rows_per_seed) * (uint64_t)p.all_keys + (uint64_t)(p.first_key + j);
  uint64_t x = seed + 0x9e3779b97f4a7c15ull * (position + 1);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  x ^= x >> 31;
  return (float)(x >> 40) * 5.9604645e-8f >= p.dropout;  // 24 bits, uniform in [0, 1)
}

inline float inv_keep_prob(const AttentionProblem& p) { return 1.0f / (1.0f - p.dropout); }

}  // namespace
