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
    ek_pass *p = self;
    const ek_micro *mb = &p->forward.micro[op->micro];

    p->model->k->embed_backward(mb->n, p->model->spec.hidden, mb->inputs, p->backward.dx,
                                p->model->embed.g);
    return EK_OK;
}

static ek_status op_embed_part(void *self, const ek_op *op)
{
    ek_pass *p = self;
    const ek_micro *mb = &p->forward.micro[op->micro];

    p->model->k->embed_forward(mb->all, p->model->spec.hidden,
                               ek_head_local_ids(p, mb->all, mb->inputs), p->model->embed.p,
                               p->tp.sum);
    return EK_OK;
}

static ek_status op_embed_rows(void *self, const ek_op *op)
{
    ek_pass *p = self;

    ek_tp_get(&p->tp, op, ek_forward_x(&p->forward, 0, op->micro));
    return EK_OK;
}

static ek_status op_embed_gradient(void *self, const ek_op *op)
{
    ek_pass *p = self;

    ek_tp_put(&p->tp, op, p->tp.sum, p->backward.dx, p->model->k->real);
    return EK_OK;
}

static ek_status op_embed_part_backward(void *self, const ek_op *op)
{
    ek_pass *p = self;
    const ek_micro *mb = &p->forward.micro[op->micro];

    p->model->k->embed_backward(mb->all, p->model->spec.hidden,
                                ek_head_local_ids(p, mb->all, mb->inputs), p->tp.sum,
                                p->model->embed.g);
    return EK_OK;
}

/* --- columns over data parallel ranks --------------------------------------------------------- */

/* Number of tokens of the micro-batch on data parallel ranks below this one. */
static int64_t token_of(const ek_pass *p, const ek_micro *mb, int rank)
{
    return ek_range_first(mb->total / mb->seq, p->model->cfg.mesh->dp, rank) * mb->seq;
}

static int64_t column_of(const ek_pass *p, int rank)
{
    return ek_range_first(p->model->spec.hidden, p->model->cfg.mesh->dp, rank);
}

static int32_t *ids_of(const ek_pass *p, const ek_op *op)
{
    return p->columns.ids + ek_forward_slot(&p->forward, -1, op->micro) * p->limits.total;
}

/* All columns of this data parallel rank's tokens: the output of forward, or the gradient that
 * backward reads. */
static char *whole_rows(const ek_pass *p, const ek_op *op, int backward)
{
    return p->scratch.tp != NULL ? p->tp.sum
           : backward            ? p->backward.dx
                                 : ek_forward_x(&p->forward, 0, op->micro);
}

static ek_status op_gather_ids(void *self, const ek_op *op)
{
    ek_pass *p = self;
    const ek_micro *mb = &p->forward.micro[op->micro];
    const ek_mesh *mesh = p->model->cfg.mesh;

    if (!ek_net_started(op)) {
        for (int r = 0; r <= mesh->dp; r++)
            p->columns.first[r] = token_of(p, mb, r);
        if (mb->all > 0)
            memcpy(ids_of(p, op) + p->columns.first[mesh->dp_rank], mb->inputs,
                   (size_t)mb->all * sizeof(int32_t));
        EK_TRY(ek_comm_all_gather(mesh->dp_group, ids_of(p, op), p->columns.first, sizeof(int32_t),
                                  ek_net_cell(op)));
    }
    return ek_net_test(op);
}

static ek_status op_embed_columns(void *self, const ek_op *op)
{
    ek_pass *p = self;
    int64_t n = p->forward.micro[op->micro].total;
    int32_t *ids = ids_of(p, op);

    ek_head_localise(p->model, n, ids, ids);
    if (p->model->embed.p != NULL)
        p->model->k->embed_forward(n, p->model->local.embed_cols, ids, p->model->embed.p,
                                   p->columns.own);
    return EK_OK;
}

static ek_status op_embed_columns_backward(void *self, const ek_op *op)
{
    ek_pass *p = self;

    if (p->model->embed.p != NULL)
        p->model->k->embed_backward(p->forward.micro[op->micro].total, p->model->local.embed_cols,
                                    ids_of(p, op), p->columns.own, p->model->embed.g);
    return EK_OK;
}

/* All-to-all of column blocks: to the tokens' ranks, or, for gradients, to the columns' ranks. */
static ek_status exchange_blocks(ek_pass *p, const ek_op *op, int backward)
{
    const ek_micro *mb = &p->forward.micro[op->micro];
    const ek_mesh *mesh = p->model->cfg.mesh;
    ek_embed_columns *c = &p->columns;

    if (!ek_net_started(op)) {
        for (int from = 0; from < mesh->dp; from++)
            for (int to = 0; to < mesh->dp; to++) {
                int tokens = backward ? from : to, columns = backward ? to : from;

                c->rows[from * mesh->dp + to] =
                    (token_of(p, mb, tokens + 1) - token_of(p, mb, tokens)) *
                    (column_of(p, columns + 1) - column_of(p, columns));
            }
        EK_TRY(ek_comm_all_to_all(mesh->dp_group, ek_moe_a2a(&p->cfg.moe, &p->step), c->rows,
                                  ek_dtype_size(p->model->k->real), backward ? c->blocks : c->own,
                                  backward ? c->own : c->blocks, ek_net_cell(op)));
    }
    return ek_net_test(op);
}

static ek_status op_columns_home(void *self, const ek_op *op)
{
    return exchange_blocks(self, op, 0);
}

static ek_status op_columns_out(void *self, const ek_op *op)
{
    return exchange_blocks(self, op, 1);
}

