/* moe/moe_priv.h - inside of a MoE layer: the ops of its parts, and how they are appended.
 *
 *   router.c    route, choose, exchange of tallies, account; backward of the gate
 *   experts.c   the products of one chunk of rows
 *   token_dispatcher.c    rows to where they are served and back, forward and backward
 *   replica_prefetch.c     replicas planned one micro-batch ahead
 *   moe.c       the order of all these in a step graph */
#ifndef MOE_MOE_PRIV_H
#define MOE_MOE_PRIV_H

#include "moe/moe.h"

/* Sizes that costs are made of; of rows what is expected of an even spread. */
typedef struct {
    double n;       /* this rank's tokens */
    double sent;    /* rows of them */
    double rows;    /* rows that this rank serves */
    double d, f;    /* hidden, this rank's inner width */
    double experts; /* of the layer */
    double here;    /* on this rank */
    double comp, real;
} ek_moe_cost;

/* Who appends ops. */
typedef struct {
    ek_moe *m;
    ek_graph *g;
    int32_t micro;
    int recompute;
    ek_moe_cost c;
} ek_moe_builder;

/* Appends one op of the compute lane after `dep`.  part: chunk, or -1. */
int32_t ek_moe_add(const ek_moe_builder *b, ek_op_kind kind, ek_op_fn run, int32_t part,
                   double flops, double bytes, int32_t dep);
/* The same of an op that, on one rank, uses an accelerator's memory by kernels alone. */
int32_t ek_moe_add_kernels(const ek_moe_builder *b, ek_op_kind kind, ek_op_fn run, int32_t part,
                           double flops, double bytes, int32_t dep);
/* Appends one op of the network lane after both. */
int32_t ek_moe_add_net(const ek_moe_builder *b, ek_op_kind kind, ek_op_fn run, int32_t part,
                       double bytes, int32_t dep, int32_t dep2);

static inline const ek_micro *ek_moe_micro(const ek_moe *m, const ek_op *op)
{
    return &m->step->micro[op->micro];
}

/* Whether rows travel between ranks. */
static inline int ek_moe_is_distributed(const ek_moe *m)
{
    return m->mesh->ep * m->mesh->etp > 1;
}

/* The chunk of an op; 0 for ops of a layer in one piece. */
static inline int ek_moe_chunk(const ek_op *op)
{
    return op->part > 0 ? op->part : 0;
}

static inline const int64_t *ek_moe_offset(const ek_moe *m, const ek_moe_activations *kept,
                                           int chunk)
{
    return kept->offset + (int64_t)chunk * (m->x.slots + 1);
}

/* The first row of a chunk, and the number of its rows. */
static inline int64_t ek_moe_first_row(const ek_moe *m, const ek_moe_activations *kept, int chunk)
{
    return ek_moe_offset(m, kept, chunk)[0];
}

static inline int64_t ek_moe_rows(const ek_moe *m, const ek_moe_activations *kept, int chunk)
{
    const int64_t *offset = ek_moe_offset(m, kept, chunk);

    return offset[m->x.slots] - offset[0];
}

/* Element i of an array of this type. */
static inline void *ek_moe_at(ek_dtype type, const void *array, int64_t i)
{
    return (char *)(uintptr_t)array + i * (int64_t)ek_dtype_size(type);
}

/* --- router.c: append the ops and return the last --------------------------------------------- */

/* Logits, gate, and the exchange of tallies, whose op goes to *told (-1: one rank alone). */
int32_t ek_moe_build_router(const ek_moe_builder *b, int32_t *counts_op, int32_t dep);
/* Statistics of the micro-batch, and where rows lie, when all tallies are here; anywhere after the
 * choice in the compute lane. */
int32_t ek_moe_build_layout(const ek_moe_builder *b, int32_t counts_op);
/* From scratch->dweights, or the sum of the travelled ones, to dy and the router's gradient. */
int32_t ek_moe_build_router_backward(const ek_moe_builder *b, int32_t dep);

/* --- experts.c -------------------------------------------------------------------------------- */

/* Up, swiglu, down of a chunk: from the experts' input to scratch->rows; again: up alone. */
int32_t ek_moe_build_products(const ek_moe_builder *b, int32_t part, int32_t dep);
/* From scratch->rows, the gradient of the experts' output, to that of their input, and the
 * gradients of the weights.  Where rows travel the second half is apart, for there is time. */
int32_t ek_moe_build_products_backward(const ek_moe_builder *b, int32_t part, int32_t dep);
int32_t ek_moe_build_weight_gradients(const ek_moe_builder *b, int32_t part, int32_t dep);

/* --- token_dispatcher.c ----------------------------------------------------------------------- */

/* From the account of a choice to x. */
int32_t ek_moe_build_dispatch(const ek_moe_builder *b, int32_t dep);
int32_t ek_moe_build_dispatch_backward(const ek_moe_builder *b, int32_t dep);
/* Gradient of the gate weights from the rows that have come back: fills scratch->dweights. */
void ek_moe_gather_weight_gradients(const ek_moe *m, const ek_moe_activations *kept, int64_t n);

/* --- replica_prefetch.c ----------------------------------------------------------------------- */

/* After the forward products (dep), while rows return: the plan for the layer's next forward, and
 * the weights of its follower's replicas. */
int32_t ek_moe_build_plan_from_previous(const ek_moe_builder *b, int32_t dep);

#endif
