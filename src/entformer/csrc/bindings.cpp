// The kernels as torch operators on torch's own threads, against torch's stable ABI: checks of tensors, buffers, tasks.
//
// Schemas: kernels/entmax/ops.py and kernels/attention/ops.py. Nothing else includes torch.
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "checks.h"
#include "dispatch.h"
#include "kernel_table.h"

namespace {

Dtype dtype_of(const Tensor& t) {
  switch (t.scalar_type()) {
    case ScalarType::Float:
      return kFloat32;
    case ScalarType::Double:
      return kFloat64;
    case ScalarType::BFloat16:
      return kBFloat16;
    default:
      return kFloat16;  // checked before
  }
}

std::vector<int64_t> sizes_of(const Tensor& t, int64_t dims) {
  std::vector<int64_t> sizes;
  for (int64_t d = 0; d < dims; ++d) sizes.push_back(t.size(d));
  return sizes;
}

template <class T>
T* data(const Tensor& t) {
  return static_cast<T*>(t.mutable_data_ptr());
}
template <class T>
const T* const_data(const Tensor& t) {
  return static_cast<const T*>(t.const_data_ptr());
}

// Runs kernel(args, begin, end) over the tasks; `failure` is the error where it returns false.
template <class Args>
void run(bool (*kernel)(const Args&, int64_t, int64_t), const Args& args, int64_t tasks, int64_t grain,
         const std::string& failure) {
  if (tasks == 0) return;
  std::atomic<bool> ok{true};
  torch::stable::parallel_for(0, tasks, grain, [&](int64_t begin, int64_t end) {
    if (!kernel(args, begin, end)) ok = false;
  });
  require(ok, failure);
}

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
  run(kernel, args, elements / args.n, grain,
      "entmax: there is not enough memory to work on rows of " + std::to_string(args.n) +
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
  EntmaxForward args{dtype_of(s), s.size(s.dim() - 1), s.const_data_ptr(), a.data, a.stride, weights.mutable_data_ptr()};
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

constexpr const char* kNoMemory =
    "attention: there is not enough memory for the scratch space of this many keys; free some, or attend to fewer.";
constexpr const char* kUnlikeSupport =
    "attention_support: crow_indices does not count the support of these scores, or there is not enough memory; pass the sums "
    "of support_size.";
constexpr int64_t kMaxPositions = 1 << 29;     // columns are 32-bit numbers
constexpr int64_t kMaxOffset = 1 << 30;        // and so are differences of positions
constexpr int64_t kMaxReserveBytes = 1 << 20;  // per row

// Half of the keys or 85, whichever is less, with weights and 16-bit columns. kernels/attention/cpu.py has the same formula.
int64_t reserve_bytes(int64_t keys) { return 6 * std::min<int64_t>(85, std::max<int64_t>(16, (keys + 1) / 2)) / 4 * 4 + 4; }

// (B, H, L, D) with a last stride of 1; other strides may be anything, overlapping ones included.
struct StridedView {
  Tensor tensor;
  AttentionView view;
  explicit StridedView(const Tensor& t) : tensor(t.size(3) == 1 || t.stride(3) == 1 ? t : make_contiguous(t)) {
    view = {tensor.const_data_ptr(), tensor.stride(0), tensor.stride(1), tensor.stride(2)};
  }
};

// The last arguments of the operators; see kernels/attention/arguments.py::Features.
struct Features {
  std::optional<Tensor> bias, sinks, cu_seqlens_q, cu_seqlens_k;
  std::optional<int64_t> window_left, window_right;
  std::optional<double> softcap, sigmoid_bias;
  void require_none(const char* op) const {
    require(!bias && !sinks && !cu_seqlens_q && !cu_seqlens_k && !window_left && !window_right && !softcap && !sigmoid_bias, op,
            ": bias, sinks, packed sequences, windows, softcap and sigmoid are not supported yet.");
  }
};

// Everything the three operators have in common: the checked arguments, the problem and the prepared copies of k and v.
struct Setup {
  StridedView q, k, v;
  Tensor alpha;
  std::optional<Tensor> mask, key_mask, slopes, seeds;
  std::vector<Tensor> buffers;
  AttentionProblem p{};

  static const Tensor& checked(const char* op, const char* name, const Tensor& t, const char* shape) {
    require_memory(op, name, t, {ScalarType::Float, ScalarType::BFloat16, ScalarType::Half});
    require(t.dim() == 4, op, ": ", name, " must have shape ", shape, ", not ", shape_text(t.sizes()), ".");
    return t;
  }

  Setup(const char* op, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& alphas,
        const std::optional<Tensor>& attn_mask, const std::optional<Tensor>& key_mask_,
        const std::optional<Tensor>& alibi_slopes, const std::string& normalizer, double scale, bool is_causal,
        int64_t causal_offset)
      : q(checked(op, "query", query, "(B, H, Lq, D)")),
        k(checked(op, "key", key, "(B, G, Lk, D)")),
        v(checked(op, "value", value, "(B, G, Lk, E)")),
        alpha(alphas) {
    p.dtype = dtype_of(query);
    p.B = query.size(0), p.H = query.size(1), p.Lq = query.size(2), p.D = query.size(3);
    p.G = key.size(1), p.Lk = key.size(2), p.E = value.size(3);
    require_tensor(op, "key", key, query.scalar_type(), {p.B, p.G, p.Lk, p.D});
    require_tensor(op, "value", value, query.scalar_type(), {p.B, p.G, p.Lk, p.E});
    require(p.H == 0 || (p.G > 0 && p.H % p.G == 0), op, ": the ", p.H, " heads of query must be a multiple of the ", p.G,
            " of key.");
    require(p.Lq <= kMaxPositions && p.Lk <= kMaxPositions, op, ": at most ", kMaxPositions,
            " queries and keys are possible, not ", p.Lq, " and ", p.Lk, ".");
    require_tensor(op, "alpha", alphas, ScalarType::Double, {p.B, p.H});
    if (attn_mask) require_tensor(op, "attn_mask", *attn_mask, ScalarType::Bool, {p.B, p.H, p.Lq, p.Lk});
    if (key_mask_) require_tensor(op, "key_mask", *key_mask_, ScalarType::Bool, {p.B, p.Lk});
    if (alibi_slopes) require_tensor(op, "alibi_slopes", *alibi_slopes, ScalarType::Float, {p.B, p.H});
    require(causal_offset >= -kMaxOffset && causal_offset <= kMaxOffset, op, ": causal_offset must lie between ", -kMaxOffset,
            " and ", kMaxOffset, ", not ", causal_offset, ".");
    require(normalizer == "entmax" || normalizer == "relu", op, ": normalizer must be entmax or relu, not ", normalizer, ".");
    p.q = q.view, p.k = k.view, p.v = v.view;
    alpha = make_contiguous(alphas);
    p.alpha = const_data<double>(alpha);
    p.rela = normalizer == "relu";
    if (attn_mask) {
      mask = attn_mask->stride(3) == 1 || p.Lk == 1 ? *attn_mask : make_contiguous(*attn_mask);
      p.mask = const_data<uint8_t>(*mask);
      p.mask_batch = mask->stride(0), p.mask_head = mask->stride(1), p.mask_row = mask->stride(2);
    }
    if (key_mask_) p.key_mask = const_data<uint8_t>(*(key_mask = make_contiguous(*key_mask_)));
    if (alibi_slopes) p.slopes = const_data<float>(*(slopes = make_contiguous(*alibi_slopes)));
    p.scale = (float)scale;
    p.causal = is_causal;
    p.causal_offset = causal_offset;
    p.is_decode = p.H > 0 && choose_scores(p) == ScoresPath::Decode;
  }

  // A batch that is folded from several has one seed for each of these.
  void set_dropout(const char* op, double dropout_p, const Tensor& seed) {
    require_probability(op, "dropout_p", dropout_p);
    require_memory(op, "dropout_seed", seed, {ScalarType::Long});
    require(seed.dim() <= 1 && seed.numel() > 0 && p.B % seed.numel() == 0, op,
            ": dropout_seed must be one number, or several whose number divides the batch of ", p.B, "; it has shape ",
            shape_text(seed.sizes()), ".");
    p.dropout = (float)dropout_p;
    p.seeds = const_data<int64_t>(*(seeds = make_contiguous(seed)));
    p.rows_per_seed = std::max<int64_t>(p.B / seeds->numel() * p.H * p.Lq, 1);
  }

  float* buffer(const std::vector<int64_t>& sizes) {
    buffers.push_back(make_empty(q.tensor, sizes, ScalarType::Float));
    return data<float>(buffers.back());
  }
  // Copies are made only of what the tensors themselves do not offer. For decoding k is read as it lies.
  void prepare(bool scores, bool k_rows, bool v_rows) {
    const int64_t vector = kernel_table().vector_length, keys = round_up(p.Lk, vector);
    const bool converts = p.dtype != kFloat32;
    p.key_bias = buffer({p.B, keys});
    if (scores && !p.is_decode) p.k_panels = buffer({p.B, p.G, keys, p.D});
    if ((k_rows || (scores && p.is_decode)) && (converts || p.D % vector))
      p.k_rows = buffer({p.B, p.G, p.Lk, round_up(p.D, vector)});
    if (v_rows && (converts || p.E % vector)) p.v_rows = buffer({p.B, p.G, p.Lk, round_up(p.E, vector)});
    run(kernel_table().attention_pack, p, p.B * p.G, 1, kNoMemory);
  }
  std::vector<int64_t> row_sizes() const { return {p.B, p.H, p.Lq}; }
  int64_t num_rows() const { return p.B * p.H * p.Lq; }
  int64_t blocks() const {
    return (p.Lq + kernel_table().attention_block_rows(p.Lk) - 1) / kernel_table().attention_block_rows(p.Lk);
  }
};

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> attention(
    const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& alpha, std::optional<Tensor> attn_mask,
    std::optional<Tensor> key_mask, std::optional<Tensor> alibi_slopes, std::string normalizer, double scale, bool is_causal,
    int64_t causal_offset, double dropout_p, const Tensor& dropout_seed, bool return_entropy, std::optional<Tensor> bias, std::optional<Tensor> sinks, std::optional<Tensor> cu_seqlens_q, std::optional<Tensor> cu_seqlens_k,
    std::optional<int64_t> window_left, std::optional<int64_t> window_right, std::optional<double> softcap,
    std::optional<double> sigmoid_bias) {
  const char* op = "attention";
  Features{bias, sinks, cu_seqlens_q, cu_seqlens_k, window_left, window_right, softcap, sigmoid_bias}.require_none(op);
  Setup setup(op, query, key, value, alpha, attn_mask, key_mask, alibi_slopes, normalizer, scale, is_causal, causal_offset);
  setup.set_dropout(op, dropout_p, dropout_seed);
  AttentionProblem& p = setup.p;
  p.reserve_bytes = reserve_bytes(p.Lk);
  Tensor out = make_empty(query, {p.B, p.H, p.Lq, p.E}, query.scalar_type());
  Tensor row_max = make_empty(query, setup.row_sizes(), ScalarType::Float);
  Tensor threshold = make_empty(query, setup.row_sizes(), ScalarType::Double);
  Tensor support_size = make_empty(query, setup.row_sizes(), ScalarType::Int);
  Tensor entropy = make_empty(query, return_entropy ? setup.row_sizes() : std::vector<int64_t>{0}, ScalarType::Float);
  Tensor reserve = make_empty(query, {p.B, p.H, p.Lq, p.reserve_bytes}, ScalarType::Byte);
  if (setup.num_rows() > 0) {
    setup.prepare(true, false, true);
    AttentionForward args{p,
                          out.mutable_data_ptr(),
                          {data<float>(row_max), data<double>(threshold), data<int32_t>(support_size)},
                          return_entropy ? data<float>(entropy) : nullptr,
                          data<uint8_t>(reserve)};
    run(kernel_table().attention_forward, args, p.B * p.H * setup.blocks(), 1, kNoMemory);
  }
  return {out, row_max, threshold, support_size, entropy, reserve};
}

// parts (chunks * B, G, L, padded) float -> (B, G, L, width) in the dtype of `like`, summed over chunks in order.
Tensor add_chunks(const Tensor& parts, int64_t chunks, int64_t B, int64_t width, const Tensor& like) {
  const int64_t G = parts.size(1), L = parts.size(2), padded = parts.size(3);
  const Dtype dtype = dtype_of(like);
  if (chunks == 1 && padded == width && dtype == kFloat32) return parts;
  Tensor sum = make_empty(like, {B, G, L, width}, like.scalar_type());
  if (width == 0) return sum;
  const float* from = data<float>(parts);
  void* to = sum.mutable_data_ptr();
  torch::stable::parallel_for(0, B * G * L, 256, [&](int64_t begin, int64_t end) {
    std::vector<float> row(width);
    for (int64_t r = begin; r < end; ++r) {
      std::memcpy(row.data(), from + r * padded, width * sizeof(float));
      for (int64_t c = 1; c < chunks; ++c)
        for (int64_t i = 0; i < width; ++i) row[i] += from[(c * B * G * L + r) * padded + i];
      from_float32(row.data(), dtype, r * width, width, to);
    }
  });
  return sum;
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> attention_backward(
    const Tensor& grad_output, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& alpha,
    std::optional<Tensor> attn_mask, std::optional<Tensor> key_mask, std::optional<Tensor> alibi_slopes, const Tensor& row_max,
    const Tensor& threshold, const Tensor& support_size, const Tensor& reserve, std::string normalizer, double scale,
    bool is_causal, int64_t causal_offset, double dropout_p, const Tensor& dropout_seed, bool needs_alpha_grad,
    std::optional<Tensor> bias, std::optional<Tensor> sinks, std::optional<Tensor> cu_seqlens_q, std::optional<Tensor> cu_seqlens_k,
    std::optional<int64_t> window_left, std::optional<int64_t> window_right, std::optional<double> softcap,
    std::optional<double> sigmoid_bias, bool needs_bias_grad, bool needs_sinks_grad, bool needs_slopes_grad) {
  const char* op = "attention_backward";
  Features{bias, sinks, cu_seqlens_q, cu_seqlens_k, window_left, window_right, softcap, sigmoid_bias}.require_none(op);
  require(!needs_bias_grad && !needs_sinks_grad && !needs_slopes_grad, op, ": no gradient to bias, sinks and slopes yet.");
  Setup setup(op, query, key, value, alpha, attn_mask, key_mask, alibi_slopes, normalizer, scale, is_causal, causal_offset);
  setup.set_dropout(op, dropout_p, dropout_seed);
  AttentionProblem& p = setup.p;
  require_tensor(op, "grad_output", grad_output, query.scalar_type(), {p.B, p.H, p.Lq, p.E});
  require_tensor(op, "row_max", row_max, ScalarType::Float, {p.B, p.H, p.Lq});
  require_tensor(op, "threshold", threshold, ScalarType::Double, {p.B, p.H, p.Lq});
  require_tensor(op, "support_size", support_size, ScalarType::Int, {p.B, p.H, p.Lq});
  require(reserve.dim() == 4 && reserve.size(3) <= kMaxReserveBytes, op, ": reserve must have shape (B, H, Lq, bytes), not ",
          shape_text(reserve.sizes()), ".");
  require_tensor(op, "reserve", reserve, ScalarType::Byte, {p.B, p.H, p.Lq, reserve.size(3)});
  p.reserve_bytes = reserve.size(3);
  const Tensor maxima = make_contiguous(row_max), thresholds = make_contiguous(threshold);
  const Tensor sizes = make_contiguous(support_size), saved = make_contiguous(reserve);
  const int64_t vector = kernel_table().vector_length, heads = p.B * p.G, Dp = round_up(p.D, vector),
                Ep = round_up(p.E, vector);
  // Few heads are cut into parts so that eight threads have work; the number depends on shapes alone, so sums do not change with threads.
  const int64_t chunks =
      heads > 0 && heads < 8 ? std::min<int64_t>((8 + heads - 1) / heads, std::max<int64_t>(setup.blocks(), 1)) : 1;
  const int32_t* counts = const_data<int32_t>(sizes);
  for (int64_t row = 0; row < sizes.numel(); ++row)
    require(counts[row] >= 0 && counts[row] <= p.Lk, op, ": support_size must lie between 0 and the ", p.Lk, " keys, not ",
            counts[row], ".");

  Tensor grad_q = make_empty(query, {p.B, p.H, p.Lq, p.D}, query.scalar_type());
  Tensor grad_k = make_zeros(query, {chunks * p.B, p.G, p.Lk, Dp}, ScalarType::Float);
  Tensor grad_v = make_zeros(query, {chunks * p.B, p.G, p.Lk, Ep}, ScalarType::Float);
  std::vector<double> alpha_parts(needs_alpha_grad ? chunks * p.B * p.H : 0, 0.0);
  Tensor grad_alpha =
      make_zeros(query, needs_alpha_grad ? std::vector<int64_t>{p.B, p.H} : std::vector<int64_t>{0}, ScalarType::Double);
  if (setup.num_rows() > 0) {
    setup.prepare(false, true, true);
    StridedView grad(grad_output);
    const RowStates rows{const_cast<float*>(const_data<float>(maxima)), const_cast<double*>(const_data<double>(thresholds)),
                         const_cast<int32_t*>(counts)};
    AttentionBackward args{p,
                           grad.view,
                           rows,
                           const_data<uint8_t>(saved),
                           chunks,
                           grad_q.mutable_data_ptr(),
                           data<float>(grad_k),
                           data<float>(grad_v),
                           needs_alpha_grad ? alpha_parts.data() : nullptr};
    run(kernel_table().attention_backward, args, chunks * heads, 1, kNoMemory);
    double* total = data<double>(grad_alpha);
    for (size_t i = 0; i < alpha_parts.size(); ++i) total[i % (p.B * p.H)] += alpha_parts[i];
  }
  return {grad_q, add_chunks(grad_k, chunks, p.B, p.D, query), add_chunks(grad_v, chunks, p.B, p.E, query), grad_alpha,
          make_zeros(query, {0}, ScalarType::Float), make_zeros(query, {0}, ScalarType::Float), make_zeros(query, {0}, ScalarType::Float)};
}

std::tuple<Tensor, Tensor> attention_support(const Tensor& query, const Tensor& key, const Tensor& alpha,
                                             std::optional<Tensor> attn_mask, std::optional<Tensor> key_mask,
                                             std::optional<Tensor> alibi_slopes, const Tensor& row_max, const Tensor& threshold,
                                             const Tensor& crow_indices, std::string normalizer, double scale, bool is_causal,
                                             int64_t causal_offset, std::optional<Tensor> bias, std::optional<Tensor> sinks, std::optional<Tensor> cu_seqlens_q, std::optional<Tensor> cu_seqlens_k,
    std::optional<int64_t> window_left, std::optional<int64_t> window_right, std::optional<double> softcap,
    std::optional<double> sigmoid_bias) {
  const char* op = "attention_support";
  Features{bias, sinks, cu_seqlens_q, cu_seqlens_k, window_left, window_right, softcap, sigmoid_bias}.require_none(op);
  Setup setup(op, query, key, key, alpha, attn_mask, key_mask, alibi_slopes, normalizer, scale, is_causal, causal_offset);
  const AttentionProblem& p = setup.p;
  const int64_t rows = setup.num_rows();
  require_tensor(op, "row_max", row_max, ScalarType::Float, {p.B, p.H, p.Lq});
  require_tensor(op, "threshold", threshold, ScalarType::Double, {p.B, p.H, p.Lq});
  require_tensor(op, "crow_indices", crow_indices, ScalarType::Long, {rows + 1});
  const Tensor maxima = make_contiguous(row_max), thresholds = make_contiguous(threshold);
  const Tensor offsets = make_contiguous(crow_indices);
  const int64_t* offset = const_data<int64_t>(offsets);
  for (int64_t row = 0; row < rows; ++row)
    require(offset[0] == 0 && offset[row + 1] >= offset[row] && offset[row + 1] - offset[row] <= p.Lk, op,
            ": crow_indices must begin with 0 and grow by at most the ", p.Lk, " keys from row to row.");
  const int64_t total = rows > 0 ? offset[rows] : 0;
  Tensor columns = make_empty(query, {total}, ScalarType::Int), weights = make_empty(query, {total}, ScalarType::Float);
  if (total > 0) {
    setup.prepare(true, false, false);
    const RowStates states{const_cast<float*>(const_data<float>(maxima)), const_cast<double*>(const_data<double>(thresholds)),
                           nullptr};
    AttentionSupport args{p, states, offset, data<int32_t>(columns), data<float>(weights)};
    run(kernel_table().attention_support, args, p.B * p.H * setup.blocks(), 1, kUnlikeSupport);
  }
  return {columns, weights};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(entformer, CPU, m) {
  m.impl("entmax", TORCH_BOX(&entmax));
  m.impl("entmax_backward", TORCH_BOX(&entmax_backward));
  m.impl("attention", TORCH_BOX(&attention));
  m.impl("attention_backward", TORCH_BOX(&attention_backward));
  m.impl("attention_support", TORCH_BOX(&attention_support));
}
