/* evenkeel plan: replays a routing trace through a planner. */
#include "balance/costs.h"
#include "balance/plan_lines.h"
#include "balance/replay.h"
#include "balance/row_costs.h"
#include "base/count_text.h"
#include "cli/cli.h"
#include "cost/cost.h"
#include "model/hf/source.h"

#include <jansson.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    /* Settings; paths are NULL if they are not given. */
    const char *trace_path, *history_path, *machine_path, *emit_path;
    const char *policy, *prefer, *model_name, *speeds;
    int spare_slots, json;
    int64_t nodes, racks; /* 0: not given */
    ek_replay_config cfg;

    ek_trace trace, history;
    ek_model_source *model;
    ek_machine *machine;   /* NULL: the built-in one */
    ek_cost_reason reason; /* reason lines of its costs */
    int32_t *node_of, *rack_of, *row_cost;
    ek_plan_lines emit;
} plan_run;

static const ek_option options[] = {
    {"trace", EK_OPTION_TEXT, .unit = "FILE.npy", .required = 1, .field = EK_FIELD_TEXT,
     .offset = offsetof(plan_run, trace_path),
     .help = "assignment counts, unsigned integers: [iteration][layer][source rank][expert], "
             "[iteration][layer][expert] or [layer][expert]"},
    {"policy", EK_OPTION_CHOICE, .fallback = "exact",
     .allowed = "off|shadow|fastermoe|place|prophet|replicate|eplb|exact|auto",
     .field = EK_FIELD_TEXT, .offset = offsetof(plan_run, policy),
     .help = "the planner (docs/balance.md)"},
    {"ranks", EK_OPTION_INT, .unit = "ranks", .allowed = "[1,65536]", .required = 1,
     .field = EK_FIELD_INT, .offset = offsetof(plan_run, cfg.limits.ranks),
     .help = "number of ranks that hold the experts"},
    {"spare-slots", EK_OPTION_INT, .fallback = "1", .unit = "slots", .allowed = "[0,4096]",
     .field = EK_FIELD_INT, .offset = offsetof(plan_run, spare_slots),
     .help = "extra expert slots per rank, beside the ceil(experts / ranks) that are needed"},
    {"lag", EK_OPTION_INT, .fallback = "0", .unit = "iterations", .allowed = "[0,1000000000]",
     .field = EK_FIELD_INT64, .offset = offsetof(plan_run, cfg.lag),
     .help = "plan from the counts of this many iterations before the evaluated one"},
    {"history", EK_OPTION_TEXT, .unit = "FILE.npy", .field = EK_FIELD_TEXT,
     .offset = offsetof(plan_run, history_path),
     .help =
         "make persistent placements once, from the sums of this trace, and evaluate on --trace"},
    {"horizon", EK_OPTION_INT, .fallback = "100", .unit = "micro-batches",
     .allowed = "[0,1000000000]", .field = EK_FIELD_INT64,
     .offset = offsetof(plan_run, cfg.limits.horizon),
     .help = "micro-batches between persistent placements, after a first one after the first "
             "iteration; they must save twice the cost of their "
             "moves in as many, or in those for which loads have been constant (auto)"},
    {"nodes", EK_OPTION_INT, .shown = "one a rank", .unit = "nodes", .allowed = "[1,65536]",
     .field = EK_FIELD_INT64, .offset = offsetof(plan_run, nodes),
     .help = "number of nodes; each has consecutive ranks"},
    {"racks", EK_OPTION_INT, .shown = "none are known", .unit = "racks", .allowed = "[1,65536]",
     .field = EK_FIELD_INT64, .offset = offsetof(plan_run, racks),
     .help = "number of racks, of consecutive nodes each; --replicas-min then counts racks"},
    {"rank-speeds", EK_OPTION_TEXT, .shown = "all equal", .unit = "S,S,...", .field = EK_FIELD_TEXT,
     .offset = offsetof(plan_run, speeds),
     .help = "relative speeds of the ranks, each above 0: planners level the time that assignments "
             "take (not eplb and fastermoe); the costs are those of the fastest rank"},
    {"replicas-min", EK_OPTION_INT, .fallback = "1", .unit = "nodes", .allowed = "[1,65536]",
     .field = EK_FIELD_INT, .offset = offsetof(plan_run, cfg.limits.replicas_min),
     .help = "minimum number of nodes that hold each expert (replicate; auto, which with 2 or more "
             "has persistent replicas, too)"},
    {"prefer", EK_OPTION_CHOICE, .fallback = "speed", .allowed = "speed|survival",
     .field = EK_FIELD_TEXT, .offset = offsetof(plan_run, prefer),
     .help = "place replicas for speed, or so that most losses of nodes are survived, even where a "
             "rank then has more than 5 % more load (as --replicas-min; with speed the text says "
             "what survival would give)"},
    {"model", EK_OPTION_TEXT, .shown = "experts of 2048 x 1024", .unit = "MODEL",
     .field = EK_FIELD_TEXT, .offset = offsetof(plan_run, model_name),
     .help = "model that gives the expert size: a preset (tiny, small, base), a Hugging Face "
             "config.json, or a folder with one"},
    {"machine", EK_OPTION_TEXT, .shown = "200 TFLOP/s a rank, 50 GB/s a link", .unit = "FILE",
     .field = EK_FIELD_TEXT, .offset = offsetof(plan_run, machine_path),
     .help = "cost factors measured by `evenkeel bench costs --out FILE`"},
    {"emit", EK_OPTION_TEXT, .unit = "FILE", .field = EK_FIELD_TEXT,
     .offset = offsetof(plan_run, emit_path),
     .help = "write every placement and the split of assignments, one JSON object a line"},
    {"json", EK_OPTION_FLAG, .field = EK_FIELD_INT, .offset = offsetof(plan_run, json),
     .help = "print JSON"},
};

