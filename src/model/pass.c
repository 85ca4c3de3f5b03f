/* A pass: its memory, and the order of a step's ops. */
#include "model/pass.h"

#include "model/rope.h"

#include <stdlib.h>
#include <string.h>

enum { HEAD_LOGITS_BYTES = 16 << 20, HEAD_ROWS_MIN = 64, HEAD_ROWS_MAX = 4096 };

static size_t real_size(const ek_pass *p)
{
    return ek_dtype_size(p->model->k->real);
}

static size_t comp_size(const ek_pass *p)
{
    return ek_dtype_size(p->model->k->comp);
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Workspace of everything but the experts. */
static size_t workspace(const ek_pass *p)
{
    const ek_model_spec *s = &p->model->spec;
    const ek_kernels *k = p->model->k;
    int64_t q = s->heads * s->head_dim, width = q + 2 * s->kv_heads * s->head_dim;
    ek_attention a = {p->cfg.max_seqs, p->cfg.max_seq, s->heads, s->kv_heads,
                      s->head_dim,     width,          1.0};
    size_t ws = k->linear_workspace(k, p->max_tokens, 1, width, s->hidden);

    ws = larger(ws, k->linear_workspace(k, p->max_tokens, 1, s->hidden, q));
    ws = larger(ws, k->linear_workspace(k, p->head_rows, 1, s->vocab, s->hidden));
    ws = larger(ws, k->rmsnorm_workspace(k, s->hidden > width ? s->hidden : width));
    return larger(ws, k->attention_workspace(k, &a));
}

static void take_saved(ek_pass *p, ek_layer_saved *y, int attention, int rest)
{
    const ek_model_spec *s = &p->model->spec;
    int64_t n = p->max_tokens, q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;
    size_t real = real_size(p), comp = comp_size(p);
    ek_arena *a = &p->arena;

    if (attention) {
        y->rstd1 = ek_arena_take(a, n, real);
        y->y1 = ek_arena_take(a, n * s->hidden, comp);
        y->qkv = ek_arena_take(a, n * (q + 2 * kv), comp);
        y->o = ek_arena_take(a, n * q, comp);
        y->lse = ek_arena_take(a, n * s->heads, real);
        if (s->qk_norm != EK_QK_NORM_NONE) {
            y->q_raw = ek_arena_take(a, n * q, comp);
            y->k_raw = ek_arena_take(a, n * kv, comp);
            y->q_rstd = ek_arena_take(a, n * s->heads, real);
            y->k_rstd = ek_arena_take(a, n * s->kv_heads, real);
        }
    }
    if (rest) {
        y->rstd2 = ek_arena_take(a, n, real);
        y->y2 = ek_arena_take(a, n * s->hidden, comp);
    }
}

/* Memory of one layer; layers whose activations are recomputed share those of layer 0. */
static void lay_layer(ek_pass *p, int32_t l, ek_layer_saved *y, ek_moe *moe)
{
    int all = !p->cfg.training || p->cfg.recompute == EK_RECOMPUTE_FULL;
    int attention = all || p->cfg.recompute == EK_RECOMPUTE_ATTENTION;

    if (l > 0 && p->saved != NULL && attention)
        *y = p->saved[0];
    if (l > 0 && p->moe != NULL && all)
        moe->saved = p->moe[0].saved;
    take_saved(p, y, l == 0 || !attention, l == 0 || !all);
    moe->k = p->model->k;
    moe->spec = &p->model->spec;
    moe->w = &p->model->layers[l].experts;
    moe->step = &p->step;
    moe->scratch = &p->scratch;
    moe->y = y->y2;
    moe->dx = p->dx;
    moe->x = p->x != NULL ? p->x[2 * l + 2] : NULL;
    ek_moe_take_state(moe, &p->arena, p->cfg.max_seq);
    if (l == 0 || !all)
        ek_moe_take_saved(moe, &p->arena, p->max_tokens, all);
}

static void lay_residuals(ek_pass *p)
{
    int64_t layers = p->model->spec.layers, n = p->max_tokens * p->model->spec.hidden;
    size_t real = real_size(p);
    void *mid = NULL;

    p->x = ek_arena_take(&p->arena, 2 * layers + 1, sizeof(*p->x));
    for (int64_t i = 0; i <= 2 * layers; i++) {
        void *x;

        if (!p->cfg.training && i >= 2) {
            x = p->x != NULL ? p->x[i - 2] : NULL;
        } else if (p->cfg.recompute == EK_RECOMPUTE_FULL && i % 2 == 1) {
            mid = i == 1 ? ek_arena_take(&p->arena, n, real) : mid;
            x = mid;
        } else {
            x = ek_arena_take(&p->arena, n, real);
        }
        if (p->x != NULL)
            p->x[i] = x;
    }
}

static void lay_scratch(ek_pass *p)
{
    const ek_model_spec *s = &p->model->spec;
    int64_t n = p->max_tokens, d = s->hidden, q = s->heads * s->head_dim;
    size_t real = real_size(p), comp = comp_size(p);
    ek_arena *a = &p->arena;

    p->ws = ek_arena_take(a, (int64_t)workspace(p), 1);
    p->cos_sin = ek_arena_take(a, p->cfg.max_seq * s->head_dim, real);
    p->y_final = ek_arena_take(a, p->head_rows * d, comp);
    p->rstd_final = ek_arena_take(a, p->head_rows, real);
    p->logits = ek_arena_take(a, p->head_rows * s->vocab, real);
    p->loss_rows = ek_arena_take(a, n, sizeof(double));
    if (!p->cfg.training)
        return;
    p->dx = ek_arena_take(a, n * d, real);
    p->dy = ek_arena_take(a, n * d, real);
    p->dy_comp = ek_arena_take(a, n * d, comp);
    p->d_o = ek_arena_take(a, n * q, comp);
    p->dqkv = ek_arena_take(a, n * (q + 2 * s->kv_heads * s->head_dim), comp);
    p->dlogits = ek_arena_take(a, p->head_rows * s->vocab, comp);
    p->dy_final = ek_arena_take(a, p->head_rows * d, real);
}

static void lay_pass(ek_pass *p)
{
    int64_t layers = p->model->spec.layers;
    ek_layer_saved measured_layer = {0};
    ek_moe measured_moe = {0};

    lay_scratch(p);
    ek_moe_take_scratch(&p->scratch, &p->arena, p->model->k, &p->model->spec, p->max_tokens,
                        p->cfg.training);
    lay_residuals(p);
    p->saved = ek_arena_take(&p->arena, layers, sizeof(*p->saved));
    p->moe = ek_arena_take(&p->arena, layers, sizeof(*p->moe));
    for (int32_t l = 0; l < (int32_t)layers; l++)
        lay_layer(p, l, p->saved != NULL ? &p->saved[l] : &measured_layer,
                  p->moe != NULL ? &p->moe[l] : &measured_moe);
}

static ek_status init(ek_pass *p, ek_model *m, const ek_pass_config *cfg)
{
    int64_t rows;

    EK_REQUIRE(cfg->max_seqs > 0 && cfg->max_seq > 0, EK_EINVAL,
               "a micro-batch of %lld sequences of %lld tokens", (long long)cfg->max_seqs,
               (long long)cfg->max_seq);
    EK_REQUIRE(!__builtin_mul_overflow(cfg->max_seqs, cfg->max_seq, &p->max_tokens) &&
                   p->max_tokens * ek_moe_cols(&m->spec) < INT32_MAX,
               EK_EOVERFLOW, "a micro-batch of %lld sequences of %lld tokens is too large",
               (long long)cfg->max_seqs, (long long)cfg->max_seq);
    p->model = m;
    p->cfg = *cfg;
    rows = HEAD_LOGITS_BYTES / (m->spec.vocab * (int64_t)sizeof(float));
    rows = rows < HEAD_ROWS_MIN ? HEAD_ROWS_MIN : rows > HEAD_ROWS_MAX ? HEAD_ROWS_MAX : rows;
    p->head_rows = rows < p->max_tokens ? rows : p->max_tokens;
    ek_arena_measure(&p->arena);
    lay_pass(p);
    return ek_arena_check(&p->arena, "activations");
}

ek_status ek_pass_measure(ek_model *m, const ek_pass_config *cfg, size_t *bytes)
{
    ek_pass p;

    memset(&p, 0, sizeof(p));
    EK_TRY(init(&p, m, cfg));
    *bytes = p.arena.used;
    return EK_OK;
}

ek_status ek_pass_create(ek_model *m, const ek_pass_config *cfg, ek_pass **out)
{
    ek_pass *p = calloc(1, sizeof(*p));
    size_t bytes;
    ek_status st = EK_OK;

    EK_REQUIRE(p != NULL, EK_ENOMEM, "no memory for a pass");
    EK_TRY_OUT(init(p, m, cfg));
    bytes = p->arena.used;
    EK_TRY_OUT(ek_arena_init(&p->arena, bytes, "activations"));
    lay_pass(p);
    EK_TRY_OUT(ek_arena_check(&p->arena, "activations"));
    ek_rope_fill(&m->spec, cfg->max_seq, m->k->real, p->cos_sin);
    *out = p;
    p = NULL;
out:
    ek_pass_destroy(&p);
    return st;
}

void ek_pass_destroy(ek_pass **pp)
{
    if (pp == NULL || *pp == NULL)
        return;
    ek_arena_fini(&(*pp)->arena);
    free(*pp);
    *pp = NULL;
}

ek_status ek_pass_begin(ek_pass *p, const ek_moe_step *step, const ek_micro *micro, int64_t n_micro)
{
    p->step = *step;
    p->step.micro = micro;
    p->micro = micro;
    p->n_micro = n_micro;
    p->step_tokens = 0;
    p->loss_sum = 0;
    for (int64_t i = 0; i < n_micro; i++) {
        EK_REQUIRE(micro[i].seqs <= p->cfg.max_seqs && micro[i].seq <= p->cfg.max_seq, EK_EINVAL,
                   "micro-batch %lld is %lld x %lld, room is for %lld x %lld", (long long)i,
                   (long long)micro[i].seqs, (long long)micro[i].seq, (long long)p->cfg.max_seqs,
                   (long long)p->cfg.max_seq);
        p->step_tokens += micro[i].n;
    }
    for (int64_t l = 0; l < p->model->spec.layers; l++)
        ek_moe_begin_step(&p->moe[l]);
    return EK_OK;
}

ek_status ek_pass_build(ek_pass *p, ek_graph *g)
{
    int32_t layers = (int32_t)p->model->spec.layers, dep = -1;

    for (int32_t i = 0; i < (int32_t)p->n_micro; i++) {
        dep = ek_embed_build(p, g, i, dep);
        for (int32_t l = 0; l < layers; l++)
            dep = ek_layer_build_forward(p, g, l, i, 0, dep);
        dep = ek_head_build(p, g, i, dep);
        if (!p->cfg.training)
            continue;
        for (int32_t l = layers - 1; l >= 0; l--)
            dep = ek_layer_build_backward(p, g, l, i, dep);
        dep = ek_embed_build_backward(p, g, i, dep);
    }
    return ek_graph_check(g);
}

void ek_pass_losses(const ek_pass *p, ek_losses *out)
{
    memset(out, 0, sizeof(*out));
    out->loss = p->loss_sum / (double)p->step_tokens;
    for (int64_t l = 0; l < p->model->spec.layers; l++) {
        const ek_moe *m = &p->moe[l];
        int64_t total = 0, most = 0;
        double ratio;

        if (!m->w->routed)
            continue;
        for (int64_t e = 0; e < p->model->spec.experts; e++) {
            total += m->load[e];
            most = m->load[e] > most ? m->load[e] : most;
        }
        ratio = total > 0 ? (double)(most * p->model->spec.experts) / (double)total : 1;
        if (ratio > out->expert_max_over_mean)
            out->expert_max_over_mean = ratio;
        out->aux_loss += m->aux_loss;
        out->z_loss += m->z_loss;
        out->dropped += m->dropped;
    }
}
