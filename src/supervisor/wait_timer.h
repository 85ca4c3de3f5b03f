/* supervisor/wait_timer.h - when a wait is reported: after 2 seconds (10 with --quiet), and again
 * each time it has become three times as long, at least once a minute.  Pure. */
#ifndef SUPERVISOR_WAIT_TIMER_H
#define SUPERVISOR_WAIT_TIMER_H

#include <stdint.h>

typedef struct {
    int64_t begin, tell_at; /* ek_clock_ns() */
} ek_wait_timer;

void ek_wait_timer_begin(ek_wait_timer *w, int quiet, int64_t now);
/* Whether a message is due. */
int ek_wait_timer_is_due(ek_wait_timer *w, int64_t now);

#endif
