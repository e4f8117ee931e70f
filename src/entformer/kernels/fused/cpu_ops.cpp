// The training kernels as torch operators, on torch's own threads, against torch's stable ABI.
//
// In: tensors as kernels/fused/ops.py declares them.  Out: CPU implementations of entformer::cross_entropy_
// and entformer::dropout, with the instruction set that isa.h names.
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <vector>

#include "../checks.h"
#include "../isa.h"
#include "cpu_kernel.h"

namespace {

const TrainingTable& table() {
  const char* name = entformer_isa();
#if defined(__x86_64__)
  if (!strcmp(name, "avx512")) return *entformer_training_avx512();
  if (!strcmp(name, "avx2")) return *entformer_training_avx2();
#endif
  (void)name;
  return *entformer_training_portable();
}

EntformerDtype dtype_of(const Tensor& t) { return t.scalar_type() == ScalarType::Float ? kFloat32 : kBFloat16; }

void require_float_or_bfloat16(const char* op, const char* name, const Tensor& t) {
  require_memory(op, name, t, {ScalarType::Float, ScalarType::BFloat16});
}

template <class Args>
void run(bool (*kernel)(const Args&, int64_t, int64_t), const Args& args, int64_t count, int64_t grain) {
  std::atomic<bool> ok{true};
  torch::stable::parallel_for(0, count, grain, [&](int64_t begin, int64_t end) {
    if (!kernel(args, begin, end)) ok = false;
  });
  require(ok, "a training kernel could not get memory for its scratch space; free some, or use smaller batches.");
}

Tensor cross_entropy(Tensor scores, const Tensor& target, double smoothing, bool differentiate) {
  const char* op = "cross_entropy_";
  require_float_or_bfloat16(op, "scores", scores);
  require(scores.dim() == 2 && scores.size(1) > 0, op, ": scores must have shape (rows, classes), not ", shape_text(scores.sizes()), ".");
  require(scores.is_contiguous(), op, ": scores must be contiguous, since they are overwritten.");
  const int64_t rows = scores.size(0), n = scores.size(1);
  require_tensor(op, "target", target, ScalarType::Long, {rows});
  Tensor classes = make_contiguous(target);
  Tensor sums = make_empty(scores, {rows, 3}, ScalarType::Float);
  const int64_t* y = static_cast<const int64_t*>(classes.const_data_ptr());
  for (int64_t row = 0; row < rows; ++row)
    require(y[row] >= 0 && y[row] < n, op, ": target ", y[row], " is not a class: the scores have classes 0 to ", n - 1, ".");
  CrossEntropy args{dtype_of(scores), n, scores.mutable_data_ptr(), y, static_cast<float*>(sums.mutable_data_ptr()),
                    static_cast<float>(smoothing), differentiate};
  run(table().cross_entropy, args, rows, 16384 / n + 1);
  return sums;
}

Tensor dropout(const Tensor& x, const std::optional<Tensor>& residual, const Tensor& seed, double p, bool narrow) {
  const char* op = "dropout";
  require_float_or_bfloat16(op, "x", x);
  require_memory(op, "seed", seed, {ScalarType::Long});
  require(seed.numel() == 1, op, ": seed must be one number, not a tensor of shape ", shape_text(seed.sizes()), ".");
  require_probability(op, "p", p);
  Tensor in = make_contiguous(x);
  std::optional<Tensor> base;
  if (residual.has_value()) {
    require_float_or_bfloat16(op, "residual", *residual);
    require_same_shape(op, "residual", *residual, "x", x);
    base = make_contiguous(*residual);
  }
  std::vector<int64_t> sizes;
  for (int64_t d = 0; d < in.dim(); ++d) sizes.push_back(in.size(d));
  Tensor out = make_empty(in, sizes, narrow ? ScalarType::BFloat16 : ScalarType::Float);
  Dropout args{dtype_of(in),
               base ? dtype_of(*base) : kFloat32,
               narrow ? kBFloat16 : kFloat32,
               in.const_data_ptr(),
               base ? base->const_data_ptr() : nullptr,
               out.mutable_data_ptr(),
               static_cast<uint64_t>(*static_cast<const int64_t*>(seed.const_data_ptr())),
               static_cast<uint32_t>(std::min(p * 4294967296.0, 4294967295.0)),
               p < 1.0 ? static_cast<float>(1.0 / (1.0 - p)) : 0.0f};
  run(table().dropout, args, in.numel(), 32768);
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(entformer, CPU, m) {
  m.impl("cross_entropy_", TORCH_BOX(&cross_entropy));
  m.impl("dropout", TORCH_BOX(&dropout));
}
