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
    x->own = x->kept = n;
    x->p = x->p_kept = ek_arena_take(w->arena, n, real);
    if (m->cfg.trained) {
        x->g = ek_arena_take(w->arena, n, real);
        x->m = ek_arena_take(w->arena, n, real);
        x->v = ek_arena_take(w->arena, n, real);
    }
    if (forms) {
        x->forward = take_form(w, x, EK_FORM_FORWARD);
        if (m->cfg.trained)
            x->backward = take_form(w, x, EK_FORM_BACKWARD);
    }
    if (m->params != NULL)
        m->params[w->n_params] = (ek_param){x, layer, expert, EK_SHARE_STAGE, in > 0, 1};
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
    ek_moe_take_weights(moe, w->arena, s, w->m->cfg.mesh, l);
    if (moe->routed)
        lay_experts(w, moe, l);
    if (moe->shared) {
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
    m->n_whole = m->n_elements;
}

/* What this rank's parts are cut to. */
static ek_cut cut_of(const ek_model_spec *s, const ek_mesh *mesh)
{
    int tp = mesh->tp, at = mesh->tp_rank;
    int64_t kv_heads = ek_run_length(s->kv_heads, tp, at);

    return (ek_cut){.heads = kv_heads * (s->heads / s->kv_heads),
                    .kv_first = ek_run_first(s->kv_heads, tp, at),
                    .kv_heads = kv_heads,
                    .vocab_first = ek_run_first(s->vocab, tp, at),
                    .vocab = ek_run_length(s->vocab, tp, at),
                    .ff_first = ek_run_first(s->ff, mesh->etp, mesh->etp_rank),
                    .ff = ek_run_length(s->ff, mesh->etp, mesh->etp_rank),
                    .shared_first = ek_run_first(s->shared_ff, tp, at),
                    .shared_ff = ek_run_length(s->shared_ff, tp, at),
                    .dense_first = ek_run_first(s->dense_ff, tp, at),
                    .dense_ff = ek_run_length(s->dense_ff, tp, at)};
}

int ek_model_pieces(const ek_model *m)
{
    return m->cfg.mesh->pp * m->cfg.chunks;
}

int64_t ek_model_piece_first(const ek_model *m, int piece)
{
    return ek_run_first(m->spec.layers, ek_model_pieces(m), piece);
}

int ek_model_piece_of(const ek_model *m, int64_t layer)
{
    int piece = 0;

    while (ek_model_piece_first(m, piece + 1) <= layer)
        piece++;
    return piece;
}

int ek_model_has_layer(const ek_model *m, int64_t layer)
{
    return ek_model_piece_of(m, layer) % m->cfg.mesh->pp == m->cfg.mesh->pp_rank;
}

int ek_model_has_embed(const ek_model *m)
{
    return m->cfg.mesh->pp_rank == 0;
}

int ek_model_has_head(const ek_model *m)
{
    return m->cfg.mesh->pp_rank == m->cfg.mesh->pp - 1;
}

ek_status ek_model_create(const ek_model_spec *spec, const ek_kernels *k,
                          const ek_model_config *cfg, ek_model **out)
{
    ek_model *m = NULL;
    size_t bytes;
    ek_status st = EK_OK;

    EK_TRY(ek_model_check(spec));
    m = calloc(1, sizeof(*m));
    EK_REQUIRE(m != NULL, EK_ENOMEM, "no memory for a model");
    m->spec = *spec;
    m->k = k;
    m->cfg = *cfg;
    if (m->cfg.mesh == NULL)
        m->cfg.mesh = &ek_mesh_one;
    if (m->cfg.chunks == 0)
        m->cfg.chunks = 1;
    m->cut = cut_of(spec, m->cfg.mesh);
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
        ek_span a;
        double value;
        uint64_t stream;

        ek_hf_tensor_at(&m->spec, i, &t);
        if (!ek_model_span(m, &t, &a))
            continue;
        value = initial_value(t.role);
        stream = ek_random_stream(t.name);
#pragma omp parallel for schedule(static)
        for (int64_t r = 0; r < a.rows; r++) {
            int64_t width = t.dims > 1 ? t.shape[1] : 1, from = (a.row + r) * width + a.col;

            for (int64_t c = 0; c < a.cols; c++)
                set(m->k, a.w->p, a.first + r * a.ld + c,
                    value >= 0 ? value
                               : m->spec.init_range *
                                     ek_random_normal(seed, stream, (uint64_t)(from + c)));
        }
    }
}

