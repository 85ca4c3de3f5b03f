/* The ops of one transformer layer: norm, query/key/value, attention, output, norm, experts.
 *
 * Attention processes all tokens of the data parallel rank with this rank's heads; norms and the
 * residual stream process this rank's tokens.  With one tensor parallel rank both are the same, and
 * the network ops between them are not built (p->scratch.tp is NULL). */
#include "exec/net.h"
#include "model/pass.h"
#include "moe/tp.h"

#include <math.h>
#include <string.h>

/* Adds one compute op of layer l after `dep`, and after `net` unless that is negative. */
static int32_t add_op_after(ek_pass *p, ek_graph *g, ek_op_kind kind, ek_op_fn run, int32_t l,
                            int32_t micro, int recompute, double flops, double bytes, int32_t dep,
                            int32_t net)
{
    ek_op op = {.kind = kind,
                .run = run,
                .self = p,
                .lane = EK_LANE_COMPUTE,
                .layer = l,
                .micro = micro,
                .part = -1,
                .recompute = recompute,
                .async = p->scratch.tp == NULL,
                .flops = flops,
                .bytes = bytes};

    return ek_graph_add(g, &op, (int32_t[]){dep, net}, 2);
}

static int32_t add_op(ek_pass *p, ek_graph *g, ek_op_kind kind, ek_op_fn run, int32_t l,
                      int32_t micro, int recompute, double flops, double bytes, int32_t dep)
{
    return add_op_after(p, g, kind, run, l, micro, recompute, flops, bytes, dep, -1);
}

/* Sizes, weights and activations that the ops of a layer use. */
typedef struct {
    const ek_kernels *k;
    const ek_model_spec *s;
    const ek_local_sizes *local;
    const ek_tp *tp; /* NULL: one tensor parallel rank */
    const ek_micro *mb;
    ek_layer *w;
    ek_layer_activations *y;
    int64_t d, q, kv, width; /* hidden; of this rank: query width, key width, q + 2 kv */
    void *x_in, *x_mid, *x_out;
} op_args;

static op_args args_of(ek_pass *p, const ek_op *op)
{
    const ek_model_spec *s = &p->model->spec;
    const ek_local_sizes *local = &p->model->local;
    int64_t q = local->heads * s->head_dim, kv = local->kv_heads * s->head_dim;

    return (op_args){p->model->k,
                     s,
                     local,
                     p->scratch.tp,
                     &p->micro[op->micro],
                     &p->model->layers[op->layer],
                     ek_pass_activations(p, op->layer, op->micro),
                     s->hidden,
                     q,
                     kv,
                     q + 2 * kv,
                     ek_pass_x(p, 2 * op->layer, op->micro),
                     ek_pass_x(p, 2 * op->layer + 1, op->micro),
                     ek_pass_x(p, 2 * op->layer + 2, op->micro)};
}

static ek_attention attention_of(const op_args *a)
{
    return (ek_attention){a->mb->seqs,
                          a->mb->seq,
                          a->local->heads,
                          a->local->kv_heads,
                          a->s->head_dim,
                          a->width,
                          1.0 / sqrt((double)a->s->head_dim),
                          a->mb->starts};
}

/* y = x, both R [n, d]. */
static void copy_real(const op_args *a, void *y, const void *x)
{
    int64_t row = a->d * (int64_t)ek_dtype_size(a->k->real);

    a->k->copy_rows(a->mb->n, row, x, row, y, row);
}

/* Whether this rank has no attention heads: with more ranks than key heads some have none. */
static int has_no_heads(const op_args *a)
{
    return a->width == 0 || a->mb->all == 0;
}

/* The input of the query, key and value product. */
static const void *qkv_input(const op_args *a)
{
    return a->tp != NULL ? a->tp->y : a->y->y1;
}

static char *element_at(const op_args *a, void *comp, int64_t elements)
{
    return (char *)comp + elements * (int64_t)ek_dtype_size(a->k->comp);
}

/* --- forward --------------------------------------------------------------------------------- */

