/* Plans a trace with ek_replay, and keeps what its sampled iterations mean for each rank. */
#include "sim/loads.h"

#include "balance/costs.h"
#include "balance/plan_time.h"
#include "balance/replay.h"
#include "placement/passing.h"
#include "sim/capacity.h"
#include "sim/expert_times.h"
#include "sim/flow_cores.h"
#include "sim/plan_machine.h"
#include "sim/price_compute.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { SERVED, TRAFFIC, REPLICAS, TO_SUM, OF_SUM, KINDS };
/* Rows to experts and back; weights of transient replicas, and gradients back. */
enum { ROWS, ROWS_BACK, WEIGHTS, GRADIENTS, EXCHANGES };
/* Times of ek_sim_loads_replayed: of exchanges, the same there and back, and of expert products. */
enum { ROWS_WIRE, WEIGHTS_WIRE, SERVED_ALONE, REPLAYED };
enum { COPY_LISTS = 4 }; /* of ek_copy_results.messages */

/* What ek_sim_loads_products writes: simulations on several threads may share the loads. */
typedef struct {
    pthread_mutex_t lock;
    ek_expert_times *times; /* of products by rows */
    double *core_seconds;   /* [2][core_ranks] scratch: of work, and until it is done */
} product_times;

struct ek_sim_loads {
    ek_sim_loads_config cfg;
    ek_trace limited; /* the trace with what capacity leaves; empty: nothing is dropped or padded */
    ek_machine machine; /* the cluster's, with its links */
    ek_plan_limits limits;
    int32_t *node_of;                /* [ep] */
    int64_t steps, step;             /* samples; the chosen one */
    double *factors;                 /* [steps][trace layers][KINDS][ep] */
    float *slot_rows;                /* [steps][trace layers][ep][slots] over even rows of a rank */
    product_times *products;         /* of ek_sim_loads_products */
    ek_copy_sums *copies;            /* [steps][trace layers] */
    ek_level_rows *exchanged;        /* [steps][trace layers][EXCHANGES][ep] */
    double *replayed;                /* [steps][trace layers][REPLAYED][ep] */
    ek_level_rows *level_scratch;    /* [ep] */
    int64_t *passed;                 /* [ep][ep] scratch: from rank to rank */
    double *by_rank;                 /* [steps][trace layers][2][ep][ep] rows there and back */
    int32_t *lists;                  /* [steps][trace layers][2][experts][ep] of sums, and back */
    int32_t core_ranks;              /* ranks of the groups that share cores with one; 0: none do */
    double *rows_sent;               /* [steps][trace layers] ek_sim_loads_rows_sent */
    ek_copy_messages *copy_messages; /* [steps][trace layers][COPY_LISTS][ep] of copies, if
                                        by_level; else of one of them, and nobody's */
    int32_t *copies_passed;          /* [ep][ep] scratch of ek_copy_sums_of */
    int32_t *layer_of;               /* [model layers] of the trace; -1: a dense layer */
    ek_sim_balance balance;
    int64_t planned; /* plans of samples */
    int64_t lag;
    int64_t begin;   /* first iteration that may be a sample */
    int64_t *memory; /* scratch of ek_plan_rows_of */
    int32_t *slots;
    int32_t *order; /* [2 * ep] scratch: ek_passing_order */
};

static double *factors_at(const ek_sim_loads *l, int64_t step, int64_t layer, int kind)
{
    return l->factors + ((step * l->cfg.trace->layers + layer) * KINDS + kind) * l->cfg.ep;
}

/* --- plans ------------------------------------------------------------------------------------ */

/* The iteration of a sample. */
static int64_t iteration_of(const ek_sim_loads *l, int64_t step)
{
    return l->begin + step * (l->cfg.trace->iterations - l->begin) / l->steps;
}

/* The index of a sampled iteration; -1: it is not one. */
static int64_t sample_of(const ek_sim_loads *l, int64_t iteration)
{
    int64_t n = l->cfg.trace->iterations - l->begin;
    int64_t step = ((iteration - l->begin) * l->steps + n - 1) / n;

    return iteration >= l->begin && step < l->steps && iteration_of(l, step) == iteration ? step
                                                                                          : -1;
}

static double ratio(double a, double b)
{
    return b > 0 ? a / b : 0;
}

