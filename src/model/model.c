/* Weights of a model: one walk lays them out, first to measure, then to take. */
#include "model/model.h"

#include "base/random.h"

#include <stdlib.h>
#include <string.h>

/* The walk's state: what it adds to. */
typedef struct {
    ek_model *m;
    ek_arena *arena;
    int64_t n_params;
} walk;

static void *take_form(walk *w, ek_weight *x, ek_form form)
{
    const ek_kernels *k = w->m->k;
    size_t bytes = k->packed_bytes(k, x->out, x->in, form);

    return bytes > 0 ? ek_arena_take(w->arena, (int64_t)bytes, 1) : x->p;
}

/* One weight.  in == 0: a vector.  forms: it is a side of matrix products. */
static void lay_weight(walk *w, ek_weight *x, int64_t out, int64_t in, int forms, int32_t layer,
                       int32_t expert)
{
    ek_model *m = w->m;
    size_t real = ek_dtype_size(m->k->real);
    int64_t n;

    x->out = out;
    x->in = in;
    n = ek_weight_elements(x);
    x->p = ek_arena_take(w->arena, n, real);
    if (m->trained) {
        x->g = ek_arena_take(w->arena, n, real);
        x->m = ek_arena_take(w->arena, n, real);
        x->v = ek_arena_take(w->arena, n, real);
    }
    if (forms) {
        x->forward = take_form(w, x, EK_FORM_FORWARD);
        if (m->trained)
            x->backward = take_form(w, x, EK_FORM_BACKWARD);
    }
    if (m->params != NULL)
        m->params[w->n_params] = (ek_param){x, layer, expert, in > 0, 1};
    w->n_params++;
    m->n_elements += n;
}

static void lay_experts(walk *w, ek_moe_weights *moe, int32_t l)
{
    const ek_model_spec *s = &w->m->spec;
    int64_t d = s->hidden;

    lay_weight(w, &moe->router, s->experts, d, 0, l, -1);
    if (s->gate.kind == EK_GATE_SIGMOID_BIAS) {
        lay_weight(w, &moe->bias, s->experts, 0, 0, l, -1);
        if (w->m->params != NULL)
            w->m->params[w->n_params - 1].trained = 0;
    }
    moe->up = ek_arena_take(w->arena, s->experts, sizeof(*moe->up));
    moe->down = ek_arena_take(w->arena, s->experts, sizeof(*moe->down));
    for (int32_t e = 0; e < (int32_t)s->experts; e++) {
        ek_weight measured[2]; /* stand in while the arena only measures */
        ek_weight *up = moe->up != NULL ? &moe->up[e] : &measured[0];
        ek_weight *down = moe->down != NULL ? &moe->down[e] : &measured[1];

        lay_weight(w, up, 2 * s->ff, d, 1, l, e);
        lay_weight(w, down, d, s->ff, 1, l, e);
    }
}

static void lay_layer(walk *w, ek_layer *y, int32_t l)
{
    const ek_model_spec *s = &w->m->spec;
    int64_t d = s->hidden, q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;
    ek_moe_weights *moe = &y->experts;

    lay_weight(w, &y->norm1, d, 0, 0, l, -1);
    lay_weight(w, &y->qkv, q + 2 * kv, d, 1, l, -1);
    if (s->qkv_bias)
        lay_weight(w, &y->qkv_bias, q + 2 * kv, 0, 0, l, -1);
    if (s->qk_norm != EK_QK_NORM_NONE) {
        lay_weight(w, &y->q_norm, s->qk_norm == EK_QK_NORM_HEAD ? s->head_dim : q, 0, 0, l, -1);
        lay_weight(w, &y->k_norm, s->qk_norm == EK_QK_NORM_HEAD ? s->head_dim : kv, 0, 0, l, -1);
    }
    lay_weight(w, &y->out, d, q, 1, l, -1);
    lay_weight(w, &y->norm2, d, 0, 0, l, -1);
    ek_moe_take_weights(moe, w->arena, s, l);
    if (moe->routed)
        lay_experts(w, moe, l);
    if (moe->shared_ff > 0) {
        lay_weight(w, &moe->shared_up, 2 * moe->shared_ff, d, 1, l, -1);
        lay_weight(w, &moe->shared_down, d, moe->shared_ff, 1, l, -1);
    }
    if (moe->shared_gated)
        lay_weight(w, &moe->shared_router, 1, d, 0, l, -1);
}

/* Lays out the whole model in m->arena; counts weights in m->n_params. */
static void lay_model(ek_model *m)
{
    walk w = {m, &m->arena, 0};
    ek_layer measured;

    m->n_elements = 0;
    m->layers = ek_arena_take(&m->arena, m->spec.layers, sizeof(*m->layers));
    m->params = ek_arena_take(&m->arena, m->n_params, sizeof(*m->params));
    lay_weight(&w, &m->embed, m->spec.vocab, m->spec.hidden, m->spec.tie_embeddings, -1, -1);
    for (int32_t l = 0; l < (int32_t)m->spec.layers; l++) {
        memset(&measured, 0, sizeof(measured));
        lay_layer(&w, m->layers != NULL ? &m->layers[l] : &measured, l);
    }
    lay_weight(&w, &m->final_norm, m->spec.hidden, 0, 0, -1, -1);
    if (!m->spec.tie_embeddings)
        lay_weight(&w, &m->head, m->spec.vocab, m->spec.hidden, 1, -1, -1);
    else
        m->head = m->embed;
    m->n_params = w.n_params;
}