static ek_status op_norm1(void *self, const ek_op *op)
{
    ek_pass *p = self;
    op_args a = args_of(p, op);

    a.k->rmsnorm_forward(a.mb->n, a.d, a.s->rms_eps, a.x_in, a.w->norm1.p, a.y->y1, NULL,
                         a.y->rstd1);
    if (a.tp != NULL)
        ek_tp_put(a.tp, op, a.tp->y, a.y->y1, a.k->comp);
    return EK_OK;
}

static ek_status op_qkv(void *self, const ek_op *op)
{
    ek_pass *p = self;
    op_args a = args_of(p, op);

    if (has_no_heads(&a))
        return EK_OK;
    p->group = (ek_group){0, a.mb->all, a.w->qkv.forward, NULL};
    EK_TRY(a.k->linear_forward(a.k, &p->group, 1, a.width, a.d, qkv_input(&a), a.d, a.y->qkv,
                               a.width, EK_OUT_COMP, p->ws));
    if (a.s->qkv_bias)
        a.k->bias_forward(a.mb->all, a.width, a.w->qkv_bias.p, a.y->qkv, a.width);
    return EK_OK;
}

/* Query and key norms count OLMoE's full width as one head. */
static int64_t norm_heads(const op_args *a, int64_t heads)
{
    return a->s->qk_norm == EK_QK_NORM_HEAD ? heads : 1;
}

/* Whether that head is sharded over ranks, so that its sums are all-reduced. */
static int norms_are_sharded(const ek_pass *p)
{
    return p->scratch.tp != NULL && p->model->spec.qk_norm == EK_QK_NORM_FULL;
}

/* Sums of the key rows, stored after those of the query rows. */
static double *key_sums(const ek_pass *p, const op_args *a)
{
    return p->norm_sums + a->mb->all;
}

static ek_status op_norm_squares(void *self, const ek_op *op)
{
    ek_pass *p = self;
    op_args a = args_of(p, op);

    memset(p->norm_sums, 0, (size_t)(2 * a.mb->all) * sizeof(double));
    if (has_no_heads(&a))
        return EK_OK;
    a.k->widenorm_squares(a.mb->all, a.q, a.y->qkv, a.width, p->norm_sums);
    a.k->widenorm_squares(a.mb->all, a.kv, element_at(&a, a.y->qkv, a.q), a.width, key_sums(p, &a));
    return EK_OK;
}

static ek_status op_reduce_norms(void *self, const ek_op *op)
{
    ek_pass *p = self;
    op_args a = args_of(p, op);

    if (!ek_net_started(op))
        EK_TRY(ek_comm_all_reduce(a.tp->mesh->tp_group, p->norm_sums, 2 * a.mb->all, EK_SUM_F64,
                                  ek_net_cell(op)));
    return ek_net_test(op);
}

static void qk_norms(ek_pass *p, const op_args *a)
{
    void *keys = element_at(a, a->y->qkv, a->q);
    int64_t n = a->mb->all;

    if (norms_are_sharded(p)) {
        a->k->widenorm_forward(n, a->q, a->s->heads * a->s->head_dim, a->s->rms_eps, p->norm_sums,
                               a->w->q_norm.p, a->y->qkv, a->width, a->y->q_raw, a->y->q_rstd);
        a->k->widenorm_forward(n, a->kv, a->s->kv_heads * a->s->head_dim, a->s->rms_eps,
                               key_sums(p, a), a->w->k_norm.p, keys, a->width, a->y->k_raw,
                               a->y->k_rstd);
        return;
    }
    a->k->headnorm_forward(n, norm_heads(a, a->local->heads), a->w->q_norm.out, a->s->rms_eps,
                           a->w->q_norm.p, a->y->qkv, a->width, a->y->q_raw, a->y->q_rstd);
    a->k->headnorm_forward(n, norm_heads(a, a->local->kv_heads), a->w->k_norm.out, a->s->rms_eps,
                           a->w->k_norm.p, keys, a->width, a->y->k_raw, a->y->k_rstd);
}

