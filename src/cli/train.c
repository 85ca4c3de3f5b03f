/* evenkeel train: options, progress output, signals and the summary. */
#include "evenkeel/train.h"

#include "base/clock.h"
#include "base/job_options.h"
#include "base/json.h"
#include "base/live_line.h"
#include "base/log.h"
#include "cli/dry_run.h"
#include "store/checkpoint.h"
#include "supervisor/command_job.h"
#include "supervisor/racks.h"
#include "supervisor/worker.h"
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
    {"model", EK_OPTION_TEXT, .fallback = "tiny", .unit = "MODEL",
     .help = "preset (tiny, small, base), Hugging Face config.json, or a folder with a config.json "
             "and optional weights"},
    {"init", EK_OPTION_TEXT, .shown = "random from --seed", .unit = "FILE",
     .help = "safetensors file or folder with initial weights"},
    {"data", EK_OPTION_LIST, .unit = "PATH", .required = 1,
     .help = "training data: text, .jsonl and .ndjson files (also compressed: .gz, .zst), folders "
             "of them (searched recursively), or .bin token files; with PATH:WEIGHT, sequences are "
             "sampled from the sources in proportion to the weights"},
    {"text-field", EK_OPTION_TEXT, .fallback = "text", .unit = "KEY",
     .help = "JSON key that holds the text of a line in .jsonl and .ndjson files"},
    {"document-mask", EK_OPTION_FLAG,
     .help = "restrict attention to the document of each token, and exclude the first token of a "
             "document from the loss"},
    {"eval-data", EK_OPTION_LIST, .unit = "PATH",
     .help = "held-out data to evaluate during training: paths as for --data, without weights; the "
             "best checkpoint is kept as OUT/best"},
    {"eval-every", EK_OPTION_INT, .shown = "a twentieth of --steps", .unit = "steps",
     .allowed = "[1,1000000000]",
     .help = "interval between evaluations; the last step is always evaluated"},
    {"eval-tokens", EK_OPTION_INT, .fallback = "131072", .unit = "tokens", .allowed = "[0,)",
     .help = "maximum tokens per evaluation, in evenly spaced windows of --eval-data; 0: no limit"},
    {"patience", EK_OPTION_INT, .fallback = "0", .unit = "evaluations", .allowed = "[0,1000000000]",
     .help = "stop after this many evaluations without a new best loss; 0: never"},
    {"token-bytes", EK_OPTION_CHOICE, .fallback = "2", .unit = "bytes", .allowed = "2|4",
     .help = "token size in .bin files (little endian)"},
    {"tokenizer", EK_OPTION_TEXT, .shown = "the model folder's; bytes for a preset", .unit = "FILE",
     .help = "\"bytes\", or a Hugging Face tokenizer.json (BPE)"},
    {"batch", EK_OPTION_INT, .shown = "8, or the preset's", .unit = "sequences",
     .allowed = "[1,1000000]", .help = "global batch size: sequences per step, over all ranks"},
    {"seq", EK_OPTION_INT, .shown = "256, or the preset's", .unit = "tokens",
     .allowed = "[1,10000000]", .help = "sequence length"},
    {"micro-batch", EK_OPTION_INT, .shown = "the whole batch, or the preset's", .unit = "sequences",
     .allowed = "[1,1000000]",
     .help = "micro-batch size, over all data parallel ranks; gradients are accumulated over the "
             "micro-batches of a step"},
    {"data-order", EK_OPTION_CHOICE, .fallback = "shuffled", .allowed = "sequential|shuffled",
     .help = "order in which windows of the token stream are visited"},
    {"steps", EK_OPTION_INT, .shown = "100, or the preset's", .unit = "steps",
     .allowed = "[1,1000000000]", .help = "total number of training steps"},
    {"lr", EK_OPTION_REAL, .fallback = "1e-3", .allowed = "[0,)", .help = "peak learning rate"},
    {"lr-schedule", EK_OPTION_CHOICE, .fallback = "cosine", .allowed = "constant|cosine",
     .help = "learning rate schedule after the warm-up"},
    {"warmup", EK_OPTION_INT, .shown = "1 % of --steps", .unit = "steps",
     .allowed = "[0,1000000000]", .help = "length of the linear warm-up"},
    {"min-lr", EK_OPTION_REAL, .shown = "--lr / 10", .allowed = "[0,)",
     .help = "final learning rate of the cosine schedule"},
    {"wd", EK_OPTION_REAL, .fallback = "0.1", .allowed = "[0,)",
     .help = "AdamW weight decay, applied to matrices only"},
    {"beta1", EK_OPTION_REAL, .fallback = "0.9", .allowed = "[0,1)", .help = "AdamW beta1"},
    {"beta2", EK_OPTION_REAL, .fallback = "0.95", .allowed = "[0,1)", .help = "AdamW beta2"},
    {"eps", EK_OPTION_REAL, .fallback = "1e-8", .allowed = "[0,)", .help = "AdamW epsilon"},
    {"clip", EK_OPTION_REAL, .fallback = "1.0", .allowed = "[0,)",
     .help = "clip the global gradient norm to this value; 0: no clipping"},
    {"aux-coef", EK_OPTION_REAL, .fallback = "0.01", .allowed = "[0,)",
     .help = "coefficient of the load balancing loss"},
    {"z-coef", EK_OPTION_REAL, .fallback = "0", .allowed = "[0,)",
     .help = "coefficient of the router z-loss"},
    {"capacity-factor", EK_OPTION_REAL, .fallback = "0", .allowed = "[-1000,1000]",
     .help = "expert capacity as a multiple of an even share, per sequence (the sign is ignored); "
             "assignments over the capacity are dropped; 0: dropless"},
    {"top-k", EK_OPTION_INT, .shown = "the model's", .unit = "experts", .allowed = "[1,1024]",
     .help = "experts per token; at most the model's top-k"},
    {"top-k-schedule", EK_OPTION_TEXT, .unit = "STEP:K,...",
     .help = "change --top-k at these steps, numbered from 0, such as 1000:4,5000:2"},
    {"capacity-schedule", EK_OPTION_TEXT, .unit = "STEP:F,...",
     .help =
         "change --capacity-factor at these steps, numbered from 0, such as 0:1.25,2000:2,8000:0"},
    {"recompute", EK_OPTION_CHOICE, .fallback = "off", .allowed = "off|attention|full",
     .help = "activations to recompute in the backward pass instead of storing them"},
    {"dtype", EK_OPTION_CHOICE, .shown = "bf16 with AVX2 or more, else fp32",
     .allowed = "bf16|fp32|fp64",
     .help = "type of matrix products; master weights and moments are fp32; fp64: everything in "
             "double precision, for verification"},
    {"device", EK_OPTION_CHOICE, .fallback = "cpu", .allowed = "cpu|cuda",
     .help = "compute device"},
    {"threads", EK_OPTION_INT, .shown = "the host's cores / its ranks", .unit = "threads",
     .allowed = "[1,1024]", .help = "compute threads per rank"},
    EK_JOB_OPTIONS,
    {"pp", EK_OPTION_INT, .fallback = "1", .unit = "ranks", .allowed = "[1,1000000]",
     .help =
         "pipeline parallel size; the data parallel size is the number of ranks / (--pp * --tp)"},
    {"pp-chunks", EK_OPTION_INT, .fallback = "1", .unit = "chunks", .allowed = "[1,1024]",
     .help = "virtual stages per pipeline stage; 1: 1F1B schedule, more: interleaved 1F1B"},
    {"tp", EK_OPTION_INT, .fallback = "1", .unit = "ranks", .allowed = "[1,1000000]",
     .help = "tensor parallel size, for attention, embeddings and cross entropy"},
    {"ep", EK_OPTION_INT, .fallback = "1", .unit = "ranks", .allowed = "[1,1000000]",
     .help = "expert parallel size: ranks over which the experts of a layer are distributed; "
             "independent of --tp"},
    {"etp", EK_OPTION_INT, .fallback = "1", .unit = "ranks", .allowed = "[1,1000000]",
     .help = "expert tensor parallel size: ranks over which each expert is sliced"},
    {"adaptive-r", EK_OPTION_TEXT, .fallback = "etp",
     .help = "Tutel's r, the number of --etp ranks that each row is sent to: a divisor of --etp, "
             "the weight slices of the others being gathered; 0: rows stay local and all experts "
             "are gathered; auto: tuned during training"},
    {"zero", EK_OPTION_CHOICE, .fallback = "0", .allowed = "0|1|2|3",
     .help = "ZeRO stage over the data parallel ranks: 1: shard optimizer state, 2: also "
             "gradients, 3: also weights"},
    {"embed-columns", EK_OPTION_FLAG,
     .help =
         "shard the embedding by columns over the data parallel ranks instead of replicating it"},
    {"pipeline-degree", EK_OPTION_CHOICE, .fallback = "auto", .allowed = "1|2|4|8|auto",
     .help = "chunks into which the rows of a MoE layer are split to overlap all-to-all with "
             "compute; auto: tuned during training"},
    {"smart-groups", EK_OPTION_INT, .fallback = "0", .unit = "ranks", .allowed = "[0,1000000]",
     .help = "FasterMoE's schedule instead of --pipeline-degree: exchange rows between groups of "
             "this many ranks; 0: off"},
    {"a2a", EK_OPTION_CHOICE, .fallback = "auto", .allowed = "linear|pairwise|2dh|auto",
     .help = "all-to-all algorithm of MoE layers; auto: tuned during training"},
    {"balance", EK_OPTION_CHOICE, .fallback = "auto",
     .allowed = "off|shadow|place|prophet|replicate|exact|auto|fastermoe|eplb",
     .help = "expert load balancing policy. Transient replicas, for one micro-batch: shadow "
             "(FasterMoE, Algorithm 1), fastermoe (FasterMoE as released, for comparison), prophet "
             "(Pro-Prophet), exact (from the counts after the gate). Persistent placement, "
             "optimizer state moves: place (SmartMoE), replicate (Lazarus), eplb (DeepSeek). auto: "
             "both, where the predicted gain exceeds the cost"},
    {"recalibrate", EK_OPTION_FLAG,
     .help = "measure this machine's compute and communication costs again, even if cached from an "
             "earlier run"},
    {"plan-every", EK_OPTION_INT, .fallback = "10", .unit = "steps", .allowed = "[0,1000000000]",
     .help = "place, replicate, eplb, auto: interval between changes of the persistent placement; "
             "0: never"},
    {"replicas-min", EK_OPTION_INT, .fallback = "1", .unit = "hosts", .allowed = "[1,1000000]",
     .help = "replicate, auto: minimum number of hosts (racks, if --hosts names several) that hold "
             "each expert, as far as hosts and slots allow; with 2 or more, auto plans like "
             "replicate and uses no transient replicas"},
    {"spare-slots", EK_OPTION_INT, .fallback = "1", .unit = "slots", .allowed = "[0,1024]",
     .help = "replica slots per rank, beyond its share of the experts"},
    {"force-balance", EK_OPTION_FLAG,
     .help = "replace the gate by one that distributes tokens evenly over the experts (for "
             "measurements)"},
    {"replay-routing", EK_OPTION_TEXT, .unit = "FILE.npy",
     .help = "replace the gate by one that reproduces the expert loads of a routing trace with the "
             "same number of experts, scaled to the tokens of a step (for measurements)"},
    {"reroute", EK_OPTION_CHOICE, .fallback = "off", .allowed = "off|topology|swipe",
     .help = "CHANGES THE MODEL: send tokens over a limit to experts other than the gate's; "
             "topology: experts on the same node, so LOSSES DEPEND ON THE LAYOUT; swipe: experts "
             "with free capacity, per sequence"},
    {"reroute-limit", EK_OPTION_REAL, .fallback = "0.14", .allowed = "[0,1]",
     .help = "--reroute topology: fraction of a sequence's assignments that may leave their node"},
    {"watchdog", EK_OPTION_REAL, .fallback = "300", .unit = "seconds", .allowed = "[0,)",
     .help = "fail if ranks wait for each other longer than this; 0: never"},
    {"seed", EK_OPTION_UINT, .fallback = "0",
     .help = "seed of weight initialisation, data order and noise"},
    {"out", EK_OPTION_TEXT, .shown = "run; where there are runs, the next of run-2, run-3, ...",
     .unit = "DIR",
     .help = "output folder: run.json, metrics.jsonl, checkpoint/, best, evaluation.json, "
             "timeline.json (one per rank), routing.npy, plans.jsonl (one per pipeline stage), "
             "generations.jsonl"},
    {"timeline", EK_OPTION_FLAG,
     .help = "write timeline.json (Perfetto, chrome://tracing) for --timeline-steps steps; with "
             "costs measured for --balance, also compare predicted and measured op times"},
    {"timeline-from", EK_OPTION_INT, .shown = "the first step of this start", .unit = "step",
     .allowed = "[0,1000000000]",
     .help = "--timeline: first step to record, numbered as in metrics.jsonl"},
    {"timeline-steps", EK_OPTION_INT, .fallback = "10", .unit = "steps", .allowed = "[1,1000000]",
     .help = "--timeline: number of steps to record"},
    {"record-routing", EK_OPTION_FLAG,
     .help = "write routing.npy: expert loads of every step and layer"},
    {"record-plans", EK_OPTION_FLAG,
     .help = "write plans.jsonl: the plan of every step, layer and micro-batch (placement, reason, "
             "row assignment)"},
    {"save-every", EK_OPTION_EVERY, .fallback = "0", .unit = "N|TIME", .allowed = "[0,1000000000]",
     .help = "checkpoint interval: N steps, or a time (90s, 10m, 2h); 0: only at the end"},
    {"keep", EK_OPTION_INT, .fallback = "2", .allowed = "[1,1000000]",
     .help = "number of checkpoints to keep"},
    {"resume", EK_OPTION_FLAG,
     .help = "continue from the newest complete checkpoint in --out with the settings of that run, "
             "which need not be repeated (without --out: the last of run, run-2, ...)"},
    {"override", EK_OPTION_FLAG,
     .help = "--resume, --elastic: accept changed settings that affect the losses"},
    {"overwrite", EK_OPTION_FLAG,
     .help =
         "replace the run in --out; its checkpoints are deleted when the new run has saved one"},
    {"elastic", EK_OPTION_FLAG,
     .help = "supervise the workers: when workers or hosts fail or hang, continue from state in "
             "shared memory on the hosts that respond, and add hosts that join (--hosts is re-read "
             "periodically); --ep is then a minimum. Lost experts are restored from the last "
             "checkpoint unless replicated: give --replicas-min 2 and --save-every. Also continues "
             "after the command itself was killed"},
    {"discover", EK_OPTION_TEXT, .unit = "COMMAND",
     .help = "--elastic: shell command that prints the available hosts in the format of --hosts; "
             "run every few seconds"},
    {"dry-run", EK_OPTION_FLAG,
     .help = "validate everything up to the first step and print layout, memory per rank, tokens "
             "and checkpoints; starts no ranks and writes only the cache of tokenised texts"},
    {"quiet", EK_OPTION_FLAG, .help = "no progress output; warnings and errors are still printed"},
    {"json", EK_OPTION_FLAG, .help = "print the summary as JSON on stdout"},
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

