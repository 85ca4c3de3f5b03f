/* evenkeel train: options to a run, the live progress line, signals, the summary. */
#include "evenkeel/train.h"

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "cli/dry_run.h"
#include "cli/job.h"
#include "cli/launch.h"
#include "cli/live_line.h"
#include "cli/racks.h"
#include "store/checkpoint.h"
#include "train/out.h"
#include "train/settings.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const ek_option options[] = {
    {"model", EK_OPTION_TEXT, "tiny", NULL, "MODEL", NULL, 0,
     "preset (tiny, small, base), a Hugging Face config.json, or a folder with one (and weights)"},
    {"init", EK_OPTION_TEXT, NULL, "random from --seed", "FILE", NULL, 0,
     "safetensors file or folder with initial weights"},
    {"data", EK_OPTION_LIST, NULL, NULL, "PATH", NULL, 1,
     "texts, .jsonl and .ndjson files (each also as .gz or .zst) and folders of them (read "
     "recursively), or .bin token files; PATH:WEIGHT ...: sources that sequences are drawn from by "
     "weight"},
    {"text-field", EK_OPTION_TEXT, "text", NULL, "KEY", NULL, 0,
     "key of a line's text in .jsonl and .ndjson files"},
    {"document-mask", EK_OPTION_FLAG, NULL, NULL, NULL, NULL, 0,
     "keep the documents of a sequence apart: tokens attend to their own document alone, and the "
     "first token of a document is no target"},
    {"eval-data", EK_OPTION_LIST, NULL, NULL, "PATH", NULL, 0,
     "held-out data to evaluate while training: paths as for --data, without weights; the best "
     "checkpoint is kept as OUT/best"},
    {"eval-every", EK_OPTION_INT, NULL, "a twentieth of --steps", "steps", "[1,1000000000]", 0,
     "steps between evaluations; there is one at the end as well"},
    {"eval-tokens", EK_OPTION_INT, "131072", NULL, "tokens", "[0,)", 0,
     "most tokens of an evaluation, in evenly spaced windows of --eval-data; 0: all"},
    {"patience", EK_OPTION_INT, "0", NULL, "evaluations", "[0,1000000000]", 0,
     "end the run after so many evaluations without a new best one; 0: never"},
    {"token-bytes", EK_OPTION_CHOICE, "2", NULL, "bytes", "2|4", 0,
     "size of a token in .bin files (little endian)"},
    {"tokenizer", EK_OPTION_TEXT, NULL, "the model folder's; bytes for a preset", "FILE", NULL, 0,
     "bytes, or a Hugging Face tokenizer.json (BPE)"},
    {"batch", EK_OPTION_INT, NULL, "8, or the preset's", "sequences", "[1,1000000]", 0,
     "sequences a step, over all ranks together"},
    {"seq", EK_OPTION_INT, NULL, "256, or the preset's", "tokens", "[1,10000000]", 0,
     "tokens a sequence"},
    {"micro-batch", EK_OPTION_INT, NULL, "the whole batch, or the preset's", "sequences",
     "[1,1000000]", 0, "sequences at once; gradients are summed over them"},
    {"data-order", EK_OPTION_CHOICE, "shuffled", NULL, NULL, "sequential|shuffled", 0,
     "order of the windows of the token stream"},
    {"steps", EK_OPTION_INT, NULL, "100, or the preset's", "steps", "[1,1000000000]", 0,
     "steps to take in total"},
    {"lr", EK_OPTION_REAL, "1e-3", NULL, NULL, "[0,)", 0, "peak learning rate"},
    {"lr-schedule", EK_OPTION_CHOICE, "cosine", NULL, NULL, "constant|cosine", 0,
     "learning rate after the warm-up"},
    {"warmup", EK_OPTION_INT, NULL, "1 % of --steps", "steps", "[0,1000000000]", 0,
     "steps of linear warm-up"},
    {"min-lr", EK_OPTION_REAL, NULL, "--lr / 10", NULL, "[0,)", 0, "learning rate at the end"},
    {"wd", EK_OPTION_REAL, "0.1", NULL, NULL, "[0,)", 0, "AdamW: weight decay of matrices"},
    {"beta1", EK_OPTION_REAL, "0.9", NULL, NULL, "[0,1)", 0, "AdamW"},
    {"beta2", EK_OPTION_REAL, "0.95", NULL, NULL, "[0,1)", 0, "AdamW"},
    {"eps", EK_OPTION_REAL, "1e-8", NULL, NULL, "[0,)", 0, "AdamW"},
    {"clip", EK_OPTION_REAL, "1.0", NULL, NULL, "[0,)", 0,
     "clip gradients to this global norm; 0: never"},
    {"aux-coef", EK_OPTION_REAL, "0.01", NULL, NULL, "[0,)", 0, "balance loss"},
    {"z-coef", EK_OPTION_REAL, "0", NULL, NULL, "[0,)", 0, "router z-loss"},
    {"capacity-factor", EK_OPTION_REAL, "0", NULL, NULL, "[-1000,1000]", 0,
     "0: dropless; else assignments over |f| times an even share, per sequence, are dropped"},
    {"top-k", EK_OPTION_INT, NULL, "the model's", "experts", "[1,1024]", 0,
     "experts a token in use, at most the model's"},
    {"top-k-schedule", EK_OPTION_TEXT, NULL, NULL, "STEP:K,...", NULL, 0,
     "change --top-k at these steps (counted from 0), such as 1000:4,5000:2"},
    {"capacity-schedule", EK_OPTION_TEXT, NULL, NULL, "STEP:F,...", NULL, 0,
     "change --capacity-factor at these steps (counted from 0), such as 0:1.25,2000:2,8000:0"},
    {"recompute", EK_OPTION_CHOICE, "off", NULL, NULL, "off|attention|full", 0,
     "activations to compute again in the backward pass instead of keeping them"},
    {"dtype", EK_OPTION_CHOICE, NULL, "bf16 where the device is fast at it, else fp32", NULL,
     "bf16|fp32|fp64", 0,
     "of matrix products (master weights and moments fp32); fp64: all in double, for proofs"},
    {"device", EK_OPTION_CHOICE, "cpu", NULL, NULL, "cpu|cuda", 0, "where to compute"},
    {"threads", EK_OPTION_INT, NULL, "the host's cores / its ranks", "threads", "[1,1024]", 0,
     "compute threads of a rank"},
    CLI_JOB_OPTIONS,
    {"pp", EK_OPTION_INT, "1", NULL, "ranks", "[1,1000000]", 0,
     "pipeline stages; data parallelism takes the ranks that --pp and --tp leave"},
    {"pp-chunks", EK_OPTION_INT, "1", NULL, "chunks", "[1,1024]", 0,
     "runs of layers in a stage: 1: one forward, one backward; more: interleaved"},
    {"tp", EK_OPTION_INT, "1", NULL, "ranks", "[1,1000000]", 0,
     "ranks that share attention, embeddings and cross entropy"},
    {"ep", EK_OPTION_INT, "1", NULL, "ranks", "[1,1000000]", 0,
     "ranks that share out the experts of a layer, whatever --tp is"},
    {"etp", EK_OPTION_INT, "1", NULL, "ranks", "[1,1000000]", 0, "ranks that share each expert"},
    {"adaptive-r", EK_OPTION_TEXT, "etp", NULL, NULL, NULL, 0,
     "Tutel's r, of the --etp ranks of an expert those that a row goes to: a divisor, where ranks "
     "gather one another's parts; 0: rows stay, all experts come to them; auto: tuned while "
     "training"},
    {"zero", EK_OPTION_CHOICE, "0", NULL, NULL, "0|1|2|3", 0,
     "what data parallel ranks hold a share of: 1: optimizer state, 2: and gradients, 3: and "
     "weights"},
    {"embed-columns", EK_OPTION_FLAG, NULL, NULL, NULL, NULL, 0,
     "data parallel ranks share the embedding out by columns, instead of a copy each"},
    {"pipeline-degree", EK_OPTION_CHOICE, "auto", NULL, NULL, "1|2|4|8|auto", 0,
     "parts of the rows of a MoE layer, exchanged while others are computed (auto: tuned while "
     "training)"},
    {"smart-groups", EK_OPTION_INT, "0", NULL, "ranks", "[0,1000000]", 0,
     "instead of parts: exchange between groups of so many ranks (FasterMoE's schedule); 0: off"},
    {"a2a", EK_OPTION_CHOICE, "auto", NULL, NULL, "linear|pairwise|2dh|auto", 0,
     "all-to-all between the ranks of an expert layer (auto: tuned while training)"},
    {"balance", EK_OPTION_CHOICE, "auto", NULL, NULL,
     "off|shadow|place|prophet|replicate|exact|auto|fastermoe|eplb", 0,
     "keeps all --ep ranks equally busy, by replicas for one micro-batch: shadow (FasterMoE; "
     "fastermoe "
     "as released), prophet (Pro-Prophet), exact (from the counts after the gate); or by experts "
     "and "
     "replicas that move with their state: place (SmartMoE), replicate (Lazarus), eplb (DeepSeek); "
     "or "
     "by both, where it pays: auto"},
    {"recalibrate", EK_OPTION_FLAG, NULL, NULL, NULL, NULL, 0,
     "measure what this machine takes, which planners go by, though it is known from an earlier "
     "run"},
    {"plan-every", EK_OPTION_INT, "10", NULL, "steps", "[0,1000000000]", 0,
     "place, replicate, eplb, auto: how often experts may move for good; 0: never"},
    {"replicas-min", EK_OPTION_INT, "1", NULL, "hosts", "[1,1000000]", 0,
     "replicate, auto: hosts (where --hosts names several racks: racks) that have to hold each "
     "expert, as far as there are such and slots; "
     "with 2 and more auto has the replicas of replicate, and none for one micro-batch"},
    {"spare-slots", EK_OPTION_INT, "1", NULL, "slots", "[0,1024]", 0,
     "room of a rank for replicas of experts"},
    {"force-balance", EK_OPTION_FLAG, NULL, NULL, NULL, NULL, 0,
     "a gate that spreads tokens evenly over the experts"},
    {"replay-routing", EK_OPTION_TEXT, NULL, NULL, "FILE.npy", NULL, 0,
     "a gate with the loads of a routing trace of as many experts, scaled to the step's tokens"},
    {"reroute", EK_OPTION_CHOICE, "off", NULL, NULL, "off|topology|swipe", 0,
     "CHANGES THE MODEL: tokens over a limit go to other experts than the gate's; topology: inside "
     "their node, so LOSSES DEPEND ON THE LAYOUT; swipe: to experts with room, per sequence"},
    {"reroute-limit", EK_OPTION_REAL, "0.14", NULL, NULL, "[0,1]", 0,
     "--reroute topology: part of a sequence's assignments that may leave their node"},
    {"watchdog", EK_OPTION_REAL, "300", NULL, "seconds", "[0,)", 0,
     "fail when ranks wait for each other so long; 0: never"},
    {"seed", EK_OPTION_UINT, "0", NULL, NULL, NULL, 0, "of weights, data order, and noise"},
    {"out", EK_OPTION_TEXT, NULL, "run; where there are runs, the next of run-2, run-3, ...", "DIR",
     NULL, 0,
     "gets run.json, metrics.jsonl, checkpoint/, best, evaluation.json, timeline.json (one a "
     "rank), routing.npy, plans.jsonl (one a stage), generations.jsonl"},
    {"timeline", EK_OPTION_FLAG, NULL, NULL, NULL, NULL, 0,
     "write timeline.json (Perfetto, chrome://tracing), of --timeline-steps steps; where --balance "
     "has measured costs, hold the ops against them"},
    {"timeline-from", EK_OPTION_INT, NULL, "the first that is taken", "step", "[0,1000000000]", 0,
     "--timeline: its first step, as metrics.jsonl counts them"},
    {"timeline-steps", EK_OPTION_INT, "10", NULL, "steps", "[1,1000000]", 0,
     "--timeline: how many steps"},
    {"record-routing", EK_OPTION_FLAG, NULL, NULL, NULL, NULL, 0,
     "write routing.npy, the experts' loads of every step and layer"},
    {"record-plans", EK_OPTION_FLAG, NULL, NULL, NULL, NULL, 0,
     "write plans.jsonl: where --balance puts experts, why, and who serves whom, of every step, "
     "layer and micro-batch"},
    {"save-every", EK_OPTION_EVERY, "0", NULL, "N|TIME", "[0,1000000000]", 0,
     "checkpoint every N steps, or when so much time has passed (90s, 10m, 2h); 0: at the end "
     "alone"},
    {"keep", EK_OPTION_INT, "2", NULL, NULL, "[1,1000000]", 0, "checkpoints to keep"},
    {"resume", EK_OPTION_FLAG, NULL, NULL, NULL, NULL, 0,
     "continue from the newest complete checkpoint in --out, with the run's own settings: none has "
     "to be given again (without --out: the last of run, run-2, ...)"},
    {"override", EK_OPTION_FLAG, NULL, NULL, NULL, NULL, 0,
     "--resume, --elastic: accept changed settings that affect the losses"},
    {"overwrite", EK_OPTION_FLAG, NULL, NULL, NULL, NULL, 0,
     "replace the run that is in --out; its checkpoints go when the new run has one"},
    {"elastic", EK_OPTION_FLAG, NULL, NULL, NULL, NULL, 0,
     "go on when workers or hosts are lost or hang, from memory that outlives them, with the hosts "
     "that answer, and take in those that come (the list of --hosts is read again now and then); "
     "--ep is the least then.  Also goes on where the same command was ended"},
    {"discover", EK_OPTION_TEXT, NULL, NULL, "COMMAND", NULL, 0,
     "--elastic: prints the hosts there are, as --hosts has them; asked every few seconds"},
    {"dry-run", EK_OPTION_FLAG, NULL, NULL, NULL, NULL, 0,
     "check everything up to the first step and say what the run would do: layout, memory of a "
     "rank, tokens, checkpoints; starts no ranks, and writes nothing but the cache of tokenised "
     "texts"},
    {"quiet", EK_OPTION_FLAG, NULL, NULL, NULL, NULL, 0,
     "no progress display; warnings and failures are said"},
    {"json", EK_OPTION_FLAG, NULL, NULL, NULL, NULL, 0, "the summary as JSON on stdout"},
};

