/* A session: its memory, and feeding blocks of rows. */
#include "infer/session.h"

#include "infer/session_priv.h"
#include "model/blocks/rope.h"

#include <stdlib.h>
#include <string.h>

enum {
    BLOCK_DEFAULT = 256,
    BLOCKS_STREAMED = 4 /* blocks at once where experts are read from files, once for all of them */
};

static size_t larger_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Workspace of everything but the experts. */
static size_t workspace_bytes(const ek_session *s)
{
    const ek_kernels *k = s->model->k;
    const ek_model_spec *m = &s->model->spec;
    const ek_attention one = {1, 1, m->heads, m->kv_heads, m->head_dim, 0, 1, NULL};
    size_t ws = ek_attention_workspace(s->model, s->cfg.block);

    ws = larger_size(ws, k->attention_workspace(k, &one));
    ws = larger_size(ws, k->linear_workspace(k, 1, 1, s->model->spec.vocab, s->model->spec.hidden));
    return larger_size(ws, (size_t)k->threads * (size_t)s->cfg.capacity * ek_dtype_size(k->real));
}

static const ek_moe_config moe_config = {0};

static void reserve_moe(ek_session *s, int32_t l, ek_moe *moe)
{
    const ek_moe_limits limits = {s->cfg.block, s->cfg.block, s->cfg.block, 0};

    moe->k = s->model->k;
    moe->spec = &s->model->spec;
    moe->w = &s->model->layers[l].experts;
    moe->step = &s->step;
    moe->scratch = &s->scratch;
    moe->mesh = &ek_mesh_one;
    moe->cfg = &moe_config;
    ek_moe_reserve_state(moe, ek_arena_host(&s->arena), s->cfg.block, 1);
    if (l == 0)
        ek_moe_reserve_activations(moe, 0, &s->arena, &limits, 1);
    else if (s->moe != NULL)
        ek_moe_share_activations(moe, 0, &s->moe[0]);
    if (s->moe != NULL)
        ek_moe_set_tokens(moe, 0, s->forward.x[0], s->forward.activations[0].y2);
}

static void reserve_cache(ek_session *s)
{
    const ek_model_spec *m = &s->model->spec;
    int64_t n = s->cfg.capacity * m->kv_heads * m->head_dim;
    size_t comp = ek_dtype_size(s->model->k->comp);
    ek_kv_cache *cache = ek_arena_alloc(ek_arena_host(&s->arena), m->layers, sizeof(*cache));

    for (int64_t l = 0; l < m->layers; l++) {
        void *k = ek_arena_alloc(&s->arena, n, comp), *v = ek_arena_alloc(&s->arena, n, comp);

        if (cache != NULL)
            cache[l] = (ek_kv_cache){k, v};
    }
    s->forward.cache = cache;
}

/* Activations and residual stream of one block of rows. */
static void reserve_block(ek_session *s)
{
    const ek_model_spec *m = &s->model->spec;
    const ek_kernels *k = s->model->k;
    size_t real = ek_dtype_size(k->real), comp = ek_dtype_size(k->comp);
    int64_t n = s->cfg.block, q = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim;
    ek_arena *a = &s->arena, *host = ek_arena_host(a);
    ek_forward *f = &s->forward;
    void *x = ek_arena_alloc(a, n * m->hidden, real), *y = ek_arena_alloc(a, n * m->hidden, comp);
    void *rstd = ek_arena_alloc(a, n * (m->heads + 1), real); /* [n], or [n, heads] */
    void *qkv = ek_arena_alloc(a, n * (q + 2 * kv), comp), *o = ek_arena_alloc(a, n * q, comp);

    f->activations = ek_arena_alloc(host, m->layers, sizeof(*f->activations));
    f->x = ek_arena_alloc(host, 2 * m->layers + 1, sizeof(*f->x));
    for (int64_t l = 0; f->activations != NULL && l < m->layers; l++)
        f->activations[l] = (ek_layer_activations){.rstd1 = rstd,
                                                   .rstd2 = rstd,
                                                   .y1 = y,
                                                   .y2 = y,
                                                   .qkv = qkv,
                                                   .q_rstd = rstd,
                                                   .k_rstd = rstd,
                                                   .o = o};
    for (int64_t i = 0; f->x != NULL && i <= 2 * m->layers; i++)
        f->x[i] = x;
}

