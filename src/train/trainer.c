/* One step: micro-batches through the graph, then the optimizer in the same graph. */
#include "train/trainer.h"

#include "base/clock.h"
#include "base/log.h"
#include "data/documents.h"
#include "train/tune/tune.h"
#include "train/tune/warm_state.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

struct ek_trainer {
    ek_model *model;
    ek_trainer_config cfg;
    ek_pass *pass;
    ek_optimizer optimizer;
    ek_exec *exec;
    int recording; /* its ops are recorded for the timeline */
    ek_graph graph;
    ek_micro *micro, *eval_micro; /* [n_micro], of a step and of ek_trainer_forward */
    int64_t n_micro;
    int64_t n_sequences, *sequence; /* of this rank: their indices in the batch */
    ek_arena tokens;
    int32_t *inputs, *targets;
    int32_t *starts;           /* NULL: no document mask */
    int persistent_plans;      /* consecutive steps in which planning took too long */
    ek_moe_traffic traffic;    /* of the next steps, unless they are tuned */
    ek_moe_traffic travelling; /* of the step under way */
    int64_t began_ns;          /* likewise: when it began */
    ek_tune *tune;             /* NULL: no tuning */
    ek_tune_choice ran_with;   /* of the previous step, whose time is summed with this step */
    int has_run;
    ek_warm_state_found recalled; /* from the warm state */
};

/* Whether a layer dispatches rows to other ranks. */
static int is_dispatched(const ek_model *m)
{
    int64_t routed = 0;

    for (int64_t l = 0; l < m->spec.layers; l++)
        routed += !m->spec.dense[l];
    return routed > 0 && m->cfg.mesh->ep * m->cfg.mesh->etp > 1;
}

/* Fills in the dispatch settings to choose from, or the given one; returns their number. */
static int settings_of(const ek_model *m, const ek_trainer_config *cfg, ek_moe_traffic *out)
{
    const ek_moe_config *c = &cfg->moe;
    ek_tune_fixed given;

    out[0] =
        (ek_moe_traffic){c->degree > 1 && c->smart_group == 0 ? c->degree : 1, c->a2a, c->gather};
    if ((!cfg->tune_degree && !cfg->tune_a2a && !cfg->tune_gather) || c->smart_group > 0 ||
        !is_dispatched(m))
        return 1;
    given = (ek_tune_fixed){.degree = cfg->tune_degree ? 0 : out[0].degree,
                            .a2a = cfg->tune_a2a ? -1 : (int)c->a2a,
                            .gather = c->gather != 0 ? c->gather : 1,
                            .gather_all = c->gather_most == EK_GATHER_ALL};
    if (cfg->tune_gather)
        given.gather = 0;
    return ek_tune_settings(m->cfg.mesh, &given, out);
}

/* With memory for the largest number of chunks. */
static ek_pass_config pass_config(const ek_model *m, const ek_trainer_config *cfg)
{
    ek_moe_traffic settings[EK_TUNE_SETTINGS];
    int n = settings_of(m, cfg, settings);
    ek_moe_config moe = cfg->moe;

    for (int i = 0; i < n; i++)
        moe.degree = settings[i].degree > moe.degree ? settings[i].degree : moe.degree;
    return (ek_pass_config){.max_seqs = ek_range_length(cfg->micro_batch, m->cfg.mesh->dp, 0),
                            .max_total = cfg->micro_batch * cfg->seq,
                            .max_seq = cfg->seq,
                            .micros = (cfg->batch + cfg->micro_batch - 1) / cfg->micro_batch,
                            .training = 1,
                            .recompute = cfg->recompute,
                            .moe = moe};
}

/* This rank's sequences of micro-batch i of a batch: consecutive ones; the last micro-batch may be
 * smaller. */
static int64_t sequences_of(const ek_model *m, const ek_trainer_config *c, int64_t batch, int64_t i,
                            int64_t *first, int64_t *of_all)
{
    int64_t begin = i * c->micro_batch, all = batch - begin;
    const ek_mesh *mesh = m->cfg.mesh;

    all = all < c->micro_batch ? all : c->micro_batch;
    *first = begin + ek_range_first(all, mesh->dp, mesh->dp_rank);
    *of_all = all;
    return ek_range_length(all, mesh->dp, mesh->dp_rank);
}

