/* The progress hook: it is thread-local, called at most once per period, and not reentered. */
#include "base/clock.h"
#include "base/progress_hook.h"
#include "ek_test.h"

#include <pthread.h>

typedef struct {
    int calls, inner;
    int64_t last_ns, least_ns; /* the shortest time between two calls */
} counter;

static void count(void *context)
{
    counter *c = context;
    int64_t now = ek_clock_ns();

    if (c->calls++ > 0 && now - c->last_ns < c->least_ns)
        c->least_ns = now - c->last_ns;
    c->last_ns = now;
}

static void nothing_is_called_when_unset(void)
{
    counter c = {0};

    ek_progress();
    ek_progress_hook_set(count, &c);
    ek_progress();
    CHECK_INT(c.calls, 1); /* the first call is immediate */
    ek_progress_hook_set(NULL, NULL);
    ek_progress();
    CHECK_INT(c.calls, 1);
}

static void calls_are_a_period_apart(void)
{
    counter c = {.least_ns = INT64_MAX};

    ek_progress_hook_set(count, &c);
    while (c.calls < 20)
        ek_progress();
    ek_progress_hook_set(NULL, NULL);
    CHECK(c.least_ns >= 40000);
}

static void count_twice(void *context)
{
    counter *c = context;
    int64_t end = ek_clock_ns() + 200000;

    c->calls++;
    while (ek_clock_ns() < end) { /* longer than the period */
        int before = c->calls;

        ek_progress();
        c->inner += c->calls - before;
    }
}

static void the_hook_is_not_reentered(void)
{
    counter c = {0};

    ek_progress_hook_set(count_twice, &c);
    ek_progress();
    ek_progress_hook_set(NULL, NULL);
    CHECK_INT(c.calls, 1);
    CHECK_INT(c.inner, 0);
}

static void *progress_here(void *unused)
{
    for (int i = 0; i < 1000; i++)
        ek_progress();
    return unused;
}

static void other_threads_have_none(void)
{
    counter c = {0};
    pthread_t thread;

    ek_progress_hook_set(count, &c);
    CHECK(pthread_create(&thread, NULL, progress_here, NULL) == 0);
    pthread_join(thread, NULL);
    CHECK_INT(c.calls, 0);
    ek_progress();
    CHECK_INT(c.calls, 1);
    ek_progress_hook_set(NULL, NULL);
}

static const ek_case cases[] = {
    EK_CASE(nothing_is_called_when_unset),
    EK_CASE(calls_are_a_period_apart),
    EK_CASE(the_hook_is_not_reentered),
    EK_CASE(other_threads_have_none),
};
EK_TEST_MAIN(cases)
