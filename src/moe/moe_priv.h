/* moe/moe_priv.h - what the files of a MoE layer share: helpers that append ops, and the builders.
 *
 *   router.c            router, topk, gather counts, layout; backward of router and gate
 *   experts.c           the products of one chunk of rows
 *   token_dispatcher.c  permute, all-to-alls and unpermute, forward and backward
 *   replica_prefetch.c  replicas planned from the previous micro-batch
 *   moe.c               the order of all these in a step graph */
#ifndef MOE_MOE_PRIV_H
#define MOE_MOE_PRIV_H

#include "moe/moe.h"

/* Sizes for the FLOPs and bytes of ops; rows are those of an even spread. */
typedef struct {
    double n;          /* this rank's tokens */
    double sent;       /* rows of them */
    double rows;       /* rows that this rank computes */
    double d, f;       /* hidden, this rank's inner width */
    double experts;    /* of the layer */
    double here;       /* experts on this rank */
    double comp, real; /* bytes of an element */
} ek_moe_cost;

/* Context of the append helpers below. */
typedef struct {
    ek_moe *m;
    ek_graph *g;
    int32_t micro;
    int recompute;
    ek_moe_cost c;
} ek_moe_builder;

/* Appends one op of the compute lane after `dep`; returns its id.  part: chunk, or -1. */
int32_t ek_moe_add(const ek_moe_builder *b, ek_op_kind kind, ek_op_fn run, int32_t part,
                   double flops, double bytes, int32_t dep);
/* The same for an op that, on one rank, accesses device memory by kernels alone (ek_op.async). */
int32_t ek_moe_add_kernels(const ek_moe_builder *b, ek_op_kind kind, ek_op_fn run, int32_t part,
                           double flops, double bytes, int32_t dep);
/* Appends one op of the network lane after both dep and dep2. */
int32_t ek_moe_add_net(const ek_moe_builder *b, ek_op_kind kind, ek_op_fn run, int32_t part,
                       double bytes, int32_t dep, int32_t dep2);

static inline const ek_micro *ek_moe_micro(const ek_moe *m, const ek_op *op)
{
    return &m->step->micro[op->micro];
}

/* Whether rows are exchanged between ranks. */
static inline int ek_moe_is_distributed(const ek_moe *m)
{
    return m->mesh->ep * m->mesh->etp > 1;
}

/* The chunk of an op; 0 for ops that are not chunked. */
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

/* Builders append their ops and return the last op of the compute lane. */

/* --- router.c --------------------------------------------------------------------------------- */

/* Logits, gate, and the all-gather of gate statistics: *counts_op, -1 on one rank. */
int32_t ek_moe_build_router(const ek_moe_builder *b, int32_t *counts_op, int32_t dep);
/* Statistics of the micro-batch and, if distributed, plan and layout of rows, after counts_op. */
int32_t ek_moe_build_layout(const ek_moe_builder *b, int32_t counts_op);
/* From the gradients of the gate weights to scratch->dy (added) and the router's gradient. */
int32_t ek_moe_build_router_backward(const ek_moe_builder *b, int32_t dep);

/* --- experts.c -------------------------------------------------------------------------------- */

/* Up, swiglu, down of a chunk: from the experts' input to scratch->rows; recompute: up alone. */
int32_t ek_moe_build_products(const ek_moe_builder *b, int32_t part, int32_t dep);
/* From scratch->rows, the gradient of the experts' output, to that of their input and to weight
 * gradients.  If distributed, weight gradients are separate, so that they overlap with the
 * all-to-alls of input gradients. */
int32_t ek_moe_build_products_backward(const ek_moe_builder *b, int32_t part, int32_t dep);
int32_t ek_moe_build_weight_gradients(const ek_moe_builder *b, int32_t part, int32_t dep);

/* --- token_dispatcher.c ----------------------------------------------------------------------- */

/* Permute, all-to-alls, products and unpermute: from y to x; backward: from dx to scratch->dy. */
int32_t ek_moe_build_dispatch(const ek_moe_builder *b, int32_t dep);
int32_t ek_moe_build_dispatch_backward(const ek_moe_builder *b, int32_t dep);
/* Collects the gradients of the gate weights from the returned rows: fills scratch->dweights. */
void ek_moe_gather_weight_gradients(const ek_moe *m, const ek_moe_activations *kept, int64_t n);

/* --- replica_prefetch.c ----------------------------------------------------------------------- */

/* After the forward products (dep), during the combine all-to-all: the plan for the layer's next
 * forward, and the prefetch of the replicas of m->next_moe. */
int32_t ek_moe_build_plan_from_previous(const ek_moe_builder *b, int32_t dep);

#endif
