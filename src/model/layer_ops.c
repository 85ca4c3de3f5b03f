/* One transformer layer as ops: norm, query/key/value, attention, output, norm, experts. */
#include "model/pass.h"

#include <math.h>
#include <string.h>

/* Adds one compute op of layer l after `dep`. */
static int32_t add(ek_pass *p, ek_graph *g, const char *name, ek_op_fn run, int32_t l,
                   int32_t micro, int again, double flops, double bytes, int32_t dep)
{
    ek_op op = {.name = name,
                .run = run,
                .self = p,
                .lane = EK_LANE_COMPUTE,
                .layer = l,
                .micro = micro,
                .part = -1,
                .again = again,
                .flops = flops,
                .bytes = bytes};

    return ek_graph_after(g, &op, dep);
}

/* What the ops of a layer look up: sizes, weights, activations. */
typedef struct {
    const ek_kernels *k;
    const ek_model_spec *s;
    const ek_micro *mb;
    ek_layer *w;
    ek_layer_saved *y;
    int64_t d, q, kv, width; /* hidden, query width, key width, q + 2 kv */
    void *x_in, *x_mid, *x_out;
} place;

static place place_of(ek_pass *p, const ek_op *op)
{
    const ek_model_spec *s = &p->model->spec;
    int64_t q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;

    return (place){p->model->k,
                   s,
                   &p->micro[op->micro],
                   &p->model->layers[op->layer],
                   ek_pass_saved(p, op->layer, op->micro),
                   s->hidden,
                   q,
                   kv,
                   q + 2 * kv,
                   ek_pass_x(p, 2 * op->layer, op->micro),
                   ek_pass_x(p, 2 * op->layer + 1, op->micro),
                   ek_pass_x(p, 2 * op->layer + 2, op->micro)};
}

static ek_attention attention_of(const place *a)
{
    return (ek_attention){a->mb->seqs,
                          a->mb->seq,
                          a->s->heads,
                          a->s->kv_heads,
                          a->s->head_dim,
                          a->width,
                          1.0 / sqrt((double)a->s->head_dim)};
}

/* y = x, both R [n, d]. */
static void copy_real(const place *a, void *y, const void *x)
{
    int64_t row = a->d * (int64_t)ek_dtype_size(a->k->real);

#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < a->mb->n; i++)
        memcpy((char *)y + i * row, (const char *)x + i * row, (size_t)row);
}

static char *at(const place *a, void *comp, int64_t elements)
{
    return (char *)comp + elements * (int64_t)ek_dtype_size(a->k->comp);
}

/* --- forward --------------------------------------------------------------------------------- */

static ek_status op_norm1(void *self, const ek_op *op)
{
    ek_pass *p = self;
    place a = place_of(p, op);

    a.k->rmsnorm_forward(a.mb->n, a.d, a.s->rms_eps, a.x_in, a.w->norm1.p, a.y->y1, NULL,
                         a.y->rstd1);
    return EK_OK;
}

static ek_status op_qkv(void *self, const ek_op *op)
{
    ek_pass *p = self;
    place a = place_of(p, op);

    p->group = (ek_group){0, a.mb->n, a.w->qkv.forward, NULL};
    EK_TRY(a.k->linear_forward(a.k, &p->group, 1, a.width, a.d, a.y->y1, a.d, a.y->qkv, a.width,
                               EK_OUT_COMP, p->ws));
    if (a.s->qkv_bias)
        a.k->bias_forward(a.mb->n, a.width, a.w->qkv_bias.p, a.y->qkv, a.width);
    return EK_OK;
}

/* Query and key norms count OLMoE's full width as one head. */
static int64_t norm_heads(const place *a, int64_t heads)
{
    return a->s->qk_norm == EK_QK_NORM_HEAD ? heads : 1;
}

static ek_status op_rope(void *self, const ek_op *op)
{
    ek_pass *p = self;
    place a = place_of(p, op);

    if (a.s->qk_norm != EK_QK_NORM_NONE) {
        a.k->headnorm_forward(a.mb->n, norm_heads(&a, a.s->heads), a.w->q_norm.out, a.s->rms_eps,
                              a.w->q_norm.p, a.y->qkv, a.width, a.y->q_raw, a.y->q_rstd);
        a.k->headnorm_forward(a.mb->n, norm_heads(&a, a.s->kv_heads), a.w->k_norm.out, a.s->rms_eps,
                              a.w->k_norm.p, at(&a, a.y->qkv, a.q), a.width, a.y->k_raw,
                              a.y->k_rstd);
    }
    a.k->rope(a.mb->n, a.mb->seq, 0, a.s->heads + a.s->kv_heads, a.s->head_dim, p->cos_sin, 0,
              a.y->qkv, a.width);
    return EK_OK;
}