static ek_status stored_settings(const ek_options *given, json_t **settings, char *from,
                                 size_t from_cap);

static const ek_option_table table = {.command = "train",
                                      .summary = "Train a Mixture-of-Experts language model.",
                                      .options = options,
                                      .n_options = sizeof(options) / sizeof(options[0]),
                                      .stored = stored_settings};

static volatile sig_atomic_t interrupted;

static void on_signal(int sig)
{
    (void)sig;
    interrupted = 1;
}

/* Progress display: one live line on a terminal, a line now and then elsewhere; and what the run
 * says at its end, for the summary. */
typedef struct {
    const cli_job *job;
    const char *out;
    int quiet, live, json;
    int64_t last_ns, told_ns, every;
    json_t *layers; /* objects, or lines of text; NULL: there are none */
    json_t *costs;  /* objects */
} display;

static int stop_wanted(void *context)
{
    (void)context;
    return interrupted != 0;
}

_Static_assert(sizeof("memory ") + sizeof(((ek_train_info *)0)->memory_blocks) <= LAUNCH_NOTE_CAP,
               "a note holds what a rank has of memory");

static void show_start(void *context, const ek_train_info *i)
{
    display *d = context;
    char a[16], b[16], c[16], m[16], ranks[32] = "";
    cli_text out;

    if (i->from_memory)
        cli_job_tell(d->job, "recovered %.0f %.0f %.0f %.0f", i->memory_taken, i->memory_copied,
                     i->memory_received, i->memory_prealloc);
    if (i->memory_blocks[0] != '\0')
        cli_job_tell(d->job, "memory %s", i->memory_blocks);
    if (i->memory_lacks)
        cli_job_tell(d->job, "lacking");
    if (d->quiet)
        return;
    if (d->job->size > 1)
        snprintf(ranks, sizeof(ranks), "%d ranks of ", d->job->size);
    fprintf(cli_err(),
            "%s parameters (%s active), %s tokens of data, %" PRId64 " x %" PRId64
            " tokens a step\nkernels %s (products: %s), %s%d threads, about %sB of memory%s\n",
            cli_count(a, sizeof(a), (double)i->params),
            cli_count(b, sizeof(b), (double)i->active_params),
            cli_count(c, sizeof(c), (double)i->tokens), i->batch, i->seq, i->kernels, i->products,
            ranks, i->threads, cli_count(m, sizeof(m), (double)i->predicted_bytes),
            d->job->size > 1 ? " on the first" : "");
    fprintf(cli_err(), "output in %s\n", cli_shown(&out, d->out));
    if (i->first_step > 0)
        fprintf(cli_err(), "continuing %safter step %" PRId64 "\n",
                i->from_memory ? "from memory " : "", i->first_step);
}

