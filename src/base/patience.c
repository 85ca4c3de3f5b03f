/* Yields first, then naps. */
#include "base/patience.h"

#include <sched.h>
#include <time.h>

/* Yields take a tenth of a millisecond in all when nobody else wants the core.  A nap of one
 * nanosecond lasts as long as the system's timers make it, about 50 microseconds. */
enum { YIELDS = 256 };

void ek_patience_wait(ek_patience *p)
{
    const struct timespec nap = {.tv_nsec = 1};

    if (p->polls < YIELDS) {
        p->polls++;
        sched_yield();
    } else {
        nanosleep(&nap, NULL);
    }
}
