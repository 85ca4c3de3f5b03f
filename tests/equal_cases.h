/* equal_cases.h - any layout trains as one rank does: layouts (equal_layout.h) are compared step by
 * step with one rank; and a checkpoint of one layout is continued by another.  For ranks that are
 * threads and for ranks of MPI. */
#ifndef EQUAL_CASES_H
#define EQUAL_CASES_H

#include "equal_layout.h"
#include "kept_numbers.h"
#include "model/hf/init.h"
#include "train/checkpoint/checkpoint.h"

#include <time.h>

/* A range of steps, and what is saved and loaded. */
typedef struct {
    int from, to;
    int save_at;     /* save before this step of the range; -1: never */
    int background;  /* 1: save in the background */
    const char *dir; /* folder to save to; with from > 0 also to load from */
    kept_record *record;
} equal_leg;

/* Results of training; equal on all ranks except for what each holds. */
typedef struct {
    double eval[EQUAL_STEPS]; /* mean loss of an evaluation before the step; 0: there was none */
    double loss[EQUAL_STEPS], aux[EQUAL_STEPS], norm[EQUAL_STEPS];
    int64_t dropped[EQUAL_STEPS], held, owned, whole, sent, replicas, moved, plans;
    int64_t transient_rows, persistent_rows; /* that replicas of either kind served in the last
                                                micro-batches of the steps */
    int64_t both;                            /* experts that had both kinds in one of these */
    double brought; /* bytes of weights and gradients of replicas and slices */
    ek_moe_traffic way[EQUAL_STEPS];
    int64_t bytes[EQUAL_STEPS]; /* sent */
    int cut[EQUAL_STEPS];       /* token ranges in which a layer's rows were dispatched */
    double before, after;       /* busiest ranks over the mean, sums over steps */
    int64_t
        rank_rows[EQUAL_RANKS_MAX]; /* that expert ranks of the stage served, in the second half */
    double slowest;                 /* ek_losses.slowest_rank of the last step */
    int64_t first_sequences, last_sequences; /* of this rank in the first and last step */
    int least_nodes[EQUAL_STEPS]; /* nodes that hold an expert persistently, in the step: minimum
                                     over experts */
    int64_t deferred;             /* updates that were put off, of experts on disk */
    int64_t written;              /* bytes, to the scratch file */
    ek_offload_traffic planned, took; /* of a step, in advance; of the last step */
    uint64_t graph;                   /* digest of the first step's */
    int64_t ops;                      /* in it */
    size_t memory;                    /* of the model and its trainer */
    int done;                         /* 1: it ended without a failure */
} equal_result;

static inline equal_leg equal_whole(const equal_layout *l)
{
    return (equal_leg){.to = equal_steps_of(l->mode), .save_at = -1};
}

/* --- training --------------------------------------------------------------------------------- */

static inline int equal_no_sync(int fd)
{
    (void)fd;
    return 0;
}

static inline ek_status equal_begin_save(ek_model *m, const equal_leg *leg, ek_io *io, json_t *set,
                                         ek_train_saving **s)
{
    ek_train_save_config cfg = {.model = m,
                                .settings = set,
                                .steps_done = leg->save_at,
                                .keep = 1,
                                .out_dir = leg->dir,
                                .background = leg->background,
                                .io = io};

    *io = ek_io_system;
    io->sync = equal_no_sync; /* to be fast */
    kept_enter(leg->record, m);
    return ek_train_save_begin(&cfg, s);
}

/* Number of nodes on which an expert-parallel group holds an expert. */
static inline int equal_nodes_of(const ek_moe *m, int32_t expert)
{
    const ek_placement *p = &m->w->placement;
    int nodes[EQUAL_RANKS_MAX], n = 0;

    for (int32_t r = 0; r < m->mesh->ep; r++) {
        int node = m->mesh->size > 1 ? ek_comm_node(m->mesh->stage, r * m->mesh->etp) : 0;
        int known = 0;

        for (int i = 0; i < n; i++)
            known |= nodes[i] == node;
        if (!known && ek_plan_slot(p, r, expert) >= 0)
            nodes[n++] = node;
    }
    return n;
}

