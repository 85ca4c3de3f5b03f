/* plan_fixture.h - a planner under test, with its memory, a placement in block order and counts. */
#ifndef PLAN_FIXTURE_H
#define PLAN_FIXTURE_H

#include "balance/planner.h"
#include "ek_test.h"

typedef struct {
    const ek_planner *planner;
    ek_arena arena;
    ek_plan_limits l;
    ek_plan p;
    void *memory;
    int64_t *counts, *load; /* [ranks][experts], [ranks] */
} fixture;

static inline void plan_lay_out(fixture *f, ek_arena *a)
{
    ek_plan_reserve(&f->p, a, &f->l);
    f->counts = ek_arena_alloc(a, (int64_t)f->l.ranks * f->l.experts, sizeof(*f->counts));
    f->load = ek_arena_alloc(a, f->l.ranks, sizeof(*f->load));
    f->memory = ek_planner_reserve(f->planner, a, &f->l);
}

/* Block order, counts of 0; checks that the planner uses as much memory as it measured. */
static inline void plan_setup(fixture *f, const ek_planner *planner, int32_t experts, int32_t ranks,
                              int32_t slots, ek_plan_costs costs)
{
    size_t measured;

    memset(f, 0, sizeof(*f));
    f->planner = planner;
    f->l = (ek_plan_limits){
        .experts = experts, .ranks = ranks, .slots = slots, .replicas_min = 1, .costs = costs};
    ek_arena_measure(&f->arena);
    plan_lay_out(f, &f->arena);
    measured = f->arena.used;
    CHECK(f->memory == NULL);
    CHECK(ek_arena_reserve(&f->arena, "a plan") == EK_OK);
    plan_lay_out(f, &f->arena);
    CHECK(ek_arena_check(&f->arena, "a plan") == EK_OK);
    CHECK_INT(f->arena.used, measured);
    ek_placement_block(&f->p.placement, 1);
    f->p.explain = 1;
}

static inline void teardown(fixture *f)
{
    ek_arena_fini(&f->arena);
}

/* Plans for these counts and checks that the plan is valid. */
static inline void plan_make(fixture *f, const int64_t *counts)
{
    if (f->planner->plan_persistent != NULL)
        CHECK(f->planner->plan_persistent(f->memory, &f->l, counts, &f->p) == EK_OK);
    if (f->planner->plan_transient != NULL)
        CHECK(f->planner->plan_transient(f->memory, &f->l, counts, &f->p) == EK_OK);
    if (ek_plan_check(&f->l, counts, &f->p) != EK_OK)
        EK_T_FAIL("%s", ek_err_message());
}

#endif
