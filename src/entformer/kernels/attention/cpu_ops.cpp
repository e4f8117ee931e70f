// Fused attention as torch operators, on torch's own threads, against torch's stable ABI.
//
// In: tensors as kernels/attention/ops.py declares them.  Out: CPU implementations of entformer::attention_forward, attention_backward and
// attention_support. This file sizes the buffers, cuts the work into tasks and calls the kernels of the instruction set in use.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <tuple>
#include <vector>

#include "../checks.h"
#include "../isa.h"
#include "cpu_kernel.h"

namespace {

const AttentionTable& table() {
  const char* name = entformer_isa();
#if defined(__x86_64__)
  if (!strcmp(name, "avx512")) return *entformer_flash_avx512();
  if (!strcmp(name, "avx2")) return *entformer_flash_avx2();
#endif
  (void)name;
  return *entformer_flash_portable();
}

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

EntformerDtype dtype_of(const Tensor& t) {
  switch (t.scalar_type()) {
    case ScalarType::Float: return kFloat32;
    case ScalarType::BFloat16: return kBFloat16;
    default: return kFloat16;  // checked before
  }
}

// (B, H, L, D) with a last stride of 1; other strides may be anything, overlapping ones included.
struct Rows {
  Tensor held;
  AttentionView view;
  explicit Rows(const Tensor& t) : held(t.size(3) == 1 || t.stride(3) == 1 ? t : make_contiguous(t)) {
    view = {held.const_data_ptr(), held.stride(0), held.stride(1), held.stride(2)};
  }
};

Tensor floats(const Tensor& like, std::vector<int64_t> sizes) { return make_empty(like, sizes, ScalarType::Float); }
float* float_data(const Tensor& t) { return static_cast<float*>(t.mutable_data_ptr()); }

constexpr const char* kNoMemory = "attention: there is not enough memory for the scratch space of this many keys; free some, or attend to fewer.";

constexpr const char* kUnlikeSupport =
    "attention_support: crow does not count the support of these scores, or there is not enough memory; pass what attention_forward returned.";

template <class Args>
void run(bool (*kernel)(const Args&, int64_t, int64_t), const Args& args, int64_t tasks, const char* failure = kNoMemory) {
  std::atomic<bool> ok{true};
  torch::stable::parallel_for(0, tasks, 1, [&](int64_t begin, int64_t end) {
    if (!kernel(args, begin, end)) ok = false;
  });
  require(ok, failure);
}

constexpr int64_t kMostPositions = 1 << 29;    // columns are 32-bit numbers
constexpr int64_t kFarthestOffset = 1 << 30;  // and so are differences of positions
constexpr int64_t kMostRoom = 1 << 20;        // bytes a row

void require_problem(const char* op, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& alpha, const std::optional<Tensor>& mask,
                     const std::optional<Tensor>& key_mask, const std::optional<Tensor>& slopes, int64_t causal_offset) {
  require_memory(op, "q", q, {ScalarType::Float, ScalarType::BFloat16, ScalarType::Half});
  require(q.dim() == 4, op, ": q must have shape (B, H, Lq, D), not ", shape_text(q.sizes()), ".");
  require(k.dim() == 4, op, ": k must have shape (B, G, Lk, D), not ", shape_text(k.sizes()), ".");
  require(v.dim() == 4, op, ": v must have shape (B, G, Lk, E), not ", shape_text(v.sizes()), ".");
  const int64_t B = q.size(0), H = q.size(1), Lq = q.size(2), G = k.size(1), Lk = k.size(2);
  require_tensor(op, "k", k, q.scalar_type(), {B, G, Lk, q.size(3)});
  require_tensor(op, "v", v, q.scalar_type(), {B, G, Lk, v.size(3)});
  require(H == 0 || (G > 0 && H % G == 0), op, ": the ", H, " heads of q must be a multiple of the ", G, " of k.");
  require(Lq <= kMostPositions && Lk <= kMostPositions, op, ": at most ", kMostPositions, " queries and keys are possible, not ", Lq, " and ", Lk, ".");
  require_tensor(op, "alpha", alpha, ScalarType::Double, {B, H});
  if (mask) require_tensor(op, "mask", *mask, ScalarType::Bool, {B, H, Lq, Lk});
  if (key_mask) require_tensor(op, "key_mask", *key_mask, ScalarType::Bool, {B, Lk});
  if (slopes) require_tensor(op, "slopes", *slopes, ScalarType::Float, {B, H});
  require(causal_offset >= -kFarthestOffset && causal_offset <= kFarthestOffset, op, ": causal_offset must lie between ", -kFarthestOffset,
          " and ", kFarthestOffset, ", not ", causal_offset, ".");
}

// Dropout of a batch that is folded from several has one seed for each of these.
void require_dropout(const char* op, double dropout, const Tensor& seed, int64_t batch) {
  require_probability(op, "dropout", dropout);
  require_memory(op, "seed", seed, {ScalarType::Long});
  require(seed.dim() <= 1 && seed.numel() > 0 && batch % seed.numel() == 0, op, ": seed must be one number, or several whose number divides the batch of ",
          batch, "; it has shape ", shape_text(seed.sizes()), ".");
}

// Everything forward, backward and support have in common: the problem and the prepared copies of k and v.
struct Setup {
  Rows q, k, v;
  Tensor alpha;
  std::optional<Tensor> mask, key_mask, slopes, seeds;
  std::vector<Tensor> buffers;
  AttentionProblem p{};

