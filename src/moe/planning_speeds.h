/* moe/planning_speeds.h - measured speeds of ranks as costs of the planners
 * (balance/rank_speeds.h).
 *
 * Between steps, and by all ranks of a stage alike: all get the same sums. */
#ifndef MOE_PLANNING_SPEEDS_H
#define MOE_PLANNING_SPEEDS_H

#include "moe/planning.h"

/* Nothing is followed unless cfg->follow_speeds says so and there are several expert ranks. */
void ek_planning_speeds_reserve(ek_moe_planning *d, ek_arena *a, const ek_moe_config *cfg,
                                const ek_mesh *mesh);

/* Adds a step: seconds, rows and groups of the expert ranks [edp * ep] (ek_rank_speeds_add), and
 * sets the costs of the next plans.  Returns whether they changed. */
int ek_planning_speeds_add(ek_moe_planning *d, const double *seconds, const double *rows,
                           const double *groups);

#endif
