/* The thread-local hook, called at most once per PERIOD_NS. */
#include "base/progress_hook.h"

#include "base/clock.h"

#include <stddef.h>

enum { PERIOD_NS = 50000 };

static _Thread_local struct {
    void (*fn)(void *context);
    void *context;
    int64_t next_ns; /* earliest time of the next call */
    int running;
} hook;

void ek_progress_hook_set(void (*fn)(void *context), void *context)
{
    hook.fn = fn;
    hook.context = context;
    hook.next_ns = 0;
}

void ek_progress(void)
{
    if (hook.fn == NULL || hook.running || ek_clock_ns() < hook.next_ns)
        return;
    hook.running = 1;
    hook.fn(hook.context);
    hook.running = 0;
    hook.next_ns = ek_clock_ns() + PERIOD_NS;
}
