/* balance/even_replicas.h - further replicas, and other ones, with which the busiest link carries
 * less while products stay as even.
 *
 * Problem      alias_balance.h levels loads with the fewest replicas and leaves slots empty: that
 *              of the rank that gives away most, for one.  A replica there costs the busiest link
 *              nothing: the rank then serves its own rows of another expert, and so fewer of its
 *              hot expert's, which more of the ranks whose tokens need that can serve themselves.
 *              locality_replicas.h adds such replicas one by one and keeps all other quotas, so
 *              that loads become uneven.
 *
 * Method       By trial: an expert that many of a rank's tokens need in an empty slot of it, or in
 *              place of a replica, with the quotas of the least maximum load that keep the most
 *              rows on their rank (quota_flow.h), replicas without rows left out.  The best of a
 *              pass is taken, until none takes less.  First, those quotas for the replicas that
 *              are there.
 *
 * Time         ek_locality_time.  A further replica must also save replica_s / ranks, what it adds
 *              to a link in the mean: its bytes take processor time where no link is the limit.
 *              The result never takes more than the given plan.
 *
 * Complexity   A flow for each trial; at most as many as take 1 / 256 of the layer's time at
 *              trial_s (even_replicas.c) a slot or count, and 64.  So where layers take
 *              microseconds nothing is tried.
 *
 * Pure and deterministic. */
#ifndef BALANCE_EVEN_REPLICAS_H
#define BALANCE_EVEN_REPLICAS_H

#include "balance/locality_replicas.h"
#include "balance/quota_flow.h"

typedef struct {
    ek_quota_flow flow;
    int32_t
        *expert_of[2]; /* [ranks * slots] of the plan that a pass starts from, and of the best */
    int64_t *quota[2]; /* [ranks * slots] likewise */
    int32_t trials;    /* that are left */
    double s, score;   /* of the best plan */
} ek_even_replicas;

void ek_even_replicas_reserve(ek_even_replicas *x, ek_arena *a, const ek_plan_limits *l);

/* Changes a plan, all of whose replicas are transient, where that takes less time; *s is then the
 * new time.  Returns whether it has.  n: its tokens [ranks] are filled in. */
int ek_even_replicas_improve(ek_even_replicas *x, ek_locality *n, const ek_plan_limits *l,
                             const int64_t *counts, ek_plan *p, double *s);

#endif
