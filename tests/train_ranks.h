/* train_ranks.h - training on ranks that are threads, for tests: `run` executes a job, and the
 * ranks stay alive for comparison.  They train on sequences, or with synthetic gradients, a
 * function of (tensor, element, rank), which need no forward pass. */
#ifndef TRAIN_RANKS_H
#define TRAIN_RANKS_H

#include "base/random.h"
#include "ek_test.h"
#include "exec/exec.h"
#include "model/blocks/backward.h"
#include "model/hf/init.h"
#include "model/hf/weights.h"
#include "model/param_buckets.h"
#include "model/step/pass.h"
#include "tensor/select/select.h"
#include "train/optimizer.h"

#include <pthread.h>

enum { RANKS_MAX = 8, STEPS = 5, SEQ = 6, MICROS = 2, SEQS = 3, VOCAB = 61 };

/* How the ranks run. */
typedef struct job job;
struct job {
    ek_model_spec spec;
    ek_mode mode;
    ek_mesh_sizes sizes;
    int ranks, zero, model_chunks;
    int micros; /* 0: MICROS */
    int idle;   /* takes no steps */
    ek_isa isa;
    int64_t bucket_bytes;
    int worker;      /* the network has a thread of its own */
    const job *like; /* gradients are made up; one rank makes up those of all ranks of this */
    double poison;   /* added to a gradient of the last rank */
};

static inline int micros_of(const job *j)
{
    return j->micros > 0 ? j->micros : MICROS;
}

/* One rank, alive until its results are compared. */
typedef struct {
    const job *j;
    ek_comm *world;
    ek_mesh *mesh;
    ek_kernels *k;
    ek_model *m;
    ek_pass *pass;
    ek_exec *exec;
    ek_graph graph;
    ek_optimizer opt;
    ek_micro micro[MICROS];
    int32_t tokens[2][MICROS][SEQS * SEQ];
    double sums[2], loss[STEPS], norm[STEPS];
    int64_t sent; /* bytes of the last step */
    int step;
    pthread_t thread;
    ek_status failed;
    char text[512];
} rank;

/* --- training on sequences -------------------------------------------------------------------- */

/* This rank's sequences of each micro-batch: a run of them, perhaps none. */
static inline void fill_tokens(rank *r)
{
    int micros = micros_of(r->j);
    int64_t first = ek_range_first(SEQS, r->mesh->dp, r->mesh->dp_rank);
    int64_t seqs = ek_range_length(SEQS, r->mesh->dp, r->mesh->dp_rank);

    for (int i = 0; i < micros; i++) {
        r->micro[i] = ek_micro_alone(seqs, SEQ, 1.0 / micros, (uint64_t)(i * SEQS + first),
                                     r->tokens[0][i], r->tokens[1][i]);
        r->micro[i].total = SEQS * SEQ;
        r->micro[i].micro_first = (uint64_t)(i * SEQS);
        for (int64_t t = 0; t < seqs * SEQ; t++)
            for (int a = 0; a < 2; a++)
                r->tokens[a][i][t] =
                    (int32_t)(ek_random_bits((uint64_t)r->step, (uint64_t)(2 * i + a),
                                             (uint64_t)(first * SEQ + t)) %
                              VOCAB);
    }
}

