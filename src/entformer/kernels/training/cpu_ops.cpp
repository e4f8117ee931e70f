// The training kernels as torch operators, on torch's own threads, against torch's stable ABI.
//
// In: tensors as kernels/training/ops.py declares them, checked there.  Out: CPU implementations of entformer::cross_entropy_
// and entformer::dropout, with the instruction set that isa.h names.
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <atomic>
#include <cstring>
#include <optional>
#include <vector>

#include "../isa.h"
#include "cpu_kernel.h"

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

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

EntformerDtype dtype_of(const Tensor& t) {
  if (t.scalar_type() == ScalarType::Float) return kFloat32;
  STD_TORCH_CHECK(t.scalar_type() == ScalarType::BFloat16, "the training kernels take float32 and bfloat16");
  return kBFloat16;
}

template <class Args>
void run(bool (*kernel)(const Args&, int64_t, int64_t), const Args& args, int64_t count, int64_t grain) {
  std::atomic<bool> ok{true};
  torch::stable::parallel_for(0, count, grain, [&](int64_t begin, int64_t end) {
    if (!kernel(args, begin, end)) ok = false;
  });
  STD_TORCH_CHECK(ok, "a training kernel could not get scratch memory");
}

Tensor cross_entropy(Tensor scores, const Tensor& target, double smoothing, bool differentiate) {
  Tensor classes = torch::stable::contiguous(target);
  const int64_t rows = scores.size(0), n = scores.size(1);
  STD_TORCH_CHECK(n > 0 && scores.stride(1) == 1 && scores.stride(0) == n, "cross_entropy_ takes contiguous rows");
  Tensor sums = torch::stable::new_empty(scores, {rows, 3}, ScalarType::Float);
  const int64_t* y = static_cast<const int64_t*>(classes.const_data_ptr());
  for (int64_t row = 0; row < rows; ++row)
    STD_TORCH_CHECK(y[row] >= 0 && y[row] < n, "target ", y[row], " is not a class: the scores have classes 0 to ", n - 1);
  CrossEntropy args{dtype_of(scores), n, scores.mutable_data_ptr(), y, static_cast<float*>(sums.mutable_data_ptr()),
                    static_cast<float>(smoothing), differentiate};
  run(table().cross_entropy, args, rows, 16384 / n + 1);
  return sums;
}

Tensor dropout(const Tensor& x, const std::optional<Tensor>& residual, const Tensor& seed, double p, bool narrow) {
  Tensor in = torch::stable::contiguous(x);
  std::optional<Tensor> base;
  if (residual.has_value()) base = torch::stable::contiguous(*residual);
  std::vector<int64_t> sizes;
  for (int64_t d = 0; d < in.dim(); ++d) sizes.push_back(in.size(d));
  Tensor out = torch::stable::new_empty(in, sizes, narrow ? ScalarType::BFloat16 : ScalarType::Float);
  Dropout args{dtype_of(in),
               base ? dtype_of(*base) : kFloat32,
               narrow ? kBFloat16 : kFloat32,
               in.const_data_ptr(),
               base ? base->const_data_ptr() : nullptr,
               out.mutable_data_ptr(),
               static_cast<uint64_t>(*static_cast<const int64_t*>(seed.const_data_ptr())),
               static_cast<uint32_t>(p * 4294967296.0),
               static_cast<float>(1.0 / (1.0 - p))};
  run(table().dropout, args, in.numel(), 32768);
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(entformer, CPU, m) {
  m.impl("cross_entropy_", TORCH_BOX(&cross_entropy));
  m.impl("dropout", TORCH_BOX(&dropout));
}
