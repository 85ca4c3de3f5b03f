/* Kernels timed on a simulated machine that is slow for a while: each result is within a quarter of
 * the kernel's time, whenever the slow while begins, as no kernel is timed in it alone; and the
 * budget is kept. */
#include "ek_test.h"
#include "train/calibrate/calibrate_priv.h"

enum { KERNELS = 150, TURNS = 5 };

#define SLOW_S 0.25
#define SLOWER 2.5

typedef struct {
    ek_timed timed[KERNELS];
    double now, budget, slow_at;
    int even, calls;
} machine;

/* Seconds when nothing disturbs: 1 to 3 ms, or all 1 ms. */
static double seconds_of(const machine *m, int i)
{
    return 1e-3 * (m->even ? 1 : 1 + i % 3);
}

static ek_status time_one(void *self, int i)
{
    machine *m = self;
    double slow = m->now >= m->slow_at && m->now < m->slow_at + SLOW_S ? SLOWER : 1;
    double seconds = slow * seconds_of(m, i) * (1 + 0.01 * (m->calls++ % 3));

    m->now += seconds;
    ek_times_add(&m->timed[i].times, seconds);
    return EK_OK;
}

static int has_time(void *self, int i, double part)
{
    const machine *m = self;

    return m->now + seconds_of(m, i) <= part * m->budget;
}

static machine measured(double budget, double slow_at, int even, int once)
{
    machine m = {.budget = budget, .slow_at = slow_at, .even = even};
    ek_passes p = {m.timed, KERNELS, TURNS, once, &m, time_one, has_time};

    for (int i = 0; i < KERNELS; i++)
        m.timed[i].turn = i / 3 % TURNS;
    CHECK_INT(ek_calibrate_passes(&p), EK_OK);
    return m;
}

/* Of those that were timed. */
static double largest_error(const machine *m)
{
    double most = 0;

    for (int i = 0; i < KERNELS; i++)
        if (m->timed[i].times.n > 0)
            most = fmax(most, fabs(ek_times_mean(&m->timed[i].times) / seconds_of(m, i) - 1));
    return most;
}

static void a_slow_while_does_not_decide(void)
{
    for (double at = 0; at < 1; at += 0.05) {
        machine m = measured(1, at, 0, 0);

        CHECK(largest_error(&m) < 0.26);
        for (int i = 0; i < KERNELS; i++)
            CHECK(m.timed[i].times.n >= 2);
    }
    for (double at = 0; at < 0.3; at += 0.1) { /* one pass takes 0.3 s */
        machine m = measured(1, at, 0, 1);

        CHECK(largest_error(&m) > 1.4);
    }
}

static void the_budget_is_kept(void)
{
    for (double budget = 0.02; budget < 2; budget *= 1.3) {
        machine m = measured(budget, 10, 1, 0);
        int last = 0;

        CHECK(m.now <= budget * 1.02 + 1e-3);
        for (int i = 0; i < KERNELS; i++)
            last = m.timed[i].times.n > 0 && m.timed[i].turn > last ? m.timed[i].turn : last;
        for (int i = 0; i < KERNELS; i++) /* all of the turns before the last */
            CHECK(m.timed[i].turn >= last || m.timed[i].times.n > 0);
        CHECK(budget < 0.32 || last == TURNS - 1);
    }
}

static void it_ends_when_repetitions_agree(void)
{
    machine m = measured(1e9, 1e9, 0, 0);

    CHECK(m.now < 5);
    CHECK(m.calls >= 3 * KERNELS && m.calls <= EK_TIMES_MOST * KERNELS);
}

static void the_shortest_are_kept(void)
{
    ek_times t = {0};

    CHECK(ek_times_mean(&t) == 0);
    for (int i = 0; i < 3 * EK_TIMES_MOST; i++)
        ek_times_add(&t, 100 - i);
    CHECK_INT(t.n, EK_TIMES_MOST);
    for (int i = 0; i < EK_TIMES_MOST; i++)
        CHECK(t.seconds[i] == 100 - 3 * EK_TIMES_MOST + 1 + i);
    ek_times_add(&t, 200);
    CHECK(t.seconds[EK_TIMES_MOST - 1] < 200);
    t = (ek_times){0};
    ek_times_add(&t, 2);
    ek_times_add(&t, 1.2);
    ek_times_add(&t, 1);
    CHECK(fabs(ek_times_mean(&t) - 1.1) < 1e-12);
}

static const ek_case cases[] = {
    EK_CASE(a_slow_while_does_not_decide),
    EK_CASE(the_budget_is_kept),
    EK_CASE(it_ends_when_repetitions_agree),
    EK_CASE(the_shortest_are_kept),
};
EK_TEST_MAIN(cases)
