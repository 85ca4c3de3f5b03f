/* `bench moe`: MoE layers without the rest of the model, forward and backward, by pipeline degree.
 *
 * Runs all routed layers of a model on synthetic activations that are spread evenly over the
 * experts, on one or several ranks; with --replay-routing also with the loads of a trace, by
 * balance policy.  Policies replicate for a micro-batch only: nothing moves between steps.
 * Variants alternate step by step, so that all see the same noise.  All times are those of the
 * slowest rank.  The ceiling of a variant is the longer of compute time and network time: a step
 * with perfect overlap.  Rank 0 prints. */
#include "base/clock.h"
#include "base/count_text.h"
#include "bench/bench_priv.h"
#include "exec/exec.h"
#include "model/hf/init.h"
#include "moe/replica_prefetch.h"
#include "moe/replica_weights.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WARM_UP = 2, DEGREES_MAX = 8, WAYS_MAX = DEGREES_MAX + BENCH_POLICIES_MAX, DEGREE_MAX = 64 };

/* Times measured per step, in seconds. */
enum { WALL, COMPUTE, EXPERTS, NET, EXPOSED, TIMES };

static const char *const time_names[TIMES] = {"ms", "compute_ms", "experts_ms", "net_ms",
                                              "exposed_ms"};

/* One variant: a pipeline degree, groups of ranks, or a balance policy. */
typedef struct {
    char name[32];
    ek_moe_config config;
    ek_pass *pass;
    int64_t sent;         /* bytes of a step, by all ranks */
    double max_over_mean; /* of the ranks' rows, in the worst layer of the last step */
    int64_t replicas;     /* of the last step */
    bench_samples times[TIMES];
} way;

typedef struct {
    bench_mesh on;
    ek_trace trace; /* of --replay-routing */
    ek_model *model;
    ek_exec *exec;
    ek_graph graph;
    ek_micro micro;
    int64_t layers; /* with experts */
    int n_ways;
    way ways[WAYS_MAX];
} moe;

/* --- setup ------------------------------------------------------------------------------------ */

/* Parses "1,2,4". */
static ek_status read_degrees(const bench *b, moe *m)
{
    const char *at = b->cfg->degrees;
    char *end;

    do {
        long degree = strtol(at, &end, 10);
        way *w = &m->ways[m->n_ways];

        EK_REQUIRE(end != at && degree >= 1 && degree <= DEGREE_MAX && (*end == ',' || *end == 0),
                   EK_EINVAL, "--degrees %s: expected numbers from 1 to %d, separated by commas",
                   b->cfg->degrees, DEGREE_MAX);
        EK_REQUIRE(m->n_ways < DEGREES_MAX - 1, EK_EINVAL, "--degrees %s: at most %d of them",
                   b->cfg->degrees, DEGREES_MAX - 1);
        snprintf(w->name, sizeof(w->name), "degree %ld", degree);
        w->config = (ek_moe_config){.degree = (int)degree, .a2a = b->cfg->a2a, .force_balance = 1};
        m->n_ways++;
        at = end + 1;
    } while (*end == ',');
    if (b->cfg->smart_group > 0) {
        way *w = &m->ways[m->n_ways++];

        snprintf(w->name, sizeof(w->name), "groups of %d", b->cfg->smart_group);
        w->config = (ek_moe_config){.degree = 1,
                                    .a2a = b->cfg->a2a,
                                    .smart_group = b->cfg->smart_group,
                                    .force_balance = 1};
    }
    return EK_OK;
}

/* A variant for each policy that plans by the micro-batch, at the first degree. */
static ek_status add_policies(const bench *b, moe *m)
{
    ek_moe_config config = {.degree = m->ways[0].config.degree,
                            .a2a = b->cfg->a2a,
                            .replay = &m->trace,
                            .replica_sets = EK_REPLICA_SETS_EACH,
                            .horizon = b->cfg->plan_every,
                            .replicas_min = 1};
    bench_policies named;

    EK_REQUIRE(m->on.mesh->ep > 1, EK_EINVAL,
               "--replay-routing needs expert parallelism: --ep 2 or more");
    EK_TRY(bench_read_policies(b, &named));
    EK_TRY(bench_open_trace(b, &m->trace));
    EK_TRY(ek_replicas_check(m->on.mesh, b->cfg->spare_slots));
    EK_TRY(bench_layer_costs(b, m->on.mesh, &config.costs));
    for (int i = 0; i < named.n; i++)
        if (named.of[i]->plan_transient != NULL) {
            way *w = &m->ways[m->n_ways++];

            snprintf(w->name, sizeof(w->name), "%s", named.of[i]->name);
            w->config = config;
            w->config.planner = named.of[i];
        }
    return EK_OK;
}

