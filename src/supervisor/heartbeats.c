/* Heartbeats of the workers of a generation, compared with each other. */
#include "supervisor/heartbeats.h"

#include <stdlib.h>

enum { UNHEARD = -1, LEFT = -2 };

static const double intervals_least = 10, lag_factor = 4;

ek_status ek_heartbeats_begin(ek_heartbeats *h, int n)
{
    int64_t longest = h->longest;

    ek_heartbeats_fini(h);
    *h = (ek_heartbeats){.heard = malloc((size_t)n * sizeof(*h->heard)), .longest = longest};
    EK_REQUIRE(h->heard != NULL, EK_ENOMEM, "no memory for the heartbeats of %d workers", n);
    h->n = n;
    for (int i = 0; i < n; i++)
        h->heard[i] = UNHEARD;
    return EK_OK;
}

void ek_heartbeats_fini(ek_heartbeats *h)
{
    free(h->heard);
    h->heard = NULL;
    h->n = 0;
}

static int64_t interval_ns(const ek_heartbeats *h)
{
    return (int64_t)ek_heartbeat_ms(h->n) * 1000000;
}

/* Advances the clock, by at most two intervals. */
static void advance_clock(ek_heartbeats *h, int64_t now)
{
    int64_t gap = h->newest > 0 ? now - h->newest : 0, most = 2 * interval_ns(h);

    h->clock += gap < most ? gap : most;
    h->newest = now;
}

void ek_heartbeats_hear(ek_heartbeats *h, int worker, int64_t now)
{
    int64_t lag;

    if (worker < 0 || worker >= h->n || h->heard[worker] == LEFT)
        return;
    advance_clock(h, now);
    lag = h->heard[worker] >= 0 ? h->clock - h->heard[worker] : 0;
    h->longest = lag > h->longest ? lag : h->longest;
    h->heard[worker] = h->clock;
}

void ek_heartbeats_leave(ek_heartbeats *h, int worker)
{
    if (worker >= 0 && worker < h->n)
        h->heard[worker] = LEFT;
}

double ek_heartbeats_timeout_s(const ek_heartbeats *h, double factor)
{
    double least = intervals_least * (double)interval_ns(h), lag = lag_factor * (double)h->longest;

    return factor * (lag > least ? lag : least) / 1e9;
}

int ek_heartbeats_silent(const ek_heartbeats *h, double timeout_s)
{
    for (int i = 0; i < h->n; i++)
        if (h->heard[i] >= 0 && (double)(h->clock - h->heard[i]) > timeout_s * 1e9)
            return i;
    return -1;
}
