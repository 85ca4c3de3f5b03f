/* Timeouts of each phase of a job, from the messages of rank 0. */
#include "ek_test.h"
#include "supervisor/progress.h"

#include <math.h>

static const int64_t s = 1000000000;

/* A start up to its first step, with `each` ns in launch and in connect. */
static int64_t begin(ek_job_progress *p, int64_t now, int64_t each)
{
    ek_job_progress_begin(p, now);
    ek_job_progress_enter(p, EK_PHASE_CONNECT, now += each);
    ek_job_progress_enter(p, EK_PHASE_PLAN, now += each);
    ek_job_progress_enter(p, EK_PHASE_TRANSFER, now += s);
    ek_job_progress_enter(p, EK_PHASE_STEP, now += s);
    return now;
}

static int64_t take_steps(ek_job_progress *p, int64_t now, int n, int64_t each)
{
    for (int i = 0; i < n; i++)
        ek_job_progress_step(p, now += each);
    return now;
}

static void nothing_is_known(void)
{
    ek_job_progress p = {.watchdog_s = 100};
    int64_t now = s;

    ek_job_progress_begin(&p, now);
    CHECK(!ek_job_progress_hangs(&p, now + 99 * s) && ek_job_progress_hangs(&p, now + 101 * s));
    now = begin(&p, now, s);
    CHECK(!ek_job_progress_hangs(&p, now + 99 * s) && ek_job_progress_hangs(&p, now + 101 * s));
    p.watchdog_s = 0;
    CHECK(!ek_job_progress_hangs(&p, now + 100000 * s));
}

/* With few steps the longest counts, including the first. */
static void few_steps(void)
{
    ek_job_progress p = {.watchdog_s = 100};
    int64_t now = take_steps(&p, begin(&p, s, s), 1, 2 * s);

    CHECK(!ek_job_progress_hangs(&p, now + 19 * s) && ek_job_progress_hangs(&p, now + 21 * s));
    now = take_steps(&p, now, 1, 4 * s);
    now = take_steps(&p, now, 3, s);
    CHECK(!ek_job_progress_hangs(&p, now + 39 * s) && ek_job_progress_hangs(&p, now + 41 * s));
    now = take_steps(&p, now, 1, s); /* five that are not the first: the median of these */
    CHECK(!ek_job_progress_hangs(&p, now + 9 * s) && ek_job_progress_hangs(&p, now + 11 * s));
    p.n = 3;
    now = begin(&p, now, s);
    CHECK(!ek_job_progress_hangs(&p, now + 99 * s) && ek_job_progress_hangs(&p, now + 101 * s));
}

static void steps(void)
{
    ek_job_progress p = {.watchdog_s = 100};
    int64_t now = take_steps(&p, begin(&p, s, s), 1, 30 * s); /* the first step is not typical */

    CHECK(fabs(p.first_step_s - 30) <= 1e-9);
    now = take_steps(&p, now, 9, s / 10);
    CHECK(fabs(ek_job_progress_median_s(&p) - 0.1) <= 1e-9);
    CHECK(!ek_job_progress_hangs(&p, now + 27 * s / 10)); /* not below 2.8 s */
    CHECK(ek_job_progress_hangs(&p, now + 31 * s / 10));
    now = take_steps(&p, now, 32, s);
    CHECK(!ek_job_progress_hangs(&p, now + 9 * s) && ek_job_progress_hangs(&p, now + 11 * s));
    now = begin(&p, now, s); /* the next start uses earlier times */
    CHECK(fabs(p.first_step_s - 0) <= 0);
    CHECK(!ek_job_progress_hangs(&p, now + 9 * s) && ek_job_progress_hangs(&p, now + 11 * s));
}

