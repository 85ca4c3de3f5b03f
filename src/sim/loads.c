/* Plans a trace with ek_replay, and keeps what its sampled iterations mean for each rank. */
#include "sim/loads.h"

#include "balance/costs.h"
#include "balance/plan_time.h"
#include "balance/replay.h"
#include "sim/capacity.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SERVED, TRAFFIC, REPLICAS, KINDS };

struct ek_sim_loads {
    ek_sim_loads_config cfg;
    ek_trace limited; /* the trace with what capacity leaves; empty: nothing is dropped or padded */
    ek_machine machine; /* the cluster's, with its links */
    ek_plan_limits limits;
    int32_t *node_of;    /* [ep] */
    int64_t steps, step; /* samples; the chosen one */
    double *factors;     /* [steps][trace layers][KINDS][ep] */
    int32_t *layer_of;   /* [model layers] of the trace; -1: a dense layer */
    ek_sim_balance balance;
    int64_t planned; /* plans of samples */
    int64_t lag;
    int64_t *memory; /* scratch of ek_plan_rows_of */
    int32_t *slots;
};

static double *factors_at(const ek_sim_loads *l, int64_t step, int64_t layer, int kind)
{
    return l->factors + ((step * l->cfg.trace->layers + layer) * KINDS + kind) * l->cfg.ep;
}

/* --- links ------------------------------------------------------------------------------------ */

/* A level's bandwidth is that of each rank while all ranks of a node use it, so costs are those of
 * links that were measured with as many ranks a node as the group has. */
static void make_link(const ek_cluster_level *level, int32_t ranks_a_node, ek_link_cost *link)
{
    link->ranks_a_node = ranks_a_node;
    for (double bytes = 1024; bytes < 1e9; bytes *= 16) {
        ek_cost_table *t[] = {&link->message, &link->hop};

        for (int i = 0; i < 2; i++) {
            t[i]->x[t[i]->n] = bytes;
            t[i]->y[t[i]->n++] = level->latency_s + level->overhead_s + bytes / level->bytes_s;
        }
    }
}

/* What planners know of links: those inside a node, and the slowest between nodes that a group
 * uses. */
static void make_links(const ek_cluster *c, int32_t ranks, int32_t nodes, ek_machine *m)
{
    int64_t node = ek_cluster_node_ranks(c);
    int32_t a_node = (ranks + nodes - 1) / nodes;

    memset(m->link, 0, sizeof(m->link));
    if (node > 1)
        make_link(&c->level[ek_cluster_level_between(c, 0, node - 1)], a_node,
                  &m->link[EK_LINK_NODE]);
    if (ranks > node)
        make_link(&c->level[ek_cluster_level_between(c, 0, ranks - 1)], a_node,
                  &m->link[EK_LINK_NET]);
}

/* --- plans ------------------------------------------------------------------------------------ */

/* The iteration of a sample. */
static int64_t iteration_of(const ek_sim_loads *l, int64_t step)
{
    return l->lag + step * (l->cfg.trace->iterations - l->lag) / l->steps;
}

/* The index of a sampled iteration; -1: it is not one. */
static int64_t sample_of(const ek_sim_loads *l, int64_t iteration)
{
    int64_t n = l->cfg.trace->iterations - l->lag;
    int64_t step = ((iteration - l->lag) * l->steps + n - 1) / n;

    return step < l->steps && iteration_of(l, step) == iteration ? step : -1;
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
    double *traffic = factors_at(l, step, layer, TRAFFIC);
    int32_t ep = l->cfg.ep;

    for (int32_t r = 0; r < ep; r++) {
        double sent = (double)rows->sent[r], got = (double)rows->got[r];

        served[r] = ratio((double)rows->served[r], mean);
        traffic[r] = ratio(sent > got ? sent : got, mean * (ep - 1) / ep);
    }
}

static double set_replicas(ek_sim_loads *l, int64_t step, int64_t layer, const ek_placement *at)
{
    double *of = factors_at(l, step, layer, REPLICAS), all = 0;
    int32_t cap = ek_planner_fills_slots(l->cfg.planner) ? l->limits.slots : l->cfg.spare_slots;

    for (int32_t r = 0; r < l->cfg.ep; r++) {
        int32_t gets, gives;

        ek_plan_replicas_of(&l->limits, at, r, &gets, &gives);
        of[r] = ratio(gets > gives ? gets : gives, cap);
        all += gets;
    }
    return all;
}

