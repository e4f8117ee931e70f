// The arguments of the attention operators, checked and brought to the form of the kernels, and the tensors of their gradients.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dispatch.h"
#include "kernel_table.h"
#include "tensors.h"

namespace {

constexpr const char* kNoMemory =
    "attention: there is not enough memory for the scratch space of this many keys; free some, or attend to fewer.";
constexpr int64_t kMaxPositions = 1 << 29;  // columns are 32-bit numbers
constexpr int64_t kMaxOffset = 1 << 30;     // and so are differences of positions

struct MaskArguments {
  std::optional<Tensor> attn_mask, key_mask, alibi_slopes;
};
struct ScoreArguments {
  std::string normalizer;
  double scale;
  bool is_causal;
  int64_t causal_offset;
};
// The last arguments of the operators; kernels/attention/arguments.py::Features.
struct Features {
  std::optional<Tensor> bias, sinks, cu_seqlens_q, cu_seqlens_k;
  std::optional<int64_t> window_left, window_right;
  std::optional<double> softcap, sigmoid_bias;
};

inline int64_t block_tasks(const AttentionProblem& p) {
  const int64_t rows = kernel_table().attention_block_rows(p);
  return p.B * p.H * ((p.Lq + rows - 1) / rows);
}

// Everything the operators have in common: the checked arguments, the problem, its parts and the prepared copies of k and v.
struct Setup {
  StridedView q, k, v;
  std::vector<double> alpha;  // (B, H)
  std::optional<Tensor> mask, key_mask, slopes, bias, sinks, begins_q, begins_k, seeds;
  std::vector<Tensor> buffers;
  AttentionProblem p{};                 // all queries and keys
  std::vector<AttentionProblem> parts;  // the same, or one for each packed sequence that has queries and keys

  static const Tensor& checked(const char* op, const char* name, const Tensor& t, const char* shape) {
    require_memory(op, name, t, {ScalarType::Float, ScalarType::BFloat16, ScalarType::Half});
    require(t.dim() == 4, op, ": ", name, " must have shape ", shape, ", not ", shape_text(t.sizes()), ".");
    return t;
  }

  Setup(const char* op, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& alphas,
        const MaskArguments& masks, const ScoreArguments& how, const Features& features)
      : q(checked(op, "query", query, "(B, H, Lq, D)")),
        k(checked(op, "key", key, "(B, G, Lk, D)")),
        v(checked(op, "value", value, "(B, G, Lk, E)")) {
    p.dtype = dtype_of(query);
    p.B = query.size(0), p.H = query.size(1), p.Lq = p.all_queries = query.size(2), p.D = query.size(3);
    p.G = key.size(1), p.Lk = p.all_keys = key.size(2), p.E = value.size(3);
    require_tensor(op, "key", key, query.scalar_type(), {p.B, p.G, p.Lk, p.D});
    require_tensor(op, "value", value, query.scalar_type(), {p.B, p.G, p.Lk, p.E});
    require(p.H == 0 || (p.G > 0 && p.H % p.G == 0), op, ": the ", p.H, " heads of query must be a multiple of the ", p.G,
            " of key.");
    require(p.Lq <= kMaxPositions && p.Lk <= kMaxPositions, op, ": at most ", kMaxPositions,
            " queries and keys are possible, not ", p.Lq, " and ", p.Lk, ".");
    require_tensor(op, "alpha", alphas, ScalarType::Double, {p.B, p.H});
    require(how.causal_offset >= -kMaxOffset && how.causal_offset <= kMaxOffset, op, ": causal_offset must lie between ",
            -kMaxOffset, " and ", kMaxOffset, ", not ", how.causal_offset, ".");
    p.q = q.view, p.k = k.view, p.v = v.view;
    for (int64_t n = 0; n < p.B * p.H; ++n)
      alpha.push_back(const_data<double>(alphas)[n / p.H * alphas.stride(0) + n % p.H * alphas.stride(1)]);
    p.alpha = alpha.data();
    set_normalizer(op, how.normalizer, features.sigmoid_bias);
    set_masks(op, masks);
    set_features(op, features);
    p.scale = (float)how.scale;
    p.causal_offset = how.causal_offset;
    p.left = window_side(op, "window_left", features.window_left);
    p.right = window_side(op, "window_right", features.window_right);
    if (how.is_causal) p.right = 0;
    split(op, features);
  }

