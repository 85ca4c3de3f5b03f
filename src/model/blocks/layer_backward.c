/* The backward ops of one transformer layer: experts, norm, attention, norm; before them what is
 * recomputed of its forward. */
#include "model/blocks/backward.h"
#include "model/blocks/layer_priv.h"

#include <string.h>

/* The experts' input as R, for the router's gradient. */
static ek_status op_norm2_recompute(void *self, const ek_op *op)
{
    ek_backward *bw = self;
    const ek_forward *f = bw->forward;
    ek_layer_args a = ek_layer_args_of(f, op);

    if (a.k->comp != a.k->real)
        a.k->rmsnorm_forward(a.mb->n, a.d, a.s->rms_eps, a.x_mid, a.w->norm2.p, NULL,
                             f->scratch->y_real, a.y->rstd2);
    return EK_OK;
}

static ek_status op_norm2_backward(void *self, const ek_op *op)
{
    ek_backward *bw = self;
    const ek_forward *f = bw->forward;
    ek_layer_args a = ek_layer_args_of(f, op);

    a.k->rmsnorm_backward(a.mb->n, a.d, a.x_mid, a.w->norm2.p, a.y->rstd2, f->scratch->dy, bw->dx,
                          a.w->norm2.g, f->ws);
    return EK_OK;
}

/* This rank's rows for the all-gathers of attention's backward: the gradient of its output, and its
 * input recomputed, unless recomputation has just stored that. */
static ek_status op_gradient(void *self, const ek_op *op)
{
    ek_backward *bw = self;
    ek_layer_args a = ek_layer_args_of(bw->forward, op);

    ek_tp_put_comp(a.tp, op, a.tp->dy, bw->dx);
    if (bw->recompute != EK_RECOMPUTE_ATTENTION)
        ek_tp_put(a.tp, op, a.tp->y, a.y->y1, a.k->comp);
    return EK_OK;
}

static ek_status op_out_backward(void *self, const ek_op *op)
{
    ek_backward *bw = self;
    ek_forward *f = bw->forward;
    ek_layer_args a = ek_layer_args_of(f, op);
    void *dy = a.tp != NULL ? a.tp->dy : bw->dy_comp;

    if (ek_attention_has_no_heads(&a))
        return EK_OK;
    if (a.tp == NULL)
        a.k->to_comp(a.mb->all, a.d, bw->dx, dy);
    f->group = (ek_group){0, a.mb->all, a.w->out.backward, a.w->out.g};
    EK_TRY(a.k->linear_backward_weight(a.k, &f->group, 1, a.d, a.q, dy, a.d, a.y->o, a.q, f->ws));
    return a.k->linear_backward_input(a.k, &f->group, 1, a.d, a.q, dy, a.d, bw->d_o, a.q,
                                      EK_OUT_COMP, f->ws);
}

static ek_status op_attention_backward(void *self, const ek_op *op)
{
    ek_backward *bw = self;
    const ek_forward *f = bw->forward;
    ek_layer_args a = ek_layer_args_of(f, op);
    ek_attention shape = ek_attention_of(&a);

    if (!ek_attention_has_no_heads(&a))
        a.k->attention_backward(&shape, a.y->qkv, a.y->o, a.y->lse, bw->d_o, bw->dqkv, f->ws);
    return EK_OK;
}

static void rope_backward(ek_backward *bw, const ek_layer_args *a)
{
    a->k->rope(a->mb->all, a->mb->seq, 0, a->local->heads + a->local->kv_heads, a->s->head_dim,
               bw->forward->cos_sin, 1, bw->dqkv, a->width);
}