/* Ends the live line, where there is one. */
static void end_line(void)
{
    fputs(cli_live_end(), cli_err());
    fflush(cli_err());
}

static void show_tokenising(void *context, int64_t done, int64_t total)
{
    display *d = context;
    int64_t now = ek_clock_ns();

    if (now - d->told_ns > 1000000000) {
        cli_job_tell(d->job, "phase tokenising");
        d->told_ns = now;
    }
    if (d->quiet || (done < total && now - d->last_ns < 200000000))
        return;
    d->last_ns = now;
    if (d->live)
        cli_live_show("tokenising %3.0f %%",
                      total > 0 ? 100.0 * (double)done / (double)total : 100.0);
    if (done >= total)
        end_line();
}

static void show_evaluating(void *context, int64_t windows_done, int64_t windows)
{
    display *d = context;
    int64_t now = ek_clock_ns();

    if (d->quiet || !d->live || now - d->last_ns < 100000000)
        return;
    d->last_ns = now;
    cli_live_show("evaluating %3.0f %%", 100.0 * (double)windows_done / (double)windows);
}

/* A line that stays. */
static void show_evaluation(const display *d, const ek_train_progress *p)
{
    char line[256];

    snprintf(line, sizeof(line), "step %" PRId64 "/%" PRId64 "  eval loss %.4f  perplexity %.5g%s",
             p->step, p->steps, p->eval_loss, exp(p->eval_loss),
             p->eval_best ? "  (best so far)" : "");
    if (d->live)
        cli_live_show("%s", line);
    else
        fprintf(cli_err(), "%s\n", line);
    end_line();
}

