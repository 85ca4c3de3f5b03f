/* Worlds by number of nodes, each simulated once. */
#include "train/failures.h"

#include "base/file.h"
#include "comm/mesh.h"
#include "sim/failure_trace.h"
#include "train/failure_parts.h"
#include "train/save_interval.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { RUNS_MAX = 1000 };

/* Runs are drawn until about so many failures have happened; a run has at most as many. */
static const double failures_wanted = 1000, failures_of_run = 1e5, run_s = 30 * 86400.0;

/* Bytes of an element in a checkpoint: master and two moments. */
static const double saved_bytes = 12;

static const uint64_t seed = UINT64_C(0x6661696c75726573);

typedef struct {
    int known;
    ek_failures_world world;
    double memory;          /* bytes of the rank with most */
    int32_t copies;         /* nodes that hold each expert (ek_sim_layout) */
    double copies_lengthen; /* ek_sim_layout */
    ek_save_interval interval;
    ek_replica_sets parts;
    ek_arena arena;
} known_world;

typedef struct {
    const ek_simulation_config *cfg;
    ek_on_failure what;
    int64_t params;
    double mtbf_s; /* of a node; 0: none fails */
    int32_t nodes;
    known_world *known; /* [nodes + 1] */
} failures_work;

/* --- settings --------------------------------------------------------------------------------- */

static ek_mesh_sizes sizes_of(const ek_train_config *t)
{
    return (ek_mesh_sizes){t->pp, t->tp, t->ep, t->etp};
}

static int or_one(int n)
{
    return n > 1 ? n : 1;
}

/* How many of so many ranks a world uses; 0: they are too few. */
static int usable_ranks(const ek_train_config *t, ek_on_failure what, int ranks)
{
    ek_mesh_sizes sizes = sizes_of(t);

    if (what == EK_ON_FAILURE_RECOVER)
        return ek_mesh_elastic_ranks(&sizes, ranks);
    sizes.etp = or_one(sizes.ep) * or_one(sizes.etp); /* --ep stays */
    return ranks - ranks % ek_mesh_rank_multiple(&sizes);
}

/* Lays out a world of so many ranks: with the copies of a run with --elastic, as it has by default;
 * whole groups without further copies of experts. */
static void fit_world(ek_train_config *t, ek_on_failure what, int ranks)
{
    ek_mesh_sizes sizes = sizes_of(t);

    if (what == EK_ON_FAILURE_RESTART)
        return;
    ek_mesh_fit(&sizes, ranks);
    t->ep = sizes.ep;
    if (!t->elastic)
        t->elastic = EK_ELASTIC_BY_DEFAULT;
    if (what == EK_ON_FAILURE_GROUPS && t->replicas_min == 0)
        t->replicas_min = 1;
}

void ek_failures_layout(const ek_simulation_config *cfg, ek_on_failure what, ek_train_config *train,
                        int *ranks)
{
    int usable = usable_ranks(cfg->train, what, cfg->ranks);

    *train = *cfg->train;
    *ranks = usable > 0 ? usable : cfg->ranks;
    if (usable > 0) /* else, as it is, it is refused */
        fit_world(train, what, *ranks);
}

/* --- worlds ----------------------------------------------------------------------------------- */

/* Steps between saves, as a run with these settings makes them. */
static void set_saves(const failures_work *w, known_world *x)
{
    const ek_train_config *t = w->cfg->train;
    double save_s = w->cfg->cluster->save_s, step_s = x->world.step_s;
    ek_save_history h = {
        .save_s = save_s, .write_s = save_s, .saves = save_s > 0, .step_s = step_s};
    ek_loss_risk risk = {.hosts = x->world.nodes, .p1 = 1, .p2 = 1};

    if (x->world.parts != NULL) {
        risk.p1 = 1 - ek_replica_sets_survivability(&x->parts, 1).p;
        risk.p2 = risk.hosts > 1 ? 1 - ek_replica_sets_survivability(&x->parts, 2).p : 1;
    }
    x->interval =
        ek_save_interval_find(&h, &risk, w->mtbf_s > 0 ? w->mtbf_s : HUGE_VAL,
                              saved_bytes * (double)w->params /
                                  (double)(risk.hosts * ek_cluster_node_ranks(w->cfg->cluster)));
    if (t->save_seconds > 0)
        x->world.save_every = (int64_t)fmax(round((double)t->save_seconds / step_s), 1);
    else
        x->world.save_every = t->save_every >= 0 ? t->save_every : x->interval.steps;
}