/* The minimum over experts; 0 if a rank lacks the weights of an expert of its placement. */
static inline int equal_least_nodes(const ek_pass *p)
{
    int least = EQUAL_RANKS_MAX + 1;

    for (int64_t l = 0; l < p->model->spec.layers; l++) {
        const ek_moe *m = &p->moe[l];

        for (int32_t e = 0; ek_model_has_layer(p->model, l) && m->w->routed && e < m->x.experts;
             e++) {
            int n = equal_nodes_of(m, e);
            int32_t rank = m->mesh->edp_rank * m->mesh->ep + m->mesh->ep_rank;
            int here = ek_plan_slot(&m->w->placement, rank, e) >= 0;

            if (here != (m->w->up[e].out > 0))
                n = 0;
            least = n < least ? n : least;
        }
    }
    return least;
}

/* Rows of the last micro-batch in a slot, from all sources. */
static inline int64_t equal_rows_in(const ek_moe *m, int32_t slot)
{
    int64_t rows = 0;

    for (int source = 0; source < m->x.ranks; source++)
        for (int chunk = 0; chunk < m->x.token_chunks; chunk++)
            rows +=
                ek_dispatch_row_counts(&m->x, m->handles[0].route.row_counts, chunk, source)[slot];
    return rows;
}

/* Counts the rows that replicas of a layer serve. */
static inline void equal_count_layer(const ek_moe *m, equal_result *out)
{
    const ek_placement *kept = &m->w->placement;
    int kinds[16] = {0}; /* [experts], bits */

    for (int32_t s = 0; s < m->x.all_slots; s++) {
        int32_t e = m->handles[0].route.expert_of[s];
        int transient = kept->expert_of[s] < 0, group = s / (m->mesh->ep * m->x.slots);
        int64_t rows = e >= 0 ? equal_rows_in(m, s) : 0;

        if (rows == 0 || (!transient && m->x.serves[group * m->x.experts + e] == s))
            continue;
        out->transient_rows += transient ? rows : 0;
        out->persistent_rows += transient ? 0 : rows;
        out->both += (kinds[e] |= transient ? 1 : 2) == 3;
    }
}

static inline void equal_count_rows(const ek_pass *p, equal_result *out)
{
    for (int64_t l = 0; l < p->model->spec.layers; l++)
        if (ek_model_has_layer(p->model, l) && p->moe[l].w->routed && p->moe[l].x.experts <= 16 &&
            p->moe[l].handles[0].route.row_counts != NULL)
            equal_count_layer(&p->moe[l], out);
}

/* Evaluations take place before every third step. */
typedef struct {
    int64_t step, batch, seq, vocab;
} equal_held_out;

static inline int32_t equal_held_out_token(const equal_held_out *h, int64_t i, int64_t t)
{
    return equal_token(1000 + (int)h->step, (uint64_t)(i * (EQUAL_SEQ_MAX + 1) + t), h->vocab);
}

static inline void equal_read(void *context, int64_t i, int32_t *inputs, int32_t *targets)
{
    const equal_held_out *h = context;

    for (int64_t t = 0; t < h->seq; t++) {
        inputs[t] = equal_held_out_token(h, i, t);
        targets[t] = equal_held_out_token(h, i, t + 1);
    }
}

/* Number of targets; with a document mask without those that follow the end of a document. */
static inline int64_t equal_targets(const equal_layout *l, const equal_held_out *h)
{
    int64_t n = 0;

    for (int64_t i = 0; i < h->batch; i++)
        for (int64_t t = 0; t < h->seq; t++)
            n += !equal_masked(l->shape) || equal_held_out_token(h, i, t) != EQUAL_END;
    return n;
}

/* A whole batch, fewer sequences than ranks, shorter ones. */
static inline equal_held_out equal_held_out_of(const equal_layout *l, int step)
{
    equal_shape shape = equal_shape_of(l->shape);
    ek_model_spec spec;
    equal_held_out h = {step, shape.batch, shape.seq, 0};

    equal_spec(l->model, &spec);
    h.vocab = spec.vocab;
    if (step % 2 == 0)
        h.batch = 1 + step % shape.batch;
    if (step % 4 == 0 && shape.seq > 1)
        h.seq = shape.seq / 2;
    return h;
}

static inline ek_status equal_evaluate(ek_trainer *tr, const equal_layout *l, int step, double *out)
{
    equal_held_out h = equal_held_out_of(l, step);
    ek_batch_reader reader = {equal_read, &h};
    ek_comm *world = ek_trainer_pass(tr)->model->cfg.mesh->world;
    ek_eval_sums sums = {0};
    ek_coll *op = NULL;

    EK_TRY(ek_trainer_forward(tr, h.batch, h.seq, &reader, &sums));
    if (world != NULL) {
        EK_TRY(ek_comm_all_reduce(world, &sums, 2, EK_SUM_F64, &op));
        EK_TRY(ek_coll_wait(&op));
    }
    EK_REQUIRE(sums.tokens == (double)equal_targets(l, &h), EK_EINTERNAL,
               "%g targets of %lld counted", sums.tokens, (long long)equal_targets(l, &h));
    *out = sums.tokens > 0 ? sums.loss / sums.tokens : 0;
    return EK_OK;
}

