/* Opens loads, and answers what a simulated step asks. */
#include "balance/costs.h"
#include "sim/capacity.h"
#include "sim/flow_cores.h"
#include "sim/loads_priv.h"
#include "sim/plan_machine.h"
#include "sim/price_compute.h"

#include <stdlib.h>
#include <string.h>

/* --- opening ---------------------------------------------------------------------------------- */

/* What only plans need, which is ep * ep of some. */
static void free_scratch(ek_sim_loads *l)
{
    free(l->level_scratch);
    free(l->passed);
    free(l->copies_passed);
    free(l->memory);
    free(l->slots);
    free(l->order);
    free(l->late);
    l->level_scratch = NULL;
    l->passed = NULL;
    l->copies_passed = NULL;
    l->memory = NULL;
    l->slots = NULL;
    l->order = NULL;
    l->late = NULL;
}

/* Samples of layers whose sums of copies are kept by rank. */
static int64_t copy_lists_of(const ek_sim_loads *l)
{
    int keeps = l->cfg.by_level && ek_planner_fills_slots(l->cfg.planner);

    return keeps ? l->n_plans * l->cfg.trace->layers : 1;
}

/* Rows between ranks, for --engine messages. */
static ek_status allocate_by_rank(ek_sim_loads *l)
{
    size_t samples = (size_t)(l->n_plans * l->cfg.trace->layers), ep = (size_t)l->cfg.ep;

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
    ek_loads_times *a = calloc(1, sizeof(*a));

    EK_REQUIRE(a != NULL, EK_ENOMEM, "no memory for the times of experts");
    l->products = a;
    pthread_mutex_init(&a->lock, NULL);
    a->core_seconds = calloc(2 * (size_t)l->core_ranks + 1, sizeof(*a->core_seconds));
    EK_REQUIRE(a->core_seconds != NULL, EK_ENOMEM, "no memory for the times of experts");
    return ek_expert_times_open(&l->machine, &a->times);
}