static void show_step(void *context, const ek_train_progress *p)
{
    display *d = context;
    int64_t now = ek_clock_ns(), left = p->steps - p->step;
    char rate[16], eta[24], line[256];
    int last = left == 0;

    cli_job_tell(d->job, "step %" PRId64 " of %" PRId64, p->step, p->steps);
    if (!d->quiet && p->eval_tokens > 0)
        show_evaluation(d, p);
    if (d->quiet || (!last && d->live && now - d->last_ns < 100000000) ||
        (!last && !d->live && p->step % d->every != 0 && p->step != 1))
        return;
    d->last_ns = now;
    cli_count(rate, sizeof(rate), p->tokens_per_s);
    cli_duration(eta, sizeof(eta), (double)left * p->step_ms / 1e3);
    snprintf(line, sizeof(line),
             "step %" PRId64 "/%" PRId64 "  loss %.4f  %s tokens/s  balance %.2f  left %s", p->step,
             p->steps, p->loss, rate, p->expert_max_over_mean, eta);
    if (d->live)
        cli_live_show("%s", line);
    else
        fprintf(cli_err(), "%s\n", line);
    if (last)
        end_line();
}

static void tell_phase(void *context, const char *name)
{
    const display *d = context;

    cli_job_enter_phase(d->job, name);
}