  float* buffer(std::vector<int64_t> sizes) {
    buffers.push_back(floats(q.held, std::move(sizes)));
    return float_data(buffers.back());
  }

  Setup(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& alphas, const std::optional<Tensor>& allowed,
        const std::optional<Tensor>& key_allowed, const std::optional<Tensor>& alibi, double scale, bool rela, bool causal,
        int64_t causal_offset, double dropout, const std::optional<Tensor>& seed, int64_t room)
      : q(query), k(key), v(value), alpha(make_contiguous(alphas)) {
    p.dtype = dtype_of(query);
    p.B = query.size(0), p.H = query.size(1), p.Lq = query.size(2), p.D = query.size(3);
    p.G = key.size(1), p.Lk = key.size(2), p.E = value.size(3);
    p.q = q.view, p.k = k.view, p.v = v.view;
    p.alpha = static_cast<const double*>(alpha.const_data_ptr());
    p.rela = rela;
    if (allowed) {
      mask = allowed->stride(3) == 1 || p.Lk == 1 ? *allowed : make_contiguous(*allowed);
      p.mask = static_cast<const uint8_t*>(mask->const_data_ptr());
      p.mask_batch = mask->stride(0), p.mask_head = mask->stride(1), p.mask_row = mask->stride(2);
    }
    if (key_allowed) {
      key_mask = make_contiguous(*key_allowed);
      p.key_mask = static_cast<const uint8_t*>(key_mask->const_data_ptr());
    }
    if (alibi) {
      slopes = make_contiguous(*alibi);
      p.slopes = static_cast<const float*>(slopes->const_data_ptr());
    }
    p.scale = (float)scale;
    p.causal = causal;
    p.causal_offset = causal_offset;
    p.dropout = (float)dropout;
    if (seed) {
      seeds = make_contiguous(*seed);
      p.seeds = static_cast<const int64_t*>(seeds->const_data_ptr());
      p.rows_per_seed = std::max<int64_t>(p.B / seeds->numel() * p.H * p.Lq, 1);
    }
    p.room = room;
  }

