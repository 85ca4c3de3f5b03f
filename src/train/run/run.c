/* A run: open what it needs, step, write metrics and checkpoints, end. */
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/threads.h"
#include "comm/agree.h"
#include "model/offload.h"
#include "tensor/select/select.h"
#include "train/output/folder.h"
#include "train/run/balance.h"
#include "train/run/explain.h"
#include "train/run/layouts.h"
#include "train/run/state.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The value of rank 0's vote to save; each rank votes 1 to stop, and there are fewer ranks. */
static const double save_vote = 4294967296.0;

/* Records the newest checkpoint after a save has ended. */
static ek_status save_ended(ek_run *r)
{
    ek_checkpoint_found found;
    ek_path best;

    if (r->saves.current != NULL)
        return EK_OK;
    r->saves.checkpoint_step = r->saves.saving_step;
    r->saves.write_s = (double)(ek_clock_ns() - r->saves.began_ns) / 1e9;
    if (r->rank != 0)
        return EK_OK;
    EK_TRY(ek_checkpoint_latest(r->cfg->out, EK_CHECK_SIZES, &found));
    memcpy(r->out->checkpoint, found.path.s, sizeof(r->out->checkpoint));
    EK_TRY(ek_checkpoint_best(r->cfg->out, r->eval.state.best_step, &best));
    memcpy(r->out->evaluation.best_checkpoint, best.s, sizeof(r->out->evaluation.best_checkpoint));
    if (r->folder.replaces)
        EK_TRY(ek_out_drop_replaced(r->cfg->out));
    r->folder.replaces = 0;
    return EK_OK;
}

/* Saves, in the background unless this was the last step. */
static ek_status save_checkpoint(ek_run *r, int last)
{
    ek_train_save_config c = {.model = r->model,
                              .tokenizer = r->data.tokenizer,
                              .tokenizer_files = &r->data.tokenizer_files,
                              .settings = r->options.settings,
                              .run_file = r->options.run_file,
                              .steps_done = ek_trainer_steps_done(r->trainer),
                              .keep = r->cfg->keep,
                              .evaluation = r->eval.state.step > 0 ? &r->eval.state : NULL,
                              .best = r->eval.new_best,
                              .out_dir = r->cfg->out,
                              .background = r->saves.background && !last};

    r->saves.began_ns = ek_clock_ns();
    ek_run_report_phase(r, "checkpoint");
    EK_TRY(ek_train_save_finish(&r->saves.current));
    EK_TRY(ek_agree(r->world, "write the metrics",
                    r->rank == 0 ? ek_metrics_sync(&r->records.metrics) : EK_OK));
    EK_TRY(ek_agree(r->world, "update the experts on disk", ek_trainer_apply_updates(r->trainer)));
    EK_TRY(ek_train_save_begin(&c, &r->saves.current));
    r->saves.saving_step = c.steps_done;
    r->eval.new_best = 0;
    if (!c.background)
        EK_TRY(ek_train_save_finish(&r->saves.current));
    r->saves.timed = 1;
    r->saves.excess_s = 0;
    r->saves.blocked_s = (double)(ek_clock_ns() - r->saves.began_ns) / 1e9;
    ek_run_report_phase(r, last ? "end" : "step");
    return save_ended(r);
}

static ek_status poll_save(ek_run *r)
{
    if (r->saves.current == NULL)
        return EK_OK;
    EK_TRY(ek_train_save_poll(&r->saves.current));
    return save_ended(r);
}

/* Before updates reach experts on disk, of which a save reads the state of an earlier step. */
static ek_status let_save_read(ek_run *r)
{
    if (r->model->offload == NULL || r->saves.current == NULL ||
        ek_trainer_steps_done(r->trainer) == r->saves.saving_step)
        return EK_OK;
    EK_TRY(ek_train_save_wait_written(&r->saves.current));
    return save_ended(r);
}

static ek_status write_events(ek_run *r, const char *path)
{
    ek_timeline_rank who = {.rank = r->rank,
                            .ranks = r->ranks,
                            .origin_ns = r->timeline.origin_ns,
                            .step_ns = r->timeline.step_ns,
                            .first_step = r->timeline.first,
                            .n_steps = r->timeline.n};
    int64_t n;
    const ek_event *events = ek_exec_events(ek_trainer_exec(r->trainer), &n);

    return ek_timeline_write(events, n, &who, path);
}

