/* moe/build.h - appending the ops of a MoE layer to a step graph.
 *
 * The files that build the layer (router, token dispatcher, experts, replicas) use these helpers; a
 * builder appends its ops and returns the last op of the compute lane. */
#ifndef MOE_BUILD_H
#define MOE_BUILD_H

#include "moe/layer.h"

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
                   ek_work work, double bytes, int32_t dep);
/* The same for an op that, on one rank, accesses device memory by kernels alone (ek_op.async). */
int32_t ek_moe_add_kernels(const ek_moe_builder *b, ek_op_kind kind, ek_op_fn run, int32_t part,
                           ek_work work, double bytes, int32_t dep);
/* Appends one op of the network lane after both dep and dep2. */
int32_t ek_moe_add_net(const ek_moe_builder *b, ek_op_kind kind, ek_op_fn run, int32_t part,
                       ek_work work, int32_t dep, int32_t dep2);
/* Appends one op of the compute lane that does nothing but wait, after `dep`, for a fetch of
 * replicas; the time is added to stats.stall_ns. */
int32_t ek_moe_add_wait(const ek_moe_builder *b, int32_t awaited, int32_t dep);

/* Tokens of a micro-batch that the ranks of this one's expert-parallel group have together. */
int64_t ek_moe_group_tokens(const ek_moe *m, int32_t micro);

/* The context for the ops of a micro-batch of `tokens` tokens of this rank. */
ek_moe_builder ek_moe_builder_of(ek_moe *m, ek_graph *g, int32_t micro, int64_t tokens,
                                 int recompute);

#endif
