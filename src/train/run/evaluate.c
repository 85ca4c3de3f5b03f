/* Evaluations of a run: held-out data, when to evaluate, results, and early stopping (--patience).
 *
 * The stream of --eval-data is cut into non-overlapping windows of --seq tokens, the last one
 * shorter (data/windows.h), as by `evenkeel eval`.  If that is more than --eval-tokens, evenly
 * spaced windows are evaluated, the same ones every time.
 *
 * The metrics line of the step is written before its evaluation begins; the result is added later.
 * An interrupted evaluation leaves line and checkpoint without a result; the next start repeats it
 * before its first step. */
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "comm/agree.h"
#include "train/run/state.h"

#include <math.h>
#include <string.h>

/* --- the data --------------------------------------------------------------------------------- */

static ek_status check_paths(const ek_train_config *c)
{
    const char *weight;
    ek_path path;

    for (int64_t i = 0; i < c->n_eval_data; i++) {
        EK_TRY(ek_source_path(c->eval_data[i], &path, &weight));
        EK_REQUIRE(
            weight == NULL, EK_EINVAL,
            "--eval-data %s: an evaluation reads everything once, so a weight has no effect; "
            "leave :%s out",
            c->eval_data[i], weight);
    }
    return EK_OK;
}

ek_status ek_run_open_held_out(ek_run *r, const ek_tokens_config *like)
{
    const ek_train_config *c = r->cfg;
    int64_t seq = r->training.seq, windows, taken;
    ek_tokens_config tc = *like;

    if (c->n_eval_data == 0)
        return EK_OK;
    EK_TRY(check_paths(c));
    tc.paths = c->eval_data;
    tc.n_paths = c->n_eval_data;
    EK_TRY(ek_tokens_open(&tc, &r->eval.held_out));
    windows = taken = ek_eval_windows(r->eval.held_out, seq);
    EK_REQUIRE(windows > 0, EK_EFORMAT, "--eval-data: %lld tokens; a loss needs at least two",
               (long long)ek_tokens_get_info(r->eval.held_out).n_tokens);
    if (c->eval_tokens > 0 && windows > c->eval_tokens / seq)
        taken = c->eval_tokens / seq > 0 ? c->eval_tokens / seq : 1;
    r->eval.state = ek_eval_state_new(ek_tokens_get_info(r->eval.held_out).n_tokens, seq, taken);
    return EK_OK;
}

/* Which window of the stream is the i-th of an evaluation. */
static int64_t window_at(const ek_run *r, int64_t i)
{
    int64_t all = ek_eval_windows(r->eval.held_out, r->eval.state.seq),
            taken = r->eval.state.windows;

    return taken == all ? i : i * (all / taken) + i * (all % taken) / taken;
}

int64_t ek_run_eval_every(const ek_run *r)
{
    int64_t twentieth = r->training.optimizer.steps / 20;

    if (r->cfg->n_eval_data == 0)
        return 0;
    return r->cfg->eval_every > 0 ? r->cfg->eval_every : twentieth > 0 ? twentieth : 1;
}

/* --- state of earlier starts ------------------------------------------------------------------ */

/* Read by rank 0 and broadcast. */
typedef struct {
    ek_eval_state state;
    int64_t new_best; /* 1: the current model is the best, and has to be saved */
} restored_state;

/* For a start from memory, where the save of the best model may not have been committed: the best
 * evaluation is that of the models that still exist, <out>/best and the one in memory.  since_best
 * is kept, as --patience counts evaluations without a lower loss. */
static ek_status find_best_model(const ek_run *r, ek_eval_state *s)
{
    ek_eval_state saved;
    int found = 0;
    ek_path path;

    EK_TRY(ek_checkpoint_best(r->cfg->out, s->best_step, &path));
    if (path.s[0] != '\0')
        return EK_OK;
    EK_TRY(ek_path_set(&path, "%s/best", r->cfg->out));
    if (ek_checkpoint_is_best_link(path.s)) {
        EK_TRY(ek_path_set(&path, "%s/best/state.json", r->cfg->out));
        EK_TRY(ek_eval_state_read(path.s, "evaluation", &saved, &found));
    }
    if (found) /* which is its own evaluation */
        EK_TRY(ek_checkpoint_best(r->cfg->out, saved.best_step, &path));
    found = found && path.s[0] != '\0' && ek_eval_state_same_data(&saved, s);
    s->best_step = found ? saved.best_step : -1;
    s->best_loss = found ? saved.best_loss : 0;
    if (s->step == r->first_step && (!found || s->loss < s->best_loss)) {
        s->best_step = s->step;
        s->best_loss = s->loss;
    }
    return EK_OK;
}

