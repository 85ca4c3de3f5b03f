/* auto where each expert must be on several nodes (replicas_min of 2 or more): persistent replicas
 * to survive failures, transient ones by the counts of the micro-batch.
 *
 * Source       Ours, of known parts: the placement of `replicate` (Lazarus, arXiv 2407.04656), the
 *              quotas of the least maximum as a flow (quota_flow.h), and the replicas of `auto`,
 *              each where it pays (replica_search.h).
 *
 * Slots        Of a rank's slots the last one is for transient replicas, if the others of all ranks
 *              hold replicas_min copies of each expert; the others keep optimizer state
 *              (ek_planner_transient_slots).
 *
 * Persistent   The plan of `replicate` for the slots that keep state.  It is taken if experts come
 *              onto replicas_min nodes that were on fewer; if survival is preferred, as
 *              `replicate` takes it; or if it pays:
 *                  horizon (T now - T then) > pays_factor (experts that the busiest rank receives)
 *                                             migrate_s_per_expert
 *              T of a micro-batch of the history, with the transient plan that it would get.
 *
 * Transient    1. Quotas of the persistent copies with the least maximum load.
 *              2. The flow in which no rank serves more than the mean, or the level that ranks of
 *                 different speed can reach: what it leaves unserved is added to the primary
 *                 copies, and the search of `auto` moves load from ranks above it to the empty
 *                 slots of ranks below.  Each slot with state counts as an
 *                 expert of its own there.
 *              3. Where a rank that gets load has the expert already, no replica is needed.  Quotas
 *                 of the least maximum on the placement with the other replicas; those that then
 *                 serve nothing are dropped.
 *              4. The replicas are taken if T is less than that of the first step.  Weights come
 *                 from primary copies.
 *              5. Rows are served by few of the persistent copies, where summing gradients of all
 *                 takes more time than they save (few_copies.h).
 *
 * Departures   No locality replicas (locality_replicas.h): persistent copies keep rows on their
 *              rank, too.
 * Complexity   Transient: three flows and the search of `auto`.  Persistent: that of `replicate`,
 *              and two transient plans. */
#include "balance/few_copies.h"
#include "balance/replica_search.h"
#include "cost/cost.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* A move for less load must be expected to save this many times its cost, as in `auto`. */
static const double pays_factor = 2;

typedef struct {
    void *replicate; /* its memory */
    ek_plan kept;    /* plan of `replicate`: slots with state only */
    ek_plan tried;   /* transient plan for the history */
    ek_quota_flow flow;
    ek_few_copies few;
    ek_replica_search search; /* its experts are the slots with state */
    ek_placement states;      /* these, as experts in slots */
    int64_t *quota;           /* [ranks * slots] without transient replicas */
    int32_t *gets, *gives;    /* [ranks] transient replicas received; experts sent */
    unsigned char *given;     /* [experts] whether the primary rank sends it */
    int32_t *domain_of;       /* [ranks] numbered from 0 */
    unsigned char *seen;      /* [ranks] domains */
} memory;

/* Slots of a rank that keep state. */
static int32_t state_slots(const ek_plan_limits *l)
{
    return l->slots - ek_planner_transient_slots(&ek_planner_auto_replicas, l);
}

/* The limits of `replicate`. */
static ek_plan_limits limits_of_states(const ek_plan_limits *l)
{
    ek_plan_limits of_states = *l;

    of_states.slots = state_slots(l);
    return of_states;
}

/* The limits of the search. */
static ek_plan_limits limits_of_search(const ek_plan_limits *l)
{
    ek_plan_limits of_search = *l;

    of_search.experts = l->ranks * state_slots(l);
    return of_search;
}

