/* eplb: allocation and packing by hand, edge cases, the balance of the authors' code on recorded
 * loads, and properties over random layers. */
#include "balance/replay.h"
#include "balance_golden.h"
#include "base/random.h"
#include "plan_fixture.h"

enum { DRAWS = 300 };

static void setup(fixture *f, int32_t experts, int32_t ranks, int32_t slots)
{
    plan_setup(f, &ek_planner_eplb, experts, ranks, slots,
               (ek_plan_costs){.compute_s_per_row = 1, .comm_s_per_row = 1});
}

/* Load of the busiest rank; checks that every slot is filled. */
static int64_t run(fixture *f)
{
    plan_make(f, f->counts);
    for (int32_t s = 0; s < f->l.ranks * f->l.slots; s++)
        CHECK(f->p.placement.expert_of[s] >= 0);
    return ek_plan_loads(&f->l, &f->p, f->load);
}

static int32_t replicas(const fixture *f, int32_t expert)
{
    int32_t n = 0;

    for (int32_t s = 0; s < f->l.ranks * f->l.slots; s++)
        n += f->p.placement.expert_of[s] == expert;
    return n;
}

/* 90, 40, 10, 5 in six slots: the extra two go to 90 (then 45, then 30 each); packed 40 and 30, 30
 * and 30, 10 and 5: 40 alone is the heaviest first, then 30 to rank 1, 30 to rank 2, 30 to rank 1
 * or 2 with the least, which is rank 1, 10 to rank 2, 5 to rank 0 or 2 with room. */
static void by_hand(void)
{
    const int64_t loads[] = {90, 40, 10, 5};
    fixture f;

    setup(&f, 4, 3, 2);
    memcpy(f.counts, loads, sizeof(loads));
    CHECK_INT(run(&f), 60);
    CHECK_INT(replicas(&f, 0), 3);
    CHECK_INT(f.load[0], 45); /* 40 and 5 */
    CHECK_INT(f.load[1], 60); /* 30 and 30 */
    CHECK_INT(f.load[2], 40); /* 30 and 10 */
    CHECK(strstr(f.p.reason, "2 replicas bring the busiest rank from 130 to 60") != NULL);
    teardown(&f);
}

/* 7 assignments over two replicas are 4 and 3, 8 over three are 3, 3 and 2. */
static void what_does_not_divide(void)
{
    fixture f;

    setup(&f, 1, 2, 1);
    f.counts[1] = 7; /* from rank 1 */
    CHECK_INT(run(&f), 4);
    CHECK_INT(f.load[1], 3);
    teardown(&f);
    setup(&f, 1, 3, 1);
    f.counts[0] = 8;
    CHECK_INT(run(&f), 3);
    CHECK_INT(f.load[2], 2);
    teardown(&f);
}

/* Both experts get a replica on both ranks, expert 1 its first on rank 0: its primary copy stays on
 * rank 1. */
static void primaries_stay_where_possible(void)
{
    fixture f;

    setup(&f, 2, 2, 2);
    f.counts[0] = 90;
    f.counts[1] = 100;
    CHECK_INT(run(&f), 95);
    CHECK_INT(f.p.placement.expert_of[0], 1);
    CHECK_INT(f.p.placement.primary[1] / 2, 1);
    CHECK_INT(f.p.placement.primary[0] / 2, 0);
    teardown(&f);
}

static void edges(void)
{
    fixture f;

    setup(&f, 3, 3, 2); /* no assignments: the first expert gets all further slots */
    CHECK_INT(run(&f), 0);
    CHECK_INT(replicas(&f, 0), 4);
    teardown(&f);
    setup(&f, 5, 1, 5); /* one rank, no extra slot */
    f.counts[3] = 9;
    CHECK_INT(run(&f), 9);
    teardown(&f);
    setup(&f, 3, 9, 1); /* one expert takes all, more ranks than experts */
    f.counts[1] = 700;
    CHECK_INT(run(&f), 100);
    CHECK_INT(replicas(&f, 1), 7);
    teardown(&f);
}

/* 1.006 on the load that it was made from, as the authors' code gives for 288 slots on 32 ranks. */
static void recorded(void)
{
    ek_replay_config cfg = {.planner = &ek_planner_eplb,
                            .limits = {.experts = 256, .ranks = 32, .slots = 9}};
    ek_replay_result r;
    ek_trace t;

    if (!golden_open("deepseek_r1_prefill_in4096.npy", &t))
        SKIP("EK_TRACES does not name a folder with this trace");
    CHECK(ek_replay(&t, &cfg, &r) == EK_OK);
    CHECK(r.mean > 1.005 && r.mean < 1.007);
    ek_trace_close(&t);
}

static int64_t drawn(int draw, int i, uint64_t below)
{
    return (int64_t)(ek_random_bits(6, (uint64_t)draw, (uint64_t)i) % below);
}

/* No slot could have gone to a heavier replica; doubled counts give the same placement. */
static void random_layers(void)
{
    for (int draw = 0; draw < DRAWS; draw++) {
        int32_t ranks = 1 + (int32_t)drawn(draw, 0, 9), experts = 1 + (int32_t)drawn(draw, 1, 20);
        int32_t slots = (experts + ranks - 1) / ranks + (int32_t)drawn(draw, 2, 3);
        int32_t *was;
        fixture f;

        setup(&f, experts, ranks, slots);
        for (int32_t i = 0; i < ranks * experts; i++)
            f.counts[i] = drawn(draw, 100 + i, i % 3 == 0 ? 1000 : 20);
        (void)run(&f);
        for (int32_t a = 0; a < experts; a++)
            for (int32_t b = 0; b < experts && replicas(&f, a) > 1; b++) {
                int64_t of_a = 0, of_b = 0;

                for (int32_t s = 0; s < ranks * slots; s++) {
                    of_a += f.p.placement.expert_of[s] == a ? f.p.quota[s] : 0;
                    of_b += f.p.placement.expert_of[s] == b ? f.p.quota[s] : 0;
                }
                CHECK(of_a * replicas(&f, b) >= of_b * (replicas(&f, a) - 1));
            }
        was = malloc((size_t)(ranks * slots) * sizeof(*was));
        memcpy(was, f.p.placement.expert_of, (size_t)(ranks * slots) * sizeof(*was));
        for (int32_t i = 0; i < ranks * experts; i++)
            f.counts[i] *= 2;
        (void)run(&f);
        CHECK(memcmp(was, f.p.placement.expert_of, (size_t)(ranks * slots) * sizeof(*was)) == 0);
        free(was);
        teardown(&f);
    }
}

static const ek_case cases[] = {
    EK_CASE(by_hand),
    EK_CASE(what_does_not_divide),
    EK_CASE(primaries_stay_where_possible),
    EK_CASE(edges),
    EK_CASE(recorded),
    EK_CASE(random_layers),
};

EK_TEST_MAIN(cases)
