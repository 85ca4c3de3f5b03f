/* The hook of one thread, and when it was last called. */
#include "base/progress_hook.h"

#include "base/clock.h"

#include <stddef.h>

enum { PERIOD_NS = 50000 };

static _Thread_local struct {
    void (*fn)(void *context);
    void *context;
    int64_t next_ns; /* not before */
    int running;
} tick;

void ek_progress_hook_set(void (*fn)(void *context), void *context)
{
    tick.fn = fn;
    tick.context = context;
    tick.next_ns = 0;
}

void ek_progress(void)
{
    if (tick.fn == NULL || tick.running || ek_clock_ns() < tick.next_ns)
        return;
    tick.running = 1;
    tick.fn(tick.context);
    tick.running = 0;
    tick.next_ns = ek_clock_ns() + PERIOD_NS;
}