static void *reserve_replicas(ek_arena *a, const ek_plan_limits *l)
{
    ek_plan_limits of_states = limits_of_states(l), of_search = limits_of_search(l);
    memory *m = ek_arena_alloc(a, 1, sizeof(*m)), measured;
    memory *at = m != NULL ? m : &measured;
    int32_t states = state_slots(l);

    at->replicate = ek_planner_reserve(&ek_planner_replicate, a, &of_states);
    ek_plan_reserve(&at->kept, a, &of_states);
    ek_plan_reserve(&at->tried, a, l);
    ek_quota_flow_reserve(&at->flow, a, l);
    ek_few_copies_reserve(&at->few, a, l);
    ek_replica_search_reserve(&at->search, a, &of_search);
    ek_placement_reserve(&at->states, a, of_search.experts, l->ranks, l->slots);
    at->quota = ek_arena_alloc(a, (int64_t)l->ranks * l->slots, sizeof(*at->quota));
    at->gets = ek_arena_alloc(a, l->ranks, sizeof(*at->gets));
    at->gives = ek_arena_alloc(a, l->ranks, sizeof(*at->gives));
    at->given = ek_arena_alloc(a, l->experts, sizeof(*at->given));
    at->domain_of = ek_arena_alloc(a, l->ranks, sizeof(*at->domain_of));
    at->seen = ek_arena_alloc(a, l->ranks, sizeof(*at->seen));
    if (m == NULL || a->overflow)
        return NULL;
    for (int32_t s = 0; s < l->ranks * l->slots; s++) {
        int32_t i = s % l->slots, state = s / l->slots * states + i;

        at->states.expert_of[s] = i < states ? state : -1;
        if (i < states)
            at->states.primary[state] = s;
    }
    return m;
}

/* --- transient -------------------------------------------------------------------------------- */

static int64_t busiest_source(const ek_plan_limits *l, const int64_t *counts)
{
    int64_t most = 0;

    for (int32_t r = 0; r < l->ranks; r++, counts += l->experts) {
        int64_t sum = 0;

        for (int32_t e = 0; e < l->experts; e++)
            sum += counts[e];
        most = sum > most ? sum : most;
    }
    return most;
}

/* Gives each slot with state what it serves if no rank exceeds the level, and primary
 * copies what is then left: the loads that the search starts from. */
static void fill_loads(memory *m, const ek_plan_limits *l, int64_t level, ek_plan *p)
{
    int64_t *load = m->search.alias.total;
    int32_t states = state_slots(l);

    (void)ek_quota_flow_within(&m->flow, l, &p->placement, level, p->quota);
    for (int32_t i = 0; i < l->ranks * states; i++)
        load[i] = p->quota[m->states.primary[i]];
    for (int32_t e = 0; e < l->experts; e++)
        load[m->states.expert_of[p->placement.primary[e]]] += m->flow.unserved[e];
}

/* Puts the experts of moves into their slots, except on ranks that have them. */
static void add_replicas(const memory *m, const ek_plan_limits *l, int32_t n, ek_plan *p)
{
    ek_placement *at = &p->placement;

    for (int32_t i = 0; i < n; i++) {
        const ek_alias_move *v = &m->search.kept[i];
        int32_t e = at->expert_of[m->states.primary[v->expert]];

        if (ek_plan_slot(at, v->slot / l->slots, e) < 0)
            at->expert_of[v->slot] = e;
    }
}

/* Empties the transient slots, or those that serve nothing. */
static void drop_replicas(const ek_plan_limits *l, int idle_only, ek_plan *p)
{
    int32_t states = state_slots(l);

    for (int32_t s = 0; s < l->ranks * l->slots; s++)
        if (s % l->slots >= states && (!idle_only || p->quota[s] == 0))
            p->placement.expert_of[s] = -1;
}

/* Counts transient replicas and those on the busiest link. */
static void count_replicas(memory *m, const ek_plan_limits *l, const ek_plan *p,
                           ek_replica_outcome *out)
{
    const ek_placement *at = &p->placement;
    int32_t states = state_slots(l);

    out->n = out->links = 0;
    memset(m->gets, 0, (size_t)l->ranks * sizeof(*m->gets));
    memset(m->gives, 0, (size_t)l->ranks * sizeof(*m->gives));
    memset(m->given, 0, (size_t)l->experts);
    for (int32_t s = 0; s < l->ranks * l->slots; s++) {
        int32_t e = at->expert_of[s], rank = s / l->slots, from;

        if (s % l->slots < states || e < 0)
            continue;
        from = at->primary[e] / l->slots;
        out->n++;
        m->gets[rank]++;
        m->gives[from] += !m->given[e];
        m->given[e] = 1;
        out->links = m->gets[rank] > out->links ? m->gets[rank] : out->links;
        out->links = m->gives[from] > out->links ? m->gives[from] : out->links;
    }
}

