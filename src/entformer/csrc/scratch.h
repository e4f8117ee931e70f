// Scratch memory of one kernel call.
#pragma once

#include <stdlib.h>

namespace {

// Allocated once, freed at the end of the scope; `data` is null if there is not enough memory.
struct Scratch {
  void* data = nullptr;
  Scratch() = default;
  explicit Scratch(size_t bytes) { allocate(bytes); }
  void allocate(size_t bytes) {
    if (posix_memalign(&data, 64, bytes + 64) != 0) data = nullptr;
  }
  ~Scratch() { free(data); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
};

}  // namespace