static int64_t count_sequences(const ek_model *m, const ek_trainer_config *c)
{
    int64_t n = 0, first, all;

    for (int64_t i = 0; i * c->micro_batch < c->batch; i++)
        n += sequences_of(m, c, c->batch, i, &first, &all);
    return n;
}

static ek_status check_config(const ek_model *m, const ek_trainer_config *cfg)
{
    EK_REQUIRE(cfg->batch > 0 && cfg->micro_batch > 0 && cfg->micro_batch <= cfg->batch, EK_EINVAL,
               "a batch of %lld sequences in micro-batches of %lld", (long long)cfg->batch,
               (long long)cfg->micro_batch);
    EK_REQUIRE(cfg->top_k <= m->spec.top_k, EK_EINVAL, "top-k %lld is over the model's %lld",
               (long long)cfg->top_k, (long long)m->spec.top_k);
    return EK_OK;
}

ek_status ek_trainer_measure(ek_model *m, const ek_trainer_config *cfg, size_t *bytes)
{
    ek_pass_config pc = pass_config(m, cfg);

    EK_TRY(check_config(m, cfg));
    EK_TRY(ek_pass_measure(m, &pc, bytes));
    *bytes += (cfg->document_mask ? 3 : 2) * sizeof(int32_t) *
              (size_t)(count_sequences(m, cfg) * cfg->seq);
    return EK_OK;
}

/* Micro-batch i of `batch` sequences of `seq` tokens; `done`: this rank's sequences before it. */
static ek_micro micro_at(const ek_trainer *tr, int64_t batch, int64_t seq, int64_t i, int64_t done)
{
    const ek_mesh *mesh = tr->model->cfg.mesh;
    int64_t first, whole;
    int64_t seqs = sequences_of(tr->model, &tr->cfg, batch, i, &first, &whole), all = seqs * seq;

    return (ek_micro){.seqs = seqs,
                      .seq = seq,
                      .all = all,
                      .first = ek_range_first(all, mesh->tp, mesh->tp_rank),
                      .n = ek_range_length(all, mesh->tp, mesh->tp_rank),
                      .total = whole * seq,
                      .share = (double)whole / (double)batch,
                      .first_sequence = (uint64_t)first,
                      .micro_first = (uint64_t)(i * tr->cfg.micro_batch),
                      .inputs = tr->inputs + done * seq,
                      .targets = tr->targets + done * seq,
                      .starts = tr->starts != NULL ? tr->starts + done * seq : NULL};
}

/* Of this rank's sequences. */
static void mark_documents(ek_trainer *tr, int64_t sequences, int64_t seq)
{
    for (int64_t i = 0; tr->starts != NULL && i < sequences; i++)
        ek_documents_mark(seq, tr->cfg.document_end, tr->inputs + i * seq, tr->targets + i * seq,
                          tr->starts + i * seq);
}

static void cut_batch(ek_trainer *tr)
{
    const ek_trainer_config *c = &tr->cfg;
    int64_t done = 0;

    for (int64_t i = 0; i < tr->n_micro; i++) {
        tr->micro[i] = micro_at(tr, c->batch, c->seq, i, done);
        for (int64_t j = 0; j < tr->micro[i].seqs; j++)
            tr->sequence[done++] = (int64_t)tr->micro[i].first_sequence + j;
    }
}

/* The settings to choose from, if there is a choice. */
static ek_status start_tuning(ek_trainer *tr)
{
    ek_moe_traffic settings[EK_TUNE_SETTINGS];
    int n = settings_of(tr->model, &tr->cfg, settings);

    tr->traffic = settings[0];
    if (n == 1)
        return EK_OK;
    tr->tune = malloc(sizeof(*tr->tune));
    EK_REQUIRE(tr->tune != NULL, EK_ENOMEM, "no memory for tuning");
    ek_tune_init(tr->tune, settings, n);
    return EK_OK;
}