/* Writes the timeline once, after its last step or at the end of the run. */
static ek_status write_timeline(ek_run *r)
{
    const char *out = r->cfg->out;
    ek_path path;

    r->timeline.written = 1;
    if (r->rank > 0)
        EK_TRY(ek_path_set(&path, "%s/timeline-rank%d.json", out, r->rank));
    else
        EK_TRY(ek_path_set(&path, "%s/timeline.json", out));
    return write_events(r, path.s);
}

static ek_status write_extras(ek_run *r)
{
    int64_t from = ek_run_timeline_from(r);
    ek_path path;

    if (r->cfg->timeline && r->timeline.n == 0)
        ek_log("train", EK_LOG_WARN,
               "--timeline: this process took none of the steps from %lld to %lld, so there is no "
               "timeline of it",
               (long long)from, (long long)(from + r->cfg->timeline_steps - 1));
    else if (r->cfg->timeline && !r->timeline.written)
        EK_TRY(write_timeline(r));
    if (r->cfg->record_routing && r->rank == 0 && r->out->end.step > r->first_step) {
        EK_TRY(ek_path_set(&path, "%s/routing.npy", r->cfg->out));
        EK_TRY(ek_routing_trace_write(&r->records.trace, path.s));
    }
    return EK_OK;
}

void ek_run_keep_data_failure(ek_run *r, ek_status st)
{
    if (st >= 0 || r->data.status < 0)
        return;
    r->data.status = st;
    snprintf(r->data.failure, sizeof(r->data.failure), "%s", ek_err_message());
}

/* Prefetches this rank's sequences of a step into r->data.ahead; records a failure. */
static void read_ahead(ek_run *r, int64_t step)
{
    int64_t seq = r->training.seq, n = ek_trainer_sequences(r->trainer);

    r->data.share_changes = ek_trainer_share_changes(r->trainer);
    for (int64_t i = 0; i < n && r->data.status == EK_OK; i++)
        ek_run_keep_data_failure(
            r, ek_windows_row(&r->data.windows, step, ek_trainer_sequence(r->trainer, i),
                              r->data.ahead + i * seq, r->data.ahead + (n + i) * seq));
}

static ek_status begin_data(ek_run *r)
{
    size_t n = (size_t)ek_trainer_most_sequences(r->trainer) * (size_t)r->training.seq;

    r->data.ahead = malloc((2 * n + 1) * sizeof(*r->data.ahead));
    EK_REQUIRE(r->data.ahead != NULL, EK_ENOMEM, "no memory for the tokens of a step");
    read_ahead(r, r->first_step);
    return ek_agree(r->world, "read the data", r->data.status);
}

/* Copies the prefetched tokens to the trainer and prefetches the next step's.  If that fails the
 * run ends with a checkpoint after this step, which all ranks can still take.  Where the ranks'
 * shares have changed since the tokens were read, all ranks read those of this step again; if that
 * fails the run ends before the step.  Collective. */
static ek_status next_data(ek_run *r)
{
    int64_t step = ek_trainer_steps_done(r->trainer);
    size_t n = (size_t)ek_trainer_sequences(r->trainer) * (size_t)r->training.seq;

    if (r->data.share_changes != ek_trainer_share_changes(r->trainer)) {
        read_ahead(r, step);
        EK_TRY(ek_agree(r->world, "read the data", r->data.status));
    }
    if (n > 0) {
        memcpy(ek_trainer_inputs(r->trainer), r->data.ahead, n * sizeof(*r->data.ahead));
        memcpy(ek_trainer_targets(r->trainer), r->data.ahead + n, n * sizeof(*r->data.ahead));
    }
    if (step + 1 < r->training.optimizer.steps)
        read_ahead(r, step + 1);
    return EK_OK;
}

static ek_status data_failure(const ek_run *r)
{
    if (r->data.status == EK_OK)
        return EK_OK;
    return EK_FAIL(r->data.status,
                   "%s; the completed steps are in a checkpoint: continue with --resume",
                   r->data.failure);
}

