/* The system's clocks. */
#include "base/clock.h"

#include <errno.h>
#include <time.h>

static int64_t read_clock(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int64_t ek_clock_ns(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

int64_t ek_clock_thread_ns(void)
{
    return read_clock(CLOCK_THREAD_CPUTIME_ID);
}

double ek_clock_epoch_s(void)
{
    return (double)read_clock(CLOCK_REALTIME) / 1e9;
}

void ek_clock_sleep_ms(int ms)
{
    struct timespec left = {ms / 1000, ms % 1000 * 1000000L};

    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        ;
}