ek_status ek_trainer_create(ek_model *m, const ek_trainer_config *cfg, ek_trainer **out)
{
    ek_trainer *tr = NULL;
    ek_pass_config pc = pass_config(m, cfg);
    ek_status st = EK_OK;

    EK_TRY(check_config(m, cfg));
    tr = calloc(1, sizeof(*tr));
    EK_REQUIRE(tr != NULL, EK_ENOMEM, "no memory for a trainer");
    tr->model = m;
    tr->cfg = *cfg;
    tr->n_micro = (cfg->batch + cfg->micro_batch - 1) / cfg->micro_batch;
    ek_graph_init(&tr->graph);
    EK_TRY_OUT(ek_pass_create(m, &pc, &tr->pass));
    EK_TRY_OUT(ek_model_exec(m, &cfg->exec, &tr->exec));
    EK_TRY_OUT(start_tuning(tr));
    tr->n_sequences = count_sequences(m, cfg);
    tr->sequence = calloc((size_t)tr->n_sequences + 1, sizeof(*tr->sequence));
    tr->micro = calloc((size_t)tr->n_micro, sizeof(*tr->micro));
    tr->eval_micro = calloc((size_t)tr->n_micro, sizeof(*tr->eval_micro));
    EK_REQUIRE_OUT(tr->micro != NULL && tr->eval_micro != NULL && tr->sequence != NULL, EK_ENOMEM,
                   "no memory for %lld sequences", (long long)tr->n_sequences);
    EK_TRY_OUT(ek_model_reserve_tokens(m, tr->n_sequences * cfg->seq, &tr->tokens, &tr->inputs,
                                       &tr->targets, cfg->document_mask ? &tr->starts : NULL));
    cut_batch(tr);
    ek_optimizer_init(&tr->optimizer, m, &cfg->optimizer);
    *out = tr;
    tr = NULL;
out:
    ek_trainer_destroy(&tr);
    return st;
}

void ek_trainer_destroy(ek_trainer **ptr)
{
    ek_trainer *tr;

    if (ptr == NULL || *ptr == NULL)
        return;
    tr = *ptr;
    ek_pass_destroy(&tr->pass);
    ek_exec_destroy(&tr->exec);
    ek_graph_fini(&tr->graph);
    free(tr->tune);
    free(tr->micro);
    free(tr->eval_micro);
    free(tr->sequence);
    ek_arena_fini(&tr->tokens);
    free(tr);
    *ptr = NULL;
}

int64_t ek_trainer_sequences(const ek_trainer *tr)
{
    return tr->n_sequences;
}

int64_t ek_trainer_sequence(const ek_trainer *tr, int64_t i)
{
    return tr->sequence[i];
}

void ek_trainer_vote(ek_trainer *tr, double vote)
{
    ek_pass_set_vote(tr->pass, vote);
}

int32_t *ek_trainer_inputs(ek_trainer *tr)
{
    return tr->inputs;
}

int32_t *ek_trainer_targets(ek_trainer *tr)
{
    return tr->targets;
}

static double model_flops(const ek_graph *g)
{
    double sum = 0;

    for (int32_t i = 0; i < g->n_ops; i++)
        if (!g->ops[i].recompute)
            sum += g->ops[i].flops;
    return sum;
}

static int64_t bytes_sent(const ek_trainer *tr)
{
    const ek_mesh *mesh = tr->model->cfg.mesh;

    return mesh->size > 1 ? ek_comm_bytes_sent(mesh->world) : 0;
}

/* A planner that takes more than this share of a step, in this many consecutive steps, is switched
 * off. */
static const double planning_allowed = 0.25;
enum { PATIENCE = 3 };

/* All ranks decide from the same sums, so they switch the planner off together. */
static void watch_planner(ek_trainer *tr, const ek_losses *l)
{
    const char *planner;
    double part = l->step_s > 0 ? l->plan_s / tr->model->cfg.mesh->pp / l->step_s : 0;

    tr->persistent_plans = part > planning_allowed ? tr->persistent_plans + 1 : 0;
    if (tr->persistent_plans < PATIENCE)
        return;
    planner = ek_rebalance_stop_planner(&tr->pass->rebalance);
    if (planner != NULL && tr->model->cfg.mesh->rank == 0)
        ek_log("balance", EK_LOG_WARN, "the planner %s takes %.0f %% of a step; it is switched off",
               planner, 100 * part);
}

