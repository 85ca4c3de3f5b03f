/* A pass: its memory, and the start of a step. */
#include "model/step/pass.h"

#include "model/blocks/rope.h"
#include "moe/gate.h"
#include "moe/reroute.h"

#include <stdlib.h>
#include <string.h>

/* See head_rows. */
enum {
    HEAD_LOGITS_BYTES = 16 << 20,
    HEAD_LOGITS_BYTES_WIDE = 1 << 30,
    HEAD_ROWS_MIN = 64,
    HEAD_ROWS_MAX = 4096
};

static size_t real_size(const ek_pass *p)
{
    return ek_dtype_size(p->model->k->real);
}

static size_t comp_size(const ek_pass *p)
{
    return ek_dtype_size(p->model->k->comp);
}

static size_t larger_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Workspace of everything but the experts. */
static size_t workspace_bytes(const ek_pass *p)
{
    const ek_model_spec *s = &p->model->spec;
    const ek_local_sizes *local = &p->model->local;
    const ek_kernels *k = p->model->k;
    int64_t q = local->heads * s->head_dim, width = q + 2 * local->kv_heads * s->head_dim;
    ek_attention a = {p->cfg.max_seqs, p->cfg.max_seq, local->heads, local->kv_heads,
                      s->head_dim,     width,          1.0,          NULL};
    size_t ws = k->rmsnorm_workspace(k, s->hidden > width ? s->hidden : width);

    if (local->vocab > 0)
        ws = larger_size(ws,
                         k->linear_workspace(k, p->backward.head.rows, 1, local->vocab, s->hidden));
    if (width == 0)
        return ws;
    ws = larger_size(ws, ek_attention_workspace(p->model, p->max_all));
    return larger_size(ws, k->attention_workspace(k, &a));
}

static void reserve_activations(ek_pass *p, ek_layer_activations *y, int attention, int rest)
{
    const ek_model_spec *s = &p->model->spec;
    const ek_local_sizes *local = &p->model->local;
    int64_t n = p->max_tokens, all = p->max_all;
    int64_t q = local->heads * s->head_dim, kv = local->kv_heads * s->head_dim;
    size_t real = real_size(p), comp = comp_size(p);
    ek_arena *a = &p->arena;

    if (attention) {
        y->rstd1 = ek_arena_alloc(a, n, real);
        y->y1 = ek_arena_alloc(a, n * s->hidden, comp);
        y->qkv = ek_arena_alloc(a, all * (q + 2 * kv), comp);
        y->o = ek_arena_alloc(a, all * q, comp);
        y->lse = ek_arena_alloc(a, all * local->heads, real);
        if (s->qk_norm != EK_QK_NORM_NONE) {
            y->q_raw = ek_arena_alloc(a, all * q, comp);
            y->k_raw = ek_arena_alloc(a, all * kv, comp);
            y->q_rstd = ek_arena_alloc(a, all * local->heads, real);
            y->k_rstd = ek_arena_alloc(a, all * local->kv_heads, real);
        }
    }
    if (rest) {
        y->rstd2 = ek_arena_alloc(a, n, real);
        y->y2 = ek_arena_alloc(a, n * s->hidden, comp);
    }
}

static void *x_at(const ek_pass *p, int slot, int64_t i)
{
    return p->forward.x[slot * (2 * p->model->spec.layers + 1) + i];
}

/* Memory of one layer for one activation slot; with recomputation all layers and slots share that
 * of the first. */
static void reserve_layer_slot(ek_pass *p, int32_t l, int slot, int32_t first_layer, ek_moe *moe,
                               ek_layer_activations *y)
{
    int all = !p->cfg.training || p->cfg.recompute == EK_RECOMPUTE_FULL;
    int attention = all || p->cfg.recompute == EK_RECOMPUTE_ATTENTION;
    int first = l == first_layer && slot == 0;

    if (!first && p->forward.activations != NULL && attention)
        *y = p->forward.activations[first_layer];
    reserve_activations(p, y, first || !attention, first || !all);
    if (first || !all)
        ek_moe_reserve_activations(moe, slot, &p->arena, &p->limits, all);
    else if (p->moe != NULL)
        ek_moe_share_activations(moe, slot, &p->moe[first_layer]);
    ek_moe_set_tokens(moe, slot, p->forward.x != NULL ? x_at(p, slot, 2 * l + 2) : NULL, y->y2);
}

