/* Yields first, then sleeps.
 *
 * A yield is cheap if the core goes to another rank, which returns it soon.  If a compute-bound
 * process gets the core, the yield lasts one of its time slices, some milliseconds, and newer
 * schedulers charge the yielding process for a slice as well, so that one that keeps yielding gets
 * almost no CPU time.  After a yield longer than SLOW_YIELD_NS this thread therefore sleeps instead
 * of yielding, for SLOW_FACTOR times the yield's duration; the duration is capped at
 * SLOWEST_YIELD_NS, as the process may have been stopped meanwhile. */
#include "base/backoff.h"

#include "base/clock.h"

#include <sched.h>
#include <time.h>

/* YIELDS yields take about 0.1 ms when no other process wants the core.  A sleep of 1 ns lasts as
 * long as the system's timer resolution, about 50 us. */
enum {
    YIELDS = 256,
    SLOW_YIELD_NS = 1000 * 1000,
    SLOW_FACTOR = 50,
    SLOWEST_YIELD_NS = 100 * SLOW_YIELD_NS
};

static _Thread_local int64_t sleep_until_ns;

int ek_backoff_is_long(const ek_backoff *p)
{
    return p->polls >= YIELDS;
}

void ek_backoff_wait(ek_backoff *p)
{
    const struct timespec shortest = {.tv_nsec = 1};
    int64_t start = ek_clock_ns(), took;

    if (ek_backoff_is_long(p)) {
        nanosleep(&shortest, NULL);
        return;
    }
    p->polls++;
    if (start < sleep_until_ns) {
        nanosleep(&shortest, NULL);
        return;
    }
    sched_yield();
    took = ek_clock_ns() - start;
    if (took > SLOW_YIELD_NS)
        sleep_until_ns = start + SLOW_FACTOR * (took < SLOWEST_YIELD_NS ? took : SLOWEST_YIELD_NS);
}
