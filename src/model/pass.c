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

static void *x_at(const ek_pass *p, int slot, int64_t i)
{
    return p->x[slot * (2 * p->model->spec.layers + 1) + i];
}

int ek_pass_slot(const ek_pass *p, int32_t l, int32_t micro)
{
    int32_t layer = l >= 0                         ? l
                    : ek_model_has_embed(p->model) ? 0
                                                   : (int32_t)p->model->spec.layers - 1;
    int chunk = ek_model_piece_of(p->model, layer) / p->model->cfg.mesh->pp;

    return p->slot_of[chunk * p->cfg.micros + micro];
}

ek_layer_saved *ek_pass_saved(const ek_pass *p, int32_t l, int32_t micro)
{
    return &p->saved[ek_pass_slot(p, l, micro) * p->model->spec.layers + l];
}

/* Entry 2l+2 may be the input of a layer that is elsewhere: then it is the output of layer l. */
void *ek_pass_x(const ek_pass *p, int32_t i, int32_t micro)
{
    int32_t l = i / 2;

    if (l == (int32_t)p->model->spec.layers || !ek_model_has_layer(p->model, l))
        l = (i - 1) / 2;
    return x_at(p, ek_pass_slot(p, l, micro), i);
}

/* Memory of one layer for one micro-batch in flight; layers whose activations are recomputed share
 * those of the first. */
static void lay_layer_slot(ek_pass *p, int32_t l, int slot, int first, const ek_moe *moe,
                           ek_layer_saved *y, ek_moe_saved *kept)
{
    int all = !p->cfg.training || p->cfg.recompute == EK_RECOMPUTE_FULL;
    int attention = all || p->cfg.recompute == EK_RECOMPUTE_ATTENTION;

    if (!first && p->saved != NULL && attention)
        *y = p->saved[slot * p->model->spec.layers + p->first_layer];
    if (!first && p->moe != NULL && all)
        *kept = p->moe[p->first_layer].saved[slot];
    take_saved(p, y, first || !attention, first || !all);
    if (first || !all)
        ek_moe_take_saved(moe, kept, &p->arena, p->max_tokens, all);
    kept->y = y->y2;
    kept->x = p->x != NULL ? x_at(p, slot, 2 * l + 2) : NULL;
}

static void lay_layer(ek_pass *p, int32_t l, int first, ek_moe *moe)
{
    ek_layer_saved measured_layer = {0};
    ek_moe_saved measured_moe = {0};

    moe->k = p->model->k;
    moe->spec = &p->model->spec;
    moe->mesh = p->model->cfg.mesh;
    moe->cfg = &p->cfg.moe;
    moe->w = &p->model->layers[l].experts;
    moe->step = &p->step;
    moe->scratch = &p->scratch;
    moe->dx = p->dx;
    ek_moe_take_state(moe, &p->arena, p->cfg.max_seq);
    moe->saved = ek_arena_take(&p->arena, p->slots, sizeof(*moe->saved));
    for (int slot = 0; slot < p->slots; slot++) {
        int64_t at = slot * p->model->spec.layers + l;

        lay_layer_slot(p, l, slot, first, moe, p->saved != NULL ? &p->saved[at] : &measured_layer,
                       moe->saved != NULL ? &moe->saved[slot] : &measured_moe);
    }
}

/* The residual stream of one slot: entries of the layers that are here. */
static void lay_residuals(ek_pass *p, int slot)
{
    int64_t layers = p->model->spec.layers, n = p->max_tokens * p->model->spec.hidden;
    size_t real = real_size(p);
    void *mid = NULL, *shared[2] = {NULL, NULL};

    for (int64_t i = 0; i <= 2 * layers; i++) {
        int in = i < 2 * layers && ek_model_has_layer(p->model, i / 2);
        int out = i > 0 && ek_model_has_layer(p->model, (i - 1) / 2);
        void *x;

        if (!in && !out)
            continue;
        if (!p->cfg.training && shared[i % 2] != NULL) {
            x = shared[i % 2];
        } else if (p->cfg.recompute == EK_RECOMPUTE_FULL && i % 2 == 1) {
            mid = mid == NULL ? ek_arena_take(&p->arena, n, real) : mid;
            x = mid;
        } else {
            x = ek_arena_take(&p->arena, n, real);
        }
        shared[i % 2] = x;
        if (p->x != NULL)
            p->x[slot * (2 * layers + 1) + i] = x;
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
    int first = 1;

    lay_scratch(p);
    ek_moe_take_scratch(&p->scratch, &p->arena, p->model->k, &p->model->spec, p->max_tokens,
                        p->cfg.training);
    p->slot_of =
        ek_arena_take(&p->arena, p->model->cfg.chunks * p->cfg.micros, sizeof(*p->slot_of));
    p->x = ek_arena_take(&p->arena, p->slots * (2 * layers + 1), sizeof(*p->x));
    for (int slot = 0; slot < p->slots; slot++)
        lay_residuals(p, slot);
    p->saved = ek_arena_take(&p->arena, p->slots * layers, sizeof(*p->saved));
    p->moe = ek_arena_take(&p->arena, layers, sizeof(*p->moe));
    for (int32_t l = 0; l < (int32_t)layers; l++) {
        ek_moe measured = {0};

        if (!ek_model_has_layer(p->model, l))
            continue;
        if (first)
            p->first_layer = l;
        lay_layer(p, l, first, p->moe != NULL ? &p->moe[l] : &measured);
        first = 0;
    }
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
    if (p->cfg.micros == 0)
        p->cfg.micros = 1;
    p->slots = 1;
    p->max_all = p->max_tokens;
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
