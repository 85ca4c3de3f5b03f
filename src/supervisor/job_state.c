/* What is known about a job, and which of its workers died first. */
#include "supervisor/job_state.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

ek_status ek_job_state_init(ek_job_state *s, int ranks)
{
    *s = (ek_job_state){.ranks = ranks, .death = {-1, -1, -1, -1, ""}, .mpiexec_status = -1};
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

/* The worker with this process, preferably on this host, which mpiexec may know by another name;
 * -1: none. */
static int rank_of_process(const ek_job_state *s, int pid, const char *host)
{
    for (int same_host = 1; same_host >= 0; same_host--)
        for (int r = 0; r < s->ranks && pid > 0; r++)
            if (s->workers[r].pid == pid && (!same_host || strcmp(s->workers[r].host, host) == 0))
                return r;
    return -1;
}

void ek_job_state_lost_peer(ek_job_state *s, const ek_lost_peer *c)
{
    int rank = rank_of_process(s, c->pid, c->host);

    if (rank < 0 || s->workers[rank].lost > 0)
        return;
    s->workers[rank].lost = c->lost;
    if (s->lost_reports++ == 0)
        s->first_reporter = rank;
}

/* The worker with this process on this host; -1: none. */
static int rank_on_host(const ek_job_state *s, int pid, const char *host)
{
    for (int r = 0; r < s->ranks; r++)
        if (s->workers[r].pid == pid && strcmp(s->workers[r].host, host) == 0)
            return r;
    return -1;
}

/* The worker that ended before `rank`, followed from one to the next; `rank` if they lead in a
 * circle.  MPICH ends a process that cannot connect to a dying one, and may do so before the last
 * thread of the latter has ended, which closes its connections. */
static int first_lost(const ek_job_state *s, int rank)
{
    int first = rank, followed = 0;

    while (first >= 0 && s->workers[first].lost > 0 && followed++ < s->ranks) {
        int next = rank_on_host(s, s->workers[first].lost, s->workers[first].host);

        if (next < 0)
            return first;
        first = next;
    }
    return followed > s->ranks ? rank : first;
}

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

/* The worker that died first, as far as mpiexec, connections and lost_reports tell; -1: not known.
 * *seen: mpiexec reports how it ended. */
static int dead_rank(const ek_job_state *s, int *seen)
{
    const ek_worker_death *d = &s->death;
    int named = d->rank >= 0 && d->rank < s->ranks ? d->rank
                : d->rank < 0                      ? rank_of_process(s, d->pid, d->host)
                                                   : -1;
    int unseen = d->rank < 0 && d->pid < 0 && s->death_unseen, first = named, dead;

    if (unseen || (d->rank < 0 && d->signal == SIGKILL))
        first = first_watched_death(s, named);
    if (unseen && first < 0 && s->lost_reports > 0) /* mpiexec may end before the workers have */
        first = s->first_reporter;
    dead = first_lost(s, first);
    *seen = dead == named || d->signal == SIGKILL;
    return dead;
}

int ek_job_state_death(const ek_job_state *s, char *text, size_t cap)
{
    const ek_worker_death *d = &s->death;
    int seen, rank = dead_rank(s, &seen), n;

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
    if (seen && d->signal > 0)
        snprintf(text + n, cap - (size_t)n, " was killed by signal %d (%s)", d->signal,
                 strsignal(d->signal));
    else if (seen && d->code >= 0)
        snprintf(text + n, cap - (size_t)n, " exited without an error report (status %d)", d->code);
    else if (s->mpiexec_status > 0) /* 255 of MPICH: its proxy died, and the workers with it */
        snprintf(text + n, cap - (size_t)n,
                 " exited without an error report, unnoticed by mpiexec (status %d),",
                 s->mpiexec_status);
    else
        snprintf(text + n, cap - (size_t)n,
                 " exited without an error report, unnoticed by mpiexec,");
    return 1;
}