/* Rows that each rank would serve of a layer if the load was even and nothing dropped or padded. */
static double even_rows(const ek_sim_loads *l, int64_t iteration, int64_t layer,
                        const ek_plan_rows *rows)
{
    const ek_trace *t = l->cfg.trace;
    int64_t n = t->sources * t->experts, first = (iteration * t->layers + layer) * n, all = 0;

    for (int32_t r = 0; l->limited.own == NULL && r < l->cfg.ep; r++)
        all += rows->served[r];
    for (int64_t i = first; l->limited.own != NULL && i < first + n; i++)
        all += ek_trace_number(t, i);
    return (double)all / l->cfg.ep;
}

/* Rows of each rank as factors; mean: even_rows. */
static void set_rows(ek_sim_loads *l, int64_t step, int64_t layer, const ek_plan_rows *rows,
                     double mean)
{
    double *served = factors_at(l, step, layer, SERVED);
    double *traffic = factors_at(l, step, layer, TRAFFIC), all = 0;
    int32_t ep = l->cfg.ep;

    for (int32_t r = 0; r < ep; r++) {
        double sent = (double)rows->sent[r], got = (double)rows->got[r];

        served[r] = ratio((double)rows->served[r], mean);
        traffic[r] = ratio(sent > got ? sent : got, mean * (ep - 1) / ep);
        all += sent;
    }
    l->rows_sent[step * l->cfg.trace->layers + layer] = ratio(all, mean * (ep - 1));
}

static ek_level_rows *exchanged_at(const ek_sim_loads *l, int64_t step, int64_t layer, int which)
{
    return l->exchanged + ((step * l->cfg.trace->layers + layer) * EXCHANGES + which) * l->cfg.ep;
}

static double *replayed_at(const ek_sim_loads *l, int64_t step, int64_t layer, int which)
{
    return l->replayed + ((step * l->cfg.trace->layers + layer) * REPLAYED + which) * l->cfg.ep;
}

/* From l->passed, and back. */
static void set_exchanged(ek_sim_loads *l, int64_t step, int64_t layer, int which, double each)
{
    ek_level_group g = {.cluster = l->cfg.cluster,
                        .ep = l->cfg.ep,
                        .etp = l->cfg.etp,
                        .shards = which == ROWS ? l->cfg.etp : 1,
                        .each = each};

    if (l->cfg.by_level)
        ek_level_rows_of(&g, l->passed, exchanged_at(l, step, layer, which),
                         exchanged_at(l, step, layer, which + 1));
    else
        ek_level_wires_of(&g, l->passed, l->level_scratch,
                          replayed_at(l, step, layer, which == ROWS ? ROWS_WIRE : WEIGHTS_WIRE));
}

/* Slots of a rank for persistent copies; the others are for transient ones. */
static int32_t states_of(const ek_sim_loads *l)
{
    if (!ek_planner_fills_slots(l->cfg.planner))
        return l->limits.slots - l->cfg.spare_slots;
    return l->limits.slots - ek_planner_transient_slots(l->cfg.planner, &l->limits);
}

/* The same where some replicas are persistent: those in slots for transient ones. */
static void count_transient(const ek_sim_loads *l, const ek_placement *at, int32_t rank,
                            int32_t *gets, int32_t *gives)
{
    int32_t states = states_of(l);

    *gets = *gives = 0;
    for (int32_t s = 0; s < at->ranks * at->slots; s++) {
        int32_t e = at->expert_of[s];

        if (e < 0 || s % at->slots < states)
            continue;
        *gets += s / at->slots == rank;
        *gives += at->primary[e] / at->slots == rank;
    }
}

/* Returns the replicas of both kinds. */
static double set_replicas(ek_sim_loads *l, int64_t step, int64_t layer, const ek_placement *at)
{
    double *of = factors_at(l, step, layer, REPLICAS), all = 0;
    int fills = ek_planner_fills_slots(l->cfg.planner);
    int32_t cap = l->limits.slots - states_of(l);

    for (int32_t r = 0; r < l->cfg.ep; r++) {
        int32_t gets, gives;

        ek_plan_replicas_of(&l->limits, at, r, &gets, &gives);
        all += gets;
        if (fills)
            count_transient(l, at, r, &gets, &gives);
        of[r] = ratio(gets > gives ? gets : gives, cap);
    }
    return all;
}

/* Weights of an expert pass its transient replicas in a chain, from the primary on, in the order
 * of training. */