static void reserve_session(ek_session *s)
{
    const ek_model_spec *m = &s->model->spec;
    const ek_kernels *k = s->model->k;
    size_t real = ek_dtype_size(k->real);
    int64_t n = s->cfg.block;
    ek_arena *a = &s->arena;
    ek_moe measured = {0}; /* placeholder while the arena measures */

    reserve_cache(s);
    reserve_block(s);
    s->logits = ek_arena_alloc(a, m->vocab, real);
    s->forward.cos_sin = ek_arena_alloc(a, s->cfg.capacity * m->head_dim, real);
    s->ids = ek_arena_alloc(a, n, sizeof(*s->ids));
    s->forward.ws = ek_arena_alloc(a, (int64_t)workspace_bytes(s), 1);
    ek_moe_reserve_scratch(&s->scratch, a, k, m, &ek_mesh_one, &moe_config,
                           &(ek_moe_limits){n, n, n, 0}, 0);
    s->moe = ek_arena_alloc(ek_arena_host(a), m->layers, sizeof(*s->moe));
    for (int32_t l = 0; l < (int32_t)m->layers; l++)
        reserve_moe(s, l, s->moe != NULL ? &s->moe[l] : &measured);
}

static ek_status check_config(const ek_model_spec *m, const ek_session_config *cfg)
{
    EK_REQUIRE(m->gate.kind != EK_GATE_EXPERT_CHOICE, EK_EUNSUPPORTED,
               "this model cannot generate: it has an expert-choice gate, which needs the whole "
               "sequence, and a token's experts would depend on later tokens");
    EK_REQUIRE(cfg->capacity >= 1 && cfg->capacity <= ek_model_longest(m), EK_EINVAL,
               "a session of %lld positions: the model allows from 1 to max_position_embeddings, "
               "%lld",
               (long long)cfg->capacity, (long long)ek_model_longest(m));
    EK_REQUIRE(m->sliding_window == 0 || cfg->capacity <= m->sliding_window, EK_EUNSUPPORTED,
               "a session of %lld positions exceeds the model's sliding_window of %lld, and "
               "windowed attention is not implemented; ask for at most that many",
               (long long)cfg->capacity, (long long)m->sliding_window);
    EK_REQUIRE(cfg->block >= 0, EK_EINVAL, "blocks of %lld rows; 0 stands for %d",
               (long long)cfg->block, BLOCK_DEFAULT);
    return EK_OK;
}

/* Checks, sets the fields that need no memory, and measures the rest. */
static ek_status init_session(ek_session *s, ek_model *m, const ek_session_config *cfg)
{
    EK_TRY(check_config(&m->spec, cfg));
    s->model = m;
    s->cfg = *cfg;
    s->unit = cfg->block > 0 ? cfg->block : BLOCK_DEFAULT;
    s->cfg.block =
        cfg->block == 0 && m->cfg.experts_elsewhere ? BLOCKS_STREAMED * s->unit : s->unit;
    if (s->cfg.block > s->cfg.capacity)
        s->cfg.block = s->cfg.capacity;
    EK_REQUIRE(s->cfg.block <= (INT32_MAX - 1) / ek_moe_cols(&m->spec), EK_EOVERFLOW,
               "a block of %lld rows is too large", (long long)s->cfg.block);
    s->forward = (ek_forward){
        .model = m, .scratch = &s->scratch, .micros = 1, .micro = &s->micro, .n_micro = 1};
    s->step = (ek_moe_step){.top_k = m->spec.top_k, .micro = &s->micro};
    ek_arena_measure_from(&s->arena, m->k->memory, &s->host);
    reserve_session(s);
    return ek_arena_check(&s->arena, "a session");
}

/* Builds the largest graph once, so that no later step allocates. */
static ek_status reserve_graph(ek_session *s)
{
    s->micro = ek_micro_alone(1, 1, 1, 0, NULL, NULL);
    EK_TRY(ek_session_build(s, 1));
    ek_graph_reset(&s->graph);
    return EK_OK;
}

ek_status ek_session_measure(ek_model *m, const ek_session_config *cfg, size_t *bytes)
{
    ek_session s = {0};

    EK_TRY(init_session(&s, m, cfg));
    *bytes = s.arena.used;
    return EK_OK;
}

