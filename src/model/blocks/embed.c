/* The ops of the embedding.
 *
 * Tensor parallelism shards its rows: each rank looks up the ids that it holds, zeros elsewhere,
 * and a reduce-scatter gives each rank the rows of its own tokens.
 *
 * Data parallel ranks each hold all columns, or shard those, too (ek_model_config's embed_columns;
 * SE-MoE, arXiv 2205.10034, section 4, "embedding partition in data parallelism").  Then ids are
 * all-gathered, each rank looks up its columns for all tokens, and an all-to-all sends them to the
 * tokens' ranks; gradients take the reverse path and are not reduced. */
#include "exec/net.h"
#include "model/blocks/backward.h"
#include "model/blocks/layer_priv.h"
#include "model/blocks/lm_head_priv.h"
#include "nn/batch_shares.h"

#include <string.h>

static ek_status op_embed(void *self, const ek_op *op)
{
    const ek_forward *f = self;
    const ek_micro *mb = &f->micro[op->micro];

    f->model->k->embed_forward(mb->n, f->model->spec.hidden, mb->inputs, f->model->embed.p,
                               ek_forward_x(f, 0, op->micro));
    return EK_OK;
}

static ek_status op_embed_backward(void *self, const ek_op *op)
{
    ek_backward *bw = self;
    const ek_forward *f = bw->forward;
    const ek_micro *mb = &f->micro[op->micro];

    f->model->k->embed_backward(mb->n, f->model->spec.hidden, mb->inputs, bw->dx,
                                f->model->embed.g);
    return EK_OK;
}

static ek_status op_embed_part(void *self, const ek_op *op)
{
    ek_backward *bw = self;
    const ek_forward *f = bw->forward;
    const ek_micro *mb = &f->micro[op->micro];

    f->model->k->embed_forward(mb->all, f->model->spec.hidden,
                               ek_head_local_ids(bw, mb->all, mb->inputs), f->model->embed.p,
                               f->tp->sum);
    return EK_OK;
}

static ek_status op_embed_rows(void *self, const ek_op *op)
{
    ek_backward *bw = self;
    const ek_forward *f = bw->forward;

    ek_tp_get(f->tp, op, ek_forward_x(f, 0, op->micro));
    return EK_OK;
}

static ek_status op_embed_gradient(void *self, const ek_op *op)
{
    ek_backward *bw = self;
    const ek_forward *f = bw->forward;

    ek_tp_put(f->tp, op, f->tp->sum, bw->dx, f->model->k->real);
    return EK_OK;
}

static ek_status op_embed_part_backward(void *self, const ek_op *op)
{
    ek_backward *bw = self;
    const ek_forward *f = bw->forward;
    const ek_micro *mb = &f->micro[op->micro];

    f->model->k->embed_backward(mb->all, f->model->spec.hidden,
                                ek_head_local_ids(bw, mb->all, mb->inputs), f->tp->sum,
                                f->model->embed.g);
    return EK_OK;
}

/* --- columns over data parallel ranks --------------------------------------------------------- */

/* Number of tokens of the micro-batch on data parallel ranks below this one. */
static int64_t token_of(const ek_backward *bw, const ek_micro *mb, int rank)
{
    int dp = bw->forward->model->cfg.mesh->dp;

    return ek_shares_first(mb->shares, dp, mb->total / mb->seq, rank) * mb->seq;
}

static int64_t column_of(const ek_backward *bw, int rank)
{
    const ek_forward *f = bw->forward;

    return ek_range_first(f->model->spec.hidden, f->model->cfg.mesh->dp, rank);
}

static int32_t *ids_of(const ek_backward *bw, const ek_op *op)
{
    return bw->columns.ids + ek_forward_slot(bw->forward, -1, op->micro) * bw->columns.total;
}

/* All columns of this data parallel rank's tokens: the output of forward, or the gradient that
 * backward reads. */
static char *whole_rows(const ek_backward *bw, const ek_op *op, int backward)
{
    const ek_forward *f = bw->forward;

    return f->tp != NULL ? f->tp->sum : backward ? bw->dx : ek_forward_x(f, 0, op->micro);
}

static ek_status op_gather_ids(void *self, const ek_op *op)
{
    ek_backward *bw = self;
    const ek_forward *f = bw->forward;
    const ek_micro *mb = &f->micro[op->micro];
    const ek_mesh *mesh = f->model->cfg.mesh;

    if (!ek_net_started(op)) {
        for (int r = 0; r <= mesh->dp; r++)
            bw->columns.first[r] = token_of(bw, mb, r);
        if (mb->all > 0)
            memcpy(ids_of(bw, op) + bw->columns.first[mesh->dp_rank], mb->inputs,
                   (size_t)mb->all * sizeof(int32_t));
        EK_TRY(ek_comm_all_gather(mesh->dp_group, ids_of(bw, op), bw->columns.first,
                                  sizeof(int32_t), ek_net_cell(op)));
    }
    return ek_net_test(op);
}