ek_status ek_model_create(const ek_model_spec *spec, const ek_kernels *k, int trained,
                          ek_model **out)
{
    ek_model *m = NULL;
    size_t bytes;
    ek_status st = EK_OK;

    EK_TRY(ek_model_check(spec));
    m = calloc(1, sizeof(*m));
    EK_REQUIRE(m != NULL, EK_ENOMEM, "no memory for a model");
    m->spec = *spec;
    m->k = k;
    m->trained = trained;
    ek_arena_measure(&m->arena);
    lay_model(m); /* counts the weights */
    ek_arena_measure(&m->arena);
    lay_model(m); /* measures with that count */
    EK_TRY_OUT(ek_arena_check(&m->arena, "the model"));
    bytes = m->arena.used;
    EK_TRY_OUT(ek_arena_init(&m->arena, bytes, "the model's weights"));
    lay_model(m);
    EK_TRY_OUT(ek_arena_check(&m->arena, "the model"));
    *out = m;
    m = NULL;
out:
    ek_model_destroy(&m);
    return st;
}

void ek_model_destroy(ek_model **pm)
{
    if (pm == NULL || *pm == NULL)
        return;
    ek_arena_fini(&(*pm)->arena);
    free(*pm);
    *pm = NULL;
}

static void set(const ek_kernels *k, void *p, int64_t i, double x)
{
    if (k->real == EK_F64)
        ((double *)p)[i] = x;
    else
        ((float *)p)[i] = (float)x;
}

/* What an untrained tensor holds: -1 stands for normal noise. */
static double initial_value(ek_role role)
{
    switch (role) {
    case EK_ROLE_NORM1:
    case EK_ROLE_NORM2:
    case EK_ROLE_Q_NORM:
    case EK_ROLE_K_NORM:
    case EK_ROLE_FINAL_NORM: return 1;
    case EK_ROLE_Q_BIAS:
    case EK_ROLE_K_BIAS:
    case EK_ROLE_V_BIAS:
    case EK_ROLE_ROUTER_BIAS: return 0;
    default: return -1;
    }
}

void ek_model_init(ek_model *m, uint64_t seed)
{
    int64_t count = ek_hf_count(&m->spec);

    for (int64_t i = 0; i < count; i++) {
        ek_hf_tensor t;
        ek_weight *w;
        int64_t first, n;
        double value;
        uint64_t stream;

        ek_hf_tensor_at(&m->spec, i, &t);
        w = ek_model_find(m, &t, &first);
        n = t.shape[0] * (t.dims > 1 ? t.shape[1] : 1);
        value = initial_value(t.role);
        stream = ek_random_stream(t.name);
#pragma omp parallel for schedule(static)
        for (int64_t j = 0; j < n; j++)
            set(m->k, w->p, first + j,
                value >= 0 ? value
                           : m->spec.init_range * ek_random_normal(seed, stream, (uint64_t)j));
    }
}

ek_weight *ek_model_find(ek_model *m, const ek_hf_tensor *t, int64_t *first)
{
    const ek_model_spec *s = &m->spec;
    int64_t d = s->hidden, q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;
    ek_layer *y = t->layer >= 0 ? &m->layers[t->layer] : NULL;
    ek_moe_weights *moe = y != NULL ? &y->experts : NULL;

    *first = 0;
    switch (t->role) {
    case EK_ROLE_EMBED: return &m->embed;
    case EK_ROLE_FINAL_NORM: return &m->final_norm;
    case EK_ROLE_HEAD: return &m->head;
    case EK_ROLE_NORM1: return &y->norm1;
    case EK_ROLE_NORM2: return &y->norm2;
    case EK_ROLE_O: return &y->out;
    case EK_ROLE_Q_NORM: return &y->q_norm;
    case EK_ROLE_K_NORM: return &y->k_norm;
    case EK_ROLE_Q: return &y->qkv;
    case EK_ROLE_K: *first = q * d; return &y->qkv;
    case EK_ROLE_V: *first = (q + kv) * d; return &y->qkv;
    case EK_ROLE_Q_BIAS: return &y->qkv_bias;
    case EK_ROLE_K_BIAS: *first = q; return &y->qkv_bias;
    case EK_ROLE_V_BIAS: *first = q + kv; return &y->qkv_bias;
    case EK_ROLE_ROUTER: return &moe->router;
    case EK_ROLE_ROUTER_BIAS: return &moe->bias;
    case EK_ROLE_SHARED_ROUTER: return &moe->shared_router;
    case EK_ROLE_DENSE_GATE:
    case EK_ROLE_SHARED_GATE: return &moe->shared_up;
    case EK_ROLE_DENSE_UP:
    case EK_ROLE_SHARED_UP: *first = moe->shared_ff * d; return &moe->shared_up;
    case EK_ROLE_DENSE_DOWN:
    case EK_ROLE_SHARED_DOWN: return &moe->shared_down;
    case EK_ROLE_EXPERT_GATE: return &moe->up[t->expert];
    case EK_ROLE_EXPERT_UP: *first = s->ff * d; return &moe->up[t->expert];
    case EK_ROLE_EXPERT_DOWN: return &moe->down[t->expert];
    case EK_ROLE_COUNT: break;
    }
    return NULL;
}

ek_status ek_model_pack(ek_model *m)
{
    const ek_kernels *k = m->k;

    for (int64_t i = 0; i < m->n_params; i++) {
        ek_weight *w = m->params[i].w;

        if (w->forward != NULL && w->forward != w->p)
            EK_TRY(k->pack(k, w->out, w->in, EK_FORM_FORWARD, w->p, w->forward));
        if (w->backward != NULL && w->backward != w->p)
            EK_TRY(k->pack(k, w->out, w->in, EK_FORM_BACKWARD, w->p, w->backward));
    }
    return EK_OK;
}
