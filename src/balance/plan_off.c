/* off: no balancing.  Every expert's assignments go to its home. */
#include "balance/planner.h"

static void *reserve(ek_arena *a, const ek_plan_limits *l)
{
    return ek_arena_alloc(a, l->experts, sizeof(int64_t));
}

static ek_status plan(void *memory, const ek_plan_limits *l, const int64_t *counts, ek_plan *p)
{
    ek_plan_totals(l, counts, memory);
    ek_plan_primaries_only(l, memory, p);
    return EK_OK;
}

const ek_planner ek_planner_off = {.name = "off",
                                   .what = "every expert at its home alone",
                                   .reserve = reserve,
                                   .plan_transient = plan};