/* Copies between rows [all, d] and column blocks. */
static void copy_blocks(ek_pass *p, const ek_op *op, int backward)
{
    const ek_mesh *mesh = p->model->cfg.mesh;
    int64_t real = (int64_t)ek_dtype_size(p->model->k->real), d = p->model->spec.hidden * real;
    int64_t all = p->forward.micro[op->micro].all;
    char *rows = whole_rows(p, op, backward);

    for (int r = 0; r < mesh->dp; r++) {
        int64_t col = column_of(p, r) * real, width = column_of(p, r + 1) * real - col;
        char *block = (char *)p->columns.blocks + all * col;

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
static double row_bytes(const ek_pass *p, double times, int64_t n)
{
    return times * (double)(n * p->model->spec.hidden) * (double)ek_dtype_size(p->model->k->real);
}

static ek_op net_op(ek_pass *p, ek_op_kind kind, ek_op_fn run, int32_t micro, double bytes)
{
    ek_op op = ek_head_op(p, kind, run, micro, -1, 0, bytes);

    op.lane = EK_LANE_NET;
    op.describe = ek_net_describe;
    return op;
}

/* Bytes that a rank sends for `n` tokens when columns are sharded over dp ranks. */
static double bytes_sent(const ek_pass *p, int64_t n)
{
    double dp = (double)p->model->cfg.mesh->dp;

    return row_bytes(p, (dp - 1) / dp, n);
}

static int32_t build_columns(ek_pass *p, ek_graph *g, int32_t micro, int32_t dep)
{
    const ek_micro *mb = &p->forward.micro[micro];
    ek_op ids = net_op(p, EK_OP_GATHER_IDS, op_gather_ids, micro,
                       (double)mb->all * sizeof(int32_t) * (p->model->cfg.mesh->dp - 1));
    ek_op embed =
        ek_head_op(p, EK_OP_EMBED, op_embed_columns, micro, -1, 0, row_bytes(p, 2, mb->all));
    ek_op gather = net_op(p, EK_OP_GATHER_COLUMNS, op_columns_home, micro, bytes_sent(p, mb->all));
    ek_op join =
        ek_head_op(p, EK_OP_JOIN_COLUMNS, op_join_columns, micro, -1, 0, row_bytes(p, 2, mb->all));

    dep = ek_graph_after(g, &ids, dep);
    dep = ek_graph_after(g, &embed, dep);
    dep = ek_graph_after(g, &gather, dep);
    return ek_graph_after(g, &join, dep);
}

static int32_t build_columns_backward(ek_pass *p, ek_graph *g, int32_t micro, int32_t dep)
{
    const ek_micro *mb = &p->forward.micro[micro];
    ek_op split = ek_head_op(p, EK_OP_SPLIT_COLUMNS, op_split_columns, micro, -1, 0,
                             row_bytes(p, 2, mb->all));
    ek_op out = net_op(p, EK_OP_SPREAD_COLUMNS, op_columns_out, micro, bytes_sent(p, mb->all));
    ek_op embed = ek_head_op(p, EK_OP_EMBED_BACKWARD, op_embed_columns_backward, micro, -1, 0,
                             row_bytes(p, 3, mb->all));

    dep = ek_graph_after(g, &split, dep);
    dep = ek_graph_after(g, &out, dep);
    return ek_graph_after(g, &embed, dep);
}

int32_t ek_embed_build_lookup(ek_forward *f, ek_graph *g, int32_t micro, int32_t dep)
{
    double row = (double)f->model->spec.hidden * (double)ek_dtype_size(f->model->k->real);
    ek_op op =
        ek_layer_op(f, f, EK_OP_EMBED, op_embed, -1, micro, 0, 2 * (double)f->micro[micro].n * row);

    return ek_graph_after(g, &op, dep);
}

int32_t ek_embed_build(ek_pass *p, ek_graph *g, int32_t micro, int32_t dep)
{
    const ek_micro *mb = &p->forward.micro[micro];
    ek_tp *tp = p->scratch.tp;
    ek_op part = ek_head_op(p, EK_OP_EMBED, op_embed_part, micro, -1, 0, row_bytes(p, 2, mb->all));
    ek_op rows =
        ek_head_op(p, EK_OP_EMBED_ROWS, op_embed_rows, micro, -1, 0, row_bytes(p, 2, mb->n));

    if (p->model->cfg.embed_columns)
        dep = build_columns(p, g, micro, dep);
    else if (tp == NULL)
        return ek_embed_build_lookup(&p->forward, g, micro, dep);
    else
        dep = ek_graph_after(g, &part, dep);
    if (tp == NULL)
        return dep;
    dep = ek_tp_build_reduce_sum(tp, g, -1, micro, 0, dep);
    return ek_graph_after(g, &rows, dep);
}

int32_t ek_embed_build_backward(ek_pass *p, ek_graph *g, int32_t micro, int32_t dep)
{
    const ek_micro *mb = &p->forward.micro[micro];
    ek_op rows = ek_head_op(p, EK_OP_EMBED_GRADIENT, op_embed_gradient, micro, -1, 0,
                            row_bytes(p, 2, mb->n));
    ek_op op = ek_head_op(p, EK_OP_EMBED_BACKWARD,
                          p->scratch.tp == NULL ? op_embed_backward : op_embed_part_backward, micro,
                          -1, 0, row_bytes(p, 3, mb->all));

    op.async = p->scratch.tp == NULL;
    if (p->scratch.tp != NULL) {
        dep = ek_graph_after(g, &rows, dep);
        dep = ek_tp_build_gather_sum(p->scratch.tp, g, -1, micro, dep);
    }
    if (p->model->cfg.embed_columns)
        return build_columns_backward(p, g, micro, dep);
    return ek_graph_after(g, &op, dep);
}
