/* The options of `evenkeel search`. */
#include "search/command.h"

#include "base/option_value.h"
#include "search/report.h"
#include "search/report_html.h"
#include "sim/html.h"
#include "train/settings/options.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    ek_train_config train; /* first: rows of train's table have its offsets */
    const char *cluster, *trace, *fix, *pool, *report;
    const char *const *ranks; /* followed by its length */
    int64_t n_ranks;
    int64_t memory, steps, top;
    const char *objective, *failures, *on_failure;
    int json;
} search_settings;

static const search_settings defaults = {.train = EK_TRAIN_CONFIG_INIT};

/* Rows of `train` that decide what a step computes and sends, but for what is searched. */
static const char of_train[] = "model|batch|seq|top-k|dtype|capacity-factor|embed-columns|"
                               "adaptive-r|pipeline-degree|a2a|balance|spare-slots|plan-every";

static const ek_option own[] = {
    {"cluster", EK_OPTION_TEXT, .unit = "FILE", .required = 1, .field = EK_FIELD_TEXT,
     .offset = offsetof(search_settings, cluster),
     .help = "cluster file: machine of a rank, and links between ranks (docs/simulate.md)"},
    {"ranks", EK_OPTION_LIST, .unit = "RANKS", .required = 1, .field = EK_FIELD_LIST,
     .offset = offsetof(search_settings, ranks),
     .help =
         "number of ranks, at most those of the cluster; of several numbers the best is chosen"},
    {"objective", EK_OPTION_CHOICE, .fallback = "step", .allowed = EK_OBJECTIVE_WORDS,
     .field = EK_FIELD_TEXT, .offset = offsetof(search_settings, objective),
     .help =
         "step: the shortest step; goodput: the most completed steps when nodes fail; cost: the "
         "least money for a step, by the cluster's price"},
    {"failures", EK_OPTION_TEXT, .unit = "HOURS|cluster|FILE", .field = EK_FIELD_TEXT,
     .offset = offsetof(search_settings, failures),
     .help =
         "--objective goodput, cost: a node fails every so many hours, as the cluster file says "
         "(with goodput the default), or as recorded (docs/simulate.md)"},
    {"on-failure", EK_OPTION_CHOICE, .fallback = "best", .allowed = EK_SEARCH_ON_FAILURE_WORDS,
     .field = EK_FIELD_TEXT, .offset = offsetof(search_settings, on_failure),
     .help =
         "--failures: as of `simulate`; best: what leaves more steps of a layout, recovery where "
         "--elastic supports it, or restarts"},
    {"elastic", EK_OPTION_FLAG, .field = EK_FIELD_INT,
     .offset = offsetof(search_settings, train.elastic),
     .help = "of a run with --elastic: partners on other nodes have copies of what --zero shards, "
             "and of stages that one node alone has; experts have two copies where memory allows"},
    {"memory-limit", EK_OPTION_SIZE, .shown = "the cluster's memory of a rank", .unit = "SIZE",
     .field = EK_FIELD_SIZE, .offset = offsetof(search_settings, memory),
     .help = "most memory that a rank may need: 80G, 512M, 1.5GiB"},
    {"fix", EK_OPTION_TEXT, .unit = "NAME=VALUE,...", .field = EK_FIELD_TEXT,
     .offset = offsetof(search_settings, fix),
     .help = "restrict what is searched: pp, pp-chunks, tp, ep, etp, zero, micro-batch, recompute; "
             "a name that is given twice may have either value"},
    {"trace", EK_OPTION_TEXT, .unit = "FILE.npy", .field = EK_FIELD_TEXT,
     .offset = offsetof(search_settings, trace),
     .help = "routing trace (train --record-routing, evenkeel workload): the best layouts are "
             "simulated with its loads, balanced by --balance, and by off, exact and auto"},
    {"steps", EK_OPTION_INT, .fallback = "8", .unit = "steps", .allowed = "[1,1000000]",
     .field = EK_FIELD_INT64, .offset = offsetof(search_settings, steps),
     .help = "steps to simulate of a layout with --trace: evenly spaced iterations"},
    {"top", EK_OPTION_INT, .fallback = "10", .unit = "layouts", .allowed = "[1,1000]",
     .field = EK_FIELD_INT64, .offset = offsetof(search_settings, top),
     .help = "how many of the best layouts to show"},
    {"pool", EK_OPTION_TEXT, .unit = "FILE", .field = EK_FIELD_TEXT,
     .offset = offsetof(search_settings, pool),
     .help = "write the layouts that no other beats in both time and memory, and the best of each "
             "value of "
             "an option that takes at most 1.5 times the shortest step, to a JSON file"},
    {"report", EK_OPTION_TEXT, .unit = "FILE.html", .field = EK_FIELD_TEXT,
     .offset = offsetof(search_settings, report),
     .help = "write a page with charts: the best layouts, time against memory, and what each value "
             "of an option costs"},
    {"json", EK_OPTION_FLAG, .field = EK_FIELD_INT, .offset = offsetof(search_settings, json),
     .help = "print the answer as JSON"},
};

enum { OWN = sizeof(own) / sizeof(own[0]) };