  void set_normalizer(const char* op, const std::string& name, const std::optional<double>& sigmoid_bias) {
    bool known = name == "entmax";
    p.normalizer = Normalizer::Entmax;
#define ENTFORMER_FIND_NORMALIZER(id, text, weight, slope) \
  if (name == text) known = true, p.normalizer = Normalizer::id;
    ELEMENTWISE_NORMALIZERS(ENTFORMER_FIND_NORMALIZER)
    require(known, op, ": the kernels have no normalizer named ", name, ".");
    p.counts_keys = !sigmoid_bias;
    p.sigmoid_threshold = sigmoid_bias ? -(float)*sigmoid_bias : 0.0f;
  }

  void set_masks(const char* op, const MaskArguments& masks) {
    if (masks.attn_mask) {
      const Tensor& given = *masks.attn_mask;
      require_tensor(op, "attn_mask", given, ScalarType::Bool, {p.B, p.H, p.Lq, p.Lk});
      mask = given.stride(3) == 1 || p.Lk == 1 ? given : make_contiguous(given);
      p.mask = const_data<uint8_t>(*mask);
      p.mask_batch = mask->stride(0), p.mask_head = mask->stride(1), p.mask_row = mask->stride(2);
    }
    if (masks.key_mask) {
      require_tensor(op, "key_mask", *masks.key_mask, ScalarType::Bool, {p.B, p.Lk});
      p.key_mask = const_data<uint8_t>(*(key_mask = make_contiguous(*masks.key_mask)));
    }
    if (masks.alibi_slopes) {
      require_tensor(op, "alibi_slopes", *masks.alibi_slopes, ScalarType::Float, {p.B, p.H});
      p.slopes = const_data<float>(*(slopes = make_contiguous(*masks.alibi_slopes)));
    }
  }

  void set_features(const char* op, const Features& features) {
    if (features.bias) {
      const Tensor& given = *features.bias;
      require_memory(op, "bias", given, {ScalarType::Float});
      const int64_t full[4] = {p.B, p.H, p.Lq, p.Lk};
      bool fits = given.dim() == 4;
      for (int64_t d = 0; fits && d < 4; ++d) fits = given.size(d) == 1 || given.size(d) == full[d];
      require(fits, op, ": bias must have shape (B or 1, H or 1, Lq or 1, Lk or 1), not ", shape_text(given.sizes()), ".");
      bias = given.size(3) <= 1 || given.stride(3) == 1 ? given : make_contiguous(given);
      p.bias = const_data<float>(*bias);
      auto stride = [&](int64_t d) { return bias->size(d) == 1 ? 0 : bias->stride(d); };
      p.bias_batch = stride(0), p.bias_head = stride(1), p.bias_row = stride(2), p.bias_key = bias->size(3) == 1 ? 0 : 1;
    }
    if (features.sinks) {
      require_tensor(op, "sinks", *features.sinks, ScalarType::Float, {p.B, p.H});
      require(p.normalizer == Normalizer::Entmax, op, ": sinks need the normalizer entmax.");
      p.sinks = const_data<float>(*(sinks = make_contiguous(*features.sinks)));
    }
    if (features.softcap) {
      p.softcap = (float)*features.softcap;
      require(p.softcap > 0.0f && p.softcap - p.softcap == 0.0f, op, ": softcap must be a positive number, not ",
              *features.softcap, ".");
    }
  }

  static int64_t window_side(const char* op, const char* name, const std::optional<int64_t>& side) {
    if (!side) return kUnlimited;
    require(*side >= 0, op, ": ", name, " must be at least 0, not ", *side, ".");
    return std::min(*side, kUnlimited);
  }

  bool is_packed() const { return begins_q.has_value(); }

  static Tensor checked_begins(const char* op, const char* name, const Tensor& t, int64_t total) {
    require_memory(op, name, t, {ScalarType::Int});
    require(t.dim() == 1 && t.numel() > 0, op, ": ", name, " must have shape (sequences + 1,), not ", shape_text(t.sizes()),
            ".");
    Tensor begins = make_contiguous(t);
    const int32_t* at = const_data<int32_t>(begins);
    bool grows = at[0] == 0 && at[t.numel() - 1] == total;
    for (int64_t n = 1; n < t.numel(); ++n) grows = grows && at[n] >= at[n - 1];
    require(grows, op, ": ", name, " must begin with 0, never decrease and end with ", total, ".");
    return begins;
  }