/* The plan with transient replicas; returns 0, and leaves *p without them, if none is faster than
 * *best, the plan without. */
static int try_replicas(memory *m, const ek_plan_limits *l, const int64_t *counts, int64_t level,
                        ek_plan *p, ek_replica_outcome *best)
{
    ek_plan_limits of_search = limits_of_search(l);
    ek_replica_outcome now;

    fill_loads(m, l, level, p);
    (void)ek_alias_start(&m->search.alias, &of_search, &m->states);
    now = ek_replica_search_run(&m->search, &of_search, best->most, INFINITY);
    add_replicas(m, l, now.n, p);
    ek_quota_flow_start(&m->flow, l, counts, &p->placement);
    now.most = ek_quota_flow_least(&m->flow, l, &p->placement, p->quota);
    drop_replicas(l, 1, p);
    count_replicas(m, l, p, &now);
    now.s = ek_replica_search_time(&m->search, now.most, now.links);
    if (now.s < best->s) {
        *best = now;
        return 1;
    }
    drop_replicas(l, 0, p);
    return 0;
}

/* Fills in transient replicas and quotas; *before: the plan without replicas. */
static ek_replica_outcome make_transient(memory *m, const ek_plan_limits *l, const int64_t *counts,
                                         int64_t of, ek_plan *p, ek_replica_outcome *before)
{
    size_t quotas = (size_t)(l->ranks * l->slots) * sizeof(*p->quota);
    ek_replica_outcome best = {0};
    int64_t level;

    ek_replica_search_set(&m->search, l, busiest_source(l, counts), of);
    ek_quota_flow_start(&m->flow, l, counts, &p->placement);
    level = ek_quota_flow_level(&m->flow, l);
    best.most = ek_quota_flow_least(&m->flow, l, &p->placement, p->quota);
    best.s = ek_replica_search_time(&m->search, best.most, 0);
    *before = best;
    if (state_slots(l) == l->slots || !(ek_replica_search_time(&m->search, level, 1) < best.s))
        return best;
    memcpy(m->quota, p->quota, quotas);
    if (!try_replicas(m, l, counts, level, p, &best))
        memcpy(p->quota, m->quota, quotas);
    return best;
}

static ek_status plan_transient(void *mem, const ek_plan_limits *l, const int64_t *counts,
                                ek_plan *p)
{
    char a[EK_COST_QUANTITY], b[EK_COST_QUANTITY];
    memory *m = mem;
    ek_replica_outcome before, now = make_transient(m, l, counts, 1, p, &before);

    now.most = ek_few_copies_choose(&m->few, &m->flow, l, counts, state_slots(l), p);
    now.s = ek_replica_search_time(&m->search, now.most, now.links);
    p->before_s = before.s;
    p->after_s = now.s;
    if (p->explain && now.n == 0)
        snprintf(p->reason, sizeof(p->reason),
                 "no transient replicas: persistent copies have at most %lld assignments on a "
                 "rank%s, %s",
                 ek_row_costs_shown(l, now.most), ek_row_costs_note(l),
                 ek_cost_quantity(a, now.s, "s"));
    else if (p->explain)
        snprintf(p->reason, sizeof(p->reason),
                 "%d transient replica%s, at most %d per link: busiest rank %lld -> %lld "
                 "assignments%s, %s -> %s",
                 (int)now.n, now.n == 1 ? "" : "s", (int)now.links,
                 ek_row_costs_shown(l, before.most), ek_row_costs_shown(l, now.most),
                 ek_row_costs_note(l), ek_cost_quantity(a, before.s, "s"),
                 ek_cost_quantity(b, now.s, "s"));
    return EK_OK;
}

/* --- persistent ------------------------------------------------------------------------------- */

/* Predicted time of a micro-batch of the history with the persistent copies of `kept`. */
static double expected_time(memory *m, const ek_plan_limits *l, const int64_t *counts, int64_t of,
                            const ek_placement *kept)
{
    ek_replica_outcome before;

    ek_placement_resize(&m->tried.placement, kept);
    return make_transient(m, l, counts, of, &m->tried, &before).s;
}

