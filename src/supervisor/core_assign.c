/* Which ranks a host gets, and what a generation shows of its hosts. */
#include "base/clock.h"
#include "supervisor/core_hosts.h"

/* Backoff of a lost host, doubled each time it was lost within soon_s of joining; time until a
 * reclaimed host is used again. */
static const double back_s = 2, soon_s = 60, reclaimed_s = 60;
/* Backoff of a host whose rank failed on its own, as that needs a repair. */
static const double refused_s = 60;
enum { BACK_DOUBLES_MAX = 5, DRAIN_TRIES_MAX = 2 };

/* --- what a generation shows ------------------------------------------------------------------ */

void ek_core_hosts_step_done(ek_core_hosts *h)
{
    for (int i = 0; i < h->n; i++) {
        ek_core_host *x = &h->host[i];

        x->memory.held = x->memory.held && x->used == 0;
        x->stepped |= x->used > 0;
        x->holds = x->used > 0;
    }
    h->wait_until = 0;
}

void ek_core_hosts_recovered(ek_core_hosts *h)
{
    for (int i = 0; i < h->n; i++)
        h->host[i].holds |= h->host[i].used > 0;
}

void ek_core_hosts_assume_state(ek_core_hosts *h)
{
    for (int i = 0; i < h->n; i++)
        h->host[i].holds = 1;
}

int ek_core_hosts_any_late(const ek_core_hosts *h)
{
    for (int i = 0; i < h->n; i++)
        if (h->host[i].late)
            return 1;
    return 0;
}

void ek_core_hosts_notice(ek_core_hosts *h, int rank)
{
    for (int i = 0; i < h->n && !h->decided; i++) {
        ek_core_host *x = &h->host[i];

        if (rank >= x->first && rank < x->first + (x->draining ? 1 : x->used))
            x->leaving = 1;
    }
}

void ek_core_hosts_ignore_notices(ek_core_hosts *h)
{
    h->decided = 1;
}

void ek_core_hosts_forget_notices(ek_core_hosts *h)
{
    for (int i = 0; i < h->n; i++)
        h->host[i].leaving = h->host[i].was_leaving;
}

void ek_core_hosts_drained(ek_core_hosts *h)
{
    for (int i = 0; i < h->n; i++) {
        h->host[i].drained |= h->host[i].draining;
        h->host[i].holds = h->host[i].holds && !h->host[i].draining;
        h->host[i].draining = 0;
    }
}

void ek_core_hosts_clear_suspicion(ek_core_hosts *h)
{
    for (int i = 0; i < h->n; i++)
        h->host[i].suspect = h->host[i].leaving = 0;
}

/* Starts the backoff of a lost host; returns its length in seconds. */
static double start_backoff(ek_core_host *x, int64_t now)
{
    int doubles = x->losses < BACK_DOUBLES_MAX ? x->losses : BACK_DOUBLES_MAX;
    double s = back_s * (double)(1 << doubles);

    x->back_at = now + ek_clock_from_s(s);
    x->losses = now - x->since < ek_clock_from_s(soon_s) ? x->losses + 1 : 0;
    return s;
}

int ek_core_hosts_exclude(ek_core_hosts *h, int rank, int64_t now, double *s)
{
    ek_core_host *refused = NULL;
    int stepped = 0;

    for (int i = 0; i < h->n; i++) {
        ek_core_host *x = &h->host[i];

        stepped += x->used > 0 && x->stepped;
        if (rank >= x->first && rank < x->first + x->used && !x->stepped)
            refused = x;
    }
    if (refused == NULL || stepped == 0)
        return -1;
    *s = refused_s;
    refused->back_at = now + ek_clock_from_s(refused_s);
    refused->used = refused->holds = 0;
    return refused->number;
}

