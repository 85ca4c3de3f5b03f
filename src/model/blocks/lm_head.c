/* The ops of the loss head with one tensor parallel rank (several: model/blocks/lm_head_tp.c).
 *
 * It works on blocks of rows, so logits of the whole batch are never stored: final norm, logits,
 * cross entropy and, when training, their gradients, block by block. */
#include "model/blocks/backward.h"
#include "model/blocks/layer_priv.h"
#include "model/blocks/lm_head_priv.h"

ek_op ek_head_op(ek_backward *bw, ek_op_kind kind, ek_op_fn run, int32_t micro, int32_t part,
                 ek_work work, double bytes)
{
    ek_op op = ek_layer_op(bw->forward, bw, kind, run, -1, micro, work, bytes);

    op.part = part;
    op.async = 0;
    return op;
}

void ek_head_localise(const ek_model *m, int64_t n, const int32_t *ids, int32_t *local)
{
    int64_t first = m->local.vocab_first, end = first + m->local.vocab;

    for (int64_t i = 0; i < n; i++)
        local[i] = ids[i] >= first && ids[i] < end ? (int32_t)(ids[i] - first) : -1;
}

const int32_t *ek_head_local_ids(ek_backward *bw, int64_t n, const int32_t *ids)
{
    ek_head_localise(bw->forward->model, n, ids, bw->head.ids);
    return bw->head.ids;
}

/* One block of the head: rows [first, first + rows) of the micro-batch. */
typedef struct {
    const ek_kernels *k;
    const ek_micro *mb;
    int64_t first, rows, d, v;
    char *x, *dx; /* R, at the first row */
} block;

static block block_of(const ek_backward *bw, const ek_op *op)
{
    const ek_forward *f = bw->forward;
    const ek_model *m = f->model;
    const ek_micro *mb = &f->micro[op->micro];
    int64_t first = (int64_t)op->part * bw->head.rows, rows = mb->n - first;
    int64_t skip = first * m->spec.hidden * (int64_t)ek_dtype_size(m->k->real);

    return (block){m->k,
                   mb,
                   first,
                   rows < bw->head.rows ? rows : bw->head.rows,
                   m->spec.hidden,
                   m->spec.vocab,
                   (char *)ek_forward_x(f, 2 * (int32_t)m->spec.layers, op->micro) + skip,
                   bw->dx != NULL ? (char *)bw->dx + skip : NULL};
}

ek_status ek_lm_head_logits(ek_forward *f, int64_t rows, const void *x, void *y, void *rstd,
                            void *logits)
{
    const ek_model *m = f->model;
    int64_t d = m->spec.hidden, v = m->spec.vocab;

    m->k->rmsnorm_forward(rows, d, m->spec.rms_eps, x, m->final_norm.p, y, NULL, rstd);
    f->group = (ek_group){0, rows, m->head.forward, NULL};
    return m->k->linear_forward(m->k, &f->group, 1, v, d, y, d, logits, v, EK_OUT_REAL, f->ws);
}

static ek_status op_logits(void *self, const ek_op *op)
{
    ek_backward *bw = self;
    block b = block_of(bw, op);

    return ek_lm_head_logits(bw->forward, b.rows, b.x, bw->head.y, bw->head.rstd, bw->head.logits);
}

static ek_status op_loss(void *self, const ek_op *op)
{
    ek_backward *bw = self;
    block b = block_of(bw, op);

    b.k->cross_entropy(b.rows, b.v, bw->head.logits, b.v, b.mb->targets + b.first,
                       ek_head_loss_scale(bw), bw->head.loss_rows,
                       bw->trains ? bw->head.dlogits : NULL, bw->head.dlogits_ld);
    for (int64_t i = 0; i < b.rows; i++)
        bw->loss.sum += bw->head.loss_rows[i];
    return EK_OK;
}

static ek_status op_head_backward(void *self, const ek_op *op)
{
    ek_backward *bw = self;
    ek_forward *f = bw->forward;
    ek_model *m = f->model;
    block b = block_of(bw, op);

    f->group = (ek_group){0, b.rows, m->head.backward, m->head.g};
    EK_TRY(b.k->linear_backward_weight(b.k, &f->group, 1, b.v, b.d, bw->head.dlogits,
                                       bw->head.dlogits_ld, bw->head.y, b.d, f->ws));
    EK_TRY(b.k->linear_backward_input(b.k, &f->group, 1, b.v, b.d, bw->head.dlogits,
                                      bw->head.dlogits_ld, bw->head.dy, b.d, EK_OUT_REAL, f->ws));
    b.k->clear(b.rows * b.d * (int64_t)ek_dtype_size(b.k->real), b.dx);
    b.k->rmsnorm_backward(b.rows, b.d, b.x, m->final_norm.p, bw->head.rstd, bw->head.dy, b.dx,
                          m->final_norm.g, f->ws);
    return EK_OK;
}

int32_t ek_head_build(ek_backward *bw, ek_graph *g, int32_t micro, int32_t dep)
{
    const ek_forward *f = bw->forward;
    const ek_kernels *k = f->model->k;
    double d = (double)f->model->spec.hidden, v = (double)f->model->spec.vocab;
    double c = (double)ek_dtype_size(k->comp), r = (double)ek_dtype_size(k->real);
    int64_t n = f->micro[micro].n;

    if (f->tp != NULL)
        return ek_head_build_tp(bw, g, micro, dep);
    for (int32_t part = 0; (int64_t)part * bw->head.rows < n; part++) {
        int64_t left = n - (int64_t)part * bw->head.rows;
        double rows = (double)(left < bw->head.rows ? left : bw->head.rows);
        ek_op logits = ek_head_op(bw, EK_OP_LOGITS, op_logits, micro, part,
                                  ek_work_of_product(ek_product_of(rows, v, d, EK_PRODUCT_FORWARD)),
                                  rows * d * (r + 2 * c) + rows * v * r + d * v * c);
        ek_op loss = ek_head_op(bw, EK_OP_CROSS_ENTROPY, op_loss, micro, part,
                                ek_work_of_rows(rows, v), rows * v * (r + c));
        ek_op back = ek_head_op(
            bw, EK_OP_HEAD_BACKWARD, op_head_backward, micro, part,
            ek_work_of_product(ek_product_of(rows, v, d, EK_PRODUCT_INPUT | EK_PRODUCT_WEIGHT)),
            rows * v * 2 * c + rows * d * (2 * c + 5 * r) + d * v * (c + 2 * r));

        logits.async = back.async = 1;
        dep = ek_graph_after(g, &logits, dep);
        dep = ek_graph_add(g, &loss, (int32_t[]){dep, bw->loss.counted}, 2);
        if (bw->trains)
            dep = ek_graph_after(g, &back, dep);
    }
    return dep;
}
