// The one source that is compiled once per instruction set (kernels/sources.py): fills the KernelTable of that set.
#if !defined(__clang__)  // gcc 12's own AVX-512 headers trip both
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include "attention_backward.h"
#include "entmax.h"
#include "kernel_table.h"

#if defined(__x86_64__) && defined(__GLIBC__)
// The default versions, of glibc 2.29, differ in errno alone; with these the library loads on older systems too.
__asm__(".symver exp, exp@GLIBC_2.2.5");
__asm__(".symver log, log@GLIBC_2.2.5");
#endif

#if defined(__AVX512F__)
#define ENTFORMER_ISA "avx512"
#define ENTFORMER_KERNELS entformer_kernels_avx512
#elif defined(__AVX2__)
#define ENTFORMER_ISA "avx2"
#define ENTFORMER_KERNELS entformer_kernels_avx2
#else
#define ENTFORMER_ISA "portable"
#define ENTFORMER_KERNELS entformer_kernels_portable
#endif

extern "C" const KernelTable* ENTFORMER_KERNELS() {
  static const KernelTable table = {
      ENTFORMER_ISA, VL,   Products::Float32, ENTFORMER_HAS_PAIRS, entmax_forward,   entmax_backward,
      block_rows,    pack, attention_forward, attention_backward,  attention_support};
  return &table;
}