/* Switches the recording of ops on or off, and records the start time of recorded steps. */
static ek_status record_step(ek_run *r, int64_t step)
{
    int on = ek_run_is_recorded(r, step);
    int64_t most = r->training.optimizer.steps - step;

    ek_trainer_record(r->trainer, on);
    if (!on)
        return EK_OK;
    if (r->timeline.step_ns == NULL) {
        most = most < r->cfg->timeline_steps ? most : r->cfg->timeline_steps;
        r->timeline.step_ns = calloc((size_t)most, sizeof(*r->timeline.step_ns));
        EK_REQUIRE(r->timeline.step_ns != NULL, EK_ENOMEM, "no memory for a timeline");
        r->timeline.first = step;
    }
    r->timeline.step_ns[r->timeline.n++] = ek_clock_ns();
    return EK_OK;
}

/* Before a step, or an evaluation in its place. */
static ek_status apply_schedules(ek_run *r, int64_t step)
{
    const ek_train_config *c = r->cfg;
    double top_k = ek_value_schedule_at(&r->options.top_k_schedule, step, (double)c->top_k);

    ek_trainer_set_capacity_factor(
        r->trainer, ek_value_schedule_at(&r->options.capacity_schedule, step, c->capacity_factor));
    return top_k > 0 ? ek_trainer_set_top_k(r->trainer, (int64_t)top_k) : EK_OK;
}

static ek_status one_step(ek_run *r, ek_step_result *result)
{
    int64_t step = ek_trainer_steps_done(r->trainer);

    EK_TRY(apply_schedules(r, step));
    ek_plan_record_begin(&r->records.plans, step, r->source.spec.layers);
    EK_TRY(record_step(r, step));
    EK_TRY(ek_trainer_step(r->trainer, result));
    EK_TRY(ek_plan_record_end(&r->records.plans));
    if (ek_run_is_recorded(r, step) && !ek_run_is_recorded(r, step + 1))
        EK_TRY(write_timeline(r));
    if (r->cfg->record_routing && r->rank == 0)
        EK_TRY(ek_routing_trace_add(&r->records.trace, ek_trainer_pass(r->trainer)));
    return EK_OK;
}

static int wants_save(const ek_run *r, int64_t done, int stop)
{
    int64_t every = r->cfg->save_every;

    return stop || done == r->training.optimizer.steps || (every > 0 && done % every == 0) ||
           r->eval.new_best || ek_run_stops_early(r) || r->progress.votes >= save_vote;
}

/* Collects the balance of layers in the last step. */
static void look_at_layers(const ek_run *r)
{
    const ek_model_spec *spec = &r->source.spec;
    int n = 0;

    for (int64_t l = 0; l < spec->layers && r->records.routed > 0; l++)
        if (!spec->dense[l])
            r->records.of_layer[n++] = ek_pass_balance(ek_trainer_pass(r->trainer), l);
}

/* Checks the last step for spikes of loss or gradient norm, and warns. */
static int look_for_spikes(ek_run *r)
{
    double loss = r->progress.last.losses.loss, norm = r->progress.last.grad_norm;
    ek_spike x = ek_spikes_add(&r->records.spikes, loss, norm);
    char text[256];

    r->out->spikes = r->records.spikes.count;
    if (!x.is_new)
        return x.kinds;
    ek_spike_describe(&x, loss, norm, r->training.optimizer.clip, text, sizeof(text));
    ek_log("train", EK_LOG_WARN, "step %lld: %s", (long long)r->progress.last.step, text);
    return x.kinds;
}

/* With experts on disk: what each layer waited for, on the rank where it waited longest; layers of
 * other kinds are left out.  Collective. */
static ek_status gather_waits(ek_run *r, ek_metrics_step *s)
{
    const ek_model_spec *spec = &r->source.spec;
    double *waits = r->records.layer_waits;
    ek_coll *op = NULL;

    if (!s->offloads)
        return EK_OK;
    ek_offload_take_stalls(r->model, waits);
    if (r->ranks > 1) {
        EK_TRY(ek_comm_all_reduce(r->world, waits, 2 * spec->layers, EK_MAX_F64, &op));
        EK_TRY(ek_coll_wait(&op));
    }
    for (int64_t l = 0; l < spec->layers; l++)
        if (!spec->dense[l])
            memmove(&waits[2 * s->n_layers++], &waits[2 * l], 2 * sizeof(*waits));
    s->layer_waits = waits;
    return EK_OK;
}