/* Sums of the step before are unchanged afterwards. */
static inline ek_status equal_evaluate_between(ek_trainer *tr, const equal_layout *l, int i,
                                               double *out)
{
    const ek_pass *p = ek_trainer_pass(tr);
    size_t bytes = (size_t)p->stats.n_sums * sizeof(*p->stats.sums);
    double *sums = malloc(bytes);
    ek_status st = EK_OK;

    EK_REQUIRE(sums != NULL, EK_ENOMEM, "no memory for sums");
    memcpy(sums, p->stats.sums, bytes);
    EK_TRY_OUT(equal_evaluate(tr, l, i, out));
    EK_REQUIRE_OUT(memcmp(sums, p->stats.sums, bytes) == 0, EK_EINTERNAL,
                   "an evaluation changes the sums of the step before");
out:
    free(sums);
    return st;
}

/* The first layer of this rank's stage. */
static inline int64_t equal_first_layer(const ek_trainer *tr)
{
    const ek_model *m = ek_trainer_pass(tr)->model;

    return ek_model_vstage_first(m, m->cfg.mesh->pp_rank);
}

static inline void equal_add_rank_rows(const ek_pass *p, equal_result *out)
{
    for (int64_t l = 0; l < p->model->spec.layers; l++)
        for (int32_t r = 0; ek_model_has_layer(p->model, l) && p->moe[l].w->routed &&
                            r < p->moe[l].w->placement.ranks;
             r++)
            out->rank_rows[r] += p->moe[l].stats.rank_rows[r];
}

/* Predicted bytes of a model and its trainer. */
static inline size_t equal_memory(ek_model *m, const ek_trainer_config *cfg)
{
    size_t bytes = 0;

    CHECK(ek_trainer_measure(m, cfg, &bytes) == EK_OK);
    return m->arena.bytes + m->state.bytes + bytes;
}

static inline void equal_keep_graph(const ek_graph *g, equal_result *out)
{
    out->graph = ek_graph_digest(g);
    out->ops = g->n_ops;
}

static inline ek_status equal_one_step(ek_trainer *tr, const equal_layout *l, int i,
                                       equal_result *out)
{
    ek_step_result r;
    ek_model_spec spec;

    equal_spec(l->model, &spec);
    EK_TRY(equal_set_step(tr, l, i));
    if (l->turn != NULL && ek_trainer_pass(tr)->model->cfg.mesh->size > 1)
        EK_TRY(l->turn(tr, i));
    if (!l->blind && i % 3 == 1)
        EK_TRY(equal_evaluate_between(tr, l, i, &out->eval[i]));
    equal_tokens(tr, i, equal_shape_of(l->shape).seq,
                 spec.vocab); /* an evaluation has other tokens */
    out->last_sequences = ek_trainer_sequences(tr);
    if (i == 0)
        out->first_sequences = out->last_sequences;
    EK_TRY(ek_trainer_step(tr, &r));
    if (i == 0)
        equal_keep_graph(ek_trainer_graph(tr), out);
    out->least_nodes[i] = equal_least_nodes(ek_trainer_pass(tr));
    equal_count_rows(ek_trainer_pass(tr), out);
    out->way[i] = r.traffic;
    out->bytes[i] = r.comm_bytes;
    out->cut[i] = ek_trainer_pass(tr)->moe[equal_first_layer(tr)].x.token_chunks;
    out->loss[i] = r.losses.loss;
    out->aux[i] = r.losses.aux_loss;
    out->norm[i] = r.grad_norm;
    out->dropped[i] = r.losses.dropped;
    out->sent += r.comm_bytes;
    out->replicas += r.losses.replicas;
    out->brought += r.losses.replica_bytes;
    out->moved += r.losses.experts_moved;
    out->plans += r.losses.plans;
    out->before += r.losses.primaries.max_over_mean;
    out->after += r.losses.ranks.max_over_mean;
    out->slowest = r.losses.slowest_rank;
    if (l->slow > 0 && i >= EQUAL_STEPS / 2)
        equal_add_rank_rows(ek_trainer_pass(tr), out);
    return EK_OK;
}