static ek_status op_rope_backward(void *self, const ek_op *op)
{
    ek_backward *bw = self;
    const ek_forward *f = bw->forward;
    ek_layer_args a = ek_layer_args_of(f, op);

    if (ek_attention_has_no_heads(&a))
        return EK_OK;
    rope_backward(bw, &a);
    if (a.s->qk_norm != EK_QK_NORM_NONE) {
        a.k->headnorm_backward(a.mb->all, ek_attention_norm_heads(&a, a.local->heads),
                               a.w->q_norm.out, a.w->q_norm.p, a.y->q_raw, a.y->q_rstd, bw->dqkv,
                               a.width, a.w->q_norm.g, f->ws);
        a.k->headnorm_backward(a.mb->all, ek_attention_norm_heads(&a, a.local->kv_heads),
                               a.w->k_norm.out, a.w->k_norm.p, a.y->k_raw, a.y->k_rstd,
                               ek_layer_element(&a, bw->dqkv, a.q), a.width, a.w->k_norm.g, f->ws);
    }
    if (a.s->qkv_bias)
        a.k->bias_backward(a.mb->all, a.width, bw->dqkv, a.width, a.w->qkv_bias.g);
    return EK_OK;
}

/* The same in two steps, for norms that are sharded over ranks. */
static ek_status op_norm_dots(void *self, const ek_op *op)
{
    ek_backward *bw = self;
    const ek_forward *f = bw->forward;
    ek_layer_args a = ek_layer_args_of(f, op);

    memset(f->norm_sums, 0, (size_t)(2 * a.mb->all) * sizeof(double));
    if (ek_attention_has_no_heads(&a))
        return EK_OK;
    rope_backward(bw, &a);
    a.k->widenorm_dots(a.mb->all, a.q, a.w->q_norm.p, a.y->q_raw, bw->dqkv, a.width, f->norm_sums);
    a.k->widenorm_dots(a.mb->all, a.kv, a.w->k_norm.p, a.y->k_raw,
                       ek_layer_element(&a, bw->dqkv, a.q), a.width, ek_attention_key_sums(f, &a));
    return EK_OK;
}

static ek_status op_norm_spread_backward(void *self, const ek_op *op)
{
    ek_backward *bw = self;
    const ek_forward *f = bw->forward;
    ek_layer_args a = ek_layer_args_of(f, op);
    int64_t n = a.mb->all, hd = a.s->head_dim;

    if (ek_attention_has_no_heads(&a))
        return EK_OK;
    a.k->widenorm_backward(n, a.q, a.s->heads * hd, f->norm_sums, a.w->q_norm.p, a.y->q_raw,
                           a.y->q_rstd, bw->dqkv, a.width, a.w->q_norm.g);
    a.k->widenorm_backward(n, a.kv, a.s->kv_heads * hd, ek_attention_key_sums(f, &a), a.w->k_norm.p,
                           a.y->k_raw, a.y->k_rstd, ek_layer_element(&a, bw->dqkv, a.q), a.width,
                           a.w->k_norm.g);
    if (a.s->qkv_bias)
        a.k->bias_backward(n, a.width, bw->dqkv, a.width, a.w->qkv_bias.g);
    return EK_OK;
}

static ek_status op_qkv_weight(void *self, const ek_op *op)
{
    ek_backward *bw = self;
    ek_forward *f = bw->forward;
    ek_layer_args a = ek_layer_args_of(f, op);

    if (ek_attention_has_no_heads(&a))
        return EK_OK;
    f->group = (ek_group){0, a.mb->all, a.w->qkv.backward, a.w->qkv.g};
    return a.k->linear_backward_weight(a.k, &f->group, 1, a.width, a.d, bw->dqkv, a.width,
                                       ek_attention_input(&a), a.d, f->ws);
}

static ek_status op_qkv_input(void *self, const ek_op *op)
{
    ek_backward *bw = self;
    ek_forward *f = bw->forward;
    ek_layer_args a = ek_layer_args_of(f, op);

    if (ek_attention_has_no_heads(&a)) {
        if (a.tp != NULL)
            ek_tp_no_sum(a.tp, op);
        return EK_OK;
    }
    f->group = (ek_group){0, a.mb->all, a.w->qkv.backward, a.w->qkv.g};
    return a.k->linear_backward_input(a.k, &f->group, 1, a.width, a.d, bw->dqkv, a.width,
                                      a.tp != NULL ? a.tp->sum : bw->dy, a.d, EK_OUT_REAL, f->ws);
}

static ek_status op_qkv_backward(void *self, const ek_op *op)
{
    EK_TRY(op_qkv_weight(self, op));
    return op_qkv_input(self, op);
}

