/* What is known about a job, and which of its workers died first. */
#include "supervisor/job_state.h"

#include "base/clock.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

ek_status ek_job_state_init(ek_job_state *s, int ranks)
{
    *s = (ek_job_state){.ranks = ranks, .steps = -1, .death = {-1, -1, -1, -1, ""}};
    s->workers = calloc((size_t)ranks, sizeof(*s->workers));
    EK_REQUIRE(s->workers != NULL, EK_ENOMEM, "no memory for %d workers", ranks);
    return EK_OK;
}

void ek_job_state_fini(ek_job_state *s)
{
    free(s->workers);
    s->workers = NULL;
}

/* --- messages of workers ---------------------------------------------------------------------- */

/* A worker has started or joined; the latter has the host name as known to MPI. */
static void handle_worker(ek_job_state *s, const ek_worker_message *m)
{
    ek_worker_state *known;

    if (m->worker.rank >= s->ranks)
        return;
    known = &s->workers[m->worker.rank];
    s->started += known->pid == 0;
    s->ready += m->kind == EK_MESSAGE_JOINED && !known->joined;
    known->joined |= m->kind == EK_MESSAGE_JOINED;
    known->pid = m->worker.pid;
    snprintf(known->host, sizeof(known->host), "%s", m->worker.host);
    if (s->started == s->ranks && s->progress->phase == EK_PHASE_LAUNCH)
        ek_job_progress_enter(s->progress, EK_PHASE_CONNECT, ek_clock_ns());
    if (s->ready == s->ranks && s->progress->phase == EK_PHASE_CONNECT)
        ek_job_progress_enter(s->progress, EK_PHASE_PLAN, ek_clock_ns());
}

static void handle_failure(ek_job_state *s, const ek_worker_message *m)
{
    if (s->reported++ > 0)
        return;
    s->status = m->failed.status;
    s->reporter = m->failed.rank;
    s->lost = m->failed.lost;
}

static void handle_step(ek_job_state *s, const ek_worker_message *m)
{
    s->first_step = s->steps < 0 ? m->step.done - 1 : s->first_step;
    s->steps = m->step.done;
    s->is_last = m->step.done >= m->step.total;
    ek_job_progress_step(s->progress, ek_clock_ns());
}

static void handle_recovered(ek_job_state *s, const ek_worker_message *m)
{
    s->taken = (double)m->recovered.taken;
    s->copied = (double)m->recovered.copied;
    s->received = (double)m->recovered.received;
    s->prealloc = (double)m->recovered.prealloc;
    s->progress->heard = ek_clock_ns();
    s->recovered = 1;
}

void ek_job_state_handle(ek_job_state *s, const ek_worker_message *m)
{
    switch (m->kind) {
    case EK_MESSAGE_START:
    case EK_MESSAGE_JOINED: handle_worker(s, m); return;
    case EK_MESSAGE_FAILED: handle_failure(s, m); return;
    case EK_MESSAGE_PHASE: ek_job_progress_alive(s->progress, m->phase.name, ek_clock_ns()); return;
    case EK_MESSAGE_STEP: handle_step(s, m); return;
    case EK_MESSAGE_RECOVERED: handle_recovered(s, m); return;
    case EK_MESSAGE_LACKING: s->state_incomplete = 1; return;
    case EK_MESSAGE_MEMORY:
        if (s->members != NULL)
            ek_membership_set_blocks(s->members, m->memory.run, m->memory.blocks);
        return;
    case EK_MESSAGE_NOTICE:
        if (s->members != NULL)
            ek_membership_notice(s->members, m->notice.rank);
        return;
    case EK_MESSAGES: return;
    }
}

/* --- which worker died ------------------------------------------------------------------------ */

/* The worker whose connection closed first, if all workers are watched or it is on the same host as
 * the one that mpiexec named (else it may have been killed because of an unwatched one); otherwise
 * the one that mpiexec named. */
static int first_watched_death(const ek_job_state *s, int named)
{
    int first = s->watch != NULL ? s->watch->first : -1;

    if (first >= 0 && first < s->ranks &&
        (s->watch->watched == s->ranks ||
         (named >= 0 && strcmp(s->workers[first].host, s->workers[named].host) == 0)))
        return first;
    return named;
}

/* The worker that mpiexec reported, or -1. */
static int dead_rank(const ek_job_state *s)
{
    const ek_worker_death *d = &s->death;
    int named = -1;

    if (d->rank >= 0)
        return d->rank < s->ranks ? d->rank : -1;
    for (int same_host = 1; same_host >= 0 && named < 0; same_host--)
        for (int r = 0; r < s->ranks && d->pid > 0 && named < 0; r++)
            if (s->workers[r].pid == d->pid &&
                (!same_host || strcmp(s->workers[r].host, d->host) == 0))
                named = r;
    return d->signal == SIGKILL ? first_watched_death(s, named) : named;
}

int ek_job_state_death(const ek_job_state *s, char *text, size_t cap)
{
    const ek_worker_death *d = &s->death;
    int rank = dead_rank(s), n;

    if (rank < 0 && d->pid < 0 && s->death_unseen)
        rank = first_watched_death(s, -1);
    if (rank < 0 && d->pid < 0)
        return 0;
    if (rank >= 0 && s->workers[rank].pid > 0)
        n = snprintf(text, cap, "rank %d on %s (process %d)", rank, s->workers[rank].host,
                     s->workers[rank].pid);
    else if (rank >= 0)
        n = snprintf(text, cap, "rank %d%s%s", rank, d->host[0] != '\0' ? " on " : "", d->host);
    else
        n = snprintf(text, cap, "process %d on %s", d->pid, d->host);
    if (n < 0 || (size_t)n >= cap)
        return 1;
    if (d->signal > 0)
        snprintf(text + n, cap - (size_t)n, " was killed by signal %d (%s)", d->signal,
                 strsignal(d->signal));
    else if (d->code >= 0)
        snprintf(text + n, cap - (size_t)n, " exited without an error report (status %d)", d->code);
    else
        snprintf(text + n, cap - (size_t)n,
                 " exited without an error report, unnoticed by mpiexec,");
    return 1;
}
