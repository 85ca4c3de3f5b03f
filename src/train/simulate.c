/* Prices a step's ops on a cluster, replays them, and writes timelines of what came out. */
#include "train/simulate.h"

#include "exec/exec.h"
#include "sim/dialect.h"
#include "sim/flow.h"
#include "sim/price_compute.h"
#include "train/even_loads.h"
#include "train/imagine.h"
#include "train/net_calls.h"

#include <math.h>
#include <stdlib.h>

struct ek_simulation {
    ek_cluster cluster; /* with what the dialect changes */
    ek_cluster alone;   /* flow: what a rank has without the others, which prices are of */
    ek_engine engine;
    ek_net_calls *calls; /* messages: who makes them */
    int ranks;
    int32_t recorded[EK_SIMULATION_RECORDS]; /* [n_recorded] ranks */
    int32_t n_recorded;
    ek_imagined *imagined;
    ek_dialect_graphs dialect; /* of the imagined ones; empty: these are replayed */
    const ek_sim_loads *loads; /* NULL: even, with one copy of each expert */
    ek_sim_loads *planned;     /* those of the trace; NULL: there is none */
    ek_sim_balance balance;    /* of these */
    ek_even_plans *plans;      /* of even loads, if the caller has none */
    int is_even;               /* 1: loads are those of copies under even loads */
    ek_sim_loads **of_group;   /* [2][edp] of the first and the last micro-batch, by which bytes are
                                  counted where tokens are unlike; NULL: by loads; of a group
                                  without tokens NULL */
    ek_trace *even_of_group;   /* [2][edp] of these */
    int32_t *column_of;        /* [ranks] of their factors: the rank in the expert-parallel group */
    double *slow;              /* [ranks]; NULL: none is */
    double *step_s;            /* [n_steps] */
    int64_t n_steps;
    ek_sim_result result;
};

enum { STEPS = 8 };

/* --- prices ----------------------------------------------------------------------------------- */

static int is_of_replicas(ek_collective c)
{
    return c == EK_COLLECTIVE_MULTICASTS || c == EK_COLLECTIVE_MULTIREDUCES;
}

/* What prices depend on.  loads NULL: even; is_even: loads are those of copies under even loads. */
typedef struct {
    const ek_cluster *cluster;
    const ek_sim_loads *loads;
    int is_even;
} pricing;

/* Whether no transient replicas are made. */
static int has_none(const pricing *p)
{
    return p->loads == NULL || p->is_even;
}

/* Whether an op of the compute lane works on replicas of which there are none. */
static int has_no_replicas(const pricing *p, const ek_op *op)
{
    return has_none(p) && (op->kind == EK_OP_PACK_REPLICAS || op->kind == EK_OP_CLEAR_REPLICAS);
}

/* Of sums of persistent copies; 0: nothing is sent. */
static ek_net_traffic copy_traffic(const ek_sim_loads *loads, const ek_op *op, int all)
{
    double gradient = 0;
    const ek_copy_traffic *of = loads != NULL ? ek_sim_loads_copies(loads, op, &gradient) : NULL;
    ek_net_traffic t = {0};

    for (int l = 0; l < EK_CLUSTER_LEVELS && of != NULL; l++) {
        const ek_net_traffic *x = all ? &of->all : &of->busiest;

        t.bytes[l] = x->bytes[l] * gradient;
        t.messages[l] = x->messages[l];
        t.largest[l] = x->largest[l] * gradient;
    }
    return t;
}

static int is_of_copies(const ek_op *op)
{
    return op->lane == EK_LANE_SUMS && is_of_replicas(op->work.net.collective);
}

/* Whether an op sends replicas or experts of which there are none. */
static int has_nothing_to_send(const pricing *p, const ek_op *op)
{
    ek_collective c = op->work.net.collective;

    if (!is_of_replicas(c))
        return c == EK_COLLECTIVE_TRANSFERS;
    if (is_of_copies(op) && op->work.net.bytes <= 0) /* no tokens, and so no gradients */
        return 1;
    return p->loads == NULL || ek_sim_loads_factors(p->loads, op) == NULL ||
           (!is_of_copies(op) && has_none(p));
}

enum { SAMPLES = 16 };