/* Progress output: one live line on a terminal, otherwise a line every few steps; and results that
 * are collected for the summary. */
typedef struct {
    const ek_command_job *job;
    const char *out;
    int quiet, live, json;
    int64_t last_ns, told_ns, every;
    json_t *layers; /* objects, or lines of text; NULL: none */
    json_t *costs;  /* objects */
} progress_display;

static int stop_wanted(void *context)
{
    (void)context;
    return interrupted != 0;
}

/* Tells the supervisor where the state of this run comes from, and what a rank has in memory. */
static void report_state(const ek_train_info *i)
{
    ek_worker_message recovered = {.kind = EK_MESSAGE_RECOVERED,
                                   .recovered = {.taken = (int64_t)i->memory_taken,
                                                 .copied = (int64_t)i->memory_copied,
                                                 .received = (int64_t)i->memory_received,
                                                 .prealloc = (int64_t)i->memory_prealloc}};
    ek_worker_message memory = {.kind = EK_MESSAGE_MEMORY};
    const char *blank = strchr(i->memory_blocks, ' ');

    if (i->from_memory)
        ek_worker_report(&recovered);
    if (blank != NULL) {
        snprintf(memory.memory.run, sizeof(memory.memory.run), "%.*s",
                 (int)(blank - i->memory_blocks), i->memory_blocks);
        snprintf(memory.memory.blocks, sizeof(memory.memory.blocks), "%s", blank + 1);
        ek_worker_report(&memory);
    }
    if (i->memory_lacks)
        ek_worker_report(&(ek_worker_message){.kind = EK_MESSAGE_LACKING});
}