static ek_status op_rope(void *self, const ek_op *op)
{
    ek_pass *p = self;
    op_args a = args_of(p, op);

    if (has_no_heads(&a))
        return EK_OK;
    if (a.s->qk_norm != EK_QK_NORM_NONE)
        qk_norms(p, &a);
    a.k->rope(a.mb->all, a.mb->seq, 0, a.local->heads + a.local->kv_heads, a.s->head_dim,
              p->cos_sin, 0, a.y->qkv, a.width);
    return EK_OK;
}

static ek_status op_attention(void *self, const ek_op *op)
{
    ek_pass *p = self;
    op_args a = args_of(p, op);
    ek_attention shape = attention_of(&a);

    if (!has_no_heads(&a))
        a.k->attention_forward(&shape, a.y->qkv, a.y->o, a.y->lse, p->ws);
    return EK_OK;
}

static ek_status op_out(void *self, const ek_op *op)
{
    ek_pass *p = self;
    op_args a = args_of(p, op);

    copy_real(&a, a.x_mid, a.x_in);
    p->group = (ek_group){0, a.mb->n, a.w->out.forward, NULL};
    return a.k->linear_forward(a.k, &p->group, 1, a.d, a.q, a.y->o, a.q, a.x_mid, a.d, EK_OUT_ADD,
                               p->ws);
}

/* This rank's heads only. */
static ek_status op_out_part(void *self, const ek_op *op)
{
    ek_pass *p = self;
    op_args a = args_of(p, op);

    if (has_no_heads(&a)) {
        ek_tp_no_sum(a.tp, op);
        return EK_OK;
    }
    p->group = (ek_group){0, a.mb->all, a.w->out.forward, NULL};
    return a.k->linear_forward(a.k, &p->group, 1, a.d, a.q, a.y->o, a.q, a.tp->sum, a.d,
                               EK_OUT_REAL, p->ws);
}

static ek_status op_out_add(void *self, const ek_op *op)
{
    ek_pass *p = self;
    op_args a = args_of(p, op);

    ek_tp_add_own(a.tp, op, a.x_in, a.x_mid);
    return EK_OK;
}

/* The experts' input norm, also as R for the router. */
static void norm2(ek_pass *p, const op_args *a)
{
    void *y_real = a->k->comp == a->k->real ? NULL : p->scratch.y_real;

    a->k->rmsnorm_forward(a->mb->n, a->d, a->s->rms_eps, a->x_mid, a->w->norm2.p, a->y->y2, y_real,
                          a->y->rstd2);
}

static ek_status op_norm2(void *self, const ek_op *op)
{
    ek_pass *p = self;
    op_args a = args_of(p, op);

    norm2(p, &a);
    if (!op->recompute)
        copy_real(&a, a.x_out, a.x_mid);
    return EK_OK;
}

/* Sizes for the ops' FLOPs and bytes. */
typedef struct {
    double n, all, d, q, width, c, r;
} sizes;

static sizes sizes_of(const ek_pass *p, int32_t micro)
{
    const ek_model_spec *s = &p->model->spec;
    const ek_micro *mb = &p->micro[micro];
    double q = (double)(p->model->local.heads * s->head_dim);

    return (sizes){(double)mb->n,
                   (double)mb->all,
                   (double)s->hidden,
                   q,
                   q + 2 * (double)(p->model->local.kv_heads * s->head_dim),
                   (double)ek_dtype_size(p->model->k->comp),
                   (double)ek_dtype_size(p->model->k->real)};
}

/* Unmasked pairs of a query and a key, of one head. */
static double attention_pairs(const ek_pass *p, int32_t micro)
{
    const ek_micro *mb = &p->micro[micro];
    int64_t n = mb->all * (mb->seq + 1) / 2;

    for (int64_t i = 0; mb->starts != NULL && i < mb->all; i++)
        n -= mb->starts[i];
    return (double)n;
}