/* --- tuning ----------------------------------------------------------------------------------- */

static const char *name_of(ek_a2a a2a)
{
    static const char *const names[] = {"linear", "pairwise", "2dh"};

    return names[a2a];
}

static int is_same(const ek_moe_traffic *a, const ek_moe_traffic *b)
{
    return a->degree == b->degree && a->a2a == b->a2a && a->gather == b->gather;
}

static void log_found(const ek_trainer *tr, const ek_tune_result *r)
{
    char than[96] = "", how[32] = "";
    int etp = tr->model->cfg.mesh->etp;

    if (tr->model->cfg.mesh->rank != 0)
        return;
    if (tr->cfg.tune_gather)
        snprintf(how, sizeof(how), "r %d, ", ek_moe_traffic_r(&r->best, etp));
    if (!is_same(&r->best, &r->first))
        snprintf(than, sizeof(than), "; degree %d and %s take %.2f times that", r->first.degree,
                 name_of(r->first.a2a), r->gain);
    ek_log("tune", EK_LOG_INFO,
           "%spipeline degree %d, all-to-all %s: %.2f ms a step, found in %lld steps for a "
           "capacity of experts from %lld on%s",
           how, r->best.degree, name_of(r->best.a2a), r->best_s * 1e3, (long long)r->steps,
           (long long)r->bucket * EK_TUNE_CAPACITY, than);
}

/* Sets the dispatch settings of this step; if tuned, `with` identifies the choice. */
static ek_moe_traffic choose_traffic(ek_trainer *tr, int64_t top_k, ek_tune_choice *with)
{
    const ek_trainer_config *c = &tr->cfg;
    int64_t bucket;

    if (tr->tune == NULL)
        return tr->traffic;
    bucket = ek_tune_bucket_of(c->micro_batch * c->seq, top_k, tr->model->spec.experts,
                               c->capacity_factor);
    *with = ek_tune_next(tr->tune, bucket);
    return with->traffic;
}

/* Writes the warm state for the next generation. */
static void warm_state(const ek_trainer *tr)
{
    ek_journal *l = tr->optimizer.journal;

    if (l != NULL)
        ek_journal_end_warm_state(l, ek_warm_state_write(tr->tune, tr->pass,
                                                         ek_journal_begin_warm_state(l),
                                                         EK_JOURNAL_WARM_STATE));
}

void ek_trainer_load_warm_state(ek_trainer *tr, const void *warm_state, size_t bytes, int others)
{
    tr->recalled = ek_warm_state_read(tr->tune, tr->pass, warm_state, bytes, others);
    ek_rebalance_set_recalled(&tr->pass->rebalance, tr->recalled.loads);
}

/* The time summed with a step is that of the previous step, the same on all ranks. */
static void add_step_time(ek_trainer *tr, const ek_losses *l, const ek_tune_choice *with)
{
    ek_tune_result found;

    if (tr->tune == NULL)
        return;
    if (tr->has_run && ek_tune_add(tr->tune, &tr->ran_with, l->step_s, &found))
        log_found(tr, &found);
    tr->ran_with = *with;
    tr->has_run = 1;
}

/* Fills in the results of a step before its update, after losses are summed, for the step journal.
 */
static void fill_record(void *context, ek_step_record *record)
{
    ek_trainer *tr = context;
    ek_step_result *out = &record->result;

    record->ranks = tr->model->cfg.mesh->size;
    record->elapsed_ms = (double)(ek_clock_ns() - tr->began_ns) / 1e6;
    *out = (ek_step_result){.step = tr->optimizer.steps_done,
                            .tokens = tr->cfg.batch * tr->cfg.seq,
                            .grad_norm = tr->optimizer.grad_norm,
                            .lr = tr->optimizer.lr};
    ek_pass_losses(tr->pass, &out->losses);
    if (is_dispatched(tr->model))
        out->traffic = tr->travelling;
    out->adaptive_r = ek_moe_traffic_r(&out->traffic, tr->model->cfg.mesh->etp);
}

void ek_trainer_set_journal(ek_trainer *tr, ek_journal *journal, const int64_t *extents_of)
{
    tr->optimizer.journal = journal;
    tr->optimizer.extents_of = extents_of;
    tr->optimizer.fill_record = fill_record;
    tr->optimizer.context = tr;
    warm_state(tr);
}

