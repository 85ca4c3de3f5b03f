/* Quotas by fact for a forecast placement, and replicas that pay although they are waited for. */
#include "balance/late_replicas.h"

#include <string.h>

void ek_late_replicas_reserve(ek_late_replicas *x, ek_arena *a, const ek_plan_limits *l)
{
    ek_quota_flow_reserve(&x->flow, a, l);
    ek_locality_reserve(&x->locality, a, l);
    x->gets = ek_arena_alloc(a, l->ranks, sizeof(*x->gets));
    x->gives = ek_arena_alloc(a, l->ranks, sizeof(*x->gives));
    x->given = ek_arena_alloc(a, l->experts, sizeof(*x->given));
}

/* Seconds that a layer waits for one replica that is planned after the gate. */
static double wait_for_one(const ek_plan_limits *l)
{
    return l->costs.exposed_s > 0 ? l->costs.exposed_s : l->costs.replica_s;
}

/* --- further replicas ------------------------------------------------------------------------- */

/* The most popular expert of those that need a further slot; -1: none does. */
static int32_t shortest_of_slots(const ek_plan_limits *l, const ek_quota_flow *f)
{
    int32_t best = -1;

    for (int32_t e = 0; e < l->experts; e++)
        if (ek_quota_flow_is_short(f, e) && (best < 0 || f->total[e] > f->total[best]))
            best = e;
    return best;
}

/* An empty slot of the least loaded rank that has one and lacks the expert; -1: none. */
static int32_t slot_for(const ek_plan_limits *l, const ek_quota_flow *f, const ek_placement *p,
                        int32_t expert)
{
    int32_t best = -1;
    int64_t least = INT64_MAX;

    for (int32_t r = 0; r < l->ranks; r++) {
        int64_t weighted = f->load[r] * ek_row_cost(l, r);

        if (weighted < least && ek_plan_free_slot(p, r) >= 0 && ek_plan_slot(p, r, expert) < 0) {
            best = ek_plan_free_slot(p, r);
            least = weighted;
        }
    }
    return best;
}

/* Seconds that a lower weighted load saves; without costs, only whether it is lower counts. */
static double saved_s(const ek_plan_limits *l, int64_t more, int64_t less)
{
    double s = ek_row_costs_seconds(l, 1);

    return (double)(more - less) * (s > 0 ? s : 1);
}

/* Tries one replica; returns whether it pays. */
static int add_one(ek_quota_flow *f, const ek_plan_limits *l, const int64_t *counts, int64_t level,
                   int64_t *most, ek_plan *p)
{
    double wait = ek_row_costs_seconds(l, 1) > 0 ? wait_for_one(l) : 0;
    int32_t expert, slot;
    int64_t then;

    if (!(saved_s(l, *most, level) > wait))
        return 0;
    if (ek_quota_flow_within(f, l, &p->placement, level, p->quota) == 0)
        return 0;
    expert = shortest_of_slots(l, f);
    slot = expert >= 0 ? slot_for(l, f, &p->placement, expert) : -1;
    if (slot < 0)
        return 0;
    p->placement.expert_of[slot] = expert;
    ek_quota_flow_start(f, l, counts, &p->placement);
    then = ek_quota_flow_least(f, l, &p->placement, p->quota);
    if (saved_s(l, *most, then) > wait) {
        *most = then;
        return 1;
    }
    p->placement.expert_of[slot] = -1;
    ek_quota_flow_start(f, l, counts, &p->placement);
    return 0;
}

void ek_late_replicas_add(ek_late_replicas *x, const ek_plan_limits *l, const int64_t *counts,
                          const int32_t *persistent, ek_plan *p)
{
    ek_quota_flow *f = &x->flow;
    int64_t most, level;

    ek_quota_flow_start(f, l, counts, &p->placement);
    most = ek_quota_flow_least(f, l, &p->placement, p->quota);
    level = ek_quota_flow_level(f, l);
    while (most > level && add_one(f, l, counts, level, &most, p))
        ;
    if (most > level) /* the last attempt has overwritten them */
        (void)ek_quota_flow_least(f, l, &p->placement, p->quota);
    for (int32_t s = 0; s < l->ranks * l->slots; s++)
        if (persistent[s] < 0 && ek_plan_is_replica(&p->placement, s) && p->quota[s] == 0)
            p->placement.expert_of[s] = -1;
}

/* --- compared with what was sent -------------------------------------------------------------- */

/* Counts the replicas of p that `other` lacks. */
static ek_late_count count_lacking(ek_late_replicas *x, const ek_placement *p,
                                   const ek_placement *other)
{
    ek_late_count n = {0};

    memset(x->gets, 0, (size_t)p->ranks * sizeof(*x->gets));
    memset(x->gives, 0, (size_t)p->ranks * sizeof(*x->gives));
    memset(x->given, 0, (size_t)p->experts);
    for (int32_t s = 0; s < p->ranks * p->slots; s++) {
        int32_t e = p->expert_of[s], rank = s / p->slots, from;

        if (!ek_plan_is_replica(p, s) || ek_plan_slot(other, rank, e) >= 0)
            continue;
        from = p->primary[e] / p->slots;
        n.all++;
        x->gets[rank]++;
        x->gives[from] += !x->given[e];
        x->given[e] = 1;
        n.links = x->gets[rank] > n.links ? x->gets[rank] : n.links;
        n.links = x->gives[from] > n.links ? x->gives[from] : n.links;
    }
    return n;
}

ek_late_count ek_late_replicas_count(ek_late_replicas *x, const ek_placement *p,
                                     const ek_placement *sent)
{
    return count_lacking(x, p, sent);
}

ek_late_count ek_late_replicas_unused(ek_late_replicas *x, const ek_placement *p,
                                      const ek_placement *sent)
{
    return count_lacking(x, sent, p);
}

double ek_late_replicas_time(ek_late_replicas *x, const ek_plan_limits *l, const int64_t *counts,
                             const ek_plan *p, const ek_placement *sent)
{
    ek_plan_limits of = *l;
    double wait = wait_for_one(l);
    int32_t links = 0;

    if (!(l->costs.compute_s_per_row + l->costs.comm_s_per_row > 0)) {
        of.costs.compute_s_per_row = 1;
        wait = 0;
    }
    of.costs.replica_s = sent == NULL ? wait : 0;
    ek_plan_sources(l, counts, x->locality.tokens);
    if (sent != NULL)
        links = ek_late_replicas_count(x, &p->placement, sent).links +
                ek_late_replicas_unused(x, &p->placement, sent).links;
    return ek_locality_time(&x->locality, &of, counts, p) + links * wait;
}

/* The slot that a replica has been sent to, on the rank of slot s; -1: none, or it is in s. */
static int32_t slot_sent(const ek_plan *p, const ek_placement *sent, int32_t s)
{
    int32_t e = p->placement.expert_of[s], to;

    if (!ek_plan_is_replica(&p->placement, s))
        return -1;
    to = ek_plan_slot(sent, s / sent->slots, e);
    return to >= 0 && to != s && p->placement.expert_of[to] != e ? to : -1;
}

void ek_late_replicas_keep_slots(ek_plan *p, const ek_placement *sent)
{
    for (int32_t s = 0; s < sent->ranks * sent->slots; s++)
        for (int32_t to = slot_sent(p, sent, s); to >= 0; to = slot_sent(p, sent, s)) {
            int32_t e = p->placement.expert_of[s];
            int64_t quota = p->quota[s];

            p->placement.expert_of[s] = p->placement.expert_of[to];
            p->quota[s] = p->quota[to];
            p->placement.expert_of[to] = e;
            p->quota[to] = quota;
        }
}
