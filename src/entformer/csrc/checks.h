// Checks of the arguments of a raw operator; the exception is an error message for the user.
//
// Python checks most of this before, but an operator can be called by its name (torch.ops.entformer...), by an exported program or
// under a transform, and the kernels read memory by the sizes stated here.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <initializer_list>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// Throws the parts as one sentence. STD_TORCH_CHECK would begin it with a function, a file and a line.
template <class... Parts>
void require(bool holds, const Parts&... parts) {
  if (holds) return;
  std::ostringstream text;
  (text << ... << parts);
  throw std::runtime_error(text.str());
}

template <class Sizes>
std::string shape_text(const Sizes& sizes) {
  std::ostringstream text;
  const char* between = "";
  text << "(";
  for (int64_t size : sizes) text << between << size, between = ", ";
  text << ")";
  return text.str();
}

// What `make` allocates. torch's own error would be the text of a macro around its dispatcher.
template <class Sizes, class Make>
Tensor allocated(const Sizes& sizes, const Make& make) {
  try {
    return make();
  } catch (const std::exception&) {
    throw std::runtime_error("there is not enough memory for a tensor of shape " + shape_text(sizes) + "; free some, or use smaller or fewer sequences.");
  }
}

using MaybeType = std::optional<ScalarType>;  // else that of `like`
inline Tensor make_empty(const Tensor& like, const std::vector<int64_t>& sizes, MaybeType dtype = std::nullopt) {
  return allocated(sizes, [&] { return torch::stable::new_empty(like, sizes, dtype); });
}
inline Tensor make_zeros(const Tensor& like, const std::vector<int64_t>& sizes, MaybeType dtype = std::nullopt) {
  return allocated(sizes, [&] { return torch::stable::new_zeros(like, sizes, dtype); });
}
inline Tensor make_contiguous(const Tensor& t) {
  return allocated(t.sizes(), [&] { return torch::stable::contiguous(t); });
}

// On the CPU, of one of `dtypes`, with memory behind it.
inline void require_memory(const char* op, const char* name, const Tensor& t, std::initializer_list<ScalarType> dtypes) {
  require(t.is_cpu(), op, ": ", name, " must be on the CPU.");
  bool known = false;
  std::ostringstream names;
  for (ScalarType dtype : dtypes) {
    known = known || t.scalar_type() == dtype;
    names << (names.tellp() > 0 ? " or " : "") << torch::headeronly::toString(dtype);
  }
  require(known, op, ": ", name, " must be ", names.str(), ", not ", torch::headeronly::toString(t.scalar_type()), ".");
  require(t.numel() == 0 || t.const_data_ptr() != nullptr, op, ": ", name, " has no memory behind it.");
}

inline void require_shape(const char* op, const char* name, const Tensor& t, std::initializer_list<int64_t> sizes) {
  bool same = t.dim() == (int64_t)sizes.size();
  int64_t d = 0;
  for (int64_t size : sizes) same = same && t.size(d++) == size;
  require(same, op, ": ", name, " must have shape ", shape_text(sizes), ", not ", shape_text(t.sizes()), ".");
}

inline void require_same_shape(const char* op, const char* name, const Tensor& t, const char* other_name, const Tensor& other) {
  bool same = t.dim() == other.dim();
  for (int64_t d = 0; same && d < t.dim(); ++d) same = t.size(d) == other.size(d);
  require(same, op, ": ", name, " must have the shape of ", other_name, ", ", shape_text(other.sizes()), ", not ", shape_text(t.sizes()), ".");
}

inline void require_tensor(const char* op, const char* name, const Tensor& t, ScalarType dtype, std::initializer_list<int64_t> sizes) {
  require_memory(op, name, t, {dtype});
  require_shape(op, name, t, sizes);
}

inline void require_probability(const char* op, const char* name, double p) {
  require(p >= 0.0 && p <= 1.0, op, ": ", name, " must lie between 0 and 1, not ", p, ".");
}

}  // namespace
