/* The DDL-Roofline: a layer computed by hand, the curves, layers without work or communication,
 * sums over steps, and the printed line. */
#include "balance/roofline.h"
#include "plan_fixture.h"

static int close_to(double got, double want)
{
    return fabs(got - want) <= 1e-12 * (1 + fabs(want));
}

#define CHECK_REAL(got, want)                                                                      \
    (close_to((got), (want)) ? (void)0                                                             \
                             : EK_T_FAIL("%s is %.17g, expected %.17g", #got, (got), (want)))

/* Simple numbers: an assignment is 8 FLOP in 2 s, a link carries one in 0.5 s, a replica in 3 s. */
static const ek_plan_costs easy = {.compute_s_per_row = 2, .comm_s_per_row = 0.5, .replica_s = 3};
enum { ROW_FLOPS = 8 };

static ek_roofline_work work_of(const fixture *f, double row_flops)
{
    int64_t memory[4096];
    int32_t slots[64];

    return ek_roofline_work_of(&f->l, f->counts, &f->p, row_flops, memory, slots);
}

static ek_roofline_work setup(fixture *f, int32_t experts, int32_t ranks, const int64_t *counts)
{
    plan_setup(f, &ek_planner_off, experts, ranks, (experts + ranks - 1) / ranks, easy);
    memcpy(f->counts, counts, (size_t)(experts * ranks) * sizeof(*counts));
    plan_make(f, f->counts);
    return work_of(f, ROW_FLOPS);
}

/* Both ranks serve 8, 4 of them from the other: on the semi-ideal curve. */
static void balanced_is_on_the_curve(void)
{
    const int64_t counts[] = {4, 4, 4, 4};
    ek_roofline_work w;
    ek_roofline r;
    fixture f;

    w = setup(&f, 2, 2, counts);
    CHECK_REAL(w.rank_flops_s, 4.0);
    CHECK_REAL(w.flops, 128.0);
    CHECK_REAL(w.compute_s, 16.0);
    CHECK_REAL(w.comm_s, 2.0);
    r = ek_roofline_of(&w);
    CHECK_REAL(r.r_cc, 8.0);
    CHECK_REAL(r.achieved, 128.0 / (2 * 18));
    CHECK_REAL(r.semi_ideal, r.achieved);
    CHECK_REAL(r.ideal, 4.0);
    CHECK(!r.measured);
    teardown(&f);
}

/* Rank 0 serves 14 of 16, 7 of them from rank 1, which receives 1: the large R_CC of an unbalanced
 * layer, far below the curve. */
static void unbalanced_is_below(void)
{
    const int64_t counts[] = {7, 1, 7, 1};
    ek_roofline_work w;
    ek_roofline r;
    fixture f;

    w = setup(&f, 2, 2, counts);
    CHECK_REAL(w.compute_s, 28.0);
    CHECK_REAL(w.comm_s, 3.5);
    r = ek_roofline_of(&w);
    CHECK_REAL(r.r_cc, 8.0);
    CHECK_REAL(r.semi_ideal, 4 * 8.0 / 9);
    CHECK_REAL(r.achieved, 128 / (2 * 31.5));
    w.time_s = 40;
    r = ek_roofline_of(&w);
    CHECK_REAL(r.achieved, 1.6);
    CHECK(r.measured);
    teardown(&f);
}

/* A layer in FasterMoE's terms: width 1024, alpha 2, fp32, 11.5 TFLOP/s, 6.25 GB/s.  The busiest
 * primary rank serves 3000 rows, 2300 of them from other ranks. */
static void papers_terms(void)
{
    static const int64_t counts[] = {700, 100, 100, 124, 800, 100, 100, 24,
                                     600, 200, 100, 124, 900, 24,  50,  50};
    const double flops = 12.0 * 2 * 1024 * 1024, comp = 3000 * flops / 11.5e12,
                 comm = 2300 * 4.0 * 4 * 1024 / 6.25e9;
    ek_roofline_work w;
    ek_roofline r;
    fixture f;

    plan_setup(&f, &ek_planner_off, 4, 4, 1,
               (ek_plan_costs){.compute_s_per_row = flops / 11.5e12,
                               .comm_s_per_row = 4.0 * 4 * 1024 / 6.25e9});
    memcpy(f.counts, counts, sizeof(counts));
    plan_make(&f, f.counts);
    w = work_of(&f, flops);
    r = ek_roofline_of(&w);
    CHECK_REAL(w.rank_flops_s, 11.5e12);
    CHECK_REAL(r.r_cc, comp / comm);
    CHECK(fabs(r.r_cc - 1.08884) < 1e-5);              /* 6.56499 ms over 6.02931 ms */
    CHECK(fabs(r.achieved / 1e12 - 2.04615) < 1e-5);   /* 4096 rows over 4 * 12.59430 ms */
    CHECK(fabs(r.semi_ideal / 1e12 - 5.99457) < 1e-5); /* 11.5 / (1 + 1 / 1.08884) */
    CHECK_REAL(r.ideal, 11.5e12);
    teardown(&f);
}

/* Latency counts once for each micro-batch. */
static void latency_is_communication(void)
{
    const int64_t counts[] = {4, 4, 4, 4};
    const ek_roofline_counts two = {.rows = 32, .busiest = 16, .link = 8, .batches = 2};
    fixture f;

    (void)setup(&f, 2, 2, counts);
    f.l.costs.exchange_s = 5;
    CHECK_REAL(work_of(&f, ROW_FLOPS).comm_s, 2.0 + 5.0);
    CHECK_REAL(ek_roofline_work_of_counts(2, &f.l.costs, ROW_FLOPS, &two).comm_s, 4.0 + 10.0);
    teardown(&f);
}

/* A replica costs communication; the rows that it serves do not. */
static void replicas_are_talk(void)
{
    fixture f;
    ek_roofline_work w;

    plan_setup(&f, &ek_planner_off, 2, 2, 2, easy);
    memcpy(f.counts, (const int64_t[]){6, 0, 6, 0}, 4 * sizeof(int64_t));
    plan_make(&f, f.counts);
    f.p.placement.expert_of[3] = 0;
    f.p.quota[0] = f.p.quota[3] = 6;
    CHECK(ek_plan_check(&f.l, f.counts, &f.p) == EK_OK);
    w = work_of(&f, ROW_FLOPS);
    CHECK_REAL(w.compute_s, 12.0);
    CHECK_REAL(w.comm_s, 3.0);
    CHECK_REAL(ek_roofline_of(&w).ideal, 4.0);
    teardown(&f);
}

/* If communication dominates, even full overlap stays below the rate of the products. */
static void comm_bounds_the_ideal(void)
{
    ek_roofline_work w = {
        .ranks = 3, .rank_flops_s = 10, .flops = 60, .compute_s = 2, .comm_s = 8, .time_s = 5};
    ek_roofline r = ek_roofline_of(&w);

    CHECK_REAL(r.r_cc, 0.25);
    CHECK_REAL(r.ideal, 2.5);
    CHECK_REAL(r.semi_ideal, 2.0);
    CHECK_REAL(r.achieved, 4.0);
}

static void one_rank_has_no_communication(void)
{
    const int64_t counts[] = {5, 0, 3};
    ek_roofline_work w;
    ek_roofline r;
    fixture f;

    w = setup(&f, 3, 1, counts);
    r = ek_roofline_of(&w);
    CHECK(isinf(r.r_cc));
    CHECK_REAL(r.ideal, 4.0);
    CHECK_REAL(r.semi_ideal, 4.0);
    CHECK_REAL(r.achieved, 4.0);
    teardown(&f);
}

static void more_ranks_than_experts(void)
{
    const int64_t counts[] = {1, 1, 1, 1};
    ek_roofline_work w;
    fixture f;

    w = setup(&f, 1, 4, counts);
    CHECK_REAL(w.compute_s, 8.0);
    CHECK_REAL(w.comm_s, 1.5);
    CHECK_REAL(ek_roofline_of(&w).achieved, 32 / (4 * 9.5));
    teardown(&f);
}

static void nothing_to_do(void)
{
    const int64_t counts[] = {0, 0, 0, 0};
    char text[128];
    ek_roofline_work w;
    ek_roofline r;
    fixture f;

    w = setup(&f, 2, 2, counts);
    r = ek_roofline_of(&w);
    CHECK(r.r_cc == 0 && r.achieved == 0 && r.ideal == 0 && r.semi_ideal == 0);
    CHECK(ek_roofline_line(&w, 2, text, sizeof(text)) > 0);
    CHECK(strcmp(text, "layer 2: no assignments") == 0);
    teardown(&f);
}

/* Sums over two micro-batches. */
static void counted(void)
{
    const ek_roofline_counts counts = {.rows = 12, .busiest = 8, .link = 4, .replicas = 2};
    const ek_plan_costs costs = {.compute_s_per_row = 2, .comm_s_per_row = 0.5, .replica_s = 3};
    ek_roofline_work w = ek_roofline_work_of_counts(3, &costs, ROW_FLOPS, &counts);

    CHECK_INT(w.ranks, 3);
    CHECK_REAL(w.rank_flops_s, ROW_FLOPS / 2.0);
    CHECK_REAL(w.flops, 12.0 * ROW_FLOPS);
    CHECK_REAL(w.compute_s, 16.0);
    CHECK_REAL(w.comm_s, 8.0);
    CHECK_REAL(w.time_s, 0.0);
}

static void steps_add_up(void)
{
    ek_roofline_work sum = {0}, a = {2, 10, 40, 4, 1, 3}, b = {2, 10, 20, 1, 3, 2};
    ek_roofline r;

    ek_roofline_add(&sum, &a);
    ek_roofline_add(&sum, &b);
    r = ek_roofline_of(&sum);
    CHECK_REAL(r.r_cc, 1.25);
    CHECK_REAL(r.achieved, 60.0 / (2 * 5));
    CHECK(r.measured);
    b.time_s = 0; /* no time */
    ek_roofline_add(&sum, &b);
    r = ek_roofline_of(&sum);
    CHECK(!r.measured);
    CHECK_REAL(r.achieved, 80.0 / (2 * 13));
}

static void prints_one_line(void)
{
    ek_roofline_work w = {
        .ranks = 2, .rank_flops_s = 8e9, .flops = 12e9, .compute_s = 1, .comm_s = 3, .time_s = 5};
    char text[200], cut[8];

    CHECK(ek_roofline_line(&w, 7, text, sizeof(text)) == (int)strlen(text));
    if (strcmp(text, "layer 7: 1.20 GFLOP/s a rank, 15 % of its products' rate; with even loads "
                     "2.00 GFLOP/s, overlapped as well 2.67 GFLOP/s; computes 0.333 times as long "
                     "as it sends (R_CC)") != 0)
        EK_T_FAIL("%s", text);
    CHECK(ek_roofline_line(&w, 7, cut, sizeof(cut)) == (int)strlen(text)); /* as snprintf */
    w.time_s = 0;
    ek_roofline_line(&w, 7, text, sizeof(text));
    CHECK(strstr(text, "a rank predicted, ") != NULL);
    w.comm_s = 0;
    ek_roofline_line(&w, 7, text, sizeof(text));
    CHECK(strstr(text, "as it sends") == NULL); /* it sends nothing */
}

static const ek_case cases[] = {
    EK_CASE(balanced_is_on_the_curve),
    EK_CASE(unbalanced_is_below),
    EK_CASE(papers_terms),
    EK_CASE(latency_is_communication),
    EK_CASE(replicas_are_talk),
    EK_CASE(comm_bounds_the_ideal),
    EK_CASE(one_rank_has_no_communication),
    EK_CASE(more_ranks_than_experts),
    EK_CASE(nothing_to_do),
    EK_CASE(counted),
    EK_CASE(steps_add_up),
    EK_CASE(prints_one_line),
};
EK_TEST_MAIN(cases)