/* JSON has no infinity. */
static json_t *number_of(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

static void add_to(json_t **list, json_t *o)
{
    if (*list == NULL)
        *list = json_array();
    json_array_append_new(*list, o);
}

static void keep_layer(void *context, const ek_train_layer *l)
{
    display *d = context;
    json_t *o =
        d->json ? json_pack("{s:I, s:o, s:f, s:f, s:f, s:f, s:b}", "layer", (json_int_t)l->layer,
                            "r_cc", number_of(l->r_cc), "achieved_gflops", l->achieved / 1e9,
                            "semi_ideal_gflops", l->semi_ideal / 1e9, "ideal_gflops",
                            l->ideal / 1e9, "peak_gflops", l->peak / 1e9, "measured", l->measured)
                : json_string(l->line);

    add_to(&d->layers, o);
}

static void keep_cost(void *context, const ek_train_cost *c)
{
    display *d = context;
    int predicted = c->predicted_s >= 0;

    add_to(&d->costs,
           json_pack("{s:s, s:I, s:o, s:f, s:o}", "op", c->op, "count", (json_int_t)c->count,
                     "predicted_ms", predicted ? json_real(c->predicted_s * 1e3) : json_null(),
                     "measured_ms", c->measured_s * 1e3, "ratio",
                     c->predicted_s > 0 ? json_real(c->measured_s / c->predicted_s) : json_null()));
}

static void show_log(void *context, ek_log_level level, const char *component, const char *message)
{
    const cli_job *job = context;
    char rank[32] = "";

    (void)component;
    if (job->rank > 0)
        snprintf(rank, sizeof(rank), "rank %d: ", job->rank);
    fprintf(cli_err(), "%s%s%s: %s\n", cli_live_end(), rank, ek_log_level_name(level), message);
}

static json_t *balance_json(const ek_train_balance *b)
{
    json_t *o = json_pack("{s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "policy", b->policy,
                          "rank_max_over_mean_before", b->before, "rank_max_over_mean", b->after,
                          "replicas", b->replicas, "replica_mb", b->replica_bytes / 1e6,
                          "experts_moved", b->experts_moved, "plan_ms", b->plan_s * 1e3,
                          "replica_wait_ms", b->waited_s * 1e3);
    json_t *survivability;

    if (b->survivability_text[0] == '\0')
        return o;
    json_object_set_new(o, "survives", json_integer(b->survives));
    json_object_set_new(o, "survival", survivability = json_array());
    for (int k = 0; k < EK_TRAIN_LOST && k + 1 < b->hosts; k++)
        json_array_append_new(survivability, json_real(b->survivability[k]));
    return o;
}

static void add_evaluations(json_t *o, const ek_train_evaluation *e)
{
    json_t *best = e->best_checkpoint[0] != '\0' ? ek_json_text_of(e->best_checkpoint) : NULL;

    if (e->step > 0)
        json_object_set_new(o, "evaluation",
                            json_pack("{s:I, s:I, s:f, s:o, s:I, s:f, s:o, s:I, s:b, s:o*}",
                                      "count", (json_int_t)e->count, "step", (json_int_t)e->step,
                                      "loss", e->loss, "perplexity", number_of(exp(e->loss)),
                                      "best_step", (json_int_t)e->best_step, "best_loss",
                                      e->best_loss, "best_perplexity", number_of(exp(e->best_loss)),
                                      "since_best", (json_int_t)e->since_best, "stopped_early",
                                      e->stopped_early, "best_checkpoint", best));
}

static void print_json(const ek_train_summary *s, const display *d)
{
    json_t *o = json_pack(
        "{s:i, s:I, s:o, s:f, s:f, s:I, s:I, s:f, s:f, s:o}", "ranks", d->job->size, "steps",
        (json_int_t)s->end.step, "loss", number_of(s->end.loss), "tokens_per_s", s->tokens_per_s,
        "seconds", s->end.seconds, "params", (json_int_t)s->info.params, "active_params",
        (json_int_t)s->info.active_params, "peak_rss_mb", (double)s->peak_rss_bytes / 1e6,
        "predicted_rss_mb", (double)s->info.predicted_bytes / 1e6, "checkpoint",
        ek_json_text_of(s->checkpoint));

    json_object_set_new(o, "spikes", json_integer(s->spikes));
    add_evaluations(o, &s->evaluation);
    if (s->balance.policy != NULL)
        json_object_set_new(o, "balance", balance_json(&s->balance));
    if (d->layers != NULL)
        json_object_set(o, "roofline", d->layers);
    if (d->costs != NULL)
        json_object_set(o, "costs", d->costs);
    json_dumpf(o, stdout, 0);
    fputc('\n', stdout);
    json_decref(o);
}

/* What balance did in a step. */
static void print_balance(const ek_train_balance *b)
{
    char bytes[16];

    printf(
        "balance %s: busiest rank %.2f of the mean, %.2f without; a step has %.0f replicas (%sB), "
        "%.2f moves, %.2f ms of plans, %.2f ms of waiting\n",
        b->policy, b->after, b->before, b->replicas,
        cli_count(bytes, sizeof(bytes), b->replica_bytes), b->experts_moved, b->plan_s * 1e3,
        b->waited_s * 1e3);
    if (b->survivability_text[0] != '\0')
        printf("experts, as they lay in the end: the run %s\n", b->survivability_text);
    if (b->racks_text[0] != '\0')
        printf("of racks it %s\n", b->racks_text);
}

/* Of few layers, all. */
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
        printf("stopped early: no new best in %" PRId64 " evaluations (--patience)\n",
               e->since_best);
}

