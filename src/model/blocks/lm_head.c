/* The ops of the loss head with one tensor parallel rank (several: model/blocks/lm_head_tp.c).
 *
 * It works on blocks of rows, so logits of the whole batch are never stored: final norm, logits,
 * cross entropy and, when training, their gradients, block by block. */
#include "model/blocks/backward.h"
#include "model/blocks/lm_head_priv.h"

ek_op ek_head_op(ek_pass *p, ek_op_kind kind, ek_op_fn run, int32_t micro, int32_t part,
                 double flops, double bytes)
{
    return (ek_op){.kind = kind,
                   .run = run,
                   .self = p,
                   .lane = EK_LANE_COMPUTE,
                   .layer = -1,
                   .micro = micro,
                   .part = part,
                   .flops = flops,
                   .bytes = bytes};
}

void ek_head_localise(const ek_model *m, int64_t n, const int32_t *ids, int32_t *local)
{
    int64_t first = m->local.vocab_first, end = first + m->local.vocab;

    for (int64_t i = 0; i < n; i++)
        local[i] = ids[i] >= first && ids[i] < end ? (int32_t)(ids[i] - first) : -1;
}

const int32_t *ek_head_local_ids(ek_pass *p, int64_t n, const int32_t *ids)
{
    ek_head_localise(p->model, n, ids, p->head.ids);
    return p->head.ids;
}

/* One block of the head: rows [first, first + rows) of the micro-batch. */
typedef struct {
    const ek_kernels *k;
    const ek_micro *mb;
    int64_t first, rows, d, v;
    char *x, *dx; /* R, at the first row */
} block;

static block block_of(const ek_pass *p, const ek_op *op)
{
    const ek_model *m = p->model;
    const ek_micro *mb = &p->forward.micro[op->micro];
    int64_t first = (int64_t)op->part * p->head.rows, rows = mb->n - first;
    int64_t skip = first * m->spec.hidden * (int64_t)ek_dtype_size(m->k->real);

    return (block){m->k,
                   mb,
                   first,
                   rows < p->head.rows ? rows : p->head.rows,
                   m->spec.hidden,
                   m->spec.vocab,
                   (char *)ek_forward_x(&p->forward, 2 * (int32_t)m->spec.layers, op->micro) + skip,
                   p->backward.dx != NULL ? (char *)p->backward.dx + skip : NULL};
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
    ek_pass *p = self;
    block b = block_of(p, op);

    return ek_lm_head_logits(&p->forward, b.rows, b.x, p->head.y, p->head.rstd, p->head.logits);
}

static ek_status op_loss(void *self, const ek_op *op)
{
    ek_pass *p = self;
    block b = block_of(p, op);

    b.k->cross_entropy(b.rows, b.v, p->head.logits, b.v, b.mb->targets + b.first,
                       ek_head_loss_scale(p), p->head.loss_rows,
                       ek_pass_trains(p) ? p->head.dlogits : NULL, p->head.dlogits_ld);
    for (int64_t i = 0; i < b.rows; i++)
        p->loss.sum += p->head.loss_rows[i];
    return EK_OK;
}

static ek_status op_head_backward(void *self, const ek_op *op)
{
    ek_pass *p = self;
    ek_model *m = p->model;
    block b = block_of(p, op);

    p->forward.group = (ek_group){0, b.rows, m->head.backward, m->head.g};
    EK_TRY(b.k->linear_backward_weight(b.k, &p->forward.group, 1, b.v, b.d, p->head.dlogits,
                                       p->head.dlogits_ld, p->head.y, b.d, p->forward.ws));
    EK_TRY(b.k->linear_backward_input(b.k, &p->forward.group, 1, b.v, b.d, p->head.dlogits,
                                      p->head.dlogits_ld, p->head.dy, b.d, EK_OUT_REAL,
                                      p->forward.ws));
    b.k->clear(b.rows * b.d * (int64_t)ek_dtype_size(b.k->real), b.dx);
    b.k->rmsnorm_backward(b.rows, b.d, b.x, m->final_norm.p, p->head.rstd, p->head.dy, b.dx,
                          m->final_norm.g, p->forward.ws);
    return EK_OK;
}

int32_t ek_head_build(ek_pass *p, ek_graph *g, int32_t micro, int32_t dep)
{
    const ek_kernels *k = p->model->k;
    double d = (double)p->model->spec.hidden, v = (double)p->model->spec.vocab;
    double c = (double)ek_dtype_size(k->comp), r = (double)ek_dtype_size(k->real);
    int64_t n = p->forward.micro[micro].n;

    if (p->scratch.tp != NULL)
        return ek_head_build_tp(p, g, micro, dep);
    for (int32_t part = 0; (int64_t)part * p->head.rows < n; part++) {
        int64_t left = n - (int64_t)part * p->head.rows;
        double rows = (double)(left < p->head.rows ? left : p->head.rows);
        ek_op logits = ek_head_op(p, EK_OP_LOGITS, op_logits, micro, part, 2 * rows * d * v,
                                  rows * d * (r + 2 * c) + rows * v * r + d * v * c);
        ek_op loss =
            ek_head_op(p, EK_OP_CROSS_ENTROPY, op_loss, micro, part, 0, rows * v * (r + c));
        ek_op back =
            ek_head_op(p, EK_OP_HEAD_BACKWARD, op_head_backward, micro, part, 4 * rows * d * v,
                       rows * v * 2 * c + rows * d * (2 * c + 5 * r) + d * v * (c + 2 * r));

        logits.async = back.async = 1;
        dep = ek_graph_after(g, &logits, dep);
        dep = ek_graph_add(g, &loss, (int32_t[]){dep, p->graph.counted}, 2);
        if (ek_pass_trains(p))
            dep = ek_graph_after(g, &back, dep);
    }
    return dep;
}
