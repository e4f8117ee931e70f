// Checks of the arguments of a raw operator; the exception is an error message for the user.
//
// Python checks most of this before, but an operator can be called by its name (torch.ops.entformer...), by an exported program or
// under a transform, and the kernels read memory by the sizes stated here.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <cstring>
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

// A list as part of a sentence. It becomes text only if the sentence is thrown: streams take longer than the checks.
template <class List>
struct Listed {
  List list;
  const char *begin, *between, *end;
};
template <class List>
std::ostream& operator<<(std::ostream& text, const Listed<List>& listed) {
  const char* between = listed.begin;
  for (const auto& element : listed.list) text << between << element, between = listed.between;
  return text << (between == listed.begin ? listed.begin : "") << listed.end;
}
template <class Sizes>
Listed<Sizes> shape_text(const Sizes& sizes) {
  return {sizes, "(", ", ", ")"};
}

using MaybeType = std::optional<ScalarType>;  // else that of `like`
// By the C function, since torch::stable::new_empty looks the operator up by its name at every call.
inline Tensor make_strided(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides, ScalarType dtype) {
  AtenTensorHandle made = nullptr;
  const AOTITorchError error = aoti_torch_empty_strided((int64_t)sizes.size(), sizes.data(), strides.data(), (int32_t)dtype,
                                                        aoti_torch_device_type_cpu(), 0, &made);
  require(error == AOTI_TORCH_SUCCESS, "there is not enough memory for a tensor of shape ",
          shape_text(torch::headeronly::IntHeaderOnlyArrayRef(sizes)), "; free some, or use smaller or fewer sequences.");
  return Tensor(made);
}
inline Tensor make_empty(const Tensor& like, const std::vector<int64_t>& sizes, MaybeType dtype = std::nullopt) {
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t d = sizes.size(); d > 1; --d) strides[d - 2] = strides[d - 1] * std::max<int64_t>(sizes[d - 1], 1);
  return make_strided(sizes, strides, dtype.value_or(like.scalar_type()));
}
// (B, H, L, size) without gaps in the memory order of `like`, (B, H, L, any): (B, L, H, size) where its heads lie side by side.
// kernels/attention/arguments.py::new_rows is the same.
inline Tensor make_rows(const Tensor& like, int64_t size) {
  const int64_t B = like.size(0), H = like.size(1), L = like.size(2), wide = std::max<int64_t>(size, 1);
  const bool side_by_side = like.stride(1) < like.stride(2);
  const int64_t head = wide * (side_by_side ? 1 : std::max<int64_t>(L, 1)),
                row = wide * (side_by_side ? std::max<int64_t>(H, 1) : 1);
  return make_strided({B, H, L, size}, {wide * std::max<int64_t>(H, 1) * std::max<int64_t>(L, 1), head, row, 1},
                      like.scalar_type());
}
inline Tensor fill_zeros(Tensor made) {  // which has no gaps
  char* bytes = static_cast<char*>(made.mutable_data_ptr());
  torch::stable::parallel_for(0, made.numel() * (int64_t)made.element_size(), 1 << 17,
                              [=](int64_t begin, int64_t end) { std::memset(bytes + begin, 0, (size_t)(end - begin)); });
  return made;
}
inline Tensor make_zeros(const Tensor& like, const std::vector<int64_t>& sizes, MaybeType dtype = std::nullopt) {
  return fill_zeros(make_empty(like, sizes, dtype));
}
inline Tensor make_contiguous(const Tensor& t) {
  if (t.is_contiguous()) return t;
  const auto sizes = t.sizes();
  Tensor made = make_empty(t, {sizes.begin(), sizes.end()});
  torch::stable::copy_(made, t);
  return made;
}

// On the CPU, of one of `dtypes`, with memory behind it.
inline void require_memory(const char* op, const char* name, const Tensor& t, std::initializer_list<ScalarType> dtypes) {
  require(t.is_cpu(), op, ": ", name, " must be on the CPU.");
  const bool known = std::find(dtypes.begin(), dtypes.end(), t.scalar_type()) != dtypes.end();
  require(known, op, ": ", name, " must be ", Listed<std::initializer_list<ScalarType>>{dtypes, "", " or ", ""}, ", not ",
          t.scalar_type(), ".");
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
  require(same, op, ": ", name, " must have the shape of ", other_name, ", ", shape_text(other.sizes()), ", not ",
          shape_text(t.sizes()), ".");
}

inline void require_tensor(const char* op, const char* name, const Tensor& t, ScalarType dtype,
                           std::initializer_list<int64_t> sizes) {
  require_memory(op, name, t, {dtype});
  require_shape(op, name, t, sizes);
}

inline void require_probability(const char* op, const char* name, double p) {
  require(p >= 0.0 && p <= 1.0, op, ": ", name, " must lie between 0 and 1, not ", p, ".");
}

}  // namespace
