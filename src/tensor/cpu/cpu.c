/* tensor/cpu/cpu.c - fills a kernel table with the CPU back end. */
#include "tensor/cpu/cpu.h"

#include "tensor/cpu/attention.h"
#include "tensor/cpu/linear.h"
#include "tensor/cpu/rows.h"

ek_status ek_kernels_cpu(ek_kernels *k, ek_mode mode, ek_isa isa)
{
    const ek_linear_ops *linear = ek_linear_choose(mode, isa);

    if (linear == NULL)
        return EK_OK;
    ek_linear_fill(k, linear);
    k->matmul_real = isa >= EK_ISA_AVX512 ? ek_matmul_real_avx512 : ek_matmul_real_avx2;
    ek_cpu_rows_fill(k, mode, isa);
    ek_cpu_attention_fill(k, mode, isa);
    return EK_OK;
}

void ek_kernels_cpu_fini(ek_kernels *k)
{
    k->state = NULL; /* a constant table: nothing to free */
}
