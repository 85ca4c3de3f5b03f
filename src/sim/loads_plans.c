/* Plans a trace with ek_replay, and keeps what its sampled iterations mean for each rank. */
#include "balance/plan_time.h"
#include "placement/passing.h"
#include "sim/flow_cores.h"
#include "sim/loads_priv.h"

#include <math.h>
#include <string.h>

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
static void set_rows(ek_sim_loads *l, int64_t plan, int64_t layer, const ek_plan_rows *rows,
                     double mean)
{
    double *served = ek_loads_factors_at(l, plan, layer, LOAD_SERVED);
    double *traffic = ek_loads_factors_at(l, plan, layer, LOAD_TRAFFIC), all = 0;
    int32_t ep = l->cfg.ep;

    for (int32_t r = 0; r < ep; r++) {
        double sent = (double)rows->sent[r], got = (double)rows->got[r];

        served[r] = ek_loads_ratio((double)rows->served[r], mean);
        traffic[r] = ek_loads_ratio(sent > got ? sent : got, mean * (ep - 1) / ep);
        all += sent;
    }
    l->rows_sent[plan * l->cfg.trace->layers + layer] = ek_loads_ratio(all, mean * (ep - 1));
}

/* Where the times of an exchange are kept. */
static int wire_of(int which)
{
    switch (which) {
    case LOAD_ROWS: return LOAD_ROWS_WIRE;
    case LOAD_EARLY_WEIGHTS: return LOAD_EARLY_WIRE;
    case LOAD_LATE_WEIGHTS: return LOAD_LATE_WIRE;
    default: return LOAD_WEIGHTS_WIRE;
    }
}

/* From l->passed, and back, if anything comes back. */
static void set_exchanged(ek_sim_loads *l, int64_t plan, int64_t layer, int which, double each)
{
    int comes_back = which == LOAD_ROWS || which == LOAD_WEIGHTS;
    ek_level_group g = {.cluster = l->cfg.cluster,
                        .ep = l->cfg.ep,
                        .etp = l->cfg.etp,
                        .shards = which == LOAD_ROWS ? l->cfg.etp : 1,
                        .each = each};

    if (l->cfg.by_level)
        ek_level_rows_of(&g, l->passed, ek_loads_exchanged_at(l, plan, layer, which),
                         comes_back ? ek_loads_exchanged_at(l, plan, layer, which + 1)
                                    : l->level_scratch);
    else
        ek_level_wires_of(&g, l->passed, l->level_scratch,
                          ek_loads_replayed_at(l, plan, layer, wire_of(which)));
}

int32_t ek_loads_states(const ek_sim_loads *l)
{
    if (!ek_planner_fills_slots(l->cfg.planner))
        return l->limits.slots - l->cfg.spare_slots;
    return l->limits.slots - ek_planner_transient_slots(l->cfg.planner, &l->limits);
}

/* The same where some replicas are persistent: those in slots for transient ones. */
static void count_transient(const ek_sim_loads *l, const ek_placement *at, int32_t rank,
                            int32_t *gets, int32_t *gives)
{
    int32_t states = ek_loads_states(l);

    *gets = *gives = 0;
    for (int32_t s = 0; s < at->ranks * at->slots; s++) {
        int32_t e = at->expert_of[s];

        if (e < 0 || s % at->slots < states)
            continue;
        *gets += s / at->slots == rank;
        *gives += at->primary[e] / at->slots == rank;
    }
}

/* Factors of a kind of replicas. */
static void set_factors(ek_sim_loads *l, int64_t plan, int64_t layer, int kind,
                        const ek_placement *at)
{
    double *of = ek_loads_factors_at(l, plan, layer, kind);
    int fills = ek_planner_fills_slots(l->cfg.planner);
    int32_t cap = l->limits.slots - ek_loads_states(l);

    for (int32_t r = 0; r < l->cfg.ep; r++) {
        int32_t gets, gives;

        if (fills)
            count_transient(l, at, r, &gets, &gives);
        else
            ek_plan_replicas_of(&l->limits, at, r, &gets, &gives);
        of[r] = ek_loads_ratio(gets > gives ? gets : gives, cap);
    }
}

/* Weights of an expert pass its transient replicas in a chain, from the primary on, in the order
 * of training. */
static void set_passed_on(ek_sim_loads *l, int64_t plan, int64_t layer, int which,
                          const ek_placement *at)
{
    int32_t ep = l->cfg.ep, states = ek_loads_states(l), *last = l->slots; /* of each expert */

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
    set_exchanged(l, plan, layer, which, ek_loads_ratio(l->limits.slots - states, ep - 1));
}

/* A placement without those of its replicas that another one has in the same slots, or without all.
 */
static ek_placement without(ek_sim_loads *l, const ek_placement *at, const ek_placement *other)
{
    ek_placement rest = *at;

    rest.expert_of = l->late;
    for (int32_t s = 0; s < at->ranks * at->slots; s++) {
        int goes = other == NULL || other->expert_of[s] == at->expert_of[s];

        l->late[s] = ek_plan_is_replica(at, s) && goes ? -1 : at->expert_of[s];
    }
    return rest;
}

/* Replicas that serve, and when they are sent. */
static void set_replicas(ek_sim_loads *l, int64_t plan, int64_t layer, const ek_placement *at,
                         const ek_placement *sent)
{
    ek_placement rest;

    set_factors(l, plan, layer, LOAD_REPLICAS, at);
    set_passed_on(l, plan, layer, LOAD_WEIGHTS, at);
    if (!l->forecasts)
        return;
    rest = sent != NULL ? *sent : without(l, at, NULL);
    set_factors(l, plan, layer, LOAD_EARLY, &rest);
    set_passed_on(l, plan, layer, LOAD_EARLY_WEIGHTS, &rest);
    rest = sent != NULL ? without(l, at, sent) : *at;
    set_factors(l, plan, layer, LOAD_LATE, &rest);
    set_passed_on(l, plan, layer, LOAD_LATE_WEIGHTS, &rest);
}