/* What the last step moved. */
static inline ek_offload_traffic equal_took(const ek_trainer *tr)
{
    ek_step_disk d = ek_trainer_disk(tr);

    return (ek_offload_traffic){d.read_bytes, d.written_bytes, d.uses, d.hits};
}

static inline ek_status equal_steps(ek_model *m, const equal_layout *l, const equal_leg *leg,
                                    equal_result *out)
{
    ek_trainer_config cfg = equal_config(l);
    ek_trainer *tr = NULL;
    ek_train_saving *saving = NULL;
    json_t *settings = json_object();
    ek_offload_stats disk;
    ek_status st = EK_OK;
    ek_io io;

    EK_TRY_OUT(ek_trainer_count_disk(m, &cfg, &out->planned));
    out->memory = equal_memory(m, &cfg);
    EK_TRY_OUT(ek_trainer_create(m, &cfg, &tr));
    ek_trainer_resume(tr, leg->from);
    for (int i = leg->from; i < leg->to; i++) {
        if (i == leg->save_at) {
            EK_TRY_OUT(ek_trainer_apply_updates(tr));
            EK_TRY_OUT(equal_begin_save(m, leg, &io, settings, &saving));
            if (!leg->background) /* it is written from the model */
                EK_TRY_OUT(ek_train_save_finish(&saving));
        }
        if (saving != NULL && l->offload > 0 && i > leg->save_at)
            EK_TRY_OUT(ek_train_save_wait_written(&saving));
        EK_TRY_OUT(equal_one_step(tr, l, i, out));
        if (saving != NULL)
            EK_TRY_OUT(ek_train_save_poll(&saving));
    }
    if (saving != NULL)
        EK_TRY_OUT(ek_train_save_finish(&saving));
    ek_offload_get_stats(m, &disk);
    out->deferred = disk.deferred;
    out->written = disk.disk.written.bytes;
    out->took = equal_took(tr);
    out->held = m->n_elements;
    out->whole = ek_hf_elements(&m->spec);
    for (int64_t i = 0; i < m->n_params; i++)
        out->owned += m->params[i].w->own;
    out->done = 1;
out:
    ek_train_save_abandon(&saving);
    ek_trainer_destroy(&tr);
    json_decref(settings);
    return st;
}

/* Initial weights, or those of the checkpoint. */
static inline ek_status equal_fill(ek_model *m, const equal_leg *leg)
{
    const ek_mesh *mesh = m->cfg.mesh;
    ek_checkpoint_found found;

    if (leg->from == 0) {
        CHECK(ek_model_init(m, 7) == EK_OK);
        return ek_model_pack(m);
    }
    EK_TRY(ek_train_latest(mesh, leg->dir, EK_CHECK_SUMS, 1, &found));
    EK_REQUIRE(found.step == leg->from, EK_EINVAL, "the checkpoint is of step %lld, not %d",
               (long long)found.step, leg->from);
    EK_TRY(ek_train_load(m, found.path.s, 0));
    kept_enter(leg->record, m);
    return ek_model_pack(m);
}

static _Thread_local long equal_row_ns;
static long equal_pace_factor = 1; /* longer where the machine is so busy that naps hardly differ */
static void (*equal_swiglu)(int64_t n, int64_t f, const void *gu, const void *scale, void *h);

/* Takes a time for each row, by the rank, without computing longer. */
static void equal_paced_swiglu(int64_t n, int64_t f, const void *gu, const void *scale, void *h)
{
    long ns = (long)n * equal_row_ns;
    struct timespec nap = {ns / 1000000000, ns % 1000000000};

    equal_swiglu(n, f, gu, scale, h);
    nanosleep(&nap, NULL);
}

static inline void equal_pace(ek_kernels *k, const ek_comm *world, const equal_layout *l)
{
    if (world == NULL || l->slow == 0)
        return;
    equal_row_ns = equal_pace_factor * (ek_comm_rank(world) + 1 == l->slow ? 600000 : 200000);
    equal_swiglu = k->swiglu_forward; /* the same on all ranks */
    k->swiglu_forward = equal_paced_swiglu;
}

