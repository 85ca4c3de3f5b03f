/* The options of `evenkeel simulate`. */
#include "train/command/simulate.h"

#include "base/option_value.h"
#include "sim/dialect.h"
#include "train/failures.h"
#include "train/output/simulation.h"
#include "train/settings/options.h"

#include <stddef.h>
#include <string.h>

typedef struct {
    ek_train_config train; /* first: rows of train's table have its offsets */
    const char *cluster, *trace, *timeline, *report, *engine;
    const char *const *what_if; /* lists are followed by their lengths */
    int64_t n_what_if;
    const char *const *dialect;
    int64_t n_dialect, steps;
    int ranks, timeline_rank, every_rank, json;
    const char *failures, *on_failure;
} simulate_settings;

static const simulate_settings defaults = {.train = EK_TRAIN_CONFIG_INIT};

/* Rows of `train` that decide what a step computes and sends. */
static const char of_train[] =
    "model|batch|seq|micro-batch|top-k|recompute|dtype|capacity-factor|pp|pp-chunks|pp-layers|tp|"
    "ep|etp|adaptive-r|zero|embed-columns|pipeline-degree|smart-groups|a2a|balance|spare-slots|"
    "batch-shares|plan-every|replicas-min|save-every";

static const ek_option own[] = {
    {"cluster", EK_OPTION_TEXT, .unit = "FILE", .required = 1, .field = EK_FIELD_TEXT,
     .offset = offsetof(simulate_settings, cluster),
     .help = "cluster file: machine of a rank, and links between ranks (docs/simulate.md)"},
    {"ranks", EK_OPTION_INT, .unit = "ranks", .allowed = "[1,65536]", .required = 1,
     .field = EK_FIELD_INT, .offset = offsetof(simulate_settings, ranks),
     .help = "number of ranks; at most those of the cluster"},
    {"trace", EK_OPTION_TEXT, .unit = "FILE.npy", .field = EK_FIELD_TEXT,
     .offset = offsetof(simulate_settings, trace),
     .help = "routing trace (train --record-routing, evenkeel workload) whose loads experts have, "
             "balanced by --balance; else loads are even"},
    {"steps", EK_OPTION_INT, .fallback = "8", .unit = "steps", .allowed = "[1,1000000]",
     .field = EK_FIELD_INT64, .offset = offsetof(simulate_settings, steps),
     .help = "steps to simulate: evenly spaced iterations of --trace"},
    {"timeline", EK_OPTION_TEXT, .unit = "FILE", .field = EK_FIELD_TEXT,
     .offset = offsetof(simulate_settings, timeline),
     .help = "write the step of a rank as a timeline for Perfetto"},
    {"timeline-rank", EK_OPTION_INT, .fallback = "0", .unit = "rank", .allowed = "[0,65535]",
     .field = EK_FIELD_INT, .offset = offsetof(simulate_settings, timeline_rank),
     .help = "rank of --timeline"},
    {"engine", EK_OPTION_CHOICE, .fallback = "replay", .allowed = EK_ENGINE_WORDS,
     .field = EK_FIELD_TEXT, .offset = offsetof(simulate_settings, engine),
     .help = "replay: bytes of different ranks share no link; flow: ranks share the links of the "
             "cluster as they use them; messages: every message of up to 64 ranks does, with even "
             "loads"},
    {"what-if", EK_OPTION_LIST, .unit = "CHANGE", .field = EK_FIELD_LIST,
     .offset = offsetof(simulate_settings, what_if),
     .help =
         "simulate again with a changed cluster, once for each CHANGE, such as \"bandwidth[leaf] "
         "x2\", \"latency[*] x0.5\" or \"compute x1.5\""},
    {"dialect", EK_OPTION_LIST, .unit = "SWITCH", .field = EK_FIELD_LIST,
     .offset = offsetof(simulate_settings, dialect),
     .help =
         "what another program does differently: unfused-attention, low-messages, "
         "low-gradients, late-gradients, ring-steps, padded, weights-first, gradient-passes, "
         "staged-2dh, unfused-rows, etp-gather, low-weights, expert-counts, node-once, "
         "ddp-buckets, tree-sums, replicas-alone, whole-sums, gather-copies (docs/simulate.md)"},
    {"every-rank", EK_OPTION_FLAG, .field = EK_FIELD_INT,
     .offset = offsetof(simulate_settings, every_rank),
     .help = "build the step graph of every rank, instead of letting the first of each pipeline "
             "stage, which has most work where divisions leave remainders, stand for the others"},
    {"report", EK_OPTION_TEXT, .unit = "FILE.html", .field = EK_FIELD_TEXT,
     .offset = offsetof(simulate_settings, report),
     .help = "write a page with charts, also of the step's sensitivity to links, computation and "
             "imbalance of experts, for which it is simulated some 30 times"},
    {"elastic", EK_OPTION_FLAG, .field = EK_FIELD_INT,
     .offset = offsetof(simulate_settings, train.elastic),
     .help = "of a run with --elastic: partners on other nodes have copies of what --zero shards, "
             "and of stages that one node alone has; experts have two copies where memory allows"},
    {"failures", EK_OPTION_TEXT, .unit = "HOURS|cluster|FILE", .field = EK_FIELD_TEXT,
     .offset = offsetof(simulate_settings, failures),
     .help = "simulate runs in which a node fails every so many hours, as the cluster file says, "
             "or as recorded (docs/simulate.md)"},
    {"on-failure", EK_OPTION_CHOICE, .fallback = "recover", .allowed = EK_ON_FAILURE_WORDS,
     .field = EK_FIELD_TEXT, .offset = offsetof(simulate_settings, on_failure),
     .help = "--failures: recover, as with --elastic; the same with whole expert-parallel groups; "
             "or restart from the newest checkpoint"},
    {"json", EK_OPTION_FLAG, .field = EK_FIELD_INT, .offset = offsetof(simulate_settings, json),
     .help = "print the report as JSON"},
};

