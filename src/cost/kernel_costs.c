/* Rates of kernels: lookup, and interpolation between shapes. */
#include "cost/kernel_costs.h"

#include <math.h>
#include <string.h>

#define PRODUCT(name)                                                                              \
    {                                                                                              \
        name, {"out", "in"}, "rows_a_group", "flops_per_s"                                         \
    }
#define HEADS(name)                                                                                \
    {                                                                                              \
        name, {"heads", "kv_heads", "head_dim"}, "tokens_a_sequence", "flops_per_s"                \
    }
#define ROWS(name)                                                                                 \
    {                                                                                              \
        name, {NULL}, "bytes", "bytes_per_s"                                                       \
    }

static const ek_kernel_info kernels[EK_COST_KERNELS] = {
    [EK_KERNEL_PRODUCT] = PRODUCT("product forward"),
    [EK_KERNEL_PRODUCT_INPUT] = PRODUCT("product input"),
    [EK_KERNEL_PRODUCT_WEIGHT] = PRODUCT("product weight"),
    [EK_KERNEL_ATTENTION] = HEADS("attention"),
    [EK_KERNEL_ATTENTION_BACKWARD] = HEADS("attention backward"),
    [EK_KERNEL_NORM] = ROWS("norm"),
    [EK_KERNEL_NORM_BACKWARD] = ROWS("norm backward"),
    [EK_KERNEL_ROPE] = ROWS("rope"),
    [EK_KERNEL_SWIGLU] = ROWS("swiglu"),
    [EK_KERNEL_SWIGLU_BACKWARD] = ROWS("swiglu backward"),
    [EK_KERNEL_GATHER] = ROWS("gather"),
    [EK_KERNEL_COMBINE] = ROWS("combine"),
    [EK_KERNEL_CONVERT] = ROWS("convert"),
    [EK_KERNEL_GATE] = ROWS("gate"),
    [EK_KERNEL_GATE_BACKWARD] = ROWS("gate backward"),
    [EK_KERNEL_CROSS_ENTROPY] = ROWS("cross entropy"),
    [EK_KERNEL_EMBED] = ROWS("embed"),
    [EK_KERNEL_EMBED_BACKWARD] = ROWS("embed backward"),
    [EK_KERNEL_SUM_SQUARES] = ROWS("sum squares"),
    [EK_KERNEL_ADAMW] = ROWS("adamw"),
    [EK_KERNEL_PACK] = ROWS("pack"),
    [EK_KERNEL_COPY] = ROWS("copy"),
};

const ek_kernel_info *ek_kernel_info_of(ek_cost_kernel kernel)
{
    return &kernels[kernel];
}

const ek_kernel_cost *ek_kernel_cost_find(const ek_kernel_costs *c, ek_cost_kernel kernel,
                                          const int32_t *size)
{
    for (int32_t i = 0; i < c->n; i++)
        if (c->cost[i].kernel == kernel &&
            memcmp(c->cost[i].size, size, sizeof(c->cost[i].size)) == 0)
            return &c->cost[i];
    return NULL;
}

/* The square of the distance of two shapes in the logarithms of their sizes. */
static double distance2(const int32_t *a, const int32_t *b)
{
    double sum = 0;

    for (int i = 0; i < EK_KERNEL_SIZES; i++) {
        double d = log(fmax(a[i], 1) / fmax(b[i], 1));

        sum += d * d;
    }
    return sum;
}

double ek_kernel_rate(const ek_kernel_costs *c, ek_cost_kernel kernel, const int32_t *size,
                      double x)
{
    const ek_kernel_cost *same = ek_kernel_cost_find(c, kernel, size);
    double sum = 0, weights = 0;

    if (same != NULL)
        return ek_cost_rate_at(&same->rate, x);
    for (int32_t i = 0; i < c->n; i++) {
        double d2;

        if (c->cost[i].kernel != kernel)
            continue;
        d2 = distance2(c->cost[i].size, size);
        d2 = fmax(d2, 1e-12); /* a size of 0 and one of 1 */
        sum += log(ek_cost_rate_at(&c->cost[i].rate, x)) / (d2 * d2);
        weights += 1 / (d2 * d2);
    }
    return weights > 0 ? exp(sum / weights) : 0;
}