static int32_t build_reduce_norms(ek_pass *p, ek_graph *g, int32_t l, int32_t micro, int recompute,
                                  int32_t dep)
{
    ek_op op = ek_tp_net_op(p->scratch.tp, EK_OP_ALL_REDUCE_NORMS, op_reduce_norms, p, l, micro, 2,
                            sizeof(double));

    op.bytes *= 2; /* reduce and broadcast */
    op.recompute = recompute;
    return ek_graph_after(g, &op, dep);
}

static int32_t build_out(ek_pass *p, ek_graph *g, int32_t l, int32_t micro, int recompute,
                         int32_t dep)
{
    ek_tp *tp = p->scratch.tp;
    sizes z = sizes_of(p, micro);

    dep = add_op(p, g, EK_OP_ATTENTION_OUT, tp == NULL ? op_out : op_out_part, l, micro, recompute,
                 2 * z.all * z.d * z.q, z.all * z.q * z.c + 4 * z.all * z.d * z.r + z.d * z.q * z.c,
                 dep);
    if (tp == NULL)
        return dep;
    dep = ek_tp_build_reduce_sum(tp, g, l, micro, recompute, dep);
    return add_op(p, g, EK_OP_ATTENTION_ADD, op_out_add, l, micro, recompute, 0,
                  3 * z.n * z.d * z.r, dep);
}

int32_t ek_layer_build_forward(ek_pass *p, ek_graph *g, int32_t l, int32_t micro, int recompute,
                               int32_t dep)
{
    sizes z = sizes_of(p, micro);
    int only_attention = recompute && p->cfg.recompute == EK_RECOMPUTE_ATTENTION;

    dep = add_op(p, g, EK_OP_NORM, op_norm1, l, micro, recompute, 0, z.n * z.d * (z.r + z.c), dep);
    if (!recompute)
        ek_moe_build_forward_prefetch(&p->moe[l], g, micro, dep);
    if (p->scratch.tp != NULL)
        dep = ek_tp_build_gather_y(p->scratch.tp, g, l, micro, recompute, dep);
    dep = add_op(p, g, EK_OP_QKV, op_qkv, l, micro, recompute, 2 * z.all * z.d * z.width,
                 (z.all * (z.d + z.width) + z.d * z.width) * z.c, dep);
    if (norms_are_sharded(p)) {
        dep = add_op(p, g, EK_OP_NORM_SQUARES, op_norm_squares, l, micro, recompute, 0,
                     z.all * z.width * z.c, dep);
        dep = build_reduce_norms(p, g, l, micro, recompute, dep);
    }
    dep = add_op(p, g, EK_OP_ROPE, op_rope, l, micro, recompute, 0, 2 * z.all * z.width * z.c, dep);
    dep = add_op(p, g, EK_OP_ATTENTION, op_attention, l, micro, recompute,
                 4 * z.q * attention_pairs(p, micro), z.all * (z.width + z.q) * z.c, dep);
    if (only_attention)
        return dep;
    dep = build_out(p, g, l, micro, recompute, dep);
    dep = add_op(p, g, EK_OP_NORM, op_norm2, l, micro, recompute, 0, z.n * z.d * (4 * z.r + z.c),
                 dep);
    return ek_moe_build_forward(&p->moe[l], g, micro, p->micro[micro].n, recompute, dep);
}

/* --- backward -------------------------------------------------------------------------------- */

/* The experts' input as R, for the router's gradient. */
static ek_status op_norm2_recompute(void *self, const ek_op *op)
{
    ek_pass *p = self;
    op_args a = args_of(p, op);

    if (a.k->comp != a.k->real)
        a.k->rmsnorm_forward(a.mb->n, a.d, a.s->rms_eps, a.x_mid, a.w->norm2.p, NULL,
                             p->scratch.y_real, a.y->rstd2);
    return EK_OK;
}

static ek_status op_norm2_backward(void *self, const ek_op *op)
{
    ek_pass *p = self;
    op_args a = args_of(p, op);

    a.k->rmsnorm_backward(a.mb->n, a.d, a.x_mid, a.w->norm2.p, a.y->rstd2, p->scratch.dy, p->dx,
                          a.w->norm2.g, p->ws);
    return EK_OK;
}

