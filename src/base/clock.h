/* base/clock.h - the monotonic clock, in nanoseconds. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>

int64_t ek_clock_ns(void);

#endif
