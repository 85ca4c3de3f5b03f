/* Replays the loads of past steps through a planner, layer by layer. */
#include "bench/balance_past.h"

#include <string.h>

typedef struct {
    const bench_past *past;
    const ek_planner *planner;
    ek_arena arena;
    void *memory; /* of the planner */
    ek_plan_history history;
    ek_plan plan;
    int64_t *counts, *weight; /* [ranks][experts]; [2 experts] */
    ek_apportion_scratch scale;
} replay;

static void reserve_replay(replay *x)
{
    const ek_plan_limits *l = x->past->limits;
    ek_arena *a = &x->arena;

    x->memory = ek_planner_reserve(x->planner, a, l);
    ek_plan_history_reserve(&x->history, a, l);
    ek_plan_reserve(&x->plan, a, l);
    x->counts = ek_arena_alloc(a, (int64_t)l->ranks * l->experts, sizeof(*x->counts));
    x->weight = ek_arena_alloc(a, 2 * (int64_t)l->experts, sizeof(*x->weight));
    ek_apportion_reserve(&x->scale, a, l->experts);
}

static void remember_step(replay *x, int64_t step, int64_t moe_layer)
{
    const bench_past *of = x->past;
    const ek_plan_limits *l = of->limits;
    int64_t micro_batches = l->horizon / of->plan_every;
    int64_t groups = l->ep_groups > 1 ? l->ep_groups : 1;
    int64_t layer = ek_trace_layer_for(of->trace->layers, moe_layer, ek_model_moe_layers(of->spec));

    ek_trace_counts(of->trace, step, layer, l->ranks, x->counts);
    ek_trace_scale(&x->scale, l->ranks, l->experts, of->tokens, of->spec->top_k, x->weight,
                   x->counts);
    for (int64_t i = 0; i < micro_batches * groups; i++)
        ek_plan_remember(&x->history, l, x->counts);
}

/* Experts that ranks hold after a plan and did not hold before. */
static int64_t count_received(const ek_placement *before, const ek_placement *after)
{
    int64_t n = 0;

    for (int32_t s = 0; s < after->ranks * after->slots; s++) {
        int32_t e = after->expert_of[s];

        n += e >= 0 && ek_plan_slot(before, s / after->slots, e) < 0;
    }
    return n;
}

static ek_status place_layer(replay *x, int32_t layer, ek_plan *at, int64_t *moved)
{
    ek_plan_limits l = *x->past->limits;
    ek_plan *p = &x->plan;

    l.layer = layer;
    l.horizon = ek_plan_horizon(&x->history, &l);
    ek_placement_copy(&p->placement, &at->placement);
    p->of = x->history.of;
    p->explain = 1;
    EK_TRY(x->planner->plan_persistent(x->memory, &l, x->history.counts, p));
    EK_TRY(ek_plan_check(&l, x->history.counts, p));
    *moved += count_received(&at->placement, &p->placement);
    ek_placement_copy(&at->placement, &p->placement);
    memcpy(at->quota, p->quota, (size_t)l.ranks * (size_t)l.slots * sizeof(*at->quota));
    memcpy(at->reason, p->reason, sizeof(at->reason));
    return EK_OK;
}

/* One layer, in cleared memory. */
static ek_status replay_layer(replay *x, int32_t layer, ek_plan *at, int64_t *moved)
{
    const bench_past *of = x->past;
    int64_t moe_layer = ek_model_moe_layers_below(of->spec, layer);

    for (int64_t step = 1; step <= of->steps; step++) {
        remember_step(x, step - 1, moe_layer);
        if (step == 1 || step % of->plan_every == 0)
            EK_TRY(place_layer(x, layer, at, moved));
    }
    return EK_OK;
}

static ek_status open_replay(replay *x)
{
    ek_arena_measure(&x->arena);
    reserve_replay(x);
    EK_TRY(ek_arena_reserve(&x->arena, "past loads"));
    reserve_replay(x);
    return ek_arena_check(&x->arena, "past loads");
}

ek_status bench_place_by_past(const bench_past *past, const ek_planner *planner, ek_plan *plans,
                              int64_t *moved)
{
    ek_status st = EK_OK;

    *moved = 0;
    for (int32_t l = 0; l < past->spec->layers && st == EK_OK; l++) {
        replay x = {.past = past, .planner = planner};

        if (past->spec->dense[l])
            continue;
        st = open_replay(&x);
        if (st == EK_OK)
            st = replay_layer(&x, l, &plans[l], moved);
        ek_arena_fini(&x.arena);
    }
    return st;
}
