/* cost/kernel_costs.h - measured rates of the kernels of a training step.
 *
 * Products    FLOP/s of one pass by rows a group, for each shape (out, in) of a model's weights.
 * Attention   FLOP/s by tokens of a sequence that is causal as a whole, for each kind of heads.
 * Rows        bytes/s by the bytes that an op of such rows says it moves (schedule/graph.h): small
 *             sizes stay in a cache.  Some kernels are bound by arithmetic, not by memory; their
 *             rates are lower.
 *
 * A shape that was not measured gets the rates of those that were, weighted by the inverse fourth
 * power of their distance in the logarithms of the sizes: exact at measured shapes, and near one of
 * them nearly its rate. */
#ifndef COST_KERNEL_COSTS_H
#define COST_KERNEL_COSTS_H

#include "cost/table.h"

typedef enum {
    EK_KERNEL_PRODUCT,        /* y = x W^T, as forward passes do it, */
    EK_KERNEL_PRODUCT_INPUT,  /* the gradient of x, */
    EK_KERNEL_PRODUCT_WEIGHT, /* and that of W */
    EK_KERNEL_ATTENTION,
    EK_KERNEL_ATTENTION_BACKWARD,
    EK_KERNEL_NORM,
    EK_KERNEL_NORM_BACKWARD,
    EK_KERNEL_ROPE,
    EK_KERNEL_SWIGLU,
    EK_KERNEL_SWIGLU_BACKWARD,
    EK_KERNEL_GATHER,  /* rows by index: permute, pack and unpack */
    EK_KERNEL_COMBINE, /* sums of rows by index: unpermute */
    EK_KERNEL_CONVERT, /* R to C */
    EK_KERNEL_GATE,    /* softmax, choice, weights and statistics */
    EK_KERNEL_GATE_BACKWARD,
    EK_KERNEL_CROSS_ENTROPY,
    EK_KERNEL_EMBED,
    EK_KERNEL_EMBED_BACKWARD,
    EK_KERNEL_SUM_SQUARES,
    EK_KERNEL_ADAMW,
    EK_KERNEL_PACK, /* masters to both packed forms */
    EK_KERNEL_COPY,
    EK_COST_KERNELS
} ek_cost_kernel;

enum { EK_KERNEL_COSTS_MAX = 96, EK_KERNEL_SIZES = 3 };

typedef struct {
    ek_cost_kernel kernel;
    int32_t size[EK_KERNEL_SIZES]; /* products: out, in; attention: heads, kv_heads, head_dim; those
                                      a kernel does not have: 0 */
    ek_cost_table rate;
} ek_kernel_cost;

/* n 0: not measured. */
typedef struct {
    int32_t n;
    ek_kernel_cost cost[EK_KERNEL_COSTS_MAX];
} ek_kernel_costs;

/* What is known of a kernel: its name, and the keys of a machine file. */
typedef struct {
    const char *name;                      /* "product forward" */
    const char *size_key[EK_KERNEL_SIZES]; /* NULL: it has no more sizes */
    const char *x_key, *y_key;             /* "rows_a_group", "flops_per_s" */
} ek_kernel_info;

/* Static; kernel is below EK_COST_KERNELS. */
const ek_kernel_info *ek_kernel_info_of(ek_cost_kernel kernel);

/* The measurement of exactly these sizes [EK_KERNEL_SIZES]; NULL: none. */
const ek_kernel_cost *ek_kernel_cost_find(const ek_kernel_costs *c, ek_cost_kernel kernel,
                                          const int32_t *size);

/* FLOP/s or bytes/s at x for sizes [EK_KERNEL_SIZES], measured or not; 0: none of this kernel was
 * measured. */
double ek_kernel_rate(const ek_kernel_costs *c, ek_cost_kernel kernel, const int32_t *size,
                      double x);

#endif