static void set_passed_on(ek_sim_loads *l, int64_t step, int64_t layer, const ek_placement *at)
{
    int32_t ep = l->cfg.ep, states = states_of(l), *last = l->slots; /* of each expert */

    memset(l->passed, 0, (size_t)ep * (size_t)ep * sizeof(*l->passed));
    for (int32_t e = 0; e < at->experts; e++)
        last[e] = at->primary[e] / at->slots;
    ek_passing_order(at->expert_of, at->primary, ep, at->slots, 0, l->order);
    for (int32_t i = 0; i < ep * at->slots; i++) {
        int32_t s = l->order[i / at->slots] * at->slots + i % at->slots, e = at->expert_of[s];

        if (e < 0 || s == at->primary[e] ||
            (ek_planner_fills_slots(l->cfg.planner) && s % at->slots < states))
            continue;
        l->passed[(int64_t)last[e] * ep + s / at->slots]++;
        last[e] = s / at->slots;
    }
    set_exchanged(l, step, layer, WEIGHTS, ratio(l->limits.slots - states, ep - 1));
}

static double *passed_at(const ek_sim_loads *l, int64_t step, int64_t layer, int back)
{
    int64_t n = (int64_t)l->cfg.ep * l->cfg.ep;

    return l->by_rank + ((step * l->cfg.trace->layers + layer) * 2 + back) * n;
}

/* From l->passed. */
static void set_passed(ek_sim_loads *l, int64_t step, int64_t layer, double each)
{
    int32_t ep = l->cfg.ep;

    for (int32_t i = 0; i < ep; i++)
        for (int32_t j = 0; j < ep; j++) {
            double rows = ratio((double)l->passed[(int64_t)i * ep + j], each);

            passed_at(l, step, layer, 0)[(int64_t)i * ep + j] = rows;
            passed_at(l, step, layer, 1)[(int64_t)j * ep + i] = rows;
        }
}

static void set_exchanges(ek_sim_loads *l, int64_t step, int64_t layer, const int64_t *counts,
                          const ek_plan *served, double mean)
{
    ek_plan_exchange_of(&l->limits, counts, served, l->memory, l->slots, l->passed);
    set_exchanged(l, step, layer, ROWS, mean / l->cfg.ep);
    if (l->cfg.by_rank)
        set_passed(l, step, layer, mean / l->cfg.ep);
    set_passed_on(l, step, layer, &served->placement);
}

static float *slot_rows_at(const ek_sim_loads *l, int64_t step, int64_t layer)
{
    int64_t n = (int64_t)l->cfg.ep * l->limits.slots;

    return l->slot_rows + (step * l->cfg.trace->layers + layer) * n;
}

static void set_slots(ek_sim_loads *l, int64_t step, int64_t layer, const ek_plan *p, double mean)
{
    float *rows = slot_rows_at(l, step, layer);

    for (int32_t s = 0; s < l->cfg.ep * l->limits.slots; s++)
        rows[s] = (float)ratio((double)p->quota[s], mean);
}

/* When the ranks [ep] of a group have done what takes them of_rank[ep], all begun together.
 * Groups that share cores with the first do the same as it.  core_ranks is not 0. */
static ek_status share_cores(const ek_sim_loads *l, const double *of_rank, double *done)
{
    double *of = l->products->core_seconds, *when = of + l->core_ranks;
    ek_flow_cores cores = ek_flow_cores_of(l->cfg.cluster, l->core_ranks, 0);

    for (int32_t r = 0; r < l->core_ranks; r++)
        of[r] = of_rank[r / l->cfg.etp % l->cfg.ep];
    EK_TRY(ek_flow_cores_finish(&cores, l->core_ranks, of, when));
    for (int32_t r = 0; r < l->cfg.ep; r++)
        done[r] = when[r * l->cfg.etp];
    return EK_OK;
}

static int32_t *lists_at(const ek_sim_loads *l, int64_t step, int64_t layer, int back)
{
    int64_t n = (int64_t)l->limits.experts * l->cfg.ep;

    return l->lists + ((step * l->cfg.trace->layers + layer) * 2 + back) * n;
}

