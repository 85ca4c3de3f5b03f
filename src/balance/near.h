/* balance/near.h - experts brought to where their tokens are: replicas that shorten what the
 * busiest link carries, where balanced loads alone do not.
 *
 * A replica serves the assignments of its own rank's tokens, which then stay where they are.  That
 * pays where sending dominates, as on slow links, and where one source has more tokens than others:
 * no sharing out of work shortens what it sends. */
#ifndef BALANCE_NEAR_H
#define BALANCE_NEAR_H

#include "balance/planner.h"

/* What a plan comes to. */
typedef struct {
    int64_t *served;       /* [ranks] assignments */
    int64_t *stay;         /* [ranks] of these, a rank's own tokens' */
    int32_t *gets, *gives; /* [ranks] replicas */
    unsigned char *given;  /* [experts] whether its home gives it */
} ek_near_sums;

typedef struct {
    int64_t *tokens;       /* [ranks] assignments of a source; filled by the caller */
    ek_near_sums sums;     /* of the plan at work */
    ek_near_sums aside[2]; /* of plans that are put aside, */
    int32_t *expert_of[2]; /* [ranks * slots] their replicas */
    int64_t *quota[2];     /* and who serves how much */
} ek_near;

void ek_near_take(ek_near *n, ek_arena *a, const ek_plan_limits *l);

/* Seconds of a layer with a plan: of the busiest rank's products, of the busiest link's rows, sent
 * or got, and of the replicas that the busiest link carries.  Like ek_plan_time, without asking who
 * serves whom: a rank serves its own tokens first. */
double ek_near_time(ek_near *n, const ek_plan_limits *l, const int64_t *counts, const ek_plan *p);

/* Adds such replicas to a plan, or puts a plan of them alone in its place, if that takes less time:
 * 1, and *s says how much it takes.  0: it stays as it is.  total: [experts]. */
int ek_near_improve(ek_near *n, const ek_plan_limits *l, const int64_t *counts,
                    const int64_t *total, ek_plan *p, double *s);

#endif
