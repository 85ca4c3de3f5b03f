/* One step: micro-batches through the graph, then the optimizer in the same graph. */
#include "train/trainer.h"

#include "base/clock.h"
#include "base/log.h"
#include "model/offload.h"
#include "nn/batch_shares.h"
#include "train/batch.h"
#include "train/share_follower.h"
#include "train/tune/traffic.h"
#include "train/tune/warm_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The slowest expert rank and what a row costs there (balance/rank_speeds.h); 0: none was logged.
 */
typedef struct {
    int32_t rank, cost;
} logged_speed;

struct ek_trainer {
    ek_model *model;
    ek_trainer_config cfg;
    ek_pass *pass;
    ek_optimizer optimizer;
    ek_exec *exec;
    int recording; /* its ops are recorded for the timeline */
    ek_batch batch;
    ek_warm_state_found recalled; /* from the warm state */
    ek_traffic traffic;
    double shared[EK_PASS_SHARED]; /* ek_trainer_share, of the last step or the warm state */
    logged_speed logged;           /* in the last line about speeds of ranks */
    int slow_plans;                /* consecutive steps in which planning took too long */
    ek_share_follower follower;

    /* of the step under way */
    ek_offload_stats disk_before, disk_after;
    ek_graph graph;
    ek_moe_traffic traffic_now; /* degree 0: no step yet */
    int64_t began_ns;
};

static ek_traffic_config traffic_config(const ek_trainer_config *cfg)
{
    return (ek_traffic_config){&cfg->moe, cfg->tune_degree, cfg->tune_a2a, cfg->tune_gather};
}

static ek_batch_config batch_config(const ek_trainer_config *cfg)
{
    return (ek_batch_config){.batch = cfg->batch,
                             .seq = cfg->seq,
                             .micro_batch = cfg->micro_batch,
                             .document_mask = cfg->document_mask,
                             .document_end = cfg->document_end,
                             .shares = cfg->shares,
                             .shares_change = cfg->follow_shares,
                             .most_share = EK_BATCH_SHARE_MAX};
}

/* With memory for the largest number of chunks. */
static ek_pass_config pass_config(const ek_model *m, const ek_trainer_config *cfg)
{
    ek_moe_traffic settings[EK_TUNE_SETTINGS];
    ek_traffic_config traffic = traffic_config(cfg);
    ek_batch_config bc = batch_config(cfg);
    int n = ek_traffic_settings(m, &traffic, settings);
    ek_moe_config moe = cfg->moe;

    for (int i = 0; i < n; i++)
        moe.degree = settings[i].degree > moe.degree ? settings[i].degree : moe.degree;
    return (ek_pass_config){.max_seqs = ek_batch_longest(m->cfg.mesh, &bc),
                            .max_total = cfg->micro_batch * cfg->seq,
                            .max_seq = cfg->seq,
                            .micros = ek_batch_micros(cfg->batch, cfg->micro_batch),
                            .training = 1,
                            .recompute = cfg->recompute,
                            .moe = moe};
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
    ek_batch_config bc = batch_config(cfg);

    EK_TRY(check_config(m, cfg));
    EK_TRY(ek_pass_measure(m, &pc, bytes));
    *bytes += ek_batch_bytes(m->cfg.mesh, &bc);
    return EK_OK;
}

ek_status ek_trainer_count_disk(ek_model *m, const ek_trainer_config *cfg, ek_offload_traffic *out)
{
    ek_pass_config pc = pass_config(m, cfg);

    EK_TRY(check_config(m, cfg));
    return ek_pass_count_disk(m, &pc, out);
}

static void set_feedback(void *context)
{
    const ek_trainer *tr = context;

    ek_pass_set_feedback(tr->pass);
}

/* Logs the sequences of data-parallel ranks from now on. */
static void report_shares(const ek_trainer *tr)
{
    const ek_mesh *mesh = tr->model->cfg.mesh;
    char text[200] = "";
    size_t used = 0;
    int none = 0;

    if (mesh->rank != 0)
        return;
    for (int r = 0; r < mesh->dp; r++) {
        int64_t n = ek_shares_length(tr->batch.shares, mesh->dp, tr->cfg.micro_batch, r);

        none += n == 0;
        if (used < sizeof(text) - 24)
            used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%lld", r > 0 ? ", " : "",
                                     (long long)n);
    }
    ek_log("balance", none > 0 ? EK_LOG_WARN : EK_LOG_INFO,
           "sequences of a micro-batch on data-parallel ranks: %s%s%s", text,
           used < sizeof(text) - 24 ? "" : ", ...",
           none > 0 ? "; some have none: give a larger --micro-batch, or other shares" : "");
}