/* A save does not count as step time, and has its own timeout. */
static void saves(void)
{
    ek_job_progress p = {.watchdog_s = 100};
    int64_t now = begin(&p, s, s);

    for (int i = 0; i < 10; i++) {
        ek_job_progress_step(&p, now += 4 * s);
        ek_job_progress_enter(&p, EK_PHASE_CHECKPOINT, now);
        CHECK(!ek_job_progress_hangs(&p, now + 99 * s));
        ek_job_progress_enter(&p, EK_PHASE_STEP, now += 20 * s);
    }
    CHECK(fabs(ek_job_progress_median_s(&p) - 4) <= 1e-9);
    CHECK(!ek_job_progress_hangs(&p, now + 39 * s) && ek_job_progress_hangs(&p, now + 41 * s));
    ek_job_progress_enter(&p, EK_PHASE_END, now);
    CHECK(!ek_job_progress_hangs(&p, now + 99 * s) && ek_job_progress_hangs(&p, now + 101 * s));
    CHECK(fabs(p.took_s[EK_PHASE_CHECKPOINT] - 200) <= 1e-6);
}

/* Phases that read, copy or send state vary: --watchdog applies. */
static void other_phases(void)
{
    ek_job_progress p = {.watchdog_s = 100};
    int64_t now = take_steps(&p, begin(&p, s, s), 9, s);

    ek_job_progress_begin(&p, now);
    CHECK(!ek_job_progress_hangs(&p, now + 19 * s) && ek_job_progress_hangs(&p, now + 21 * s));
    ek_job_progress_enter(&p, EK_PHASE_CONNECT, now);
    CHECK(!ek_job_progress_hangs(&p, now + 19 * s) && ek_job_progress_hangs(&p, now + 21 * s));
    ek_job_progress_enter(&p, EK_PHASE_PLAN, now);
    CHECK(!ek_job_progress_hangs(&p, now + 99 * s) && ek_job_progress_hangs(&p, now + 101 * s));
    ek_job_progress_alive(&p, now + 90 * s); /* any message shows that it is alive */
    CHECK(p.phase == EK_PHASE_PLAN && !ek_job_progress_hangs(&p, now + 180 * s));
    ek_job_progress_enter(&p, EK_PHASE_TRANSFER, now);
    CHECK(!ek_job_progress_hangs(&p, now + 99 * s));
    ek_job_progress_begin(&p, now);
    now = begin(&p, now, 5 * s);
    ek_job_progress_begin(&p, now);
    CHECK(!ek_job_progress_hangs(&p, now + 49 * s) && ek_job_progress_hangs(&p, now + 51 * s));
}

/* A launcher that was not run for seconds says nothing of its workers. */
static void stalls(void)
{
    ek_job_progress p = {.watchdog_s = 100};
    int64_t now = take_steps(&p, begin(&p, s, s), 9, s / 10), end = now + 5 * s;

    ek_job_progress_look(&p, now);
    ek_job_progress_look(&p, end);
    CHECK(!ek_job_progress_hangs(&p, end));
    for (int i = 0; i < 27; i++)
        ek_job_progress_look(&p, end += s / 10);
    CHECK(!ek_job_progress_hangs(&p, end));
    ek_job_progress_look(&p, end += s / 5);
    CHECK(ek_job_progress_hangs(&p, end));
    ek_job_progress_begin(&p, end += 100 * s);
    ek_job_progress_enter(&p, EK_PHASE_STEP, end);
    ek_job_progress_look(&p, end += s / 10);
    CHECK(p.heard == p.since);
}

static void phases_have_names(void)
{
    for (int i = 0; i < EK_PHASES; i++)
        CHECK_INT(ek_phase_of(ek_phase_name((ek_phase)i)), i);
    CHECK_INT(ek_phase_of("tokenising"), -1);
}

static const ek_case cases[] = {
    EK_CASE(phases_have_names),
    EK_CASE(nothing_is_known),
    EK_CASE(few_steps),
    EK_CASE(steps),
    EK_CASE(saves),
    EK_CASE(other_phases),
    EK_CASE(stalls),
};
EK_TEST_MAIN(cases)