/* This rank's rows for the all-gathers of attention's backward: the gradient of its output, and its
 * input recomputed, unless recomputation has just stored that. */
static ek_status op_gradient(void *self, const ek_op *op)
{
    ek_pass *p = self;
    op_args a = args_of(p, op);

    ek_tp_put_comp(a.tp, op, a.tp->dy, p->dx);
    if (p->cfg.recompute != EK_RECOMPUTE_ATTENTION)
        ek_tp_put(a.tp, op, a.tp->y, a.y->y1, a.k->comp);
    return EK_OK;
}

static ek_status op_out_backward(void *self, const ek_op *op)
{
    ek_pass *p = self;
    op_args a = args_of(p, op);
    void *dy = a.tp != NULL ? a.tp->dy : p->dy_comp;

    if (has_no_heads(&a))
        return EK_OK;
    if (a.tp == NULL)
        a.k->to_comp(a.mb->all, a.d, p->dx, dy);
    p->group = (ek_group){0, a.mb->all, a.w->out.backward, a.w->out.g};
    EK_TRY(a.k->linear_backward_weight(a.k, &p->group, 1, a.d, a.q, dy, a.d, a.y->o, a.q, p->ws));
    return a.k->linear_backward_input(a.k, &p->group, 1, a.d, a.q, dy, a.d, p->d_o, a.q,
                                      EK_OUT_COMP, p->ws);
}

static ek_status op_attention_backward(void *self, const ek_op *op)
{
    ek_pass *p = self;
    op_args a = args_of(p, op);
    ek_attention shape = attention_of(&a);

    if (!has_no_heads(&a))
        a.k->attention_backward(&shape, a.y->qkv, a.y->o, a.y->lse, p->d_o, p->dqkv, p->ws);
    return EK_OK;
}

static void rope_backward(ek_pass *p, const op_args *a)
{
    a->k->rope(a->mb->all, a->mb->seq, 0, a->local->heads + a->local->kv_heads, a->s->head_dim,
               p->cos_sin, 1, p->dqkv, a->width);
}

static ek_status op_rope_backward(void *self, const ek_op *op)
{
    ek_pass *p = self;
    op_args a = args_of(p, op);

    if (has_no_heads(&a))
        return EK_OK;
    rope_backward(p, &a);
    if (a.s->qk_norm != EK_QK_NORM_NONE) {
        a.k->headnorm_backward(a.mb->all, norm_heads(&a, a.local->heads), a.w->q_norm.out,
                               a.w->q_norm.p, a.y->q_raw, a.y->q_rstd, p->dqkv, a.width,
                               a.w->q_norm.g, p->ws);
        a.k->headnorm_backward(a.mb->all, norm_heads(&a, a.local->kv_heads), a.w->k_norm.out,
                               a.w->k_norm.p, a.y->k_raw, a.y->k_rstd, element_at(&a, p->dqkv, a.q),
                               a.width, a.w->k_norm.g, p->ws);
    }
    if (a.s->qkv_bias)
        a.k->bias_backward(a.mb->all, a.width, p->dqkv, a.width, a.w->qkv_bias.g);
    return EK_OK;
}

/* The same in two steps, for norms that are sharded over ranks. */
static ek_status op_norm_dots(void *self, const ek_op *op)
{
    ek_pass *p = self;
    op_args a = args_of(p, op);

    memset(p->norm_sums, 0, (size_t)(2 * a.mb->all) * sizeof(double));
    if (has_no_heads(&a))
        return EK_OK;
    rope_backward(p, &a);
    a.k->widenorm_dots(a.mb->all, a.q, a.w->q_norm.p, a.y->q_raw, p->dqkv, a.width, p->norm_sums);
    a.k->widenorm_dots(a.mb->all, a.kv, a.w->k_norm.p, a.y->k_raw, element_at(&a, p->dqkv, a.q),
                       a.width, key_sums(p, &a));
    return EK_OK;
}