ek_status ek_trainer_create(ek_model *m, const ek_trainer_config *cfg, ek_trainer **out)
{
    ek_trainer *tr = NULL;
    ek_pass_config pc = pass_config(m, cfg);
    ek_batch_config bc = batch_config(cfg);
    ek_traffic_config traffic = traffic_config(cfg);
    ek_status st = EK_OK;

    EK_TRY(check_config(m, cfg));
    tr = calloc(1, sizeof(*tr));
    EK_REQUIRE(tr != NULL, EK_ENOMEM, "no memory for a trainer");
    tr->model = m;
    tr->cfg = *cfg;
    ek_graph_init(&tr->graph);
    EK_TRY_OUT(ek_pass_create(m, &pc, &tr->pass));
    EK_TRY_OUT(ek_model_exec(m, &cfg->exec, &tr->exec));
    EK_TRY_OUT(ek_traffic_init(&tr->traffic, m, &traffic));
    EK_TRY_OUT(ek_batch_init(&tr->batch, m, &bc));
    if (cfg->follow_shares)
        EK_TRY_OUT(ek_share_follower_init(&tr->follower, m->cfg.mesh));
    if (cfg->shares != NULL)
        report_shares(tr);
    tr->cfg.shares = NULL; /* they were borrowed */
    ek_optimizer_init(&tr->optimizer, m, &cfg->optimizer);
    tr->optimizer.copies = cfg->copies;
    tr->optimizer.set_feedback = set_feedback;
    tr->optimizer.context = tr;
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
    ek_traffic_fini(&tr->traffic);
    ek_batch_fini(&tr->batch);
    ek_share_follower_fini(&tr->follower);
    free(tr);
    *ptr = NULL;
}

int64_t ek_trainer_sequences(const ek_trainer *tr)
{
    return tr->batch.n_sequences;
}

int64_t ek_trainer_sequence(const ek_trainer *tr, int64_t i)
{
    return tr->batch.sequence[i];
}

int64_t ek_trainer_most_sequences(const ek_trainer *tr)
{
    return tr->batch.most_sequences;
}

int64_t ek_trainer_share_changes(const ek_trainer *tr)
{
    return tr->batch.share_changes;
}

void ek_trainer_vote(ek_trainer *tr, double vote)
{
    ek_pass_set_vote(tr->pass, vote);
}

void ek_trainer_share(ek_trainer *tr, const double numbers[EK_PASS_SHARED])
{
    ek_pass_share(tr->pass, numbers);
}

double *ek_trainer_shared(ek_trainer *tr)
{
    return tr->shared;
}

int32_t *ek_trainer_inputs(ek_trainer *tr)
{
    return tr->batch.inputs;
}