static void print_summary(const ek_train_summary *s, const display *d)
{
    char rate[16], time[24], peak[16], guess[16], loss[40] = "no step was left to take";
    cli_text path;

    if (d->json) {
        print_json(s, d);
        return;
    }
    if (isfinite(s->end.loss))
        snprintf(loss, sizeof(loss), "loss %.4f", s->end.loss);
    printf("%" PRId64 " steps in %s, %s tokens/s, %s, peak memory %sB (predicted %sB)\n"
           "checkpoint: %s\n",
           s->end.step, cli_duration(time, sizeof(time), s->end.seconds),
           cli_count(rate, sizeof(rate), s->tokens_per_s), loss,
           cli_count(peak, sizeof(peak), (double)s->peak_rss_bytes),
           cli_count(guess, sizeof(guess), (double)s->info.predicted_bytes),
           cli_shown(&path, s->checkpoint));
    if (s->spikes > 0)
        printf("%" PRId64 " steps with a loss or gradient norm far above the usual (`spike` in "
               "metrics.jsonl)\n",
               s->spikes);
    print_evaluations(&s->evaluation);
    if (s->balance.policy != NULL)
        print_balance(&s->balance);
    print_layers(d->layers);
}

/* Rank 0 alone shows how the run goes; the others say what went wrong with them. */
static display open_display(const ek_options *o, const cli_job *job)
{
    display d = {.job = job,
                 .quiet = ek_options_flag(o, "quiet") || job->rank > 0,
                 .live = job->live,
                 .json = ek_options_flag(o, "json"),
                 .every = 10};

    ek_log_set_sink(show_log, (void *)(uintptr_t)job,
                    job->rank > 0                 ? EK_LOG_ERROR
                    : ek_options_flag(o, "quiet") ? EK_LOG_WARN
                                                  : EK_LOG_INFO);
    return d;
}

