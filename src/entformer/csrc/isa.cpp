// Detects the instruction sets of this CPU and returns the kernels of the one in use.
#include <atomic>
#include <cstring>

#include "dispatch.h"
#include "kernel_table.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace {

struct InstructionSet {
  const KernelTable* (*table)();
  bool (*is_supported)();
};

#if defined(__x86_64__)
bool has_f16c() {  // clang's __builtin_cpu_supports does not know the name
  unsigned eax, ebx, ecx, edx;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
}
#endif

const InstructionSet kInstructionSets[] = {
// widest first
#if defined(__x86_64__)
    {entformer_kernels_avx512,
     [] {
       return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
              __builtin_cpu_supports("avx512vl");
     }},
    {entformer_kernels_avx2, [] { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c(); }},
#endif
    {entformer_kernels_portable, [] { return true; }},
};

const KernelTable* widest() {
  for (const InstructionSet& set : kInstructionSets)
    if (set.is_supported()) return set.table();
  return entformer_kernels_portable();
}

std::atomic<const KernelTable*>& current() {
  static std::atomic<const KernelTable*> table{widest()};
  return table;
}

}  // namespace

const KernelTable& kernel_table() { return *current().load(); }

const char* entformer_isa() { return kernel_table().name; }

int entformer_set_isa(const char* name) {
  for (const InstructionSet& set : kInstructionSets) {
    if (!set.is_supported() || std::strcmp(set.table()->name, name) != 0) continue;
    current() = set.table();
    return 1;
  }
  return 0;
}

const char* entformer_dispatch_table() { return kDispatchTable; }
