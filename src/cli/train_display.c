/* What `evenkeel train` prints: progress, and the summary at the end. */
#include "cli/train_display.h"

#include "base/clock.h"
#include "base/count_text.h"
#include "base/live_line.h"
#include "cli/cli.h"
#include "cost/cost.h"
#include "train/output/plan_text.h"
#include "train/output/summary_json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static void show_start(void *context, const ek_train_info *i)
{
    cli_train_display *d = context;
    char a[16], b[16], c[16], m[16], ranks[32] = "";
    cli_text out;

    if (d->quiet)
        return;
    if (d->job->size > 1)
        snprintf(ranks, sizeof(ranks), "%d ranks of ", d->job->size);
    fprintf(ek_command_err(),
            "%s parameters (%s active), %s tokens of data, %" PRId64 " x %" PRId64
            " tokens a step\nkernels %s (products: %s), %s%d thread%s, about %sB of memory%s\n",
            ek_count_text(a, sizeof(a), (double)i->params),
            ek_count_text(b, sizeof(b), (double)i->active_params),
            ek_count_text(c, sizeof(c), (double)i->tokens), i->batch, i->seq, i->kernels,
            i->products, ranks, i->threads, i->threads == 1 ? "" : "s",
            ek_count_text(m, sizeof(m), (double)i->predicted_bytes),
            d->job->size > 1 ? " on the first" : "");
    fprintf(ek_command_err(), "output in %s\n", cli_shown(&out, d->out));
    if (i->first_step > 0)
        fprintf(ek_command_err(), "continuing %safter step %" PRId64 "\n",
                i->from_memory ? "from memory " : "", i->first_step);
}

void cli_train_display_end_line(void)
{
    fputs(ek_live_line_end(), ek_command_err());
    fflush(ek_command_err());
}

static void show_tokenising(void *context, int64_t done, int64_t total)
{
    cli_train_display *d = context;
    int64_t now = ek_clock_ns();

    if (d->quiet || (done < total && now - d->last_ns < 200000000))
        return;
    d->last_ns = now;
    if (d->live)
        ek_live_line_show("tokenising %3.0f %%",
                          total > 0 ? 100.0 * (double)done / (double)total : 100.0);
    if (done >= total)
        cli_train_display_end_line();
}

static void show_evaluating(void *context, int64_t windows_done, int64_t windows)
{
    cli_train_display *d = context;
    int64_t now = ek_clock_ns();

    if (d->quiet || !d->live || now - d->last_ns < 100000000)
        return;
    d->last_ns = now;
    ek_live_line_show("evaluating %3.0f %%", 100.0 * (double)windows_done / (double)windows);
}

/* Prints a permanent line. */
static void show_evaluation(const cli_train_display *d, const ek_train_progress *p)
{
    char line[256];

    snprintf(line, sizeof(line), "step %" PRId64 "/%" PRId64 "  eval loss %.4f  perplexity %.5g%s",
             p->step, p->steps, p->eval_loss, exp(p->eval_loss),
             p->eval_best ? "  (best so far)" : "");
    if (d->live)
        ek_live_line_show("%s", line);
    else
        fprintf(ek_command_err(), "%s\n", line);
    cli_train_display_end_line();
}

/* A step that waits for this share of its time is not bound by compute. */
static const double waits_allowed = 0.1;

/* What experts on disk do to a step. */
static void describe_disk(const ek_train_progress *p, char *text, size_t cap)
{
    const char *bound = p->disk_wait < waits_allowed        ? "compute"
                        : 2 * p->memory_wait > p->disk_wait ? "memory"
                                                            : "disk";

    snprintf(text, cap, "  experts %.0f %% in memory, bound by %s (waits %.0f %%)",
             100 * p->disk_hits, bound, 100 * p->disk_wait);
}

static void show_step(void *context, const ek_train_progress *p)
{
    cli_train_display *d = context;
    int64_t now = ek_clock_ns(), left = p->steps - p->step;
    char rate[16], eta[24], disk[80] = "", line[336];
    int last = left == 0;

    if (!d->quiet && p->eval_tokens > 0)
        show_evaluation(d, p);
    if (d->quiet || (!last && d->live && now - d->last_ns < 100000000) ||
        (!last && !d->live && p->step % d->every != 0 && p->step != 1))
        return;
    d->last_ns = now;
    ek_number_text(rate, sizeof(rate), p->tokens_per_s);
    ek_duration_text(eta, sizeof(eta), (double)left * p->step_ms / 1e3);
    if (p->disk_hits >= 0)
        describe_disk(p, disk, sizeof(disk));
    snprintf(line, sizeof(line),
             "step %" PRId64 "/%" PRId64 "  loss %.4f  %s tokens/s  balance %.2f%s  left %s",
             p->step, p->steps, p->loss, rate, p->expert_max_over_mean, disk, eta);
    if (d->live)
        ek_live_line_show("%s", line);
    else
        fprintf(ek_command_err(), "%s\n", line);
    if (last)
        cli_train_display_end_line();
}