/* Number of domains missing to replicas_min per expert, or to all where there are fewer. */
static int64_t missing_domains(const memory *m, const ek_plan_limits *l, int32_t domains,
                               const ek_placement *p)
{
    int32_t want = l->replicas_min < domains ? l->replicas_min : domains;
    int64_t lack = 0;

    for (int32_t e = 0; e < l->experts; e++) {
        int32_t n = 0;

        memset(m->seen, 0, (size_t)domains);
        for (int32_t r = 0; r < l->ranks; r++)
            if (!m->seen[m->domain_of[r]] && ek_plan_slot(p, r, e) >= 0) {
                m->seen[m->domain_of[r]] = 1;
                n++;
            }
        lack += n < want ? want - n : 0;
    }
    return lack;
}

/* Experts that the busiest rank receives; *all: that all receive. */
static int32_t arriving_experts(const ek_placement *now, const ek_placement *then, int32_t *all)
{
    int32_t most = 0;

    *all = 0;
    for (int32_t r = 0; r < now->ranks; r++) {
        int32_t n = 0;

        for (int32_t s = r * then->slots; s < (r + 1) * then->slots; s++)
            n += then->expert_of[s] >= 0 && ek_plan_slot(then, r, then->expert_of[s]) == s &&
                 ek_plan_slot(now, r, then->expert_of[s]) < 0;
        most = n > most ? n : most;
        *all += n;
    }
    return most;
}

/* Whether m->kept is to replace the present placement; says why not. */
static int is_taken(memory *m, const ek_plan_limits *l, const int64_t *counts, ek_plan *p)
{
    char a[EK_COST_QUANTITY], b[EK_COST_QUANTITY];
    const ek_placement *then = &m->kept.placement;
    int32_t domains = ek_plan_number_domains(l, m->domain_of), moves;
    int32_t busiest = arriving_experts(&p->placement, then, &moves);
    double horizon = (double)l->horizon;

    p->before_s = expected_time(m, l, counts, p->of, &p->placement);
    p->after_s = expected_time(m, l, counts, p->of, then);
    if (l->prefer_survival || moves == 0 ||
        missing_domains(m, l, domains, then) < missing_domains(m, l, domains, &p->placement) ||
        (p->before_s - p->after_s) * horizon >
            pays_factor * busiest * l->costs.migrate_s_per_expert)
        return 1;
    if (p->explain)
        snprintf(
            p->reason, sizeof(p->reason),
            "kept: %d arriving experts would save %s in each of %lld micro-batches and cost %s",
            (int)moves, ek_cost_quantity(a, p->before_s - p->after_s, "s"), (long long)l->horizon,
            ek_cost_quantity(b, busiest * l->costs.migrate_s_per_expert, "s"));
    p->after_s = p->before_s;
    return 0;
}

static ek_status plan_persistent(void *mem, const ek_plan_limits *l, const int64_t *counts,
                                 ek_plan *p)
{
    memory *m = mem;
    ek_plan_limits of_states = limits_of_states(l);

    ek_placement_resize(&m->kept.placement, &p->placement);
    EK_TRY(ek_placement_check(&m->kept.placement));
    m->kept.of = p->of;
    m->kept.explain = p->explain;
    EK_TRY(ek_planner_replicate.plan_persistent(m->replicate, &of_states, counts, &m->kept));
    if (is_taken(m, l, counts, p)) {
        ek_placement_resize(&p->placement, &m->kept.placement);
        if (p->explain)
            memcpy(p->reason, m->kept.reason, sizeof(p->reason));
    }
    ek_quota_flow_start(&m->flow, l, counts, &p->placement);
    (void)ek_quota_flow_least(&m->flow, l, &p->placement, p->quota);
    return EK_OK;
}

const ek_planner ek_planner_auto_replicas = {
    .name = "auto",
    .what = "persistent replicas on --replicas-min or more nodes as replicate, split by the counts "
            "and joined by transient ones where they pay",
    .reserve = reserve_replicas,
    .plan_persistent = plan_persistent,
    .plan_transient = plan_transient,
    .enforces_replicas_min = 1};