static ek_status op_attention(void *self, const ek_op *op)
{
    ek_pass *p = self;
    place a = place_of(p, op);
    ek_attention at_ = attention_of(&a);

    a.k->attention_forward(&at_, a.y->qkv, a.y->o, a.y->lse, p->ws);
    return EK_OK;
}

static ek_status op_out(void *self, const ek_op *op)
{
    ek_pass *p = self;
    place a = place_of(p, op);

    copy_real(&a, a.x_mid, a.x_in);
    p->group = (ek_group){0, a.mb->n, a.w->out.forward, NULL};
    return a.k->linear_forward(a.k, &p->group, 1, a.d, a.q, a.y->o, a.q, a.x_mid, a.d, EK_OUT_ADD,
                               p->ws);
}

/* The norm that the experts see, also as R for the router. */
static void norm2(ek_pass *p, const place *a)
{
    void *y_real = a->k->comp == a->k->real ? NULL : p->scratch.y_real;

    a->k->rmsnorm_forward(a->mb->n, a->d, a->s->rms_eps, a->x_mid, a->w->norm2.p, a->y->y2, y_real,
                          a->y->rstd2);
}

static ek_status op_norm2(void *self, const ek_op *op)
{
    ek_pass *p = self;
    place a = place_of(p, op);

    norm2(p, &a);
    if (!op->again)
        copy_real(&a, a.x_out, a.x_mid);
    return EK_OK;
}

int32_t ek_layer_build_forward(ek_pass *p, ek_graph *g, int32_t l, int32_t micro, int again,
                               int32_t dep)
{
    const ek_model_spec *s = &p->model->spec;
    const ek_micro *mb = &p->micro[micro];
    double n = (double)mb->n, d = (double)s->hidden, q = (double)(s->heads * s->head_dim);
    double width = q + 2 * (double)(s->kv_heads * s->head_dim);
    double c = (double)ek_dtype_size(p->model->k->comp),
           r = (double)ek_dtype_size(p->model->k->real);
    int only_attention = again && p->cfg.recompute == EK_RECOMPUTE_ATTENTION;

    dep = add(p, g, "norm", op_norm1, l, micro, again, 0, n * d * (r + c), dep);
    dep = add(p, g, "qkv", op_qkv, l, micro, again, 2 * n * d * width,
              (n * (d + width) + d * width) * c, dep);
    dep = add(p, g, "rope", op_rope, l, micro, again, 0, 2 * n * width * c, dep);
    dep = add(p, g, "attention", op_attention, l, micro, again, 2 * n * q * ((double)mb->seq + 1),
              n * (width + q) * c, dep);
    if (only_attention)
        return dep;
    dep = add(p, g, "attention out", op_out, l, micro, again, 2 * n * d * q,
              n * q * c + 4 * n * d * r + d * q * c, dep);
    dep = add(p, g, "norm", op_norm2, l, micro, again, 0, n * d * (4 * r + c), dep);
    return ek_moe_build_forward(&p->moe[l], g, micro, mb->n, again, dep);
}

/* --- backward -------------------------------------------------------------------------------- */

/* The experts' input as R, for the router's gradient. */
static ek_status op_norm2_again(void *self, const ek_op *op)
{
    ek_pass *p = self;
    place a = place_of(p, op);

    if (a.k->comp != a.k->real)
        a.k->rmsnorm_forward(a.mb->n, a.d, a.s->rms_eps, a.x_mid, a.w->norm2.p, NULL,
                             p->scratch.y_real, a.y->rstd2);
    return EK_OK;
}

static ek_status op_norm2_backward(void *self, const ek_op *op)
{
    ek_pass *p = self;
    place a = place_of(p, op);

    a.k->rmsnorm_backward(a.mb->n, a.d, a.x_mid, a.w->norm2.p, a.y->rstd2, p->scratch.dy, p->dx,
                          a.w->norm2.g, p->ws);
    return EK_OK;
}

static ek_status op_out_backward(void *self, const ek_op *op)
{
    ek_pass *p = self;
    place a = place_of(p, op);

    a.k->to_comp(a.mb->n, a.d, p->dx, p->dy_comp);
    p->group = (ek_group){0, a.mb->n, a.w->out.backward, a.w->out.g};
    EK_TRY(a.k->linear_backward_weight(a.k, &p->group, 1, a.d, a.q, p->dy_comp, a.d, a.y->o, a.q,
                                       p->ws));
    return a.k->linear_backward_input(a.k, &p->group, 1, a.d, a.q, p->dy_comp, a.d, p->d_o, a.q,
                                      EK_OUT_COMP, p->ws);
}