/* Simulates a world of so many ranks. */
static ek_status simulate_world(failures_work *w, int ranks, known_world *x)
{
    ek_simulation_config cfg = *w->cfg;
    ek_train_config train = *w->cfg->train;
    ek_simulation *s = NULL;
    ek_status st;

    fit_world(&train, w->what, ranks);
    cfg.train = &train;
    cfg.ranks = ranks;
    cfg.timeline = cfg.n_strips = 0;
    EK_TRY_OUT(ek_simulate(&cfg, &s));
    x->world.step_s = ek_simulation_result(s)->step_s;
    x->memory = ek_sim_graphs_fullest(ek_simulation_graphs(s))->memory;
    w->params = ek_simulation_layout(s)->params;
    x->copies = ek_simulation_layout(s)->copies;
    x->copies_lengthen = ek_simulation_layout(s)->copies_lengthen;
    if (w->what != EK_ON_FAILURE_RESTART) {
        EK_TRY_OUT(ek_failure_parts(ek_simulation_layout(s), ek_simulation_graphs(s), cfg.cluster,
                                    cfg.trace, &x->arena, &x->parts));
        x->world.parts = &x->parts;
    }
    set_saves(w, x);
out:
    ek_simulation_close(&s);
    return st;
}

/* The same; a failure says which world it is of. */
static ek_status simulate_nodes(failures_work *w, int32_t nodes, int ranks, known_world *x)
{
    ek_status st = simulate_world(w, ranks, x);

    if (st < 0 && nodes < w->nodes)
        return EK_FAIL(st, "--failures: with %d of %d nodes, %d ranks: %s", (int)nodes,
                       (int)w->nodes, ranks, ek_err_message());
    return st;
}

static ek_status find_world(void *context, int32_t nodes, ek_failures_world *out)
{
    failures_work *w = context;
    known_world *x = &w->known[nodes];
    int64_t each = ek_cluster_node_ranks(w->cfg->cluster), ranks = nodes * each;

    ranks = ranks < w->cfg->ranks ? ranks : w->cfg->ranks;
    ranks = usable_ranks(w->cfg->train, w->what, (int)ranks);
    if (!x->known) {
        x->world.nodes = (int32_t)((ranks + each - 1) / each);
        if (ranks > 0)
            EK_TRY(simulate_nodes(w, nodes, (int)ranks, x));
        x->known = 1;
    }
    *out = x->world;
    return EK_OK;
}

/* --- failures --------------------------------------------------------------------------------- */

/* Mean time between losses of a node in a record. */
static double recorded_mtbf(const ek_failure_trace *t)
{
    double node_s = t->nodes * t->seconds, down = 0, lost = 0;

    for (int64_t i = 0; i < t->n; i++) {
        lost += !t->events[i].back;
        down += (t->events[i].back ? -1 : 1) * (t->seconds - t->events[i].at_s);
    }
    return lost > 0 ? (node_s - down) / lost : 0;
}

/* A rate, or a record. */
static ek_status read_failures(failures_work *w, const char *text, ek_failure_trace *trace)
{
    const ek_cluster *c = w->cfg->cluster;
    char *end;
    double hours = strtod(text, &end);

    if (strcmp(text, "cluster") == 0) {
        EK_REQUIRE(c->node_mtbf_s > 0, EK_EINVAL,
                   "--failures cluster: %s has no key `failures`; give hours or a file", c->name);
        w->mtbf_s = c->node_mtbf_s;
        return EK_OK;
    }
    if (*end == '\0' && end != text) {
        EK_REQUIRE(hours >= 1e-6 && hours <= 1e12, EK_EINVAL,
                   "--failures %s: hours between failures of a node are between 1e-6 and 1e12",
                   text);
        w->mtbf_s = hours * 3600;
        return EK_OK;
    }
    EK_TRY(ek_failure_trace_read(text, w->nodes, trace));
    EK_REQUIRE(trace->seconds > 0, EK_EFORMAT,
               "%s: nothing happens after most instances are up, for a run to be simulated", text);
    w->mtbf_s = recorded_mtbf(trace);
    return EK_OK;
}