static void reserve_layer(ek_pass *p, int32_t l, int32_t first_layer, ek_moe *moe)
{
    ek_layer_activations measured_layer = {0};

    moe->k = p->model->k;
    moe->spec = &p->model->spec;
    moe->mesh = p->model->cfg.mesh;
    moe->cfg = &p->cfg.moe;
    moe->w = &p->model->layers[l].experts;
    moe->step = &p->step;
    moe->scratch = &p->scratch;
    moe->planning = &p->planning;
    ek_moe_reserve_state(moe, ek_arena_host(&p->arena), p->cfg.max_seq, p->act_slots);
    ek_moe_reserve_replicas(moe, &p->arena, &p->limits, p->act_slots, p->cfg.training);
    for (int slot = 0; slot < p->act_slots; slot++) {
        int64_t at = slot * p->model->spec.layers + l;

        reserve_layer_slot(p, l, slot, first_layer, moe,
                           p->forward.activations != NULL ? &p->forward.activations[at]
                                                          : &measured_layer);
    }
}

/* The residual stream of one activation slot: entries of this stage's layers. mid: x[2l+1] of every
 * layer, if layers are recomputed. */
static void reserve_residuals(ek_pass *p, int slot, void *mid)
{
    int64_t layers = p->model->spec.layers, n = p->max_tokens * p->model->spec.hidden;
    size_t real = real_size(p);
    void *shared[2] = {NULL, NULL};

    for (int64_t i = 0; i <= 2 * layers; i++) {
        int in = i < 2 * layers && ek_model_has_layer(p->model, i / 2);
        int out = i > 0 && ek_model_has_layer(p->model, (i - 1) / 2);
        void *x;

        if (!in && !out)
            continue;
        if (!p->cfg.training && shared[i % 2] != NULL) {
            x = shared[i % 2];
        } else if (p->cfg.recompute == EK_RECOMPUTE_FULL && i % 2 == 1) {
            x = mid;
        } else {
            x = ek_arena_alloc(&p->arena, n, real);
        }
        shared[i % 2] = x;
        if (p->forward.x != NULL)
            p->forward.x[slot * (2 * layers + 1) + i] = x;
    }
}

/* Buffers of tensor parallel gathers and partial sums. */
static void reserve_tp(ek_pass *p)
{
    const ek_mesh *mesh = p->model->cfg.mesh;
    ek_arena *a = &p->arena;

    p->tp =
        (ek_tp){.mesh = mesh, .k = p->model->k, .d = p->model->spec.hidden, .max_all = p->max_all};
    p->scratch.tp = p->forward.tp = &p->tp;
    ek_tp_reserve(&p->tp, a, p->cfg.training);
    p->backward.head.ids = ek_arena_alloc(a, p->max_all, sizeof(*p->backward.head.ids));
    if (p->model->spec.qk_norm == EK_QK_NORM_FULL)
        p->forward.norm_sums = ek_arena_alloc(a, 2 * p->max_all, sizeof(double));
    p->backward.head.stats =
        ek_arena_alloc(a, 3 * mesh->tp * p->backward.head.rows, sizeof(double));
    p->backward.head.factor = ek_arena_alloc(a, p->backward.head.rows, sizeof(double));
    p->backward.head.hit = ek_arena_alloc(a, p->backward.head.rows, sizeof(double));
}

/* An embedding whose columns are sharded. */
static void reserve_embed_columns(ek_pass *p)
{
    ek_embed_columns *c = &p->backward.columns;
    const ek_model *m = p->model;
    int dp = m->cfg.mesh->dp;
    size_t real = ek_dtype_size(m->k->real);

    if (!m->cfg.embed_columns || !ek_model_has_embed(m))
        return;
    c->total = p->limits.total;
    c->ids = ek_arena_alloc(&p->arena, p->act_slots * p->limits.total, sizeof(*c->ids));
    c->own = ek_arena_alloc(&p->arena, p->limits.total * m->local.embed_cols, real);
    c->blocks = ek_arena_alloc(&p->arena, p->max_all * m->spec.hidden, real);
    c->rows = ek_arena_alloc(ek_arena_host(&p->arena), (int64_t)dp * dp, sizeof(*c->rows));
    c->first = ek_arena_alloc(ek_arena_host(&p->arena), dp + 1, sizeof(*c->first));
}