static ek_status op_embed_columns(void *self, const ek_op *op)
{
    ek_backward *bw = self;
    const ek_forward *f = bw->forward;
    int64_t n = f->micro[op->micro].total;
    int32_t *ids = ids_of(bw, op);

    ek_head_localise(f->model, n, ids, ids);
    if (f->model->embed.p != NULL)
        f->model->k->embed_forward(n, f->model->local.embed_cols, ids, f->model->embed.p,
                                   bw->columns.own);
    return EK_OK;
}

static ek_status op_embed_columns_backward(void *self, const ek_op *op)
{
    ek_backward *bw = self;
    const ek_forward *f = bw->forward;

    if (f->model->embed.p != NULL)
        f->model->k->embed_backward(f->micro[op->micro].total, f->model->local.embed_cols,
                                    ids_of(bw, op), bw->columns.own, f->model->embed.g);
    return EK_OK;
}

/* All-to-all of column blocks: to the tokens' ranks, or, for gradients, to the columns' ranks. */
static ek_status exchange_blocks(ek_backward *bw, const ek_op *op, int backward)
{
    const ek_forward *f = bw->forward;
    const ek_micro *mb = &f->micro[op->micro];
    const ek_mesh *mesh = f->model->cfg.mesh;
    ek_embed_columns *c = &bw->columns;

    if (!ek_net_started(op)) {
        for (int from = 0; from < mesh->dp; from++)
            for (int to = 0; to < mesh->dp; to++) {
                int tokens = backward ? from : to, columns = backward ? to : from;

                c->rows[from * mesh->dp + to] =
                    (token_of(bw, mb, tokens + 1) - token_of(bw, mb, tokens)) *
                    (column_of(bw, columns + 1) - column_of(bw, columns));
            }
        EK_TRY(ek_comm_all_to_all(mesh->dp_group, bw->a2a, c->rows,
                                  ek_dtype_size(f->model->k->real), backward ? c->blocks : c->own,
                                  backward ? c->own : c->blocks, ek_net_cell(op)));
    }
    return ek_net_test(op);
}

static ek_status op_gather_columns(void *self, const ek_op *op)
{
    return exchange_blocks(self, op, 0);
}

static ek_status op_spread_columns(void *self, const ek_op *op)
{
    return exchange_blocks(self, op, 1);
}

/* Copies between rows [all, d] and column blocks. */
static void copy_blocks(ek_backward *bw, const ek_op *op, int backward)
{
    const ek_forward *f = bw->forward;
    const ek_mesh *mesh = f->model->cfg.mesh;
    int64_t real = (int64_t)ek_dtype_size(f->model->k->real), d = f->model->spec.hidden * real;
    int64_t all = f->micro[op->micro].all;
    char *rows = whole_rows(bw, op, backward);

    for (int r = 0; r < mesh->dp; r++) {
        int64_t col = column_of(bw, r) * real, width = column_of(bw, r + 1) * real - col;
        char *block = (char *)bw->columns.blocks + all * col;

#pragma omp parallel for schedule(static)
        for (int64_t i = 0; i < all; i++)
            if (backward)
                memcpy(block + i * width, rows + i * d + col, (size_t)width);
            else
                memcpy(rows + i * d + col, block + i * width, (size_t)width);
    }
}

static ek_status op_join_columns(void *self, const ek_op *op)
{
    copy_blocks(self, op, 0);
    return EK_OK;
}

static ek_status op_split_columns(void *self, const ek_op *op)
{
    copy_blocks(self, op, 1);
    return EK_OK;
}

/* --- builders --------------------------------------------------------------------------------- */

/* Bytes of `times` passes over `n` rows. */
static double row_bytes(const ek_backward *bw, double times, int64_t n)
{
    const ek_forward *f = bw->forward;

    return times * (double)(n * f->model->spec.hidden) * (double)ek_dtype_size(f->model->k->real);
}

static ek_work row_work(const ek_backward *bw, int64_t n)
{
    return ek_work_of_rows((double)n, (double)bw->forward->model->spec.hidden);
}

static ek_op net_op(ek_backward *bw, ek_op_kind kind, ek_op_fn run, int32_t micro, ek_work work)
{
    ek_op op = ek_net_op(kind, run, bw, work);

    op.micro = micro;
    return op;
}

/* The exchange of column blocks. */
static ek_work work_of_exchange(const ek_backward *bw, int32_t micro, int backward)
{
    const ek_forward *f = bw->forward;
    const ek_micro *mb = &f->micro[micro];
    const ek_mesh *mesh = f->model->cfg.mesh;
    size_t real = ek_dtype_size(f->model->k->real);
    int64_t own = f->model->local.embed_cols, others = f->model->spec.hidden - own;
    int64_t sent = backward ? mb->all * others : (mb->total - mb->all) * own;

    return ek_net_work_of_a2a(mesh, EK_MESH_DP, bw->a2a, (double)sent * (double)real, real);
}

