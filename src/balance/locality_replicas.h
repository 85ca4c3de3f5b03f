/* balance/locality_replicas.h - experts brought to where their tokens are: replicas that shorten
 * what the busiest link carries, where balanced loads alone do not.
 *
 * A replica serves the assignments of its own rank's tokens, which then stay where they are.  That
 * pays where sending dominates, as on slow links, and where one source has more tokens than others:
 * no sharing out of work shortens what it sends. */
#ifndef BALANCE_LOCALITY_REPLICAS_H
#define BALANCE_LOCALITY_REPLICAS_H

#include "balance/planner.h"

/* What a plan comes to. */
typedef struct {
    int64_t *served;       /* [ranks] assignments */
    int64_t *stay;         /* [ranks] of these, a rank's own tokens' */
    int32_t *gets, *gives; /* [ranks] replicas */
    unsigned char *given;  /* [experts] whether its home gives it */
} ek_locality_sums;

typedef struct {
    int64_t *tokens;           /* [ranks] assignments of a source; filled by the caller */
    ek_locality_sums sums;     /* of the plan at work */
    ek_locality_sums aside[2]; /* of plans that are put aside, */
    int32_t *expert_of[2];     /* [ranks * slots] their replicas */
    int64_t *quota[2];         /* and who serves how much */
} ek_locality;

void ek_locality_reserve(ek_locality *n, ek_arena *a, const ek_plan_limits *l);

/* Seconds of a layer with a plan: of the busiest rank's products, of the busiest link's rows, sent
 * or got, and of the replicas that the busiest link carries.  Like ek_plan_time, without asking who
 * serves whom: a rank serves its own tokens first. */
double ek_locality_time(ek_locality *n, const ek_plan_limits *l, const int64_t *counts,
                        const ek_plan *p);

/* Adds such replicas to a plan, or puts a plan of them alone in its place, if that takes less time:
 * 1, and *s says how much it takes.  0: it stays as it is.  total: [experts]. */
int ek_locality_improve(ek_locality *n, const ek_plan_limits *l, const int64_t *counts,
                        const int64_t *total, ek_plan *p, double *s);

#endif
