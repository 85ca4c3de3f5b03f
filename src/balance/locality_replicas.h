/* balance/locality_replicas.h - replicas on the ranks whose tokens need the expert: they shorten
 * the busiest link's traffic where balanced loads alone do not.
 *
 * Such a replica serves its own rank's assignments, which then need no link.  This pays where
 * communication dominates, as on slow links, and where one source has more tokens than others,
 * which no split of the expert work can shorten. */
#ifndef BALANCE_LOCALITY_REPLICAS_H
#define BALANCE_LOCALITY_REPLICAS_H

#include "balance/maxima.h"
#include "balance/row_costs.h"

/* Sums over a plan. */
typedef struct {
    int64_t *served;       /* [ranks] assignments */
    int64_t *stay;         /* [ranks] of these, from the rank's own tokens */
    int32_t *gets, *gives; /* [ranks] replicas received; experts sent */
    unsigned char *given;  /* [experts] whether its primary rank sends it */
} ek_locality_sums;

/* Assignments that a new replica took from a slot. */
typedef struct {
    int32_t slot;
    int64_t rows;
} ek_locality_take;

typedef struct {
    int64_t *tokens;           /* [ranks] assignments of each source; filled in by the caller */
    int32_t *favourite;        /* [ranks] the expert that most of its tokens go to; -1: none with
                                  more than ek_locality_worth(); filled in by the caller */
    ek_locality_sums sums;     /* of the current plan */
    ek_locality_sums saved[2]; /* saved plans: their sums */
    int32_t *expert_of[2];     /* [ranks * slots] their slots */
    int64_t *quota[2];         /* [ranks * slots] and quotas */
    int32_t *giver;            /* [experts] lowest slot that may still give rows to replicas; -1 */
    int32_t *next_giver;       /* [ranks * slots] the next higher one of the same expert; -1 */
    ek_locality_take *taken;   /* [ranks * slots] by the last replica */
    int32_t n_taken;
    int32_t first_giver;                       /* giver of its expert before */
    ek_maxima weighted, link, replicas, sends; /* of ranks, while replicas are added one by one;
                                                  weighted loads as in row_costs.h */
    int first_given; /* whether it was the first of its expert to be sent */
} ek_locality;

void ek_locality_reserve(ek_locality *n, ek_arena *a, const ek_plan_limits *l);

/* Whether locality replicas may pay: rows cost something to send. */
int ek_locality_uses(const ek_plan_limits *l);

/* Rows up to which a replica never pays by itself, as they take less time than it; INT64_MAX: no
 * replica does. */
int64_t ek_locality_worth(const ek_plan_limits *l);

/* Seconds of a layer with a plan: products of the rank that takes longest, rows on the busiest link
 * (sent or received), and replicas on the busiest link.  Equals ek_plan_time, computed without the
 * split by source, because a rank serves its own tokens first. */
double ek_locality_time(ek_locality *n, const ek_plan_limits *l, const int64_t *counts,
                        const ek_plan *p);

/* Adds such replicas to a plan, or replaces its replicas by such ones, whichever takes least.
 * Returns 1 if that is faster than the given plan; *s is then the new time.  Returns 0 if the plan
 * is unchanged.  total: [experts]. */
int ek_locality_improve(ek_locality *n, const ek_plan_limits *l, const int64_t *counts,
                        const int64_t *total, ek_plan *p, double *s);

#endif
