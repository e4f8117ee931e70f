// The row kernels as torch operators, on torch's own threads, against torch's stable ABI.
//
// In: tensors as kernels/entmax/ops.py declares them.  Out: CPU implementations of entformer::entmax_forward and
// entformer::entmax_backward, with the instruction set that isa.h names.
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <atomic>
#include <cstring>
#include <tuple>
#include <vector>

#include "../checks.h"
#include "../isa.h"
#include "cpu_kernel.h"

namespace {

const EntmaxRowsTable& table() {
  const char* name = entformer_isa();
#if defined(__x86_64__)
  if (!strcmp(name, "avx512")) return *entformer_rows_avx512();
  if (!strcmp(name, "avx2")) return *entformer_rows_avx2();
#endif
  (void)name;
  return *entformer_rows_portable();
}

EntformerDtype dtype_of(const Tensor& t) {
  switch (t.scalar_type()) {
    case ScalarType::Float: return kFloat32;
    case ScalarType::Double: return kFloat64;
    case ScalarType::BFloat16: return kBFloat16;
    default: return kFloat16;  // checked before
  }
}

// alpha as the kernels read it: one value for all rows where every stride is 0, else one per row.
struct RowAlpha {
  Tensor held;
  const double* data;
  int64_t stride;
  explicit RowAlpha(const Tensor& alpha) : held(alpha) {
    bool one = true;
    for (int64_t d = 0; d < alpha.dim(); ++d) one = one && (alpha.size(d) == 1 || alpha.stride(d) == 0);
    if (!one) held = make_contiguous(alpha);
    data = static_cast<const double*>(held.const_data_ptr());
    stride = one ? 0 : 1;
  }
};

std::vector<int64_t> sizes_of(const Tensor& t, int64_t dims) {
  std::vector<int64_t> sizes;
  for (int64_t d = 0; d < dims; ++d) sizes.push_back(t.size(d));
  return sizes;
}

template <class Args>
void run_rows(bool (*kernel)(const Args&, int64_t, int64_t), const Args& args, int64_t rows) {
  if (rows == 0 || args.n == 0) return;
  const int64_t grain = 16384 / args.n + 1;  // about 16k scores a task, below which a thread costs more than it brings
  std::atomic<bool> ok{true};
  torch::stable::parallel_for(0, rows, grain, [&](int64_t begin, int64_t end) {
    if (!kernel(args, begin, end)) ok = false;
  });
  require(ok, "entmax: there is not enough memory to work on rows of ", args.n, " scores; free some, or use shorter rows.");
}

// Whether rows that are written go past the cache (simd.h): not if whoever reads them next could have found them there.
bool past_cache(const Tensor& out, int64_t n) {
  const bool aligned = n % 16 == 0 && (uintptr_t)out.const_data_ptr() % 64 == 0;
  return aligned && out.scalar_type() == ScalarType::Float && out.numel() * 4 >= 8 << 20;
}

// Rows in the last dimension of `rows`, one alpha for each.
void require_rows(const char* op, const char* name, const Tensor& rows, const Tensor& alpha) {
  require_memory(op, name, rows, {ScalarType::Float, ScalarType::Double, ScalarType::BFloat16, ScalarType::Half});
  require_memory(op, "alpha", alpha, {ScalarType::Double});
  require(rows.dim() > 0, op, ": ", name, " must have at least one dimension.");
  bool same = alpha.dim() == rows.dim() - 1;
  for (int64_t d = 0; same && d < alpha.dim(); ++d) same = alpha.size(d) == rows.size(d);
  require(same, op, ": alpha must have the shape of ", name, " without the last dimension; they have shapes ",
          shape_text(alpha.sizes()), " and ", shape_text(rows.sizes()), ".");
}

Tensor entmax_forward(const Tensor& scores, const Tensor& alpha) {
  require_rows("entmax_forward", "scores", scores, alpha);
  Tensor s = make_contiguous(scores);
  Tensor weights = make_empty(s, sizes_of(s, s.dim()));
  const int64_t n = s.size(s.dim() - 1), rows = n == 0 ? 0 : s.numel() / n;
  RowAlpha a(alpha);
  EntmaxForward args{dtype_of(s), n, s.const_data_ptr(), a.data, a.stride, weights.mutable_data_ptr(), past_cache(weights, n)};
  run_rows(table().forward, args, rows);
  return weights;
}

std::tuple<Tensor, Tensor> entmax_backward(const Tensor& weights, const Tensor& alpha, const Tensor& grad_weights,
                                                bool want_alpha) {
  const char* op = "entmax_backward";
  require_rows(op, "weights", weights, alpha);
  require_memory(op, "grad_weights", grad_weights, {weights.scalar_type()});
  require_same_shape(op, "grad_weights", grad_weights, "weights", weights);
  Tensor p = make_contiguous(weights), g = make_contiguous(grad_weights);
  Tensor grad_scores = make_empty(p, sizes_of(p, p.dim()));
  const int64_t n = p.size(p.dim() - 1), rows = n == 0 ? 0 : p.numel() / n;
  Tensor grad_alpha = want_alpha && n > 0 ? make_empty(p, sizes_of(p, p.dim() - 1), ScalarType::Double)
                                          : make_zeros(p, want_alpha ? sizes_of(p, p.dim() - 1) : std::vector<int64_t>{0}, ScalarType::Double);
  RowAlpha a(alpha);
  EntmaxBackward args{dtype_of(p), n, p.const_data_ptr(), g.const_data_ptr(), a.data, a.stride,
                      grad_scores.mutable_data_ptr(),
                      want_alpha ? static_cast<double*>(grad_alpha.mutable_data_ptr()) : nullptr, past_cache(grad_scores, n)};
  run_rows(table().backward, args, rows);
  return {grad_scores, grad_alpha};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(entformer, CPU, m) {
  m.impl("entmax_forward", TORCH_BOX(&entmax_forward));
  m.impl("entmax_backward", TORCH_BOX(&entmax_backward));
}