/* Whether all groups with this extent lie in the levels as the first one does. */
static int lies_alike(const ek_cluster *c, const ek_net_work *w)
{
    int64_t extent = (int64_t)w->group.stride * w->group.n;

    for (int32_t l = 0; l < c->n_levels; l++)
        if (c->level[l].ranks % extent != 0 && extent % c->level[l].ranks != 0)
            return 0;
    return 1;
}

static double seconds_of(const ek_net_time *t)
{
    return t->overhead_s + t->wire_s + t->latency_s;
}

/* Of a message: that of its sender; of a collective: the slowest rank's. */
static ek_net_time price_group(const ek_cluster *c, const ek_net_work *op, int32_t rank)
{
    ek_net_work w = *op;

    w.group = ek_ranks_around(rank, w.group.stride, w.group.n);
    if (w.peer < 0)
        return ek_price_net(c, &w);
    return ek_price_net_of(c, &w, rank);
}

/* The slowest of some ranks of the class; one, if its groups are alike. */
static ek_net_time price_net(const ek_cluster *c, const ek_sim_class *of, const ek_net_work *w)
{
    ek_net_time slowest = price_group(c, w, of->ranks[0]);
    int32_t n = w->peer < 0 && lies_alike(c, w) ? 1 : of->n_ranks < SAMPLES ? of->n_ranks : SAMPLES;

    for (int32_t i = 1; i < n; i++) {
        ek_net_time t = price_group(c, w, of->ranks[(int64_t)i * of->n_ranks / n]);

        if (seconds_of(&t) > seconds_of(&slowest))
            slowest = t;
    }
    return slowest;
}

/* Whether messages of a rank's group leave its node. */
static int leaves_node(const ek_cluster *c, const ek_net_work *w, int32_t rank)
{
    ek_ranks g = ek_ranks_around(rank, w->group.stride, w->group.n);
    int32_t span = w->span > 0 && w->span < g.n ? w->span : g.n;
    int32_t first = (rank - g.first) / (g.stride > 0 ? g.stride : 1) / span * span;
    int32_t last = first + span < g.n ? first + span - 1 : g.n - 1;
    int64_t node = ek_cluster_node_ranks(c);

    if (w->peer >= 0)
        return rank / node != ek_ranks_at(g, w->peer) / node;
    return ek_ranks_at(g, first) / node != ek_ranks_at(g, last) / node;
}

/* Of the level at which the ends of a rank's group meet. */
static double skew_of(const ek_cluster *c, const ek_net_work *w, int32_t rank)
{
    ek_ranks g = ek_ranks_around(rank, w->group.stride, w->group.n);
    int32_t span = w->span > 0 && w->span < g.n ? w->span : g.n;
    int32_t first = (rank - g.first) / (g.stride > 0 ? g.stride : 1) / span * span;
    int32_t last = first + span < g.n ? first + span - 1 : g.n - 1;

    return c->level[ek_cluster_level_between(c, ek_ranks_at(g, first), ek_ranks_at(g, last))]
        .arrival_skew_s;
}

/* That an op calls one after the other. */
static double count_kernels(const ek_work *w)
{
    return w->kind == EK_WORK_ROWS ? fmax(w->rows.kernels, 1) : 1;
}

static void price_with(const pricing *p, const ek_sim_class *of, const ek_op *op, ek_sim_price *out)
{
    const ek_cluster *c = p->cluster;
    ek_net_traffic copies;
    ek_net_time t;

    *out = (ek_sim_price){0};
    if (op->work.kind != EK_WORK_NET) {
        out->seconds = count_kernels(&op->work) * c->machine.op_s;
        if (!has_no_replicas(p, op))
            out->seconds += ek_price_compute(&c->machine, op);
        if (c->speed > 0)
            out->seconds /= c->speed;
        if (op->work.kind == EK_WORK_PRODUCTS || op->work.kind == EK_WORK_ATTENTION)
            out->polled = out->seconds * c->machine.polling; /* other kernels call no hook */
        return;
    }
    out->silent = op->work.net.group.n < 2 || has_nothing_to_send(p, op);
    if (out->silent)
        return;
    if (is_of_copies(op)) {
        const ek_copy_traffic *sums = ek_sim_loads_copies(p->loads, op, &out->unit);

        copies = copy_traffic(p->loads, op, 0);
        out->sent = sums != NULL ? sums->sent : NULL;
        out->got = sums != NULL ? sums->got : NULL;
        t = ek_price_traffic(c, &copies);
        out->silent = t.wire_s + t.latency_s <= 0; /* on all ranks */
    } else {
        t = price_net(c, of, &op->work.net);
    }
    out->outside = leaves_node(c, &op->work.net, of->ranks[0]) ||
                   leaves_node(c, &op->work.net, of->ranks[of->n_ranks - 1]);
    out->overhead = t.overhead_s + t.beside_s;
    out->wire = t.wire_s;
    out->latency = t.latency_s;
    if (op->work.net.peer < 0)
        out->skew = skew_of(c, &op->work.net, of->ranks[0]);
}