static void reserve_scratch(ek_pass *p)
{
    const ek_model_spec *s = &p->model->spec;
    const ek_local_sizes *local = &p->model->local;
    int64_t n = p->max_tokens, d = s->hidden, q = local->heads * s->head_dim;
    size_t real = real_size(p), comp = comp_size(p);
    ek_arena *a = &p->arena;
    int parts = p->model->cfg.mesh->tp > 1;

    p->forward.ws = ek_arena_alloc(a, (int64_t)workspace_bytes(p), 1);
    p->forward.cos_sin = ek_arena_alloc(a, p->cfg.max_seq * s->head_dim, real);
    p->backward.head.y = ek_arena_alloc(a, parts ? 0 : p->backward.head.rows * d, comp);
    p->backward.head.rstd = ek_arena_alloc(a, parts ? n : p->backward.head.rows, real);
    p->backward.head.logits = ek_arena_alloc(a, p->backward.head.rows * local->vocab, real);
    p->backward.head.loss_rows =
        ek_arena_alloc(a, n > p->backward.head.rows ? n : p->backward.head.rows, sizeof(double));
    if (parts)
        reserve_tp(p);
    reserve_embed_columns(p);
    if (!p->cfg.training)
        return;
    p->backward.dx = p->scratch.dx = ek_arena_alloc(a, n * d, real);
    if (p->model->cfg.mesh->pp > 1) {
        p->dx_in = ek_arena_alloc(a, n * d, real);
        p->dx_out = ek_arena_alloc(a, n * d, real);
    }
    p->backward.dy = ek_arena_alloc(a, parts ? 0 : n * d, real);
    p->backward.dy_comp = ek_arena_alloc(a, parts ? 0 : n * d, comp);
    p->backward.d_o = ek_arena_alloc(a, p->max_all * q, comp);
    p->backward.dqkv =
        ek_arena_alloc(a, p->max_all * (q + 2 * local->kv_heads * s->head_dim), comp);
    p->backward.head.dlogits_ld = (local->vocab + 7) / 8 * 8;
    p->backward.head.dlogits =
        ek_arena_alloc(a, p->backward.head.rows * p->backward.head.dlogits_ld, comp);
    p->backward.head.dy = ek_arena_alloc(a, parts ? 0 : p->backward.head.rows * d, real);
}

/* --- creation --------------------------------------------------------------------------------- */

static void reserve_order(ek_pass *p)
{
    int64_t model_chunks = p->model->cfg.model_chunks, items = model_chunks * p->cfg.micros;
    ek_arena *a = ek_arena_host(&p->arena);

    p->forward.act_slot_of = ek_arena_alloc(a, items, sizeof(*p->forward.act_slot_of));
    p->graph.order = ek_arena_alloc(a, 2 * items, sizeof(*p->graph.order));
    p->graph.act_slot_freed =
        ek_arena_alloc(a, model_chunks * p->act_slots, sizeof(*p->graph.act_slot_freed));
    p->graph.act_slot_taken =
        ek_arena_alloc(a, model_chunks * p->act_slots, sizeof(*p->graph.act_slot_taken));
}

static void reserve_layers(ek_pass *p)
{
    ek_arena *host = ek_arena_host(&p->arena);
    int32_t layers = (int32_t)p->model->spec.layers, first = -1;

    p->forward.activations =
        ek_arena_alloc(host, p->act_slots * layers, sizeof(*p->forward.activations));
    p->moe = ek_arena_alloc(host, layers, sizeof(*p->moe));
    for (int32_t l = 0; l < layers; l++) {
        ek_moe measured = {0};

        if (!ek_model_has_layer(p->model, l))
            continue;
        if (first < 0)
            first = l;
        reserve_layer(p, l, first, p->moe != NULL ? &p->moe[l] : &measured);
    }
}

static void reserve_pass(ek_pass *p)
{
    int64_t layers = p->model->spec.layers, n = p->max_tokens * p->model->spec.hidden;
    ek_arena *host = ek_arena_host(&p->arena);
    void *mid = NULL;

    reserve_scratch(p);
    ek_moe_reserve_scratch(&p->scratch, &p->arena, p->model->k, &p->model->spec, p->model->cfg.mesh,
                           &p->cfg.moe, &p->limits, p->cfg.training);
    ek_moe_reserve_planning(&p->planning, &p->arena, &p->model->spec, p->model->cfg.mesh,
                            &p->cfg.moe, &p->limits);
    reserve_order(p);
    ek_pass_reserve_stats(p);
    p->forward.x = ek_arena_alloc(host, p->act_slots * (2 * layers + 1), sizeof(*p->forward.x));
    if (p->cfg.training && p->cfg.recompute == EK_RECOMPUTE_FULL)
        mid = ek_arena_alloc(&p->arena, n, real_size(p));
    for (int slot = 0; slot < p->act_slots; slot++)
        reserve_residuals(p, slot, mid);
    reserve_layers(p);
    p->backward.moe = p->rebalance.moe = p->moe;
    ek_rebalance_reserve(&p->rebalance, &p->arena, p->cfg.training);
}