static void cut_batch(const bench *b, moe *m)
{
    const ek_mesh *mesh = m->on.mesh;
    ek_micro mb = ek_micro_alone(
        ek_range_length(b->cfg->batch, mesh->dp, mesh->dp_rank), b->cfg->seq, 1,
        (uint64_t)ek_range_first(b->cfg->batch, mesh->dp, mesh->dp_rank), NULL, NULL);

    mb.first = ek_range_first(mb.all, mesh->tp, mesh->tp_rank);
    mb.n = ek_range_length(mb.all, mesh->tp, mesh->tp_rank);
    mb.total = b->cfg->batch * b->cfg->seq;
    m->micro = mb;
}

/* Allocates the activations of a variant and fills the inputs of the layers. */
static ek_status open_way(const bench *b, moe *m, way *w)
{
    ek_pass_config cfg = {.max_seqs = ek_range_length(b->cfg->batch, m->on.mesh->dp, 0),
                          .max_seq = b->cfg->seq,
                          .max_total = b->cfg->batch * b->cfg->seq,
                          .training = 1,
                          .moe = w->config};
    int64_t n = m->micro.n * b->spec.hidden;

    EK_TRY(ek_pass_create(m->model, &cfg, &w->pass));
    for (int64_t l = 0; l < b->spec.layers; l++) {
        bench_fill(b->k->real, n, w->pass->moe[l].handles[0].activations.x);
        bench_fill(b->k->comp, n, w->pass->moe[l].handles[0].activations.y);
    }
    bench_fill(b->k->real, n, w->pass->backward.dx);
    if (b->k->comp != b->k->real)
        bench_fill(b->k->real, n, w->pass->scratch.y_real);
    return EK_OK;
}

static ek_status moe_open(const bench *b, moe *m)
{
    ek_exec_config exec = {0};
    ek_model_config mc = {.trained = 1};

    ek_graph_init(&m->graph);
    EK_TRY(read_degrees(b, m));
    m->layers = ek_model_moe_layers(&b->spec);
    EK_REQUIRE(m->layers > 0, EK_EINVAL, "this model has no layer with experts");
    EK_TRY(bench_open_mesh(b, &m->on));
    mc.mesh = m->on.mesh;
    if (b->cfg->replay != NULL) {
        EK_TRY(add_policies(b, m));
        mc.spare_slots = b->cfg->spare_slots;
    }
    EK_TRY(ek_model_create(&b->spec, b->k, &mc, &m->model));
    EK_TRY(ek_model_init(m->model, 0));
    EK_TRY(ek_model_pack(m->model));
    exec.inline_async = bench_inline_async(b);
    EK_TRY(ek_exec_create(&exec, &m->exec));
    cut_batch(b, m);
    for (int i = 0; i < m->n_ways; i++)
        EK_TRY(open_way(b, m, &m->ways[i]));
    return EK_OK;
}

static void moe_close(moe *m)
{
    for (int i = 0; i < m->n_ways; i++)
        ek_pass_destroy(&m->ways[i].pass);
    ek_exec_destroy(&m->exec);
    ek_graph_fini(&m->graph);
    ek_model_destroy(&m->model);
    bench_close_mesh(&m->on);
    ek_trace_close(&m->trace);
}

/* --- measuring -------------------------------------------------------------------------------- */

/* The routed layer after (by 1) or before (by -1) layer l; NULL: none. */
static ek_moe *neighbour(const bench *b, const way *w, int64_t l, int by)
{
    for (l += by; l >= 0 && l < b->spec.layers; l += by)
        if (!b->spec.dense[l])
            return &w->pass->moe[l];
    return NULL;
}

/* Forward of all layers, then backward, with replicas sent ahead as in training, except that
 * nothing is computed before the first layer and between layers. */
static ek_status build(const bench *b, moe *m, way *w, int64_t step_number)
{
    ek_moe_step step = {
        .training = 1, .aux_coef = 0.01, .top_k = b->spec.top_k, .step = (uint64_t)step_number};
    int64_t n = m->micro.n;
    int32_t dep = -1;

    EK_TRY(ek_pass_begin(w->pass, &step, &m->micro, 1));
    ek_graph_reset(&m->graph);
    for (int64_t l = 0; l < b->spec.layers; l++)
        if (!b->spec.dense[l]) {
            ek_moe *layer = &w->pass->moe[l];

            layer->ids.next_forward = neighbour(b, w, l, 1);
            layer->ids.backward_micro = layer->ids.next_forward == NULL ? 0 : -1;
            ek_moe_build_forward_prefetch(layer, &m->graph, 0, dep);
            dep = ek_moe_build_forward(layer, &m->graph, 0, n, 0, dep);
        }
    for (int64_t l = b->spec.layers - 1; l >= 0; l--)
        if (!b->spec.dense[l]) {
            w->pass->moe[l].ids.next_backward = neighbour(b, w, l, -1);
            dep = ek_moe_build_backward(&w->pass->moe[l], &m->graph, 0, n, dep);
        }
    return EK_OK;
}