static void set_copies(ek_sim_loads *l, int64_t step, int64_t layer, const ek_plan *p)
{
    ek_copy_sums_config c = {.cluster = l->cfg.cluster,
                             .etp = l->cfg.etp,
                             .states = states_of(l),
                             .all_serve = l->cfg.all_serve};
    int64_t at = step * l->cfg.trace->layers + layer;
    ek_copy_results by_rank = {.messages = l->copy_messages,
                               .to_sum = factors_at(l, step, layer, TO_SUM),
                               .of_sum = factors_at(l, step, layer, OF_SUM)};

    if (!ek_planner_fills_slots(l->cfg.planner))
        return;
    if (l->cfg.by_level)
        by_rank.messages += at * COPY_LISTS * l->cfg.ep;
    ek_copy_sums_of(&c, p, &by_rank, l->copies_passed, &l->copies[at]);
    for (int back = 0; l->cfg.by_rank && back < 2; back++)
        ek_copy_sums_lists(&c, p, !back, lists_at(l, step, layer, back));
}

static ek_status keep_plan(void *context, int64_t iteration, int64_t layer, const int64_t *counts,
                           const ek_plan *served)
{
    ek_sim_loads *l = context;
    int64_t step = sample_of(l, iteration);
    ek_plan_rows rows;
    double mean;

    if (step < 0)
        return EK_OK;
    rows = ek_plan_rows_of(&l->limits, counts, served, l->memory, l->slots);
    mean = even_rows(l, iteration, layer, &rows);
    set_rows(l, step, layer, &rows, mean);
    set_exchanges(l, step, layer, counts, served, mean);
    l->balance.replicas += set_replicas(l, step, layer, &served->placement);
    set_copies(l, step, layer, served);
    set_slots(l, step, layer, served, mean);
    l->planned++;
    if (l->core_ranks == 0)
        return EK_OK;
    return share_cores(l, factors_at(l, step, layer, SERVED),
                       replayed_at(l, step, layer, SERVED_ALONE));
}

/* What only plans need, which is ep * ep of some. */
static void free_scratch(ek_sim_loads *l)
{
    free(l->level_scratch);
    free(l->passed);
    free(l->copies_passed);
    free(l->memory);
    free(l->slots);
    free(l->order);
    l->level_scratch = NULL;
    l->passed = NULL;
    l->copies_passed = NULL;
    l->memory = NULL;
    l->slots = NULL;
    l->order = NULL;
}

/* Tokens of a rank in a micro-batch; at least one. */
static int64_t tokens_of(const ek_sim_loads_config *c)
{
    return (int64_t)fmax(1, round(c->rows / (double)c->spec->top_k));
}

static ek_status plan_trace(ek_sim_loads *l)
{
    int scales = l->limited.own == NULL && !l->cfg.counted;
    ek_replay_config cfg = {.planner = l->cfg.planner,
                            .limits = l->limits,
                            .lag = l->lag,
                            .batches = l->cfg.batches,
                            .tokens = scales ? tokens_of(&l->cfg) : 0,
                            .top_k = l->cfg.spec->top_k,
                            .each = keep_plan,
                            .context = l};
    ek_replay_result r;

    EK_TRY(ek_replay(l->limited.own != NULL ? &l->limited : l->cfg.trace, &cfg, &r));
    l->balance.before = r.before;
    l->balance.after = r.mean;
    l->balance.replicas /= (double)l->planned;
    l->balance.plan_s = r.us_median * 1e-6;
    return EK_OK;
}

/* --- opening ---------------------------------------------------------------------------------- */

/* Samples of layers whose sums of copies are kept by rank. */
static int64_t copy_lists_of(const ek_sim_loads *l)
{
    int keeps = l->cfg.by_level && ek_planner_fills_slots(l->cfg.planner);

    return keeps ? l->steps * l->cfg.trace->layers : 1;
}

/* Rows between ranks, for --engine messages. */
static ek_status allocate_by_rank(ek_sim_loads *l)
{
    size_t samples = (size_t)(l->steps * l->cfg.trace->layers), ep = (size_t)l->cfg.ep;

    if (!l->cfg.by_rank)
        return EK_OK;
    l->by_rank = calloc(2 * samples * ep * ep, sizeof(*l->by_rank));
    l->lists = calloc(2 * samples * (size_t)l->limits.experts * ep, sizeof(*l->lists));
    EK_REQUIRE(l->by_rank != NULL && l->lists != NULL, EK_ENOMEM,
               "no memory for the loads of %lld steps", (long long)l->steps);
    return EK_OK;
}

