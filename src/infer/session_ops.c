/* The forward step of a session as ops: embedding, layers with the cache, logits of the last row.
 *
 * Like model/blocks/layer.c, but the residual stream is updated in place, and keys and values are
 * written to the cache, where attention reads them. */
#include "infer/session_priv.h"

#include <math.h>

/* Sizes and weights that the ops use. */
typedef struct {
    const ek_kernels *k;
    const ek_model_spec *m;
    ek_layer *w;             /* NULL outside layers */
    int64_t n;               /* rows */
    int64_t d, q, kv, width; /* hidden, query width, key width, q + 2 kv */
    double real, comp;       /* bytes of R and C */
} op_args;

static op_args args_of(const ek_session *s, int32_t layer)
{
    const ek_model_spec *m = &s->model->spec;
    const ek_kernels *k = s->model->k;
    int64_t q = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim;

    return (op_args){k,
                     m,
                     layer >= 0 ? &s->model->layers[layer] : NULL,
                     s->micro.n,
                     m->hidden,
                     q,
                     kv,
                     q + 2 * kv,
                     (double)ek_dtype_size(k->real),
                     (double)ek_dtype_size(k->comp)};
}

/* x advanced by `elements` of a type. */
static void *element_at(ek_dtype type, void *x, int64_t elements)
{
    return (char *)x + elements * (int64_t)ek_dtype_size(type);
}

static ek_status op_embed(void *self, const ek_op *op)
{
    ek_session *s = self;
    op_args a = args_of(s, -1);

    (void)op;
    a.k->embed_forward(a.n, a.d, s->micro.inputs, s->model->embed.p, s->x);
    return EK_OK;
}

static ek_status op_norm1(void *self, const ek_op *op)
{
    ek_session *s = self;
    op_args a = args_of(s, op->layer);

    a.k->rmsnorm_forward(a.n, a.d, a.m->rms_eps, s->x, a.w->norm1.p, s->y, NULL, s->rstd);
    return EK_OK;
}

static ek_status op_qkv(void *self, const ek_op *op)
{
    ek_session *s = self;
    op_args a = args_of(s, op->layer);

    s->group = (ek_group){0, a.n, a.w->qkv.forward, NULL};
    EK_TRY(a.k->linear_forward(a.k, &s->group, 1, a.width, a.d, s->y, a.d, s->qkv, a.width,
                               EK_OUT_COMP, s->ws));
    if (a.m->qkv_bias)
        a.k->bias_forward(a.n, a.width, a.w->qkv_bias.p, s->qkv, a.width);
    return EK_OK;
}

/* Query and key norms count OLMoE's full width as one head. */
static void norm_heads(ek_session *s, const op_args *a)
{
    int each = a->m->qk_norm == EK_QK_NORM_HEAD;

    a->k->headnorm_forward(a->n, each ? a->m->heads : 1, a->w->q_norm.out, a->m->rms_eps,
                           a->w->q_norm.p, s->qkv, a->width, NULL, s->rstd);
    a->k->headnorm_forward(a->n, each ? a->m->kv_heads : 1, a->w->k_norm.out, a->m->rms_eps,
                           a->w->k_norm.p, element_at(a->k->comp, s->qkv, a->q), a->width, NULL,
                           s->rstd);
}

/* Norm and rotation of queries and keys; writes keys and values to the cache. */
static ek_status op_rope(void *self, const ek_op *op)
{
    ek_session *s = self;
    op_args a = args_of(s, op->layer);
    ek_dtype c = a.k->comp;
    ek_layer_cache *cache = &s->cache[op->layer];
    int64_t size = (int64_t)ek_dtype_size(c), row = a.kv * size, from_row = a.width * size;

    if (a.m->qk_norm != EK_QK_NORM_NONE)
        norm_heads(s, &a);
    a.k->rope(a.n, a.n, s->first, a.m->heads + a.m->kv_heads, a.m->head_dim, s->cos_sin, 0, s->qkv,
              a.width);
    a.k->copy_rows(a.n, row, element_at(c, s->qkv, a.q), from_row,
                   element_at(c, cache->k, s->first * a.kv), row);
    a.k->copy_rows(a.n, row, element_at(c, s->qkv, a.q + a.kv), from_row,
                   element_at(c, cache->v, s->first * a.kv), row);
    return EK_OK;
}

static ek_status op_attention(void *self, const ek_op *op)
{
    ek_session *s = self;
    op_args a = args_of(s, op->layer);
    ek_attention at = {1,
                       a.n,
                       a.m->heads,
                       a.m->kv_heads,
                       a.m->head_dim,
                       a.width,
                       1.0 / sqrt((double)a.m->head_dim),
                       NULL};

    a.k->attention_cached(&at, a.n, s->first, s->qkv, s->cache[op->layer].k, s->cache[op->layer].v,
                          s->o, s->ws);
    return EK_OK;
}

static ek_status op_out(void *self, const ek_op *op)
{
    ek_session *s = self;
    op_args a = args_of(s, op->layer);

    s->group = (ek_group){0, a.n, a.w->out.forward, NULL};
    return a.k->linear_forward(a.k, &s->group, 1, a.d, a.q, s->o, a.q, s->x, a.d, EK_OUT_ADD,
                               s->ws);
}