/* How even the step was. */
static void note_balance(const bench *b, way *w)
{
    w->max_over_mean = 0;
    w->replicas = 0;
    for (int64_t l = 0; l < b->spec.layers; l++)
        if (!b->spec.dense[l]) {
            const ek_moe *layer = &w->pass->moe[l];

            w->max_over_mean =
                fmax(w->max_over_mean, ek_moe_rank_balance(&layer->stats, &layer->x).max_over_mean);
            w->replicas += layer->stats.replicas;
        }
}

static int is_of_experts(ek_op_kind kind)
{
    ek_op_group group = ek_op_info_of(kind)->group;

    return group == EK_OP_GROUP_EXPERTS || group == EK_OP_GROUP_SWIGLU;
}

static double seconds_of_experts(const ek_event *e, int64_t n)
{
    double sum = 0;

    for (int64_t i = 0; i < n; i++)
        if (is_of_experts(e[i].kind))
            sum += (double)(e[i].end_ns - e[i].start_ns) * 1e-9;
    return sum;
}

static int64_t bytes_sent(const bench *b)
{
    return b->job->world != NULL ? ek_comm_bytes_sent(b->job->world) : 0;
}

static ek_status run_step(const bench *b, moe *m, way *w, int64_t number, int counts)
{
    double t[TIMES], sent = -(double)bytes_sent(b);
    ek_exec_times sums;
    const ek_event *events;
    int64_t n, start;

    EK_TRY(build(b, m, w, number));
    ek_exec_record(m->exec, 1);
    ek_exec_forget(m->exec);
    if (b->job->world != NULL)
        EK_TRY(ek_comm_barrier(b->job->world));
    start = ek_clock_ns();
    EK_TRY(ek_exec_run(m->exec, &m->graph));
    t[WALL] = (double)(ek_clock_ns() - start) * 1e-9;
    sent += (double)bytes_sent(b);
    EK_TRY(bench_check_planner(w->pass, w->name));
    note_balance(b, w);
    events = ek_exec_events(m->exec, &n);
    ek_exec_sum(events, n, &sums);
    t[COMPUTE] = sums.compute_s;
    t[EXPERTS] = seconds_of_experts(events, n);
    t[NET] = sums.net_s;
    t[EXPOSED] = sums.exposed_s;
    EK_TRY(bench_agree(b, t, TIMES, EK_MAX_F64));
    EK_TRY(bench_agree(b, &sent, 1, EK_SUM_F64));
    w->sent = (int64_t)sent;
    for (int i = 0; i < TIMES && counts; i++)
        bench_add(&w->times[i], t[i]);
    return EK_OK;
}

static ek_status measure(const bench *b, moe *m)
{
    for (int64_t step = 0; step < b->cfg->steps + WARM_UP; step++)
        for (int i = 0; i < m->n_ways; i++)
            EK_TRY(run_step(b, m, &m->ways[i], step, step >= WARM_UP));
    return EK_OK;
}

static double median(const way *w, int time)
{
    return bench_stat_of(&w->times[time]).median;
}

static way *best(moe *m)
{
    way *found = &m->ways[0];

    for (int i = 1; i < m->n_ways; i++)
        if (median(&m->ways[i], WALL) < median(found, WALL))
            found = &m->ways[i];
    return found;
}

/* Timeline of one more step of the fastest variant, on rank 0. */
static ek_status write_timeline(const bench *b, moe *m)
{
    const ek_timeline_rank who = {.rank = b->job->rank, .ranks = m->on.ranks};
    const ek_event *events;
    int64_t n;

    if (b->cfg->timeline == NULL)
        return EK_OK;
    EK_TRY(run_step(b, m, best(m), b->cfg->steps + WARM_UP, 0));
    events = ek_exec_events(m->exec, &n);
    return b->job->rank == 0 ? ek_timeline_write(events, n, &who, b->cfg->timeline) : EK_OK;
}

/* One more step of the fastest variant, compared with predictions from a machine file. */
static ek_status predict(bench *b, moe *m)
{
    const ek_event *events;
    int64_t n;

    if (b->cfg->machine == NULL)
        return EK_OK;
    EK_TRY(run_step(b, m, best(m), b->cfg->steps + WARM_UP, 0));
    events = ek_exec_events(m->exec, &n);
    return b->job->rank == 0 ? bench_predicted(b, m->on.nodes, events, n) : EK_OK;
}