/* Writes a line of metrics.jsonl, with values gathered from every rank. */
static ek_status write_metrics(ek_run *r, double step_ms)
{
    ek_metrics_step s = {.result = &r->progress.last,
                         .step_ms = step_ms,
                         .of_rank = r->records.of_rank,
                         .ranks = r->ranks,
                         .of_layer = r->records.of_layer,
                         .layers = r->records.routed,
                         .offloads = r->model->offload != NULL,
                         .save_interval = r->saves.interval.steps};

    r->records.of_rank[r->rank] = (ek_rank_metrics){
        (double)r->progress.last.comm_bytes, (double)ek_rss_peak_bytes(),
        (double)r->model->n_elements, r->progress.last.flops, ek_trainer_disk(r->trainer)};
    EK_TRY(ek_gather(r->world, r->records.of_rank, sizeof(*r->records.of_rank)));
    EK_TRY(gather_waits(r, &s));
    if (r->rank != 0)
        return EK_OK;
    look_at_layers(r);
    s.spikes = look_for_spikes(r);
    return ek_metrics_write(&r->records.metrics, &s);
}

/* What the last step did with experts on disk. */
static void set_disk(const ek_run *r, ek_train_progress *p)
{
    ek_step_disk d = ek_trainer_disk(r->trainer);

    p->disk_hits = d.uses > 0 ? d.hits / d.uses : -1;
    p->disk_wait = d.wait_s * 1e3 / p->step_ms;
    p->memory_wait = d.entry_wait_s * 1e3 / p->step_ms;
}

/* Before a step: sets this rank's vote, so that all stop or save after the same step. */
static void set_vote(ek_run *r)
{
    const ek_train_hooks *h = r->hooks;
    int save = r->rank == 0 && ek_run_is_save_due(r, ek_trainer_steps_done(r->trainer) + 1);

    r->progress.votes = save ? save_vote : 0;
    if (r->ranks > 1)
        ek_trainer_vote(r->trainer, r->progress.votes + (r->data.status < 0 ||
                                                         (h->stop != NULL && h->stop(h->context))));
}

/* After a step: whether to stop. */
static int count_votes(ek_run *r)
{
    const ek_train_hooks *h = r->hooks;

    if (r->ranks == 1)
        return r->data.status < 0 || (h->stop != NULL && h->stop(h->context));
    r->progress.votes = r->progress.last.votes;
    return fmod(r->progress.votes, save_vote) > 0;
}

/* Broadcasts rank 0's start time for all timelines; clocks of hosts are not synchronised. */
static ek_status set_origin(ek_run *r, int64_t now)
{
    double *all = calloc((size_t)r->ranks, sizeof(*all));
    ek_status st = EK_OK;

    EK_REQUIRE(all != NULL, EK_ENOMEM, "no memory for %d ranks", r->ranks);
    all[r->rank] = (double)now;
    EK_TRY_OUT(ek_gather(r->world, all, sizeof(*all)));
    r->timeline.origin_ns = (int64_t)all[0];
out:
    free(all);
    return st;
}

/* Before the first step of a start that continues: evaluates the model, if the previous start has
 * not.  *done: no steps follow, as none remain or a rank asked to stop; then unsaved state is
 * saved. */
static ek_status run_pending_evaluation(ek_run *r, int *stop, int *done)
{
    *done = 0;
    if (r->first_step > 0)
        EK_TRY(ek_run_evaluate(r, r->first_step, stop));
    *done = *stop || r->first_step >= r->training.optimizer.steps || ek_run_stops_early(r);
    if (!*done)
        return r->eval.new_best ? save_checkpoint(r, 0) : EK_OK;
    r->out->end.loss = r->memory.step >= 0 && r->memory.recovery.decision.record >= 0
                           ? ek_run_recovered_record(r).result.losses.loss
                           : NAN;
    if (*stop && !r->eval.new_best && r->first_step == r->saves.checkpoint_step)
        return EK_OK;
    return save_checkpoint(r, 1);
}

/* Ends a run that was asked to stop: EK_OK if it had nothing left to do. */
static ek_status end_stopped(ek_run *r)
{
    const ek_train_progress *p = &r->out->end;
    int all_steps = p->step >= p->steps;

    r->progress.step = p->step;
    EK_TRY(ek_agree(r->world, "read the data", data_failure(r)));
    if (all_steps && !ek_run_is_evaluation_due(r, p->step))
        return EK_OK;
    return EK_FAIL(
        EK_ECANCELED,
        "interrupted after step %lld of %lld%s; the checkpoint is written, continue with "
        "--resume",
        (long long)p->step, (long long)p->steps, all_steps ? ", in the last evaluation" : "");
}

