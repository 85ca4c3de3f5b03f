/* base/clock.h - clocks, in nanoseconds. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>

/* Monotonic wall time. */
int64_t ek_clock_ns(void);
/* CPU time of the calling thread. */
int64_t ek_clock_thread_ns(void);

/* Waits, whatever signals arrive. */
void ek_clock_sleep_ms(int ms);

#endif
