// Fused sparse attention on the CPU; compiled once per instruction set (see kernels/native.py).
//
// In: q, k, v, alpha, masks (cpu_kernel.h).  Out: attention output and row statistics; gradients; the exact support as CSR.
// Reading order: gemm.h (the product), cpu_scores.h (scores and masks), cpu_weights.h (roots and supports), cpu_kept.h,
// cpu_forward.h, cpu_gradient.h, cpu_runs.h, cpu_backward.h.
#include "cpu_kernel.h"

#include "cpu_backward.h"
#include "cpu_forward.h"

namespace {

bool support(const AttentionSupport& a, int64_t begin, int64_t end) {
  const AttentionProblem& p = a.problem;
  Scratch scratch(workspace_floats(p) * sizeof(float));
  if (!scratch.data) return false;
  HeadTables tables;
  const Workspace w = set_up(p, (float*)scratch.data, tables);
  const int64_t blocks = (p.Lq + block_rows(p.Lk) - 1) / block_rows(p.Lk);
  for (int64_t task = begin; task < end; ++task) {
    const Block block = block_at(p, task / blocks / p.H, task / blocks % p.H, task % blocks);
    const Mapping m = mapping_of(p, block.b, block.h, tables);
    load_queries(p, block, round_up(block.rows, TILE), w.q);
    score_block(p, block, w.q, w.scores, w.ld, w.top);
    for (int64_t r = 0; r < block.rows; ++r) {
      const int64_t row = (block.b * p.H + block.h) * p.Lq + block.first + r;
      const int64_t count = extract(m, w.scores + r * w.ld, block.keys, a.row_state[row], w.weights + (w.ld + 2 * VL), w.columns, w.weights);
      if (count != a.offset[row + 1] - a.offset[row]) return false;
      memcpy(a.columns + a.offset[row], w.columns, (size_t)count * sizeof(int32_t));
      memcpy(a.weights + a.offset[row], w.weights, (size_t)count * sizeof(float));
    }
  }
  return true;
}

}  // namespace

#if defined(__AVX512F__)
#define ENTFORMER_NAME "avx512"
#define ENTFORMER_TABLE entformer_flash_avx512
#elif defined(__AVX2__)
#define ENTFORMER_NAME "avx2"
#define ENTFORMER_TABLE entformer_flash_avx2
#else
#define ENTFORMER_NAME "portable"
#define ENTFORMER_TABLE entformer_flash_portable
#endif

extern "C" const AttentionTable* ENTFORMER_TABLE() {
  static const AttentionTable table = {ENTFORMER_NAME, VL, block_rows, pack, forward, backward, support};
  return &table;
}
