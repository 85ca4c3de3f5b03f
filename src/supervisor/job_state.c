/* What is known about a job, and which of its workers died first. */
#include "supervisor/job_state.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

ek_status ek_job_state_init(ek_job_state *s, int ranks)
{
    *s = (ek_job_state){.ranks = ranks, .death = {-1, -1, -1, -1, ""}};
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
static void note_worker(ek_job_state *s, const ek_worker_message *m)
{
    ek_worker_state *known;

    if (m->worker.rank >= s->ranks)
        return;
    known = &s->workers[m->worker.rank];
    s->ready += m->kind == EK_MESSAGE_JOINED && !known->joined;
    known->joined |= m->kind == EK_MESSAGE_JOINED;
    known->pid = m->worker.pid;
    snprintf(known->host, sizeof(known->host), "%s", m->worker.host);
}

void ek_job_state_handle(ek_job_state *s, const ek_worker_message *m)
{
    if (m->kind == EK_MESSAGE_START || m->kind == EK_MESSAGE_JOINED)
        note_worker(s, m);
    s->reported += m->kind == EK_MESSAGE_FAILED;
    if (s->on_message.call != NULL)
        s->on_message.call(s->on_message.context, m);
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
