/* balance/row_costs.h - ranks that differ: what an assignment costs on each rank.
 *
 * Units        limits.row_cost [ranks] is the time of an assignment on a rank, in EK_ROW_COST_ONE
 *              ths of compute_s_per_row, so that time is compared in integers, the same on every
 *              rank.  NULL: it is the same everywhere, and 1 an assignment.
 * Weighted     The weighted load of a rank is its assignments times their cost; without row_cost it
 *              is the assignments.  Planners level weighted loads.  Within a weighted load of w a
 *              rank can serve floor(w / cost) assignments: its capacity.
 * Range        Assignments, summed over ranks, times the largest cost are at most 2^62. */
#ifndef BALANCE_ROW_COSTS_H
#define BALANCE_ROW_COSTS_H

#include "balance/planner.h"

enum {
    EK_ROW_COST_ONE = 256,
    EK_ROW_COST_MAX = 64 * EK_ROW_COST_ONE /* slower ranks count as such */
};

/* Fills cost [ranks] from relative speeds, each finite and above 0: EK_ROW_COST_ONE for the
 * fastest.  Returns whether any differ. */
int ek_row_costs_of_speeds(int32_t ranks, const double *speed, int32_t *cost);

/* The same from a text: one speed for each rank, separated by commas.  Fills *differ.  EK_EINVAL
 * names the first that is none. */
EK_CHECKED ek_status ek_row_costs_read(const char *text, int32_t ranks, int32_t *cost, int *differ);

/* Cost of an assignment on a rank, in the unit of weighted loads. */
static inline int64_t ek_row_cost(const ek_plan_limits *l, int32_t rank)
{
    return l->row_cost != NULL ? l->row_cost[rank] : 1;
}

/* What a cost of compute_s_per_row is in that unit. */
static inline int64_t ek_row_cost_unit(const ek_plan_limits *l)
{
    return l->row_cost != NULL ? EK_ROW_COST_ONE : 1;
}

/* The least cost of all ranks. */
int64_t ek_row_cost_least(const ek_plan_limits *l);

/* Fills capacity [ranks] for a weighted load. */
void ek_row_costs_capacities(const ek_plan_limits *l, int64_t weighted, int64_t *capacity);

/* The largest weighted load of load [ranks]. */
int64_t ek_row_costs_largest(const ek_plan_limits *l, const int64_t *load);

/* The least weighted load within which the capacities of ranks add up to `assignments`: those where
 * has [ranks] is not 0, at least one; NULL: all ranks.  Without row_cost it is their mean, rounded
 * up. */
int64_t ek_row_costs_level(const ek_plan_limits *l, const unsigned char *has, int64_t assignments);

/* The weighted load of all ranks if assignments could be divided: what levels are compared with. */
double ek_row_costs_mean(const ek_plan_limits *l, int64_t assignments);

/* Seconds of a layer whose busiest rank has a weighted load, without replicas: products there, and
 * rows on the link of a rank of the least cost that takes as long. */
double ek_row_costs_seconds(const ek_plan_limits *l, int64_t weighted);

/* A weighted load in assignments of a rank whose cost is EK_ROW_COST_ONE, for texts. */
static inline long long ek_row_costs_shown(const ek_plan_limits *l, int64_t weighted)
{
    return (long long)(weighted / ek_row_cost_unit(l));
}

/* "", or what texts add to such numbers where ranks differ. */
static inline const char *ek_row_costs_note(const ek_plan_limits *l)
{
    return l->row_cost != NULL ? ", weighted by speed" : "";
}

#endif