  // Cuts the problem into its sequences, each of which is then computed as if it were alone.
  void split(const char* op, const Features& features) {
    require(features.cu_seqlens_q.has_value() == features.cu_seqlens_k.has_value(), op,
            ": packed sequences need cu_seqlens_q and cu_seqlens_k.");
    auto add = [&](AttentionProblem part) {
      if (part.B * part.H * part.Lq == 0 || part.Lk == 0) return;
      part.is_decode = choose_scores(part) == ScoresPath::Decode;
      parts.push_back(part);
    };
    if (!features.cu_seqlens_q) return add(p);
    begins_q = checked_begins(op, "cu_seqlens_q", *features.cu_seqlens_q, p.Lq);
    begins_k = checked_begins(op, "cu_seqlens_k", *features.cu_seqlens_k, p.Lk);
    require(begins_q->numel() == begins_k->numel(), op, ": cu_seqlens_q and cu_seqlens_k must have equally many sequences.");
    const int32_t *of_q = const_data<int32_t>(*begins_q), *of_k = const_data<int32_t>(*begins_k);
    for (int64_t n = 0; n + 1 < begins_q->numel(); ++n) {
      AttentionProblem part = p;
      part.first_query = of_q[n], part.first_key = of_k[n];
      part.Lq = of_q[n + 1] - of_q[n], part.Lk = of_k[n + 1] - of_k[n];
      part.q = from_row(p.q, p.dtype, part.first_query);
      part.k = from_row(p.k, p.dtype, part.first_key);
      part.v = from_row(p.v, p.dtype, part.first_key);
      if (p.mask) part.mask += part.first_query * p.mask_row + part.first_key;
      if (p.key_mask) part.key_mask += part.first_key;
      if (p.bias) part.bias += part.first_query * p.bias_row + part.first_key * p.bias_key;
      add(part);
    }
  }

  // A batch that is folded from several has one seed for each of these.
  void set_dropout(const char* op, double dropout_p, const Tensor& seed) {
    require_probability(op, "dropout_p", dropout_p);
    require_memory(op, "dropout_seed", seed, {ScalarType::Long});
    require(seed.dim() <= 1 && seed.numel() > 0 && p.B % seed.numel() == 0, op,
            ": dropout_seed must be one number, or several whose number divides the batch of ", p.B, "; it has shape ",
            shape_text(seed.sizes()), ".");
    seeds = make_contiguous(seed);
    for (AttentionProblem& part : parts) {
      part.dropout = (float)dropout_p;
      part.seeds = const_data<int64_t>(*seeds);
      part.rows_per_seed = std::max<int64_t>(p.B / seeds->numel() * p.H * p.Lq, 1);
    }
  }

  float* buffer(const std::vector<int64_t>& sizes) {
    buffers.push_back(make_empty(q.tensor, sizes, ScalarType::Float));
    return data<float>(buffers.back());
  }
  // Copies are made only of what the tensors themselves do not offer. For decoding k is read as it lies. Panels of k are shared by all
  // threads where these are more than the key heads, else each thread makes them for the heads it works on: that takes less memory, and
  // the panels are in its cache. `reserve(part, bytes)` sets the reserve of each part.
  template <class Reserve>
  void prepare(bool scores, bool k_rows, bool v_rows, const Reserve& reserve, int64_t bytes) {
    const int64_t vector = kernel_table().vector_length;
    const bool converts = p.dtype != kFloat32;
    bool has_copies = false;
    for (AttentionProblem& part : parts) {
      const int64_t keys = round_up(part.Lk, vector);
      if (part.key_mask) part.key_bias = buffer({part.B, keys});
      if (scores && !part.is_decode && part.B * part.G < torch::stable::get_num_threads())
        part.k_panels = buffer({part.B, part.G, keys, part.D});
      if ((k_rows || (scores && part.is_decode)) && (converts || part.D % vector))
        part.k_rows = buffer({part.B, part.G, part.Lk, round_up(part.D, vector)});
      if (v_rows && (converts || part.E % vector)) part.v_rows = buffer({part.B, part.G, part.Lk, round_up(part.E, vector)});
      has_copies |= part.key_bias || part.k_panels || part.k_rows || part.v_rows;
      reserve(part, bytes);
    }
    if (!has_copies) return;
    run_each(kernel_table().attention_pack, parts, [](const AttentionProblem& part) { return part.B * part.G; }, kNoMemory);
  }
  // Rows of a sequence without keys, and keys of one without queries, are in no part: they stay zero.
  bool covers_all() const { return !is_packed() && !parts.empty(); }
  Tensor make_output(const Tensor& like, int64_t size) const {
    return covers_all() ? make_rows(like, size) : fill_zeros(make_rows(like, size));
  }
  std::vector<int64_t> row_sizes() const { return {p.B, p.H, p.Lq}; }
  int64_t num_rows() const { return p.B * p.H * p.Lq; }
};

struct Needs {
  bool alpha, bias, sinks, slopes;
};

// The gradients of an operator: (0,) for what is not needed.
struct Gradients {
  const Setup& setup;
  Needs needs;
  Tensor q, k, v, alpha, bias, sinks, slopes;