static ek_status step_loop(ek_run *r)
{
    ek_train_progress *p = &r->out->end;
    int64_t begin = ek_run_layouts_begin(r->layouts), last = ek_clock_ns();
    const ek_train_hooks *h = r->hooks;
    int stop = 0, change = 0, done;

    EK_TRY(set_origin(r, last));
    r->saves.began_ns = last;
    p->steps = r->training.optimizer.steps;
    p->step = r->first_step;
    EK_TRY(apply_schedules(r, r->first_step));
    EK_TRY(run_pending_evaluation(r, &stop, &done));
    if (done)
        return stop ? end_stopped(r) : EK_OK;
    if (r->ranks > 1) /* not before: one rank may tokenise for hours while the others wait */
        ek_comm_set_watchdog(r->world, r->cfg->watchdog);
    EK_TRY(begin_data(r));
    ek_run_report_phase(r, "step");
    while (!stop && !change && !ek_run_stops_early(r) &&
           ek_trainer_steps_done(r->trainer) < p->steps) {
        int64_t now, begun;

        r->progress.step = ek_trainer_steps_done(r->trainer);
        EK_TRY(next_data(r));
        set_vote(r);
        ek_run_share_saves(r);
        EK_TRY(let_save_read(r));
        begun = ek_clock_ns();
        EK_TRY(one_step(r, &r->progress.last));
        p->step = ek_trainer_steps_done(r->trainer);
        stop = count_votes(r);
        now = ek_clock_ns();
        p->step_ms = (double)(now - last) / 1e6;
        EK_TRY(ek_run_time_step(r, p->step_ms / 1e3));
        ek_run_layouts_add_step(r, (double)(now - begun) / 1e9);
        EK_TRY(write_metrics(r, p->step_ms));
        last = now; /* the next step's time includes saving */
        p->loss = r->progress.last.losses.loss;
        p->expert_max_over_mean = r->progress.last.losses.expert_max_over_mean;
        set_disk(r, p);
        p->tokens_per_s = (double)r->progress.last.tokens / p->step_ms * 1e3;
        p->seconds = (double)(now - begin) / 1e9;
        if (p->step == r->first_step + 1)
            r->progress.counted_ns = now;
        else
            ek_run_add_balance(r, p->step - r->first_step - 1, p->step_ms / 1e3);
        if (p->step > r->first_step + 1)
            r->out->tokens_per_s =
                (double)((p->step - r->first_step - 1) * r->progress.last.tokens) /
                ((double)(now - r->progress.counted_ns) / 1e9);
        if (ek_run_is_evaluation_due(r, p->step))
            EK_TRY(let_save_read(r));
        EK_TRY(ek_run_evaluate(r, p->step, &stop));
        r->saves.other_s = (double)(ek_clock_ns() - now) / 1e9;
        if (h->step != NULL)
            h->step(h->context, p);
        EK_TRY(poll_save(r));
        if (!stop && !ek_run_stops_early(r))
            EK_TRY(ek_run_layouts_decide(r, &change)); /* the next step's time includes it */
        if (change || wants_save(r, p->step, stop))
            EK_TRY(
                save_checkpoint(r, change || stop || p->step == p->steps || ek_run_stops_early(r)));
    }
    return stop ? end_stopped(r) : EK_OK;
}

/* Adds the number of the current step, as in metrics.jsonl, to the message of a failure. */
static ek_status take_steps(ek_run *r)
{
    ek_status st = step_loop(r);
    char text[1024];

    if (st >= 0 || st == EK_ECANCELED)
        return st;
    snprintf(text, sizeof(text), "%s", ek_err_message());
    return EK_FAIL(st, "step %lld: %s", (long long)r->progress.step, text);
}