void ek_simulate_price(const ek_cluster *c, const ek_sim_class *of, const ek_op *op,
                       ek_sim_price *out)
{
    price_with(&(pricing){.cluster = c}, of, op, out);
}

/* The factor of a product of experts in a replay; 0: there is no memory to find it. */
static double product_factor(const ek_sim_loads *copies, int32_t n_columns, int32_t column,
                             const ek_op *op)
{
    double *of = calloc(2 * (size_t)n_columns, sizeof(*of)), factor = 0;

    if (of != NULL && ek_sim_loads_products(copies, op, of, of + n_columns) == EK_OK)
        factor = of[n_columns + column];
    free(of);
    return factor;
}

void ek_simulate_price_copies(const ek_cluster *c, const ek_sim_loads *copies, int32_t n_columns,
                              int32_t column, const ek_sim_class *of, const ek_op *op,
                              ek_sim_price *out)
{
    const double *f = ek_sim_loads_factors(copies, op), *r = ek_sim_loads_replayed(copies, op);

    price_with(&(pricing){.cluster = c, .loads = copies, .is_even = 1}, of, op, out);
    if (f == NULL)
        return;
    if (op->work.kind == EK_WORK_NET && f[column] <= 0) { /* it may wait for others, or nobody */
        *out = (ek_sim_price){.silent = 1};
        return;
    }
    if (ek_sim_loads_is_product(copies, op)) {
        double factor = product_factor(copies, n_columns, column, op);

        out->seconds *= factor;
        out->polled *= factor;
        return;
    }
    r = r != NULL ? r : f;
    out->seconds *= r[column];
    out->polled *= r[column];
    out->wire *= r[column];
    out->overhead *= f[column];
}

static void price_op(const void *context, const ek_sim_class *of, const ek_op *op,
                     ek_sim_price *out)
{
    const ek_simulation *s = context;

    price_with(&(pricing){.cluster = s->engine == EK_ENGINE_FLOW ? &s->alone : &s->cluster,
                          .loads = s->loads,
                          .is_even = s->is_even},
               of, op, out);
}

/* Factors on the seconds of each rank's ops; NULL if no rank of these is slow. */
static ek_status list_slow(const ek_cluster *c, int ranks, double **slow)
{
    for (int32_t i = 0; i < c->n_slow; i++) {
        if (c->slow[i] >= ranks)
            continue;
        if (*slow == NULL)
            *slow = calloc((size_t)ranks, sizeof(**slow));
        EK_REQUIRE(*slow != NULL, EK_ENOMEM, "no memory for %d ranks", ranks);
        (*slow)[c->slow[i]] = 1 / c->slow_factor;
    }
    for (int r = 0; *slow != NULL && r < ranks; r++)
        (*slow)[r] = (*slow)[r] > 0 ? (*slow)[r] : 1;
    return EK_OK;
}

static const double *factors_of(const void *loads, const ek_op *op)
{
    return ek_sim_loads_factors(loads, op);
}

static const double *replayed_of(const void *loads, const ek_op *op)
{
    return ek_sim_loads_replayed(loads, op);
}

static int is_product(const void *loads, const ek_op *op)
{
    return ek_sim_loads_is_product(loads, op);
}

static ek_status products_of(const void *loads, const ek_op *op, double *factors, double *replayed)
{
    return ek_sim_loads_products(loads, op, factors, replayed);
}