/* --- printing --------------------------------------------------------------------------------- */

static void put_way(bench *b, const moe *m, const way *w, json_t *all)
{
    static const int shown[] = {COMPUTE, EXPERTS, NET, EXPOSED};
    char text[BENCH_RANGE], count[16];
    bench_stat t = bench_stat_of(&w->times[WALL]);
    double rows = (double)(m->micro.total * b->spec.top_k * m->layers) / t.median;
    double speed = median(&m->ways[0], WALL) / t.median;
    double ceiling = fmax(median(w, COMPUTE), median(w, NET)) / t.median;
    json_t *row =
        json_pack("{s:s, s:i, s:i, s:f, s:f, s:f, s:I, s:f, s:I}", "way", w->name, "degree",
                  w->config.degree, "smart_groups", w->config.smart_group, "rows_per_s", rows,
                  "speed", speed, "ratio", ceiling, "bytes", (json_int_t)w->sent, "max_over_mean",
                  w->max_over_mean, "replicas", (json_int_t)w->replicas);

    bench_say(b, "%-13s %s %8s %7.2f", w->name, bench_range(text, t, "s", 7),
              ek_number_text(count, sizeof(count), rows), speed);
    for (size_t i = 0; i < sizeof(shown) / sizeof(shown[0]); i++)
        bench_say(b, " %8s", ek_cost_quantity(text, median(w, shown[i]), "s"));
    bench_say(b, " %8.2f %8.3f\n", ceiling, w->max_over_mean);
    for (int i = 0; i < TIMES; i++)
        if (json_object_set_new(row, time_names[i], bench_stat_json(&w->times[i], 1e3)) != 0)
            b->lost = 1;
    bench_append(b, all, row);
}

static void put(bench *b, moe *m)
{
    char sent[EK_COST_QUANTITY];
    json_t *all = json_array();

    bench_say(b,
              "%lld layers with %lld experts, %lld x %lld tokens a step, %d rank%s on %d node%s, "
              "ep %d, etp %d, tp %d; %lld steps each\n\n",
              (long long)m->layers, (long long)b->spec.experts, (long long)b->cfg->batch,
              (long long)b->cfg->seq, m->on.ranks, m->on.ranks > 1 ? "s" : "", m->on.nodes,
              m->on.nodes > 1 ? "s" : "", m->on.mesh->ep, m->on.mesh->etp, m->on.mesh->tp,
              (long long)b->cfg->steps);
    bench_say(b, "%-13s %7s (%7s .. %7s) %8s %7s %8s %8s %8s %8s %8s %8s\n", "", "step", "min",
              "max", "rows/s", "speed", "compute", "experts", "network", "exposed", "ceiling",
              "max/mean");
    for (int i = 0; i < m->n_ways; i++)
        put_way(b, m, &m->ways[i], all);
    bench_say(b,
              "\nspeed: against %s.  compute, experts' products of it, network, and network in "
              "which nothing computes: of the slowest rank.\nceiling: the longer of compute and "
              "network, of a step.\nmax/mean: rows of "
              "the busiest rank over the mean.\nbest: %s; %s sent a step by all ranks\n",
              m->ways[0].name, best(m)->name, ek_cost_quantity(sent, (double)best(m)->sent, "B"));
    bench_put(b, "ranks", json_integer(m->on.ranks));
    bench_put(b, "nodes", json_integer(m->on.nodes));
    bench_put(b, "ep", json_integer(m->on.mesh->ep));
    bench_put(b, "etp", json_integer(m->on.mesh->etp));
    bench_put(b, "tp", json_integer(m->on.mesh->tp));
    bench_put(b, "layers", json_integer(m->layers));
    bench_put(b, "batch", json_integer(b->cfg->batch));
    bench_put(b, "seq", json_integer(b->cfg->seq));
    bench_put(b, "steps", json_integer(b->cfg->steps));
    bench_put(b, "best", json_string(best(m)->name));
    bench_put(b, "ways", all);
}

ek_status bench_moe(bench *b)
{
    moe *m = calloc(1, sizeof(*m));
    ek_status st = EK_OK;

    EK_REQUIRE(m != NULL, EK_ENOMEM, "no memory for a benchmark");
    EK_TRY_OUT(moe_open(b, m));
    EK_TRY_OUT(measure(b, m));
    if (b->job->rank == 0)
        put(b, m);
    EK_TRY_OUT(predict(b, m));
    b->late = write_timeline(b, m);
out:
    moe_close(m);
    free(m);
    return st;
}