/* A start without --eval-data keeps the evaluation state for a later start with it.
 *
 * A start from memory reads it from <out>/evaluation.json; one from a checkpoint reads it from
 * there, as later steps are repeated. */
static ek_status read_state(const ek_run *r, restored_state *x)
{
    int from_memory = r->memory.step >= 0, found = 0;
    ek_eval_state *s = &x->state;
    ek_path path;

    if (from_memory)
        EK_TRY(ek_path_set(&path, "%s/" EK_EVAL_FILE, r->cfg->out));
    else
        EK_TRY(ek_path_set(&path, "%s/state.json", r->saves.found.path.s));
    EK_TRY(ek_eval_state_read(path.s, from_memory ? NULL : "evaluation", s, &found));
    if (!found || s->step <= 0 || s->step > r->first_step) { /* 0: written without --eval-data */
        *s = r->eval.state;
        return EK_OK;
    }
    if (r->eval.held_out != NULL && !ek_eval_state_same_data(s, &r->eval.state)) {
        ek_log("train", EK_LOG_WARN,
               "--eval-data, --seq or --eval-tokens changed: the best loss (%.4f, step %lld) and "
               "the patience count are reset",
               s->best_loss, (long long)s->best_step);
        *s = r->eval.state;
        return EK_OK;
    }
    if (from_memory)
        EK_TRY(find_best_model(r, s));
    EK_TRY(ek_checkpoint_best(r->cfg->out, s->best_step, &path));
    x->new_best = s->best_step == r->first_step && path.s[0] == '\0';
    return EK_OK;
}

ek_status ek_run_restore_eval_state(ek_run *r)
{
    restored_state x = {0};
    ek_coll *op = NULL;

    r->eval.state =
        ek_eval_state_new(r->eval.state.data_tokens, r->eval.state.seq, r->eval.state.windows);
    r->eval.new_best = 0;
    x.state = r->eval.state;
    if (r->first_step == 0)
        return EK_OK;
    EK_TRY(ek_agree(r->world, "read the evaluations", r->rank == 0 ? read_state(r, &x) : EK_OK));
    if (r->ranks > 1) {
        EK_TRY(ek_comm_broadcast(r->world, &x, sizeof(x), 0, &op));
        EK_TRY(ek_coll_wait(&op));
    }
    r->eval.state = x.state;
    r->eval.new_best = x.new_best != 0;
    return EK_OK;
}

ek_status ek_run_write_eval_state(const ek_run *r)
{
    ek_eval_state later;
    int found = 0;
    ek_path path;

    if (r->eval.held_out == NULL)
        return EK_OK;
    if (r->eval.state.step > 0)
        return ek_eval_state_write(&r->eval.state, r->cfg->out);
    EK_TRY(ek_path_set(&path, "%s/" EK_EVAL_FILE, r->cfg->out)); /* of steps that are repeated */
    if (ek_eval_state_read(path.s, NULL, &later, &found) < 0 || !found)
        return EK_OK; /* no file, or not one of a run */
    return ek_file_remove(NULL, path.s);
}

int ek_run_stops_early(const ek_run *r)
{
    return r->eval.held_out != NULL && r->cfg->patience > 0 &&
           r->eval.state.since_best >= r->cfg->patience;
}

/* --- evaluating ------------------------------------------------------------------------------- */

/* A batch of windows from `first` on. */
typedef struct {
    ek_run *r;
    int64_t first;
} window_run;

/* Unreadable tokens become 0, so that all ranks finish the batch. */
static void read_window(void *context, int64_t i, int32_t *inputs, int32_t *targets)
{
    const window_run *w = context;
    int64_t n;
    ek_status st = ek_eval_window(w->r->eval.held_out, w->r->eval.state.seq,
                                  window_at(w->r, w->first + i), inputs, targets, &n);

    if (st >= 0)
        return;
    ek_run_keep_data_failure(w->r, st);
    memset(inputs, 0, (size_t)n * sizeof(*inputs));
    memset(targets, 0, (size_t)n * sizeof(*targets));
}

/* Sums over ranks after each batch. */
typedef struct {
    ek_eval_sums sums;
    double stop; /* ranks that ask to stop, or cannot read their windows */
} round_sums;