static ek_status op_attention_backward(void *self, const ek_op *op)
{
    ek_pass *p = self;
    place a = place_of(p, op);
    ek_attention at_ = attention_of(&a);

    a.k->attention_backward(&at_, a.y->qkv, a.y->o, a.y->lse, p->d_o, p->dqkv, p->ws);
    return EK_OK;
}

static ek_status op_rope_backward(void *self, const ek_op *op)
{
    ek_pass *p = self;
    place a = place_of(p, op);

    a.k->rope(a.mb->n, a.mb->seq, 0, a.s->heads + a.s->kv_heads, a.s->head_dim, p->cos_sin, 1,
              p->dqkv, a.width);
    if (a.s->qk_norm != EK_QK_NORM_NONE) {
        a.k->headnorm_backward(a.mb->n, norm_heads(&a, a.s->heads), a.w->q_norm.out, a.w->q_norm.p,
                               a.y->q_raw, a.y->q_rstd, p->dqkv, a.width, a.w->q_norm.g, p->ws);
        a.k->headnorm_backward(a.mb->n, norm_heads(&a, a.s->kv_heads), a.w->k_norm.out,
                               a.w->k_norm.p, a.y->k_raw, a.y->k_rstd, at(&a, p->dqkv, a.q),
                               a.width, a.w->k_norm.g, p->ws);
    }
    if (a.s->qkv_bias)
        a.k->bias_backward(a.mb->n, a.width, p->dqkv, a.width, a.w->qkv_bias.g);
    return EK_OK;
}

static ek_status op_qkv_backward(void *self, const ek_op *op)
{
    ek_pass *p = self;
    place a = place_of(p, op);

    p->group = (ek_group){0, a.mb->n, a.w->qkv.backward, a.w->qkv.g};
    EK_TRY(a.k->linear_backward_weight(a.k, &p->group, 1, a.width, a.d, p->dqkv, a.width, a.y->y1,
                                       a.d, p->ws));
    return a.k->linear_backward_input(a.k, &p->group, 1, a.width, a.d, p->dqkv, a.width, p->dy, a.d,
                                      EK_OUT_REAL, p->ws);
}

static ek_status op_norm1_backward(void *self, const ek_op *op)
{
    ek_pass *p = self;
    place a = place_of(p, op);

    a.k->rmsnorm_backward(a.mb->n, a.d, a.x_in, a.w->norm1.p, a.y->rstd1, p->dy, p->dx,
                          a.w->norm1.g, p->ws);
    return EK_OK;
}

int32_t ek_layer_build_backward(ek_pass *p, ek_graph *g, int32_t l, int32_t micro, int32_t dep)
{
    const ek_model_spec *s = &p->model->spec;
    const ek_micro *mb = &p->micro[micro];
    double n = (double)mb->n, d = (double)s->hidden, q = (double)(s->heads * s->head_dim);
    double width = q + 2 * (double)(s->kv_heads * s->head_dim);
    double c = (double)ek_dtype_size(p->model->k->comp),
           r = (double)ek_dtype_size(p->model->k->real);

    if (p->cfg.recompute == EK_RECOMPUTE_FULL)
        dep = ek_layer_build_forward(p, g, l, micro, 1, dep);
    else
        dep = add(p, g, "norm again", op_norm2_again, l, micro, 1, 0, 2 * n * d * r, dep);
    dep = ek_moe_build_backward(&p->moe[l], g, micro, mb->n, dep);
    dep = add(p, g, "norm backward", op_norm2_backward, l, micro, 0, 0, 4 * n * d * r, dep);
    if (p->cfg.recompute == EK_RECOMPUTE_ATTENTION)
        dep = ek_layer_build_forward(p, g, l, micro, 1, dep);
    dep = add(p, g, "attention out backward", op_out_backward, l, micro, 0, 4 * n * d * q,
              n * d * (r + 2 * c) + 2 * n * q * c + d * q * (c + 2 * r), dep);
    dep = add(p, g, "attention backward", op_attention_backward, l, micro, 0,
              4 * n * q * ((double)mb->seq + 1), n * (2 * width + 3 * q) * c, dep);
    dep = add(p, g, "rope backward", op_rope_backward, l, micro, 0, 0, 2 * n * width * c, dep);
    dep = add(p, g, "qkv backward", op_qkv_backward, l, micro, 0, 4 * n * d * width,
              n * (2 * width + d) * c + n * d * r + d * width * (c + 2 * r), dep);
    return add(p, g, "norm backward", op_norm1_backward, l, micro, 0, 0, 4 * n * d * r, dep);
}