/* Micro-batches of a model chunk in flight at once, on a stage. */
static int slots_of_stage(const ek_pass *p, int stage, ek_pipe_item *items)
{
    const ek_model_config *c = &p->model->cfg;
    int64_t n = ek_pipe_order(c->mesh->pp, c->model_chunks, p->cfg.micros, stage, 1, items),
            most = 1;

    for (int i = 0; i < c->model_chunks; i++) {
        int64_t slots = ek_pipe_slots(items, n, i);

        most = slots > most ? slots : most;
    }
    return (int)most;
}

static ek_status count_slots(ek_pass *p)
{
    const ek_model_config *c = &p->model->cfg;
    ek_pipe_item *items = malloc((size_t)(2 * c->model_chunks * p->cfg.micros) * sizeof(*items));

    EK_REQUIRE(items != NULL, EK_ENOMEM, "no memory for %lld micro-batches",
               (long long)p->cfg.micros);
    p->act_slots = slots_of_stage(p, c->mesh->pp_rank, items);
    p->pipe_group = slots_of_stage(p, c->mesh->pp - 1, items); /* the last stage needs fewest */
    p->pipe_group = p->pipe_group < c->mesh->pp ? p->pipe_group : c->mesh->pp;
    free(items);
    return EK_OK;
}

/* Rows of a block of the loss head.  On CPUs logits of a block are reused while they are in cache.
 * On a device a block must fill its multiprocessors in the product with the smallest result, rows x
 * hidden, and must take long against reading and writing the head's gradient, which every block
 * adds to: 2 rows operations per element and 8 bytes.  At 400 TFLOP/s and 3.3 TB/s that traffic
 * takes 0.12 of the product's time with 4096 rows, and 6 times its time with 83. */
static int64_t head_rows(const ek_pass *p)
{
    const ek_model *m = p->model;
    int64_t vocab = ek_range_length(m->spec.vocab, m->cfg.mesh->tp, 0);
    int64_t bytes = m->k->wide ? HEAD_LOGITS_BYTES_WIDE : HEAD_LOGITS_BYTES;
    int64_t rows = bytes / (vocab * (int64_t)sizeof(float));

    rows = rows < HEAD_ROWS_MIN ? HEAD_ROWS_MIN : rows > HEAD_ROWS_MAX ? HEAD_ROWS_MAX : rows;
    return rows < p->max_all ? rows : p->max_all;
}

static ek_status init_pass(ek_pass *p, ek_model *m, const ek_pass_config *cfg)
{
    const ek_mesh *mesh = m->cfg.mesh;

    EK_REQUIRE(cfg->max_seqs > 0 && cfg->max_seq > 0, EK_EINVAL,
               "a micro-batch of %lld sequences of %lld tokens", (long long)cfg->max_seqs,
               (long long)cfg->max_seq);
    EK_REQUIRE(!__builtin_mul_overflow(cfg->max_seqs, cfg->max_seq, &p->max_all) &&
                   p->max_all * ek_moe_cols(&m->spec) < INT32_MAX,
               EK_EOVERFLOW, "a micro-batch of %lld sequences of %lld tokens is too large",
               (long long)cfg->max_seqs, (long long)cfg->max_seq);
    p->model = m;
    p->cfg = *cfg;
    if (p->cfg.micros == 0)
        p->cfg.micros = 1;
    p->forward = (ek_forward){.model = m, .scratch = &p->scratch, .micros = p->cfg.micros};
    p->backward = (ek_backward){.forward = &p->forward, .recompute = cfg->recompute};
    p->rebalance = (ek_rebalance){.model = m, .cfg = &p->cfg.moe, .planning = &p->planning};
    p->max_tokens = ek_range_length(p->max_all, mesh->tp, mesh->tp_rank);
    p->act_slots = p->pipe_group = 1;
    p->limits =
        (ek_moe_limits){p->max_tokens, p->max_all, cfg->max_total > 0 ? cfg->max_total : p->max_all,
                        m->cfg.spare_slots};
    EK_TRY(ek_moe_check_limits(&m->spec, mesh, &p->limits));
    EK_TRY(ek_reroute_check(&m->spec, &cfg->moe));
    if (cfg->training)
        EK_TRY(count_slots(p));
    p->backward.head.rows = head_rows(p);
    ek_arena_measure_from(&p->arena, m->k->memory, &p->host);
    reserve_pass(p);
    return ek_arena_check(&p->arena, "activations");
}

ek_status ek_pass_measure(ek_model *m, const ek_pass_config *cfg, size_t *bytes)
{
    ek_pass p;

    memset(&p, 0, sizeof(p));
    EK_TRY(init_pass(&p, m, cfg));
    *bytes = ek_arena_expected(&p.arena);
    return EK_OK;
}