/* st: the status of the run. */
static void close_all(ek_run *r, ek_status st)
{
    ek_train_save_abandon(&r->saves.current);
    ek_metrics_close(&r->records.metrics);
    if (r->folder.replaces && ek_out_restore(r->cfg->out))
        ek_log("train", EK_LOG_WARN, "%s keeps the checkpoints of the run that was to be replaced",
               r->cfg->out);
    ek_routing_trace_close(&r->records.trace);
    ek_trainer_destroy(&r->trainer);
    ek_plan_record_close(&r->records.plans);
    ek_trace_close(&r->options.replay);
    ek_model_destroy(&r->model);
    ek_state_addresses_fini(&r->memory.addresses);
    ek_mesh_close(&r->mesh);
    free(r->costs.machine);
    free(r->costs.layers);
    free(r->timeline.step_ns);
    free(r->records.of_rank);
    free(r->records.of_layer);
    free(r->records.layer_waits);
    free(r->data.ahead);
    ek_sources_close(&r->data.sources);
    ek_tokens_close(&r->eval.held_out);
    ek_tokenizer_destroy(&r->data.tokenizer);
    ek_tokenizer_files_free(&r->data.tokenizer_files);
    json_decref(r->options.settings);
    json_decref(r->options.all_settings);
    free(r->options.run_file);
    free(r->options.shares);
    ek_run_close_state(r, st);
    ek_kernels_destroy(&r->kernels); /* after the models of copies */
    if (r->world != r->all)
        ek_comm_close(&r->world);
    r->layouts->saves = r->saves.history;
    r->layouts->lock = r->layouts->changing && st == EK_OK ? r->folder.lock : -1;
    if (r->folder.lock >= 0 && r->layouts->lock < 0)
        close(r->folder.lock);
}

/* After a failure of which other ranks may not know. */
static void give_up(const ek_train_config *cfg, ek_status st)
{
    if (cfg->world != NULL && ek_comm_size(cfg->world) > 1 &&
        (st != EK_ECANCELED || ek_supervised_draining(cfg->supervised) > 0))
        ek_comm_give_up(cfg->world);
}

/* A start of the run: to its end, or until it is to go on with another layout. */
static ek_status execute_start(ek_run_layouts *layouts, const ek_train_hooks *hooks,
                               ek_train_summary *out)
{
    const ek_train_config *cfg = &layouts->cfg;
    ek_run r = {.cfg = cfg,
                .hooks = hooks,
                .out = out,
                .layouts = layouts,
                .world = cfg->world,
                .all = cfg->world,
                .rank = cfg->world != NULL ? ek_comm_rank(cfg->world) : 0,
                .ranks = cfg->world != NULL ? ek_comm_size(cfg->world) : 1,
                .records = {.metrics = {.fd = -1}},
                .eval = {.state = ek_eval_state_new(0, 0, 0)},
                .memory = {.step = -1},
                .folder = {.lock = layouts->lock}};
    int draining;
    ek_status st = EK_OK;

    if (r.ranks > 1)
        ek_comm_set_watchdog(r.world, 0); /* an earlier start has set it */
    if (layouts->changes > 0)
        ek_run_report_phase(&r, "plan");
    EK_TRY_OUT(ek_run_split_draining(&r, &draining));
    EK_TRY_OUT(draining ? ek_run_drain(&r) : ek_run_open(&r));
    if (!out->finished_before && ek_supervised_draining(cfg->supervised) == 0 && !cfg->dry_run) {
        st = take_steps(&r);
        if (st == EK_OK && !layouts->changing)
            st = ek_run_explain(&r);
        if (st == EK_OK)
            st = ek_run_evaluate_survivability(&r);
        if (st == EK_OK || st == EK_ECANCELED) {
            ek_status extra = write_extras(&r);

            st = extra < 0 ? extra : st;
        }
    }
    out->peak_rss_bytes = ek_rss_peak_bytes();
out:
    if (st == EK_OK && layouts->changing)
        out->balance = (ek_train_balance){0}; /* means are of the last layout */
    if (st < 0)
        give_up(cfg, st);
    close_all(&r, st);
    return st;
}

ek_status ek_run_execute(const ek_train_config *cfg, const ek_train_hooks *hooks,
                         ek_train_summary *out)
{
    ek_run_layouts layouts;
    ek_status st = ek_run_layouts_open(&layouts, cfg);

    if (st < 0)
        give_up(cfg, st);
    else
        do {
            st = execute_start(&layouts, hooks, out);
        } while (st == EK_OK && ek_run_layouts_continue(&layouts));
    ek_run_layouts_describe(&layouts, out);
    ek_run_layouts_close(&layouts);
    return st;
}