static void close_products(ek_loads_times *a)
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
    l->factors =
        calloc((size_t)(l->n_plans * c->trace->layers * LOAD_KINDS * c->ep), sizeof(*l->factors));
    l->slot_rows = calloc((size_t)(l->n_plans * c->trace->layers * slots), sizeof(*l->slot_rows));
    l->copies = calloc((size_t)(l->n_plans * c->trace->layers), sizeof(*l->copies));
    l->exchanged =
        calloc(c->by_level ? (size_t)(LOAD_EXCHANGES * l->n_plans * c->trace->layers * c->ep) : 1,
               sizeof(*l->exchanged));
    l->replayed =
        calloc(c->by_level ? 1 : (size_t)(LOAD_REPLAYED * l->n_plans * c->trace->layers * c->ep),
               sizeof(*l->replayed));
    l->level_scratch = calloc((size_t)c->ep, sizeof(*l->level_scratch));
    l->passed = calloc((size_t)c->ep * (size_t)c->ep, sizeof(*l->passed));
    l->rows_sent = calloc((size_t)(l->n_plans * c->trace->layers), sizeof(*l->rows_sent));
    l->copy_messages =
        calloc((size_t)(copy_lists_of(l) * LOAD_COPY_LISTS * c->ep), sizeof(*l->copy_messages));
    l->copies_passed = calloc((size_t)c->ep * (size_t)c->ep, sizeof(*l->copies_passed));
    l->memory = calloc((size_t)(4 * c->ep + (c->ep + 1) * slots), sizeof(*l->memory));
    l->slots = calloc((size_t)slots, sizeof(*l->slots));
    l->order = calloc(2 * (size_t)c->ep, sizeof(*l->order));
    l->late = calloc((size_t)slots, sizeof(*l->late));
    l->replicas = calloc((size_t)(l->steps * c->trace->layers), sizeof(*l->replicas));
    EK_REQUIRE(l->node_of != NULL && l->layer_of != NULL && l->factors != NULL &&
                   l->slot_rows != NULL && l->copies != NULL && l->exchanged != NULL &&
                   l->replayed != NULL && l->level_scratch != NULL && l->passed != NULL &&
                   l->rows_sent != NULL && l->copy_messages != NULL && l->copies_passed != NULL &&
                   l->memory != NULL && l->slots != NULL && l->order != NULL && l->late != NULL &&
                   l->replicas != NULL,
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

/* Whether replicas are planned from the micro-batch before, as far as that pays. */
static int forecasts(const ek_sim_loads_config *c)
{
    return c->planner->may_use_previous_counts && c->ep > 1;
}

/* Where the trace is long enough, the first iterations serve to plan ahead, to place experts, and,
 * with the experts so placed, to forecast replicas. */
static int64_t first_sample(const ek_sim_loads_config *c, int64_t lag, int makes_forecasts)
{
    int64_t first = lag + c->skip + places_from_past(c);

    return first + (makes_forecasts && c->trace->iterations > first + 1);
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
    l->forecasts = forecasts(c);
    l->begin = first_sample(c, l->lag, l->forecasts);
    l->steps = c->trace->iterations - l->begin;
    l->steps = c->steps < l->steps ? c->steps : l->steps;
    l->plans_each = l->forecasts && c->batches > 1 ? 2 : 1;
    l->n_plans = l->steps * l->plans_each;
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
    EK_TRY(ek_loads_plan_trace(l));
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
    free(l->replicas);
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
    int64_t plan = (l->step + 1) * l->plans_each - 1;
    const double *wire = l->cfg.by_level ? ek_loads_factors_at(l, plan, 0, LOAD_TRAFFIC)
                                         : ek_loads_replayed_at(l, plan, 0, LOAD_ROWS_WIRE);
    const double *served = ek_loads_factors_at(l, plan, 0, LOAD_SERVED);
    int32_t slowest = 0;

    for (int32_t r = 1; r < l->cfg.ep; r++)
        if (wire[r] > wire[slowest] || (!(wire[r] < wire[slowest]) && served[r] > served[slowest]))
            slowest = r;
    return slowest;
}

/* Of the chosen sample, in the op's micro-batch. */
static int64_t plan_of(const ek_sim_loads *l, const ek_op *op)
{
    return l->step * l->plans_each + (l->plans_each > 1 && op->micro != 0);
}

int ek_sim_loads_first_differs(const ek_sim_loads *l)
{
    return l->plans_each > 1;
}

/* Replicas that all serve are sent at once, whenever that is. */
static int kind_of_replicas(const ek_sim_loads *l, const ek_op *op)
{
    if (!l->forecasts)
        return op->kind == EK_OP_LATE_REPLICAS ? -1 : LOAD_REPLICAS;
    return op->kind == EK_OP_EARLY_REPLICAS  ? LOAD_EARLY
           : op->kind == EK_OP_LATE_REPLICAS ? LOAD_LATE
                                             : LOAD_REPLICAS;
}

/* Which factors an op has; -1: none. */
static int kind_of(const ek_sim_loads *l, const ek_op *op)
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
    case EK_OP_EXPERT_UP_INPUT: return LOAD_SERVED;
    case EK_OP_DISPATCH_A2A:
    case EK_OP_COMBINE_A2A:
    case EK_OP_COMBINE_A2A_BACKWARD:
    case EK_OP_DISPATCH_A2A_BACKWARD: return LOAD_TRAFFIC;
    case EK_OP_EARLY_REPLICAS:
    case EK_OP_LATE_REPLICAS:
    case EK_OP_REPLICAS: return kind_of_replicas(l, op);
    case EK_OP_PACK_REPLICAS:
    case EK_OP_CLEAR_REPLICAS: return LOAD_REPLICAS;
    case EK_OP_REPLICA_GRADIENTS: return op->lane == EK_LANE_SUMS ? LOAD_TO_SUM : LOAD_REPLICAS;
    case EK_OP_SHARE_GRADIENTS: return LOAD_OF_SUM;
    default: return -1;
    }
}