static const ek_level_rows *exchange_of(const void *loads, const ek_op *op)
{
    return ek_sim_loads_exchange(loads, op);
}

/* --- files ------------------------------------------------------------------------------------ */

ek_status ek_simulation_open_files(const char *cluster, const char *trace,
                                   ek_simulation_files **out)
{
    ek_simulation_files *f = calloc(1, sizeof(*f));

    *out = f;
    EK_REQUIRE(f != NULL, EK_ENOMEM, "no memory for a cluster");
    EK_TRY(ek_cluster_read(cluster, &f->cluster));
    if (trace == NULL)
        return EK_OK;
    EK_TRY(ek_trace_open(trace, &f->loads));
    f->trace = &f->loads;
    return EK_OK;
}

void ek_simulation_close_files(ek_simulation_files **f)
{
    if (*f == NULL)
        return;
    ek_trace_close(&(*f)->loads);
    free(*f);
    *f = NULL;
}

/* --- steps ------------------------------------------------------------------------------------ */

/* Loads by the run's planner, with what the engine asks. */
static ek_status plan_loads(const ek_simulation *s, ek_sim_loads_config c, ek_sim_loads **out)
{
    c.by_level = s->engine == EK_ENGINE_FLOW;
    c.by_rank = s->engine == EK_ENGINE_MESSAGES;
    return ek_sim_loads_open(&c, out);
}

/* The columns of factors. */
static ek_status number_columns(ek_simulation *s)
{
    const ek_sim_layout *l = ek_imagined_layout(s->imagined);

    s->column_of = calloc((size_t)s->ranks, sizeof(*s->column_of));
    EK_REQUIRE(s->column_of != NULL, EK_ENOMEM, "no memory for %d ranks", s->ranks);
    for (int r = 0; r < s->ranks; r++)
        s->column_of[r] = r % (s->ranks / l->pp) / l->etp % l->ep;
    return EK_OK;
}

const ek_sim_graphs *ek_simulation_graphs(const ek_simulation *s)
{
    return s->dialect.copies != NULL ? &s->dialect.graphs : ek_imagined_graphs(s->imagined);
}

/* Of all expert-parallel groups, by the graphs of the first ranks of stages. */
static void count_replicas(ek_simulation *s)
{
    const ek_sim_graphs *g = ek_simulation_graphs(s);
    const ek_sim_layout *l = ek_imagined_layout(s->imagined);

    s->balance = *ek_sim_loads_balance(s->planned);
    s->balance.step_replicas *= l->edp;
    s->balance.step_ahead *= l->edp;
    for (int32_t k = 0; k < g->n_classes; k++)
        for (int32_t i = 0; i < g->classes[k].graph->n_ops; i++)
            if (g->classes[k].ranks[0] % (s->ranks / l->pp) == 0)
                s->balance.step_bytes +=
                    l->edp * l->etp *
                    ek_sim_loads_replica_bytes(s->planned, ek_graph_op(g->classes[k].graph, i));
}

/* Of the trace. */
static ek_status open_loads(ek_simulation *s, const ek_simulation_config *cfg)
{
    ek_sim_loads_config c =
        ek_loads_config_of(ek_imagined_layout(s->imagined), cfg->cluster, s->ranks);

    c.trace = cfg->trace;
    c.steps = cfg->steps > 0 ? cfg->steps : STEPS;
    c.capacity_factor = cfg->train->capacity_factor;
    c.padded = (cfg->dialect & EK_DIALECT_PADDED) != 0;
    EK_TRY(plan_loads(s, c, &s->planned));
    s->loads = s->planned;
    s->n_steps = ek_sim_loads_steps(s->loads);
    count_replicas(s);
    return number_columns(s);
}

/* Where ranks have unlike numbers of tokens: the loads of each group that has some, in the first
 * and the last micro-batch, for what it sends. */