static void print_end(const ek_train_summary *s, const ek_train_config *cfg, const cli_job *job,
                      const display *d)
{
    cli_text out;

    if (s->finished_before && s->evaluation.stopped_early && !d->quiet)
        fprintf(cli_err(),
                "%s: ended early, after %" PRId64 " evaluations without a new best one; go on with "
                "a larger --patience, or with --patience 0\n",
                cli_shown(&out, cfg->out), s->evaluation.since_best);
    else if (s->finished_before && !d->quiet)
        fprintf(cli_err(), "%s: all its steps are done already\n", cli_shown(&out, cfg->out));
    else if (s->plan.made && job->rank == 0)
        cli_dry_run_print(s, cfg, d->json);
    else if (!s->finished_before && job->rank == 0 && (!d->quiet || d->json))
        print_summary(s, d);
}

/* Without settings there has to be a checkpoint at least, of a version that wrote none. */
static ek_status check_run_there(const char *out)
{
    ek_path checkpoint;

    return ek_checkpoint_newest(out, &checkpoint) < 0 ? ek_out_no_checkpoint(out) : EK_OK;
}

/* A folder from elsewhere must not bring along what this command would run. */
static ek_status check_commands(const ek_options *given, const json_t *settings, const char *from)
{
    static const char *const names[] = {"discover", "mpiexec-args"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const char *text = json_string_value(json_object_get(settings, names[i]));

        EK_REQUIRE(text == NULL || ek_options_given(given, names[i]), EK_EINVAL,
                   "%s has --%s \"%s\", and options that run commands are not taken from the "
                   "folder of a run: give --%s again",
                   from, names[i], text, names[i]);
    }
    return EK_OK;
}

/* What --out is where it is not given, and the settings of the run that goes on there. */
static ek_status stored_settings(const ek_options *given, json_t **settings, char *from,
                                 size_t from_cap)
{
    /* One layout: where a size or the number of ranks is given, the others are not the run's. */
    static const char *const layout[] = {"ranks", "pp", "tp", "ep", "etp"};
    static const char *const sizes[] = {"pp", "tp", "ep", "etp", "pp-chunks", "adaptive-r"};
    int go_on = ek_options_flag(given, "resume") || ek_options_flag(given, "elastic");
    const char *dir = ek_options_text(given, "out");
    int lays_out = 0;
    ek_path out, path;

    EK_TRY(dir != NULL ? ek_path_set(&out, "%s", dir) : ek_out_default(go_on, &out));
    EK_TRY(ek_path_set(&path, "%s", ""));
    if (go_on)
        EK_TRY(ek_run_file_find(out.s, &path));
    if (path.s[0] != '\0')
        EK_TRY(ek_run_file_read(path.s, settings));
    else if (ek_options_flag(given, "resume") && !ek_options_flag(given, "elastic"))
        EK_TRY(check_run_there(out.s));
    if (*settings == NULL)
        *settings = json_object();
    snprintf(from, from_cap, "%s", path.s);
    EK_TRY(check_commands(given, *settings, path.s));
    for (size_t i = 0; i < sizeof(layout) / sizeof(layout[0]); i++)
        lays_out |= ek_options_given(given, layout[i]);
    for (size_t i = 0; lays_out && i < sizeof(sizes) / sizeof(sizes[0]); i++)
        json_object_del(*settings, sizes[i]);
    if (dir == NULL)
        json_object_set_new(*settings, "out", json_string_nocheck(out.s));
    return EK_OK;
}