const double *ek_sim_loads_factors(const ek_sim_loads *l, const ek_op *op)
{
    int kind = op->layer >= 0 ? kind_of(l, op) : -1;

    if (kind < 0 || l->layer_of[op->layer] < 0)
        return NULL;
    return ek_loads_factors_at(l, plan_of(l, op), l->layer_of[op->layer], kind);
}

/* Replicas of which an op moves weights or gradients, a micro-batch of a sample. */
static double replicas_of(const ek_sim_loads *l, const ek_op *op, const ek_replay_replicas *n)
{
    double late = (double)(n->transient - n->ahead), all = (double)n->transient, sent = 0;

    switch (op->kind) {
    case EK_OP_REPLICAS:
    case EK_OP_REPLICA_GRADIENTS: sent = all; break;
    case EK_OP_EARLY_REPLICAS: sent = l->forecasts ? (double)(n->ahead + n->unused) : all; break;
    case EK_OP_LATE_REPLICAS: sent = l->forecasts ? late : 0; break;
    default: break;
    }
    return sent / (double)(l->cfg.batches > 0 ? l->cfg.batches : 1);
}

double ek_sim_loads_replica_bytes(const ek_sim_loads *l, const ek_op *op)
{
    double sum = 0, gradient;
    int32_t at = op->layer >= 0 ? l->layer_of[op->layer] : -1;
    const ek_copy_traffic *sums = ek_sim_loads_copies(l, op, &gradient);

    if (at < 0 || op->recompute || op->work.kind != EK_WORK_NET)
        return 0;
    for (int64_t i = 0; i < l->steps; i++)
        sum += replicas_of(l, op, &l->replicas[i * l->cfg.trace->layers + at]) / (double)l->steps;
    if (sums == NULL)
        return op->work.net.bytes * ek_loads_ratio(sum, l->limits.slots - ek_loads_states(l));
    sum = 0;
    for (int i = 0; i < EK_CLUSTER_LEVELS; i++)
        sum += sums->all.bytes[i] * gradient;
    return sum;
}

/* Which exchange an op is; -1: none. */
static int exchange_of(const ek_sim_loads *l, const ek_op *op)
{
    switch (op->kind) {
    case EK_OP_DISPATCH_A2A:
    case EK_OP_COMBINE_A2A_BACKWARD: return LOAD_ROWS;
    case EK_OP_COMBINE_A2A:
    case EK_OP_DISPATCH_A2A_BACKWARD: return LOAD_ROWS_BACK;
    case EK_OP_REPLICAS: return LOAD_WEIGHTS;
    case EK_OP_EARLY_REPLICAS: return l->forecasts ? LOAD_EARLY_WEIGHTS : LOAD_WEIGHTS;
    case EK_OP_LATE_REPLICAS: return l->forecasts ? LOAD_LATE_WEIGHTS : -1;
    case EK_OP_REPLICA_GRADIENTS: return op->lane == EK_LANE_SUMS ? -1 : LOAD_GRADIENTS;
    default: return -1;
    }
}

const ek_level_rows *ek_sim_loads_exchange(const ek_sim_loads *l, const ek_op *op)
{
    int which = exchange_of(l, op);

    if (!l->cfg.by_level || op->layer < 0 || l->layer_of[op->layer] < 0 || which < 0)
        return NULL;
    return ek_loads_exchanged_at(l, plan_of(l, op), l->layer_of[op->layer], which);
}

