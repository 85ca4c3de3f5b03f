/* The ops of the loss head with several tensor parallel ranks: each computes the final norm of its
 * own tokens and holds a range of the vocabulary.
 *
 * The norm is all-gathered.  For each block of rows, every rank computes its logits, and the ranks
 * all-gather three numbers a row: the largest logit, the sum of exponentials relative to it, and
 * the target's logit on the rank that holds it.  From these each rank computes the same loss and
 * its own shard of the gradient.  This exchange overlaps with the backward of the block before. The
 * gradient of the norm is reduce-scattered once, at the end. */
#include "exec/net.h"
#include "model/blocks/lm_head_priv.h"
#include "nn/tensor_parallel.h"

#include <math.h>

enum { STATS = 3 }; /* of ek_kernels.vocab_exponentials */

/* Rows [first, first + rows) of the micro-batch. */
typedef struct {
    const ek_kernels *k;
    const ek_model *m;
    const ek_micro *mb;
    int64_t first, rows, d, v; /* v: this rank's vocabulary rows */
    char *y, *dy;              /* C and R, at the first row */
} block;

static block block_of(const ek_backward *bw, const ek_op *op)
{
    const ek_forward *f = bw->forward;
    const ek_model *m = f->model;
    const ek_micro *mb = &f->micro[op->micro];
    int64_t first = (int64_t)op->part * bw->head.rows, rows = mb->all - first;
    int64_t skip = first * m->spec.hidden;

    return (block){m->k,
                   m,
                   mb,
                   first,
                   rows < bw->head.rows ? rows : bw->head.rows,
                   m->spec.hidden,
                   m->local.vocab,
                   (char *)f->tp->y + skip * (int64_t)ek_dtype_size(m->k->comp),
                   (char *)f->tp->sum + skip * (int64_t)ek_dtype_size(m->k->real)};
}

/* The three numbers of each row of the block, of one rank. */
static double *stats_of(const ek_backward *bw, const block *b, int rank, int64_t row)
{
    return bw->head.stats + (rank * b->rows + row) * STATS;
}

static ek_status op_final_norm(void *self, const ek_op *op)
{
    ek_backward *bw = self;
    const ek_forward *f = bw->forward;
    const ek_model *m = f->model;
    const void *x = ek_forward_x(f, 2 * (int32_t)m->spec.layers, op->micro);

    m->k->rmsnorm_forward(f->micro[op->micro].n, m->spec.hidden, m->spec.rms_eps, x,
                          m->final_norm.p,
                          ek_tp_own(f->tp, op, f->tp->y, m->spec.hidden, ek_dtype_size(m->k->comp)),
                          NULL, bw->head.rstd);
    return EK_OK;
}

static ek_status op_logits(void *self, const ek_op *op)
{
    ek_backward *bw = self;
    ek_forward *f = bw->forward;
    block b = block_of(bw, op);
    const int32_t *targets = ek_head_local_ids(bw, b.rows, b.mb->targets + b.first);

    if (b.v > 0) {
        f->group = (ek_group){0, b.rows, b.m->head.forward, NULL};
        EK_TRY(b.k->linear_forward(b.k, &f->group, 1, b.v, b.d, b.y, b.d, bw->head.logits, b.v,
                                   EK_OUT_REAL, f->ws));
    }
    b.k->vocab_exponentials(b.rows, b.v, bw->head.logits, b.v, targets,
                            stats_of(bw, &b, b.m->cfg.mesh->tp_rank, 0));
    return EK_OK;
}

static ek_status op_gather_stats(void *self, const ek_op *op)
{
    ek_backward *bw = self;
    const ek_forward *f = bw->forward;
    block b = block_of(bw, op);

    if (!ek_net_started(op)) {
        for (int r = 0; r <= b.m->cfg.mesh->tp; r++)
            f->tp->first[r] = r * b.rows * STATS;
        EK_TRY(ek_comm_all_gather(b.m->cfg.mesh->tp_group, bw->head.stats, f->tp->first,
                                  sizeof(double), ek_net_cell(op)));
    }
    return ek_net_test(op);
}

/* The rank that holds a row of the vocabulary. */
static int owner_of(const block *b, int64_t id)
{
    int tp = b->m->cfg.mesh->tp, r = 0;

    while (ek_range_first(b->m->spec.vocab, tp, r + 1) <= id)
        r++;
    return r;
}

