/* Due times of the messages about a wait. */
#include "supervisor/wait_timer.h"

#include "base/clock.h"

static const double first_s = 2, first_quiet_s = 10, gap_max_s = 60;

void ek_wait_timer_begin(ek_wait_timer *w, int quiet, int64_t now)
{
    w->begin = now;
    w->tell_at = now + ek_clock_from_s(quiet ? first_quiet_s : first_s);
}

int ek_wait_timer_is_due(ek_wait_timer *w, int64_t now)
{
    int64_t gap = 2 * (now - w->begin);

    if (now < w->tell_at)
        return 0;
    w->tell_at = now + (gap < ek_clock_from_s(gap_max_s) ? gap : ek_clock_from_s(gap_max_s));
    return 1;
}