static const ek_option_alias aliases[] = {{"lasts", "horizon"}, {NULL, NULL}};

static const ek_option_table table = {
    .aliases = aliases,
    .command = "plan",
    .summary = "Replay a routing trace through a planner: balance, bytes "
               "and time of its plans.",
    .options = options,
    .n_options = sizeof(options) / sizeof(options[0])};

/* Default expert size (three matrices). */
enum { HIDDEN = 2048, FF = 1024 };

/* Default machine, the same everywhere so that results repeat: bf16, 200 TFLOP/s per rank, links of
 * 50 GB/s each way. */
static ek_plan_costs built_in_costs(const ek_model_spec *m)
{
    const double weights = 3.0 * (double)m->hidden * (double)m->ff;
    const double bf16 = 2, flops = 200e12, link = 50e9;
    const double state = weights * (bf16 + 12); /* weights, master weights, two moments */

    return (ek_plan_costs){.compute_s_per_row = 3 * 2 * weights / flops,
                           .comm_s_per_row = 4 * (double)m->hidden * bf16 / link,
                           .replica_s = 2 * weights * bf16 / link,
                           .gradient_s = weights * bf16 / link,
                           .replica_bytes = 2 * weights * bf16,
                           .migrate_s_per_expert = state / link,
                           .state_bytes = state};
}

static ek_status emit_plan(void *context, int64_t iteration, int64_t layer, const int64_t *counts,
                           const ek_plan *p, const ek_replay_replicas *replicas)
{
    plan_run *x = context;
    ek_plan_place at = {.iteration = iteration, .layer = layer, .micro = -1};

    (void)replicas;
    ek_plan_lines_add(&x->emit, &at, &x->cfg.limits, counts, p);
    EK_TRY(ek_file_out_check(&x->emit.out));
    return ferror(x->emit.file) ? ek_plan_lines_flush(&x->emit) : EK_OK;
}

static ek_status open_emit(plan_run *x)
{
    if (x->emit_path == NULL)
        return EK_OK;
    x->cfg.each = emit_plan;
    x->cfg.context = x;
    ek_command_stop_writing();
    return ek_plan_lines_open(x->emit_path, EK_WRITE_REPLACE, &x->cfg.limits, &x->emit);
}

/* --- the machine ------------------------------------------------------------------------------ */

/* Mean assignments per rank and layer in the trace. */
static ek_status rows_of(const plan_run *x, double *rows)
{
    const ek_trace *t = &x->trace;
    int64_t *counts = calloc((size_t)t->experts, sizeof(*counts));

    EK_REQUIRE(counts != NULL, EK_ENOMEM, "no memory for plans");
    *rows = 0;
    for (int64_t i = 0; i < t->iterations * t->layers; i++) {
        ek_trace_counts(t, i / t->layers, i % t->layers, 1, counts);
        for (int64_t e = 0; e < t->experts; e++)
            *rows += (double)counts[e];
    }
    free(counts);
    *rows /= (double)t->iterations * (double)t->layers * (double)x->cfg.limits.ranks;
    return EK_OK;
}

/* Costs of --model's experts on --machine. */
static ek_status choose_costs(plan_run *x)
{
    ek_plan_limits *l = &x->cfg.limits;
    ek_plan_setting s = {.experts = l->experts, .ranks = l->ranks, .nodes = (int32_t)x->nodes};

    x->model = calloc(1, sizeof(*x->model));
    EK_REQUIRE(x->model != NULL, EK_ENOMEM, "no memory for plans");
    s.spec = &x->model->spec;
    ek_model_default(&x->model->spec);
    x->model->spec.hidden = HIDDEN;
    x->model->spec.ff = FF;
    if (x->model_name != NULL) {
        EK_TRY(ek_model_source_open(x->model_name, x->model));
        EK_TRY(ek_model_check(&x->model->spec));
    }
    l->costs = built_in_costs(&x->model->spec);
    if (x->machine_path == NULL)
        return EK_OK;
    x->machine = calloc(1, sizeof(*x->machine));
    EK_REQUIRE(x->machine != NULL, EK_ENOMEM, "no memory for plans");
    EK_TRY(ek_machine_read(x->machine_path, x->machine));
    EK_TRY(rows_of(x, &s.rows));
    return ek_plan_costs_of(x->machine, &s, &l->costs, &x->reason);
}