static void show_start(void *context, const ek_train_info *i)
{
    progress_display *d = context;
    char a[16], b[16], c[16], m[16], ranks[32] = "";
    cli_text out;

    report_state(i);
    if (d->quiet)
        return;
    if (d->job->size > 1)
        snprintf(ranks, sizeof(ranks), "%d ranks of ", d->job->size);
    fprintf(ek_command_err(),
            "%s parameters (%s active), %s tokens of data, %" PRId64 " x %" PRId64
            " tokens a step\nkernels %s (products: %s), %s%d threads, about %sB of memory%s\n",
            cli_count(a, sizeof(a), (double)i->params),
            cli_count(b, sizeof(b), (double)i->active_params),
            cli_count(c, sizeof(c), (double)i->tokens), i->batch, i->seq, i->kernels, i->products,
            ranks, i->threads, cli_count(m, sizeof(m), (double)i->predicted_bytes),
            d->job->size > 1 ? " on the first" : "");
    fprintf(ek_command_err(), "output in %s\n", cli_shown(&out, d->out));
    if (i->first_step > 0)
        fprintf(ek_command_err(), "continuing %safter step %" PRId64 "\n",
                i->from_memory ? "from memory " : "", i->first_step);
}

/* Terminates the live line, if one is drawn. */
static void end_live_line(void)
{
    fputs(ek_live_line_end(), ek_command_err());
    fflush(ek_command_err());
}

