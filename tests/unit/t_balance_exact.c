/* exact: loads that one spare slot per rank balances perfectly, limits, edge cases, recorded
 * traces, and properties over random layers. */
#include "balance/replay.h"
#include "balance_golden.h"
#include "base/random.h"
#include "plan_fixture.h"

enum { DRAWS = 400 };

/* Block order with `spare` spare slots per rank; no assignments. */
static void setup(fixture *f, int32_t experts, int32_t ranks, int32_t spare)
{
    plan_setup(f, &ek_planner_exact, experts, ranks, (experts + ranks - 1) / ranks + spare,
               (ek_plan_costs){.compute_s_per_row = 1e-6, .comm_s_per_row = 1e-6});
}

/* All assignments of an expert come from rank 0. */
static void set_total(fixture *f, int32_t expert, int64_t n)
{
    f->counts[expert] = n;
}

static int64_t run(fixture *f)
{
    plan_make(f, f->counts);
    CHECK(f->p.after_s <= f->p.before_s + f->l.costs.replica_s);
    return ek_plan_loads(&f->l, &f->p, f->load);
}

static int32_t replicas(const fixture *f)
{
    int32_t n = -f->l.experts;

    for (int32_t s = 0; s < f->l.ranks * f->l.slots; s++)
        n += f->p.placement.expert_of[s] >= 0;
    return n;
}

/* --- by hand ---------------------------------------------------------------------------------- */

/* 9, 3, 2, 2 on four ranks: three replicas of the first give 4 each. */
static void one_hot_expert(void)
{
    fixture f;

    setup(&f, 4, 4, 1);
    set_total(&f, 0, 900);
    set_total(&f, 1, 300);
    set_total(&f, 2, 200);
    set_total(&f, 3, 200);
    CHECK_INT(run(&f), 400);
    CHECK_INT(replicas(&f), 3);
    CHECK_INT(f.p.quota[f.p.placement.primary[0]], 400);
    CHECK(strstr(f.p.reason, "3 replicas") != NULL && strstr(f.p.reason, "900 to 400") != NULL);
    teardown(&f);
}

/* 60, 50, 10, 0: rank 0 alone could close two gaps only in part; it gives rank 3 its whole gap of
 * 30, and rank 2 gets its 20 from rank 1. */
static void two_hot_experts(void)
{
    fixture f;

    setup(&f, 4, 4, 1);
    set_total(&f, 0, 60);
    set_total(&f, 1, 50);
    set_total(&f, 2, 10);
    CHECK_INT(run(&f), 30);
    CHECK_INT(replicas(&f), 2);
    teardown(&f);
}

/* With 70, 70, 30, 30 rank 0 is level after closing a gap of 20 twice; with 65, 75 the giving rank
 * falls below the mean and gets the difference back from the other in its own spare slot. */
static void giving_rank_receives_back(void)
{
    fixture f;

    setup(&f, 4, 4, 1);
    set_total(&f, 0, 55);
    set_total(&f, 1, 85);
    set_total(&f, 2, 40);
    set_total(&f, 3, 20);
    CHECK_INT(run(&f), 50);
    teardown(&f);
}

/* A spare slot holds one expert: a gap that needs two stays open, and the plan reports the load it
 * reached.  Rank 0 has four experts of 10, rank 1 one of 0: the best is 30 to 10. */
static void small_experts_leave_a_gap(void)
{
    fixture f;

    setup(&f, 8, 2, 1);
    for (int32_t e = 0; e < 4; e++)
        set_total(&f, e, 10);
    CHECK_INT(run(&f), 30);
    CHECK_INT(replicas(&f), 1);
    teardown(&f);
    setup(&f, 8, 2, 2);
    for (int32_t e = 0; e < 4; e++)
        set_total(&f, e, 10);
    CHECK_INT(run(&f), 20);
    CHECK_INT(replicas(&f), 2);
    teardown(&f);
}

/* --- edges ------------------------------------------------------------------------------------ */

static void nothing_to_do(void)
{
    fixture f;

    setup(&f, 6, 3, 1);
    CHECK_INT(run(&f), 0); /* no assignments */
    CHECK_INT(replicas(&f), 0);
    for (int32_t e = 0; e < 6; e++)
        set_total(&f, e, 7);
    CHECK_INT(run(&f), 14); /* already even */
    CHECK_INT(replicas(&f), 0);
    teardown(&f);
}

static void no_spare_slot(void)
{
    fixture f;

    setup(&f, 4, 4, 0);
    set_total(&f, 2, 100);
    CHECK_INT(run(&f), 100);
    CHECK_INT(replicas(&f), 0);
    teardown(&f);
}

static void one_rank(void)
{
    fixture f;

    setup(&f, 5, 1, 3);
    set_total(&f, 4, 100);
    CHECK_INT(run(&f), 100);
    CHECK_INT(replicas(&f), 0);
    teardown(&f);
}

static void one_expert_takes_all_on_more_ranks_than_experts(void)
{
    fixture f;

    setup(&f, 3, 7, 1);
    set_total(&f, 1, 700);
    CHECK_INT(run(&f), 100);
    CHECK_INT(replicas(&f), 6);
    set_total(&f, 1, 5); /* fewer assignments than ranks */
    CHECK_INT(run(&f), 1);
    teardown(&f);
}

