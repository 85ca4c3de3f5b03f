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

    for (int32_t r = 0; r < l->ranks; r++)
        if ((best < 0 || f->load[r] < f->load[best / l->slots]) && ek_plan_free_slot(p, r) >= 0 &&
            ek_plan_slot(p, r, expert) < 0)
            best = ek_plan_free_slot(p, r);
    return best;
}

/* Tries one replica; returns whether it pays. */
static int add_one(ek_quota_flow *f, const ek_plan_limits *l, const int64_t *counts, int64_t mean,
                   int64_t *most, ek_plan *p)
{
    double a_row = l->costs.compute_s_per_row + l->costs.comm_s_per_row;
    double wait = a_row > 0 ? ek_late_replica_s(l) : 0;
    int32_t expert, slot;
    int64_t then;

    if (!((double)(*most - mean) * (a_row > 0 ? a_row : 1) > wait))
        return 0;
    if (ek_quota_flow_within(f, l, &p->placement, mean, p->quota) == 0)
        return 0;
    expert = shortest_of_slots(l, f);
    slot = expert >= 0 ? slot_for(l, f, &p->placement, expert) : -1;
    if (slot < 0)
        return 0;
    p->placement.expert_of[slot] = expert;
    ek_quota_flow_start(f, l, counts, &p->placement);
    then = ek_quota_flow_least(f, l, &p->placement, p->quota);
    if ((double)(*most - then) * (a_row > 0 ? a_row : 1) > wait) {
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
    int64_t most, mean;
    int32_t n = 0;

    ek_quota_flow_start(f, l, counts, &p->placement);
    most = ek_quota_flow_least(f, l, &p->placement, p->quota);
    mean = ek_quota_flow_mean(f, l);
    while (most > mean && add_one(f, l, counts, mean, &most, p))
        n++;
    if (most > mean) /* the last attempt has overwritten them */
        (void)ek_quota_flow_least(f, l, &p->placement, p->quota);
    return n;
}
