/* Replicas by trial, with quotas by flow. */
#include "balance/even_replicas.h"

#include <string.h>

/* Experts tried in a slot, and trials of a plan. */
enum { WANTED = 4, TRIALS = 64 };

/* What a trial takes for each count and slot, and the part of a layer's time for all. */
static const double trial_s = 10e-9, part_of_time = 1.0 / 256;

enum { START, BEST };

void ek_even_replicas_reserve(ek_even_replicas *x, ek_arena *a, const ek_plan_limits *l)
{
    int64_t all = (int64_t)l->ranks * l->slots;

    ek_quota_flow_reserve(&x->flow, a, l);
    for (int i = 0; i < 2; i++) {
        x->expert_of[i] = ek_arena_alloc(a, all, sizeof(*x->expert_of[i]));
        x->quota[i] = ek_arena_alloc(a, all, sizeof(*x->quota[i]));
    }
}

static void save_plan(ek_even_replicas *x, const ek_plan_limits *l, const ek_plan *p, int where)
{
    size_t all = (size_t)l->ranks * (size_t)l->slots;

    memcpy(x->expert_of[where], p->placement.expert_of, all * sizeof(*x->expert_of[where]));
    memcpy(x->quota[where], p->quota, all * sizeof(*x->quota[where]));
}

static void restore_plan(const ek_even_replicas *x, const ek_plan_limits *l, ek_plan *p, int where)
{
    size_t all = (size_t)l->ranks * (size_t)l->slots;

    memcpy(p->placement.expert_of, x->expert_of[where], all * sizeof(*x->expert_of[where]));
    memcpy(p->quota, x->quota[where], all * sizeof(*x->quota[where]));
}

/* --- a trial ---------------------------------------------------------------------------------- */

/* Sets the quotas of a placement, and leaves out replicas without rows. */
static void serve_evenly(ek_even_replicas *x, const ek_plan_limits *l, const int64_t *counts,
                         ek_plan *p)
{
    ek_quota_flow_start(&x->flow, l, counts, &p->placement);
    (void)ek_quota_flow_least(&x->flow, l, &p->placement, p->quota);
    for (int32_t s = 0; s < l->ranks * l->slots; s++)
        if (p->quota[s] == 0 && ek_plan_is_replica(&p->placement, s))
            p->placement.expert_of[s] = -1;
}

/* The time of a plan, with what replicas add to links in the mean. */
static double score_of(const ek_plan_limits *l, const ek_plan *p, double s)
{
    int32_t n = 0;

    for (int32_t i = 0; i < l->ranks * l->slots; i++)
        n += ek_plan_is_replica(&p->placement, i);
    return s + n * (l->costs.replica_s / l->ranks);
}

/* Serves a placement, and keeps the plan if it takes less than the best. */
static void try_placement(ek_even_replicas *x, ek_locality *n, const ek_plan_limits *l,
                          const int64_t *counts, ek_plan *p)
{
    double s, score;

    x->trials--;
    serve_evenly(x, l, counts, p);
    s = ek_locality_time(n, l, counts, p);
    score = score_of(l, p, s);
    if (!(s < x->s) || !(score < x->score))
        return;
    x->s = s;
    x->score = score;
    save_plan(x, l, p, BEST);
}

/* --- a pass ----------------------------------------------------------------------------------- */

/* The experts that most of a rank's tokens need, among those that it lacks and whose rows take
 * longer than a replica; returns how many, at most WANTED. */
static int list_wanted(const ek_plan_limits *l, const int64_t *own, const ek_placement *p,
                       int32_t rank, int32_t *wanted)
{
    int n = 0;

    for (int32_t e = 0; e < l->experts; e++) {
        int i;

        if (!((double)own[e] * l->costs.comm_s_per_row > l->costs.replica_s / l->ranks) ||
            (n == WANTED && own[e] <= own[wanted[n - 1]]) || ek_plan_slot(p, rank, e) >= 0)
            continue;
        n += n < WANTED;
        for (i = n - 1; i > 0 && own[wanted[i - 1]] < own[e]; i--)
            wanted[i] = wanted[i - 1];
        wanted[i] = e;
    }
    return n;
}

/* Tries the wanted experts of a rank in a slot. */
static void try_slot(ek_even_replicas *x, ek_locality *n, const ek_plan_limits *l,
                     const int64_t *counts, int32_t slot, ek_plan *p)
{
    int32_t rank = slot / l->slots, wanted[WANTED];
    int some = list_wanted(l, counts + (int64_t)rank * l->experts, &p->placement, rank, wanted);

    for (int i = 0; i < some && x->trials > 0; i++) {
        p->placement.expert_of[slot] = wanted[i];
        try_placement(x, n, l, counts, p);
        restore_plan(x, l, p, START);
    }
}

/* Tries empty slots, one a rank, or slots with replicas; *p is then the best plan.  Returns whether
 * that is a new one. */
static int make_pass(ek_even_replicas *x, ek_locality *n, const ek_plan_limits *l,
                     const int64_t *counts, int filled, ek_plan *p)
{
    double before = x->score;

    save_plan(x, l, p, START);
    for (int32_t s = 0; s < l->ranks * l->slots && x->trials > 0; s++)
        if (filled ? ek_plan_is_replica(&p->placement, s)
                   : ek_plan_free_slot(&p->placement, s / l->slots) == s)
            try_slot(x, n, l, counts, s, p);
    restore_plan(x, l, p, BEST);
    return x->score < before;
}

/* --- the search ------------------------------------------------------------------------------- */

/* Trials that take little beside a layer of so many seconds. */
static int32_t trials_for(const ek_plan_limits *l, double s)
{
    double each = trial_s * l->ranks * ((double)l->experts + 8.0 * l->slots);
    double n = s * part_of_time / each;

    return n < TRIALS ? (int32_t)n : TRIALS;
}

int ek_even_replicas_improve(ek_even_replicas *x, ek_locality *n, const ek_plan_limits *l,
                             const int64_t *counts, ek_plan *p, double *s)
{
    double given;

    if (!(l->costs.comm_s_per_row > 0) || l->ranks < 2)
        return 0;
    given = x->s = ek_locality_time(n, l, counts, p);
    x->trials = trials_for(l, given);
    if (x->trials < 1)
        return 0;
    x->score = score_of(l, p, given);
    save_plan(x, l, p, BEST);
    try_placement(x, n, l, counts, p);
    restore_plan(x, l, p, BEST);
    for (int filled = 0; filled < 2; filled++)
        while (x->trials > 0 && make_pass(x, n, l, counts, filled, p))
            ;
    if (!(x->s < given))
        return 0;
    *s = x->s;
    return 1;
}