static ek_status keep_plan(void *context, int64_t iteration, int64_t layer, const int64_t *counts,
                           const ek_plan *served)
{
    ek_sim_loads *l = context;
    int64_t step = sample_of(l, iteration);
    ek_plan_rows rows;

    if (step < 0)
        return EK_OK;
    rows = ek_plan_rows_of(&l->limits, counts, served, l->memory, l->slots);
    set_rows(l, step, layer, &rows, even_rows(l, iteration, layer, &rows));
    l->balance.replicas += set_replicas(l, step, layer, &served->placement);
    l->planned++;
    return EK_OK;
}

/* Tokens of a rank in a micro-batch; at least one. */
static int64_t tokens_of(const ek_sim_loads_config *c)
{
    return (int64_t)fmax(1, round(c->rows / (double)c->spec->top_k));
}

static ek_status plan_trace(ek_sim_loads *l)
{
    ek_replay_config cfg = {.planner = l->cfg.planner,
                            .limits = l->limits,
                            .lag = l->lag,
                            .tokens = l->limited.own != NULL ? 0 : tokens_of(&l->cfg),
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

static ek_status allocate(ek_sim_loads *l)
{
    const ek_sim_loads_config *c = &l->cfg;
    int64_t slots = (int64_t)c->ep * l->limits.slots;

    l->node_of = calloc((size_t)c->ep, sizeof(*l->node_of));
    l->layer_of = calloc((size_t)c->spec->layers, sizeof(*l->layer_of));
    l->factors = calloc((size_t)(l->steps * c->trace->layers * KINDS * c->ep), sizeof(*l->factors));
    l->memory = calloc((size_t)(4 * c->ep + (c->ep + 1) * slots), sizeof(*l->memory));
    l->slots = calloc((size_t)slots, sizeof(*l->slots));
    EK_REQUIRE(l->node_of != NULL && l->layer_of != NULL && l->factors != NULL &&
                   l->memory != NULL && l->slots != NULL,
               EK_ENOMEM, "no memory for the loads of %lld steps", (long long)l->steps);
    return EK_OK;
}

void ek_sim_spread_layers(const ek_model_spec *spec, int64_t layers, int32_t *layer_of)
{
    int64_t moe = ek_model_moe_layers(spec);

    for (int64_t i = 0, n = 0; i < spec->layers; i++)
        layer_of[i] = spec->dense[i] ? -1 : (int32_t)(n++ * layers / moe);
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

    l->machine = c->cluster->machine;
    cut.ff = (cut.ff + c->etp - 1) / c->etp; /* as ek_layer_costs has it in training */
    make_links(c->cluster, ranks, s.nodes, &l->machine);
    return ek_plan_costs_of(&l->machine, &s, &l->limits.costs, NULL);
}

static ek_status open_loads(ek_sim_loads *l)
{
    const ek_sim_loads_config *c = &l->cfg;
    int64_t node = ek_cluster_node_ranks(c->cluster), experts = c->spec->experts;

    EK_REQUIRE(c->trace->experts == experts, EK_EFORMAT,
               "the trace is of %lld experts, and the model has %lld", (long long)c->trace->experts,
               (long long)experts);
    /* without plans of the micro-batch itself, those of the iteration before hold */
    l->lag = c->planner->plan_transient == NULL && c->trace->iterations > 1;
    l->steps = c->trace->iterations - l->lag;
    l->steps = c->steps < l->steps ? c->steps : l->steps;
    l->limits = (ek_plan_limits){.experts = (int32_t)experts,
                                 .ranks = c->ep,
                                 .slots = (int32_t)((experts + c->ep - 1) / c->ep) + c->spare_slots,
                                 .replicas_min = c->replicas_min > 0 ? c->replicas_min : 1,
                                 .horizon = c->horizon,
                                 .batches = c->batches};
    EK_TRY(allocate(l));
    for (int32_t r = 0; r < c->ep; r++)
        l->node_of[r] = (int32_t)((int64_t)r * c->etp / node);
    l->limits.node_of = l->node_of;
    ek_sim_spread_layers(c->spec, c->trace->layers, l->layer_of);
    EK_TRY(set_costs(l));
    if (c->capacity_factor != 0 || c->padded)
        EK_TRY(ek_sim_limit_trace(c->trace, c->capacity_factor, c->padded, &l->limited));
    return plan_trace(l);
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
    free(l->memory);
    free(l->slots);
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
    case EK_OP_CLEAR_REPLICAS:
    case EK_OP_REPLICA_GRADIENTS:
    case EK_OP_SHARE_GRADIENTS: return REPLICAS;
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
