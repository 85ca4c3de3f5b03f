/* base/clock.h - clocks, in nanoseconds. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>

/* Time as it goes by, never back. */
int64_t ek_clock_ns(void);
/* What this thread has had of a processor. */
int64_t ek_clock_thread_ns(void);

#endif
