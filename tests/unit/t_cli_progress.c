/* Timeouts of each phase of a job, from the messages of rank 0. */
#include "cli/launch_priv.h"
#include "ek_test.h"

#include <math.h>

static const int64_t s = 1000000000;

/* A start up to its first step, with `each` ns in launch and in connect. */
static int64_t begin(launch_progress *p, int64_t now, int64_t each)
{
    launch_progress_begin(p, now);
    launch_progress_enter(p, LAUNCH_CONNECT, now += each);
    launch_progress_enter(p, LAUNCH_PLAN, now += each);
    launch_progress_alive(p, "transfer", now += s);
    launch_progress_alive(p, "step", now += s);
    return now;
}

static int64_t take_steps(launch_progress *p, int64_t now, int n, int64_t each)
{
    for (int i = 0; i < n; i++)
        launch_progress_step(p, now += each);
    return now;
}

static void nothing_is_known(void)
{
    launch_progress p = {.watchdog_s = 100};
    int64_t now = s;

    launch_progress_begin(&p, now);
    CHECK(!launch_progress_hangs(&p, now + 99 * s) && launch_progress_hangs(&p, now + 101 * s));
    now = begin(&p, now, s);
    CHECK(!launch_progress_hangs(&p, now + 99 * s) && launch_progress_hangs(&p, now + 101 * s));
    p.watchdog_s = 0;
    CHECK(!launch_progress_hangs(&p, now + 100000 * s));
}

/* With few steps the longest counts, including the first. */
static void few_steps(void)
{
    launch_progress p = {.watchdog_s = 100};
    int64_t now = take_steps(&p, begin(&p, s, s), 1, 2 * s);

    CHECK(!launch_progress_hangs(&p, now + 19 * s) && launch_progress_hangs(&p, now + 21 * s));
    now = take_steps(&p, now, 1, 4 * s);
    now = take_steps(&p, now, 3, s);
    CHECK(!launch_progress_hangs(&p, now + 39 * s) && launch_progress_hangs(&p, now + 41 * s));
    now = take_steps(&p, now, 1, s); /* five that are not the first: the median of these */
    CHECK(!launch_progress_hangs(&p, now + 9 * s) && launch_progress_hangs(&p, now + 11 * s));
    p.n = 3;
    now = begin(&p, now, s);
    CHECK(!launch_progress_hangs(&p, now + 99 * s) && launch_progress_hangs(&p, now + 101 * s));
}

static void steps(void)
{
    launch_progress p = {.watchdog_s = 100};
    int64_t now = take_steps(&p, begin(&p, s, s), 1, 30 * s); /* the first step is not typical */

    CHECK(fabs(p.first_step_s - 30) <= 1e-9);
    now = take_steps(&p, now, 9, s / 10);
    CHECK(fabs(launch_progress_median_s(&p) - 0.1) <= 1e-9);
    CHECK(!launch_progress_hangs(&p, now + 27 * s / 10)); /* not below 2.8 s */
    CHECK(launch_progress_hangs(&p, now + 31 * s / 10));
    now = take_steps(&p, now, 32, s);
    CHECK(!launch_progress_hangs(&p, now + 9 * s) && launch_progress_hangs(&p, now + 11 * s));
    now = begin(&p, now, s); /* the next start uses earlier times */
    CHECK(fabs(p.first_step_s - 0) <= 0);
    CHECK(!launch_progress_hangs(&p, now + 9 * s) && launch_progress_hangs(&p, now + 11 * s));
}

/* A save does not count as step time, and has its own timeout. */
static void saves(void)
{
    launch_progress p = {.watchdog_s = 100};
    int64_t now = begin(&p, s, s);

    for (int i = 0; i < 10; i++) {
        launch_progress_step(&p, now += 4 * s);
        launch_progress_alive(&p, "checkpoint", now);
        CHECK(!launch_progress_hangs(&p, now + 99 * s));
        launch_progress_alive(&p, "step", now += 20 * s);
    }
    CHECK(fabs(launch_progress_median_s(&p) - 4) <= 1e-9);
    CHECK(!launch_progress_hangs(&p, now + 39 * s) && launch_progress_hangs(&p, now + 41 * s));
    launch_progress_alive(&p, "end", now);
    CHECK(!launch_progress_hangs(&p, now + 99 * s) && launch_progress_hangs(&p, now + 101 * s));
    CHECK(fabs(p.took_s[LAUNCH_CHECKPOINT] - 200) <= 1e-6);
}

/* Phases that read, copy or send state vary: --watchdog applies. */
static void other_phases(void)
{
    launch_progress p = {.watchdog_s = 100};
    int64_t now = take_steps(&p, begin(&p, s, s), 9, s);

    launch_progress_begin(&p, now);
    CHECK(!launch_progress_hangs(&p, now + 19 * s) && launch_progress_hangs(&p, now + 21 * s));
    launch_progress_enter(&p, LAUNCH_CONNECT, now);
    CHECK(!launch_progress_hangs(&p, now + 19 * s) && launch_progress_hangs(&p, now + 21 * s));
    launch_progress_enter(&p, LAUNCH_PLAN, now);
    CHECK(!launch_progress_hangs(&p, now + 99 * s) && launch_progress_hangs(&p, now + 101 * s));
    launch_progress_alive(&p, "tokenising", now + 90 * s); /* any message shows that it is alive */
    CHECK(p.phase == LAUNCH_PLAN && !launch_progress_hangs(&p, now + 180 * s));
    launch_progress_alive(&p, "transfer", now);
    CHECK(!launch_progress_hangs(&p, now + 99 * s));
    launch_progress_begin(&p, now);
    now = begin(&p, now, 5 * s);
    launch_progress_begin(&p, now);
    CHECK(!launch_progress_hangs(&p, now + 49 * s) && launch_progress_hangs(&p, now + 51 * s));
}

/* A launcher that was not run for seconds says nothing of its workers. */
static void stalls(void)
{
    launch_progress p = {.watchdog_s = 100};
    int64_t now = take_steps(&p, begin(&p, s, s), 9, s / 10), end = now + 5 * s;

    launch_progress_look(&p, now);
    launch_progress_look(&p, end);
    CHECK(!launch_progress_hangs(&p, end));
    for (int i = 0; i < 27; i++)
        launch_progress_look(&p, end += s / 10);
    CHECK(!launch_progress_hangs(&p, end));
    launch_progress_look(&p, end += s / 5);
    CHECK(launch_progress_hangs(&p, end));
    launch_progress_begin(&p, end += 100 * s);
    launch_progress_enter(&p, LAUNCH_STEP, end);
    launch_progress_look(&p, end += s / 10);
    CHECK(p.heard == p.since);
}

static const ek_case cases[] = {
    EK_CASE(nothing_is_known), EK_CASE(few_steps), EK_CASE(steps), EK_CASE(saves),
    EK_CASE(other_phases),     EK_CASE(stalls),
};
EK_TEST_MAIN(cases)