static ek_status open_products(ek_sim_loads *l)
{
    product_times *a = calloc(1, sizeof(*a));

    EK_REQUIRE(a != NULL, EK_ENOMEM, "no memory for the times of experts");
    l->products = a;
    pthread_mutex_init(&a->lock, NULL);
    a->core_seconds = calloc(2 * (size_t)l->core_ranks + 1, sizeof(*a->core_seconds));
    EK_REQUIRE(a->core_seconds != NULL, EK_ENOMEM, "no memory for the times of experts");
    return ek_expert_times_open(&l->machine, &a->times);
}

static void close_products(product_times *a)
{
    if (a == NULL)
        return;
    ek_expert_times_close(&a->times);
    free(a->core_seconds);
    pthread_mutex_destroy(&a->lock);
    free(a);
}

static ek_status allocate(ek_sim_loads *l)
{
    const ek_sim_loads_config *c = &l->cfg;
    int64_t slots = (int64_t)c->ep * l->limits.slots;

    l->node_of = calloc((size_t)c->ep, sizeof(*l->node_of));
    l->layer_of = calloc((size_t)c->spec->layers, sizeof(*l->layer_of));
    l->factors = calloc((size_t)(l->steps * c->trace->layers * KINDS * c->ep), sizeof(*l->factors));
    l->slot_rows = calloc((size_t)(l->steps * c->trace->layers * slots), sizeof(*l->slot_rows));
    l->copies = calloc((size_t)(l->steps * c->trace->layers), sizeof(*l->copies));
    l->exchanged =
        calloc(c->by_level ? (size_t)(EXCHANGES * l->steps * c->trace->layers * c->ep) : 1,
               sizeof(*l->exchanged));
    l->replayed = calloc(c->by_level ? 1 : (size_t)(REPLAYED * l->steps * c->trace->layers * c->ep),
                         sizeof(*l->replayed));
    l->level_scratch = calloc((size_t)c->ep, sizeof(*l->level_scratch));
    l->passed = calloc((size_t)c->ep * (size_t)c->ep, sizeof(*l->passed));
    l->rows_sent = calloc((size_t)(l->steps * c->trace->layers), sizeof(*l->rows_sent));
    l->copy_messages =
        calloc((size_t)(copy_lists_of(l) * COPY_LISTS * c->ep), sizeof(*l->copy_messages));
    l->copies_passed = calloc((size_t)c->ep * (size_t)c->ep, sizeof(*l->copies_passed));
    l->memory = calloc((size_t)(4 * c->ep + (c->ep + 1) * slots), sizeof(*l->memory));
    l->slots = calloc((size_t)slots, sizeof(*l->slots));
    l->order = calloc(2 * (size_t)c->ep, sizeof(*l->order));
    EK_REQUIRE(l->node_of != NULL && l->layer_of != NULL && l->factors != NULL &&
                   l->slot_rows != NULL && l->copies != NULL && l->exchanged != NULL &&
                   l->replayed != NULL && l->level_scratch != NULL && l->passed != NULL &&
                   l->rows_sent != NULL && l->copy_messages != NULL && l->copies_passed != NULL &&
                   l->memory != NULL && l->slots != NULL && l->order != NULL,
               EK_ENOMEM, "no memory for the loads of %lld steps", (long long)l->steps);
    return EK_OK;
}

void ek_sim_spread_layers(const ek_model_spec *spec, int64_t layers, int32_t *layer_of)
{
    int64_t moe = ek_model_moe_layers(spec);

    for (int64_t i = 0, n = 0; i < spec->layers; i++)
        layer_of[i] = spec->dense[i] ? -1 : (int32_t)ek_trace_layer_for(layers, n++, moe);
}

static ek_status set_costs(ek_sim_loads *l)
{
    const ek_sim_loads_config *c = &l->cfg;
    int32_t ranks = c->ep * c->etp, node = (int32_t)ek_cluster_node_ranks(c->cluster);
    ek_model_spec cut = *c->spec;
    ek_plan_setting s = {.spec = &cut,
                         .ranks = ranks,
                         .nodes = (ranks + node - 1) / node,
                         .sends_twice = c->sends_twice,
                         .rows = c->rows};

    cut.ff = (cut.ff + c->etp - 1) / c->etp; /* as ek_layer_costs has it in training */
    ek_plan_machine(c->cluster, c->dtype, ranks, s.nodes, &l->machine);
    return ek_plan_costs_of(&l->machine, &s, &l->limits.costs, NULL);
}