enum { OWN = sizeof(own) / sizeof(own[0]) };

void ek_simulate_table(ek_option *rows, ek_option_table *table)
{
    size_t n = ek_train_options_pick(of_train, rows);

    memcpy(rows + n, own, sizeof(own));
    *table = (ek_option_table){
        .command = "simulate",
        .summary = "Predict the step time of a layout on a cluster, and where it goes.",
        .options = rows,
        .n_options = n + OWN,
        .defaults = &defaults};
}

ek_status ek_simulate_command(const ek_options *o, FILE *out)
{
    simulate_settings s = defaults;
    ek_simulation_files *files = NULL;
    unsigned dialect;
    ek_status st;

    EK_TRY(ek_options_store(o, &s));
    EK_TRY(ek_dialect_parse(s.dialect, s.n_dialect, &dialect));
    EK_TRY_OUT(ek_simulation_open_files(s.cluster, s.trace, &files));
    if (!ek_options_given(o, "dtype"))
        s.train.dtype = files->cluster.machine.dtype;
    s.train.device = files->cluster.device;
    EK_TRY_OUT(ek_simulate_and_report(
        &(ek_simulation_config){.train = &s.train,
                                .cluster = &files->cluster,
                                .ranks = s.ranks,
                                .every_rank = s.every_rank,
                                .engine =
                                    (ek_engine)ek_option_choice_index(EK_ENGINE_WORDS, s.engine),
                                .timeline = s.timeline != NULL,
                                .timeline_rank = s.timeline_rank,
                                .trace = files->trace,
                                .dialect = dialect,
                                .steps = s.steps},
        &(ek_simulation_output){s.what_if, s.n_what_if, s.timeline, s.report, s.json, out,
                                s.failures, s.on_failure}));
out:
    ek_simulation_close_files(&files);
    return st;
}