  // Copies are made only of what the tensors themselves do not offer. For a few queries k is read as it lies.
  void prepare(bool scores, bool k_rows, bool v_rows) {
    const int64_t vector = table().vector, keys = round_up(p.Lk, vector);
    const bool narrow = p.dtype != kFloat32, few = p.Lq * (p.H / p.G) <= 3;
    p.key_bias = buffer({p.B, keys});
    if (scores && !few) p.k_panels = buffer({p.B, p.G, keys, p.D});
    if ((k_rows || (scores && few)) && (narrow || p.D % vector)) p.k_rows = buffer({p.B, p.G, p.Lk, round_up(p.D, vector)});
    if (v_rows && (narrow || p.E % vector)) p.v_rows = buffer({p.B, p.G, p.Lk, round_up(p.E, vector)});
    run(table().pack, p, p.B * p.G);
  }
  int64_t blocks() const { return (p.Lq + table().block_rows(p.Lk) - 1) / table().block_rows(p.Lk); }
};

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> attention_forward(
    const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& alpha, std::optional<Tensor> mask, std::optional<Tensor> key_mask,
    std::optional<Tensor> slopes, double scale, bool rela, bool causal, int64_t causal_offset, double dropout, const Tensor& seed,
    bool want_entropy, int64_t room) {
  require_problem("attention_forward", q, k, v, alpha, mask, key_mask, slopes, causal_offset);
  require_dropout("attention_forward", dropout, seed, q.size(0));
  require(room >= 0 && room <= kMostRoom, "attention_forward: room must lie between 0 and ", kMostRoom, ", not ", room, ".");
  Setup setup(q, k, v, alpha, mask, key_mask, slopes, scale, rela, causal, causal_offset, dropout, seed, room);
  const AttentionProblem& p = setup.p;
  Tensor out = make_empty(q, std::vector<int64_t>{p.B, p.H, p.Lq, p.E});
  Tensor state = floats(q, {p.B, p.H, p.Lq, kStateFloats});
  Tensor count = make_empty(q, std::vector<int64_t>{p.B, p.H, p.Lq}, ScalarType::Int);
  Tensor entropy = floats(q, want_entropy ? std::vector<int64_t>{p.B, p.H, p.Lq} : std::vector<int64_t>{0});
  Tensor kept = make_empty(q, std::vector<int64_t>{p.B, p.H, p.Lq, room}, ScalarType::Byte);
  if (p.B * p.H * p.Lq > 0) {
    setup.prepare(true, false, true);
    AttentionForward args{p, out.mutable_data_ptr(), static_cast<RowState*>(state.mutable_data_ptr()), static_cast<int32_t*>(count.mutable_data_ptr()),
                      want_entropy ? float_data(entropy) : nullptr, static_cast<uint8_t*>(kept.mutable_data_ptr())};
    run(table().forward, args, p.B * p.H * setup.blocks());
  }
  return {out, state, count, entropy, kept};
}

// parts (chunks * B, G, L, padded) float -> (B, G, L, width) in the dtype of `like`, summed over chunks in order.
Tensor add_chunks(const Tensor& parts, int64_t chunks, int64_t B, int64_t width, const Tensor& like) {
  const int64_t G = parts.size(1), L = parts.size(2), padded = parts.size(3);
  const EntformerDtype dtype = dtype_of(like);
  if (chunks == 1 && padded == width && dtype == kFloat32) return parts;
  Tensor sum = make_empty(like, std::vector<int64_t>{B, G, L, width});
  if (width == 0) return sum;
  const float* from = float_data(parts);
  void* to = sum.mutable_data_ptr();
  torch::stable::parallel_for(0, B * G * L, 256, [&](int64_t begin, int64_t end) {
    std::vector<float> row(width);
    for (int64_t r = begin; r < end; ++r) {
      std::memcpy(row.data(), from + r * padded, width * sizeof(float));
      for (int64_t c = 1; c < chunks; ++c)
        for (int64_t i = 0; i < width; ++i) row[i] += from[(c * B * G * L + r) * padded + i];
      if (dtype == kFloat32) std::memcpy((float*)to + r * width, row.data(), width * sizeof(float));
      else write_row(row.data(), dtype, r, width, to);
    }
  });
  return sum;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> attention_backward(
    const Tensor& grad_out, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& alpha, std::optional<Tensor> mask,
    std::optional<Tensor> key_mask, std::optional<Tensor> slopes, const Tensor& state, const Tensor& count, const Tensor& kept,
    double scale, bool rela, bool causal, int64_t causal_offset, double dropout, const Tensor& seed, bool want_alpha) {
  const char* op = "attention_backward";
  require_problem(op, q, k, v, alpha, mask, key_mask, slopes, causal_offset);
  require_dropout(op, dropout, seed, q.size(0));
  require_tensor(op, "grad_out", grad_out, q.scalar_type(), {q.size(0), q.size(1), q.size(2), v.size(3)});
  require_tensor(op, "state", state, ScalarType::Float, {q.size(0), q.size(1), q.size(2), kStateFloats});
  require_tensor(op, "count", count, ScalarType::Int, {q.size(0), q.size(1), q.size(2)});
  require(kept.dim() == 4 && kept.size(3) <= kMostRoom, op, ": kept must have shape (B, H, Lq, room), not ", shape_text(kept.sizes()), ".");
  require_tensor(op, "kept", kept, ScalarType::Byte, {q.size(0), q.size(1), q.size(2), kept.size(3)});
  const Tensor states = make_contiguous(state), sizes = make_contiguous(count), supports = make_contiguous(kept);
  Setup setup(q, k, v, alpha, mask, key_mask, slopes, scale, rela, causal, causal_offset, dropout, seed, kept.size(3));
  const AttentionProblem& p = setup.p;
  const int64_t vector = table().vector, heads = p.B * p.G, Dp = round_up(p.D, vector), Ep = round_up(p.E, vector);
  // Few heads are cut into parts so that eight threads find work; the number depends on shapes alone, so sums do not.
  const int64_t chunks = heads > 0 && heads < 8 ? std::min<int64_t>((8 + heads - 1) / heads, std::max<int64_t>(setup.blocks(), 1)) : 1;
  const int32_t* counts = static_cast<const int32_t*>(sizes.const_data_ptr());
  for (int64_t row = 0; row < sizes.numel(); ++row)
    require(counts[row] >= 0 && counts[row] <= p.Lk, op, ": count must lie between 0 and the ", p.Lk, " keys, not ", counts[row], ".");

  Tensor grad_q = make_empty(q, std::vector<int64_t>{p.B, p.H, p.Lq, p.D});
  std::vector<int64_t> k_sizes{p.B, p.G, p.Lk, Dp}, v_sizes{p.B, p.G, p.Lk, Ep};
  k_sizes[0] *= chunks, v_sizes[0] *= chunks;
  Tensor grad_k = make_zeros(q, k_sizes, ScalarType::Float);
  Tensor grad_v = make_zeros(q, v_sizes, ScalarType::Float);
  std::vector<double> alpha_parts(want_alpha ? chunks * p.B * p.H : 0, 0.0);
  Tensor grad_alpha = make_zeros(q, want_alpha ? std::vector<int64_t>{p.B, p.H} : std::vector<int64_t>{0}, ScalarType::Double);
  if (p.B * p.H * p.Lq > 0) {
    setup.prepare(false, true, true);
    Rows grad(grad_out);
    AttentionBackward args{p, grad.view, static_cast<const RowState*>(states.const_data_ptr()), counts,
                       static_cast<const uint8_t*>(supports.const_data_ptr()), chunks, grad_q.mutable_data_ptr(), float_data(grad_k), float_data(grad_v),
                       want_alpha ? alpha_parts.data() : nullptr};
    run(table().backward, args, chunks * heads);
    double* total = static_cast<double*>(grad_alpha.mutable_data_ptr());
    for (size_t i = 0; i < alpha_parts.size(); ++i) total[i % (p.B * p.H)] += alpha_parts[i];
  }
  return {grad_q, add_chunks(grad_k, chunks, p.B, p.D, q), add_chunks(grad_v, chunks, p.B, p.E, q), grad_alpha};
}

std::tuple<Tensor, Tensor> attention_support(const Tensor& q, const Tensor& k, const Tensor& alpha, std::optional<Tensor> mask,
                                         std::optional<Tensor> key_mask, std::optional<Tensor> slopes, const Tensor& state,
                                         const Tensor& crow, double scale, bool rela, bool causal, int64_t causal_offset) {
  const char* op = "attention_support";
  require_problem(op, q, k, k, alpha, mask, key_mask, slopes, causal_offset);
  require_tensor(op, "state", state, ScalarType::Float, {q.size(0), q.size(1), q.size(2), kStateFloats});
  const int64_t rows = q.size(0) * q.size(1) * q.size(2);
  require_tensor(op, "crow", crow, ScalarType::Long, {rows + 1});
  const Tensor states = make_contiguous(state), offsets = make_contiguous(crow);
  Setup setup(q, k, k, alpha, mask, key_mask, slopes, scale, rela, causal, causal_offset, 0.0, std::nullopt, 0);
  const AttentionProblem& p = setup.p;
  const int64_t* offset = static_cast<const int64_t*>(offsets.const_data_ptr());
  for (int64_t row = 0; row < rows; ++row)
    require(offset[0] == 0 && offset[row + 1] >= offset[row] && offset[row + 1] - offset[row] <= p.Lk, op,
            ": crow must begin with 0 and grow by at most the ", p.Lk, " keys from row to row.");
  const int64_t total = rows > 0 ? offset[rows] : 0;
  Tensor columns = make_empty(q, std::vector<int64_t>{total}, ScalarType::Int);
  Tensor weights = floats(q, {total});
  if (total > 0) {
    setup.prepare(true, false, false);
    AttentionSupport args{p, static_cast<const RowState*>(states.const_data_ptr()), offset, static_cast<int32_t*>(columns.mutable_data_ptr()), float_data(weights)};
    run(table().support, args, p.B * p.H * setup.blocks(), kUnlikeSupport);
  }
  return {columns, weights};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(entformer, CPU, m) {
  m.impl("attention_forward", TORCH_BOX(&attention_forward));
  m.impl("attention_backward", TORCH_BOX(&attention_backward));
  m.impl("attention_support", TORCH_BOX(&attention_support));
}
