/* Plans of `exact` that replicas for links improve: memory, times by ek_plan_time, draws. */
#ifndef UNIT_IMPROVED_PLANS_H
#define UNIT_IMPROVED_PLANS_H

#include "balance/even_replicas.h"
#include "balance/plan_time.h"
#include "base/random.h"
#include "plan_fixture.h"

typedef struct {
    fixture f; /* memory of `exact`, which makes the plans to be improved */
    ek_arena arena;
    ek_locality near;
    ek_even_replicas even;
    ek_quota_flow flow;
    int64_t *memory, *total; /* of ek_plan_time; [experts] */
    int32_t *slots;
} world;

static inline void lay_out(world *w, ek_arena *a)
{
    int64_t all = (int64_t)w->f.l.ranks * w->f.l.slots;

    ek_locality_reserve(&w->near, a, &w->f.l);
    ek_even_replicas_reserve(&w->even, a, &w->f.l);
    ek_quota_flow_reserve(&w->flow, a, &w->f.l);
    w->memory = ek_arena_alloc(a, 4 * w->f.l.ranks + (w->f.l.ranks + 1) * all, sizeof(*w->memory));
    w->slots = ek_arena_alloc(a, all, sizeof(*w->slots));
    w->total = ek_arena_alloc(a, w->f.l.experts, sizeof(*w->total));
}

static inline void setup(world *w, int32_t experts, int32_t ranks, int32_t spare,
                         ek_plan_costs costs)
{
    plan_setup(&w->f, &ek_planner_exact, experts, ranks, (experts + ranks - 1) / ranks + spare,
               costs);
    ek_arena_measure(&w->arena);
    lay_out(w, &w->arena);
    CHECK(ek_arena_reserve(&w->arena, "a world") == EK_OK);
    lay_out(w, &w->arena);
}

static inline void drop(world *w)
{
    ek_arena_fini(&w->arena);
    teardown(&w->f);
}

static inline double plan_time(world *w)
{
    return ek_plan_time(&w->f.l, w->f.counts, &w->f.p, w->memory, w->slots);
}

static inline int32_t replicas(const world *w)
{
    int32_t n = 0;

    for (int32_t s = 0; s < w->f.l.ranks * w->f.l.slots; s++)
        n += ek_plan_is_replica(&w->f.p.placement, s);
    return n;
}

/* Fails unless an improved plan is valid, faster than before exactly if `better`, and takes s. */
static inline void check_improved(world *w, double before, int better, double s)
{
    if (ek_plan_check(&w->f.l, w->f.counts, &w->f.p) != EK_OK)
        EK_T_FAIL("%s", ek_err_message());
    CHECK(fabs(plan_time(w) - s) <= 1e-12 * s);
    CHECK(better ? s < before : plan_time(w) == before);
}

#endif