ek_status ek_sim_loads_check(const ek_trace *trace, int64_t experts)
{
    EK_REQUIRE(trace->experts == experts, EK_EFORMAT,
               "the trace is of %lld experts, and the model has %lld", (long long)trace->experts,
               (long long)experts);
    return EK_OK;
}

/* Of whole groups, nodes and hosts, as far as there are ranks. */
static int32_t count_core_ranks(const ek_sim_loads_config *c)
{
    int64_t group = (int64_t)c->ep * c->etp, node = ek_cluster_node_ranks(c->cluster);
    int64_t host = c->cluster->machine.ranks, n = group;

    if (c->by_level || !ek_flow_cores_are_shared(c->cluster))
        return 0;
    n = (n + node - 1) / node * node;
    n = (n + host - 1) / host * host;
    return (int32_t)(n < c->ranks ? n : c->ranks);
}

/* By how many iterations a plan is older than the counts that it serves.  With several
 * micro-batches a step, which have the same loads here, only the first would be served by a plan of
 * the iteration before: it is left out. */
static int64_t lag_of(const ek_sim_loads_config *c)
{
    int ahead = c->planner->uses_previous_counts && c->batches <= 1;

    return c->trace->iterations > 1 && (ahead || c->planner->plan_transient == NULL);
}

/* Whether the first iteration only serves to place experts, as the first step of a run does. */
static int places_from_past(const ek_sim_loads_config *c)
{
    const ek_planner *p = c->planner;

    return c->trace->iterations > 1 + c->skip && c->horizon > 0 && p->plan_persistent != NULL &&
           p->plan_transient != NULL;
}

ek_plan_limits ek_sim_loads_limits(const ek_sim_loads_config *c)
{
    int64_t experts = c->spec->experts;

    return (ek_plan_limits){.experts = (int32_t)experts,
                            .ranks = c->ep,
                            .slots = (int32_t)((experts + c->ep - 1) / c->ep) + c->spare_slots,
                            .replicas_min = c->replicas_min > 0 ? c->replicas_min : 1,
                            .keep_all_slots = c->keep_all_slots,
                            .horizon = c->horizon,
                            .batches = c->batches};
}

static ek_status open_loads(ek_sim_loads *l)
{
    const ek_sim_loads_config *c = &l->cfg;
    int64_t node = ek_cluster_node_ranks(c->cluster);

    EK_TRY(ek_sim_loads_check(c->trace, c->spec->experts));
    l->lag = lag_of(c);
    l->begin = l->lag + c->skip + places_from_past(c);
    l->steps = c->trace->iterations - l->begin;
    l->steps = c->steps < l->steps ? c->steps : l->steps;
    l->limits = ek_sim_loads_limits(c);
    l->core_ranks = count_core_ranks(c);
    EK_TRY(allocate(l));
    EK_TRY(allocate_by_rank(l));
    for (int32_t r = 0; r < c->ep; r++)
        l->node_of[r] = (int32_t)((int64_t)r * c->etp / node);
    l->limits.node_of = l->node_of;
    ek_sim_spread_layers(c->spec, c->trace->layers, l->layer_of);
    EK_TRY(set_costs(l));
    EK_TRY(open_products(l));
    if (c->capacity_factor != 0 || c->padded)
        EK_TRY(ek_sim_limit_trace(c->trace, c->capacity_factor, c->padded, &l->limited));
    EK_TRY(plan_trace(l));
    free_scratch(l);
    l->cfg.spec = NULL;
    return EK_OK;
}

ek_status ek_sim_loads_open(const ek_sim_loads_config *cfg, ek_sim_loads **out)
{
    ek_sim_loads *l = calloc(1, sizeof(*l));

    *out = l;
    EK_REQUIRE(l != NULL, EK_ENOMEM, "no memory for the loads of a trace");
    l->cfg = *cfg;
    return open_loads(l);
}

void ek_sim_loads_close(ek_sim_loads **pl)
{
    ek_sim_loads *l = *pl;

    *pl = NULL;
    if (l == NULL)
        return;
    ek_trace_close(&l->limited);
    free(l->node_of);
    free(l->layer_of);
    free(l->factors);
    free(l->slot_rows);
    close_products(l->products);
    free(l->copies);
    free(l->rows_sent);
    free(l->copy_messages);
    free(l->exchanged);
    free(l->replayed);
    free(l->by_rank);
    free(l->lists);
    free_scratch(l);
    free(l);
}