/* --- the command ------------------------------------------------------------------------------ */

/* Racks of whole nodes; a single rack is no constraint. */
static ek_status choose_racks(plan_run *x)
{
    ek_plan_limits *l = &x->cfg.limits;

    EK_REQUIRE(x->racks <= x->nodes, EK_EINVAL, "--racks %lld is more than the %lld nodes",
               (long long)x->racks, (long long)x->nodes);
    if (x->racks <= 1)
        return EK_OK;
    x->rack_of = calloc((size_t)l->ranks, sizeof(*x->rack_of));
    EK_REQUIRE(x->rack_of != NULL, EK_ENOMEM, "no memory for plans");
    for (int32_t r = 0; r < l->ranks; r++)
        x->rack_of[r] = (int32_t)(x->node_of[r] * x->racks / x->nodes);
    l->domain_of = x->rack_of;
    return EK_OK;
}

static ek_status choose_speeds(plan_run *x)
{
    ek_plan_limits *l = &x->cfg.limits;
    int differ = 0;

    if (x->speeds == NULL)
        return EK_OK;
    x->row_cost = calloc((size_t)l->ranks, sizeof(*x->row_cost));
    EK_REQUIRE(x->row_cost != NULL, EK_ENOMEM, "no memory for plans");
    EK_TRY(ek_row_costs_read(x->speeds, l->ranks, x->row_cost, &differ));
    l->row_cost = differ ? x->row_cost : NULL;
    return EK_OK;
}

static ek_status configure_plan(plan_run *x)
{
    ek_plan_limits *l = &x->cfg.limits;

    x->cfg.planner = ek_planner_for(ek_planner_find(x->policy), l->replicas_min);
    l->prefer_survival = strcmp(x->prefer, "survival") == 0;
    EK_TRY(ek_trace_open(x->trace_path, &x->trace));
    l->experts = (int32_t)x->trace.experts;
    l->slots = (l->experts + l->ranks - 1) / l->ranks + x->spare_slots;
    if (x->history_path != NULL) {
        EK_TRY(ek_trace_open(x->history_path, &x->history));
        x->cfg.history = &x->history;
    }
    if (x->nodes == 0)
        x->nodes = l->ranks;
    EK_REQUIRE(x->nodes <= l->ranks, EK_EINVAL, "--nodes %lld is more than --ranks %d",
               (long long)x->nodes, (int)l->ranks);
    EK_TRY(choose_costs(x));
    x->node_of = calloc((size_t)l->ranks, sizeof(*x->node_of));
    EK_REQUIRE(x->node_of != NULL, EK_ENOMEM, "no memory for plans");
    for (int32_t r = 0; r < l->ranks; r++)
        x->node_of[r] = (int32_t)(r * x->nodes / l->ranks);
    l->node_of = x->node_of;
    EK_TRY(choose_racks(x));
    ek_planner_warn_of_copies(x->cfg.planner, l, (int32_t)(x->racks > 1 ? x->racks : x->nodes),
                              "--policy", x->racks > 1 ? "rack" : "node");
    EK_TRY(choose_speeds(x));
    return open_emit(x);
}

static ek_status print_json(const plan_run *x, const ek_replay_result *r)
{
    json_t *o = json_pack("{s:s, s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:I, s:f, s:f, s:f}",
                          "policy", x->cfg.planner->name, "ranks", (int)x->cfg.limits.ranks,
                          "slots", (int)x->cfg.limits.slots, "max_over_mean_before", r->before,
                          "max_over_mean_mean", r->mean, "max_over_mean_worst", r->worst,
                          "plan_us_median", r->us_median, "plan_us_p99", r->us_p99, "bytes_moved",
                          r->bytes, "plans", (json_int_t)r->plans, "predicted_speedup", r->speedup,
                          "rb_median", r->rb_median, "persistent_us_mean", r->persistent_us);
    json_t *survivability = json_array();
    char *text;

    for (int k = 0; k < EK_REPLAY_LOST && k + 1 < r->nodes; k++)
        json_array_append_new(survivability, json_real(r->survivability[k]));
    json_object_set_new(o, "survives", json_integer(r->survives));
    json_object_set_new(o, "survival", survivability);
    text = o != NULL ? json_dumps(o, JSON_REAL_PRECISION(8)) : NULL;

    json_decref(o);
    EK_REQUIRE(text != NULL, EK_ENOMEM, "no memory for the result");
    puts(text);
    free(text);
    return EK_OK;
}