/* The rope table for sequences of `length` tokens. */
static void fill_positions(ek_pass *p, int64_t length)
{
    const ek_model *m = p->model;

    p->cos_sin_length = length;
    if (!m->cfg.never_touched)
        ek_rope_fill(&m->spec, length, 0, length, m->k->real, p->forward.cos_sin);
}

ek_status ek_pass_create(ek_model *m, const ek_pass_config *cfg, ek_pass **out)
{
    ek_pass *p = calloc(1, sizeof(*p));
    ek_status st = EK_OK;

    EK_REQUIRE(p != NULL, EK_ENOMEM, "no memory for a pass");
    EK_TRY_OUT(init_pass(p, m, cfg));
    p->arena.never_touched = m->cfg.never_touched;
    EK_TRY_OUT(ek_arena_reserve(&p->arena, "activations"));
    reserve_pass(p);
    EK_TRY_OUT(ek_arena_check(&p->arena, "activations"));
    fill_positions(p, cfg->max_seq);
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

/* Recomputes the rope table if the sequence length requires it. */
static ek_status fit_positions(ek_pass *p, const ek_micro *micro, int64_t n_micro)
{
    const ek_model *m = p->model;

    for (int64_t i = 1; i < n_micro; i++)
        EK_REQUIRE(!ek_rope_differs(&m->spec, micro[0].seq, micro[i].seq), EK_EUNSUPPORTED,
                   "a step of sequences of %lld and %lld tokens: with dynamic rope scaling all of "
                   "a step must have the same length",
                   (long long)micro[0].seq, (long long)micro[i].seq);
    if (n_micro == 0 || !ek_rope_differs(&m->spec, micro[0].seq, p->cos_sin_length))
        return EK_OK;
    EK_TRY(ek_kernels_wait(m->k));
    fill_positions(p, micro[0].seq);
    return EK_OK;
}

/* Number of targets that count, of this data parallel rank. */
static double count_targets(const ek_micro *mb)
{
    int64_t n = 0;

    for (int64_t i = 0; i < mb->all; i++)
        n += mb->targets[i] >= 0;
    return (double)n;
}

ek_status ek_pass_begin(ek_pass *p, const ek_moe_step *step, const ek_micro *micro, int64_t n_micro)
{
    const int32_t *act_slot_of = p->forward.act_slot_of;

    EK_REQUIRE(n_micro <= p->cfg.micros, EK_EINVAL,
               "%lld micro-batches; the pass holds at most %lld", (long long)n_micro,
               (long long)p->cfg.micros);
    p->step = *step;
    p->step.micro = micro;
    p->forward.micro = p->tp.micro = micro;
    p->forward.n_micro = n_micro;
    p->backward.loss.tokens = 0;
    p->backward.loss.counted = -1;
    p->backward.trains = ek_pass_trains(p);
    p->backward.a2a = ek_moe_a2a(&p->cfg.moe, &p->step);
    p->backward.loss.masked = n_micro > 0 && micro[0].starts != NULL;
    p->backward.loss.sum = 0;
    for (int64_t i = 0; i < n_micro; i++) {
        EK_REQUIRE(micro[i].seqs <= p->cfg.max_seqs && micro[i].seq <= p->cfg.max_seq, EK_EINVAL,
                   "micro-batch %lld is %lld x %lld; the pass holds at most %lld x %lld",
                   (long long)i, (long long)micro[i].seqs, (long long)micro[i].seq,
                   (long long)p->cfg.max_seqs, (long long)p->cfg.max_seq);
        EK_REQUIRE((micro[i].starts != NULL) == p->backward.loss.masked, EK_EINVAL,
                   "some micro-batches of the step have document masks, others have none");
        p->backward.loss.tokens +=
            p->backward.loss.masked ? count_targets(&micro[i]) : (double)micro[i].total;
    }
    EK_TRY(fit_positions(p, micro, n_micro));
    for (int64_t l = 0; l < p->model->spec.layers; l++) {
        if (!ek_model_has_layer(p->model, l))
            continue;
        p->moe[l].act_slot_of =
            act_slot_of + ek_model_vstage_of(p->model, l) / p->model->cfg.mesh->pp * p->cfg.micros;
        ek_moe_begin_step(&p->moe[l]);
    }
    if (ek_pass_trains(p))
        ek_rebalance_step(&p->rebalance);
    return EK_OK;
}

void ek_pass_set_feedback(ek_pass *p)
{
    for (int64_t l = 0; l < p->model->spec.layers; l++)
        if (ek_model_has_moe_layer(p->model, l))
            ek_gate_set_feedback(&p->moe[l]);
}
