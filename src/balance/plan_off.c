/* off: no balancing.  The primary copies serve all assignments. */
#include "balance/planner.h"

static void *reserve_off(ek_arena *a, const ek_plan_limits *l)
{
    return ek_arena_alloc(a, l->experts, sizeof(int64_t));
}

static ek_status plan_off(void *memory, const ek_plan_limits *l, const int64_t *counts, ek_plan *p)
{
    ek_plan_totals(l, counts, memory);
    ek_plan_primaries_only(l, memory, p);
    return EK_OK;
}

const ek_planner ek_planner_off = {.name = "off",
                                   .what = "no replicas, no moves: primary copies serve everything",
                                   .reserve = reserve_off,
                                   .plan_transient = plan_off};
