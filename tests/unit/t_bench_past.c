/* Persistent placements after past loads: when experts move, and how many. */
#include "bench/balance_past.h"
#include "ek_test.h"

#include <string.h>

enum { RANKS = 4, EXPERTS = 8, SLOTS = 3, TOKENS = 1200, STEPS = 60, EVERY = 4, LAYERS = 3 };

static int64_t loads[STEPS][RANKS][EXPERTS];

/* Experts of one rank, which changes after `stays` steps, are three times as popular as others. */
static void make_loads(int stays)
{
    for (int s = 0; s < STEPS; s++)
        for (int r = 0; r < RANKS; r++)
            for (int e = 0; e < EXPERTS; e++)
                loads[s][r][e] = e / 2 == s / stays % RANKS ? 3 : 1;
}

/* Persistent placements of all layers, in memory that the caller frees; returns how many experts
 * move. */
static int64_t place(const ek_trace *trace, const ek_planner *planner, int64_t steps,
                     double migrate_s, ek_arena *a, ek_plan *plans)
{
    const ek_model_spec spec = {.layers = LAYERS, .top_k = 1, .dense = {0, 1, 0}};
    const ek_plan_limits l = {
        .experts = EXPERTS,
        .ranks = RANKS,
        .slots = SLOTS,
        .replicas_min = 1,
        .horizon = EVERY,
        .costs = {.compute_s_per_row = 1, .replica_s = 1e9, .migrate_s_per_expert = migrate_s}};
    const bench_past past = {.spec = &spec,
                             .limits = &l,
                             .trace = trace,
                             .steps = steps,
                             .plan_every = EVERY,
                             .tokens = TOKENS};
    int64_t moved = -1;

    ek_arena_measure(a);
    for (int i = 0; i < LAYERS; i++)
        ek_plan_reserve(&plans[i], a, &l);
    CHECK(ek_arena_reserve(a, "plans") == EK_OK);
    for (int i = 0; i < LAYERS; i++) {
        ek_plan_reserve(&plans[i], a, &l);
        ek_placement_block(&plans[i].placement, 1);
    }
    if (bench_place_by_past(&past, planner, plans, &moved) != EK_OK)
        EK_T_FAIL("%s", ek_err_message());
    return moved;
}

/* Experts that move in so many steps.  A row takes a second, so that a rank with two popular
 * experts takes 2,400 s and one of each 1,600 s; a move takes migrate_s of a link. */
static int64_t count_moves(const ek_planner *planner, int64_t steps, double migrate_s,
                           ek_plan *last)
{
    const ek_trace trace = {.data = (const unsigned char *)loads,
                            .width = sizeof(int64_t),
                            .iterations = STEPS,
                            .layers = 1,
                            .sources = RANKS,
                            .experts = EXPERTS};
    ek_arena a = {0};
    ek_plan plans[LAYERS];
    int64_t moved = place(&trace, planner, steps, migrate_s, &a, plans);

    CHECK(memcmp(plans[0].placement.expert_of, plans[2].placement.expert_of,
                 sizeof(int32_t) * RANKS * SLOTS) == 0);
    CHECK_INT(plans[1].placement.primary[EXPERTS - 1], RANKS * SLOTS - 2); /* dense: not planned */
    *last = (ek_plan){.before_s = plans[0].before_s};
    memcpy(last->reason, plans[0].reason, sizeof(last->reason));
    ek_arena_fini(&a);
    return moved;
}

/* The first placement is made after one step; with constant loads nothing moves again. */
static void constant_loads_move_once(void)
{
    ek_plan last;

    make_loads(STEPS);
    CHECK_INT(count_moves(&ek_planner_auto, 1, 10, &last), 2 * 2); /* a swap in both layers */
    CHECK(strstr(last.reason, "2 of 8 experts move") != NULL);
    CHECK_INT(count_moves(&ek_planner_auto, STEPS, 10, &last), 2 * 2);
    CHECK(strstr(last.reason, "no move") != NULL);
    CHECK_INT(count_moves(&ek_planner_place, 1, 10, &last), 2 * 4);
    CHECK_INT(count_moves(&ek_planner_place, STEPS, 10, &last), 2 * 4);
    CHECK(strstr(last.reason, "no move") != NULL);
}

/* 800 s a step must save twice the cost of a move: 10 steps are too few, and 12 in which loads have
 * been constant are enough. */
static void costly_moves_wait_for_constant_loads(void)
{
    ek_plan last;

    make_loads(STEPS);
    CHECK_INT(count_moves(&ek_planner_auto, 1, 4400, &last), 0);
    CHECK_INT(count_moves(&ek_planner_auto, 11, 4400, &last), 0);
    CHECK_INT(count_moves(&ek_planner_auto, 12, 4400, &last), 2 * 2);
    CHECK_INT(count_moves(&ek_planner_auto, STEPS, 4400, &last), 2 * 2);
}

/* Loads that change as often as plans are made: the horizon stays short. */
static void costly_moves_need_constant_loads(void)
{
    ek_plan last;

    for (int stays = 3; stays <= 6; stays++) {
        make_loads(stays);
        CHECK_INT(count_moves(&ek_planner_auto, STEPS, 4400, &last), 0);
    }
    make_loads(20);
    CHECK(count_moves(&ek_planner_auto, STEPS, 10, &last) > 2 * 2); /* cheap ones follow */
}

/* The second MoE layer has the past of the third of four layers, as in training. */
static void layers_are_spread_over_those_of_the_trace(void)
{
    enum { OF_TRACE = 4 };
    static int64_t deep[STEPS][OF_TRACE][RANKS][EXPERTS];
    const ek_trace trace = {.data = (const unsigned char *)deep,
                            .width = sizeof(int64_t),
                            .iterations = STEPS,
                            .layers = OF_TRACE,
                            .sources = RANKS,
                            .experts = EXPERTS};
    ek_arena a = {0};
    ek_plan plans[LAYERS];
    const ek_placement *at = &plans[2].placement;

    for (int s = 0; s < STEPS; s++)
        for (int l = 0; l < OF_TRACE; l++) /* only the third has a hot rank: the last */
            for (int r = 0; r < RANKS; r++)
                for (int e = 0; e < EXPERTS; e++)
                    deep[s][l][r][e] = l == 2 && e / 2 == RANKS - 1 ? 3 : 1;
    CHECK_INT(place(&trace, &ek_planner_auto, 1, 10, &a, plans), 2);
    CHECK(at->primary[EXPERTS - 1] / SLOTS != at->primary[EXPERTS - 2] / SLOTS);
    CHECK(plans[0].placement.primary[EXPERTS - 1] / SLOTS ==
          plans[0].placement.primary[EXPERTS - 2] / SLOTS);
    ek_arena_fini(&a);
}

static const ek_case cases[] = {
    EK_CASE(layers_are_spread_over_those_of_the_trace),
    EK_CASE(constant_loads_move_once),
    EK_CASE(costly_moves_wait_for_constant_loads),
    EK_CASE(costly_moves_need_constant_loads),
};
EK_TEST_MAIN(cases)
