/* Quotas by fact for a forecast placement, and replicas that pay although they are waited for. */
#include "balance/late_replicas.h"

double ek_late_replica_s(const ek_plan_limits *l)
{
    return l->costs.exposed_s > 0 ? l->costs.exposed_s : l->costs.replica_s;
}

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
    double wait = ek_row_costs_seconds(l, 1) > 0 ? ek_late_replica_s(l) : 0;
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

int32_t ek_late_replicas_add(ek_quota_flow *f, const ek_plan_limits *l, const int64_t *counts,
                             ek_plan *p)
{
    int64_t most, level;
    int32_t n = 0;

    ek_quota_flow_start(f, l, counts, &p->placement);
    most = ek_quota_flow_least(f, l, &p->placement, p->quota);
    level = ek_quota_flow_level(f, l);
    while (most > level && add_one(f, l, counts, level, &most, p))
        n++;
    if (most > level) /* the last attempt has overwritten them */
        (void)ek_quota_flow_least(f, l, &p->placement, p->quota);
    return n;
}
