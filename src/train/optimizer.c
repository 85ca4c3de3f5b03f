/* The norm, the update and the packing, layer by layer. */
#include "train/optimizer.h"

#include <math.h>

void ek_optimizer_init(ek_optimizer *o, ek_model *m, const ek_optimizer_config *cfg)
{
    *o = (ek_optimizer){.model = m, .cfg = *cfg};
}

double ek_learning_rate(const ek_optimizer_config *cfg, int64_t step)
{
    const double pi = 3.14159265358979323846;
    int64_t span = cfg->steps - 1 - cfg->warmup, at = step - cfg->warmup;

    if (step < cfg->warmup)
        return cfg->lr * (double)(step + 1) / (double)cfg->warmup;
    if (!cfg->cosine || span <= 0)
        return cfg->lr;
    if (at > span)
        at = span;
    return cfg->min_lr + (cfg->lr - cfg->min_lr) * 0.5 * (1 + cos(pi * (double)at / (double)span));
}

/* Norm over every gradient, summed in the order of the weights; sets up this step's update. */
static ek_status op_norm(void *self, const ek_op *op)
{
    ek_optimizer *o = self;
    ek_model *m = o->model;
    double sum = 0, t = (double)(o->steps_done + 1);
    const ek_optimizer_config *c = &o->cfg;

    (void)op;
    for (int64_t i = 0; i < m->n_params; i++)
        if (m->params[i].trained)
            sum += m->k->sum_squares(ek_weight_elements(m->params[i].w), m->params[i].w->g);
    o->grad_norm = sqrt(sum);
    EK_REQUIRE(isfinite(o->grad_norm), EK_ENONFINITE,
               "step %lld: the gradient is not finite; lower --lr, or look at the data",
               (long long)o->steps_done);
    o->lr = ek_learning_rate(c, o->steps_done);
    o->now = (ek_adamw){o->lr,
                        c->decay,
                        c->beta1,
                        c->beta2,
                        c->eps,
                        1 - pow(c->beta1, t),
                        1 - pow(c->beta2, t),
                        c->clip > 0 ? fmin(1.0, c->clip / (o->grad_norm + 1e-6)) : 1.0};
    o->steps_done++;
    return EK_OK;
}

static ek_status update(ek_optimizer *o, ek_param *p)
{
    const ek_kernels *k = o->model->k;
    ek_weight *w = p->w;
    ek_adamw h = o->now;

    if (!p->decay)
        h.decay = 0;
    if (p->trained)
        k->adamw(&h, ek_weight_elements(w), w->p, w->g, w->m, w->v);
    if (w->forward != NULL && w->forward != w->p)
        EK_TRY(k->pack(k, w->out, w->in, EK_FORM_FORWARD, w->p, w->forward));
    if (w->backward != NULL && w->backward != w->p)
        EK_TRY(k->pack(k, w->out, w->in, EK_FORM_BACKWARD, w->p, w->backward));
    return EK_OK;
}

/* Updates the weights of one layer (op->layer -1: those of none). */
static ek_status op_update(void *self, const ek_op *op)
{
    ek_optimizer *o = self;

    for (int64_t i = 0; i < o->model->n_params; i++)
        if (o->model->params[i].layer == op->layer)
            EK_TRY(update(o, &o->model->params[i]));
    return EK_OK;
}

/* Bytes that an update moves: masters, gradients and moments in and out, packed forms out. */
static double update_bytes(const ek_model *m, int32_t layer)
{
    double r = (double)ek_dtype_size(m->k->real), bytes = 0;

    for (int64_t i = 0; i < m->n_params; i++) {
        const ek_weight *w = m->params[i].w;

        if (m->params[i].layer != layer)
            continue;
        bytes += 8 * r * (double)ek_weight_elements(w);
        if (w->forward != NULL && w->forward != w->p)
            bytes += (r + 2) * (double)ek_weight_elements(w);
        if (w->backward != NULL && w->backward != w->p)
            bytes += (r + 2) * (double)ek_weight_elements(w);
    }
    return bytes;
}

int32_t ek_optimizer_build(ek_optimizer *o, ek_graph *g, int32_t dep)
{
    const ek_model *m = o->model;
    ek_op op = {.name = "gradient norm",
                .run = op_norm,
                .self = o,
                .lane = EK_LANE_COMPUTE,
                .layer = -1,
                .micro = -1,
                .part = -1,
                .bytes = (double)ek_dtype_size(m->k->real) * (double)m->n_elements};

    dep = ek_graph_after(g, &op, dep);
    op.name = "adamw";
    op.run = op_update;
    for (int32_t l = -1; l < (int32_t)m->spec.layers; l++) {
        op.layer = l;
        op.bytes = update_bytes(m, l);
        dep = ek_graph_after(g, &op, dep);
    }
    return dep;
}
