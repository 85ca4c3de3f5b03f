/* Pro-Prophet's planner: Algorithm 1 as printed against golden figures of a routing trace; the
 * planner by hand, on the trace, and by properties over random cases.
 *
 * EK_TRACES   a folder with golden_counts.npy; cases that need it are skipped without it. */
#include "balance/plan_prophet.h"
#include "balance_golden.h"
#include "base/random.h"
#include "plan_fixture.h"

enum { CASES = 5, SOURCES = 16, EXPERTS = 32 };

/* --- a plan under test ------------------------------------------------------------------------ */

static void setup(fixture *f, int32_t experts, int32_t ranks, int32_t slots, ek_plan_costs costs)
{
    plan_setup(f, &ek_planner_prophet, experts, ranks, slots, costs);
}

static void make(fixture *f, const int64_t *counts)
{
    plan_make(f, counts);
}

static int32_t replicas_of(const ek_placement *p)
{
    int32_t n = 0;

    for (int32_t s = 0; s < p->ranks * p->slots; s++)
        n += p->expert_of[s] >= 0 && p->primary[p->expert_of[s]] != s;
    return n;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Whether a rank other than the primary rank holds an expert. */
static int away(const ek_placement *p, int32_t rank, int32_t expert)
{
    return p->primary[expert] / p->slots != rank && ek_plan_slot(p, rank, expert) >= 0;
}

/* Rows that a rank receives: all that its primary experts serve, without its own. */
static int64_t received(const ek_plan_limits *l, const int64_t *counts, const ek_placement *p,
                        int32_t rank)
{
    int64_t sum = 0;

    for (int32_t e = 0; e < l->experts; e++)
        for (int32_t r = 0; r < l->ranks && p->primary[e] / l->slots == rank; r++)
            sum += r == rank || away(p, r, e) ? 0 : counts[r * l->experts + e];
    return sum;
}

static int64_t computed(const ek_plan_limits *l, const int64_t *counts, const ek_placement *p,
                        int32_t rank)
{
    int64_t sum = received(l, counts, p, rank);

    for (int32_t e = 0; e < l->experts; e++)
        if (p->primary[e] / l->slots == rank || away(p, rank, e))
            sum += counts[rank * l->experts + e];
    return sum;
}

/* T' of a placement, recomputed. */
static double time_of(const ek_plan_limits *l, const int64_t *counts, const ek_placement *p)
{
    int64_t r_max = 0, h_max = 0, copies = 0;

    for (int32_t r = 0; r < l->ranks; r++) {
        r_max = larger(r_max, received(l, counts, p, r));
        h_max = larger(h_max, computed(l, counts, p, r));
    }
    for (int32_t e = 0; e < l->experts; e++) {
        int32_t n = 0;

        for (int32_t r = 0; r < l->ranks; r++)
            n += away(p, r, e);
        copies += n > 0 ? n + 1 : 0;
    }
    return l->costs.comm_s_per_row * (double)r_max + l->costs.compute_s_per_row * (double)h_max +
           l->costs.replica_s * (double)copies / (double)l->ranks;
}

static int near(double a, double b)
{
    return fabs(a - b) <= 1e-12 * fmax(fabs(a), fabs(b));
}

/* --- the trace -------------------------------------------------------------------------------- */

/* Seconds of 3.4's machine: an expert of two matrices of H x 2 H, 4 bytes an element.
 *   rows        4 exchanges of H elements
 *   computing   3 (forward, backward twice) of 2 matrices, 2 FLOP a weight: 4 alpha H^2 forward
 *   a replica   weights out and gradients back: 2 of 2 alpha H^2 elements */
static ek_plan_costs trace_costs(void)
{
    const double h = 1024, alpha = 2, bytes = 4, link = 12.5e9, flops = 35.7e12;
    ek_plan_costs c = {0};

    c.compute_s_per_row = 3 * 4 * alpha * h * h / flops;
    c.comm_s_per_row = 4 * h * bytes / link;
    c.replica_bytes = 2 * 2 * alpha * h * h * bytes;
    c.replica_s = c.replica_bytes / link;
    return c;
}

typedef struct {
    int64_t counts[CASES][SOURCES * EXPERTS];
    int64_t fused[CASES][SOURCES * SOURCES]; /* two experts per device */
} trace;

/* 0: not available */
static int read_trace(trace *t)
{
    memset(t, 0, sizeof(*t));
    for (int i = 0; i < CASES; i++) {
        if (!golden_counts(i, t->counts[i]))
            return 0;
        for (int j = 0; j < SOURCES * EXPERTS; j++)
            t->fused[i][j / 2] += t->counts[i][j];
    }
    return 1;
}

/* --- Algorithm 1 as printed ------------------------------------------------------------------- */

typedef struct {
    int32_t excluded;
    double after_ms;
    int32_t selected;
    int32_t expert[8], without[8]; /* the first of the excluded */
} golden;

static void check_selection(const trace *t, const golden *g)
{
    ek_prophet_case c = {SOURCES, g->excluded, 1, trace_costs(), t->fused[1]};
    int32_t expert[SOURCES], without[SOURCES * SOURCES];
    ek_prophet_selection s = {0, 0, 0, expert, without};
    ek_prophet_loads o;
    ek_arena a;

    CHECK(ek_arena_init(&a, 65536, "loads") == EK_OK);
    ek_prophet_loads_reserve(&o, &a, SOURCES);
    ek_prophet_select(&c, &o, &s);
    CHECK(fabs(s.before_s * 1e3 - 34.056) < 5e-4);
    if (fabs(s.after_s * 1e3 - g->after_ms) >= 5e-4)
        EK_T_FAIL("n=%d: %.4f ms, expected %.3f", (int)g->excluded, s.after_s * 1e3, g->after_ms);
    CHECK_INT(s.selected, g->selected);
    for (int32_t i = 0; i < g->selected; i++) {
        CHECK_INT(s.expert[i], g->expert[i]);
        if (g->excluded > 0)
            CHECK_INT(s.without[i * g->excluded], g->without[i]);
    }
    ek_arena_fini(&a);
}

static void algorithm_1_on_the_trace(void)
{
    static const int64_t loads[] = {4, 42,    11000, 6,    1,    8229, 24, 897,
                                    0, 17583, 15239, 2480, 1114, 8876, 4,  37};
    static const golden want[] = {
        {0, 20.904, 5, {9, 10, 2, 13, 5}, {0}},
        {1, 20.065, 5, {9, 10, 2, 5, 13}, {13, 1, 15, 3, 3}},
        {4, 20.220, 5, {9, 10, 2, 13, 5}, {13, 1, 15, 3, 3}},
    };
    static trace t;

    if (!read_trace(&t))
        SKIP(golden_missing);
    for (int e = 0; e < SOURCES; e++) {
        int64_t sum = 0;

        for (int r = 0; r < SOURCES; r++)
            sum += t.fused[1][r * SOURCES + e];
        CHECK_INT(sum, loads[e]);
    }
    for (int i = 0; i < 3; i++)
        check_selection(&t, &want[i]);
}

static void select_for(int32_t devices, int32_t excluded, double alpha, ek_plan_costs costs,
                       const int64_t *counts, ek_prophet_selection *s)
{
    ek_prophet_case c = {devices, excluded, alpha, costs, counts};
    ek_prophet_loads o;
    ek_arena a;

    CHECK(ek_arena_init(&a, 65536, "loads") == EK_OK);
    ek_prophet_loads_reserve(&o, &a, devices);
    ek_prophet_select(&c, &o, s);
    ek_arena_fini(&a);
}

/* By hand, with n = 1.  Loads 7, 3, 2, received 6, 2, 0: 6 + 7.  Expert 0 does not go to device 1,
 * the lower of devices 1 and 2 with equal assignments.  Loads 4, 3, 5, received 3, 2, 0: 3 + 5 and
 * (3 - 1) / 3 of a replica of 3 s. */
static void ties_exclude_the_lower_device(void)
{
    static const int64_t counts[] = {1, 1, 0, 3, 1, 0, 3, 1, 2};
    int32_t expert[3], without[3];
    ek_prophet_selection s = {0, 0, 0, expert, without};

    select_for(3, 1, 1,
               (ek_plan_costs){.compute_s_per_row = 1, .comm_s_per_row = 1, .replica_s = 3}, counts,
               &s);
    CHECK(near(s.before_s, 13));
    CHECK(near(s.after_s, 10));
    CHECK_INT(s.selected, 1);
    CHECK_INT(expert[0], 0);
    CHECK_INT(without[0], 1);
}

/* By hand: the first heaviest device's expert does not pay alone, since another device is as heavy;
 * with the second's the prefix does. */
static void algorithm_1_continues_past_a_loss(void)
{
    static const int64_t counts[] = {2, 2, 0, 0, 2, 2, 0, 0, 2, 2, 0, 0, 2, 2, 0, 0};
    int32_t expert[4];
    ek_prophet_selection s = {0, 0, 0, expert, NULL};

    select_for(4, 0, 1,
               (ek_plan_costs){.compute_s_per_row = 1, .comm_s_per_row = 1, .replica_s = 1}, counts,
               &s);
    CHECK(near(s.before_s, 14)); /* 6 + 8 */
    CHECK(near(s.after_s, 6));   /* 0 + 4 + 2 */
    CHECK_INT(s.selected, 2);
    CHECK_INT(expert[0], 0);
    CHECK_INT(expert[1], 1);
    select_for(4, 0, 1,
               (ek_plan_costs){.compute_s_per_row = 1, .comm_s_per_row = 1, .replica_s = 9}, counts,
               &s);
    CHECK_INT(s.selected, 0);
    CHECK(near(s.after_s, 14));
}

static void algorithm_1_at_the_edges(void)
{
    static const int64_t nothing[9] = {0}, one[] = {5};
    int32_t expert[3], without[6];
    ek_prophet_selection s = {0, 0, 0, expert, without};

    for (int32_t n = 0; n < 3; n++) {
        select_for(3, n, 1,
                   (ek_plan_costs){.compute_s_per_row = 1, .comm_s_per_row = 1, .replica_s = 1},
                   nothing, &s);
        CHECK_INT(s.selected, 0);
        CHECK(near(s.after_s, 0));
    }
    select_for(3, 0, 1,
               (ek_plan_costs){.compute_s_per_row = 1, .comm_s_per_row = 1, .replica_s = 0},
               nothing, &s);
    CHECK_INT(s.selected, 0); /* nothing that lowers no maximum is selected, free or not */
    select_for(1, 0, 1,
               (ek_plan_costs){.compute_s_per_row = 1, .comm_s_per_row = 1, .replica_s = 1}, one,
               &s);
    CHECK_INT(s.selected, 0);
    CHECK(near(s.after_s, 5));
}

/* --- the planner by hand ---------------------------------------------------------------------- */

/* The paper's example in numbers: of three ranks, the primary rank of expert 0 is heaviest; rank 1
 * has assignments for it and gets a replica, rank 2 has none and gets none. */
static void ranks_without_assignments_get_no_replica(void)
{
    static const int64_t counts[] = {3, 0, 0, 2, 2, 0, 0, 0, 2};
    fixture f;

    setup(&f, 3, 3, 2,
          (ek_plan_costs){.compute_s_per_row = 1, .comm_s_per_row = 1, .replica_s = 1});
    make(&f, counts);
    CHECK_INT(f.p.placement.expert_of[3], 0);
    CHECK_INT(f.p.placement.expert_of[5], -1);
    CHECK_INT(f.p.quota[0], 3);
    CHECK_INT(f.p.quota[2], 2);
    CHECK_INT(f.p.quota[3], 2);
    CHECK(near(f.p.before_s, 7));            /* 2 + 5 */
    CHECK(near(f.p.after_s, 4 + 2.0 / 3.0)); /* 0 + 4, and two copies on three ranks */
    teardown(&f);
}

/* Two primary ranks are equally heavy: the replicas of neither alone lower a maximum. */
static void equally_heavy_ranks_are_both_relieved(void)
{
    static const int64_t counts[] = {4, 4, 0, 0, 4, 4, 0, 0, 4, 4, 0, 0, 4, 4, 0, 0};
    fixture f;

    setup(&f, 4, 4, 3,
          (ek_plan_costs){.compute_s_per_row = 1, .comm_s_per_row = 1, .replica_s = 6});
    make(&f, counts);
    CHECK(near(f.p.before_s, 12 + 16));
    CHECK(f.p.after_s < f.p.before_s);
    CHECK(ek_plan_slot(&f.p.placement, 2, 0) >= 0 || ek_plan_slot(&f.p.placement, 3, 0) >= 0);
    CHECK(ek_plan_slot(&f.p.placement, 2, 1) >= 0 || ek_plan_slot(&f.p.placement, 3, 1) >= 0);
    teardown(&f);
}

/* By hand: ranks 0 and 1 serve 4 each.  Expert 0's replicas on 2 and 3 take 2 off rank 0, then
 * expert 1's on 3 takes 1 off rank 1.  With a maximum of 3, one of the first two is enough. */
static void needless_replicas_are_dropped(void)
{
    static const int64_t counts[] = {2, 0, 0, 0, 0, 3, 0, 0, 1, 0, 0, 0, 1, 1, 0, 0};
    fixture f;

    setup(&f, 4, 4, 3,
          (ek_plan_costs){.compute_s_per_row = 1, .comm_s_per_row = 0, .replica_s = 0});
    make(&f, counts);
    CHECK(near(f.p.before_s, 4));
    CHECK(near(f.p.after_s, 3));
    CHECK_INT(replicas_of(&f.p.placement), 2);
    CHECK_INT(ek_plan_slot(&f.p.placement, 2, 0), 7);
    CHECK_INT(ek_plan_slot(&f.p.placement, 3, 1), 10);
    teardown(&f);
}

/* Of a rank's equally heavy experts the lower number comes first, in whatever slot; one slot is
 * vacant. */
static void ties_take_the_lower_expert(void)
{
    static const int64_t counts[] = {0, 0, 0, 0, 5, 5, 0, 0};
    fixture f;

    setup(&f, 4, 2, 3,
          (ek_plan_costs){.compute_s_per_row = 1, .comm_s_per_row = 1, .replica_s = 1});
    f.p.placement.expert_of[0] = 1;
    f.p.placement.expert_of[1] = 0;
    f.p.placement.primary[0] = 1;
    f.p.placement.primary[1] = 0;
    make(&f, counts);
    CHECK_INT(f.p.placement.expert_of[5], 0);
    CHECK(near(f.p.after_s, 5 + 5 + 1));
    teardown(&f);
}

/* Unchanged where nothing pays, nothing fits, there are no assignments, or one rank. */
static void stays_as_it_was(void)
{
    static const int64_t counts[] = {9, 0, 9, 0}, nothing[4] = {0};
    const ek_plan_costs cheap = {.compute_s_per_row = 1, .comm_s_per_row = 1, .replica_s = 1},
                        dear = {.compute_s_per_row = 1, .comm_s_per_row = 1, .replica_s = 1000};
    const struct {
        int32_t experts, ranks, slots;
        ek_plan_costs costs;
        const int64_t *counts;
    } c[] = {
        {2, 2, 2, dear, counts},
        {2, 2, 1, cheap, counts},
        {2, 2, 2, cheap, nothing},
        {4, 1, 5, cheap, counts},
    };

    for (size_t i = 0; i < sizeof(c) / sizeof(c[0]); i++) {
        fixture f;

        setup(&f, c[i].experts, c[i].ranks, c[i].slots, c[i].costs);
        f.p.explain = 1;
        make(&f, c[i].counts);
        CHECK_INT(replicas_of(&f.p.placement), 0);
        CHECK(near(f.p.before_s, f.p.after_s));
        CHECK(strstr(f.p.reason, "unchanged") != NULL);
        teardown(&f);
    }
}

/* More ranks than experts, and one expert takes all. */
static void one_expert_takes_all(void)
{
    int64_t counts[7 * 3] = {0};
    fixture f;

    for (int r = 0; r < 7; r++)
        counts[r * 3 + 1] = 10;
    setup(&f, 3, 7, 1,
          (ek_plan_costs){.compute_s_per_row = 1, .comm_s_per_row = 1, .replica_s = 1});
    f.p.explain = 1;
    make(&f, counts);
    CHECK_INT(replicas_of(&f.p.placement), 4); /* ranks 0 and 2 are full */
    CHECK_INT(f.p.quota[1], 30);
    CHECK(near(f.p.before_s, 60 + 70));
    CHECK(near(f.p.after_s, 20 + 30 + 5.0 / 7.0));
    CHECK(strstr(f.p.reason, "4 replicas") != NULL && strstr(f.p.reason, "70 -> 30") != NULL);
    teardown(&f);
}

/* Replicas that no longer pay are replaced by those that do. */
static void old_replicas_make_room(void)
{
    static const int64_t counts[] = {9, 0, 0, 9, 0, 0, 9, 0, 0};
    fixture f;

    setup(&f, 3, 3, 2,
          (ek_plan_costs){.compute_s_per_row = 1, .comm_s_per_row = 1, .replica_s = 1});
    f.p.placement.expert_of[1] = 2;
    f.p.placement.expert_of[3] = 2;
    f.p.placement.expert_of[5] = 1;
    make(&f, counts);
    CHECK(near(f.p.before_s, 18 + 27 + 5.0 / 3.0));
    CHECK(near(f.p.after_s, 9 + 1));
    CHECK_INT(f.p.placement.expert_of[1], -1);
    CHECK_INT(f.p.placement.expert_of[3], 0);
    CHECK_INT(f.p.placement.expert_of[5], 0);
    teardown(&f);
}

/* --- the planner on the trace ----------------------------------------------------------------- */

static void check_trace(const int64_t *counts, int32_t experts, int32_t slots, double after_ms,
                        int32_t replicas)
{
    fixture f;

    setup(&f, experts, SOURCES, slots, trace_costs());
    make(&f, counts);
    CHECK(near(f.p.after_s, time_of(&f.l, counts, &f.p.placement)));
    if (fabs(f.p.after_s * 1e3 - after_ms) >= 5e-6)
        EK_T_FAIL("%.6f ms, expected %.6f", f.p.after_s * 1e3, after_ms);
    CHECK_INT(replicas_of(&f.p.placement), replicas);
    teardown(&f);
}

/* Results of a second implementation that recomputes every step. */
static void planner_on_the_trace(void)
{
    static const int32_t slots[] = {3, 4, 8};
    static const double after[CASES][3] = {{113.336527, 82.904274, 42.832501},
                                           {27.300436, 22.33946, 20.651803},
                                           {124.744879, 86.733515, 38.03683},
                                           {74.126558, 73.586541, 43.105979},
                                           {36.676391, 36.676391, 36.676391}};
    static const int32_t replicas[CASES][3] = {
        {6, 17, 78}, {9, 20, 59}, {9, 27, 75}, {5, 6, 84}, {5, 5, 5}};
    static trace t;

    if (!read_trace(&t))
        SKIP(golden_missing);
    for (int i = 0; i < CASES; i++)
        for (int j = 0; j < 3; j++)
            check_trace(t.counts[i], EXPERTS, slots[j], after[i][j], replicas[i][j]);
    /* One expert per device, as in the paper: 20.904 and 20.065 ms for n of 0 and 1. */
    check_trace(t.fused[1], SOURCES, SOURCES, 18.733702, 45);
}

/* --- properties ------------------------------------------------------------------------------- */

static int32_t pick(uint64_t seed, uint64_t *at, int32_t n)
{
    return (int32_t)(ek_random_bits(seed, 0, (*at)++) % (uint64_t)n);
}

/* Counts of a few heavy and many light experts; some have none. */
static void random_counts(fixture *f, uint64_t seed, uint64_t *at, int64_t *counts)
{
    for (int32_t e = 0; e < f->l.experts; e++) {
        int32_t weight = 1 << pick(seed, at, 12);

        for (int32_t r = 0; r < f->l.ranks; r++)
            counts[r * f->l.experts + e] = pick(seed, at, 4) ? pick(seed, at, weight) : 0;
    }
}

/* Random replicas, sometimes twice on a rank. */
static void random_replicas(fixture *f, uint64_t seed, uint64_t *at)
{
    ek_placement *p = &f->p.placement;

    for (int32_t s = 0; s < p->ranks * p->slots; s++)
        if (p->expert_of[s] < 0 && pick(seed, at, 3) == 0)
            p->expert_of[s] = pick(seed, at, p->experts);
}

static void check_serving(const fixture *f, const int64_t *counts)
{
    const ek_placement *p = &f->p.placement;

    for (int32_t e = 0; e < f->l.experts; e++)
        for (int32_t r = 0; r < f->l.ranks; r++)
            if (away(p, r, e))
                CHECK_INT(f->p.quota[ek_plan_slot(p, r, e)], counts[r * f->l.experts + e]);
}

/* A second plan from the first one's placement changes nothing; a fresh plan from the same counts,
 * or from four times the counts at a quarter of the costs, is the same. */
static void check_repeats(fixture *f, int64_t *counts, int dirty)
{
    size_t bytes = (size_t)(f->l.ranks * f->l.slots) * sizeof(int32_t);
    int32_t *first = malloc(bytes);
    double after = f->p.after_s;

    memcpy(first, f->p.placement.expert_of, bytes);
    make(f, counts);
    CHECK(f->p.before_s == after && f->p.after_s == after);
    CHECK(memcmp(first, f->p.placement.expert_of, bytes) == 0);
    for (int scaled = 0; scaled < 2 && !dirty; scaled++) {
        ek_placement_block(&f->p.placement, 1);
        if (scaled) {
            for (int32_t i = 0; i < f->l.ranks * f->l.experts; i++)
                counts[i] *= 4;
            f->l.costs.compute_s_per_row /= 4;
            f->l.costs.comm_s_per_row /= 4;
        }
        make(f, counts);
        CHECK(f->p.after_s == after);
        CHECK(memcmp(first, f->p.placement.expert_of, bytes) == 0);
    }
    free(first);
}

static void check_random(uint64_t seed)
{
    uint64_t at = 0;
    int32_t ranks = 1 + pick(seed, &at, 9), experts = 1 + pick(seed, &at, 20);
    int32_t slots = (experts + ranks - 1) / ranks + pick(seed, &at, 4);
    int64_t counts[9 * 20];
    int dirty = pick(seed, &at, 2);
    double before, off;
    fixture f;

    setup(&f, experts, ranks, slots,
          (ek_plan_costs){.compute_s_per_row = ek_random_uniform(seed, 1, 0),
                          .comm_s_per_row = ek_random_uniform(seed, 1, 1),
                          .replica_s = 1 << pick(seed, &at, 12)});
    random_counts(&f, seed, &at, counts);
    off = time_of(&f.l, counts, &f.p.placement);
    if (dirty)
        random_replicas(&f, seed, &at);
    before = time_of(&f.l, counts, &f.p.placement);
    make(&f, counts);
    CHECK(near(f.p.before_s, before));
    CHECK(near(f.p.after_s, time_of(&f.l, counts, &f.p.placement)));
    CHECK(f.p.after_s <= f.p.before_s);
    CHECK(f.p.after_s <= off || near(f.p.after_s, off));
    check_serving(&f, counts);
    check_repeats(&f, counts, dirty);
    teardown(&f);
}

static void properties_of_random_cases(void)
{
    for (uint64_t seed = 1; seed <= 600; seed++)
        check_random(seed);
}

/* Very large counts: no sum overflows. */
static void large_counts(void)
{
    int64_t counts[8 * 8];
    fixture f;

    for (int i = 0; i < 64; i++)
        counts[i] = i % 8 == 0 ? (int64_t)1 << 50 : 1;
    setup(&f, 8, 8, 2,
          (ek_plan_costs){.compute_s_per_row = 1e-6, .comm_s_per_row = 1e-6, .replica_s = 1e-3});
    f.p.explain = 1;
    make(&f, counts);
    CHECK_INT(replicas_of(&f.p.placement), 7);
    CHECK_INT(f.p.quota[0], (int64_t)1 << 50);
    teardown(&f);
}

static const ek_case cases[] = {
    EK_CASE(algorithm_1_on_the_trace),
    EK_CASE(ties_exclude_the_lower_device),
    EK_CASE(algorithm_1_continues_past_a_loss),
    EK_CASE(algorithm_1_at_the_edges),
    EK_CASE(ranks_without_assignments_get_no_replica),
    EK_CASE(equally_heavy_ranks_are_both_relieved),
    EK_CASE(needless_replicas_are_dropped),
    EK_CASE(ties_take_the_lower_expert),
    EK_CASE(stays_as_it_was),
    EK_CASE(one_expert_takes_all),
    EK_CASE(old_replicas_make_room),
    EK_CASE(planner_on_the_trace),
    EK_CASE(properties_of_random_cases),
    EK_CASE(large_counts),
};
EK_TEST_MAIN(cases)