/* Settings of this command that ek_train does not know, for run.json; the caller frees the text. */
static char *own_settings(const ek_options *o)
{
    static const char *const names[] = {"ranks", "hosts", "discover", "mpiexec-args", "threads"};
    json_t *all = ek_options_dump(o), *own = json_object(), *escaped;
    char *text;
    ek_path whole;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (ek_options_given(o, names[i]))
            json_object_set(own, names[i], json_object_get(all, names[i]));
    if (ek_options_text(o, "hosts") != NULL &&
        ek_path_absolute(ek_options_text(o, "hosts"), &whole) == EK_OK)
        json_object_set_new(own, "hosts", json_string_nocheck(whole.s));
    escaped = ek_json_escaped(own);
    text = json_dumps(escaped, 0);
    json_decref(escaped);
    json_decref(own);
    json_decref(all);
    return text;
}

static int run_with(const ek_options *o, cli_job *job, int argc, char **argv)
{
    ek_path cache;
    ek_train_config cfg = EK_TRAIN_CONFIG_INIT;
    ek_train_summary summary = {0};
    display d = open_display(o, job);
    ek_train_hooks hooks = {&d,         show_start, show_step,  show_tokenising, stop_wanted,
                            keep_layer, keep_cost,  tell_phase, show_evaluating};
    json_t *settings = ek_options_dump(o);
    char *own = own_settings(o);
    int *racks = NULL, ranks = 1, dry = ek_options_flag(o, "dry-run");
    ek_status st = ek_train_settings_read(settings, &cfg);

    cfg.out = ek_options_text(o, "out");
    cfg.resume = ek_options_flag(o, "resume");
    cfg.override = ek_options_flag(o, "override");
    cfg.overwrite = ek_options_flag(o, "overwrite");
    cfg.command = (const char *const *)argv;
    cfg.n_command = argc;
    cfg.caller_settings = own;
    cfg.cache = cli_cache_folder(&cache);
    cfg.world = job->world;
    cfg.supervisor_id = cli_job_launcher();
    cfg.n_draining = cli_job_draining();
    d.quiet |= cfg.n_draining > 0;
    d.out = cfg.out;
    if (st == EK_OK && dry)
        st = cli_dry_run_ranks(o, job, &ranks);
    if (dry) {
        cfg.dry_run = ek_options_text(o, "hosts") || ek_options_text(o, "discover") ? 2 : 1;
        cfg.threads = (int)ek_options_int(o, "threads");
    } else if (st == EK_OK) {
        st = cli_job_threads(job, o, &cfg.threads);
    }
    if (st == EK_OK)
        st = cli_racks_get(job->size, &racks);
    cfg.rack_of = racks;
    if (st == EK_OK)
        st = dry ? cli_dry_run(&cfg, &hooks, ranks, &summary) : ek_train(&cfg, &hooks, &summary);
    free(racks);
    end_line();
    if (st == EK_OK && cfg.n_draining == 0) /* else it goes on */
        print_end(&summary, &cfg, job, &d);
    ek_train_settings_release(&cfg);
    json_decref(settings);
    free(own);
    json_decref(d.layers);
    json_decref(d.costs);
    if (st < 0)
        return cli_job_fail(job, st);
    cli_job_leave(job);
    return CLI_DONE;
}

int cli_train(int argc, char **argv)
{
    ek_options *o = NULL;
    cli_job job;
    int status;

    cli_job_catch(on_signal);
    status = cli_job_enter(&table, argc, argv, &o, &job);
    if (status >= 0)
        return status;
    status = run_with(o, &job, argc, argv);
    ek_options_destroy(o);
    return status;
}