/* Loss of one row in nats. *own: factor that turns this rank's exponentials into probabilities;
 * *hit: the target's probability minus one. */
static double row_loss(const ek_backward *bw, const block *b, int64_t row, double *own, double *hit)
{
    const ek_mesh *mesh = b->m->cfg.mesh;
    int32_t target = b->mb->targets[b->first + row];
    double top = -INFINITY, at = -INFINITY, total;

    for (int r = 0; r < mesh->tp; r++)
        top = fmax(top, stats_of(bw, b, r, row)[0]);
    if (target >= 0)
        at = stats_of(bw, b, owner_of(b, target), row)[2] - top;
    total = exp(at);
    for (int r = 0; r < mesh->tp; r++) {
        const double *s = stats_of(bw, b, r, row);

        total += s[1] * exp(s[0] - top);
    }
    *own = exp(stats_of(bw, b, mesh->tp_rank, row)[0] - top) / total;
    *hit = (exp(at) - total) / total;
    if (target >= 0)
        return log(total) - at;
    *own = *hit = 0;
    return 0;
}

static ek_status op_loss(void *self, const ek_op *op)
{
    ek_backward *bw = self;
    block b = block_of(bw, op);
    const int32_t *targets = ek_head_local_ids(bw, b.rows, b.mb->targets + b.first);
    double scale = ek_head_loss_scale(bw);

#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < b.rows; i++) {
        bw->head.loss_rows[i] = row_loss(bw, &b, i, &bw->head.factor[i], &bw->head.hit[i]);
        bw->head.factor[i] *= scale;
        bw->head.hit[i] *= scale;
    }
    for (int64_t i = 0; i < b.rows; i++) /* count each token on one rank only */
        if (b.first + i >= b.mb->first && b.first + i < b.mb->first + b.mb->n)
            bw->loss.sum += bw->head.loss_rows[i];
    if (bw->trains)
        b.k->vocab_gradient(b.rows, b.v, bw->head.logits, b.v, targets, bw->head.factor,
                            bw->head.hit, bw->head.dlogits, bw->head.dlogits_ld);
    return EK_OK;
}

static ek_status op_head_backward(void *self, const ek_op *op)
{
    ek_backward *bw = self;
    ek_forward *f = bw->forward;
    block b = block_of(bw, op);

    if (b.v == 0) {
        b.k->clear(b.rows * b.d * (int64_t)ek_dtype_size(b.k->real), b.dy);
        return EK_OK;
    }
    f->group = (ek_group){0, b.rows, b.m->head.backward, b.m->head.g};
    EK_TRY(b.k->linear_backward_weight(b.k, &f->group, 1, b.v, b.d, bw->head.dlogits,
                                       bw->head.dlogits_ld, b.y, b.d, f->ws));
    return b.k->linear_backward_input(b.k, &f->group, 1, b.v, b.d, bw->head.dlogits,
                                      bw->head.dlogits_ld, b.dy, b.d, EK_OUT_REAL, f->ws);
}

static ek_status op_final_norm_backward(void *self, const ek_op *op)
{
    ek_backward *bw = self;
    const ek_forward *f = bw->forward;
    ek_model *m = f->model;
    int64_t n = f->micro[op->micro].n, d = m->spec.hidden;
    size_t real = ek_dtype_size(m->k->real);

    m->k->clear(n * d * (int64_t)real, bw->dx);
    m->k->rmsnorm_backward(
        n, d, ek_forward_x(f, 2 * (int32_t)m->spec.layers, op->micro), m->final_norm.p,
        bw->head.rstd, ek_tp_own(f->tp, op, f->tp->sum, d, real), bw->dx, m->final_norm.g, f->ws);
    return EK_OK;
}

/* Sizes for the ops' FLOPs and bytes. */
typedef struct {
    double rows, d, v, c, r;
} sizes;

static sizes sizes_of(const ek_backward *bw, int64_t rows)
{
    const ek_forward *f = bw->forward;

    return (sizes){(double)rows, (double)f->model->spec.hidden, (double)f->model->local.vocab,
                   (double)ek_dtype_size(f->model->k->comp),
                   (double)ek_dtype_size(f->model->k->real)};
}

static int64_t rows_of(const ek_backward *bw, int32_t micro, int32_t part)
{
    int64_t left = bw->forward->micro[micro].all - (int64_t)part * bw->head.rows;

    return left < bw->head.rows ? left : bw->head.rows;
}