int32_t *ek_trainer_targets(ek_trainer *tr)
{
    return tr->batch.targets;
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
enum { SLOW_PLANS_MAX = 3 };

/* All ranks decide from the same sums, so they switch the planner off together. */
static void watch_planner(ek_trainer *tr, const ek_losses *l)
{
    const char *planner;
    double part = l->step_s > 0 ? l->plan_s / tr->model->cfg.mesh->pp / l->step_s : 0;

    tr->slow_plans = part > planning_allowed ? tr->slow_plans + 1 : 0;
    if (tr->slow_plans < SLOW_PLANS_MAX)
        return;
    planner = ek_rebalance_stop_planner(&tr->pass->rebalance);
    if (planner != NULL && tr->model->cfg.mesh->rank == 0)
        ek_log("balance", EK_LOG_WARN, "the planner %s takes %.0f %% of a step; it is switched off",
               planner, 100 * part);
}

/* Whether another rank is the slowest than that of the last line, its speed differs from that by
 * more than a tenth, or one or none is slow since then; it is then that of the next line. */
static int is_slowest_new(ek_trainer *tr)
{
    const ek_rank_speeds *s = &tr->pass->planning.speeds;
    logged_speed now = {0, EK_ROW_COST_ONE}, *logged = &tr->logged;

    for (int32_t r = 0; r < s->ranks; r++)
        if (s->cost[r] > now.cost)
            now = (logged_speed){r, s->cost[r]};
    if (now.rank == logged->rank && logged->cost > 0 &&
        (now.cost > EK_ROW_COST_ONE) == (logged->cost > EK_ROW_COST_ONE) &&
        abs(now.cost - logged->cost) <= now.cost / 10)
        return 0;
    *logged = now;
    return 1;
}

/* Logs the speeds that planners heed from now on, where the slowest rank changes. */
static void report_speeds(ek_trainer *tr)
{
    const ek_rank_speeds *s = &tr->pass->planning.speeds;
    char text[200] = "";
    int n = 0, slow = 0;

    if (tr->model->cfg.mesh->at != 0 || !is_slowest_new(tr))
        return;
    for (int32_t r = 0; r < s->ranks; r++) {
        if (s->cost[r] == EK_ROW_COST_ONE)
            continue;
        if (n < (int)sizeof(text) - 24)
            n += snprintf(text + n, sizeof(text) - (size_t)n, "%s%d: %.2f", slow > 0 ? ", " : "",
                          (int)r, (double)EK_ROW_COST_ONE / s->cost[r]);
        slow++;
    }
    if (slow == 0)
        ek_log("balance", EK_LOG_INFO, "all expert ranks are equally fast again");
    else
        ek_log("balance", EK_LOG_INFO,
               "%d of %d expert ranks differ in speed, and plans heed it: rank %s of the others'",
               slow, (int)s->ranks, text);
}

/* Writes the warm state for the next generation. */
static void write_warm_state(const ek_trainer *tr)
{
    ek_journal *l = tr->optimizer.journal;

    if (l != NULL)
        ek_journal_end_warm_state(l, ek_warm_state_write(tr->traffic.tune, tr->pass, tr->shared,
                                                         ek_journal_begin_warm_state(l),
                                                         EK_JOURNAL_WARM_STATE));
}

void ek_trainer_load_warm_state(ek_trainer *tr, const void *warm_state, size_t bytes,
                                int ranks_changed)
{
    tr->recalled = ek_warm_state_read(tr->traffic.tune, tr->pass, warm_state, bytes, ranks_changed);
    ek_rebalance_set_recalled(&tr->pass->rebalance, tr->recalled.loads);
    memcpy(tr->shared, tr->recalled.shared, sizeof(tr->shared));
}

/* The dispatch settings of the step under way. */
static void fill_traffic(const ek_trainer *tr, ek_step_result *out)
{
    out->traffic = ek_traffic_is_dispatched(tr->model) ? tr->traffic_now : (ek_moe_traffic){0};
    out->adaptive_r = ek_moe_traffic_r(&out->traffic, tr->model->cfg.mesh->etp);
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
    fill_traffic(tr, out);
}

void ek_trainer_set_journal(ek_trainer *tr, ek_journal *journal, const int64_t *extents_of)
{
    tr->optimizer.journal = journal;
    tr->optimizer.extents_of = extents_of;
    tr->optimizer.fill_record = fill_record;
    write_warm_state(tr);
}

/* The capacity of a step, by which dispatch settings are tuned. */
static int64_t capacity_bucket(const ek_trainer *tr, int64_t top_k)
{
    const ek_trainer_config *c = &tr->cfg;

    return ek_tune_bucket_of(c->micro_batch * c->seq, top_k, tr->model->spec.experts,
                             c->capacity_factor);
}

ek_status ek_trainer_build_step(ek_trainer *tr, ek_graph **out)
{
    const ek_trainer_config *c = &tr->cfg;
    ek_moe_step step = {.training = 1,
                        .aux_coef = c->aux_coef,
                        .z_coef = c->z_coef,
                        .capacity_factor = c->capacity_factor,
                        .top_k = c->top_k > 0 ? c->top_k : tr->model->spec.top_k,
                        .seed = c->seed,
                        .step = (uint64_t)tr->optimizer.steps_done};
    int32_t last;

    ek_batch_begin_step(&tr->batch);
    step.traffic = tr->traffic_now =
        ek_traffic_begin_step(&tr->traffic, capacity_bucket(tr, step.top_k));
    EK_TRY(ek_pass_begin(tr->pass, &step, tr->batch.micro, tr->batch.n_micro));
    ek_graph_reset(&tr->graph);
    EK_TRY(ek_pass_build(tr->pass, &tr->graph));
    last = tr->graph.n_ops - 1;
    tr->optimizer.record_dep = ek_pass_build_sum(tr->pass, &tr->graph);
    ek_optimizer_build(&tr->optimizer, &tr->graph, last);
    *out = &tr->graph;
    return ek_graph_check(&tr->graph);
}

ek_status ek_trainer_step(ek_trainer *tr, ek_step_result *out)
{
    const ek_trainer_config *c = &tr->cfg;
    ek_graph *graph;

    tr->began_ns = ek_clock_ns();
    tr->disk_before = tr->disk_after; /* what happened between the steps counts, too, */
    if (tr->disk_before.uses == 0)    /* but not what filled the weights */
        ek_offload_get_stats(tr->model, &tr->disk_before);
    out->step = tr->optimizer.steps_done;
    out->tokens = c->batch * c->seq;
    out->comm_bytes = -bytes_sent(tr);
    EK_TRY(ek_trainer_build_step(tr, &graph));
    EK_TRY(ek_exec_run(tr->exec, graph));
    ek_optimizer_add_feedback(&tr->optimizer);
    ek_offload_get_stats(tr->model, &tr->disk_after);
    ek_pass_set_step_time(tr->pass, (double)(ek_clock_ns() - tr->began_ns) * 1e-9);
    ek_pass_losses(tr->pass, &out->losses);
    watch_planner(tr, &out->losses);
    if (ek_pass_follow_speeds(tr->pass))
        report_speeds(tr);
    if (ek_share_follower_update(&tr->follower, tr->pass, EK_BATCH_SHARE_MAX) &&
        ek_batch_set_shares(&tr->batch, tr->follower.sums))
        report_shares(tr);
    memcpy(tr->shared, ek_pass_shared(tr->pass), sizeof(tr->shared));
    ek_traffic_end_step(&tr->traffic, out->losses.step_s); /* that of the previous step */
    write_warm_state(tr);
    fill_traffic(tr, out);
    out->comm_bytes += bytes_sent(tr);
    out->votes = ek_pass_votes(tr->pass);
    out->grad_norm = tr->optimizer.grad_norm;
    out->lr = tr->optimizer.lr;
    out->flops = model_flops(graph);
    return EK_OK;
}

const ek_graph *ek_trainer_graph(const ek_trainer *tr)
{
    return &tr->graph;
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
                             const ek_batch_reader *reader, ek_eval_sums *sums)
{
    const ek_trainer_config *c = &tr->cfg;
    ek_moe_step step = {.capacity_factor = c->capacity_factor,
                        .top_k = c->top_k > 0 ? c->top_k : tr->model->spec.top_k,
                        .traffic =
                            tr->traffic_now.degree > 0 ? tr->traffic_now : tr->traffic.given};
    ek_status st;

    EK_REQUIRE(batch > 0 && batch <= c->batch && seq > 0 && seq <= c->seq, EK_EINVAL,
               "%lld sequences of %lld tokens; memory was reserved for %lld of %lld",
               (long long)batch, (long long)seq, (long long)c->batch, (long long)c->seq);
    EK_TRY(ek_pass_begin(tr->pass, &step, tr->batch.eval_micro,
                         ek_batch_read(&tr->batch, batch, seq, reader)));
    ek_graph_reset(&tr->graph);
    EK_TRY(ek_pass_build(tr->pass, &tr->graph));
    ek_exec_record(tr->exec, 0);
    st = ek_exec_run(tr->exec, &tr->graph);
    ek_exec_record(tr->exec, tr->recording);
    EK_TRY(st);
    sums->loss += tr->pass->backward.loss.sum;
    if (ek_model_has_head(tr->model))
        for (int64_t i = 0; i < tr->pass->forward.n_micro; i++)
            sums->tokens += count_targets(&tr->batch.eval_micro[i]);
    return EK_OK;
}

ek_step_disk ek_trainer_disk(const ek_trainer *tr)
{
    const ek_offload_stats *a = &tr->disk_before, *b = &tr->disk_after;

    return (ek_step_disk){.read_bytes = (double)(b->disk.read.bytes - a->disk.read.bytes),
                          .written_bytes = (double)(b->disk.written.bytes - a->disk.written.bytes),
                          .uses = (double)(b->uses - a->uses),
                          .hits = (double)(b->hits - a->hits),
                          .deferred = (double)(b->deferred - a->deferred),
                          .reads = (double)(b->disk.read.requests - a->disk.read.requests),
                          .writes = (double)(b->disk.written.requests - a->disk.written.requests),
                          .wait_s = (double)(b->stall_ns - a->stall_ns) / 1e9,
                          .entry_wait_s = (double)(b->entry_stall_ns - a->entry_stall_ns) / 1e9};
}

ek_status ek_trainer_apply_updates(ek_trainer *tr)
{
    ek_status st;

    if (!ek_offload_is_pending(tr->model)) {
        ek_offload_forget(tr->model);
        return EK_OK;
    }
    ek_graph_reset(&tr->graph);
    EK_TRY(ek_offload_build_flush(tr->model, &tr->graph));
    ek_exec_record(tr->exec, 0);
    st = ek_exec_run(tr->exec, &tr->graph);
    ek_exec_record(tr->exec, tr->recording);
    ek_offload_forget(tr->model);
    return st;
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
    ek_traffic_set(&tr->traffic, traffic);
    return EK_OK;
}

ek_status ek_trainer_set_planner(ek_trainer *tr, const ek_planner *p)
{
    EK_TRY(ek_rebalance_set_planner(&tr->pass->rebalance, p));
    tr->slow_plans = 0;
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

void ek_trainer_assume_planned(ek_trainer *tr)
{
    ek_rebalance_assume_planned(&tr->pass->rebalance);
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
