/* random_planner.h - planners for tests: replicas in random slots, random quotas, a new plan each
 * time. No plan may change what is computed. */
#ifndef RANDOM_PLANNER_H
#define RANDOM_PLANNER_H

#include "balance/planner.h"
#include "base/random.h"

typedef struct {
    uint64_t draws;
    int64_t *total; /* [experts] */
} ek_random_planner;

static inline void *random_take(ek_arena *a, const ek_plan_limits *l)
{
    ek_random_planner *r = ek_arena_alloc(a, 1, sizeof(*r)), none;
    ek_random_planner *at = r != NULL ? r : &none;

    at->draws = 0;
    at->total = ek_arena_alloc(a, l->experts, sizeof(*at->total));
    return r;
}

/* A random number from 0 to n. */
static inline int64_t random_up_to(ek_random_planner *r, int64_t n)
{
    return (int64_t)(ek_random_bits(7, 1, r->draws++) % (uint64_t)(n + 1));
}

static inline ek_status random_transient(void *memory, const ek_plan_limits *l,
                                         const int64_t *counts, ek_plan *p)
{
    ek_random_planner *r = memory;
    int32_t all = l->ranks * l->slots;

    ek_plan_totals(l, counts, r->total);
    for (int32_t s = 0; s < all; s++)
        if (p->placement.expert_of[s] < 0 && random_up_to(r, 3) > 0)
            p->placement.expert_of[s] = (int32_t)random_up_to(r, l->experts - 1);
    for (int32_t s = 0; s < all; s++) {
        int32_t e = p->placement.expert_of[s];

        p->quota[s] = e < 0 ? 0 : random_up_to(r, r->total[e]);
        if (e >= 0)
            r->total[e] -= p->quota[s];
    }
    for (int32_t e = 0; e < l->experts; e++)
        p->quota[p->placement.primary[e]] += r->total[e];
    return EK_OK;
}

/* Primary copies and persistent replicas in random slots. */
static inline ek_status random_persistent(void *memory, const ek_plan_limits *l,
                                          const int64_t *counts, ek_plan *p)
{
    ek_random_planner *r = memory;
    int32_t all = l->ranks * l->slots;

    for (int32_t s = 0; s < all; s++)
        p->placement.expert_of[s] = -1;
    for (int32_t e = 0; e < l->experts; e++) {
        int32_t s = (int32_t)random_up_to(r, all - 1);

        while (p->placement.expert_of[s] >= 0)
            s = (s + 1) % all;
        p->placement.expert_of[s] = e;
        p->placement.primary[e] = s;
    }
    return random_transient(memory, l, counts, p);
}

static const ek_planner random_planner = {.name = "random",
                                          .what = "anything",
                                          .reserve = random_take,
                                          .plan_transient = random_transient};
static const ek_planner random_from_previous = {.name = "random from previous counts",
                                                .what = "anything",
                                                .reserve = random_take,
                                                .plan_transient = random_transient,
                                                .uses_previous_counts = 1};
static const ek_planner random_before_or_after = {.name = "random from either counts",
                                                  .what = "anything",
                                                  .reserve = random_take,
                                                  .plan_transient = random_transient,
                                                  .may_use_previous_counts = 1};
static const ek_planner random_persistent_plan = {.name = "random persistent",
                                                  .what = "anything",
                                                  .reserve = random_take,
                                                  .plan_persistent = random_persistent};

#endif