/* Logits of a block and the all-gather of its three numbers a row, the last op. */
static int32_t build_logits(ek_backward *bw, ek_graph *g, int32_t micro, int32_t part, int32_t dep)
{
    const ek_forward *f = bw->forward;
    sizes z = sizes_of(bw, rows_of(bw, micro, part));
    ek_op logits =
        ek_head_op(bw, EK_OP_LOGITS, op_logits, micro, part,
                   ek_work_of_product(ek_product_of(z.rows, z.v, z.d, EK_PRODUCT_FORWARD)),
                   z.rows * z.d * z.c + 3 * z.rows * z.v * z.r + z.d * z.v * z.c);
    const ek_mesh *mesh = f->model->cfg.mesh;
    double bytes = mesh->tp * z.rows * STATS * (double)sizeof(double);
    ek_op stats = ek_net_op(
        EK_OP_GATHER_LOGIT_SUMS, op_gather_stats, bw,
        ek_net_work_of(mesh, EK_MESH_TP, EK_COLLECTIVE_ALL_GATHER, bytes, sizeof(double)));

    stats.micro = micro;
    stats.part = part;
    dep = ek_graph_after(g, &logits, dep);
    return ek_graph_after(g, &stats, dep);
}

static int32_t build_backward(ek_backward *bw, ek_graph *g, int32_t micro, int32_t part,
                              int32_t dep)
{
    sizes z = sizes_of(bw, rows_of(bw, micro, part));
    ek_op op = ek_head_op(
        bw, EK_OP_HEAD_BACKWARD, op_head_backward, micro, part,
        ek_work_of_product(ek_product_of(z.rows, z.v, z.d, EK_PRODUCT_INPUT | EK_PRODUCT_WEIGHT)),
        2 * z.rows * z.v * z.c + z.rows * z.d * (z.c + z.r) + z.d * z.v * (z.c + 2 * z.r));

    return ek_graph_after(g, &op, dep);
}

/* Blocks in order, each block's backward overlapping with the next one's exchange. dep: the
 * gathered norm. */
static int32_t build_blocks(ek_backward *bw, ek_graph *g, int32_t micro, int32_t dep)
{
    int64_t all = bw->forward->micro[micro].all;

    for (int32_t part = 0; (int64_t)part * bw->head.rows < all; part++) {
        sizes z = sizes_of(bw, rows_of(bw, micro, part));
        ek_op loss = ek_head_op(bw, EK_OP_CROSS_ENTROPY, op_loss, micro, part,
                                ek_work_of_rows(z.rows, z.v), z.rows * z.v * (z.r + z.c));
        int32_t deps[3] = {build_logits(bw, g, micro, part, dep), -1, bw->loss.counted};

        if (bw->trains && part > 0)
            deps[1] = build_backward(bw, g, micro, part - 1, dep);
        dep = ek_graph_add(g, &loss, deps, 3);
        if (bw->trains && (int64_t)(part + 1) * bw->head.rows >= all)
            dep = build_backward(bw, g, micro, part, dep);
    }
    return dep;
}

int32_t ek_head_build_tp(ek_backward *bw, ek_graph *g, int32_t micro, int32_t dep)
{
    const ek_forward *f = bw->forward;
    sizes z = sizes_of(bw, f->micro[micro].n);
    ek_op norm = ek_head_op(bw, EK_OP_FINAL_NORM, op_final_norm, micro, -1,
                            ek_work_of_rows(z.rows, z.d), z.rows * z.d * (z.r + z.c));
    ek_op back = ek_head_op(bw, EK_OP_FINAL_NORM_BACKWARD, op_final_norm_backward, micro, -1,
                            ek_work_of_rows(z.rows, z.d), 4 * z.rows * z.d * z.r);

    if (f->micro[micro].all == 0) /* replicated on all tensor parallel ranks */
        return dep;
    dep = ek_graph_after(g, &norm, dep);
    dep = ek_tp_build_gather_y(f->tp, g, -1, micro, 0, dep);
    dep = build_blocks(bw, g, micro, dep);
    if (!bw->trains)
        return dep;
    dep = ek_tp_build_reduce_sum(f->tp, g, -1, micro, 0, dep);
    return ek_graph_after(g, &back, dep);
}