static ek_status op_norm1_backward(void *self, const ek_op *op)
{
    ek_backward *bw = self;
    const ek_forward *f = bw->forward;
    ek_layer_args a = ek_layer_args_of(f, op);
    const void *dy =
        a.tp == NULL ? bw->dy : ek_tp_own(a.tp, op, a.tp->sum, a.d, ek_dtype_size(a.k->real));

    a.k->rmsnorm_backward(a.mb->n, a.d, a.x_in, a.w->norm1.p, a.y->rstd1, dy, bw->dx, a.w->norm1.g,
                          f->ws);
    return EK_OK;
}

/* --- builders --------------------------------------------------------------------------------- */

/* Adds one compute op of layer l after `dep`, and after `net` unless that is negative. */
static int32_t add_op_after(ek_backward *bw, ek_graph *g, ek_op_kind kind, ek_op_fn run, int32_t l,
                            int32_t micro, int recompute, ek_work work, double bytes, int32_t dep,
                            int32_t net)
{
    ek_op op = ek_layer_op(bw->forward, bw, kind, run, l, micro, work, bytes);

    op.recompute = recompute;
    return ek_graph_add(g, &op, (int32_t[]){dep, net}, 2);
}

static int32_t add_op(ek_backward *bw, ek_graph *g, ek_op_kind kind, ek_op_fn run, int32_t l,
                      int32_t micro, int recompute, ek_work work, double bytes, int32_t dep)
{
    return add_op_after(bw, g, kind, run, l, micro, recompute, work, bytes, dep, -1);
}

/* Attention backward up to its heads, from the gradient of its output. *y_gathered: the op that
 * provides the input of the query, key and value product; -1 if it is stored. */
static int32_t build_attention_backward(ek_backward *bw, ek_graph *g, int32_t l, int32_t micro,
                                        int32_t dep, int32_t *y_gathered)
{
    ek_forward *f = bw->forward;
    ek_tp *tp = f->tp;
    ek_layer_sizes z = ek_layer_sizes_of(f, micro);
    const int32_t both = EK_PRODUCT_INPUT | EK_PRODUCT_WEIGHT;
    ek_work heads = ek_work_of_rows(z.all, z.width);

    *y_gathered = -1;
    if (tp != NULL) {
        int32_t start = add_op(bw, g, EK_OP_ATTENTION_GRADIENT, op_gradient, l, micro, 0,
                               ek_work_of_rows(z.n, z.d), z.n * z.d * (z.r + 3 * z.c), dep);

        dep = ek_tp_build_gather_dy(tp, g, l, micro, start);
        if (bw->recompute != EK_RECOMPUTE_ATTENTION)
            *y_gathered = ek_tp_build_gather_y(tp, g, l, micro, 0, start);
    }
    dep = add_op(
        bw, g, EK_OP_ATTENTION_OUT_BACKWARD, op_out_backward, l, micro, 0,
        ek_work_of_product(ek_product_of(z.all, z.d, z.q, both)),
        z.all * z.d * (z.r + 2 * z.c) + 2 * z.all * z.q * z.c + z.d * z.q * (z.c + 2 * z.r), dep);
    dep = add_op(bw, g, EK_OP_ATTENTION_BACKWARD, op_attention_backward, l, micro, 0,
                 ek_attention_work_of(f, micro, 1), z.all * (2 * z.width + 3 * z.q) * z.c, dep);
    if (!ek_attention_norms_are_sharded(f))
        return add_op(bw, g, EK_OP_ROPE_BACKWARD, op_rope_backward, l, micro, 0, heads,
                      2 * z.all * z.width * z.c, dep);
    dep = add_op(bw, g, EK_OP_ROPE_BACKWARD, op_norm_dots, l, micro, 0, heads,
                 3 * z.all * z.width * z.c, dep);
    dep = ek_attention_build_reduce_norms(f, g, l, micro, 0, dep);
    return add_op(bw, g, EK_OP_NORM_BACKWARD, op_norm_spread_backward, l, micro, 0, heads,
                  3 * z.all * z.width * z.c, dep);
}

