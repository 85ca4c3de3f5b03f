/* Training with every planner, on very uneven loads: the same losses as one rank alone, and a
 * better balance of ranks; a planner that takes too long is switched off.  Ranks are threads.
 */
#include "balance/workload.h"
#include "equal_threads.h"

enum { ITERATIONS = 40, LAYERS = 2, SOURCES = 1, EXPERTS = 5 };

static uint32_t numbers[ITERATIONS * LAYERS * SOURCES * EXPERTS];

/* A workload in which the hot expert stays for a while. */
static const ek_trace *hot_spots(void)
{
    static ek_trace t = {.data = (const unsigned char *)numbers,
                         .width = sizeof(*numbers),
                         .iterations = ITERATIONS,
                         .layers = LAYERS,
                         .sources = SOURCES,
                         .experts = EXPERTS};
    ek_workload_shape s = {.iterations = ITERATIONS,
                           .layers = LAYERS,
                           .sources = SOURCES,
                           .experts = EXPERTS,
                           .tokens = 1000,
                           .top_k = 2,
                           .seed = 3};
    ek_workload_maker *m = NULL;

    CHECK(ek_workload_open(ek_workload_find("W5"), &s, &m) == EK_OK);
    for (int64_t i = 0; i < ITERATIONS * LAYERS; i++)
        ek_workload_counts(m, i / LAYERS, i % LAYERS, numbers + i * SOURCES * EXPERTS);
    ek_workload_close(&m);
    return &t;
}

static equal_layout over(int ranks, int balance)
{
    return (equal_layout){.ranks = ranks,
                          .pp = 1,
                          .model_chunks = 1,
                          .tp = 1,
                          .ep = ranks,
                          .etp = 1,
                          .degree = 1 + balance % 2,
                          .shape = 1,
                          .balance = balance,
                          .replay = hot_spots()};
}

/* What a planner does over ranks; losses are compared inside. */
static equal_result at_work(const equal_layout *l)
{
    static equal_result result[EQUAL_RANKS_MAX];

    equal_check_into(l, result);
    return result[0];
}

static void every_planner_trains_as_one_rank(void)
{
    for (int balance = 0; balance < EQUAL_PLANNERS; balance++)
        for (int ranks = 2; ranks <= 6; ranks += 2) {
            equal_layout l = over(ranks, balance);

            if (!EK_T_SLOW || ranks == 2 + balance % 3 * 2)
                at_work(&l);
        }
}

/* Hot spots that stay for four steps: those who look at these very loads level them; those who look
 * at the past, where a placement can. */
static void planners_are_at_work(void)
{
    equal_layout off = over(4, 0);
    double none = at_work(&off).after;

    for (int balance = 1; balance < EQUAL_PLANNERS; balance++) {
        const ek_planner *p = equal_planners[balance];
        equal_layout l = over(4, balance);
        equal_result r = at_work(&l);

        CHECK(r.before == none);
        if (p == &ek_planner_exact || p == &ek_planner_auto)
            CHECK(r.after < 1.1 * EQUAL_STEPS && r.replicas > 0);
        if (p == &ek_planner_shadow || p == &ek_planner_prophet)
            CHECK(r.after < 0.8 * none && r.replicas > 0);
        if (p == &ek_planner_place || p == &ek_planner_eplb)
            CHECK(r.after < 0.95 * none && r.moved > 0);
        if (p == &ek_planner_replicate) /* for loads that are gone when it has moved */
            CHECK(r.after != none && r.replicas > 0 && r.moved > 0);
        if (p == &ek_planner_fastermoe) /* shadows nothing where sources have equal numbers */
            CHECK(r.after == none && r.replicas == 0);
    }
}

static ek_status sleepy(void *memory, const ek_plan_limits *l, const int64_t *counts, ek_plan *p)
{
    usleep(60000);
    return random_transient(memory, l, counts, p);
}

/* Three steps are enough for its ranks to agree; what they compute does not change. */
static void who_takes_too_long_is_left_out(void)
{
    static const ek_planner slow = {
        .name = "sleepy", .what = "late", .reserve = random_take, .plan_transient = sleepy};
    equal_layout l = over(2, 1);
    equal_result r;

    l.planner = &slow;
    r = at_work(&l);
    CHECK(r.replicas > 0);
    CHECK(r.plans <= 4 * LAYERS * 4); /* of 50 steps, a few */
}

static const ek_case cases[] = {
    EK_CASE(every_planner_trains_as_one_rank),
    EK_CASE(planners_are_at_work),
    EK_CASE(who_takes_too_long_is_left_out),
};
EK_TEST_MAIN(cases)