/* From l->passed. */
static void set_passed(ek_sim_loads *l, int64_t plan, int64_t layer, double each)
{
    int32_t ep = l->cfg.ep;

    for (int32_t i = 0; i < ep; i++)
        for (int32_t j = 0; j < ep; j++) {
            double rows = ek_loads_ratio((double)l->passed[(int64_t)i * ep + j], each);

            ek_loads_passed_at(l, plan, layer, 0)[(int64_t)i * ep + j] = rows;
            ek_loads_passed_at(l, plan, layer, 1)[(int64_t)j * ep + i] = rows;
        }
}

static void set_exchanges(ek_sim_loads *l, int64_t plan, int64_t layer, const int64_t *counts,
                          const ek_plan *served, double mean)
{
    ek_plan_exchange_of(&l->limits, counts, served, l->memory, l->slots, l->passed);
    set_exchanged(l, plan, layer, LOAD_ROWS, mean / l->cfg.ep);
    if (l->cfg.by_rank)
        set_passed(l, plan, layer, mean / l->cfg.ep);
}

static void set_slots(ek_sim_loads *l, int64_t plan, int64_t layer, const ek_plan *p, double mean)
{
    float *rows = ek_loads_slot_rows_at(l, plan, layer);

    for (int32_t s = 0; s < l->cfg.ep * l->limits.slots; s++)
        rows[s] = (float)ek_loads_ratio((double)p->quota[s], mean);
}

ek_status ek_loads_share_cores(const ek_sim_loads *l, const double *of_rank, double *done)
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

static void set_copies(ek_sim_loads *l, int64_t plan, int64_t layer, const ek_plan *p)
{
    ek_copy_sums_config c = {.cluster = l->cfg.cluster,
                             .etp = l->cfg.etp,
                             .states = ek_loads_states(l),
                             .all_serve = l->cfg.all_serve};
    int64_t at = plan * l->cfg.trace->layers + layer;
    ek_copy_results by_rank = {.messages = l->copy_messages,
                               .to_sum = ek_loads_factors_at(l, plan, layer, LOAD_TO_SUM),
                               .of_sum = ek_loads_factors_at(l, plan, layer, LOAD_OF_SUM)};

    if (!ek_planner_fills_slots(l->cfg.planner))
        return;
    if (l->cfg.by_level)
        by_rank.messages += at * LOAD_COPY_LISTS * l->cfg.ep;
    ek_copy_sums_of(&c, p, &by_rank, l->copies_passed, &l->copies[at]);
    for (int back = 0; l->cfg.by_rank && back < 2; back++)
        ek_copy_sums_lists(&c, p, !back, ek_loads_lists_at(l, plan, layer, back));
}

static void count_replicas(ek_sim_loads *l, int64_t step, int64_t layer,
                           const ek_replay_replicas *replicas)
{
    int64_t micros = l->cfg.batches > 0 ? l->cfg.batches : 1;

    l->replicas[step * l->cfg.trace->layers + layer] = *replicas;
    l->balance.replicas += (double)replicas->replicas / (double)micros;
    l->planned++;
}

static ek_status keep_plan(void *context, int64_t iteration, int64_t layer, const int64_t *counts,
                           const ek_plan *served, const ek_replay_replicas *replicas)
{
    ek_sim_loads *l = context;
    int64_t step = sample_of(l, iteration), plan = (step + 1) * l->plans_each - 1;
    ek_plan_rows rows;
    double mean;

    if (step < 0)
        return EK_OK;
    if (replicas->first)
        plan--;
    rows = ek_plan_rows_of(&l->limits, counts, served, l->memory, l->slots);
    mean = even_rows(l, iteration, layer, &rows);
    set_rows(l, plan, layer, &rows, mean);
    set_exchanges(l, plan, layer, counts, served, mean);
    set_replicas(l, plan, layer, &served->placement, replicas->sent);
    set_copies(l, plan, layer, served);
    set_slots(l, plan, layer, served, mean);
    if (!replicas->first)
        count_replicas(l, step, layer, replicas);
    if (l->core_ranks == 0)
        return EK_OK;
    return ek_loads_share_cores(l, ek_loads_factors_at(l, plan, layer, LOAD_SERVED),
                                ek_loads_replayed_at(l, plan, layer, LOAD_SERVED_ALONE));
}

/* Tokens of a rank in a micro-batch; at least one. */
static int64_t tokens_of(const ek_sim_loads_config *c)
{
    return (int64_t)fmax(1, round(c->rows / (double)c->spec->top_k));
}

/* Of a step: those of each layer of the model. */
static void sum_replicas(ek_sim_loads *l)
{
    for (int64_t i = 0; i < l->cfg.spec->layers; i++)
        for (int64_t step = 0; step < l->steps && l->layer_of[i] >= 0; step++) {
            const ek_replay_replicas *n =
                &l->replicas[step * l->cfg.trace->layers + l->layer_of[i]];

            l->balance.step_replicas += (double)n->replicas / (double)l->steps;
            l->balance.step_ahead += (double)n->ahead / (double)l->steps;
        }
}

ek_status ek_loads_plan_trace(ek_sim_loads *l)
{
    int scales = l->limited.own == NULL && !l->cfg.counted;
    ek_replay_config cfg = {.planner = l->cfg.planner,
                            .limits = l->limits,
                            .lag = l->lag,
                            .batches = l->cfg.batches,
                            .forecasts = l->forecasts,
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
    sum_replicas(l);
    return EK_OK;
}