static ek_status open_group_loads(ek_simulation *s, const ek_simulation_config *cfg)
{
    const ek_sim_layout *l = ek_imagined_layout(s->imagined);
    ek_sim_loads_config c = ek_even_loads_config_of(l, cfg->cluster, s->ranks);

    if (!cfg->every_rank || !ek_even_loads_differ(l))
        return EK_OK;
    c.counted = 1;
    s->of_group = calloc(2 * (size_t)l->edp, sizeof(*s->of_group));
    s->even_of_group = calloc(2 * (size_t)l->edp, sizeof(*s->even_of_group));
    EK_REQUIRE(s->of_group != NULL && s->even_of_group != NULL, EK_ENOMEM,
               "no memory for the loads of %d groups", l->edp);
    for (int i = 0; i < 2 * l->edp; i++) {
        int64_t seqs = i < l->edp ? l->micro_batch : ek_even_loads_rest(l);

        if (ek_even_loads_tokens(l, seqs, i % l->edp) == 0)
            continue;
        EK_TRY(ek_even_loads_of_group(l, seqs, i % l->edp, &s->even_of_group[i]));
        c.trace = &s->even_of_group[i];
        EK_TRY(plan_loads(s, c, &s->of_group[i]));
    }
    return EK_OK;
}

static void close_group_loads(ek_simulation *s)
{
    const ek_sim_layout *l = s->imagined != NULL ? ek_imagined_layout(s->imagined) : NULL;

    for (int g = 0; s->of_group != NULL && s->even_of_group != NULL && g < 2 * l->edp; g++) {
        ek_sim_loads_close(&s->of_group[g]);
        ek_trace_close(&s->even_of_group[g]);
    }
    free(s->of_group);
    free(s->even_of_group);
    s->of_group = NULL;
    s->even_of_group = NULL;
}

static void close_loads(ek_simulation *s)
{
    close_group_loads(s);
    ek_sim_loads_close(&s->planned);
    ek_even_plans_close(&s->plans);
    free(s->column_of);
    s->column_of = NULL;
}

/* Even loads, where the policy plans several copies of experts for them. */
static ek_status open_copies(ek_simulation *s, const ek_simulation_config *cfg)
{
    const ek_sim_layout *l = ek_imagined_layout(s->imagined);

    if (cfg->plans == NULL)
        EK_TRY(ek_even_plans_open(&s->plans));
    EK_TRY(ek_even_plans_of(cfg->plans != NULL ? cfg->plans : s->plans, l, cfg->cluster, s->ranks,
                            s->engine == EK_ENGINE_FLOW, s->engine == EK_ENGINE_MESSAGES,
                            &s->loads));
    if (s->loads == NULL)
        return EK_OK;
    s->is_even = 1;
    EK_TRY(number_columns(s));
    if (s->calls != NULL)
        ek_net_calls_set_loads(s->calls, s->loads, (int)l->spec.experts, l->ep, l->etp);
    return open_group_loads(s, cfg);
}

static ek_status run_engine(const ek_simulation *s, const ek_sim_config *sim, ek_sim_result *r)
{
    ek_sim_calls calls;

    switch (s->engine) {
    case EK_ENGINE_FLOW: return ek_sim_flow(sim, &s->cluster, r);
    case EK_ENGINE_MESSAGES:
        calls = ek_net_calls_for_sim(s->calls);
        return ek_sim_messages(sim, &s->cluster, &calls, r);
    default: return ek_sim_replay(sim, r);
    }
}

/* Simulates a step; adds its share to the mean. */
static ek_status add_step(ek_simulation *s, int64_t step)
{
    int last = step == s->n_steps - 1;
    ek_sim_config sim = {.graphs = ek_simulation_graphs(s),
                         .price = price_op,
                         .context = s,
                         .slow = s->slow,
                         .recorded = s->recorded,
                         .n_recorded = last ? s->n_recorded : 0};
    ek_sim_result r;
    ek_status st;

    if (s->loads != NULL) {
        if (s->planned != NULL)
            ek_sim_loads_set(s->planned, step);
        sim.factors = factors_of;
        sim.exchange = exchange_of;
        sim.replayed = replayed_of;
        sim.is_product = is_product;
        sim.products = products_of;
        sim.loads = s->loads;
        sim.first_differs = ek_sim_loads_first_differs(s->loads);
        sim.column_of = s->column_of;
        sim.n_columns = ek_imagined_layout(s->imagined)->ep;
    }
    st = run_engine(s, &sim, &r);
    if (st == EK_OK) {
        s->step_s[step] = r.step_s;
        st = ek_sim_add(&s->result, &r, 1.0 / (double)s->n_steps);
    }
    ek_sim_free(&r);
    return st;
}

