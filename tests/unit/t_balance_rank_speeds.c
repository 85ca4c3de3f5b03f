/* Speeds of ranks from times of products: noise, slow and fast ranks, changes, little work. */
#include "balance/rank_speeds.h"
#include "base/random.h"
#include "ek_test.h"

enum { RANKS = 8, STEPS = 10000, GROUP_ROWS = 20 };

typedef struct {
    ek_arena arena;
    ek_rank_speeds s;
    double times[RANKS]; /* true relative times of a row */
    double noise, spikes;
    double rows, groups; /* of a rank in a step, before they vary */
    int step;
} ranks;

static void open_ranks(ranks *x)
{
    *x = (ranks){.noise = 0.05, .spikes = 0.02, .rows = 20000, .groups = 40};
    ek_arena_measure(&x->arena);
    ek_rank_speeds_reserve(&x->s, &x->arena, RANKS);
    CHECK(ek_arena_reserve(&x->arena, "speeds") == EK_OK);
    ek_rank_speeds_reserve(&x->s, &x->arena, RANKS);
    x->s.group_rows = GROUP_ROWS;
    for (int r = 0; r < RANKS; r++)
        x->times[r] = 1;
}

static double drawn(const ranks *x, int i)
{
    return (double)(ek_random_bits(7, (uint64_t)x->step, (uint64_t)i) >> 11) * 0x1p-53;
}

/* About normal: a sum of uniform numbers. */
static double noise_of(const ranks *x, int r)
{
    double sum = -6;

    for (int i = 0; i < 12; i++)
        sum += drawn(x, 100 * r + i);
    return 1 + x->noise * sum;
}

/* One step; ranks have between 0.3 and 1.7 times the mean rows.  Now and then a rank is held up. */
static int run_step(ranks *x)
{
    double seconds[RANKS], rows[RANKS], groups[RANKS];

    x->step++;
    for (int r = 0; r < RANKS; r++) {
        rows[r] = (double)(int64_t)(x->rows * (0.3 + 1.4 * drawn(x, 100 * r + 20)));
        groups[r] = x->groups;
        seconds[r] = 1e-5 * x->times[r] * (rows[r] + GROUP_ROWS * groups[r]) * noise_of(x, r);
        seconds[r] *= drawn(x, 100 * r + 21) < x->spikes ? 4 : 1;
    }
    return ek_rank_speeds_add(&x->s, seconds, rows, groups);
}

static int run_steps(ranks *x, int n)
{
    int changes = 0;

    for (int i = 0; i < n; i++)
        changes += run_step(x);
    return changes;
}

static void noise_on_equal_ranks_changes_nothing(void)
{
    ranks x;

    open_ranks(&x);
    CHECK_INT(run_steps(&x, STEPS), 0);
    CHECK(!x.s.differ);
    ek_arena_fini(&x.arena);
}

static void a_rank_at_half_speed_is_known_after_five_steps(void)
{
    ranks x;

    open_ranks(&x);
    x.spikes = 0;
    x.times[3] = 2;
    CHECK_INT(run_steps(&x, EK_SPEEDS_JUMP - 1), 0);
    CHECK_INT(run_steps(&x, 1), 1);
    for (int r = 0; r < RANKS; r++)
        CHECK(r == 3 ? abs(x.s.cost[r] - 512) < 40 : x.s.cost[r] == 256);
    CHECK(x.s.differ && x.s.median_row_s > 0.9e-5 && x.s.median_row_s < 1.1e-5);
    for (int i = 0; i < STEPS && ek_t.failed == 0; i++) { /* and it stays, whatever the noise */
        run_step(&x);
        for (int r = 0; r < RANKS; r++)
            CHECK(r == 3 ? abs(x.s.cost[r] - 512) < 50 : x.s.cost[r] == 256);
    }
    ek_arena_fini(&x.arena);
}

static void a_rank_one_fifth_slower_is_found_and_one_twentieth_is_not(void)
{
    ranks x;

    open_ranks(&x);
    x.times[0] = 1.2;
    x.times[1] = 1.05;
    run_steps(&x, 3 * EK_SPEEDS_WINDOW);
    CHECK(abs(x.s.cost[0] - 307) < 16);
    for (int r = 1; r < RANKS; r++)
        CHECK_INT(x.s.cost[r], 256);
    ek_arena_fini(&x.arena);
}

static void speeds_that_change_are_followed(void)
{
    ranks x;

    open_ranks(&x);
    run_steps(&x, 100);
    x.times[5] = 3;
    run_steps(&x, 2 * EK_SPEEDS_JUMP);
    CHECK(abs(x.s.cost[5] - 768) < 60);
    x.times[5] = 0.5;
    run_steps(&x, 2 * EK_SPEEDS_JUMP);
    CHECK(abs(x.s.cost[5] - 128) < 12);
    x.times[5] = 1;
    run_steps(&x, 2 * EK_SPEEDS_JUMP);
    CHECK_INT(x.s.cost[5], 256);
    CHECK(!x.s.differ);
    ek_arena_fini(&x.arena);
}

/* Few rows an expert, or little time: what is measured is not the speed of rows. */
static void little_work_gives_no_sample(void)
{
    ranks x;

    open_ranks(&x);
    x.times[2] = 4;
    x.rows = 400; /* 10 rows an expert */
    CHECK_INT(run_steps(&x, 100), 0);
    x.rows = 40;
    x.groups = 1;
    CHECK_INT(run_steps(&x, 100), 0);
    CHECK_INT(x.s.n_steps, 0);
    ek_arena_fini(&x.arena);
}

static void two_ranks_are_compared_with_the_faster_one(void)
{
    ek_rank_speeds s;
    ek_arena a;

    ek_arena_measure(&a);
    ek_rank_speeds_reserve(&s, &a, 2);
    CHECK(ek_arena_reserve(&a, "speeds") == EK_OK);
    ek_rank_speeds_reserve(&s, &a, 2);
    for (int i = 0; i < EK_SPEEDS_JUMP; i++)
        (void)ek_rank_speeds_add(&s, (double[]){0.3, 0.1}, (double[]){1000, 1000},
                                 (double[]){4, 4});
    CHECK_INT(s.cost[0], 768);
    CHECK_INT(s.cost[1], 256);
    ek_arena_fini(&a);
}

static const ek_case cases[] = {
    EK_CASE(noise_on_equal_ranks_changes_nothing),
    EK_CASE(a_rank_at_half_speed_is_known_after_five_steps),
    EK_CASE(a_rank_one_fifth_slower_is_found_and_one_twentieth_is_not),
    EK_CASE(speeds_that_change_are_followed),
    EK_CASE(little_work_gives_no_sample),
    EK_CASE(two_ranks_are_compared_with_the_faster_one),
};

EK_TEST_MAIN(cases)
