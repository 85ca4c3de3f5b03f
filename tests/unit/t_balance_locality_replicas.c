/* Locality replicas: the time of a plan equals ek_plan_time; what is added is never slower and
 * shortens what a busy source sends. */
#include "improved_plans.h"

enum { DRAWS = 500 };

/* Improves a plan: valid, not slower by ek_plan_time, and its time as reported. */
static int improve(world *w, double *s)
{
    double before = plan_time(w);
    int better;

    *s = before;
    ek_plan_totals(&w->f.l, w->f.counts, w->total);
    for (int32_t r = 0; r < w->f.l.ranks; r++) {
        w->near.tokens[r] = 0;
        for (int32_t e = 0; e < w->f.l.experts; e++)
            w->near.tokens[r] += w->f.counts[r * w->f.l.experts + e];
        w->near.favourite[r] = ek_first_largest(w->f.counts + r * w->f.l.experts, w->f.l.experts);
    }
    better = ek_locality_improve(&w->near, &w->f.l, w->f.counts, w->total, &w->f.p, s);
    check_improved(w, before, better, *s);
    return better;
}

static int64_t drawn(int draw, int i, uint64_t below)
{
    return (int64_t)(ek_random_bits(31, (uint64_t)draw, (uint64_t)i) % below);
}

static void never_worse(void)
{
    int better = 0;

    for (int draw = 0; draw < DRAWS; draw++) {
        world w;
        int32_t ranks = 1 + (int32_t)drawn(draw, 0, 9), experts = 1 + (int32_t)drawn(draw, 1, 40);
        ek_plan_costs costs = {.compute_s_per_row = (double)drawn(draw, 3, 3),
                               .comm_s_per_row = (double)drawn(draw, 4, 9),
                               .replica_s = (double)drawn(draw, 5, 500)};
        double s;

        setup(&w, experts, ranks, (int32_t)drawn(draw, 2, 4), costs);
        for (int32_t r = 0; r < ranks; r++)
            for (int32_t e = 0; e < experts; e++)
                w.f.counts[r * experts + e] = drawn(draw, 100 + r * experts + e,
                                                    1 + 400 / (1 + (uint64_t)drawn(draw, e, 9))) *
                                              (r % 3 == 0 ? 9 : 1);
        plan_make(&w.f, w.f.counts);
        better += improve(&w, &s);
        CHECK(ek_locality_time(&w.near, &w.f.l, w.f.counts, &w.f.p) == plan_time(&w) || ranks < 2 ||
              costs.comm_s_per_row == 0);
        drop(&w);
    }
    CHECK(better > DRAWS / 10);
}

/* A source with many tokens keeps those of the expert it needs most; even loads, where `exact` does
 * nothing. */
static void a_busy_source_sends_less(void)
{
    world w;
    double s;

    setup(&w, 4, 2, 1,
          (ek_plan_costs){.compute_s_per_row = 1, .comm_s_per_row = 4, .replica_s = 10});
    w.f.counts[0] = 0;
    w.f.counts[1] = 10;
    w.f.counts[2] = 60;
    w.f.counts[3] = 50;
    w.f.counts[4 + 0] = 60;
    w.f.counts[4 + 1] = 40;
    plan_make(&w.f, w.f.counts);
    CHECK_INT(replicas(&w), 0);
    CHECK(improve(&w, &s));
    CHECK_INT(replicas(&w), 2);
    CHECK(ek_plan_slot(&w.f.p.placement, 0, 2) >= 0);
    CHECK(ek_plan_slot(&w.f.p.placement, 1, 0) >= 0);
    /* 110 rows per rank, 50 on the link, one replica out and one in */
    CHECK(s == 110 + 4 * 50 + 10);
    w.f.l.costs.replica_s = 300; /* 60 rows that stay save 240 */
    plan_make(&w.f, w.f.counts);
    CHECK(!improve(&w, &s));
    CHECK_INT(replicas(&w), 0);
    drop(&w);
}

/* Most tokens go to an expert that the rank has; the replica is of the one they need next. */
static void a_source_keeps_rows_of_an_expert_that_it_lacks(void)
{
    world w;
    double s;

    setup(&w, 4, 2, 1,
          (ek_plan_costs){.compute_s_per_row = 1, .comm_s_per_row = 4, .replica_s = 10});
    w.f.counts[0] = 70;
    w.f.counts[1] = 0;
    w.f.counts[2] = 60;
    w.f.counts[3] = 50;
    w.f.counts[4 + 1] = 40;
    plan_make(&w.f, w.f.counts);
    CHECK_INT(replicas(&w), 0);
    CHECK(improve(&w, &s));
    CHECK(ek_plan_slot(&w.f.p.placement, 0, 2) >= 0);
    CHECK(ek_plan_slot(&w.f.p.placement, 1, 1) >= 0);
    CHECK(s == 130 + 4 * 50 + 10);
    drop(&w);
}

/* A balancing plan is replaced where locality replicas are better. */
static void another_plan_is_better(void)
{
    world w;
    double s;

    setup(&w, 2, 2, 1,
          (ek_plan_costs){.compute_s_per_row = 0.01, .comm_s_per_row = 1, .replica_s = 1});
    w.f.counts[0] = 40;      /* of rank 0, for its own expert, */
    w.f.counts[1] = 100;     /* and for rank 1's */
    w.f.counts[2 + 0] = 0;   /* of rank 1 */
    w.f.counts[2 + 1] = 900; /* for its own */
    plan_make(&w.f, w.f.counts);
    CHECK_INT(replicas(&w), 1); /* part of expert 1 on rank 0, more than its own tokens need */
    CHECK(improve(&w, &s));
    CHECK_INT(ek_plan_loads(&w.f.l, &w.f.p, w.f.load), 900);
    CHECK(fabs(s - (900 * 0.01 + 0 + 1)) < 1e-9);
    drop(&w);
}

static void nothing_to_do(void)
{
    world w;
    double s = 0;

    setup(&w, 5, 3, 0,
          (ek_plan_costs){.compute_s_per_row = 1, .comm_s_per_row = 4}); /* one spare slot in all */
    CHECK(!improve(&w, &s));
    for (int i = 0; i < 15; i++)
        w.f.counts[i] = i % 4 == 0 ? 100 : 0;
    plan_make(&w.f, w.f.counts);
    improve(&w, &s);
    drop(&w);
    setup(&w, 3, 1, 2, (ek_plan_costs){.compute_s_per_row = 1, .comm_s_per_row = 4});
    w.f.counts[1] = 7;
    plan_make(&w.f, w.f.counts);
    CHECK(!improve(&w, &s)); /* a single rank */
    drop(&w);
    setup(&w, 3, 3, 1, (ek_plan_costs){.compute_s_per_row = 1});
    w.f.counts[1] = 7;
    plan_make(&w.f, w.f.counts);
    CHECK(!improve(&w, &s)); /* communication is free */
    drop(&w);
}

static const ek_case cases[] = {
    EK_CASE(never_worse),
    EK_CASE(a_busy_source_sends_less),
    EK_CASE(a_source_keeps_rows_of_an_expert_that_it_lacks),
    EK_CASE(another_plan_is_better),
    EK_CASE(nothing_to_do),
};
EK_TEST_MAIN(cases)
