// Detects the instruction sets of this CPU and returns the kernels of the one in use.
#include <atomic>
#include <cstring>

#include "dispatch.h"
#include "kernel_table.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

struct InstructionSet {
  const char* name;
  const KernelTable* (*compiled)();
  Products pair_products;
  bool (*is_supported)();
  bool (*is_preferred)();  // to narrower ones
};

bool always() { return true; }

#if defined(__x86_64__)
// Bit `bit` of register 0 to 3 (eax, ebx, ecx, edx) of a leaf of cpuid.
bool has_feature(unsigned leaf, unsigned subleaf, int which, int bit) {
  unsigned registers[4];
  return __get_cpuid_count(leaf, subleaf, &registers[0], &registers[1], &registers[2], &registers[3]) &&
         (registers[which] >> bit & 1);
}
bool has_avx2() {  // clang's __builtin_cpu_supports does not know f16c
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_feature(1, 0, 2, 29);
}
bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}
bool has_avx512_bf16() { return has_avx512() && entformer_kernels_avx512()->has_pairs && has_feature(7, 1, 0, 5); }
// On Intel's processors vdpbf16ps has half the throughput of two fused multiply-adds, on AMD's twice.
bool is_amd() {
  unsigned registers[4];
  return __get_cpuid(0, &registers[0], &registers[1], &registers[2], &registers[3]) &&
         std::memcmp(&registers[1], "Auth", 4) == 0 && std::memcmp(&registers[3], "enti", 4) == 0;
}
bool has_amx() {
  if (!has_avx512_bf16() || !has_feature(7, 0, 3, 24) || !has_feature(7, 0, 3, 22)) return false;
#if defined(__linux__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM: a process asks once for the tiles
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}
#endif

const InstructionSet kInstructionSets[] = {
// widest first
#if defined(__x86_64__)
    {"amx", entformer_kernels_avx512, Products::Amx, has_amx, always},
    {"avx512_bf16", entformer_kernels_avx512, Products::Avx512Bf16, has_avx512_bf16, is_amd},
    {"avx512", entformer_kernels_avx512, Products::Float32, has_avx512, always},
    {"avx2", entformer_kernels_avx2, Products::Float32, has_avx2, always},
#endif
    {"portable", entformer_kernels_portable, Products::Float32, always, always},
};
constexpr int kCount = sizeof kInstructionSets / sizeof kInstructionSets[0];

struct Tables {
  KernelTable at[kCount];
  Tables() {
    for (int n = 0; n < kCount; ++n) {
      at[n] = *kInstructionSets[n].compiled();
      at[n].name = kInstructionSets[n].name;
      at[n].pair_products = kInstructionSets[n].pair_products;
    }
  }
};
const KernelTable* table_of(int index) {
  static const Tables tables;
  return &tables.at[index];
}

const KernelTable* widest() {
  for (int n = 0; n < kCount - 1; ++n)
    if (kInstructionSets[n].is_supported() && kInstructionSets[n].is_preferred()) return table_of(n);
  return table_of(kCount - 1);
}

std::atomic<const KernelTable*>& current() {
  static std::atomic<const KernelTable*> table{widest()};
  return table;
}

}  // namespace

const KernelTable& kernel_table() { return *current().load(); }

const char* entformer_isa() { return kernel_table().name; }

int entformer_set_isa(const char* name) {
  for (int n = 0; n < kCount; ++n) {
    if (std::strcmp(kInstructionSets[n].name, name) != 0 || !kInstructionSets[n].is_supported()) continue;
    current() = table_of(n);
    return 1;
  }
  return 0;
}

const char* entformer_dispatch_table() { return kDispatchTable; }