/* --- questions -------------------------------------------------------------------------------- */

int64_t ek_sim_loads_steps(const ek_sim_loads *l)
{
    return l->steps;
}

void ek_sim_loads_set(ek_sim_loads *l, int64_t step)
{
    l->step = step;
}

const ek_sim_balance *ek_sim_loads_balance(const ek_sim_loads *l)
{
    return &l->balance;
}

int32_t ek_sim_loads_slowest(const ek_sim_loads *l)
{
    const double *wire = l->cfg.by_level ? factors_at(l, l->step, 0, TRAFFIC)
                                         : replayed_at(l, l->step, 0, ROWS_WIRE);
    const double *served = factors_at(l, l->step, 0, SERVED);
    int32_t slowest = 0;

    for (int32_t r = 1; r < l->cfg.ep; r++)
        if (wire[r] > wire[slowest] || (!(wire[r] < wire[slowest]) && served[r] > served[slowest]))
            slowest = r;
    return slowest;
}

/* Which factors an op has; -1: none. */
static int kind_of(const ek_op *op)
{
    switch (op->kind) {
    case EK_OP_UNPACK:
    case EK_OP_REPACK:
    case EK_OP_EXPERT_UP:
    case EK_OP_SWIGLU:
    case EK_OP_EXPERT_DOWN:
    case EK_OP_EXPERT_DOWN_WEIGHT:
    case EK_OP_EXPERT_DOWN_INPUT:
    case EK_OP_SWIGLU_BACKWARD:
    case EK_OP_EXPERT_UP_WEIGHT:
    case EK_OP_EXPERT_UP_INPUT: return SERVED;
    case EK_OP_DISPATCH_A2A:
    case EK_OP_COMBINE_A2A:
    case EK_OP_COMBINE_A2A_BACKWARD:
    case EK_OP_DISPATCH_A2A_BACKWARD: return TRAFFIC;
    case EK_OP_REPLICAS:
    case EK_OP_PACK_REPLICAS:
    case EK_OP_CLEAR_REPLICAS: return REPLICAS;
    case EK_OP_REPLICA_GRADIENTS: return op->lane == EK_LANE_SUMS ? TO_SUM : REPLICAS;
    case EK_OP_SHARE_GRADIENTS: return OF_SUM;
    default: return -1;
    }
}

const double *ek_sim_loads_factors(const ek_sim_loads *l, const ek_op *op)
{
    int kind = op->layer >= 0 ? kind_of(op) : -1;

    if (kind < 0 || l->layer_of[op->layer] < 0)
        return NULL;
    return factors_at(l, l->step, l->layer_of[op->layer], kind);
}

/* Which exchange an op is; -1: none. */
static int exchange_of(const ek_op *op)
{
    switch (op->kind) {
    case EK_OP_DISPATCH_A2A:
    case EK_OP_COMBINE_A2A_BACKWARD: return ROWS;
    case EK_OP_COMBINE_A2A:
    case EK_OP_DISPATCH_A2A_BACKWARD: return ROWS_BACK;
    case EK_OP_REPLICAS: return WEIGHTS;
    case EK_OP_REPLICA_GRADIENTS: return op->lane == EK_LANE_SUMS ? -1 : GRADIENTS;
    default: return -1;
    }
}

const ek_level_rows *ek_sim_loads_exchange(const ek_sim_loads *l, const ek_op *op)
{
    int which = exchange_of(op);

    if (!l->cfg.by_level || op->layer < 0 || l->layer_of[op->layer] < 0 || which < 0)
        return NULL;
    return exchanged_at(l, l->step, l->layer_of[op->layer], which);
}

static int replayed_of(const ek_sim_loads *l, const ek_op *op)
{
    int kind = kind_of(op);

    if (kind == SERVED)
        return l->core_ranks > 0 ? SERVED_ALONE : -1;
    if (op->work.kind != EK_WORK_NET || op->work.net.collective == EK_COLLECTIVE_A2A_2DH)
        return -1;
    return kind == TRAFFIC ? ROWS_WIRE : kind == REPLICAS ? WEIGHTS_WIRE : -1;
}

