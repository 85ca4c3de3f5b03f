/* The options of `evenkeel search`. */
#include "search/command.h"

#include "search/report.h"
#include "search/report_html.h"
#include "sim/html.h"
#include "train/settings/options.h"

#include <stddef.h>
#include <string.h>

typedef struct {
    ek_train_config train; /* first: rows of train's table have its offsets */
    const char *cluster, *trace, *fix, *pool, *report;
    int64_t memory, steps, top;
    int ranks, json;
} search_settings;

static const search_settings defaults = {.train = EK_TRAIN_CONFIG_INIT};

/* Rows of `train` that decide what a step computes and sends, but for what is searched. */
static const char of_train[] = "model|batch|seq|top-k|dtype|capacity-factor|embed-columns|"
                               "adaptive-r|pipeline-degree|a2a|balance|spare-slots|plan-every";

static const ek_option own[] = {
    {"cluster", EK_OPTION_TEXT, .unit = "FILE", .required = 1, .field = EK_FIELD_TEXT,
     .offset = offsetof(search_settings, cluster),
     .help = "cluster file: machine of a rank, and links between ranks (docs/simulate.md)"},
    {"ranks", EK_OPTION_INT, .unit = "ranks", .allowed = "[1,65536]", .required = 1,
     .field = EK_FIELD_INT, .offset = offsetof(search_settings, ranks),
     .help = "number of ranks; at most those of the cluster"},
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
    *table = (ek_option_table){.command = "search",
                               .summary = "Find the layout with the shortest step on a cluster.",
                               .options = rows,
                               .n_options = n + OWN,
                               .defaults = &defaults};
}

static void put_page(const void *search, FILE *f)
{
    ek_search_write_html(search, f);
}

static ek_status write_answer(const search_settings *s, const ek_search *search, FILE *out)
{
    if (s->pool != NULL)
        EK_TRY(ek_search_write_pool(search, s->pool));
    if (s->report != NULL)
        EK_TRY(ek_html_file(s->report, put_page, search));
    if (s->json)
        ek_search_write_json(search, out);
    else
        ek_search_write_text(search, out);
    return EK_OK;
}

static ek_status search_and_write(const search_settings *s, const ek_cluster *cluster,
                                  const ek_trace *trace, FILE *out)
{
    ek_search_config cfg = {.train = &s->train,
                            .cluster = cluster,
                            .ranks = s->ranks,
                            .fix = s->fix,
                            .memory = (double)s->memory,
                            .top = s->top,
                            .trace = trace,
                            .steps = s->steps};
    ek_search *search = NULL;
    ek_status st = ek_search_run(&cfg, &search);

    if (st == EK_OK)
        st = write_answer(s, search, out);
    ek_search_close(&search);
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
    EK_TRY_OUT(search_and_write(&s, &files->cluster, files->trace, out));
out:
    ek_simulation_close_files(&files);
    return st;
}
