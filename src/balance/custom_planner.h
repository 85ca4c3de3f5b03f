/* balance/custom_planner.h - planners that users of the library have registered
 * (evenkeel/planner.h), as ek_planner.
 *
 * A registered planner is an ek_planner with `custom` set.  Its plan functions pass input and
 * output to the user's functions, and check the plan: a fault fails the call, with a message that
 * says what is wrong and does not name the planner: callers add its name. */
#ifndef BALANCE_CUSTOM_PLANNER_H
#define BALANCE_CUSTOM_PLANNER_H

#include "balance/planner.h"

/* Registered planner i, in order of registration; NULL behind the last.  From any thread. */
const ek_planner *ek_custom_planner_at(int i);

/* Reserves the memory of a registered planner and of its checks, and initialises it; NULL while the
 * arena measures. */
void *ek_custom_planner_reserve(const ek_planner *p, ek_arena *a, const ek_plan_limits *l);

#endif