ek_status ek_trainer_step(ek_trainer *tr, ek_step_result *out)
{
    const ek_trainer_config *c = &tr->cfg;
    ek_moe_step step = {.training = 1,
                        .aux_coef = c->aux_coef,
                        .z_coef = c->z_coef,
                        .capacity_factor = c->capacity_factor,
                        .top_k = c->top_k > 0 ? c->top_k : tr->model->spec.top_k,
                        .seed = c->seed,
                        .step = (uint64_t)tr->optimizer.steps_done};

    ek_tune_choice with = {0};
    int32_t last;

    tr->began_ns = ek_clock_ns();
    out->step = tr->optimizer.steps_done;
    out->tokens = c->batch * c->seq;
    out->comm_bytes = -bytes_sent(tr);
    mark_documents(tr, tr->n_sequences, c->seq);
    step.traffic = tr->travelling = choose_traffic(tr, step.top_k, &with);
    EK_TRY(ek_pass_begin(tr->pass, &step, tr->micro, tr->n_micro));
    ek_graph_reset(&tr->graph);
    EK_TRY(ek_pass_build(tr->pass, &tr->graph));
    last = tr->graph.n_ops - 1;
    tr->optimizer.record_dep = ek_pass_build_sum(tr->pass, &tr->graph);
    ek_optimizer_build(&tr->optimizer, &tr->graph, last);
    EK_TRY(ek_exec_run(tr->exec, &tr->graph));
    ek_pass_set_step_time(tr->pass, (double)(ek_clock_ns() - tr->began_ns) * 1e-9);
    ek_pass_losses(tr->pass, &out->losses);
    watch_planner(tr, &out->losses);
    add_step_time(tr, &out->losses, &with);
    warm_state(tr);
    out->traffic = is_dispatched(tr->model) ? step.traffic : (ek_moe_traffic){0};
    out->adaptive_r = ek_moe_traffic_r(&out->traffic, tr->model->cfg.mesh->etp);
    ek_pass_update_bias(tr->pass);
    out->comm_bytes += bytes_sent(tr);
    out->votes = ek_pass_votes(tr->pass);
    out->grad_norm = tr->optimizer.grad_norm;
    out->lr = tr->optimizer.lr;
    out->flops = model_flops(&tr->graph);
    return EK_OK;
}

/* Cuts `batch` sequences into micro-batches and reads this rank's; returns how many micro-batches
 * there are. */
static int64_t read_sequences(ek_trainer *tr, int64_t batch, int64_t seq,
                              const ek_trainer_reader *reader)
{
    int64_t n = (batch + tr->cfg.micro_batch - 1) / tr->cfg.micro_batch, done = 0;

    for (int64_t i = 0; i < n; i++) {
        ek_micro *mb = &tr->eval_micro[i];

        *mb = micro_at(tr, batch, seq, i, done);
        for (int64_t j = 0; j < mb->seqs; j++, done++)
            reader->read(reader->context, (int64_t)mb->first_sequence + j, tr->inputs + done * seq,
                         tr->targets + done * seq);
    }
    mark_documents(tr, done, seq);
    return n;
}

/* Targets counted on this rank; each is counted on one rank. */
static double count_targets(const ek_micro *mb)
{
    int64_t n = 0;

    for (int64_t i = mb->first; i < mb->first + mb->n; i++)
        n += mb->targets[i] >= 0;
    return (double)n;
}