void ek_search_table(ek_option *rows, ek_option_table *table)
{
    size_t n = ek_train_options_pick(of_train, rows);

    memcpy(rows + n, own, sizeof(own));
    *table = (ek_option_table){
        .command = "search",
        .summary = "Find the layout with the shortest step on a cluster, or the most steps or the "
                   "cheapest ones.",
        .options = rows,
        .n_options = n + OWN,
        .defaults = &defaults};
}

/* --- numbers of ranks ------------------------------------------------------------------------- */

enum { COUNTS_MAX = 64, RANKS_MAX = 65536 };

/* Searches for each of some numbers of ranks. */
typedef struct {
    int64_t n;
    ek_search_config cfg[COUNTS_MAX];
    ek_search_ranks at[COUNTS_MAX];
} searches;

static ek_status read_ranks(const search_settings *s, searches *x)
{
    EK_REQUIRE(s->n_ranks <= COUNTS_MAX, EK_EINVAL, "--ranks: %lld numbers are more than %d",
               (long long)s->n_ranks, COUNTS_MAX);
    for (int64_t i = 0; i < s->n_ranks; i++) {
        char *end;
        long n = strtol(s->ranks[i], &end, 10);

        EK_REQUIRE(*end == '\0' && end != s->ranks[i] && n >= 1 && n <= RANKS_MAX, EK_EINVAL,
                   "--ranks %s: expected numbers from 1 to %d", s->ranks[i], RANKS_MAX);
        for (int64_t j = 0; j < i; j++)
            EK_REQUIRE(x->at[j].ranks != n, EK_EINVAL, "--ranks %s: the number is given twice",
                       s->ranks[i]);
        x->at[i].ranks = (int)n;
    }
    x->n = s->n_ranks;
    return EK_OK;
}

/* Whether other numbers of ranks may still have a layout. */
static int may_go_on(ek_status st)
{
    return st == EK_ENOMEM || ek_status_class(st) == EK_CLASS_USAGE;
}

static ek_status search_all(const search_settings *s, const ek_simulation_files *files, searches *x)
{
    ek_status st = EK_OK;
    int most = 0;

    for (int64_t i = 0; i < x->n; i++)
        most = x->at[i].ranks > most ? x->at[i].ranks : most;
    for (int64_t i = 0; i < x->n; i++) {
        x->cfg[i] = (ek_search_config){
            .train = &s->train,
            .cluster = &files->cluster,
            .ranks = x->at[i].ranks,
            .most_ranks = most,
            .fix = s->fix,
            .memory = (double)s->memory,
            .top = s->top,
            .trace = files->trace,
            .steps = s->steps,
            .objective = (ek_objective)ek_option_choice_index(EK_OBJECTIVE_WORDS, s->objective),
            .failures = s->failures,
            .on_failure = s->on_failure};
        st = ek_search_run(&x->cfg[i], &x->at[i].search);
        if (st == EK_OK)
            continue;
        ek_search_close(&x->at[i].search);
        (void)snprintf(x->at[i].refusal, sizeof(x->at[i].refusal), "%s", ek_err_message());
        if (!may_go_on(st))
            return st;
    }
    return ek_search_best_ranks(x->at, x->n) >= 0 ? EK_OK : st;
}

/* --- the command ------------------------------------------------------------------------------ */

static void put_page(const void *search, FILE *f)
{
    ek_search_write_html(search, f);
}

static ek_status write_answer(const search_settings *s, const searches *x, FILE *out)
{
    const ek_search *search = x->at[ek_search_best_ranks(x->at, x->n)].search;

    if (s->pool != NULL)
        EK_TRY(ek_search_write_pool(search, s->pool));
    if (s->report != NULL)
        EK_TRY(ek_html_file(s->report, put_page, search));
    if (s->json)
        ek_search_write_json(x->at, x->n, out);
    else
        ek_search_write_text(x->at, x->n, out);
    return EK_OK;
}

static ek_status search_and_write(const search_settings *s, const ek_simulation_files *files,
                                  FILE *out)
{
    searches *x = calloc(1, sizeof(*x));
    ek_status st;

    EK_REQUIRE_OUT(x != NULL, EK_ENOMEM, "no memory for searches");
    EK_TRY_OUT(read_ranks(s, x));
    EK_TRY_OUT(search_all(s, files, x));
    EK_TRY_OUT(write_answer(s, x, out));
out:
    for (int64_t i = 0; x != NULL && i < x->n; i++)
        ek_search_close(&x->at[i].search);
    free(x);
    return st;
}

ek_status ek_search_command(const ek_options *o, FILE *out)
{
    search_settings s = defaults;
    ek_simulation_files *files = NULL;
    ek_status st;

    EK_TRY(ek_options_store(o, &s));
    EK_TRY_OUT(ek_simulation_open_files(s.cluster, s.trace, &files));
    if (!ek_options_given(o, "dtype"))
        s.train.dtype = files->cluster.machine.dtype;
    s.train.device = files->cluster.device;
    EK_TRY_OUT(search_and_write(&s, files, out));
out:
    ek_simulation_close_files(&files);
    return st;
}
