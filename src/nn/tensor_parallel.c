/* Gather and reduce-scatter of rows between tensor parallel ranks, as network ops. */
#include "nn/tensor_parallel.h"

#include "exec/net.h"

void ek_tp_reserve(ek_tp *t, ek_arena *a, int training)
{
    size_t real = ek_dtype_size(t->k->real), comp = ek_dtype_size(t->k->comp);
    int64_t rows = t->max_all;

    t->y = ek_arena_alloc(a, rows * t->d, comp);
    t->sum = ek_arena_alloc(a, rows * t->d, real);
    t->first = ek_arena_alloc(ek_arena_host(a), t->mesh->tp + 1, sizeof(*t->first));
    if (!training)
        return;
    t->dy = ek_arena_alloc(a, rows * t->d, comp);
    t->dscale = ek_arena_alloc(a, rows, real);
}

void *ek_tp_own(const ek_tp *t, const ek_op *op, void *buf, int64_t width, size_t size)
{
    return (char *)buf + ek_tp_micro(t, op)->first * width * (int64_t)size;
}

void ek_tp_put(const ek_tp *t, const ek_op *op, void *buf, const void *rows, ek_dtype type)
{
    size_t size = ek_dtype_size(type);
    int64_t row = t->d * (int64_t)size;

    t->k->copy_rows(ek_tp_micro(t, op)->n, row, rows, row, ek_tp_own(t, op, buf, t->d, size), row);
}

void ek_tp_put_comp(const ek_tp *t, const ek_op *op, void *buf, const void *rows)
{
    t->k->to_comp(ek_tp_micro(t, op)->n, t->d, rows,
                  ek_tp_own(t, op, buf, t->d, ek_dtype_size(t->k->comp)));
}

void ek_tp_get(const ek_tp *t, const ek_op *op, void *y)
{
    size_t size = ek_dtype_size(t->k->real);
    int64_t row = t->d * (int64_t)size;

    t->k->copy_rows(ek_tp_micro(t, op)->n, row, ek_tp_own(t, op, t->sum, t->d, size), row, y, row);
}

void ek_tp_no_sum(const ek_tp *t, const ek_op *op)
{
    t->k->clear(ek_tp_micro(t, op)->all * t->d * (int64_t)ek_dtype_size(t->k->real), t->sum);
}

void ek_tp_add_own(const ek_tp *t, const ek_op *op, const void *a, void *y)
{
    int64_t n = ek_tp_micro(t, op)->n * t->d;
    const void *sum = ek_tp_own(t, op, t->sum, t->d, ek_dtype_size(t->k->real));

    if (t->k->real == EK_F64) {
#pragma omp parallel for schedule(static)
        for (int64_t i = 0; i < n; i++)
            ((double *)y)[i] = ((const double *)a)[i] + ((const double *)sum)[i];
        return;
    }
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i++)
        ((float *)y)[i] = ((const float *)a)[i] + ((const float *)sum)[i];
}

/* Bounds of the ranks' token ranges, in elements: [tp + 1]. */
static const int64_t *token_ranges(const ek_tp *t, const ek_op *op, int64_t width)
{
    for (int r = 0; r <= t->mesh->tp; r++)
        t->first[r] = ek_range_first(ek_tp_micro(t, op)->all, t->mesh->tp, r) * width;
    return t->first;
}

ek_status ek_tp_gather(const ek_tp *t, const ek_op *op, void *buf, int64_t width, ek_dtype type)
{
    if (!ek_net_started(op))
        EK_TRY(ek_comm_all_gather(t->mesh->tp_group, buf, token_ranges(t, op, width),
                                  ek_dtype_size(type), ek_net_cell(op)));
    return ek_net_test(op);
}

ek_status ek_tp_reduce_scatter(const ek_tp *t, const ek_op *op, void *buf, int64_t width)
{
    if (!ek_net_started(op))
        EK_TRY(ek_comm_reduce_scatter(t->mesh->tp_group, buf, token_ranges(t, op, width),
                                      t->k->real == EK_F64 ? EK_SUM_F64 : EK_SUM_F32,
                                      ek_net_cell(op)));
    return ek_net_test(op);
}

ek_op ek_tp_net_op(const ek_tp *t, ek_op_kind kind, ek_collective collective, ek_op_fn run,
                   void *self, int32_t layer, int32_t micro, int64_t width, size_t size)
{
    double bytes = (double)(t->micro[micro].all * width) * (double)size;
    ek_op op =
        ek_net_op(kind, run, self, ek_net_work_of(t->mesh, EK_MESH_TP, collective, bytes, size));

    op.layer = layer;
    op.micro = micro;
    return op;
}

static ek_status op_gather_y(void *self, const ek_op *op)
{
    const ek_tp *t = self;

    return ek_tp_gather(t, op, t->y, t->d, t->k->comp);
}

static ek_status op_gather_dy(void *self, const ek_op *op)
{
    const ek_tp *t = self;

    return ek_tp_gather(t, op, t->dy, t->d, t->k->comp);
}

static ek_status op_gather_sum(void *self, const ek_op *op)
{
    const ek_tp *t = self;

    return ek_tp_gather(t, op, t->sum, t->d, t->k->real);
}

static ek_status op_reduce_sum(void *self, const ek_op *op)
{
    const ek_tp *t = self;

    return ek_tp_reduce_scatter(t, op, t->sum, t->d);
}

int32_t ek_tp_build_gather_y(ek_tp *t, ek_graph *g, int32_t layer, int32_t micro, int recompute,
                             int32_t dep)
{
    ek_op op = ek_tp_net_op(t, EK_OP_GATHER_TOKENS, EK_COLLECTIVE_ALL_GATHER, op_gather_y, t, layer,
                            micro, t->d, ek_dtype_size(t->k->comp));

    op.recompute = recompute;
    return ek_graph_after(g, &op, dep);
}

int32_t ek_tp_build_gather_dy(ek_tp *t, ek_graph *g, int32_t layer, int32_t micro, int32_t dep)
{
    ek_op op = ek_tp_net_op(t, EK_OP_GATHER_GRADIENT, EK_COLLECTIVE_ALL_GATHER, op_gather_dy, t,
                            layer, micro, t->d, ek_dtype_size(t->k->comp));

    return ek_graph_after(g, &op, dep);
}

int32_t ek_tp_build_gather_sum(ek_tp *t, ek_graph *g, int32_t layer, int32_t micro, int32_t dep)
{
    ek_op op = ek_tp_net_op(t, EK_OP_GATHER_GRADIENT, EK_COLLECTIVE_ALL_GATHER, op_gather_sum, t,
                            layer, micro, t->d, ek_dtype_size(t->k->real));

    return ek_graph_after(g, &op, dep);
}

int32_t ek_tp_build_reduce_sum(ek_tp *t, ek_graph *g, int32_t layer, int32_t micro, int recompute,
                               int32_t dep)
{
    ek_op op = ek_tp_net_op(t, EK_OP_REDUCE_SCATTER, EK_COLLECTIVE_REDUCE_SCATTER, op_reduce_sum, t,
                            layer, micro, t->d, ek_dtype_size(t->k->real));

    op.recompute = recompute;
    return ek_graph_after(g, &op, dep);
}
