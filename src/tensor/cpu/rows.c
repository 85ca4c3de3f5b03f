/* rows.c - chooses the row kernels of an instruction set. */
#include "tensor/cpu/rows.h"

static size_t rmsnorm_workspace(const ek_kernels *k, int64_t d)
{
    (void)k;
    return (size_t)d * EK_CPU_NORM_BLOCKS * sizeof(float);
}

void ek_cpu_rows_fill(ek_kernels *k, ek_mode mode, ek_isa isa)
{
    if (mode == EK_MODE_FP64 || isa == EK_ISA_REF)
        return;
#if defined(__x86_64__)
    k->rmsnorm_workspace = rmsnorm_workspace;
    if (isa == EK_ISA_AVX2)
        ek_cpu_rows_fill_avx2(k, mode, isa);
    else
        ek_cpu_rows_fill_avx512(k, mode, isa);
#endif
}