static void show_tokenising(void *context, int64_t done, int64_t total)
{
    progress_display *d = context;
    int64_t now = ek_clock_ns();

    if (now - d->told_ns > 1000000000) {
        ek_worker_report(&(ek_worker_message){.kind = EK_MESSAGE_PHASE, .phase = {"tokenising"}});
        d->told_ns = now;
    }
    if (d->quiet || (done < total && now - d->last_ns < 200000000))
        return;
    d->last_ns = now;
    if (d->live)
        ek_live_line_show("tokenising %3.0f %%",
                          total > 0 ? 100.0 * (double)done / (double)total : 100.0);
    if (done >= total)
        end_live_line();
}

static void show_evaluating(void *context, int64_t windows_done, int64_t windows)
{
    progress_display *d = context;
    int64_t now = ek_clock_ns();

    if (d->quiet || !d->live || now - d->last_ns < 100000000)
        return;
    d->last_ns = now;
    ek_live_line_show("evaluating %3.0f %%", 100.0 * (double)windows_done / (double)windows);
}

/* Prints a permanent line. */
static void show_evaluation(const progress_display *d, const ek_train_progress *p)
{
    char line[256];

    snprintf(line, sizeof(line), "step %" PRId64 "/%" PRId64 "  eval loss %.4f  perplexity %.5g%s",
             p->step, p->steps, p->eval_loss, exp(p->eval_loss),
             p->eval_best ? "  (best so far)" : "");
    if (d->live)
        ek_live_line_show("%s", line);
    else
        fprintf(ek_command_err(), "%s\n", line);
    end_live_line();
}

