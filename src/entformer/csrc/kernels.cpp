// The one source that is compiled once per instruction set (kernels/native.py): fills the KernelTable of that set.
#include "attention_backward.h"
#include "entmax.h"
#include "kernel_table.h"

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
  static const KernelTable table = {ENTFORMER_ISA,      VL,   entmax_forward,    entmax_backward,   block_rows,
                                    pack,               attention_forward, attention_backward, attention_support};
  return &table;
}