/* The experts' input norm, also as R for the router. */
static ek_status op_norm2(void *self, const ek_op *op)
{
    ek_session *s = self;
    op_args a = args_of(s, op->layer);
    void *y_real = a.k->comp == a.k->real ? NULL : s->scratch.y_real;

    a.k->rmsnorm_forward(a.n, a.d, a.m->rms_eps, s->x, a.w->norm2.p, s->y, y_real, s->rstd);
    return EK_OK;
}

static ek_status op_logits(void *self, const ek_op *op)
{
    ek_session *s = self;
    op_args a = args_of(s, -1);

    (void)op;
    a.k->rmsnorm_forward(1, a.d, a.m->rms_eps, element_at(a.k->real, s->x, (a.n - 1) * a.d),
                         s->model->final_norm.p, s->y, NULL, s->rstd);
    s->group = (ek_group){0, 1, s->model->head.forward, NULL};
    return a.k->linear_forward(a.k, &s->group, 1, a.m->vocab, a.d, s->y, a.d, s->logits, a.m->vocab,
                               EK_OUT_REAL, s->ws);
}

/* --- the step -------------------------------------------------------------------------------- */

static int32_t add_op(ek_session *s, ek_op_kind kind, ek_op_fn run, int32_t l, double flops,
                      double bytes, int32_t dep)
{
    ek_op op = {.kind = kind,
                .run = run,
                .self = s,
                .lane = EK_LANE_COMPUTE,
                .layer = l,
                .part = -1,
                .async = 1,
                .flops = flops,
                .bytes = bytes};

    return ek_graph_after(&s->graph, &op, dep);
}

static int32_t build_layer(ek_session *s, int32_t l, int32_t dep)
{
    op_args a = args_of(s, l);
    double n = (double)a.n, d = (double)a.d, q = (double)a.q, kv = (double)a.kv;
    double width = (double)a.width, r = a.real, c = a.comp, first = (double)s->first;

    dep = add_op(s, EK_OP_NORM, op_norm1, l, 0, n * d * (r + c), dep);
    dep =
        add_op(s, EK_OP_QKV, op_qkv, l, 2 * n * d * width, (n * (d + width) + d * width) * c, dep);
    dep = add_op(s, EK_OP_ROPE, op_rope, l, 0, (2 * n * width + 4 * n * kv) * c, dep);
    dep = add_op(s, EK_OP_ATTENTION, op_attention, l, 2 * n * q * (2 * first + n + 1),
                 (2 * n * q + 2 * (first + n) * kv) * c, dep);
    dep = add_op(s, EK_OP_ATTENTION_OUT, op_out, l, 2 * n * d * q,
                 n * q * c + 2 * n * d * r + d * q * c, dep);
    dep = add_op(s, EK_OP_NORM, op_norm2, l, 0, n * d * (r + c), dep);
    return ek_moe_build_forward(&s->moe[l], &s->graph, 0, a.n, 0, dep);
}

ek_status ek_session_build(ek_session *s, int head)
{
    op_args a = args_of(s, -1);
    double n = (double)a.n, d = (double)a.d, v = (double)a.m->vocab;
    int32_t dep;

    ek_graph_reset(&s->graph);
    dep = add_op(s, EK_OP_EMBED, op_embed, -1, 0, 2 * n * d * a.real, -1);
    for (int32_t l = 0; l < (int32_t)a.m->layers; l++) {
        ek_moe_begin_step(&s->moe[l]);
        dep = build_layer(s, l, dep);
    }
    if (head)
        add_op(s, EK_OP_LOGITS, op_logits, -1, 2 * d * v,
               d * (a.real + 2 * a.comp) + v * a.real + d * v * a.comp, dep);
    return ek_graph_check(&s->graph);
}

/* --- bytes read per token --------------------------------------------------------------------- */

/* Bytes of the form of a weight that forward reads; 0 if the model lacks it. */
static double read_bytes(const ek_kernels *k, const ek_weight *w)
{
    size_t packed = w->forward != NULL ? k->packed_bytes(k, w->out, w->in, EK_PACKED_FORWARD) : 0;

    return packed > 0 ? (double)packed
                      : (double)ek_weight_elements(w) * (double)ek_dtype_size(k->real);
}

static double layer_bytes(const ek_kernels *k, const ek_model_spec *m, const ek_layer *y)
{
    const ek_moe_weights *e = &y->experts;
    const ek_weight *each[] = {&e->router_projection,
                               &e->router_scale,
                               &y->norm1,
                               &y->qkv,
                               &y->qkv_bias,
                               &y->q_norm,
                               &y->k_norm,
                               &y->out,
                               &y->norm2,
                               &e->router,
                               &e->bias,
                               &e->shared_up,
                               &e->shared_down,
                               &e->shared_router};
    double sum = 0;

    for (size_t i = 0; i < sizeof(each) / sizeof(each[0]); i++)
        sum += read_bytes(k, each[i]);
    if (e->routed)
        sum += (double)m->top_k * (read_bytes(k, &e->up[0]) + read_bytes(k, &e->down[0]));
    return sum;
}

double ek_session_active_bytes(const ek_session *s, int64_t position)
{
    op_args a = args_of(s, -1);
    const ek_model *m = s->model;
    double cache = 2 * (double)(position + 1) * (double)a.kv * a.comp;
    double sum = (double)a.d * a.real + read_bytes(a.k, &m->final_norm) + read_bytes(a.k, &m->head);

    for (int64_t l = 0; l < a.m->layers; l++)
        sum += cache + layer_bytes(a.k, a.m, &m->layers[l]);
    return sum;
}