  Tensor per_head(bool needed, ScalarType dtype) const {
    const AttentionProblem& p = setup.p;
    return make_zeros(setup.q.tensor, needed ? std::vector<int64_t>{p.B, p.H} : std::vector<int64_t>{0}, dtype);
  }
  Tensor zeros_like(const Tensor& t) const { return make_zeros(t, sizes_of(t, t.dim())); }

  Gradients(const char* op, const Setup& setup_, const Features& features, const Needs& needs_)
      : setup(setup_),
        needs(needs_),
        q(setup.make_output(setup.q.given, setup.p.D)),
        k(setup.make_output(setup.k.given, setup.p.D)),
        v(setup.make_output(setup.v.given, setup.p.E)),
        alpha(per_head(needs.alpha, ScalarType::Double)),
        bias(needs.bias && features.bias ? zeros_like(*features.bias) : make_zeros(q, {0}, ScalarType::Float)),
        sinks(per_head(needs.sinks, ScalarType::Float)),
        slopes(per_head(needs.slopes, ScalarType::Float)) {
    require((!needs.bias || features.bias) && (!needs.sinks || features.sinks) && (!needs.slopes || setup.slopes), op,
            ": a gradient is asked for of an argument that is missing.");
  }

  // Where a part writes the gradient of the bias. A bias with a row for each query is written in place, and where batches or heads share
  // it, one task has them all. One row for all queries is summed by each chunk and head for itself, in `own`.
  void place_bias(AttentionBackward& a, std::vector<float>& own) {
    const AttentionProblem& part = a.problem;
    if (!needs.bias) return;
    const bool in_place = bias.size(2) != 1;
    const int64_t columns = bias.size(3);
    a.grad_bias_key = columns == 1 ? 0 : 1;
    if (in_place) {
      a.grad_bias_row = columns;
      a.grad_bias_head = bias.size(1) == 1 ? 0 : bias.size(2) * columns;
      a.grad_bias_batch = bias.size(0) == 1 ? 0 : bias.size(1) * bias.size(2) * columns;
      a.grad_bias = data<float>(bias) + part.first_query * a.grad_bias_row + part.first_key * a.grad_bias_key;
      return;
    }
    const int64_t here = columns == 1 ? 1 : part.Lk;
    own.assign((size_t)(a.chunks * part.B * part.H * here), 0.0f);
    a.grad_bias_head = here;
    a.grad_bias_batch = part.H * here;
    a.grad_bias_chunk = part.B * part.H * here;
    a.grad_bias = own.data();
  }
  void add_bias(const AttentionBackward& a, const std::vector<float>& own) {
    const AttentionProblem& part = a.problem;
    if (own.empty()) return;
    const int64_t columns = bias.size(3), here = columns == 1 ? 1 : part.Lk;
    float* to = data<float>(bias) + (columns == 1 ? 0 : part.first_key);
    for (int64_t n = 0; n < a.chunks * part.B * part.H; ++n) {
      const int64_t b = bias.size(0) == 1 ? 0 : n / part.H % part.B, h = bias.size(1) == 1 ? 0 : n % part.H;
      for (int64_t j = 0; j < here; ++j) to[(b * bias.size(1) + h) * columns + j] += own[(size_t)(n * here + j)];
    }
  }

