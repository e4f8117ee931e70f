// The arguments of the training kernels and the table of functions that each instruction set fills in.
#pragma once

#include "../storage.h"

// Row r of scores becomes the gradient of its smoothed loss; sums gets (smoothed loss, -ln p_target, 1 if target is the best).
struct CrossEntropy {
  EntformerDtype dtype;   // float32 or bfloat16
  int64_t n;              // classes
  void* scores;           // (rows, n), overwritten by the gradient if `differentiate`
  const int64_t* target;  // (rows,)
  float* sums;            // (rows, 3), written
  float smoothing;
  bool differentiate;
};

// out_i = residual_i + (hash(seed, i) < threshold ? 0 : scale x_i)
struct Dropout {
  EntformerDtype x_dtype, residual_dtype, out_dtype;  // float32 or bfloat16
  const void* x;         // (n,)
  const void* residual;  // (n,) or null
  void* out;             // (n,), written
  uint64_t seed;
  uint32_t threshold;    // p 2^32
  float scale;           // 1 / (1 - p)
};

// Each works on rows or elements [begin, end). Returns false when scratch memory could not be had.
struct TrainingTable {
  const char* name;
  bool (*cross_entropy)(const CrossEntropy&, int64_t begin, int64_t end);
  bool (*dropout)(const Dropout&, int64_t begin, int64_t end);
};

extern "C" {
const TrainingTable* entformer_training_portable();
const TrainingTable* entformer_training_avx2();
const TrainingTable* entformer_training_avx512();
}