static int32_t build_columns(ek_backward *bw, ek_graph *g, int32_t micro, int32_t dep)
{
    const ek_forward *f = bw->forward;
    const ek_micro *mb = &f->micro[micro];
    ek_op ids = net_op(bw, EK_OP_GATHER_IDS, op_gather_ids, micro,
                       ek_net_work_of(f->model->cfg.mesh, EK_MESH_DP, EK_COLLECTIVE_ALL_GATHER,
                                      (double)mb->total * sizeof(int32_t), sizeof(int32_t)));
    ek_op embed = ek_head_op(bw, EK_OP_EMBED, op_embed_columns, micro, -1,
                             ek_work_of_rows((double)mb->total, (double)f->model->local.embed_cols),
                             row_bytes(bw, 2, mb->all));
    ek_op gather =
        net_op(bw, EK_OP_GATHER_COLUMNS, op_gather_columns, micro, work_of_exchange(bw, micro, 0));
    ek_op join = ek_head_op(bw, EK_OP_JOIN_COLUMNS, op_join_columns, micro, -1,
                            row_work(bw, mb->all), row_bytes(bw, 2, mb->all));

    dep = ek_graph_after(g, &ids, dep);
    dep = ek_graph_after(g, &embed, dep);
    dep = ek_graph_after(g, &gather, dep);
    return ek_graph_after(g, &join, dep);
}

static int32_t build_columns_backward(ek_backward *bw, ek_graph *g, int32_t micro, int32_t dep)
{
    const ek_micro *mb = &bw->forward->micro[micro];
    ek_op split = ek_head_op(bw, EK_OP_SPLIT_COLUMNS, op_split_columns, micro, -1,
                             row_work(bw, mb->all), row_bytes(bw, 2, mb->all));
    ek_op out =
        net_op(bw, EK_OP_SPREAD_COLUMNS, op_spread_columns, micro, work_of_exchange(bw, micro, 1));
    ek_op embed =
        ek_head_op(bw, EK_OP_EMBED_BACKWARD, op_embed_columns_backward, micro, -1,
                   ek_work_of_rows((double)mb->total, (double)bw->forward->model->local.embed_cols),
                   row_bytes(bw, 3, mb->all));

    dep = ek_graph_after(g, &split, dep);
    dep = ek_graph_after(g, &out, dep);
    return ek_graph_after(g, &embed, dep);
}

int32_t ek_embed_build_lookup(ek_forward *f, ek_graph *g, int32_t micro, int32_t dep)
{
    double row = (double)f->model->spec.hidden * (double)ek_dtype_size(f->model->k->real);
    ek_op op =
        ek_layer_op(f, f, EK_OP_EMBED, op_embed, -1, micro,
                    ek_work_of_rows((double)f->micro[micro].n, (double)f->model->spec.hidden),
                    2 * (double)f->micro[micro].n * row);

    return ek_graph_after(g, &op, dep);
}

int32_t ek_embed_build(ek_backward *bw, ek_graph *g, int32_t micro, int32_t dep)
{
    ek_forward *f = bw->forward;
    const ek_micro *mb = &f->micro[micro];
    ek_tp *tp = f->tp;
    ek_op part = ek_head_op(bw, EK_OP_EMBED, op_embed_part, micro, -1, row_work(bw, mb->all),
                            row_bytes(bw, 2, mb->all));
    ek_op rows = ek_head_op(bw, EK_OP_EMBED_ROWS, op_embed_rows, micro, -1, row_work(bw, mb->n),
                            row_bytes(bw, 2, mb->n));

    if (f->model->cfg.embed_columns)
        dep = build_columns(bw, g, micro, dep);
    else if (tp == NULL)
        return ek_embed_build_lookup(f, g, micro, dep);
    else
        dep = ek_graph_after(g, &part, dep);
    if (tp == NULL)
        return dep;
    dep = ek_tp_build_reduce_sum(tp, g, -1, micro, 0, dep);
    return ek_graph_after(g, &rows, dep);
}

int32_t ek_embed_build_backward(ek_backward *bw, ek_graph *g, int32_t micro, int32_t dep)
{
    const ek_forward *f = bw->forward;
    const ek_micro *mb = &f->micro[micro];
    ek_op rows = ek_head_op(bw, EK_OP_EMBED_GRADIENT, op_embed_gradient, micro, -1,
                            row_work(bw, mb->n), row_bytes(bw, 2, mb->n));
    ek_op op = ek_head_op(bw, EK_OP_EMBED_BACKWARD,
                          f->tp == NULL ? op_embed_backward : op_embed_part_backward, micro, -1,
                          row_work(bw, mb->all), row_bytes(bw, 3, mb->all));

    op.async = f->tp == NULL;
    if (f->tp != NULL) {
        dep = ek_graph_after(g, &rows, dep);
        dep = ek_tp_build_gather_sum(f->tp, g, -1, micro, dep);
    }
    if (f->model->cfg.embed_columns)
        return build_columns_backward(bw, g, micro, dep);
    return ek_graph_after(g, &op, dep);
}