/* Rows [row, row + rows) of a tensor, as the rows of w from `at` on. */
static int rows_of(ek_span *out, ek_weight *w, int64_t row, int64_t rows, int64_t at)
{
    int64_t width = w->in > 0 ? w->in : 1;

    *out = (ek_span){w, at * width, width, row, rows, 0, width};
    return rows > 0 && w->out > 0;
}

/* Columns of a tensor: all of w. */
static int columns_of(ek_span *out, ek_weight *w, int64_t col)
{
    *out = (ek_span){w, 0, w->in, 0, w->out, col, w->in};
    return w->out > 0 && w->in > 0;
}

static int whole_of(ek_span *out, ek_weight *w)
{
    return rows_of(out, w, 0, w->out, 0);
}

static int attention_span(ek_model *m, ek_layer *y, ek_role role, ek_span *out)
{
    const ek_cut *c = &m->cut;
    int64_t hd = m->spec.head_dim, q = c->heads * hd, kv = c->kv_heads * hd;
    int64_t kv_first = c->kv_first * hd, q_first = kv_first * (m->spec.heads / m->spec.kv_heads);

    switch (role) {
    case EK_ROLE_Q: return rows_of(out, &y->qkv, q_first, q, 0);
    case EK_ROLE_K: return rows_of(out, &y->qkv, kv_first, kv, q);
    case EK_ROLE_V: return rows_of(out, &y->qkv, kv_first, kv, q + kv);
    case EK_ROLE_Q_BIAS: return rows_of(out, &y->qkv_bias, q_first, q, 0);
    case EK_ROLE_K_BIAS: return rows_of(out, &y->qkv_bias, kv_first, kv, q);
    case EK_ROLE_V_BIAS: return rows_of(out, &y->qkv_bias, kv_first, kv, q + kv);
    case EK_ROLE_O: return columns_of(out, &y->out, q_first);
    default: return 0;
    }
}

static int expert_span(ek_model *m, ek_moe_weights *moe, const ek_hf_tensor *t, ek_span *out)
{
    const ek_cut *c = &m->cut;
    int64_t shared = moe->routed ? c->shared_first : c->dense_first;

    switch (t->role) {
    case EK_ROLE_DENSE_GATE:
    case EK_ROLE_SHARED_GATE: return rows_of(out, &moe->shared_up, shared, moe->shared_ff, 0);
    case EK_ROLE_DENSE_UP:
    case EK_ROLE_SHARED_UP:
        return rows_of(out, &moe->shared_up, shared, moe->shared_ff, moe->shared_ff);
    case EK_ROLE_DENSE_DOWN:
    case EK_ROLE_SHARED_DOWN: return columns_of(out, &moe->shared_down, shared);
    case EK_ROLE_EXPERT_GATE: return rows_of(out, &moe->up[t->expert], c->ff_first, moe->ff, 0);
    case EK_ROLE_EXPERT_UP: return rows_of(out, &moe->up[t->expert], c->ff_first, moe->ff, moe->ff);
    case EK_ROLE_EXPERT_DOWN: return columns_of(out, &moe->down[t->expert], c->ff_first);
    case EK_ROLE_ROUTER: return whole_of(out, &moe->router);
    case EK_ROLE_ROUTER_BIAS: return whole_of(out, &moe->bias);
    case EK_ROLE_SHARED_ROUTER: return whole_of(out, &moe->shared_router);
    default: return 0;
    }
}

int ek_model_span(ek_model *m, const ek_hf_tensor *t, ek_span *out)
{
    ek_layer *y = t->layer >= 0 ? &m->layers[t->layer] : NULL;

    if (t->layer >= 0 && !ek_model_has_layer(m, t->layer))
        return 0;
    switch (t->role) {
    case EK_ROLE_EMBED: return rows_of(out, &m->embed, m->cut.vocab_first, m->cut.vocab, 0);
    case EK_ROLE_HEAD: return rows_of(out, &m->head, m->cut.vocab_first, m->cut.vocab, 0);
    case EK_ROLE_FINAL_NORM: return whole_of(out, &m->final_norm);
    case EK_ROLE_NORM1: return whole_of(out, &y->norm1);
    case EK_ROLE_NORM2: return whole_of(out, &y->norm2);
    case EK_ROLE_Q_NORM: return whole_of(out, &y->q_norm);
    case EK_ROLE_K_NORM: return whole_of(out, &y->k_norm);
    case EK_ROLE_Q:
    case EK_ROLE_K:
    case EK_ROLE_V:
    case EK_ROLE_Q_BIAS:
    case EK_ROLE_K_BIAS:
    case EK_ROLE_V_BIAS:
    case EK_ROLE_O: return attention_span(m, y, t->role, out);
    default: return expert_span(m, &y->experts, t, out);
    }
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
