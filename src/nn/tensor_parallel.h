/* nn/tensor_parallel.h - tensor parallelism with sequence parallelism, as in Megatron-LM.
 *
 * Everything that works token by token (norms, residual stream, router, experts) has this rank's
 * range of n tokens; what is split by heads, width or vocabulary has `all` tokens of the data
 * parallel rank.  The input of a split product is all-gathered, its partial sums are
 * reduce-scattered; backward does the same with gradients.
 *
 * All layers share the buffers.  Every use of one begins with an op of the compute lane that writes
 * it and ends with one that reads the network's result, so uses are ordered as these ops are. */
#ifndef NN_TENSOR_PARALLEL_H
#define NN_TENSOR_PARALLEL_H

#include "base/arena.h"
#include "comm/mesh.h"
#include "nn/batch.h"
#include "schedule/graph.h"
#include "tensor/kernels.h"

typedef struct {
    const ek_mesh *mesh;
    const ek_kernels *k;
    const ek_micro *micro; /* of the step, indexed by op->micro; borrowed */
    int64_t d, max_all;    /* hidden; `all` of the largest micro-batch */
    void *y;               /* C [all, d], gathered input of a split product */
    void *dy;              /* C [all, d], gathered gradient of its output */
    void *sum;             /* R [all, d], partial sums */
    void *dscale;          /* R [all], gradient of the shared expert's gate */
    int64_t *first;        /* [tp + 1], used by the thread that starts network ops */
} ek_tp;

/* Reserves the buffers; mesh, k, d and max_all are set. */
void ek_tp_reserve(ek_tp *t, ek_arena *a, int training);

static inline const ek_micro *ek_tp_micro(const ek_tp *t, const ek_op *op)
{
    return &t->micro[op->micro];
}

/* This rank's range in a buffer of rows [all, width] of elements of `size` bytes. */
void *ek_tp_own(const ek_tp *t, const ek_op *op, void *buf, int64_t width, size_t size);

/* Copies rows [n, d] into this rank's range of a gathered buffer; both of `type`. */
void ek_tp_put(const ek_tp *t, const ek_op *op, void *buf, const void *rows, ek_dtype type);

/* The same from R, rounded to C. */
void ek_tp_put_comp(const ek_tp *t, const ek_op *op, void *buf, const void *rows);

/* Copies this rank's range of t->sum to y R [n, d]. */
void ek_tp_get(const ek_tp *t, const ek_op *op, void *y);

/* Clears t->sum, on a rank whose slice of the product has width 0. */
void ek_tp_no_sum(const ek_tp *t, const ek_op *op);

/* y = a + this rank's range of t->sum; y, a R [n, d], which may be the same. */
void ek_tp_add_own(const ek_tp *t, const ek_op *op, const void *a, void *y);

/* Bodies of network ops over rows [all, width]; collective over the tensor parallel group. */
EK_CHECKED ek_status ek_tp_gather(const ek_tp *t, const ek_op *op, void *buf, int64_t width,
                                  ek_dtype type);
EK_CHECKED ek_status ek_tp_reduce_scatter(const ek_tp *t, const ek_op *op, void *buf,
                                          int64_t width);

/* An op of the network lane: a collective of the tensor parallel group over rows [all, width] of
 * elements of `size` bytes. */
ek_op ek_tp_net_op(const ek_tp *t, ek_op_kind kind, ek_collective collective, ek_op_fn run,
                   void *self, int32_t layer, int32_t micro, int64_t width, size_t size);

/* Append the network ops of the buffers above after `dep`; return their ids. */
int32_t ek_tp_build_gather_y(ek_tp *t, ek_graph *g, int32_t layer, int32_t micro, int recompute,
                             int32_t dep);
int32_t ek_tp_build_gather_dy(ek_tp *t, ek_graph *g, int32_t layer, int32_t micro, int32_t dep);
int32_t ek_tp_build_gather_sum(ek_tp *t, ek_graph *g, int32_t layer, int32_t micro, int32_t dep);
int32_t ek_tp_build_reduce_sum(ek_tp *t, ek_graph *g, int32_t layer, int32_t micro, int recompute,
                               int32_t dep);

#endif