static inline ek_status build_pass(rank *r)
{
    ek_moe_step step = {.training = 1, .top_k = r->m->spec.top_k, .step = (uint64_t)r->step};
    int32_t layers = (int32_t)r->m->spec.layers, dep = -1;
    int micros = micros_of(r->j);
    ek_graph *g = &r->graph;
    ek_model *m = r->m;

    fill_tokens(r);
    EK_TRY(ek_pass_begin(r->pass, &step, r->micro, micros));
    r->pass->backward.loss.tokens = micros * SEQS * SEQ;
    for (int32_t i = 0; i < micros; i++) {
        int last = i == micros - 1;

        dep = ek_param_buckets_build_use(m, g, EK_MODULE_EMBED, 0, EK_USE_FORWARD, dep);
        dep = ek_embed_build(&r->pass->backward, g, i, dep);
        for (int32_t l = 0; l < layers; l++) {
            int32_t next = l + 1 < layers ? l + 1 : EK_MODULE_HEAD;

            dep = ek_param_buckets_build_use(m, g, l, next, EK_USE_FORWARD, dep);
            dep = ek_layer_build_forward(&r->pass->forward, &r->pass->moe[l], g, l, i,
                                         EK_RECOMPUTE_OFF, dep);
        }
        dep = ek_param_buckets_build_use(m, g, EK_MODULE_HEAD, layers - 1,
                                         EK_USE_FORWARD | EK_USE_BACKWARD, dep);
        dep = ek_head_build(&r->pass->backward, g, i, dep);
        ek_param_buckets_build_reduce(m, g, EK_MODULE_HEAD, i, last, -1, dep);
        for (int32_t l = layers - 1; l >= 0; l--) {
            int32_t next = l > 0 ? l - 1 : EK_MODULE_EMBED;

            dep = ek_param_buckets_build_use(m, g, l, next, EK_USE_BACKWARD, dep);
            dep = ek_layer_build_backward(&r->pass->backward, g, l, i, dep);
            ek_param_buckets_build_reduce(m, g, l, i, last, -1, dep);
        }
        dep =
            ek_param_buckets_build_use(m, g, EK_MODULE_EMBED, EK_MODULE_NONE, EK_USE_BACKWARD, dep);
        dep = ek_embed_build_backward(&r->pass->backward, g, i, dep);
        ek_param_buckets_build_reduce(m, g, EK_MODULE_EMBED, i, last, -1, dep);
    }
    return EK_OK;
}

/* --- synthetic gradients ---------------------------------------------------------------------- */

static inline double made_up(const char *name, int step, int micro, int part, int64_t i)
{
    uint64_t stream = ek_random_stream(name) + (uint64_t)((step * 100 + micro) * 100 + part);

    return ek_random_normal(7, stream, (uint64_t)i) * 0.01;
}

static inline const ek_param *param_of(const ek_model *m, const ek_weight *w)
{
    for (int64_t i = 0; i < m->n_params; i++)
        if (m->params[i].w == w)
            return &m->params[i];
    return NULL;
}

static inline void add_to(const ek_kernels *k, void *p, int64_t i, double x)
{
    if (k->real == EK_F64)
        ((double *)p)[i] += x;
    else
        ((float *)p)[i] += (float)x;
}

/* The ranks whose gradients of p this one makes up: [*from, *to). */
static inline void parts_of(const rank *r, const ek_param *p, int *from, int *to)
{
    const ek_mesh *mesh = r->mesh;
    ek_mesh_sizes z = r->j->like->sizes;
    int stage = r->j->like->ranks / (z.pp > 0 ? z.pp : 1);

    switch (p->share) {
    case EK_SHARE_DP:
        *from = mesh->dp_rank;
        *to = stage / (z.tp > 0 ? z.tp : 1);
        break;
    case EK_SHARE_EDP:
        *from = mesh->edp_rank;
        *to = stage / ((z.ep > 0 ? z.ep : 1) * (z.etp > 0 ? z.etp : 1));
        break;
    case EK_SHARE_STAGE:
        *from = mesh->at;
        *to = stage;
        break;
    case EK_SHARE_NONE: /* nobody else could make up the rest */
        *from = 0;
        *to = 1;
        break;
    }
    if (mesh->size > 1)
        *to = *from + 1;
}

