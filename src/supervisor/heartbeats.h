/* supervisor/heartbeats.h - which worker of a generation does not run any more, although nothing
 * says that it has ended: it is stopped, or its host is, or is cut off.
 *
 * Every worker sends heartbeats.  A worker is silent when it has not been heard while others were,
 * for longer than a timeout: ten intervals, or four times the longest that a worker has ever lagged
 * behind the others and was heard again, whichever is more.  Time in which no worker is heard does
 * not count: then the supervisor, its machine or its network was stalled, not one worker.
 *
 * Pure: the caller passes the time. */
#ifndef SUPERVISOR_HEARTBEATS_H
#define SUPERVISOR_HEARTBEATS_H

#include "evenkeel/err.h"

#include <stdint.h>

enum { EK_HEARTBEAT_MS = 100 };

/* Interval of a worker of a job of so many: at most 1,000 heartbeats a second in all. */
static inline int ek_heartbeat_ms(int workers)
{
    return workers > EK_HEARTBEAT_MS ? workers : EK_HEARTBEAT_MS;
}

typedef struct {
    int64_t *heard; /* [n] on the clock below; negative: not heard yet, or has left */
    int n;
    int64_t clock;   /* nanoseconds in which workers were heard */
    int64_t newest;  /* time of the last heartbeat of any worker; 0: none */
    int64_t longest; /* that a worker has lagged, over all generations */
} ek_heartbeats;

/* Begins a generation of n workers; h is zero before the first.  EK_ENOMEM. */
EK_CHECKED ek_status ek_heartbeats_begin(ek_heartbeats *h, int n);
void ek_heartbeats_fini(ek_heartbeats *h);

/* A worker was heard; it will not be heard any more, as it ends. */
void ek_heartbeats_hear(ek_heartbeats *h, int worker, int64_t now);
void ek_heartbeats_leave(ek_heartbeats *h, int worker);

/* Seconds after which a worker is silent, times `factor`. */
double ek_heartbeats_timeout_s(const ek_heartbeats *h, double factor);
/* A worker that is silent after that time; -1: none. */
int ek_heartbeats_silent(const ek_heartbeats *h, double timeout_s);

#endif