static double or_default(double given, double otherwise)
{
    return given > 0 ? given : otherwise;
}

static ek_failures_config config_of(failures_work *w, const ek_failure_trace *trace)
{
    const ek_cluster *c = w->cfg->cluster;
    ek_failures_config f = {.nodes = w->nodes,
                            .world = find_world,
                            .context = w,
                            .mtbf_s = w->mtbf_s,
                            .rack_nodes = (int32_t)c->rack_nodes,
                            .rack_share = c->rack_nodes > 0 ? or_default(c->rack_share, 1) : 0,
                            .back_s = c->back_s,
                            .recover_s = or_default(c->recover_s, EK_FAILURES_RECOVER_S),
                            .restart_s = or_default(c->restart_s, EK_FAILURES_RESTART_S),
                            .seed = seed,
                            .runs = 1};

    if (trace->events != NULL) {
        f.events = trace->events;
        f.n_events = trace->n;
        f.seconds = trace->seconds;
        return f;
    }
    f.seconds = fmin(run_s, failures_of_run * w->mtbf_s / w->nodes);
    f.runs = (int64_t)fmin(ceil(failures_wanted * w->mtbf_s / w->nodes / f.seconds), RUNS_MAX);
    return f;
}

static ek_status simulate_failures(failures_work *w, const char *failures, ek_failure_trace *trace,
                                   ek_sim_failures *out)
{
    ek_failures_config f;
    ek_failures_world whole;
    const known_world *x = &w->known[w->nodes];

    EK_TRY(read_failures(w, failures, trace));
    EK_TRY(find_world(w, w->nodes, &whole));
    f = config_of(w, trace);
    f.save_s = x->interval.save_s;
    EK_TRY(ek_failures_simulate(&f, &out->result));
    out->config = f;
    out->config.events = NULL; /* which go, as the worlds do */
    out->config.world = NULL;
    out->config.context = NULL;
    out->recorded = trace->events != NULL ? trace->instances : 0;
    out->step_s = whole.step_s;
    out->memory = x->memory;
    out->copies = x->copies;
    out->copies_lengthen = x->copies_lengthen;
    out->save_every = whole.save_every;
    out->save_assumed = x->interval.assumed;
    out->recover_assumed = w->cfg->cluster->recover_s <= 0;
    out->restart_assumed = w->cfg->cluster->restart_s <= 0;
    out->recovers = whole.parts != NULL;
    if (out->recovers)
        ek_replica_sets_text(whole.parts, "node", out->survival, sizeof(out->survival));
    return EK_OK;
}

ek_status ek_simulate_failures(const ek_simulation_config *cfg, const char *failures,
                               ek_on_failure what, ek_sim_failures *out)
{
    int64_t each = ek_cluster_node_ranks(cfg->cluster);
    failures_work w = {
        .cfg = cfg, .what = what, .nodes = (int32_t)((cfg->ranks + each - 1) / each)};
    ek_failure_trace trace = {0};
    ek_status st;

    memset(out, 0, sizeof(*out));
    w.known = calloc((size_t)w.nodes + 1, sizeof(*w.known));
    EK_REQUIRE(w.known != NULL, EK_ENOMEM, "no memory for %d nodes", (int)w.nodes);
    st = simulate_failures(&w, failures, &trace, out);
    for (int32_t n = 0; n <= w.nodes; n++)
        ek_arena_fini(&w.known[n].arena);
    free(w.known);
    ek_failure_trace_free(&trace);
    return st;
}