/* The rank that is asked for, and the first ones of some classes. */
static void choose_recorded(ek_simulation *s, const ek_simulation_config *cfg)
{
    const ek_sim_graphs *g = ek_simulation_graphs(s);
    int32_t n = cfg->n_strips < g->n_classes ? cfg->n_strips : g->n_classes;

    if (cfg->timeline)
        s->recorded[s->n_recorded++] = cfg->timeline_rank;
    for (int32_t i = 0; i < n && s->n_recorded < EK_SIMULATION_RECORDS; i++)
        s->recorded[s->n_recorded++] =
            g->classes[n > 1 ? (int64_t)i * (g->n_classes - 1) / (n - 1) : 0].ranks[0];
}

static ek_status open_calls(ek_simulation *s, const ek_simulation_config *cfg, const int *node_of)
{
    EK_REQUIRE(cfg->ranks <= EK_MESSAGES_RANKS, EK_EUNSUPPORTED,
               "--engine messages simulates up to %d ranks, not %d: use flow", EK_MESSAGES_RANKS,
               cfg->ranks);
    EK_REQUIRE(cfg->trace == NULL, EK_EUNSUPPORTED,
               "--engine messages simulates even loads: use flow with --trace");
    EK_REQUIRE((cfg->dialect & EK_DIALECT_RING_STEPS) == 0, EK_EUNSUPPORTED,
               "--engine messages sends what evenkeel does: use flow with --dialect ring-steps");
    EK_REQUIRE((cfg->dialect & EK_DIALECT_TREE_SUMS) == 0, EK_EUNSUPPORTED,
               "--engine messages sends what evenkeel does: use flow with --dialect tree-sums");
    EK_REQUIRE((cfg->dialect & EK_DIALECT_STAGED_2DH) == 0, EK_EUNSUPPORTED,
               "--engine messages sends what evenkeel does: use flow with --dialect staged-2dh");
    return ek_net_calls_open(cfg->ranks, node_of, &s->calls);
}

int ek_simulates_even_loads_only(const ek_simulation_config *cfg)
{
    return ((cfg->dialect & EK_DIALECT_ETP_GATHER) != 0 && cfg->train->etp > 1) ||
           (cfg->dialect & EK_DIALECT_NODE_ONCE) != 0;
}

static ek_status translate_graphs(ek_simulation *s, const ek_simulation_config *cfg)
{
    const ek_sim_layout *of = ek_imagined_layout(s->imagined);
    ek_dialect_layout l = {.ep = of->ep,
                           .etp = of->etp,
                           .experts = of->spec.experts,
                           .top_k = of->spec.top_k,
                           .groups = of->spec.gate.groups,
                           .group_top = of->spec.gate.group_top,
                           .node_ranks = (int32_t)ek_cluster_node_ranks(cfg->cluster)};

    return ek_dialect_open(cfg->dialect, &s->cluster.machine, &l, ek_imagined_graphs(s->imagined),
                           &s->dialect);
}