ek_status ek_trainer_forward(ek_trainer *tr, int64_t batch, int64_t seq,
                             const ek_trainer_reader *reader, ek_eval_sums *sums)
{
    const ek_trainer_config *c = &tr->cfg;
    ek_moe_step step = {.capacity_factor = c->capacity_factor,
                        .top_k = c->top_k > 0 ? c->top_k : tr->model->spec.top_k,
                        .traffic = tr->travelling.degree > 0 ? tr->travelling : tr->traffic};
    ek_status st;

    EK_REQUIRE(batch > 0 && batch <= c->batch && seq > 0 && seq <= c->seq, EK_EINVAL,
               "%lld sequences of %lld tokens; memory was reserved for %lld of %lld",
               (long long)batch, (long long)seq, (long long)c->batch, (long long)c->seq);
    EK_TRY(ek_pass_begin(tr->pass, &step, tr->eval_micro, read_sequences(tr, batch, seq, reader)));
    ek_graph_reset(&tr->graph);
    EK_TRY(ek_pass_build(tr->pass, &tr->graph));
    ek_exec_record(tr->exec, 0);
    st = ek_exec_run(tr->exec, &tr->graph);
    ek_exec_record(tr->exec, tr->recording);
    EK_TRY(st);
    sums->loss += tr->pass->backward.loss.sum;
    if (ek_model_has_head(tr->model))
        for (int64_t i = 0; i < tr->pass->forward.n_micro; i++)
            sums->tokens += count_targets(&tr->eval_micro[i]);
    return EK_OK;
}

void ek_trainer_record(ek_trainer *tr, int on)
{
    tr->recording = on;
    ek_exec_record(tr->exec, on);
}

int64_t ek_trainer_steps_done(const ek_trainer *tr)
{
    return tr->optimizer.steps_done;
}

void ek_trainer_resume(ek_trainer *tr, int64_t steps_done)
{
    tr->optimizer.steps_done = steps_done;
}

ek_status ek_trainer_set_top_k(ek_trainer *tr, int64_t top_k)
{
    EK_REQUIRE(top_k > 0 && top_k <= tr->model->spec.top_k, EK_EINVAL,
               "top-k %lld is not from 1 to the model's %lld", (long long)top_k,
               (long long)tr->model->spec.top_k);
    tr->cfg.top_k = top_k;
    return EK_OK;
}

void ek_trainer_set_capacity_factor(ek_trainer *tr, double factor)
{
    tr->cfg.capacity_factor = factor;
}

ek_status ek_trainer_set_traffic(ek_trainer *tr, const ek_moe_traffic *traffic)
{
    int most = tr->pass->cfg.moe.degree > 1 ? tr->pass->cfg.moe.degree : 1;

    EK_REQUIRE(traffic->degree > 0 && traffic->degree <= most, EK_EINVAL,
               "a pipeline degree of %d; memory was reserved for 1 to %d", traffic->degree, most);
    EK_REQUIRE(ek_moe_can_gather(&tr->pass->cfg.moe, tr->model->cfg.mesh, traffic->gather),
               EK_EINVAL,
               "gathering %d slices: no memory was reserved for it, or %d shards do not allow it",
               traffic->gather, tr->model->cfg.mesh->etp);
    tr->traffic = *traffic;
    free(tr->tune);
    tr->tune = NULL;
    return EK_OK;
}

ek_status ek_trainer_set_planner(ek_trainer *tr, const ek_planner *p)
{
    EK_TRY(ek_rebalance_set_planner(&tr->pass->rebalance, p));
    tr->persistent_plans = 0;
    return EK_OK;
}

ek_status ek_trainer_place(ek_trainer *tr, const ek_plan *of_layer, int64_t *moved)
{
    if (of_layer != NULL)
        EK_TRY(ek_rebalance_place(&tr->pass->rebalance, of_layer));
    else
        ek_rebalance_now(&tr->pass->rebalance);
    *moved = ek_rebalance_moved(&tr->pass->rebalance);
    ek_graph_reset(&tr->graph);
    EK_TRY(ek_rebalance_build_all(&tr->pass->rebalance, &tr->graph));
    return ek_exec_run(tr->exec, &tr->graph);
}

ek_status ek_trainer_assume(ek_trainer *tr, int64_t layer, const ek_placement *to,
                            const int64_t *quota)
{
    return ek_rebalance_assume(&tr->pass->rebalance, layer, to, quota);
}

void ek_trainer_keep_placements(ek_trainer *tr, int64_t steps_done)
{
    ek_rebalance_continue(&tr->pass->rebalance, steps_done, tr->recalled.placed);
}

ek_exec *ek_trainer_exec(ek_trainer *tr)
{
    return tr->exec;
}

const ek_pass *ek_trainer_pass(const ek_trainer *tr)
{
    return tr->pass;
}
