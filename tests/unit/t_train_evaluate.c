/* An evaluation between steps changes nothing: losses, gradients, choices and plans of training are
 * the same, bit for bit, with evaluations and without, on any layout and under any planner.  Equal
 * losses of evaluations on all layouts are checked by equal_compare, here and in t_train_equal.c.
 */
#include "equal_threads.h"

enum { SECONDS = 900 };

static void check(equal_layout l)
{
    static equal_result with[EQUAL_RANKS_MAX], without[EQUAL_RANKS_MAX];
    int evaluations = 0;

    equal_check_into(&l, with);
    l.blind = 1;
    equal_check_into(&l, without);
    for (int r = 0; r < l.ranks; r++) {
        CHECK(memcmp(with[r].loss, without[r].loss, sizeof(with[r].loss)) == 0);
        CHECK(memcmp(with[r].aux, without[r].aux, sizeof(with[r].aux)) == 0);
        CHECK(memcmp(with[r].norm, without[r].norm, sizeof(with[r].norm)) == 0);
        CHECK(memcmp(with[r].dropped, without[r].dropped, sizeof(with[r].dropped)) == 0);
        CHECK(with[r].replicas == without[r].replicas && with[r].moved == without[r].moved);
        CHECK(with[r].plans == without[r].plans);
    }
    for (int i = 0; i < EQUAL_STEPS; i++)
        evaluations += with[0].eval[i] > 0;
    CHECK(evaluations > 0 && without[0].eval[1] == 0);
}

/* Sigmoid gates with a bias, noise, capacity, dynamic top-k, expert choice, re-routing. */
static void one_rank(void)
{
    static const int models[] = {0, 2, 4, 5, 6, 11, 15};

    alarm(SECONDS);
    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++)
        check((equal_layout){.model = models[i],
                             .shape = (int)i % EQUAL_SHAPES,
                             .ranks = 1,
                             .pp = 1,
                             .model_chunks = 1,
                             .tp = 1,
                             .ep = 1,
                             .etp = 1,
                             .degree = 1});
}

/* A planner that takes long is not left out, as it could be on a busy machine. */
static const ek_planner *asked;

static ek_status ask_again(ek_trainer *tr, int step)
{
    (void)step;
    return ek_trainer_set_planner(tr, asked);
}

/* Every planner, with load history, transient replicas, and experts that migrate. */
static void planners(void)
{
    alarm(SECONDS);
    for (int balance = EK_T_SLOW; balance < EQUAL_PLANNERS; balance += 1 + 3 * EK_T_SLOW) {
        asked = equal_planners[balance];
        check((equal_layout){.model = balance % 2 == 0 ? 0 : 2,
                             .shape = 1,
                             .ranks = 4,
                             .pp = 1,
                             .model_chunks = 1,
                             .tp = 1,
                             .ep = 4,
                             .etp = 1,
                             .degree = 2,
                             .nodes = EQUAL_TWOS,
                             .balance = balance,
                             .turn = asked != NULL ? ask_again : NULL});
    }
}

/* Virtual stages, all ZeRO stages, gathered slices, recomputation. */
static void layouts(void)
{
    static const equal_layout some[] = {
        {.ranks = 4,
         .pp = 2,
         .model_chunks = 2,
         .tp = 1,
         .ep = 2,
         .etp = 1,
         .zero = 3,
         .degree = 1},
        {.ranks = 4,
         .pp = 2,
         .model_chunks = 1,
         .tp = 2,
         .ep = 1,
         .etp = 2,
         .zero = 1,
         .degree = 2},
        {.ranks = 4,
         .pp = 1,
         .model_chunks = 1,
         .tp = 2,
         .ep = 2,
         .etp = 2,
         .zero = 2,
         .degree = 1},
        {.ranks = 4, .pp = 4, .model_chunks = 1, .tp = 1, .ep = 1, .etp = 1, .degree = 1},
        {.ranks = 4,
         .pp = 1,
         .model_chunks = 1,
         .tp = 1,
         .ep = 2,
         .etp = 2,
         .degree = 1,
         .gather = -1},
        {.ranks = 2,
         .pp = 1,
         .model_chunks = 1,
         .tp = 1,
         .ep = 1,
         .etp = 1,
         .zero = 3,
         .degree = 1},
        {.ranks = 4,
         .pp = 1,
         .model_chunks = 1,
         .tp = 1,
         .ep = 4,
         .etp = 1,
         .degree = 1,
         .gather = -1},
    };

    alarm(SECONDS);
    for (size_t i = 0; i < sizeof(some) / sizeof(some[0]); i++) {
        equal_layout l = some[i];

        l.model = (int)i;
        l.shape = (int)(i + 3) % EQUAL_SHAPES;
        if (l.gather < 0 && l.ep == 4) { /* rows stay, and loads are remembered all the same */
            l.balance = EQUAL_AUTO;
            l.turn = ask_again;
            asked = equal_planners[l.balance];
        }
        l.recompute = (ek_recompute)(i % 3);
        l.worker = i % 2 == 1;
        check(l);
    }
}

static const ek_case cases[] = {
    EK_CASE(one_rank),
    EK_CASE(planners),
    EK_CASE(layouts),
};

EK_TEST_MAIN(cases)
