/* Yields first, then naps.
 *
 * To yield is cheap where those who then run are other ranks, which give the core back soon.  Where
 * somebody who only computes takes it, a yield lasts a slice of his, some milliseconds, and newer
 * schedulers charge the yielder for one too: who yields again and again gets next to nothing.  So a
 * yield that was dear is not made again until DEAR times what it took have passed; of a process
 * that was stopped meanwhile, DEAREST_NS of that. */
#include "base/backoff.h"

#include "base/clock.h"

#include <sched.h>
#include <time.h>

/* Yields take a tenth of a millisecond in all when nobody else wants the core.  A nap of one
 * nanosecond lasts as long as the system's timers make it, about 50 microseconds. */
enum { YIELDS = 256, DEAR_NS = 1000 * 1000, DEAR = 50, DEAREST_NS = 100 * DEAR_NS };

static _Thread_local int64_t nap_until_ns;

void ek_backoff_wait(ek_backoff *p)
{
    const struct timespec nap = {.tv_nsec = 1};
    int64_t start = ek_clock_ns(), took;

    if (p->polls >= YIELDS || start < nap_until_ns) {
        nanosleep(&nap, NULL);
        return;
    }
    p->polls++;
    sched_yield();
    took = ek_clock_ns() - start;
    if (took > DEAR_NS)
        nap_until_ns = start + DEAR * (took < DEAREST_NS ? took : DEAREST_NS);
}