static ek_status evaluate_batch(ek_run *r, int64_t first, int64_t windows, int64_t seq,
                                round_sums *all)
{
    window_run w = {r, first};
    ek_batch_reader reader = {read_window, &w};
    round_sums mine = {0};
    ek_coll *op = NULL;

    EK_TRY(ek_trainer_forward(r->trainer, windows, seq, &reader, &mine.sums));
    mine.stop = r->data.status < 0 || (r->hooks->stop != NULL && r->hooks->stop(r->hooks->context));
    if (r->ranks > 1) {
        EK_TRY(ek_comm_all_reduce(r->world, &mine, sizeof(mine) / sizeof(double), EK_SUM_F64, &op));
        EK_TRY(ek_coll_wait(&op));
    }
    all->sums.loss += mine.sums.loss;
    all->sums.tokens += mine.sums.tokens;
    all->stop += mine.stop;
    ek_run_report_phase(r, "evaluate");
    if (r->hooks->evaluating != NULL)
        r->hooks->evaluating(r->hooks->context, first + windows, r->eval.state.windows);
    return EK_OK;
}

/* Evaluates all windows; ends early if a rank asks to stop. */
static ek_status evaluate_windows(ek_run *r, round_sums *all)
{
    int64_t seq = r->eval.state.seq, batch = r->training.batch, full = r->eval.state.windows;
    int64_t tokens = r->eval.state.data_tokens - 1, ragged = 0;

    if (full == ek_eval_windows(r->eval.held_out, seq) && tokens % seq != 0) {
        ragged = tokens % seq;
        full--;
    }
    for (int64_t first = 0; first < full && all->stop <= 0; first += batch)
        EK_TRY(evaluate_batch(r, first, full - first < batch ? full - first : batch, seq, all));
    if (ragged > 0 && all->stop <= 0)
        EK_TRY(evaluate_batch(r, full, 1, ragged, all));
    return EK_OK;
}

int ek_run_is_evaluation_due(const ek_run *r, int64_t step)
{
    int64_t every = ek_run_eval_every(r);

    return every > 0 && step > r->eval.state.step &&
           (step % every == 0 || step == r->training.optimizer.steps);
}

/* On rank 0: writes the result. */
static ek_status keep_result(ek_run *r, const ek_metrics_eval *e, int64_t step)
{
    if (r->rank != 0)
        return EK_OK;
    EK_TRY(ek_metrics_add_eval(&r->records.metrics, step - 1, e));
    return ek_run_write_eval_state(r);
}

static void write_result(ek_run *r, const ek_metrics_eval *e)
{
    ek_train_progress *p = &r->out->end;
    ek_train_evaluation *out = &r->out->evaluation;

    p->eval_tokens = e->tokens;
    p->eval_loss = e->loss;
    p->eval_best = r->eval.state.best_step == r->eval.state.step;
    out->count++;
    ek_run_describe_evaluations(r);
}

void ek_run_describe_evaluations(ek_run *r)
{
    ek_train_evaluation *out = &r->out->evaluation;

    if (r->eval.held_out == NULL || r->eval.state.step < 0)
        return;
    out->step = r->eval.state.step;
    out->loss = r->eval.state.loss;
    out->best_step = r->eval.state.best_step;
    out->best_loss = r->eval.state.best_loss;
    out->since_best = r->eval.state.since_best;
    out->stopped_early = ek_run_stops_early(r);
}

ek_status ek_run_evaluate(ek_run *r, int64_t step, int *stop)
{
    int64_t begin = ek_clock_ns();
    round_sums all = {0};
    ek_metrics_eval e;

    r->out->end.eval_tokens = 0;
    if (!ek_run_is_evaluation_due(r, step))
        return EK_OK;
    ek_run_report_phase(r, "evaluate");
    EK_TRY(evaluate_windows(r, &all));
    if (all.stop > 0) {
        *stop = 1;
        return EK_OK;
    }
    EK_REQUIRE(all.sums.tokens > 0, EK_EFORMAT,
               "--eval-data has no valid target: with --document-mask the token after an end token "
               "is not a target");
    e = (ek_metrics_eval){.loss = all.sums.loss / all.sums.tokens,
                          .tokens = (int64_t)all.sums.tokens,
                          .seconds = (double)(ek_clock_ns() - begin) / 1e9};
    EK_REQUIRE(isfinite(e.loss), EK_ENONFINITE, "the loss of --eval-data is not finite: %g",
               e.loss);
    r->eval.new_best |= ek_eval_state_add(&r->eval.state, step, e.loss);
    EK_TRY(ek_agree(r->world, "keep the evaluation", keep_result(r, &e, step)));
    write_result(r, &e);
    return EK_OK;
}
