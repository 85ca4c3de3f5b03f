/* fastermoe: the released code's decision by hand, from assignments sent instead of served; edge
 * cases. */
#include "plan_fixture.h"

/* Costs chosen so that times are assignment counts; a shadow costs half of replica_s. */
static void setup(fixture *f, int32_t experts, int32_t ranks, int32_t slots, double replica_s)
{
    plan_setup(
        f, &ek_planner_fastermoe, experts, ranks, slots,
        (ek_plan_costs){.compute_s_per_row = 0.5, .comm_s_per_row = 0.5, .replica_s = replica_s});
}

/* Each rank sends this much, all of it to one expert. */
static void set_sources(fixture *f, const int64_t *sends, int32_t expert)
{
    for (int32_t r = 0; r < f->l.ranks; r++)
        f->counts[r * f->l.experts + expert] = sends[r];
}

static int is_shadowed(const fixture *f, int32_t expert)
{
    int all = 1;

    for (int32_t r = 0; r < f->l.ranks; r++)
        all &= ek_plan_slot(&f->p.placement, r, expert) >= 0;
    return all;
}

/* Equal batches: nothing is shadowed, however hot expert 2 is. */
static void equal_batches(void)
{
    const int64_t sends[] = {500, 500, 500};
    fixture f;

    setup(&f, 3, 3, 3, 0.001);
    set_sources(&f, sends, 2);
    plan_make(&f, f.counts);
    CHECK_INT(ek_plan_loads(&f.l, &f.p, f.load), 1500);
    for (int32_t e = 0; e < 3; e++)
        CHECK(!is_shadowed(&f, e));
    CHECK(f.p.before_s == 500 && f.p.after_s == 500);
    CHECK(strstr(f.p.reason, "0 experts shadowed") != NULL);
    teardown(&f);
}

/* 200, 900, 600: 900 -> 600 + 100 with expert 1, -> 200 + 200 with expert 2; rank 0 is the last.
 * All load is expert 0's. */
static void rank_numbers_used_as_experts(void)
{
    const int64_t sends[] = {200, 900, 600};
    fixture f;

    setup(&f, 3, 3, 3, 200);
    set_sources(&f, sends, 0);
    plan_make(&f, f.counts);
    CHECK(!is_shadowed(&f, 0) && is_shadowed(&f, 1) && is_shadowed(&f, 2));
    CHECK_INT(ek_plan_loads(&f.l, &f.p, f.load), 1700);
    CHECK(f.p.before_s == 900 && f.p.after_s == 400);
    teardown(&f);
    setup(&f, 3, 3, 3, 700); /* 600 + 350 */
    set_sources(&f, sends, 0);
    plan_make(&f, f.counts);
    CHECK(!is_shadowed(&f, 1) && f.p.after_s == 900);
    teardown(&f);
    setup(&f, 3, 3, 3, 500); /* 600 + 250, then 200 + 500 */
    set_sources(&f, sends, 1);
    plan_make(&f, f.counts);
    CHECK(is_shadowed(&f, 1) && is_shadowed(&f, 2) && f.p.after_s == 700);
    CHECK_INT(ek_plan_loads(&f.l, &f.p, f.load), 900); /* each serves its own assignments of the
                                                          shadowed experts */
    teardown(&f);
}

static void edges(void)
{
    const int64_t sends[] = {100, 900, 600, 0, 0};
    fixture f;

    setup(&f, 3, 3, 1, 2); /* no empty slots */
    set_sources(&f, sends, 0);
    plan_make(&f, f.counts);
    CHECK(!is_shadowed(&f, 1));
    teardown(&f);
    setup(&f, 3, 3, 3, 2); /* no assignments */
    plan_make(&f, f.counts);
    CHECK(!is_shadowed(&f, 0));
    teardown(&f);
    setup(&f, 1, 5, 2, 2); /* rank numbers that are no expert numbers */
    set_sources(&f, sends, 0);
    plan_make(&f, f.counts);
    CHECK_INT(ek_plan_loads(&f.l, &f.p, f.load), 1600);
    teardown(&f);
    setup(&f, 4, 1, 5, 2); /* one rank */
    set_sources(&f, sends, 3);
    plan_make(&f, f.counts);
    CHECK_INT(ek_plan_loads(&f.l, &f.p, f.load), 100);
    teardown(&f);
}

static const ek_case cases[] = {
    EK_CASE(equal_batches),
    EK_CASE(rank_numbers_used_as_experts),
    EK_CASE(edges),
};

EK_TEST_MAIN(cases)
