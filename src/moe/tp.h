/* moe/tp.h - the tokens of a data parallel rank among its tensor parallel ranks.
 *
 * Tensor parallelism with sequence-sharded norms: what works token by token (norms, residual
 * stream, router, experts) sees this rank's run of n tokens; what is cut by heads, width or
 * vocabulary sees `all` tokens.  Before a cut product its input is gathered, after it the partial
 * sums of the ranks are added up and scattered; backward the gradients go the same ways.
 *
 * The buffers are shared by all layers.  Every use of one starts with an op of the compute lane
 * that writes it, and ends with one that reads what the network left there; so uses follow one
 * another as their compute ops do. */
#ifndef MOE_TP_H
#define MOE_TP_H

#include "comm/mesh.h"
#include "moe/moe.h"
#include "schedule/graph.h"
#include "tensor/kernels.h"

struct ek_tp {
    const ek_mesh *mesh;
    const ek_kernels *k;
    const ek_moe_step *step; /* for its micro-batches */
    int64_t d, max_all;
    void *y;        /* C [all, d], the input of a cut product, gathered */
    void *dy;       /* C [all, d], the gradient of its output, gathered */
    void *sum;      /* R [all, d], partial sums */
    void *dscale;   /* R [all], of the shared expert's gate */
    int64_t *first; /* [tp + 1], for the one thread that starts network ops */
};

/* The buffers; mesh, k, d and max_all are set. */
void ek_tp_reserve(ek_tp *t, ek_arena *a, int training);

static inline const ek_micro *ek_tp_micro(const ek_tp *t, const ek_op *op)
{
    return &t->step->micro[op->micro];
}

/* This rank's run in a buffer of rows [all, width] of elements of `size` bytes. */
void *ek_tp_own(const ek_tp *t, const ek_op *op, void *buf, int64_t width, size_t size);

/* Copies rows [n, d] into this rank's run of a gathered buffer, C or R. */
void ek_tp_put(const ek_tp *t, const ek_op *op, void *buf, const void *rows, ek_dtype type);

/* The same from R, rounded to C. */
void ek_tp_put_comp(const ek_tp *t, const ek_op *op, void *buf, const void *rows);

/* Copies this rank's run of t->sum to y R [n, d]. */
void ek_tp_get(const ek_tp *t, const ek_op *op, void *y);

/* All of t->sum is zero: a rank on which nothing of the product falls. */
void ek_tp_no_sum(const ek_tp *t, const ek_op *op);

/* y = a + this rank's run of t->sum; y, a R [n, d], perhaps the same. */
void ek_tp_add_own(const ek_tp *t, const ek_op *op, const void *a, void *y);

/* Bodies of network ops over rows [all, width]. */
EK_CHECKED ek_status ek_tp_gather(const ek_tp *t, const ek_op *op, void *buf, int64_t width,
                                  ek_dtype type);
EK_CHECKED ek_status ek_tp_reduce_scatter(const ek_tp *t, const ek_op *op, void *buf,
                                          int64_t width);

/* A network op that moves rows [all, width] of elements of `size` bytes in either way. */
ek_op ek_tp_net_op(const ek_tp *t, ek_op_kind kind, ek_op_fn run, void *self, int32_t layer,
                   int32_t micro, int64_t width, size_t size);

/* Append the network ops of the buffers above. */
int32_t ek_tp_build_gather_y(ek_tp *t, ek_graph *g, int32_t layer, int32_t micro, int recompute,
                             int32_t dep);
int32_t ek_tp_build_gather_dy(ek_tp *t, ek_graph *g, int32_t layer, int32_t micro, int32_t dep);
int32_t ek_tp_build_gather_sum(ek_tp *t, ek_graph *g, int32_t layer, int32_t micro, int32_t dep);
int32_t ek_tp_build_reduce_sum(ek_tp *t, ek_graph *g, int32_t layer, int32_t micro, int recompute,
                               int32_t dep);

#endif
