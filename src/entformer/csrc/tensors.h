// Tensors as the kernels read them, and tasks on torch's own threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "attention.h"
#include "checks.h"

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

// Runs kernel(args, begin, end) over the tasks; `failure` are the parts of the error where it returns false.
template <class Args, class... Parts>
void run(bool (*kernel)(const Args&, int64_t, int64_t), const Args& args, int64_t tasks, int64_t grain,
         const Parts&... failure) {
  if (tasks == 0) return;
  std::atomic<bool> ok{true};
  torch::stable::parallel_for(0, tasks, grain, [&](int64_t begin, int64_t end) {
    if (!kernel(args, begin, end)) ok = false;
  });
  require(ok, failure...);
}

// The same over the tasks of several calls, tasks(args) each, one call after the other.
template <class Args, class Tasks>
void run_each(bool (*kernel)(const Args&, int64_t, int64_t), const std::vector<Args>& calls, const Tasks& tasks,
              const char* failure) {
  std::vector<int64_t> first{0};  // task of each call
  for (const Args& args : calls) first.push_back(first.back() + tasks(args));
  if (first.back() == 0) return;
  std::atomic<bool> ok{true};
  torch::stable::parallel_for(0, first.back(), 1, [&](int64_t begin, int64_t end) {
    size_t call = (size_t)(std::upper_bound(first.begin(), first.end(), begin) - first.begin() - 1);
    for (; call < calls.size() && first[call] < end; ++call)
      if (!kernel(calls[call], std::max(begin - first[call], (int64_t)0), std::min(end, first[call + 1]) - first[call]))
        ok = false;
  });
  require(ok, failure);
}

// (B, H, L, D) with a last stride of 1; other strides may be anything, overlapping ones included.
struct StridedView {
  Tensor given, tensor;
  AttentionView view;
  explicit StridedView(const Tensor& t) : given(t), tensor(t.size(3) <= 1 || t.stride(3) == 1 ? t : make_contiguous(t)) {
    view = {tensor.const_data_ptr(), tensor.stride(0), tensor.stride(1), tensor.stride(2)};
  }
};

inline AttentionRows rows_to_write(const Tensor& t) { return {t.mutable_data_ptr(), t.stride(0), t.stride(1), t.stride(2)}; }

// The view from row `first` on.
inline AttentionView from_row(AttentionView view, Dtype dtype, int64_t first) {
  if (view.data) view.data = (const char*)view.data + first * view.row * (dtype == kFloat32 ? 4 : 2);
  return view;
}

}  // namespace