/* Trains over `world` (NULL: one rank alone). */
static inline ek_status equal_train(ek_comm *world, const equal_layout *l, const equal_leg *leg,
                                    equal_result *out)
{
    ek_mesh_sizes sizes = {l->pp, l->tp, l->ep, l->etp};
    equal_model_settings settings;
    ek_kernels *k = NULL;
    ek_model *m = NULL;
    ek_mesh *mesh = NULL;
    ek_status st = EK_OK;

    memset(out, 0, sizeof(*out));
    EK_TRY_OUT(ek_kernels_create(l->mode, ek_cpu_isa(), 1, &k));
    equal_pace(k, world, l);
    if (world != NULL)
        EK_TRY_OUT(ek_mesh_open(world, &sizes, &mesh));
    equal_set_model(&settings, l, mesh);
    EK_TRY_OUT(ek_model_create(&settings.spec, k, &settings.config, &m));
    EK_TRY_OUT(equal_fill(m, leg));
    EK_TRY_OUT(equal_steps(m, l, leg, out));
out:
    ek_model_destroy(&m);
    ek_mesh_close(&mesh);
    ek_kernels_destroy(&k);
    return st;
}

/* --- comparing -------------------------------------------------------------------------------- */

/* The losses of one rank, trained once for each model, shape and mode. */
static inline const equal_result *equal_alone(const equal_layout *like)
{
    static equal_result kept[2][2][EQUAL_MODELS][EQUAL_SHAPES];
    equal_result *r =
        &kept[like->replay != NULL][like->mode != EK_MODE_FP64][like->model][like->shape];
    equal_layout l = {.model = like->model,
                      .shape = like->shape,
                      .degree = 1,
                      .mode = like->mode,
                      .replay = like->replay};
    equal_leg leg = equal_whole(&l);

    if (!r->done && equal_train(NULL, &l, &leg, r) < 0)
        EK_T_FAIL("%s: %s", equal_text(&l), ek_err_text());
    return r;
}

static inline int equal_close(double got, double want, double bound)
{
    return fabs(got - want) <= bound * fabs(want);
}

/* Compares a rank's results with those of one rank alone; reports the first step that differs. */
static inline void equal_compare(const equal_layout *l, const equal_leg *leg,
                                 const equal_result *got)
{
    const equal_result *want = equal_alone(l);
    int exact = l->mode == EK_MODE_FP64;

    for (int i = leg->from; i < leg->to; i++) {
        if (equal_close(got->loss[i], want->loss[i], exact ? 1e-9 : 5e-6) &&
            equal_close(got->aux[i], want->aux[i], exact ? 1e-9 : 1e-4) &&
            equal_close(got->norm[i], want->norm[i], exact ? 1e-9 : 1e-3) &&
            equal_close(got->eval[i], l->blind ? 0 : want->eval[i], exact ? 1e-9 : 5e-6) &&
            got->dropped[i] == want->dropped[i])
            continue;
        EK_T_FAIL("%s: step %d: loss %.15g, balance loss %.15g, norm %.15g, %lld dropped, %.15g of "
                  "an evaluation before it; one rank has %.15g, %.15g, %.15g, %lld, %.15g",
                  equal_text(l), i, got->loss[i], got->aux[i], got->norm[i],
                  (long long)got->dropped[i], got->eval[i], want->loss[i], want->aux[i],
                  want->norm[i], (long long)want->dropped[i], want->eval[i]);
        return;
    }
}

/* Checks what all ranks hold together, and that they communicated. */
static inline void equal_shares(const equal_layout *l, const equal_result *of_rank)
{
    int64_t owned = 0, sent = 0, whole = of_rank[0].whole;
    int columns = l->columns && !equal_tied(l->model) && l->ranks / l->pp / l->tp > 1;
    int cut = l->pp > 1 || l->tp > 1 || l->ep > 1 || l->etp > 1 || l->zero == 3 || columns;

    for (int i = 0; i < l->ranks; i++) {
        owned += of_rank[i].owned;
        sent += of_rank[i].sent;
        if (cut && !equal_moves(l) && l->ranks > 1 && of_rank[i].held >= whole)
            EK_T_FAIL("%s: rank %d holds %lld of %lld parameters", equal_text(l), i,
                      (long long)of_rank[i].held, (long long)whole);
    }
    if (owned != whole)
        EK_T_FAIL("%s: the ranks answer for %lld parameters of %lld", equal_text(l),
                  (long long)owned, (long long)whole);
    if ((l->balance == 1 || l->balance == 3) && l->ep > 1 && of_rank[0].replicas <= 0)
        EK_T_FAIL("%s: there were no replicas", equal_text(l));
    if ((l->gather > 1 || (l->gather < 0 && l->ep * l->etp > 1)) && of_rank[0].brought <= 0)
        EK_T_FAIL("%s: nothing was gathered", equal_text(l));
    if (l->ranks > 1 && sent <= 0)
        EK_T_FAIL("%s: nothing was sent", equal_text(l));
}

#endif
