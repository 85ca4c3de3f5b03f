/* What a thread does with a kernel table: enter it, enqueue, wait.  The names of modes and
 * instruction sets. */
#include "tensor/kernels.h"

#include <omp.h>

void ek_kernels_enter(const ek_kernels *k)
{
    omp_set_dynamic(0); /* workspaces are sized for the team size */
    omp_set_num_threads(k->threads);
    if (k->enter != NULL)
        k->enter(k);
}

void ek_kernels_queue(const ek_kernels *k, int on)
{
    if (k->queue != NULL)
        k->queue(k, on);
}

ek_status ek_kernels_wait(const ek_kernels *k)
{
    return k->wait != NULL ? k->wait(k) : EK_OK;
}

static const char *const mode_names[] = {
    [EK_MODE_FP64] = "fp64", [EK_MODE_FP32] = "fp32", [EK_MODE_BF16] = "bf16"};

const char *ek_mode_name(ek_mode mode)
{
    return mode_names[mode];
}

static const char *const isa_names[] = {[EK_ISA_REF] = "x86-64 baseline only",
                                        [EK_ISA_AVX2] = "AVX2 with FMA",
                                        [EK_ISA_AVX512] = "AVX-512",
                                        [EK_ISA_AVX512_SLOW_BF16] =
                                            "AVX-512 with slow bf16 dot products",
                                        [EK_ISA_AVX512_BF16] = "AVX-512 with bf16 dot products",
                                        [EK_ISA_AMX_BF16] = "AVX-512 with bf16 matrix units (AMX)"};

const char *ek_isa_name(ek_isa isa)
{
    return isa_names[isa];
}
