// The kernels as torch operators, against torch's stable ABI: checks of tensors, buffers, tasks.
//
// Schemas: kernels/entmax/ops.py and kernels/attention/ops.py. Only this file and what it includes of tensors.h and checks.h see torch.
#include <torch/csrc/stable/library.h>

#include <cstring>
#include <tuple>

#include "gradient_tensors.h"

namespace {

// ---- entmax ------------------------------------------------------------------------------------------------------------

// alpha as the kernels read it: one value for all rows where every stride is 0, else one per row.
struct RowAlpha {
  Tensor tensor;
  const double* data;
  int64_t stride;
  explicit RowAlpha(const Tensor& alpha) : tensor(alpha) {
    bool one = true;
    for (int64_t d = 0; d < alpha.dim(); ++d) one = one && (alpha.size(d) == 1 || alpha.stride(d) == 0);
    if (!one) tensor = make_contiguous(alpha);
    data = const_data<double>(tensor);
    stride = one ? 0 : 1;
  }
};

template <class Args>
void run_rows(bool (*kernel)(const Args&, int64_t, int64_t), const Args& args, int64_t elements) {
  if (args.n == 0) return;
  const int64_t grain = 16384 / args.n + 1;  // about 16k scores a task, below which a thread costs more than it brings
  run(kernel, args, elements / args.n, grain, "entmax: there is not enough memory to work on rows of ", args.n,
      " scores; free some, or use shorter rows.");
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

Tensor entmax(const Tensor& scores, const Tensor& alpha) {
  require_rows("entmax", "scores", scores, alpha);
  Tensor s = make_contiguous(scores);
  Tensor weights = make_empty(s, sizes_of(s, s.dim()));
  RowAlpha a(alpha);
  const int64_t n = s.size(s.dim() - 1);
  EntmaxForward args{
      dtype_of(s), n, s.const_data_ptr(), a.data, a.stride, weights.mutable_data_ptr(), n > 0 ? s.numel() / n : 0};
  run_rows(kernel_table().entmax_forward, args, s.numel());
  return weights;
}

std::tuple<Tensor, Tensor> entmax_backward(const Tensor& grad_output, const Tensor& output, const Tensor& alpha,
                                           bool needs_alpha_grad) {
  const char* op = "entmax_backward";
  require_rows(op, "output", output, alpha);
  require_memory(op, "grad_output", grad_output, {output.scalar_type()});
  require_same_shape(op, "grad_output", grad_output, "output", output);
  Tensor p = make_contiguous(output), g = make_contiguous(grad_output);
  Tensor grad_scores = make_empty(p, sizes_of(p, p.dim()));
  const std::vector<int64_t> rows = needs_alpha_grad ? sizes_of(p, p.dim() - 1) : std::vector<int64_t>{0};
  Tensor grad_alpha = make_zeros(p, rows, ScalarType::Double);
  RowAlpha a(alpha);
  EntmaxBackward args{dtype_of(p),
                      p.size(p.dim() - 1),
                      p.const_data_ptr(),
                      g.const_data_ptr(),
                      a.data,
                      a.stride,
                      grad_scores.mutable_data_ptr(),
                      needs_alpha_grad ? data<double>(grad_alpha) : nullptr};
  run_rows(kernel_table().entmax_backward, args, p.numel());
  return {grad_scores, grad_alpha};
}

// ---- attention ---------------------------------------------------------------------------------------------------------

constexpr const char* kUnlikeSupport =
    "attention_support: crow_indices does not count the support of these scores, or there is not enough memory; pass the sums "
    "of support_size.";
constexpr int64_t kMaxReserveBytes = 1 << 20;  // per row

// The weights of up to 128 keys, in whole vectors, or columns and weights of a support of up to 85. From 1,024 keys on fewer, so that the
// reserve does not exceed what SDPA allocates. kernels/attention/cpu.py has the same formulas.
int64_t most_reserve_bytes(int64_t keys) { return 4 * round_up(std::min<int64_t>(keys, 128), 16); }
int64_t reserve_bytes(int64_t keys) { return std::min(most_reserve_bytes(keys), 64 * std::max<int64_t>(4, 8200 / (keys + 1))); }

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> attention(
    const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& alpha, std::optional<Tensor> attn_mask,
    std::optional<Tensor> key_mask, std::optional<Tensor> alibi_slopes, std::string normalizer, double scale, bool is_causal,
    int64_t causal_offset, double dropout_p, const Tensor& dropout_seed, bool return_entropy, std::optional<Tensor> bias,
    std::optional<Tensor> sinks, std::optional<Tensor> cu_seqlens_q, std::optional<Tensor> cu_seqlens_k,
    std::optional<int64_t> window_left, std::optional<int64_t> window_right, std::optional<double> softcap,
    std::optional<double> sigmoid_bias) {
  const char* op = "attention";
  const Features features{bias, sinks, cu_seqlens_q, cu_seqlens_k, window_left, window_right, softcap, sigmoid_bias};
  Setup setup(op, query, key, value, alpha, {attn_mask, key_mask, alibi_slopes}, {normalizer, scale, is_causal, causal_offset},
              features);
  setup.set_dropout(op, dropout_p, dropout_seed);
  const AttentionProblem& p = setup.p;
  const int64_t row_bytes = setup.is_packed() ? most_reserve_bytes(p.Lk) : reserve_bytes(p.Lk);  // for parts of any length
  // Not every part of packed sequences fills its reserve.
  auto make = [&](const std::vector<int64_t>& sizes, ScalarType dtype) {
    return setup.covers_all() ? make_empty(query, sizes, dtype) : make_zeros(query, sizes, dtype);
  };
  Tensor out = setup.make_output(query, p.E);
  Tensor row_max = make(setup.row_sizes(), ScalarType::Float), threshold = make(setup.row_sizes(), ScalarType::Double);
  Tensor support_size = make(setup.row_sizes(), ScalarType::Int);
  Tensor entropy = make(return_entropy ? setup.row_sizes() : std::vector<int64_t>{0}, ScalarType::Float);
  Tensor reserve = make({p.B, p.H, p.Lq, row_bytes}, ScalarType::Byte);
  if (!setup.covers_all()) std::fill_n(data<float>(row_max), row_max.numel(), -INFINITY);
  setup.prepare(
      true, false, true,
      [](AttentionProblem& part, int64_t bytes) {
        part.reserve_bytes = reserve_bytes(part.Lk);
        part.reserve_stride = bytes;
      },
      row_bytes);
  std::vector<AttentionForward> calls;
  for (const AttentionProblem& part : setup.parts)
    calls.push_back({part,
                     rows_to_write(out),
                     {data<float>(row_max), data<double>(threshold), data<int32_t>(support_size)},
                     return_entropy ? data<float>(entropy) : nullptr,
                     data<uint8_t>(reserve)});
  run_each(kernel_table().attention_forward, calls, [](const auto& a) { return block_tasks(a.problem); }, kNoMemory);
  return {out, row_max, threshold, support_size, entropy, reserve};
}

// The state of the rows that forward has returned, checked, as backward and support read it.
struct SavedState {
  Tensor row_max, threshold;
  const int32_t* sizes = nullptr;  // of the supports, in rows()
  SavedState(const char* op, const AttentionProblem& p, const Tensor& row_max_, const Tensor& threshold_)
      : row_max(row_max_), threshold(threshold_) {
    require_tensor(op, "row_max", row_max, ScalarType::Float, {p.B, p.H, p.Lq});
    require_tensor(op, "threshold", threshold, ScalarType::Double, {p.B, p.H, p.Lq});
    row_max = make_contiguous(row_max), threshold = make_contiguous(threshold);
  }
  RowStates rows() {
    return {const_cast<float*>(const_data<float>(row_max)), const_cast<double*>(const_data<double>(threshold)),
            const_cast<int32_t*>(sizes)};
  }
};

// Where each row of a CSR begins, checked.
Tensor checked_offsets(const char* op, const Setup& setup, const Tensor& crow_indices) {
  const int64_t rows = setup.num_rows();
  require_tensor(op, "crow_indices", crow_indices, ScalarType::Long, {rows + 1});
  Tensor offsets = make_contiguous(crow_indices);
  const int64_t* offset = const_data<int64_t>(offsets);
  for (int64_t row = 0; row < rows; ++row)
    require(offset[0] == 0 && offset[row + 1] >= offset[row] && offset[row + 1] - offset[row] <= setup.p.Lk, op,
            ": crow_indices must begin with 0 and grow by at most the ", setup.p.Lk, " keys from row to row.");
  return offsets;
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> attention_backward(
    const Tensor& grad_output, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& alpha,
    std::optional<Tensor> attn_mask, std::optional<Tensor> key_mask, std::optional<Tensor> alibi_slopes, const Tensor& row_max,
    const Tensor& threshold, const Tensor& support_size, const Tensor& reserve, std::string normalizer, double scale,
    bool is_causal, int64_t causal_offset, double dropout_p, const Tensor& dropout_seed, bool needs_alpha_grad,
    std::optional<Tensor> bias, std::optional<Tensor> sinks, std::optional<Tensor> cu_seqlens_q,
    std::optional<Tensor> cu_seqlens_k, std::optional<int64_t> window_left, std::optional<int64_t> window_right,
    std::optional<double> softcap, std::optional<double> sigmoid_bias, bool needs_bias_grad, bool needs_sinks_grad,
    bool needs_slopes_grad) {
  const char* op = "attention_backward";
  const Features features{bias, sinks, cu_seqlens_q, cu_seqlens_k, window_left, window_right, softcap, sigmoid_bias};
  Setup setup(op, query, key, value, alpha, {attn_mask, key_mask, alibi_slopes}, {normalizer, scale, is_causal, causal_offset},
              features);
  setup.set_dropout(op, dropout_p, dropout_seed);
  const AttentionProblem& p = setup.p;
  require_tensor(op, "grad_output", grad_output, query.scalar_type(), {p.B, p.H, p.Lq, p.E});
  SavedState state(op, p, row_max, threshold);
  require_tensor(op, "support_size", support_size, ScalarType::Int, {p.B, p.H, p.Lq});
  require(reserve.dim() == 4 && reserve.size(3) <= kMaxReserveBytes, op, ": reserve must have shape (B, H, Lq, bytes), not ",
          shape_text(reserve.sizes()), ".");
  require_tensor(op, "reserve", reserve, ScalarType::Byte, {p.B, p.H, p.Lq, reserve.size(3)});
  const Tensor sizes = make_contiguous(support_size), saved = make_contiguous(reserve);
  state.sizes = const_data<int32_t>(sizes);
  for (int64_t row = 0; row < setup.num_rows(); ++row)
    require(state.sizes[row] >= 0 && state.sizes[row] <= p.Lk, op, ": support_size must lie between 0 and the ", p.Lk,
            " keys, not ", state.sizes[row], ".");
  const bool packed = setup.is_packed();
  setup.prepare(
      false, true, true,
      [packed](AttentionProblem& part, int64_t bytes) {
        part.reserve_bytes = packed ? std::min(reserve_bytes(part.Lk), bytes) : bytes;
        part.reserve_stride = bytes;
      },
      reserve.size(3));
  Gradients gradients(op, setup, alpha, features, {needs_alpha_grad, needs_bias_grad, needs_sinks_grad, needs_slopes_grad});
  gradients.run(grad_output, state.rows(), const_data<uint8_t>(saved), nullptr, nullptr);
  return {gradients.q, gradients.k, gradients.v, gradients.alpha, gradients.bias, gradients.sinks, gradients.slopes};
}

std::tuple<Tensor, Tensor> attention_support(const Tensor& query, const Tensor& key, const Tensor& alpha,
                                             std::optional<Tensor> attn_mask, std::optional<Tensor> key_mask,
                                             std::optional<Tensor> alibi_slopes, const Tensor& row_max, const Tensor& threshold,
                                             const Tensor& crow_indices, std::string normalizer, double scale, bool is_causal,
                                             int64_t causal_offset, std::optional<Tensor> bias, std::optional<Tensor> sinks,
                                             std::optional<Tensor> cu_seqlens_q, std::optional<Tensor> cu_seqlens_k,
                                             std::optional<int64_t> window_left, std::optional<int64_t> window_right,
                                             std::optional<double> softcap, std::optional<double> sigmoid_bias) {
  const char* op = "attention_support";
  const Features features{bias, sinks, cu_seqlens_q, cu_seqlens_k, window_left, window_right, softcap, sigmoid_bias};
  Setup setup(op, query, key, key, alpha, {attn_mask, key_mask, alibi_slopes}, {normalizer, scale, is_causal, causal_offset},
              features);
  SavedState state(op, setup.p, row_max, threshold);
  const Tensor offsets = checked_offsets(op, setup, crow_indices);
  const int64_t* offset = const_data<int64_t>(offsets);
  const int64_t total = setup.num_rows() > 0 ? offset[setup.num_rows()] : 0;
  Tensor columns = make_empty(query, {total}, ScalarType::Int), weights = make_empty(query, {total}, ScalarType::Float);
  if (total > 0) {
    setup.prepare(true, false, false, [](AttentionProblem&, int64_t) {}, 0);
    int64_t covered = 0;  // a sequence without keys is in no part, and has no support
    std::vector<AttentionSupport> calls;
    for (const AttentionProblem& part : setup.parts) {
      calls.push_back({part, state.rows(), offset, data<int32_t>(columns), data<float>(weights)});
      for (int64_t head = 0; head < part.B * part.H; ++head) {
        const int64_t first = head * part.all_queries + part.first_query;
        covered += offset[first + part.Lq] - offset[first];
      }
    }
    require(covered == total, kUnlikeSupport);
    run_each(kernel_table().attention_support, calls, [](const auto& a) { return block_tasks(a.problem); }, kUnlikeSupport);
  }
  return {columns, weights};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> attention_support_backward(
    const Tensor& grad_values, const Tensor& query, const Tensor& key, const Tensor& alpha, std::optional<Tensor> attn_mask,
    std::optional<Tensor> key_mask, std::optional<Tensor> alibi_slopes, const Tensor& row_max, const Tensor& threshold,
    const Tensor& crow_indices, std::string normalizer, double scale, bool is_causal, int64_t causal_offset,
    std::optional<Tensor> bias, std::optional<Tensor> sinks, std::optional<Tensor> cu_seqlens_q,
    std::optional<Tensor> cu_seqlens_k, std::optional<int64_t> window_left, std::optional<int64_t> window_right,
    std::optional<double> softcap, std::optional<double> sigmoid_bias, bool needs_alpha_grad, bool needs_bias_grad,
    bool needs_sinks_grad, bool needs_slopes_grad) {
  const char* op = "attention_support_backward";
  const Features features{bias, sinks, cu_seqlens_q, cu_seqlens_k, window_left, window_right, softcap, sigmoid_bias};
  require(key.dim() == 4 && query.dim() == 4, op, ": query and key must have four dimensions.");
  const Tensor value = make_empty(key, {key.size(0), key.size(1), key.size(2), 0});  // no output, so no values
  Setup setup(op, query, key, value, alpha, {attn_mask, key_mask, alibi_slopes}, {normalizer, scale, is_causal, causal_offset},
              features);
  const AttentionProblem& p = setup.p;
  SavedState state(op, p, row_max, threshold);
  const Tensor offsets = checked_offsets(op, setup, crow_indices);
  const int64_t* offset = const_data<int64_t>(offsets);
  const int64_t rows = setup.num_rows();
  require_tensor(op, "grad_values", grad_values, ScalarType::Float, {rows > 0 ? offset[rows] : 0});
  const Tensor values = make_contiguous(grad_values);
  std::vector<int32_t> sizes;
  for (int64_t row = 0; row < rows; ++row) sizes.push_back((int32_t)(offset[row + 1] - offset[row]));
  state.sizes = sizes.data();
  setup.prepare(false, true, true, [](AttentionProblem&, int64_t) {}, 0);
  Gradients gradients(op, setup, alpha, features, {needs_alpha_grad, needs_bias_grad, needs_sinks_grad, needs_slopes_grad});
  gradients.run(make_empty(query, {p.B, p.H, p.Lq, 0}), state.rows(), nullptr, offset, const_data<float>(values));
  return {gradients.q, gradients.k, gradients.alpha, gradients.bias, gradients.sinks, gradients.slopes};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(entformer, CPU, m) {
  m.impl("entmax", TORCH_BOX(&entmax));
  m.impl("entmax_backward", TORCH_BOX(&entmax_backward));
  m.impl("attention", TORCH_BOX(&attention));
  m.impl("attention_backward", TORCH_BOX(&attention_backward));
  m.impl("attention_support", TORCH_BOX(&attention_support));
  m.impl("attention_support_backward", TORCH_BOX(&attention_support_backward));
}
