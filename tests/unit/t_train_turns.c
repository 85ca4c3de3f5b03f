/* Planners that alternate during training, with experts migrated between steps: the same losses as
 * one rank alone, for any planner and placement.  Ranks are threads. */
#include "equal_threads.h"

enum { LAYERS_MAX = 4, SLOTS_MAX = 64, EXPERTS_MAX = 16 };

static const ek_planner *const others[] = {
    &random_planner,    &random_persistent_plan, &random_from_previous, &random_before_or_after,
    &ek_planner_shadow, &ek_planner_place,       &ek_planner_prophet,   &ek_planner_replicate,
    &ek_planner_eplb,   &ek_planner_exact,       &ek_planner_auto,      NULL};
enum { OTHERS = sizeof(others) / sizeof(others[0]) - 1 };

/* Placements of a rank's layers, as they were when it began. */
typedef struct {
    int known;
    ek_plan of[LAYERS_MAX];
    int32_t expert_of[LAYERS_MAX][SLOTS_MAX], primary[LAYERS_MAX][EXPERTS_MAX];
    int64_t quota[LAYERS_MAX][SLOTS_MAX];
} places;

static _Thread_local places block;
static _Atomic int64_t asked, sent_primary, refused;

static void remember(const ek_pass *p)
{
    for (int64_t l = 0; l < p->model->spec.layers; l++) {
        const ek_plan_limits *limits = &p->planning.limits;

        block.of[l] = (ek_plan){.placement = {limits->experts, limits->ranks, limits->slots,
                                              block.expert_of[l], block.primary[l]},
                                .quota = block.quota[l]};
        ek_rebalance_placement(&p->rebalance, l, &block.of[l]);
    }
    block.known = 1;
}

/* Primary copies on a rank. */
static int held(const int32_t *expert_of, int32_t slots, int32_t rank)
{
    int n = 0;

    for (int32_t s = rank * slots; s < (rank + 1) * slots; s++)
        n += expert_of[s] >= 0;
    return n;
}

/* Whether a rank has more or fewer of them than initially. */
static int is_uneven(const ek_pass *p)
{
    int uneven = 0;

    for (int64_t l = 0; l < p->model->spec.layers; l++) {
        const ek_placement *was = &block.of[l].placement;

        for (int32_t r = 0; r < was->ranks; r++)
            uneven |= held(p->moe[l].w->placement.expert_of, was->slots, r) !=
                      held(was->expert_of, was->slots, r);
    }
    return uneven;
}

/* Sets another planner; every third time it places experts at once, every third time the initial
 * placement is restored. */
static ek_status turn(ek_trainer *tr, int step)
{
    uint64_t draw = ek_random_bits(6, 1, (uint64_t)step);
    const ek_planner *p = step % 8 == 7 ? &ek_planner_off : others[draw % OTHERS];
    int64_t moved = 0;

    if (!block.known)
        remember(ek_trainer_pass(tr));
    if (p->plan_transient != NULL && is_uneven(ek_trainer_pass(tr))) {
        CHECK(ek_trainer_set_planner(tr, p) == EK_EINVAL);
        EK_TRY(ek_trainer_place(tr, block.of, &moved));
        refused++;
    }
    EK_TRY(ek_trainer_set_planner(tr, p));
    if (draw / OTHERS % 3 == 0 && step > 0) {
        EK_TRY(ek_trainer_place(tr, NULL, &moved));
        asked += moved;
    } else if (draw / OTHERS % 3 == 1) {
        EK_TRY(ek_trainer_place(tr, block.of, &moved));
        sent_primary += moved;
    }
    return EK_OK;
}

static void any_planner_at_any_time(void)
{
    for (int ranks = 2; ranks <= 6; ranks += 2) {
        static equal_result result[EQUAL_RANKS_MAX];
        equal_layout l = {.ranks = ranks,
                          .pp = 1,
                          .model_chunks = 1,
                          .tp = 1,
                          .ep = ranks,
                          .etp = 1,
                          .degree = 1 + ranks / 4,
                          .shape = 1,
                          .nodes = EQUAL_TWOS,
                          .balance = 1,
                          .planner = &ek_planner_off,
                          .others = others,
                          .turn = turn};

        asked = sent_primary = refused = 0;
        equal_check_into(&l, result);
        CHECK(asked > 0 && sent_primary > 0 && refused > 0);
        CHECK(result[0].replicas > 0 && result[0].moved > 0 && result[0].brought > 0);
    }
}

/* A planner for which no memory was reserved is refused. */
static ek_status unknown(ek_trainer *tr, int step)
{
    (void)step;
    CHECK(ek_trainer_set_planner(tr, &ek_planner_fastermoe) == EK_EINVAL);
    return EK_OK;
}

static void only_planners_of_the_run(void)
{
    equal_layout l = {.ranks = 2,
                      .pp = 1,
                      .model_chunks = 1,
                      .tp = 1,
                      .ep = 2,
                      .etp = 1,
                      .degree = 1,
                      .balance = 1,
                      .others = others,
                      .turn = unknown};

    equal_check(&l);
}

static const ek_case cases[] = {
    EK_CASE(any_planner_at_any_time),
    EK_CASE(only_planners_of_the_run),
};
EK_TEST_MAIN(cases)
