// Compares the kernels with float64 computed here, without torch: entmax and attention, forward and backward. See cross_compile.sh.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <random>
#include <vector>

#include "kernel_table.h"

#if defined(__AVX512F__)
#define kernels_compiled_for entformer_kernels_avx512
#elif defined(__AVX2__)
#define kernels_compiled_for entformer_kernels_avx2
#else
#define kernels_compiled_for entformer_kernels_portable
#endif

namespace {

std::mt19937_64 generator(1);
double worst_weight = 0.0, worst_gradient = 0.0, worst_alpha = 0.0, worst_attention = 0.0;

std::vector<float> normal(int64_t count, float scale) {
  std::normal_distribution<float> draw(0.0f, scale);
  std::vector<float> x((size_t)count);
  for (float& value : x) value = draw(generator);
  return x;
}

// The weights of one row by bisection.
std::vector<double> weights_of(const std::vector<double>& s, double e) {
  auto weight = [e](double x) { return e == 0.0 ? std::exp(x) : e * x <= -1.0 ? 0.0 : std::exp(std::log1p(e * x) / e); };
  const double most = *std::max_element(s.begin(), s.end());
  double low = most, high = most + (e == 0.0 ? std::log((double)s.size()) : -std::expm1(-e * std::log((double)s.size())) / e);
  for (int step = 0; step < 200; ++step) {
    const double c = 0.5 * (low + high);
    double sum = 0.0;
    for (double x : s) sum += weight(x - c);
    (sum > 1.0 ? low : high) = c;
  }
  std::vector<double> p;
  for (double x : s) p.push_back(weight(x - low));
  return p;
}

// dL/ds of one row; adds to dL/dalpha, and to the sum of its terms without their signs.
std::vector<double> gradient_of(const std::vector<double>& p, const std::vector<double>& g, double e, double& alpha,
                                double& terms) {
  double W = 0.0, WG = 0.0;
  std::vector<double> w;
  for (size_t i = 0; i < p.size(); ++i) {
    w.push_back(p[i] > 0.0 ? std::pow(p[i], 1.0 - e) : 0.0);
    W += w[i], WG += w[i] * g[i];
  }
  const double delta = WG / W;
  std::vector<double> out;
  for (size_t i = 0; i < p.size(); ++i) {
    out.push_back(w[i] * (g[i] - delta));
    if (p[i] == 0.0) continue;
    const double log_p = std::log(p[i]), t = -e * log_p;
    const double psi = t < 1e-3 ? 0.5 + t / 6 + t * t / 24 : (std::expm1(t) - t) / (t * t);
    const double a = -p[i] * log_p * log_p * psi;
    alpha += a * (g[i] - delta);
    terms += std::fabs(a) * (std::fabs(g[i]) + std::fabs(delta));
  }
  return out;
}

// The largest difference, relative to the largest number if that is above one.
double furthest(const std::vector<double>& right, const float* found) {
  double worst = 0.0, size = 1.0;
  for (size_t i = 0; i < right.size(); ++i) {
    size = std::max(size, std::fabs(right[i]));
    const double off = std::fabs(right[i] - found[i]);
    worst = off <= worst ? worst : off;  // NaN counts
  }
  return worst / size;
}

void compare_rows(const KernelTable& kernels, int64_t n, double alpha, float scale) {
  const int64_t rows = 9;
  const std::vector<float> s = normal(rows * n, scale), g = normal(rows * n, 1.0f);
  std::vector<float> p(s.size()), grad(s.size());
  std::vector<double> grad_alpha((size_t)rows);
  kernels.entmax_forward({kFloat32, n, s.data(), &alpha, 0, p.data(), rows}, 0, rows);
  kernels.entmax_backward({kFloat32, n, p.data(), g.data(), &alpha, 0, grad.data(), grad_alpha.data()}, 0, rows);
  for (int64_t r = 0; r < rows; ++r) {
    auto row = [&](const std::vector<float>& x) { return std::vector<double>(x.begin() + r * n, x.begin() + (r + 1) * n); };
    worst_weight = std::max(worst_weight, furthest(weights_of(row(s), alpha - 1.0), p.data() + r * n));
    double right = 0.0, terms = 1e-30;
    const std::vector<double> to_scores = gradient_of(row(p), row(g), alpha - 1.0, right, terms);
    worst_gradient = std::max(worst_gradient, furthest(to_scores, grad.data() + r * n));
    worst_alpha = std::max(worst_alpha, std::fabs(grad_alpha[(size_t)r] - right) / terms);
  }
}

// One causal head: output, and gradients to q, k and v.
void compare_attention(const KernelTable& kernels, int64_t L, int64_t D, double alpha, float scale) {
  const std::vector<float> q = normal(L * D, scale), k = normal(L * D, 1.0f), v = normal(L * D, 1.0f), g = normal(L * D, 1.0f);
  const int64_t vector = kernels.vector_length, keys = (L + vector - 1) / vector * vector;
  std::vector<float> panels((size_t)(keys * D)), row_max((size_t)L), out((size_t)(L * D));
  std::vector<float> to_q(out), to_k(out), to_v(out);
  std::vector<double> threshold((size_t)L);
  std::vector<int32_t> support_size((size_t)L);
  AttentionProblem p{};
  p.dtype = kFloat32;
  p.B = p.H = p.G = 1;
  p.Lq = p.Lk = p.all_queries = p.all_keys = L;
  p.D = p.E = D;
  p.q = {q.data(), 0, 0, D}, p.k = {k.data(), 0, 0, D}, p.v = {v.data(), 0, 0, D};
  p.alpha = &alpha;
  p.scale = 1.0f / std::sqrt((float)D);
  p.left = kUnlimited;
  p.rows_per_seed = L;
  p.reserve_bytes = p.reserve_stride = 256;
  p.k_panels = panels.data();
  std::vector<uint8_t> reserve((size_t)(L * p.reserve_stride));
  kernels.attention_pack(p, 0, 1);
  const int64_t rows = kernels.attention_block_rows(p), blocks = (L + rows - 1) / rows;
  const RowStates states{row_max.data(), threshold.data(), support_size.data()};
  kernels.attention_forward({p, {out.data(), 0, 0, D}, states, nullptr, reserve.data()}, 0, blocks);
  HeadSums sums{};
  AttentionBackward a{};
  a.problem = p, a.grad_out = {g.data(), 0, 0, D}, a.rows = states, a.reserve = reserve.data(), a.chunks = 1;
  a.needs_alpha_grad = true;
  a.grad_q = {to_q.data(), 0, 0, D}, a.grad_k = {to_k.data(), 0, 0, 0, D}, a.grad_v = {to_v.data(), 0, 0, 0, D};
  a.head_sums = &sums;
  kernels.attention_backward(a, 0, 1);

  std::vector<double> right_out((size_t)(L * D)), right_q(right_out), right_k(right_out), right_v(right_out);
  double right_alpha = 0.0, terms = 1e-30;
  for (int64_t i = 0; i < L; ++i) {
    std::vector<double> s, gp;
    for (int64_t j = 0; j <= i; ++j) {
      double score = 0.0, product = 0.0;
      for (int64_t d = 0; d < D; ++d) {
        score += (double)q[i * D + d] * k[j * D + d];
        product += (double)g[i * D + d] * v[j * D + d];
      }
      s.push_back(score * p.scale), gp.push_back(product);
    }
    const std::vector<double> weights = weights_of(s, alpha - 1.0);
    const std::vector<double> to_scores = gradient_of(weights, gp, alpha - 1.0, right_alpha, terms);
    for (int64_t j = 0; j <= i; ++j)
      for (int64_t d = 0; d < D; ++d) {
        right_out[i * D + d] += weights[j] * v[j * D + d];
        right_v[j * D + d] += weights[j] * g[i * D + d];
        right_q[i * D + d] += to_scores[j] * p.scale * k[j * D + d];
        right_k[j * D + d] += to_scores[j] * p.scale * q[i * D + d];
      }
  }
  for (double off : {furthest(right_out, out.data()), furthest(right_q, to_q.data()), furthest(right_k, to_k.data()),
                     furthest(right_v, to_v.data()), std::fabs(sums.alpha - right_alpha) / terms})
    worst_attention = off <= worst_attention ? worst_attention : off;
}

}  // namespace

int main() {
  const KernelTable& kernels = *kernels_compiled_for();
  for (float alpha : {1.0f, 1.01f, 1.1f, 1.3f, 1.5f, 1.7f, 1.99f, 2.0f})
    for (float scale : {0.1f, 1.0f, 4.0f}) {
      for (int64_t n : {1, 3, 7, 64, 65, 300, 1500}) compare_rows(kernels, n, alpha, scale);
      for (int64_t L : {5, 64, 150}) compare_attention(kernels, L, std::max<int64_t>(8, kernels.vector_length), alpha, scale);
    }
  std::printf("weights %.1e, gradient to scores %.1e, to alpha %.1e of its terms, attention %.1e\n", worst_weight,
              worst_gradient, worst_alpha, worst_attention);
  return worst_weight <= 3e-7 && worst_gradient <= 2e-6 && worst_alpha <= 1e-6 && worst_attention <= 1e-5 ? 0 : 1;
}
