/* Replicas near their tokens, by trial.
 *
 * Complexity   O(ranks slots + experts) for the time of a plan; O(ranks experts slots) to look for
 *              what each rank sends most of, twice, and O(experts slots) for each replica that is
 *              tried after that, of which there are at most as many as spare slots. */
#include "balance/near.h"

#include <string.h>

void ek_near_take(ek_near *n, ek_arena *a, const ek_plan_limits *l)
{
    int64_t all = (int64_t)l->ranks * l->slots;

    n->tokens = ek_arena_take(a, l->ranks, sizeof(*n->tokens));
    n->stay = ek_arena_take(a, l->ranks, sizeof(*n->stay));
    n->served = ek_arena_take(a, l->ranks, sizeof(*n->served));
    n->gets = ek_arena_take(a, l->ranks, sizeof(*n->gets));
    n->gives = ek_arena_take(a, l->ranks, sizeof(*n->gives));
    n->given = ek_arena_take(a, l->experts, sizeof(*n->given));
    n->total = ek_arena_take(a, l->experts, sizeof(*n->total));
    for (int i = 0; i < 2; i++) {
        n->expert_of[i] = ek_arena_take(a, all, sizeof(*n->expert_of[i]));
        n->quota[i] = ek_arena_take(a, all, sizeof(*n->quota[i]));
    }
}

/* --- what a plan takes ------------------------------------------------------------------------ */

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static void count_slot(ek_near *n, const ek_plan_limits *l, const int64_t *counts, const ek_plan *p,
                       int32_t slot)
{
    int32_t e = p->placement.expert_of[slot], rank = slot / l->slots;

    if (e < 0)
        return;
    n->served[rank] += p->quota[slot];
    n->stay[rank] += least(p->quota[slot], counts[(int64_t)rank * l->experts + e]);
    if (!ek_plan_is_replica(&p->placement, slot))
        return;
    n->gets[rank]++;
    n->gives[p->placement.home[e] / l->slots] += !n->given[e];
    n->given[e] = 1;
}

double ek_near_time(ek_near *n, const ek_plan_limits *l, const int64_t *counts, const ek_plan *p)
{
    int64_t rows = 0, link = 0, replicas = 0;

    memset(n->stay, 0, (size_t)l->ranks * sizeof(*n->stay));
    memset(n->served, 0, (size_t)l->ranks * sizeof(*n->served));
    memset(n->gets, 0, (size_t)l->ranks * sizeof(*n->gets));
    memset(n->gives, 0, (size_t)l->ranks * sizeof(*n->gives));
    memset(n->given, 0, (size_t)l->experts * sizeof(*n->given));
    for (int32_t s = 0; s < l->ranks * l->slots; s++)
        count_slot(n, l, counts, p, s);
    for (int32_t r = 0; r < l->ranks; r++) {
        rows = most(rows, n->served[r]);
        link = most(link, most(n->tokens[r], n->served[r]) - n->stay[r]);
        replicas = most(replicas, most(n->gets[r], n->gives[r]));
    }
    return (double)rows * l->costs.row_s + (double)link * l->costs.send_s +
           (double)replicas * l->costs.replica_s;
}

/* --- one replica more ------------------------------------------------------------------------- */

/* Of the experts that a rank does not have, the one that most of its tokens go to; -1: none. */
static int32_t wanted(const ek_plan_limits *l, const int64_t *counts, const ek_plan *p,
                      int32_t rank)
{
    const int64_t *own = counts + (int64_t)rank * l->experts;
    int32_t best = -1;

    for (int32_t e = 0; e < l->experts; e++)
        if (own[e] > (best >= 0 ? own[best] : 0) && ek_plan_slot(&p->placement, rank, e) < 0)
            best = e;
    return best;
}

/* Takes up to `amount` of what a slot serves for others than its own rank. */
static int64_t take_from(const ek_plan_limits *l, const int64_t *counts, ek_plan *p, int32_t slot,
                         int32_t e, int64_t amount)
{
    int64_t own = counts[(int64_t)(slot / l->slots) * l->experts + e];
    int64_t some = least(amount, most(p->quota[slot] - own, 0));

    p->quota[slot] -= some;
    return some;
}

/* A replica for the assignments of a rank's own tokens. */
static void bring(const ek_plan_limits *l, const int64_t *counts, ek_plan *p, int32_t rank,
                  int32_t e, int32_t slot)
{
    int64_t amount = counts[(int64_t)rank * l->experts + e];
    int64_t left = amount - take_from(l, counts, p, p->placement.home[e], e, amount);

    for (int32_t s = 0; s < l->ranks * l->slots && left > 0; s++)
        if (p->placement.expert_of[s] == e)
            left -= take_from(l, counts, p, s, e, left);
    p->placement.expert_of[slot] = e;
    p->quota[slot] = amount - left;
}