/* Replicas of the previous plan are not kept. */
static void starts_afresh(void)
{
    fixture f;

    setup(&f, 4, 4, 1);
    set_total(&f, 0, 400);
    CHECK_INT(run(&f), 100);
    set_total(&f, 0, 0);
    set_total(&f, 3, 400);
    CHECK_INT(run(&f), 100);
    CHECK_INT(replicas(&f), 3);
    CHECK_INT(ek_plan_slot(&f.p.placement, 1, 0), -1);
    teardown(&f);
}

/* --- recorded traces -------------------------------------------------------------------------- */

static void check_trace(const char *name, int32_t ranks, double mean, double worst)
{
    ek_replay_config cfg = {.planner = &ek_planner_exact};
    ek_replay_result r;
    ek_trace t;

    if (!golden_open(name, &t))
        SKIP("EK_TRACES does not name a folder with this trace");
    cfg.limits = (ek_plan_limits){.experts = (int32_t)t.experts,
                                  .ranks = ranks,
                                  .slots = (int32_t)(t.experts + ranks - 1) / ranks + 1};
    CHECK(ek_replay(&t, &cfg, &r) == EK_OK);
    if (r.mean > mean || r.worst > worst)
        EK_T_FAIL("%s, %d ranks: max/mean %.5f, worst %.5f", name, (int)ranks, r.mean, r.worst);
    ek_trace_close(&t);
}

static void gpt_16_ranks(void)
{
    check_trace("gpt_moe_e32_r16.npy", 16, 1.001, 1.003);
}

static void deepseek_32_ranks(void)
{
    check_trace("deepseek_r1_prefill_in4096.npy", 32, 1.01, 1.03);
    check_trace("deepseek_r1_prefill_in512.npy", 32, 1.01, 1.03);
    check_trace("deepseek_r1_decode_in1000out1000.npy", 32, 1.01, 1.05);
}

static void deepseek_64_ranks(void)
{
    check_trace("deepseek_r1_prefill_in4096.npy", 64, 1.001, 1.001);
    check_trace("deepseek_r1_prefill_in512.npy", 64, 1.001, 1.001);
    check_trace("deepseek_r1_decode_in1000out1000.npy", 64, 1.001, 1.001);
}

/* --- random layers ---------------------------------------------------------------------------- */

static int64_t drawn(int draw, int i, uint64_t below)
{
    return (int64_t)(ek_random_bits(5, (uint64_t)draw, (uint64_t)i) % below);
}

/* Skewed counts of a random shape: an expert's expectation falls as 1 / (1 + rank of it). */
static void draw_counts(fixture *f, int draw)
{
    for (int32_t r = 0; r < f->l.ranks; r++)
        for (int32_t e = 0; e < f->l.experts; e++) {
            int64_t place = drawn(draw, 10 + e, (uint64_t)f->l.experts);

            f->counts[(int64_t)r * f->l.experts + e] = drawn(
                draw, 1000 + r * f->l.experts + e, (uint64_t)(1 + 4000 / (1 + place * place)));
        }
}

static void primaries_stay(const fixture *f)
{
    ek_plan block = f->p;
    ek_arena a;

    CHECK(ek_arena_init(&a, 1 << 16, "a placement") == EK_OK);
    ek_placement_reserve(&block.placement, &a, f->l.experts, f->l.ranks, f->l.slots);
    ek_placement_block(&block.placement, 1);
    CHECK(memcmp(block.placement.primary, f->p.placement.primary,
                 (size_t)f->l.experts * sizeof(int32_t)) == 0);
    ek_arena_fini(&a);
}

/* No worse than without replicas; the busiest rank is at the mean where no gap needs two experts,
 * that is with one expert per rank; deterministic; counts times ten give the plan times ten. */
static void random_layers(void)
{
    for (int draw = 0; draw < DRAWS; draw++) {
        int32_t ranks = 1 + (int32_t)drawn(draw, 0, 12), experts = 1 + (int32_t)drawn(draw, 1, 30);
        int64_t most, sum = 0;
        fixture f;

        if (draw % 2 == 0)
            experts = ranks;
        setup(&f, experts, ranks, 1 + (int32_t)drawn(draw, 2, 2));
        draw_counts(&f, draw);
        for (int64_t i = 0; i < (int64_t)ranks * experts; i++)
            sum += f.counts[i];
        most = run(&f);
        CHECK((double)most * 1e-6 * 2 <= f.p.before_s + 1e-12);
        CHECK(most * ranks >= sum);
        if (experts <= ranks && (double)most > 1.001 * (double)sum / ranks + 1)
            EK_T_FAIL("draw %d: %d ranks, %d experts: %lld of %lld", draw, (int)ranks, (int)experts,
                      (long long)most, (long long)sum);
        primaries_stay(&f);
        CHECK_INT(run(&f), most);
        teardown(&f);
    }
}

static const ek_case cases[] = {
    EK_CASE(one_hot_expert),
    EK_CASE(two_hot_experts),
    EK_CASE(giving_rank_receives_back),
    EK_CASE(small_experts_leave_a_gap),
    EK_CASE(nothing_to_do),
    EK_CASE(no_spare_slot),
    EK_CASE(one_rank),
    EK_CASE(one_expert_takes_all_on_more_ranks_than_experts),
    EK_CASE(starts_afresh),
    EK_CASE(gpt_16_ranks),
    EK_CASE(deepseek_32_ranks),
    EK_CASE(deepseek_64_ranks),
    EK_CASE(random_layers),
};

EK_TEST_MAIN(cases)