/* Adds to the gradient of element i of tensor t, which lies at `at` of w. */
static inline void make_up(rank *r, const ek_op *op, const ek_hf_tensor *t, const ek_param *p,
                           int64_t i, int64_t at)
{
    int from = 0, to = 0, one = r->mesh->size == 1;
    int tied =
        p->module == EK_MODULE_EMBED && r->m->spec.tie_embeddings && r->j->like->sizes.pp > 1;

    parts_of(r, p, &from, &to);
    for (int part = from; part < to; part++) {
        if (!p->copy)
            add_to(r->k, p->w->g, at, made_up(t->name, r->step, op->micro, part, i));
        if (p->copy || (tied && one))
            add_to(r->k, p->w->g, at, made_up(t->name, r->step, op->micro, part + 50, i));
    }
    if (r->mesh->rank == r->mesh->size - 1)
        add_to(r->k, p->w->g, at, r->j->poison);
}

/* Adds to the gradients of the place op->part what its backward would. */
static inline ek_status op_make_up(void *self, const ek_op *op)
{
    rank *r = self;

    for (int64_t i = 0; i < ek_hf_count(&r->m->spec); i++) {
        ek_hf_tensor t;
        ek_span a;
        const ek_param *p;
        int64_t width;

        ek_hf_tensor_at(&r->m->spec, i, &t);
        if (!ek_model_span(r->m, &t, &a))
            continue;
        p = param_of(r->m, a.w);
        width = t.dims > 1 ? t.shape[1] : 1;
        if (p == NULL || p->module != op->part || !p->trained)
            continue;
        for (int64_t row = 0; row < a.rows; row++)
            for (int64_t c = 0; c < a.cols; c++)
                make_up(r, op, &t, p, (a.row + row) * width + a.col + c, a.first + row * a.ld + c);
    }
    return EK_OK;
}

static inline void build_made_up(rank *r)
{
    int32_t layers = (int32_t)r->m->spec.layers, dep = -1;

    for (int32_t i = 0; i < micros_of(r->j); i++)
        for (int32_t l = layers; l >= -1; l--) {
            int32_t place = l == layers ? EK_MODULE_HEAD : l;
            ek_op op = {.kind = EK_OP_EMBED,
                        .run = op_make_up,
                        .self = r,
                        .lane = EK_LANE_COMPUTE,
                        .layer = -1,
                        .micro = i,
                        .part = place};

            if (l >= 0 && l < layers && !ek_model_has_layer(r->m, l))
                continue;
            dep = ek_param_buckets_build_use(r->m, &r->graph, place, EK_MODULE_NONE,
                                             EK_USE_BACKWARD, dep);
            dep = ek_graph_after(&r->graph, &op, dep);
            ek_param_buckets_build_reduce(r->m, &r->graph, place, i, i == micros_of(r->j) - 1, -1,
                                          dep);
        }
}

/* --- ranks ------------------------------------------------------------------------------------ */

/* Numbers summed with the norm. */
static inline ek_status op_loss(void *self, const ek_op *op)
{
    rank *r = self;

    (void)op;
    r->sums[1] = r->pass != NULL ? r->pass->backward.loss.sum : 1;
    return EK_OK;
}

static inline ek_status take_step(rank *r)
{
    ek_op loss = {.kind = EK_OP_LOSSES, .run = op_loss, .self = r, .layer = -1, .micro = -1};
    int64_t before = ek_comm_bytes_sent(r->world);

    ek_graph_reset(&r->graph);
    ek_param_buckets_begin_step(r->m);
    if (r->j->like != NULL)
        build_made_up(r);
    else
        EK_TRY(build_pass(r));
    ek_graph_after(&r->graph, &loss, r->graph.n_ops - 1);
    ek_optimizer_build(&r->opt, &r->graph, r->graph.n_ops - 1);
    EK_TRY(ek_graph_check(&r->graph));
    EK_TRY(ek_exec_run(r->exec, &r->graph));
    r->loss[r->step] = r->sums[1];
    r->norm[r->step] = r->opt.grad_norm;
    r->sent = ek_comm_bytes_sent(r->world) - before;
    return EK_OK;
}