static ek_status simulate(ek_simulation *s, const ek_simulation_config *cfg, const int *node_of)
{
    ek_train_config train = *cfg->train;

    if (train.memory_limit == 0) /* of copies */
        train.memory_limit = (int64_t)cfg->cluster->memory;
    EK_REQUIRE(cfg->ranks <= ek_cluster_ranks(cfg->cluster), EK_EINVAL,
               "--ranks %d: cluster %s has %lld (`ranks` of its last level)", cfg->ranks,
               cfg->cluster->name, (long long)ek_cluster_ranks(cfg->cluster));
    EK_REQUIRE(!cfg->timeline || (cfg->timeline_rank >= 0 && cfg->timeline_rank < cfg->ranks),
               EK_EINVAL, "--timeline-rank %d: there are ranks 0 to %d", cfg->timeline_rank,
               cfg->ranks - 1);
    if (s->engine == EK_ENGINE_MESSAGES)
        EK_TRY(open_calls(s, cfg, node_of));
    EK_REQUIRE((cfg->dialect & EK_DIALECT_PADDED) == 0 || cfg->trace != NULL, EK_EINVAL,
               "--dialect padded: fills up loads of --trace, which is not given");
    EK_REQUIRE(cfg->trace == NULL || !ek_simulates_even_loads_only(cfg), EK_EINVAL,
               "--dialect %s simulates even loads only: leave out --trace",
               (cfg->dialect & EK_DIALECT_NODE_ONCE) != 0 ? "node-once" : "etp-gather");
    EK_TRY(list_slow(cfg->cluster, cfg->ranks, &s->slow));
    EK_TRY(ek_imagine(&train, &(ek_imagined_world){cfg->ranks, node_of, cfg->cluster, cfg->host_of},
                      cfg->every_rank, &s->imagined));
    EK_REQUIRE(s->engine != EK_ENGINE_MESSAGES || !ek_imagined_layout(s->imagined)->rank_copies,
               EK_EUNSUPPORTED,
               "--engine messages does not simulate the copies that --elastic keeps of ranks whose "
               "weights one host alone has: use another engine");
    choose_recorded(s, cfg);
    if (cfg->dialect != 0)
        EK_TRY(translate_graphs(s, cfg));
    if (cfg->trace != NULL)
        EK_TRY(open_loads(s, cfg));
    else
        EK_TRY(open_copies(s, cfg));
    s->step_s = calloc((size_t)s->n_steps, sizeof(*s->step_s));
    EK_REQUIRE(s->step_s != NULL, EK_ENOMEM, "no memory for %lld steps", (long long)s->n_steps);
    for (int64_t i = 0; i < s->n_steps; i++)
        EK_TRY(add_step(s, i));
    return EK_OK;
}

ek_status ek_simulate(const ek_simulation_config *cfg, ek_simulation **out)
{
    ek_simulation *s = calloc(1, sizeof(*s));
    int *node_of = NULL;
    ek_status st;

    *out = s;
    EK_REQUIRE(s != NULL, EK_ENOMEM, "no memory for a simulation");
    s->cluster = *cfg->cluster;
    s->cluster.ring_steps = (cfg->dialect & EK_DIALECT_RING_STEPS) != 0;
    s->cluster.tree_sums = (cfg->dialect & EK_DIALECT_TREE_SUMS) != 0;
    s->cluster.staged_2dh = (cfg->dialect & EK_DIALECT_STAGED_2DH) != 0;
    s->ranks = cfg->ranks;
    s->engine = cfg->engine;
    if (s->engine == EK_ENGINE_FLOW)
        s->alone = ek_cluster_alone(&s->cluster);
    s->n_steps = 1;
    st = ek_cluster_nodes(cfg->cluster, cfg->ranks, &node_of);
    if (st == EK_OK)
        st = simulate(s, cfg, node_of);
    free(node_of);
    return st;
}

void ek_simulation_close(ek_simulation **s)
{
    if (*s == NULL)
        return;
    ek_sim_free(&(*s)->result);
    ek_net_calls_close(&(*s)->calls);
    close_loads(*s); /* before the layout that it asks */
    ek_dialect_close(&(*s)->dialect);
    ek_imagined_close(&(*s)->imagined);
    free((*s)->slow);
    free((*s)->step_s);
    free(*s);
    *s = NULL;
}

const ek_sim_layout *ek_simulation_layout(const ek_simulation *s)
{
    return ek_imagined_layout(s->imagined);
}

const ek_sim_result *ek_simulation_result(const ek_simulation *s)
{
    return &s->result;
}

/* --- traffic ---------------------------------------------------------------------------------- */

static void add_share(const ek_net_traffic *t, double share, ek_net_traffic *sum)
{
    for (int l = 0; l < EK_CLUSTER_LEVELS; l++) {
        sum->bytes[l] += share * t->bytes[l];
        sum->messages[l] += share * t->messages[l];
    }
}

/* The loads of a rank's expert-parallel group in a micro-batch; sums of copies follow the first. */
static const ek_sim_loads *loads_of(const ek_simulation *s, int32_t rank, const ek_op *op,
                                    int32_t micro)
{
    const ek_sim_layout *l = ek_imagined_layout(s->imagined);
    int last = micro == l->micros - 1 && op->lane != EK_LANE_SUMS;
    const ek_sim_loads *of = NULL;

    if (s->of_group != NULL)
        of = s->of_group[last * l->edp + rank % (s->ranks / l->pp) / (l->ep * l->etp)];
    return of != NULL ? of : s->loads;
}