void ek_core_hosts_suspect_new(ek_core_hosts *h, int64_t now, ek_core_actions *out)
{
    int older = 0;

    for (int i = 0; i < h->n; i++)
        older += h->host[i].used > 0 && h->host[i].since < h->used_at;
    for (int i = 0; i < h->n && older > 0; i++) {
        ek_core_host *x = &h->host[i];

        if (x->used == 0 || x->since < h->used_at)
            continue;
        ek_core_act(out, &(ek_core_action){.kind = EK_CORE_REPORT,
                                           .report = EK_REPORT_UNPROVEN,
                                           .host = x->number,
                                           .seconds = start_backoff(x, now)});
        x->used = 0;
        x->suspect = 1;
    }
}

/* --- assignment ------------------------------------------------------------------------------- */

/* A host in use gets no ranks any more. */
static void release(ek_core_host *x, int64_t now)
{
    if (x->health.answer != 0 || x->suspect)
        start_backoff(x, now);
    else
        x->back_at = x->leaving ? now + ek_clock_from_s(reclaimed_s) : now;
}

/* Whether a host that gets no rank holds state, responds, and can still be drained. */
static int has_state_to_drain(const ek_core_host *x)
{
    return x->used > 0 && !x->drained && x->drain_tries < DRAIN_TRIES_MAX && !x->suspect &&
           x->health.answer == 0 && x->health.task == EK_TASK_NONE;
}

/* The change for a host that will have n ranks. */
static ek_host_change change_of(const ek_core_hosts *h, const ek_core_host *x, int64_t n)
{
    if (n == 0 && has_state_to_drain(x))
        return EK_HOST_DRAINING;
    if (n == 0 && x->suspect && x->used > 0)
        return EK_HOST_EXCLUDED;
    if (n == 0 && x->health.answer != 0 && (x->used > 0 || (x->listed && !h->begun)))
        return EK_HOST_LOST;
    if (n == 0 && x->used > 0)
        return EK_HOST_RELEASED;
    return n > 0 && x->used == 0 && h->begun ? EK_HOST_JOINED : EK_HOST_UNCHANGED;
}

/* A host that is not draining gets n ranks, the first of which is `first`. */
static void give_ranks(ek_core_host *x, int64_t n, int64_t first, int64_t now)
{
    if (x->used > 0 && n == 0)
        release(x, now);
    else if (x->used == 0 && n > 0)
        x->since = now;
    x->stepped = x->stepped && x->used > 0 && n > 0;
    x->leaving = x->drained = x->drain_tries = 0;
    x->used = (int)n;
    x->memory.ready = x->memory.ready && n == 0;
    x->first = (int)first;
}

int ek_core_hosts_assign(ek_core_hosts *h, int64_t ranks, int64_t now)
{
    int64_t first = 0;
    int n_draining = 0;

    for (int i = 0; i < h->n; i++) {
        ek_core_host *x = &h->host[i];
        int64_t n = ek_core_host_is_usable(x, now) ? x->host.slots : 0;

        n = n < ranks ? n : ranks;
        ranks -= n;
        x->change = change_of(h, x, n);
        x->draining = x->change == EK_HOST_DRAINING;
        x->was_leaving = x->draining && x->leaving;
        x->late = n == 0 && x->holds && x->listed &&
                  (x->health.answer == EK_RESULT_LATE ||
                   (x->late && x->health.answer != 0 && now < h->wait_until));
        if (!x->draining)
            give_ranks(x, n, first, now);
        first += n;
    }
    for (int i = 0; i < h->n; i++)
        if (h->host[i].draining) {
            h->host[i].first = (int)(first + n_draining++);
            h->host[i].drain_tries++;
        }
    h->decided = 0;
    h->begun = 1;
    h->used_at = now;
    return n_draining;
}

int ek_core_hosts_note_lost(ek_core_hosts *h)
{
    int n = 0;

    for (int i = 0; i < h->n; i++) {
        ek_core_host *x = &h->host[i];
        int lost = x->used > 0 && x->health.answer != 0 && !x->draining;

        n += lost && !x->noted_lost;
        x->noted_lost = lost;
    }
    return n;
}

int ek_core_hosts_changed(const ek_core_hosts *h)
{
    for (int i = 0; i < h->n; i++)
        if (h->host[i].change != EK_HOST_UNCHANGED)
            return 1;
    return 0;
}
