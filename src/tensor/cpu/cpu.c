/* tensor/cpu/cpu.c - puts the CPU back end into a kernel table, part by part. */
#include "tensor/cpu/cpu.h"

#include "tensor/cpu/attention.h"
#include "tensor/cpu/dnnl_border.h"
#include "tensor/cpu/linear.h"
#include "tensor/cpu/rows.h"

/* One small product of each kind: oneDNN then makes its code now, not in the first step, and the
 * memory that it takes is there before a run predicts its own. */
static void wake_matrix_library(void)
{
    enum { SIDE = 64 };
    static const int kinds[][2] = {{0, 1}, {0, 0}, {1, 0}};
    float a[SIDE * SIDE] = {0}, c[SIDE * SIDE];

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        ek_dnnl_matmul_real(kinds[i][0], kinds[i][1], SIDE, SIDE, SIDE, a, SIDE, a, SIDE, 0, c,
                            SIDE);
}

ek_status ek_kernels_cpu(ek_kernels *k, ek_mode mode, ek_isa isa)
{
    const ek_linear_ops *linear = ek_linear_choose(mode, isa);

    if (linear == NULL)
        return EK_OK;
    ek_linear_fill(k, linear);
    k->matmul_real = ek_dnnl_matmul_real;
    wake_matrix_library();
    ek_cpu_rows_fill(k, mode, isa);
    ek_cpu_attention_fill(k, mode, isa);
    return EK_OK;
}

void ek_kernels_cpu_fini(ek_kernels *k)
{
    k->state = NULL; /* a table of constants: nothing to give back */
}
