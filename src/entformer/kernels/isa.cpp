// See isa.h.
#include "isa.h"

#include <atomic>
#include <cstring>

namespace {

const char* const kNames[] = {"avx512", "avx2", "portable"};

bool runs_here(const char* name) {
#if defined(__x86_64__)
  if (!std::strcmp(name, "avx512"))
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
  if (!std::strcmp(name, "avx2"))
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
#endif
  return !std::strcmp(name, "portable");
}

const char* widest() {
  for (const char* name : kNames)
    if (runs_here(name)) return name;
  return "portable";
}

std::atomic<const char*>& current() {
  static std::atomic<const char*> name{widest()};
  return name;
}

}  // namespace

const char* entformer_isa() { return current().load(); }

int entformer_set_isa(const char* wanted) {
  for (const char* name : kNames) {
    if (std::strcmp(name, wanted) == 0 && runs_here(name)) {
      current() = name;
      return 1;
    }
  }
  return 0;
}