static void add_to(json_t **list, json_t *o)
{
    if (*list == NULL)
        *list = json_array();
    json_array_append_new(*list, o);
}

static void collect_layer(void *context, const ek_train_layer *l)
{
    cli_train_display *d = context;

    add_to(&d->layers, d->json ? ek_summary_layer_json(l) : json_string(l->line));
}

static void collect_cost(void *context, const ek_train_cost *c)
{
    cli_train_display *d = context;

    add_to(&d->costs, ek_summary_cost_json(c));
}

static void print_json(const ek_train_summary *s, const cli_train_display *d)
{
    json_t *o = ek_summary_json(s, d->job->size);

    if (d->layers != NULL)
        json_object_set(o, "roofline", d->layers);
    if (d->costs != NULL)
        json_object_set(o, "costs", d->costs);
    json_dumpf(o, stdout, 0);
    fputc('\n', stdout);
    json_decref(o);
}

/* Means per step of what --balance did. */
static void print_balance(const ek_train_balance *b)
{
    char replicas[16], ahead[16], bytes[16], moved[16], plan[EK_COST_QUANTITY],
        wait[EK_COST_QUANTITY], smaller[96] = "loads even with the plan";

    if (b->deviation_after > 0)
        snprintf(smaller, sizeof(smaller),
                 "standard deviation of loads without the plan %.3g times that with it (RB)",
                 ek_summary_rb(b));
    printf("balance %s: busiest rank %.2f x mean load, %.2f without; %s; per step %s "
           "replicas (%s sent before the gate, %s), "
           "%s experts moved, %s planning, %s waiting\n",
           b->policy, b->after, b->before, smaller,
           ek_number_text(replicas, sizeof(replicas), b->replicas),
           ek_number_text(ahead, sizeof(ahead), b->replicas_ahead),
           ek_bytes_text(bytes, sizeof(bytes), b->replica_bytes),
           ek_number_text(moved, sizeof(moved), b->experts_moved),
           ek_cost_quantity(plan, b->plan_s, "s"), ek_cost_quantity(wait, b->waited_s, "s"));
    if (b->step_s > 0)
        printf("without balance the products of the busiest rank would lengthen a step to %s from "
               "%s, %.3g times\n",
               ek_cost_quantity(wait, b->step_s + b->saved_s, "s"),
               ek_cost_quantity(plan, b->step_s, "s"), (b->step_s + b->saved_s) / b->step_s);
    if (b->slowest_rank < 1)
        printf("speeds of ranks differ: the slowest expert rank has %.2f of the fastest one's\n",
               b->slowest_rank);
}

/* Which losses of hosts the run survives, and what that costs. */
static void print_survival(const ek_train_balance *b)
{
    if (b->survivability_text[0] != '\0')
        printf("final expert placement: %s\n", b->survivability_text);
    if (b->racks_text[0] != '\0')
        printf("counted by racks: %s\n", b->racks_text);
    if (b->copies_lengthen > 0 && (b->copies_kept || b->copies_left_out))
        printf("copies on other hosts %s predicted to lengthen a step by %.*f %%; without copies "
               "host failures are expected to cost %.*f %% of the run (--host-mtbf)%s\n",
               b->copies_kept ? "are" : "were left out: they are",
               ek_decimals(100 * b->copies_lengthen), 100 * b->copies_lengthen,
               ek_decimals(100 * b->losses_cost), 100 * b->losses_cost,
               b->copies_kept ? "" : "; --elastic keeps them");
}

/* Prints the lines of all layers, if there are few. */
static void print_layers(const json_t *lines)
{
    enum { FEW = 8 };

    for (size_t i = 0; json_array_size(lines) <= FEW && i < json_array_size(lines); i++)
        printf("%s\n", json_string_value(json_array_get(lines, i)));
}

