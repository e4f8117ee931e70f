// The gradients that an attention operator returns: their tensors, and the calls of the kernels that fill them.
#pragma once

#include "attention_setup.h"

namespace {

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

  Gradients(const char* op, const Setup& setup_, const Tensor& alphas, const Features& features, const Needs& needs_)
      : setup(setup_),
        needs(needs_),
        q(setup.make_output(setup.q.given, setup.p.D)),
        k(setup.make_output(setup.k.given, setup.p.D)),
        v(setup.make_output(setup.v.given, setup.p.E)),
        alpha(needs.alpha ? zeros_like(alphas) : make_zeros(alphas, {0})),
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
    std::vector<std::optional<Tensor>> of_k(count), of_v(count);
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
      a.grad_k = place_rows(a, k, of_k[n]);
      a.grad_v = place_rows(a, v, of_v[n]);
      a.out_k = rows_to_write(k), a.out_v = rows_to_write(v);
      sums[n].resize((size_t)(a.chunks * part.B * part.H));
      a.grad_q = rows_to_write(q);
      a.head_sums = sums[n].data();
      place_bias(a, own[n]);
      calls.push_back(a);
    }
    run_each(
        kernel_table().attention_backward, calls, [](const AttentionBackward& a) { return a.chunks * task_groups(a); },
        kNoMemory);
    std::vector<double> of_alpha((size_t)alpha.numel());
    for (size_t n = 0; n < count; ++n) {
      add_bias(calls[n], own[n]);
      const int64_t heads = setup.p.B * setup.p.H;
      for (size_t i = 0; i < sums[n].size(); ++i) {
        const HeadSums& s = sums[n][i];
        if (needs.alpha) of_alpha[i % of_alpha.size()] += s.alpha;
        if (needs.sinks) data<float>(sinks)[i % heads] += (float)s.sink;
        if (needs.slopes) data<float>(slopes)[i % heads] += (float)s.slope;
      }
    }
    for (size_t i = 0; i < of_alpha.size(); ++i) {
      if (dtype_of(alpha) == kFloat64)
        data<double>(alpha)[i] = of_alpha[i];
      else
        data<float>(alpha)[i] = (float)of_alpha[i];
    }
    add_chunks(calls, of_k, k);
    add_chunks(calls, of_v, v);
  }

  // Where a part sums the gradient of k or v: in place, in a tensor of its own where there are chunks to add, or in memory of the threads
  // where there are rows to convert.
  GradientRows place_rows(const AttentionBackward& a, const Tensor& result, std::optional<Tensor>& own) const {
    const AttentionProblem& part = a.problem;
    const int64_t width = result.size(3), padded = round_up(width, kernel_table().vector_length);
    if (a.chunks == 1) {
      if (padded != width || part.dtype != kFloat32) return {};
      const AttentionRows rows = rows_to_write(result);
      return {static_cast<float*>(rows.data) + part.first_key * rows.row, 0, rows.batch, rows.head, rows.row};
    }
    own = make_empty(result, {a.chunks, part.B, part.G, part.Lk, padded}, ScalarType::Float);
    return {data<float>(*own), own->stride(0), own->stride(1), own->stride(2), own->stride(3)};
  }

  static int64_t task_groups(const AttentionBackward& a) {
    return (a.joins_batches ? 1 : a.problem.B) * (a.joins_heads ? 1 : a.problem.G);
  }

  // Adds gradients (chunks, B, G, Lk, padded) of each part that wrote to a tensor of its own to `result`, in the order of chunks.
  static void add_chunks(const std::vector<AttentionBackward>& calls, const std::vector<std::optional<Tensor>>& parts,
                         const Tensor& result) {
    const int64_t width = result.size(3);
    const AttentionRows to = rows_to_write(result);
    for (size_t n = 0; width > 0 && n < calls.size(); ++n) {
      if (!parts[n]) continue;
      const AttentionProblem& p = calls[n].problem;
      const float* from = data<float>(*parts[n]);
      const int64_t padded = parts[n]->size(4), chunks = calls[n].chunks, rows = p.B * p.G * p.Lk;
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