ek_status ek_session_create(ek_model *m, const ek_session_config *cfg, ek_session **out)
{
    ek_session *s = calloc(1, sizeof(*s));
    ek_status st = EK_OK;

    EK_REQUIRE(s != NULL, EK_ENOMEM, "no memory for a session");
    ek_graph_init(&s->graph);
    EK_TRY_OUT(init_session(s, m, cfg));
    EK_TRY_OUT(ek_arena_reserve(&s->arena, "a session"));
    reserve_session(s);
    EK_TRY_OUT(ek_arena_check(&s->arena, "a session"));
    ek_rope_fill(&m->spec, s->cfg.capacity, 0, s->cfg.capacity, m->k->real, s->forward.cos_sin);
    EK_TRY_OUT(ek_model_exec(m, NULL, &s->exec));
    EK_TRY_OUT(reserve_graph(s));
    *out = s;
    s = NULL;
out:
    ek_session_destroy(&s);
    return st;
}

void ek_session_destroy(ek_session **ps)
{
    if (ps == NULL || *ps == NULL)
        return;
    ek_exec_destroy(&(*ps)->exec);
    ek_graph_fini(&(*ps)->graph);
    ek_arena_fini(&(*ps)->arena);
    free(*ps);
    *ps = NULL;
}

/* With dynamic rope scaling the next n tokens use the frequencies of the text that ends with them;
 * cached keys are unchanged. */
static ek_status fit_positions(ek_session *s, int64_t n)
{
    const ek_model *m = s->model;

    if (m->spec.rope.type != EK_ROPE_DYNAMIC)
        return EK_OK;
    EK_TRY(ek_kernels_wait(m->k));
    ek_rope_fill(&m->spec, s->position + n, s->position, n, m->k->real, s->forward.cos_sin);
    return EK_OK;
}

/* Rows of the next block: several units, or what is less than one, so that products have the rows
 * that they have unit by unit. */
static int64_t block_rows(const ek_session *s, int64_t left)
{
    int64_t rows = left < s->cfg.block ? left : s->cfg.block;

    return rows > s->unit ? rows - rows % s->unit : rows;
}

ek_status ek_session_feed(ek_session *s, const int32_t *ids, int64_t n)
{
    int64_t positions_left = s->cfg.capacity - s->position, vocab = s->model->spec.vocab;

    EK_REQUIRE(n >= 1, EK_EINVAL, "%lld tokens to feed; there must be at least 1", (long long)n);
    EK_REQUIRE(n <= positions_left, EK_EINVAL,
               "%lld tokens do not fit: the session holds %lld of at most %lld positions",
               (long long)n, (long long)s->position, (long long)s->cfg.capacity);
    for (int64_t i = 0; i < n; i++)
        EK_REQUIRE(ids[i] >= 0 && ids[i] < vocab, EK_EINVAL,
                   "token %lld of %lld is %d, outside the vocabulary of %lld", (long long)i,
                   (long long)n, (int)ids[i], (long long)vocab);
    EK_TRY(fit_positions(s, n));
    for (int64_t done = 0; done < n; done += s->micro.n) {
        int64_t rows = block_rows(s, n - done);

        s->forward.first = s->position + done;
        memcpy(s->ids, ids + done, (size_t)rows * sizeof(*ids));
        s->micro = ek_micro_alone(1, rows, 1, 0, s->ids, NULL);
        EK_TRY(ek_session_build(s, done + rows == n));
        EK_TRY(ek_exec_run(s->exec, &s->graph));
    }
    s->position += n;
    return EK_OK;
}

const void *ek_session_logits(const ek_session *s)
{
    return s->logits;
}

void ek_session_logits_f64(const ek_session *s, double *out)
{
    for (int64_t i = 0; i < s->model->spec.vocab; i++)
        out[i] = s->model->k->real == EK_F64 ? ((const double *)s->logits)[i]
                                             : (double)((const float *)s->logits)[i];
}

int64_t ek_session_position(const ek_session *s)
{
    return s->position;
}

void ek_session_reset(ek_session *s)
{
    s->position = 0;
}

ek_exec *ek_session_exec(ek_session *s)
{
    return s->exec;
}