static ek_status op_norm_spread_backward(void *self, const ek_op *op)
{
    ek_pass *p = self;
    op_args a = args_of(p, op);
    int64_t n = a.mb->all, hd = a.s->head_dim;

    if (has_no_heads(&a))
        return EK_OK;
    a.k->widenorm_backward(n, a.q, a.s->heads * hd, p->norm_sums, a.w->q_norm.p, a.y->q_raw,
                           a.y->q_rstd, p->dqkv, a.width, a.w->q_norm.g);
    a.k->widenorm_backward(n, a.kv, a.s->kv_heads * hd, key_sums(p, &a), a.w->k_norm.p, a.y->k_raw,
                           a.y->k_rstd, element_at(&a, p->dqkv, a.q), a.width, a.w->k_norm.g);
    if (a.s->qkv_bias)
        a.k->bias_backward(n, a.width, p->dqkv, a.width, a.w->qkv_bias.g);
    return EK_OK;
}

static ek_status op_qkv_weight(void *self, const ek_op *op)
{
    ek_pass *p = self;
    op_args a = args_of(p, op);

    if (has_no_heads(&a))
        return EK_OK;
    p->group = (ek_group){0, a.mb->all, a.w->qkv.backward, a.w->qkv.g};
    return a.k->linear_backward_weight(a.k, &p->group, 1, a.width, a.d, p->dqkv, a.width,
                                       qkv_input(&a), a.d, p->ws);
}

static ek_status op_qkv_input(void *self, const ek_op *op)
{
    ek_pass *p = self;
    op_args a = args_of(p, op);

    if (has_no_heads(&a)) {
        if (a.tp != NULL)
            ek_tp_no_sum(a.tp, op);
        return EK_OK;
    }
    p->group = (ek_group){0, a.mb->all, a.w->qkv.backward, a.w->qkv.g};
    return a.k->linear_backward_input(a.k, &p->group, 1, a.width, a.d, p->dqkv, a.width,
                                      a.tp != NULL ? a.tp->sum : p->dy, a.d, EK_OUT_REAL, p->ws);
}

static ek_status op_qkv_backward(void *self, const ek_op *op)
{
    EK_TRY(op_qkv_weight(self, op));
    return op_qkv_input(self, op);
}

static ek_status op_norm1_backward(void *self, const ek_op *op)
{
    ek_pass *p = self;
    op_args a = args_of(p, op);
    const void *dy =
        a.tp == NULL ? p->dy : ek_tp_own(a.tp, op, a.tp->sum, a.d, ek_dtype_size(a.k->real));

    a.k->rmsnorm_backward(a.mb->n, a.d, a.x_in, a.w->norm1.p, a.y->rstd1, dy, p->dx, a.w->norm1.g,
                          p->ws);
    return EK_OK;
}

/* Attention backward up to its heads, from the gradient of its output. *y_gathered: the op that
 * provides the input of the query, key and value product; -1 if it is stored. */
static int32_t build_attention_backward(ek_pass *p, ek_graph *g, int32_t l, int32_t micro,
                                        int32_t dep, int32_t *y_gathered)
{
    ek_tp *tp = p->scratch.tp;
    sizes z = sizes_of(p, micro);

    *y_gathered = -1;
    if (tp != NULL) {
        int32_t start = add_op(p, g, EK_OP_ATTENTION_GRADIENT, op_gradient, l, micro, 0, 0,
                               z.n * z.d * (z.r + 3 * z.c), dep);

        dep = ek_tp_build_gather_dy(tp, g, l, micro, start);
        if (p->cfg.recompute != EK_RECOMPUTE_ATTENTION)
            *y_gathered = ek_tp_build_gather_y(tp, g, l, micro, 0, start);
    }
    dep = add_op(
        p, g, EK_OP_ATTENTION_OUT_BACKWARD, op_out_backward, l, micro, 0, 4 * z.all * z.d * z.q,
        z.all * z.d * (z.r + 2 * z.c) + 2 * z.all * z.q * z.c + z.d * z.q * (z.c + 2 * z.r), dep);
    dep = add_op(p, g, EK_OP_ATTENTION_BACKWARD, op_attention_backward, l, micro, 0,
                 8 * z.q * attention_pairs(p, micro), z.all * (2 * z.width + 3 * z.q) * z.c, dep);
    if (!norms_are_sharded(p))
        return add_op(p, g, EK_OP_ROPE_BACKWARD, op_rope_backward, l, micro, 0, 0,
                      2 * z.all * z.width * z.c, dep);
    dep = add_op(p, g, EK_OP_ROPE_BACKWARD, op_norm_dots, l, micro, 0, 0, 3 * z.all * z.width * z.c,
                 dep);
    dep = build_reduce_norms(p, g, l, micro, 0, dep);
    return add_op(p, g, EK_OP_NORM_BACKWARD, op_norm_spread_backward, l, micro, 0, 0,
                  3 * z.all * z.width * z.c, dep);
}

