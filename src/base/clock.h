/* base/clock.h - clocks, in nanoseconds. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>

/* Monotonic wall time. */
int64_t ek_clock_ns(void);
/* CPU time of the calling thread. */
int64_t ek_clock_thread_ns(void);

/* Seconds since 1970. */
double ek_clock_epoch_s(void);

/* A time in seconds, in nanoseconds. */
static inline int64_t ek_clock_from_s(double s)
{
    return (int64_t)(s * 1e9);
}

/* Waits, whatever signals arrive. */
void ek_clock_sleep_ms(int ms);

#endif