static int replayed_of(const ek_sim_loads *l, const ek_op *op)
{
    int kind = kind_of(l, op);

    if (kind == LOAD_SERVED)
        return l->core_ranks > 0 ? LOAD_SERVED_ALONE : -1;
    if (op->work.kind != EK_WORK_NET || op->work.net.collective == EK_COLLECTIVE_A2A_2DH)
        return -1;
    switch (kind) {
    case LOAD_TRAFFIC: return LOAD_ROWS_WIRE;
    case LOAD_REPLICAS: return LOAD_WEIGHTS_WIRE;
    case LOAD_EARLY: return LOAD_EARLY_WIRE;
    case LOAD_LATE: return LOAD_LATE_WIRE;
    default: return -1;
    }
}

const double *ek_sim_loads_replayed(const ek_sim_loads *l, const ek_op *op)
{
    int which = op->layer >= 0 && l->layer_of[op->layer] >= 0 ? replayed_of(l, op) : -1;

    if (l->cfg.by_level || which < 0)
        return NULL;
    return ek_loads_replayed_at(l, plan_of(l, op), l->layer_of[op->layer], which);
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
    return op->layer >= 0 && l->layer_of[op->layer] >= 0 && kind_of(l, op) == LOAD_SERVED &&
           op->work.kind == EK_WORK_PRODUCTS;
}

static ek_status find_products(const ek_sim_loads *l, const ek_op *op, double *factors,
                               double *replayed)
{
    const ek_product_work *w = &op->work.products;
    const double *served = ek_sim_loads_factors(l, op);
    const float *slot_rows = ek_loads_slot_rows_at(l, plan_of(l, op), l->layer_of[op->layer]);
    double all = ek_price_compute(&l->machine, op), rest = all; /* rows that it moves besides */

    for (int32_t i = 0; i < w->n; i++)
        rest -= ek_price_product(&l->machine, &w->product[i]);
    for (int32_t r = 0; r < l->cfg.ep; r++) {
        double seconds = rest * served[r];

        for (int32_t i = 0; i < w->n; i++)
            seconds += seconds_of_slots(l, &w->product[i], slot_rows + r * l->limits.slots);
        factors[r] = ek_loads_ratio(seconds, all);
    }
    if (l->core_ranks > 0)
        return ek_loads_share_cores(l, factors, replayed);
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
    return plan_of(l, op) * l->cfg.trace->layers + l->layer_of[op->layer];
}

const ek_copy_traffic *ek_sim_loads_copies(const ek_sim_loads *l, const ek_op *op, double *gradient)
{
    int kind = op->layer >= 0 && l->layer_of[op->layer] >= 0 ? kind_of(l, op) : -1;

    if (kind != LOAD_TO_SUM && kind != LOAD_OF_SUM)
        return NULL;
    *gradient = op->work.net.bytes / l->limits.slots; /* the op has what all slots could send */
    return kind == LOAD_TO_SUM ? &l->copies[index_of(l, op)].to_sum
                               : &l->copies[index_of(l, op)].of_sum;
}

const double *ek_sim_loads_passed(const ek_sim_loads *l, const ek_op *op)
{
    int which = op->layer >= 0 && l->layer_of[op->layer] >= 0 ? exchange_of(l, op) : -1;

    if (!l->cfg.by_rank || (which != LOAD_ROWS && which != LOAD_ROWS_BACK))
        return NULL;
    return ek_loads_passed_at(l, plan_of(l, op), l->layer_of[op->layer], which == LOAD_ROWS_BACK);
}

const int32_t *ek_sim_loads_lists(const ek_sim_loads *l, const ek_op *op)
{
    double gradient;

    if (!l->cfg.by_rank || ek_sim_loads_copies(l, op, &gradient) == NULL)
        return NULL;
    return ek_loads_lists_at(l, plan_of(l, op), l->layer_of[op->layer],
                             kind_of(l, op) == LOAD_OF_SUM);
}

double ek_sim_loads_rows_sent(const ek_sim_loads *l, const ek_op *op)
{
    if (op->layer < 0 || l->layer_of[op->layer] < 0 || kind_of(l, op) != LOAD_TRAFFIC)
        return 1;
    return l->rows_sent[index_of(l, op)];
}