/* Input gradient first: its reduce-scatter overlaps with the weight gradient. */
static int32_t build_qkv_backward(ek_backward *bw, ek_graph *g, int32_t l, int32_t micro,
                                  int32_t dep, int32_t y_gathered)
{
    const ek_forward *f = bw->forward;
    ek_tp *tp = f->tp;
    ek_layer_sizes z = ek_layer_sizes_of(f, micro);
    double input = z.all * z.width * z.c + z.all * z.d * z.r + z.d * z.width * z.c;
    double weight = z.all * (z.width + z.d) * z.c + 2 * z.d * z.width * z.r;
    ek_product to_input = ek_product_of(z.all, z.width, z.d, EK_PRODUCT_INPUT);
    ek_product to_weight = ek_product_of(z.all, z.width, z.d, EK_PRODUCT_WEIGHT);
    ek_product both = ek_product_of(z.all, z.width, z.d, EK_PRODUCT_INPUT | EK_PRODUCT_WEIGHT);
    ek_work norm = ek_work_of_rows(z.n, z.d);
    int32_t sum;

    if (tp == NULL) {
        dep = add_op(bw, g, EK_OP_QKV_BACKWARD, op_qkv_backward, l, micro, 0,
                     ek_work_of_product(both), input + weight, dep);
        return add_op(bw, g, EK_OP_NORM_BACKWARD, op_norm1_backward, l, micro, 0, norm,
                      4 * z.n * z.d * z.r, dep);
    }
    dep = add_op(bw, g, EK_OP_QKV_INPUT, op_qkv_input, l, micro, 0, ek_work_of_product(to_input),
                 input, dep);
    sum = ek_tp_build_reduce_sum(tp, g, l, micro, 0, dep);
    dep = add_op_after(bw, g, EK_OP_QKV_WEIGHT, op_qkv_weight, l, micro, 0,
                       ek_work_of_product(to_weight), weight, dep, y_gathered);
    return add_op_after(bw, g, EK_OP_NORM_BACKWARD, op_norm1_backward, l, micro, 0, norm,
                        4 * z.n * z.d * z.r, dep, sum);
}

/* The MoE layer whose replicas may be sent for backward during that of layer l: the next routed one
 * of the virtual stage, if its weights are present. */
static ek_moe *next_moe(const ek_backward *bw, int32_t l)
{
    const ek_model *m = bw->forward->model;
    int32_t first = (int32_t)ek_model_vstage_first(m, ek_model_vstage_of(m, l));
    int32_t next = ek_model_last_moe(m, first, l);

    return next >= 0 && bw->recompute != EK_RECOMPUTE_FULL && m->cfg.zero < 3 ? &bw->moe[next]
                                                                              : NULL;
}

int32_t ek_layer_build_backward(ek_backward *bw, ek_graph *g, int32_t l, int32_t micro, int32_t dep)
{
    ek_forward *f = bw->forward;
    ek_layer_sizes z = ek_layer_sizes_of(f, micro);
    int32_t y_gathered;

    if (bw->recompute == EK_RECOMPUTE_FULL)
        dep = ek_layer_build_forward(f, &bw->moe[l], g, l, micro, bw->recompute, dep);
    else
        dep = add_op(bw, g, EK_OP_NORM_RECOMPUTE, op_norm2_recompute, l, micro, 1,
                     ek_work_of_rows(z.n, z.d), 2 * z.n * z.d * z.r, dep);
    bw->moe[l].ids.next_backward = next_moe(bw, l);
    dep = ek_moe_build_backward(&bw->moe[l], g, micro, f->micro[micro].n, dep);
    dep = add_op(bw, g, EK_OP_NORM_BACKWARD, op_norm2_backward, l, micro, 0,
                 ek_work_of_rows(z.n, z.d), 4 * z.n * z.d * z.r, dep);
    if (bw->recompute == EK_RECOMPUTE_ATTENTION)
        dep = ek_layer_build_forward(f, &bw->moe[l], g, l, micro, bw->recompute, dep);
    dep = build_attention_backward(bw, g, l, micro, dep, &y_gathered);
    return build_qkv_backward(bw, g, l, micro, dep, y_gathered);
}