  void run(const Tensor& grad_output, const RowStates& rows, const uint8_t* reserve, const int64_t* support_offset,
           const float* grad_support) {
    const StridedView grad(grad_output);
    const size_t count = setup.parts.size();
    std::vector<AttentionBackward> calls;
    std::vector<Tensor> of_k, of_v;
    std::vector<std::vector<HeadSums>> sums(count);
    std::vector<std::vector<float>> own(count);
    for (size_t n = 0; n < count; ++n) {
      const AttentionProblem& part = setup.parts[n];
      AttentionBackward a{};
      a.problem = part;
      a.grad_out = from_row(grad.view, part.dtype, part.first_query);
      a.rows = rows, a.reserve = reserve, a.support_offset = support_offset, a.grad_support = grad_support;
      a.needs_alpha_grad = needs.alpha, a.needs_slopes_grad = needs.slopes;
      a.joins_batches = needs.bias && bias.size(2) != 1 && bias.size(0) == 1;
      a.joins_heads = needs.bias && bias.size(2) != 1 && bias.size(1) == 1;
      const int64_t groups = task_groups(a), blocks = block_tasks(part) / (part.B * part.H);
      // Few tasks are cut into parts so that eight threads have work; the number depends on shapes alone, so sums do not change with
      // threads.
      a.chunks = groups < 8 ? std::min<int64_t>((8 + groups - 1) / groups, blocks) : 1;
      a.grad_k = place_rows(a, k, of_k);
      a.grad_v = place_rows(a, v, of_v);
      sums[n].resize((size_t)(a.chunks * part.B * part.H));
      a.grad_q = rows_to_write(q);
      a.head_sums = sums[n].data();
      place_bias(a, own[n]);
      calls.push_back(a);
    }
    run_each(
        kernel_table().attention_backward, calls, [](const AttentionBackward& a) { return a.chunks * task_groups(a); },
        kNoMemory);
    for (size_t n = 0; n < count; ++n) {
      add_bias(calls[n], own[n]);
      const int64_t heads = setup.p.B * setup.p.H;
      for (size_t i = 0; i < sums[n].size(); ++i) {
        const HeadSums& s = sums[n][i];
        if (needs.alpha) data<double>(alpha)[i % heads] += s.alpha;
        if (needs.sinks) data<float>(sinks)[i % heads] += (float)s.sink;
        if (needs.slopes) data<float>(slopes)[i % heads] += (float)s.slope;
      }
    }
    add_chunks(calls, of_k, k);
    add_chunks(calls, of_v, v);
  }

  // Where a part writes the gradient of k or v: in place, or to a tensor of its own where there are chunks to add or rows to convert.
  GradientRows place_rows(const AttentionBackward& a, const Tensor& result, std::vector<Tensor>& own) const {
    const AttentionProblem& part = a.problem;
    const int64_t width = result.size(3), padded = round_up(width, kernel_table().vector_length);
    if (width == 0) return {data<float>(result), 0, 0, 0, 0};
    if (setup.covers_all() && a.chunks == 1 && padded == width && part.dtype == kFloat32)
      return {data<float>(result), 0, result.stride(0), result.stride(1), result.stride(2)};
    own.push_back(make_empty(result, {a.chunks, part.B, part.G, part.Lk, padded}, ScalarType::Float));
    const Tensor& to = own.back();
    return {data<float>(to), to.stride(0), to.stride(1), to.stride(2), to.stride(3)};
  }

  static int64_t task_groups(const AttentionBackward& a) {
    return (a.joins_batches ? 1 : a.problem.B) * (a.joins_heads ? 1 : a.problem.G);
  }

  // Adds gradients (chunks, B, G, Lk, padded) of each part that wrote to a tensor of its own to `result`, in the order of chunks.
  static void add_chunks(const std::vector<AttentionBackward>& calls, const std::vector<Tensor>& parts, const Tensor& result) {
    const int64_t width = result.size(3);
    if (width == 0 || parts.empty()) return;
    const AttentionRows to = rows_to_write(result);
    for (size_t n = 0; n < calls.size(); ++n) {
      const AttentionProblem& p = calls[n].problem;
      const float* from = data<float>(parts[n]);
      const int64_t padded = parts[n].size(4), chunks = calls[n].chunks, rows = p.B * p.G * p.Lk;
      torch::stable::parallel_for(0, rows, 256, [&](int64_t begin, int64_t end) {
        std::vector<float> sum((size_t)width);
        for (int64_t r = begin; r < end; ++r) {
          std::copy_n(from + r * padded, width, sum.data());
          for (int64_t c = 1; c < chunks; ++c)
            for (int64_t i = 0; i < width; ++i) sum[(size_t)i] += from[(c * rows + r) * padded + i];
          const int64_t b = r / p.Lk / p.G, g = r / p.Lk % p.G, j = p.first_key + r % p.Lk;
          from_float32(sum.data(), p.dtype, b * to.batch + g * to.head + j * to.row, width, to.data);
        }
      });
    }
  }
};

}  // namespace