/* Adds what a rank of a class sends, `share` times. */
static void add_traffic(const ek_simulation *s, const ek_sim_class *c, int32_t rank, double share,
                        ek_net_traffic *sum)
{
    for (int32_t i = 0; i < c->graph->n_ops; i++) {
        const ek_op *op = ek_graph_op(c->graph, i);
        const ek_sim_loads *loads = loads_of(s, rank, op, ek_graph_micro(c->graph, i));
        ek_net_work w = op->work.net;

        if (op->work.kind != EK_WORK_NET || w.collective == EK_COLLECTIVE_RECEIVE ||
            w.collective == EK_COLLECTIVE_TRANSFERS)
            continue;
        if (is_of_replicas(w.collective)) { /* of the group's ranks, the mean */
            ek_net_traffic t = copy_traffic(loads, op, 1);

            add_share(&t, share / ek_imagined_layout(s->imagined)->ep, sum);
        } else {
            double rows = 1;
            ek_net_traffic t;

            if (s->is_even)
                rows = ek_sim_loads_rows_sent(loads, op);
            w.group = ek_ranks_around(rank, w.group.stride, w.group.n);
            t = ek_net_traffic_of(&s->cluster, &w, rank);
            add_share(&t, share * rows, sum);
        }
    }
}

ek_net_traffic ek_simulation_traffic(const ek_simulation *s)
{
    const ek_sim_graphs *g = ek_simulation_graphs(s);
    ek_net_traffic sum = {0};
    int all = g->ranks <= 256;

    for (int32_t k = 0; k < g->n_classes; k++) {
        const ek_sim_class *c = &g->classes[k];

        for (int32_t i = 0; i < (all ? c->n_ranks : 1); i++)
            add_traffic(s, c, c->ranks[i], (all ? 1.0 : c->n_ranks) / g->ranks, &sum);
    }
    return sum;
}

const ek_sim_balance *ek_simulation_balance(const ek_simulation *s)
{
    return s->planned != NULL ? &s->balance : NULL;
}

const double *ek_simulation_steps(const ek_simulation *s, int64_t *n)
{
    *n = s->n_steps;
    return s->step_s;
}

/* --- timelines -------------------------------------------------------------------------------- */

enum { TRACKS = 64 };

/* The first track of a lane on which nothing is in flight at `start`. */
static int32_t take_track(int64_t *free_at, int64_t start, int64_t end)
{
    int32_t track = 0;

    while (track < TRACKS - 1 && free_at[track] > start)
        track++;
    free_at[track] = end;
    return track;
}

/* At most a century. */
static int64_t nanoseconds(double seconds)
{
    return (int64_t)(fmin(seconds, 3e9) * 1e9);
}

ek_status ek_simulation_write_timeline(const ek_simulation *s, const char *path)
{
    const ek_sim_record *r = &s->result.records[0];
    int64_t free_at[EK_LANE_COUNT][TRACKS] = {{0}}, step_ns = 0;
    ek_timeline_rank who = {.rank = r->rank, .ranks = s->ranks, .step_ns = &step_ns, .n_steps = 1};
    ek_event *events = calloc((size_t)r->n + 1, sizeof(*events));
    ek_status st;

    EK_REQUIRE(events != NULL, EK_ENOMEM, "no memory for a timeline");
    for (int32_t i = 0; i < r->n; i++) {
        const ek_op *op = ek_graph_op(r->graph, i);
        int64_t start = nanoseconds(r->spans[i].start), end = nanoseconds(r->spans[i].end);

        events[i] = (ek_event){op->kind,
                               op->lane,
                               op->layer,
                               ek_graph_micro(r->graph, i),
                               op->part,
                               op->recompute,
                               start,
                               end,
                               op->flops,
                               op->bytes,
                               take_track(free_at[op->lane], start, end),
                               op->work};
    }
    st = ek_timeline_write(events, r->n, &who, path);
    free(events);
    return st;
}