static void print_text(const plan_run *x, const ek_replay_result *r)
{
    const ek_plan_limits *l = &x->cfg.limits;
    char bytes[16], line[320], a[EK_COST_QUANTITY], b[EK_COST_QUANTITY];
    cli_text name;

    printf("%s: %s\n", x->cfg.planner->name, x->cfg.planner->what);
    printf("  trace       %lld iteration%s, %lld layer%s, %lld source%s, %lld expert%s\n",
           (long long)x->trace.iterations, x->trace.iterations == 1 ? "" : "s",
           (long long)x->trace.layers, x->trace.layers == 1 ? "" : "s", (long long)x->trace.sources,
           x->trace.sources == 1 ? "" : "s", (long long)x->trace.experts,
           x->trace.experts == 1 ? "" : "s");
    printf("  onto        %d rank%s of %d slot%s\n", (int)l->ranks, l->ranks == 1 ? "" : "s",
           (int)l->slots, l->slots == 1 ? "" : "s");
    printf("  max/mean    %.4f before, %.4f with %lld plans, worst %.4f%s\n", r->before, r->mean,
           (long long)r->plans, r->worst, l->row_cost != NULL ? ", of time by rank speeds" : "");
    printf("  deviation   of rank loads %.4g times as large without the plan (RB, median)\n",
           r->rb_median);
    printf("  plan time   %s, 99 %% below %s\n", ek_cost_quantity(a, r->us_median * 1e-6, "s"),
           ek_cost_quantity(b, r->us_p99 * 1e-6, "s"));
    if (x->cfg.history != NULL)
        printf("  history     %s a layer for persistent placements\n",
               ek_cost_quantity(a, r->persistent_us * 1e-6, "s"));
    printf("  moved       %s per layer and iteration\n",
           ek_bytes_text(bytes, sizeof(bytes), r->bytes));
    if (x->cfg.planner->enforces_replicas_min)
        printf("  failures    %s\n", r->survivability_text);
    if (x->cfg.planner->enforces_replicas_min && r->racks_text[0] != '\0')
        printf("              %s\n", r->racks_text);
    if (x->machine == NULL) {
        printf("  speed-up    %.3f, predicted for 200 TFLOP/s a rank and 50 GB/s a link\n",
               r->speedup);
        return;
    }
    printf("  speed-up    %.3f, predicted for %s:\n", r->speedup,
           cli_shown(&name, x->machine->name));
    for (int i = 0; i < x->reason.n; i++)
        printf("    %s\n", ek_cost_line_text(&x->reason.line[i], line, sizeof(line)));
}

/* With --prefer speed, where replicas are placed for survival at all: what survival would give. */
static ek_status print_survival(const plan_run *x, const ek_replay_result *speed)
{
    ek_replay_config cfg = x->cfg;
    ek_replay_result r;

    if (!cfg.planner->enforces_replicas_min || cfg.limits.replicas_min < 2 ||
        cfg.limits.prefer_survival)
        return EK_OK;
    cfg.limits.prefer_survival = 1;
    cfg.each = NULL;
    EK_TRY(ek_replay(&x->trace, &cfg, &r));
    if (strcmp(r.survivability_text, speed->survivability_text) != 0)
        printf("  survival    --prefer survival: max/mean %.4f, worst %.4f, speed-up %.3f;\n"
               "              %s\n",
               r.mean, r.worst, r.speedup, r.survivability_text);
    return EK_OK;
}

static ek_status replay_trace(const ek_options *o, plan_run *x)
{
    ek_replay_result r;

    EK_TRY(ek_options_store(o, x));
    EK_TRY(configure_plan(x));
    EK_TRY(ek_replay(&x->trace, &x->cfg, &r));
    EK_TRY(ek_plan_lines_finish(&x->emit)); /* fail before printing results of plans that were
                                               not written */
    if (x->json)
        return print_json(x, &r);
    print_text(x, &r);
    return print_survival(x, &r);
}

static void close_plan(plan_run *x)
{
    ek_plan_lines_close(&x->emit);
    ek_trace_close(&x->trace);
    ek_trace_close(&x->history);
    free(x->machine);
    free(x->model);
    free(x->node_of);
    free(x->rack_of);
    free(x->row_cost);
}

static ek_status run_plan(const ek_options *o)
{
    plan_run x = {0};
    ek_status st;

    ek_log_set_sink(cli_log, NULL, EK_LOG_WARN);
    st = replay_trace(o, &x);
    ek_log_set_sink(NULL, NULL, EK_LOG_WARN);
    close_plan(&x);
    return st;
}

int cli_plan(int argc, char **argv)
{
    return ek_command_run(&table, argc, argv, run_plan);
}