const double *ek_sim_loads_replayed(const ek_sim_loads *l, const ek_op *op)
{
    int which = op->layer >= 0 && l->layer_of[op->layer] >= 0 ? replayed_of(l, op) : -1;

    if (l->cfg.by_level || which < 0)
        return NULL;
    return replayed_at(l, l->step, l->layer_of[op->layer], which);
}

/* --- products --------------------------------------------------------------------------------- */

/* Seconds of p by the rows of the rank's slots.  An op of some of the rank's experts (a wave) has
 * as large a part of their time. */
static double seconds_of_slots(const ek_sim_loads *l, const ek_product *p, const float *slot_rows)
{
    double part = p->groups * l->cfg.ep / l->limits.experts, seconds = 0;

    for (int32_t s = 0; s < l->limits.slots; s++)
        seconds += ek_expert_time(l->products->times, p, slot_rows[s] * p->rows / part);
    return seconds * part;
}

int ek_sim_loads_is_product(const ek_sim_loads *l, const ek_op *op)
{
    return op->layer >= 0 && l->layer_of[op->layer] >= 0 && kind_of(op) == SERVED &&
           op->work.kind == EK_WORK_PRODUCTS;
}

static ek_status find_products(const ek_sim_loads *l, const ek_op *op, double *factors,
                               double *replayed)
{
    const ek_product_work *w = &op->work.products;
    const double *served = ek_sim_loads_factors(l, op);
    const float *slot_rows = slot_rows_at(l, l->step, l->layer_of[op->layer]);
    double all = ek_price_compute(&l->machine, op), rest = all; /* rows that it moves besides */

    for (int32_t i = 0; i < w->n; i++)
        rest -= ek_price_product(&l->machine, &w->product[i]);
    for (int32_t r = 0; r < l->cfg.ep; r++) {
        double seconds = rest * served[r];

        for (int32_t i = 0; i < w->n; i++)
            seconds += seconds_of_slots(l, &w->product[i], slot_rows + r * l->limits.slots);
        factors[r] = ratio(seconds, all);
    }
    if (l->core_ranks > 0)
        return share_cores(l, factors, replayed);
    memcpy(replayed, factors, (size_t)l->cfg.ep * sizeof(*replayed));
    return EK_OK;
}

ek_status ek_sim_loads_products(const ek_sim_loads *l, const ek_op *op, double *factors,
                                double *replayed)
{
    ek_status st;

    pthread_mutex_lock(&l->products->lock);
    st = find_products(l, op, factors, replayed);
    pthread_mutex_unlock(&l->products->lock);
    return st;
}

/* Index of the op's layer in the chosen sample. */
static int64_t index_of(const ek_sim_loads *l, const ek_op *op)
{
    return l->step * l->cfg.trace->layers + l->layer_of[op->layer];
}

const ek_copy_traffic *ek_sim_loads_copies(const ek_sim_loads *l, const ek_op *op, double *gradient)
{
    int kind = op->layer >= 0 && l->layer_of[op->layer] >= 0 ? kind_of(op) : -1;

    if (kind != TO_SUM && kind != OF_SUM)
        return NULL;
    *gradient = op->work.net.bytes / l->limits.slots; /* the op has what all slots could send */
    return kind == TO_SUM ? &l->copies[index_of(l, op)].to_sum : &l->copies[index_of(l, op)].of_sum;
}

const double *ek_sim_loads_passed(const ek_sim_loads *l, const ek_op *op)
{
    int which = op->layer >= 0 && l->layer_of[op->layer] >= 0 ? exchange_of(op) : -1;

    if (!l->cfg.by_rank || (which != ROWS && which != ROWS_BACK))
        return NULL;
    return passed_at(l, l->step, l->layer_of[op->layer], which == ROWS_BACK);
}

const int32_t *ek_sim_loads_lists(const ek_sim_loads *l, const ek_op *op)
{
    double gradient;

    if (!l->cfg.by_rank || ek_sim_loads_copies(l, op, &gradient) == NULL)
        return NULL;
    return lists_at(l, l->step, l->layer_of[op->layer], kind_of(op) == OF_SUM);
}

double ek_sim_loads_rows_sent(const ek_sim_loads *l, const ek_op *op)
{
    if (op->layer < 0 || l->layer_of[op->layer] < 0 || kind_of(op) != TRAFFIC)
        return 1;
    return l->rows_sent[index_of(l, op)];
}
