/* balance/replica_search.h - replicas that cost less time than they save: the search of the
 * planners whose policy is `auto`.
 *
 * Model        B the busiest rank's assignments, weighted where ranks differ (row_costs.h; rows on
 *              links are then those of the fastest rank within that weighted load), D the busiest
 *              source's, n the replicas on the busiest link (those a rank receives, or experts it
 *              sends, each counted once):
 *                T = B compute_s_per_row + max(B, D) comm_s_per_row + n replica_s
 *              D is there because balancing does not shorten what the busiest source sends.  If
 *              compute_s_per_row and comm_s_per_row are 0, only balance counts, as in `exact`.
 * Search       Among the plans of alias_balance.h with at most n replicas per link, n = 0, 1, 2,
 *              ... up to what `exact` uses, the one with the least T; n stops where n replica_s
 *              exceeds what the mean load could save.
 * Shortcuts    If one replica per link gets as low as the mean load would with two, larger n are
 *              skipped; n = 1 is skipped if some rank without its heaviest expert is too loaded. */
#ifndef BALANCE_REPLICA_SEARCH_H
#define BALANCE_REPLICA_SEARCH_H

#include "balance/alias_balance.h"

/* A candidate plan. */
typedef struct {
    double s;      /* predicted time of a micro-batch */
    int64_t most;  /* the largest weighted load */
    int32_t links; /* replicas on the busiest link */
    int32_t n;     /* replicas */
} ek_replica_outcome;

typedef struct {
    ek_plan_costs
        costs;        /* costs used by the search; compute_s_per_row per unit of weighted loads */
    int64_t cheapest; /* the least cost of an assignment, in that unit */
    int64_t busiest;  /* D: assignments of the busiest source */
    double of;        /* number of micro-batches in the counts */
    ek_alias alias;
    ek_alias_move *kept; /* [ranks * slots] moves of the best outcome */
} ek_replica_search;

void ek_replica_search_reserve(ek_replica_search *m, ek_arena *a, const ek_plan_limits *l);

/* Sets the costs, the assignments of the busiest source, and how many micro-batches the counts sum
 * up (0 is 1). */
void ek_replica_search_set(ek_replica_search *m, const ek_plan_limits *l, int64_t busiest,
                           int64_t of);

/* T of a micro-batch. */
double ek_replica_search_time(const ek_replica_search *m, int64_t most, int32_t links);

/* The least weighted load of the ranks that m->alias.total allows. */
int64_t ek_replica_search_level(const ek_replica_search *m, const ek_plan_limits *l);

/* The least time from the placement given to ek_alias_start, in which the busiest rank has the
 * weighted load `most`; moves: m->kept.  If it is not below `below`, the result is only an upper
 * bound. */
ek_replica_outcome ek_replica_search_run(ek_replica_search *m, const ek_plan_limits *l,
                                         int64_t most, double below);

#endif