static inline ek_status open_rank(rank *r)
{
    const job *j = r->j;
    ek_model_config mc = {.trained = 1,
                          .model_chunks = j->model_chunks,
                          .zero = j->zero,
                          .bucket_bytes = j->bucket_bytes};
    ek_pass_config pc = {.max_seqs = SEQS, .max_seq = SEQ, .micros = MICROS, .training = 1};
    ek_optimizer_config oc = {.lr = 1e-2,
                              .steps = STEPS,
                              .decay = 0.1,
                              .beta1 = 0.9,
                              .beta2 = 0.95,
                              .eps = 1e-8,
                              .clip = 0.5};
    ek_exec_config ec = {.inline_async = !j->worker};

    EK_TRY(ek_mesh_open(r->world, &j->sizes, &r->mesh));
    mc.mesh = r->mesh;
    EK_TRY(ek_kernels_create(j->mode, j->isa, 1, &r->k));
    EK_TRY(ek_model_create(&j->spec, r->k, &mc, &r->m));
    CHECK(ek_model_init(r->m, 3) == EK_OK);
    EK_TRY(ek_model_pack(r->m));
    if (j->like == NULL)
        EK_TRY(ek_pass_create(r->m, &pc, &r->pass));
    EK_TRY(ek_exec_create(&ec, &r->exec));
    ek_graph_init(&r->graph);
    ek_optimizer_init(&r->opt, r->m, &oc);
    r->opt.sums = r->sums;
    r->opt.n_sums = 2;
    return EK_OK;
}

static inline ek_status run_rank(rank *r)
{
    EK_TRY(open_rank(r));
    for (r->step = 0; r->step < STEPS && !r->j->idle; r->step++)
        EK_TRY(take_step(r));
    return EK_OK;
}

static inline void *work(void *arg)
{
    rank *r = arg;

    r->failed = run_rank(r);
    if (r->failed < 0)
        snprintf(r->text, sizeof(r->text), "%s", ek_err_text());
    return NULL;
}

static inline void start(const job *j, rank *ranks)
{
    ek_comm *worlds[RANKS_MAX];

    memset(ranks, 0, (size_t)j->ranks * sizeof(*ranks));
    CHECK(ek_comm_open_threads(j->ranks, worlds) == EK_OK);
    for (int i = 0; i < j->ranks; i++) {
        ranks[i].j = j;
        ranks[i].world = worlds[i];
        CHECK(pthread_create(&ranks[i].thread, NULL, work, &ranks[i]) == 0);
    }
    for (int i = 0; i < j->ranks; i++)
        pthread_join(ranks[i].thread, NULL);
}

/* Runs a job; its ranks stay for comparison. */
static inline void run(const job *j, rank *ranks)
{
    start(j, ranks);
    for (int i = 0; i < j->ranks; i++)
        if (ranks[i].failed < 0)
            EK_T_FAIL("rank %d of %d, zero %d: %s", i, j->ranks, j->zero, ranks[i].text);
}

static inline void close_ranks(rank *ranks, int n)
{
    for (int i = 0; i < n; i++) {
        rank *r = &ranks[i];

        ek_exec_destroy(&r->exec);
        ek_graph_fini(&r->graph);
        ek_pass_destroy(&r->pass);
        ek_model_destroy(&r->m);
        ek_kernels_destroy(&r->k);
        ek_mesh_close(&r->mesh);
        ek_comm_close(&r->world);
    }
}

static inline int ready(const rank *ranks, int n)
{
    for (int i = 0; i < n; i++)
        if (ranks[i].failed < 0 || ranks[i].m == NULL)
            return 0;
    return 1;
}

/* Sizes that nothing divides. */
static inline ek_model_spec odd_spec(void)
{
    ek_model_spec s;

    ek_model_default(&s);
    s.vocab = VOCAB;
    s.hidden = 12;
    s.layers = 3;
    s.heads = 4;
    s.kv_heads = 2;
    s.head_dim = 4;
    s.experts = 3;
    s.top_k = 2;
    s.ff = 7;
    s.rope_theta = 10000;
    s.max_positions = 64;
    return s;
}

#endif