static void print_evaluations(const ek_train_evaluation *e)
{
    cli_text path;

    if (e->step <= 0)
        return;
    printf("eval loss %.4f, perplexity %.5g; best %.4f after step %" PRId64 "%s%s\n", e->loss,
           exp(e->loss), e->best_loss, e->best_step, e->best_checkpoint[0] != '\0' ? ": " : "",
           cli_shown(&path, e->best_checkpoint));
    if (e->stopped_early)
        printf("stopped early: no new best in %" PRId64 " evaluation%s (--patience)\n",
               e->since_best, e->since_best == 1 ? "" : "s");
}

static void print_summary(const ek_train_summary *s, const cli_train_display *d)
{
    char rate[16], time[24], peak[16], guess[16], speed[40] = "", loss[40] = "no steps left";
    cli_text path;

    if (d->json) {
        print_json(s, d);
        return;
    }
    if (isfinite(s->end.loss))
        snprintf(loss, sizeof(loss), "loss %.4f", s->end.loss);
    if (s->tokens_per_s > 0) /* the first step of a process is not counted */
        snprintf(speed, sizeof(speed), ", %s tokens/s",
                 ek_number_text(rate, sizeof(rate), s->tokens_per_s));
    printf("%" PRId64 " step%s in %s%s, %s, peak memory %sB (predicted %sB)\n"
           "checkpoint: %s\n",
           s->end.step, s->end.step == 1 ? "" : "s",
           ek_duration_text(time, sizeof(time), s->end.seconds), speed, loss,
           ek_count_text(peak, sizeof(peak), (double)s->peak_rss_bytes),
           ek_count_text(guess, sizeof(guess), (double)s->info.predicted_bytes),
           cli_shown(&path, s->checkpoint));
    if (s->spikes > 0)
        printf("%" PRId64
               " step%s with a spike in loss or gradient norm (`spike` in metrics.jsonl)\n",
               s->spikes, s->spikes == 1 ? "" : "s");
    if (s->checkpoints.automatic)
        printf("checkpoints %s; %" PRId64 " cost %s together\n", s->checkpoints.reason,
               s->checkpoints.saved, ek_cost_quantity(time, s->checkpoints.paid_s, "s"));
    if (s->layouts.n > 0)
        printf("layout %s, after %" PRId64 " change%s\n", s->layouts.options, s->layouts.changes,
               s->layouts.changes == 1 ? "" : "s");
    print_evaluations(&s->evaluation);
    if (s->balance.policy != NULL)
        print_balance(&s->balance);
    print_survival(&s->balance);
    print_layers(d->layers);
}

cli_train_display cli_train_display_open(const ek_options *o, const ek_command_job *job)
{
    cli_train_display d = {.job = job,
                           .quiet = ek_options_flag(o, "quiet") || job->rank > 0,
                           .live = job->live,
                           .json = ek_options_flag(o, "json"),
                           .every = 10};

    ek_log_set_sink(cli_log, (void *)(uintptr_t)job,
                    job->rank > 0                 ? EK_LOG_ERROR
                    : ek_options_flag(o, "quiet") ? EK_LOG_WARN
                                                  : EK_LOG_INFO);
    return d;
}

ek_train_hooks cli_train_display_hooks(cli_train_display *d)
{
    /* No warning hook: cli_log gets what is logged. */
    return (ek_train_hooks){.context = d,
                            .started = show_start,
                            .step = show_step,
                            .tokenising = show_tokenising,
                            .layer = collect_layer,
                            .cost = collect_cost,
                            .evaluating = show_evaluating};
}

void cli_train_display_summary(const cli_train_display *d, const ek_train_summary *s,
                               const ek_train_config *cfg)
{
    const ek_command_job *job = d->job;
    cli_text out;

    if (s->finished_before && s->evaluation.stopped_early && !d->quiet)
        fprintf(ek_command_err(),
                "%s: stopped early, after %" PRId64
                " evaluation%s without a new best loss; continue with a larger --patience, or with "
                "--patience 0\n",
                cli_shown(&out, cfg->out), s->evaluation.since_best,
                s->evaluation.since_best == 1 ? "" : "s");
    else if (s->finished_before && !d->quiet)
        fprintf(ek_command_err(), "%s: all steps are already completed\n",
                cli_shown(&out, cfg->out));
    else if (s->plan.made && job->rank == 0)
        (d->json ? ek_plan_write_json : ek_plan_write_text)(s, cfg, stdout);
    else if (!s->finished_before && job->rank == 0 && (!d->quiet || d->json))
        print_summary(s, d);
}

void cli_train_display_close(cli_train_display *d)
{
    json_decref(d->layers);
    json_decref(d->costs);
}