/* Brings what a rank wants most, if it has a slot for it and it may pay. */
static int bring_wanted(const ek_plan_limits *l, const int64_t *counts, ek_plan *p, int32_t rank)
{
    int32_t slot = ek_plan_free_slot(&p->placement, rank);
    int32_t e = slot >= 0 ? wanted(l, counts, p, rank) : -1;

    if (e < 0 ||
        !((double)counts[(int64_t)rank * l->experts + e] * l->costs.send_s > l->costs.replica_s))
        return 0;
    bring(l, counts, p, rank, e, slot);
    return 1;
}

/* --- the trials ------------------------------------------------------------------------------- */

static void put_aside(ek_near *n, const ek_plan_limits *l, const ek_plan *p, int where)
{
    size_t all = (size_t)l->ranks * (size_t)l->slots;

    memcpy(n->expert_of[where], p->placement.expert_of, all * sizeof(*n->expert_of[where]));
    memcpy(n->quota[where], p->quota, all * sizeof(*n->quota[where]));
}

static void put_back(const ek_near *n, const ek_plan_limits *l, ek_plan *p, int where)
{
    size_t all = (size_t)l->ranks * (size_t)l->slots;

    memcpy(p->placement.expert_of, n->expert_of[where], all * sizeof(*n->expert_of[where]));
    memcpy(p->quota, n->quota[where], all * sizeof(*n->quota[where]));
}

enum { BEST, TRIED };

/* Keeps a change to a plan that took *s before, if it takes less now. */
static int keep(ek_near *n, const ek_plan_limits *l, const int64_t *counts, ek_plan *p, double *s)
{
    double now = ek_near_time(n, l, counts, p);

    if (!(now < *s)) {
        put_back(n, l, p, TRIED);
        return 0;
    }
    *s = now;
    return 1;
}

/* A replica for every rank at once, for ranks that send alike: one alone lowers no maximum. */
static void bring_all(ek_near *n, const ek_plan_limits *l, const int64_t *counts, ek_plan *p,
                      double *s)
{
    int some = 0;

    put_aside(n, l, p, TRIED);
    for (int32_t r = 0; r < l->ranks; r++)
        some |= bring_wanted(l, counts, p, r);
    if (some)
        (void)keep(n, l, counts, p, s);
}

/* The rank that sends most. */
static int32_t busiest(const ek_near *n, int32_t ranks)
{
    int32_t most_of = 0;

    for (int32_t r = 1; r < ranks; r++)
        if (n->tokens[r] - n->stay[r] > n->tokens[most_of] - n->stay[most_of])
            most_of = r;
    return most_of;
}

/* Replicas for the rank that sends most, as long as that pays. */
static void bring_busiest(ek_near *n, const ek_plan_limits *l, const int64_t *counts, ek_plan *p,
                          double *s)
{
    for (int32_t i = 0; i < l->ranks * l->slots; i++) {
        put_aside(n, l, p, TRIED);
        (void)ek_near_time(n, l, counts, p);
        if (!bring_wanted(l, counts, p, busiest(n, l->ranks)) || !keep(n, l, counts, p, s))
            return;
    }
}

static void bring_some(ek_near *n, const ek_plan_limits *l, const int64_t *counts, ek_plan *p,
                       double *s)
{
    bring_all(n, l, counts, p, s);
    bring_busiest(n, l, counts, p, s);
}

/* Empties the slots of replicas. */
static void leave_homes(ek_near *n, const ek_plan_limits *l, const int64_t *counts, ek_plan *p)
{
    for (int32_t s = 0; s < l->ranks * l->slots; s++)
        if (p->placement.expert_of[s] >= 0 && p->placement.home[p->placement.expert_of[s]] != s)
            p->placement.expert_of[s] = -1;
    ek_plan_totals(l, counts, n->total);
    ek_plan_homes_only(l, n->total, p);
}

int ek_near_improve(ek_near *n, const ek_plan_limits *l, const int64_t *counts, ek_plan *p,
                    double *s)
{
    double given, with, alone;

    if (!(l->costs.send_s > 0) || l->ranks < 2)
        return 0;
    for (int32_t r = 0; r < l->ranks; r++) {
        n->tokens[r] = 0;
        for (int32_t e = 0; e < l->experts; e++)
            n->tokens[r] += counts[(int64_t)r * l->experts + e];
    }
    given = with = ek_near_time(n, l, counts, p);
    bring_some(n, l, counts, p, &with);
    put_aside(n, l, p, BEST);
    leave_homes(n, l, counts, p);
    alone = ek_near_time(n, l, counts, p);
    bring_some(n, l, counts, p, &alone);
    if (!(alone < with))
        put_back(n, l, p, BEST);
    *s = alone < with ? alone : with;
    return *s < given;
}