static void show_step(void *context, const ek_train_progress *p)
{
    progress_display *d = context;
    int64_t now = ek_clock_ns(), left = p->steps - p->step;
    char rate[16], eta[24], line[256];
    int last = left == 0;

    ek_worker_report(&(ek_worker_message){.kind = EK_MESSAGE_STEP, .step = {p->step, p->steps}});
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
        ek_live_line_show("%s", line);
    else
        fprintf(ek_command_err(), "%s\n", line);
    if (last)
        end_live_line();
}

static void report_phase(void *context, const char *name)
{
    (void)context;
    ek_worker_enter_phase(name);
}

/* null for values that are not finite, which JSON cannot represent. */
static json_t *json_number(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

static void add_to(json_t **list, json_t *o)
{
    if (*list == NULL)
        *list = json_array();
    json_array_append_new(*list, o);
}

static void collect_layer(void *context, const ek_train_layer *l)
{
    progress_display *d = context;
    json_t *o =
        d->json ? json_pack("{s:I, s:o, s:f, s:f, s:f, s:f, s:b}", "layer", (json_int_t)l->layer,
                            "r_cc", json_number(l->r_cc), "achieved_gflops", l->achieved / 1e9,
                            "semi_ideal_gflops", l->semi_ideal / 1e9, "ideal_gflops",
                            l->ideal / 1e9, "peak_gflops", l->peak / 1e9, "measured", l->measured)
                : json_string(l->line);

    add_to(&d->layers, o);
}

static void collect_cost(void *context, const ek_train_cost *c)
{
    progress_display *d = context;
    int predicted = c->predicted_s >= 0;

    add_to(&d->costs,
           json_pack("{s:s, s:I, s:o, s:f, s:o}", "op", c->op, "count", (json_int_t)c->count,
                     "predicted_ms", predicted ? json_real(c->predicted_s * 1e3) : json_null(),
                     "measured_ms", c->measured_s * 1e3, "ratio",
                     c->predicted_s > 0 ? json_real(c->measured_s / c->predicted_s) : json_null()));
}

static void show_log(void *context, ek_log_level level, const char *component, const char *message)
{
    const ek_command_job *job = context;
    char rank[32] = "";

    (void)component;
    if (job->rank > 0)
        snprintf(rank, sizeof(rank), "rank %d: ", job->rank);
    fprintf(ek_command_err(), "%s%s%s: %s\n", ek_live_line_end(), rank, ek_log_level_name(level),
            message);
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
        json_object_set_new(
            o, "evaluation",
            json_pack("{s:I, s:I, s:f, s:o, s:I, s:f, s:o, s:I, s:b, s:o*}", "count",
                      (json_int_t)e->count, "step", (json_int_t)e->step, "loss", e->loss,
                      "perplexity", json_number(exp(e->loss)), "best_step",
                      (json_int_t)e->best_step, "best_loss", e->best_loss, "best_perplexity",
                      json_number(exp(e->best_loss)), "since_best", (json_int_t)e->since_best,
                      "stopped_early", e->stopped_early, "best_checkpoint", best));
}

static void print_json(const ek_train_summary *s, const progress_display *d)
{
    json_t *o = json_pack(
        "{s:i, s:I, s:o, s:f, s:f, s:I, s:I, s:f, s:f, s:o}", "ranks", d->job->size, "steps",
        (json_int_t)s->end.step, "loss", json_number(s->end.loss), "tokens_per_s", s->tokens_per_s,
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

/* Means per step of what --balance did. */
static void print_balance(const ek_train_balance *b)
{
    char bytes[16];

    printf("balance %s: busiest rank %.2f x mean load, %.2f without; per step %.0f replicas (%sB), "
           "%.2f experts moved, %.2f ms planning, %.2f ms waiting\n",
           b->policy, b->after, b->before, b->replicas,
           cli_count(bytes, sizeof(bytes), b->replica_bytes), b->experts_moved, b->plan_s * 1e3,
           b->waited_s * 1e3);
    if (b->survivability_text[0] != '\0')
        printf("final expert placement: %s\n", b->survivability_text);
    if (b->racks_text[0] != '\0')
        printf("counted by racks: %s\n", b->racks_text);
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
        printf("stopped early: no new best in %" PRId64 " evaluations (--patience)\n",
               e->since_best);
}

static void print_summary(const ek_train_summary *s, const progress_display *d)
{
    char rate[16], time[24], peak[16], guess[16], loss[40] = "no steps left";
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
        printf("%" PRId64
               " steps with a spike in loss or gradient norm (`spike` in metrics.jsonl)\n",
               s->spikes);
    print_evaluations(&s->evaluation);
    if (s->balance.policy != NULL)
        print_balance(&s->balance);
    print_layers(d->layers);
}

/* Only rank 0 shows progress; the others print errors. */
static progress_display open_display(const ek_options *o, const ek_command_job *job)
{
    progress_display d = {.job = job,
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

static void print_end(const ek_train_summary *s, const ek_train_config *cfg,
                      const ek_command_job *job, const progress_display *d)
{
    cli_text out;

    if (s->finished_before && s->evaluation.stopped_early && !d->quiet)
        fprintf(ek_command_err(),
                "%s: stopped early, after %" PRId64
                " evaluations without a new best loss; continue with a larger --patience, or with "
                "--patience 0\n",
                cli_shown(&out, cfg->out), s->evaluation.since_best);
    else if (s->finished_before && !d->quiet)
        fprintf(ek_command_err(), "%s: all steps are already completed\n",
                cli_shown(&out, cfg->out));
    else if (s->plan.made && job->rank == 0)
        cli_dry_run_print(s, cfg, d->json);
    else if (!s->finished_before && job->rank == 0 && (!d->quiet || d->json))
        print_summary(s, d);
}

/* Without run.json, --resume needs at least a checkpoint (early versions wrote no settings). */
static ek_status check_run_there(const char *out)
{
    ek_path checkpoint;

    return ek_checkpoint_newest(out, &checkpoint) < 0 ? ek_out_no_checkpoint(out) : EK_OK;
}

/* Refuses stored options that run commands: the folder may come from elsewhere. */
static ek_status check_commands(const ek_options *given, const json_t *settings, const char *from)
{
    static const char *const names[] = {"discover", "mpiexec-args"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const char *text = json_string_value(json_object_get(settings, names[i]));

        EK_REQUIRE(text == NULL || ek_options_given(given, names[i]), EK_EINVAL,
                   "%s has --%s \"%s\", but options that run commands are not taken from the "
                   "folder of a run: give --%s again",
                   from, names[i], text, names[i]);
    }
    return EK_OK;
}

/* Default of --out, and the stored settings of the run that continues there. */
static ek_status stored_settings(const ek_options *given, json_t **settings, char *from,
                                 size_t from_cap)
{
    /* If any of `layout` is given, stored `sizes` are dropped: they belong to another layout. */
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

/* Settings of the command itself, which ek_train does not know, as JSON for run.json; to be freed
 * by the caller. */
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

static int run_train(const ek_options *o, ek_command_job *job, int argc, char **argv)
{
    ek_path cache;
    ek_train_config cfg = EK_TRAIN_CONFIG_INIT;
    ek_train_summary summary = {0};
    progress_display d = open_display(o, job);
    /* No warning hook: show_log gets what is logged. */
    ek_train_hooks hooks = {.context = &d,
                            .started = show_start,
                            .step = show_step,
                            .tokenising = show_tokenising,
                            .stop = stop_wanted,
                            .layer = collect_layer,
                            .cost = collect_cost,
                            .phase = report_phase,
                            .evaluating = show_evaluating};
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
    cfg.supervisor_id = ek_worker_supervisor_id();
    cfg.n_draining = ek_worker_n_draining();
    d.quiet |= cfg.n_draining > 0;
    d.out = cfg.out;
    if (st == EK_OK && dry)
        st = cli_dry_run_ranks(o, job, &ranks);
    if (dry) {
        cfg.dry_run = ek_options_text(o, "hosts") || ek_options_text(o, "discover") ? 2 : 1;
        cfg.threads = (int)ek_options_int(o, "threads");
    } else if (st == EK_OK) {
        st = ek_command_job_threads(job, o, &cfg.threads);
    }
    if (st == EK_OK)
        st = ek_racks_get(job->size, &racks);
    cfg.rack_of = racks;
    if (st == EK_OK)
        st = dry ? cli_dry_run(&cfg, &hooks, ranks, &summary) : ek_train(&cfg, &hooks, &summary);
    free(racks);
    end_live_line();
    if (st == EK_OK && cfg.n_draining == 0) /* draining: the run continues elsewhere */
        print_end(&summary, &cfg, job, &d);
    ek_train_settings_release(&cfg);
    json_decref(settings);
    free(own);
    json_decref(d.layers);
    json_decref(d.costs);
    if (st < 0)
        return ek_command_job_fail(job, st);
    ek_command_job_leave(job);
    return EK_EXIT_DONE;
}

int cli_train(int argc, char **argv)
{
    ek_options *o = NULL;
    ek_command_job job;
    int status;

    ek_worker_catch(on_signal);
    status = ek_command_job_enter(&table, argc, argv, &o, &job);
    if (status >= 0)
        return status;
    status = run_train(o, &job, argc, argv);
    ek_options_destroy(o);
    return status;
}
