// The arguments of the attention operators, checked and brought to the form of the kernels.
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
    require(how.causal_offset >= -kMaxOffset && how.causal_offset <= kMaxOffset, op, ": causal_offset must lie between ",
            -kMaxOffset, " and ", kMaxOffset, ", not ", how.causal_offset, ".");
    const Products products = kernel_table().pair_products;
    if (p.dtype == kBFloat16 || (p.dtype == kFloat16 && products == Products::Amx)) p.products = products;
    p.q = q.view, p.k = k.view, p.v = v.view;
    read_alpha(op, alphas);
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

  // (B, H), or (H,) for all batches alike.
  void read_alpha(const char* op, const Tensor& given) {
    require_memory(op, "alpha", given, {ScalarType::Double, ScalarType::Float});
    const bool per_batch = given.dim() == 2;
    if (per_batch)
      require_shape(op, "alpha", given, {p.B, p.H});
    else
      require_shape(op, "alpha", given, {p.H});
    const int64_t batch = per_batch ? given.stride(0) : 0, head = given.stride(per_batch ? 1 : 0);
    for (int64_t n = 0; n < p.B * p.H; ++n) {
      const int64_t at = n / p.H * batch + n % p.H * head;
      alpha.push_back(dtype_of(given) == kFloat64 ? const_data<double>(given)[at] : (double)const_data<float>(given)[at]);
    }
    p.alpha = alpha.data();
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
      if (part.is_decode) part.products = Products::Float32;
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
  // Copies are made only of what the tensors themselves do not offer. For decoding k is read as it lies. Panels of k and rows of
  // floats are shared by all threads where these are more than the key heads, else each thread makes them for the heads it works on: that
  // takes less memory, and they are in its cache. `reserve(part, bytes)` sets the reserve of each part.
  template <class Reserve>
  void prepare(bool scores, bool k_rows, bool v_rows, const Reserve& reserve, int64_t bytes) {
    const int64_t vector = kernel_table().vector_length;
    bool has_copies = false;
    for (AttentionProblem& part : parts) {
      const int64_t keys = round_up(part.Lk, vector);
      const bool shares = part.B * part.G < torch::stable::get_num_threads();
      auto needs_copy = [&](int64_t width) { return (shares || part.is_decode) && (p.dtype != kFloat32 || width % vector); };
      if (part.key_mask) part.key_bias = buffer({part.B, keys});
      if (scores && !part.is_decode && shares) part.k_panels = buffer({part.B, part.G, keys, panel_depth(part, part.D)});
      if ((k_rows || (scores && part.is_decode)) && needs_copy(part.D))
        part.k_rows = buffer({part.B, part.G, part.Lk, round_up(part.D, vector)});
      if (v_rows && needs_copy(part.E)) part.v_rows = buffer({part.B, part.G, part.Lk, round_up(part.E, vector)});
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

}  // namespace