/* Input gradient first: its reduce-scatter overlaps with the weight gradient. */
static int32_t build_qkv_backward(ek_pass *p, ek_graph *g, int32_t l, int32_t micro, int32_t dep,
                                  int32_t y_gathered)
{
    ek_tp *tp = p->scratch.tp;
    sizes z = sizes_of(p, micro);
    double input = z.all * z.width * z.c + z.all * z.d * z.r + z.d * z.width * z.c;
    double weight = z.all * (z.width + z.d) * z.c + 2 * z.d * z.width * z.r;
    double flops = 2 * z.all * z.d * z.width;
    int32_t sum;

    if (tp == NULL) {
        dep = add_op(p, g, EK_OP_QKV_BACKWARD, op_qkv_backward, l, micro, 0, 2 * flops,
                     input + weight, dep);
        return add_op(p, g, EK_OP_NORM_BACKWARD, op_norm1_backward, l, micro, 0, 0,
                      4 * z.n * z.d * z.r, dep);
    }
    dep = add_op(p, g, EK_OP_QKV_INPUT, op_qkv_input, l, micro, 0, flops, input, dep);
    sum = ek_tp_build_reduce_sum(tp, g, l, micro, 0, dep);
    dep = add_op_after(p, g, EK_OP_QKV_WEIGHT, op_qkv_weight, l, micro, 0, flops, weight, dep,
                       y_gathered);
    return add_op_after(p, g, EK_OP_NORM_BACKWARD, op_norm1_backward, l, micro, 0, 0,
                        4 * z.n * z.d * z.r, dep, sum);
}

/* Whether layer l - 1 is the next whose experts run, with weights that are already present. */
static int comes_next(const ek_pass *p, int32_t l)
{
    return l > 0 && ek_model_has_layer(p->model, l - 1) &&
           ek_model_vstage_of(p->model, l - 1) == ek_model_vstage_of(p->model, l) &&
           p->cfg.recompute != EK_RECOMPUTE_FULL && p->model->cfg.zero < 3;
}

int32_t ek_layer_build_backward(ek_pass *p, ek_graph *g, int32_t l, int32_t micro, int32_t dep)
{
    sizes z = sizes_of(p, micro);
    int32_t y_gathered;

    if (p->cfg.recompute == EK_RECOMPUTE_FULL)
        dep = ek_layer_build_forward(p, g, l, micro, 1, dep);
    else
        dep = add_op(p, g, EK_OP_NORM_RECOMPUTE, op_norm2_recompute, l, micro, 1, 0,
                     2 * z.n * z.d * z.r, dep);
    dep = ek_moe_build_backward(&p->moe[l], g, micro, p->micro[micro].n, dep);
    if (comes_next(p, l))
        ek_moe_build_backward_prefetch(&p->moe[l - 1], g, micro, dep);
    dep = add_op(p, g, EK_OP_NORM_BACKWARD, op_norm2_backward, l, micro, 0, 0, 4 * z.n * z.d * z.r,
                 dep);
    if (p->cfg.recompute == EK_RECOMPUTE_ATTENTION)
        dep = ek_layer_build_forward(p, g, l, micro, 1, dep);
    dep = build_attention_backward(p, g, l, micro, dep, &y_gathered);
    return build_qkv_backward(p, g, l, micro, dep, y_gathered);
}
