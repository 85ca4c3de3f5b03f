/* Output of a job.  Lines of workers are printed; those of mpiexec are held back and parsed for the
 * worker that died.
 *
 * MPICH's mpiexec reports the end of a worker on stdout, in a block that starts with a line of "=",
 * Open MPI's on stderr. */
#include "supervisor/job_output.h"

#include "base/clock.h"
#include "base/live_line.h"
#include "base/printable.h"
#include "supervisor/protocol.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HELD_MAX = 1 << 16, LINE_CAP = 1024 };

ek_status ek_job_output_init(ek_job_output *t, int ranks)
{
    memset(t, 0, sizeof(*t));
    t->ranks = ranks;
    t->steps = -1;
    t->death = (ek_worker_death){.rank = -1, .pid = -1, .code = -1, .signal = -1};
    t->workers = calloc((size_t)ranks, sizeof(*t->workers));
    t->held = malloc(HELD_MAX);
    if (t->workers == NULL || t->held == NULL) {
        ek_job_output_fini(t);
        return EK_FAIL(EK_ENOMEM, "no memory for %d workers", ranks);
    }
    return EK_OK;
}

void ek_job_output_fini(ek_job_output *t)
{
    free(t->workers);
    free(t->held);
    t->workers = NULL;
    t->held = NULL;
}

/* --- printing --------------------------------------------------------------------------------- */

static void print_stderr(ek_job_output *t, const char *text, size_t n)
{
    if (n > 0 && text[0] == '\r') {
        ek_live_line_draw(stderr, text + 1, n - 1);
    } else {
        if (t->drawn)
            fputc('\n', stderr);
        fwrite(text, 1, n, stderr);
    }
    t->drawn = 0;
}

/* --- which worker died ------------------------------------------------------------------------ */

/* The text after `key` in the line, or NULL. */
static const char *find_after(const char *line, const char *key)
{
    const char *at = strstr(line, key);

    return at != NULL ? at + strlen(key) : NULL;
}

/* "=   PID 10124 RUNNING AT node3", "=   EXIT CODE: 9", "... EXIT STRING: Killed (signal 9)". */
static void search_mpich(ek_worker_death *d, const char *line)
{
    const char *at;

    if (line[0] == '=' && (at = find_after(line, "PID ")) != NULL) {
        if (sscanf(at, "%d RUNNING AT %255s", &d->pid, d->host) != 2)
            d->pid = -1;
    } else if (line[0] == '=' && (at = find_after(line, "EXIT CODE: ")) != NULL) {
        d->code = atoi(at);
    } else if ((at = find_after(line, "EXIT STRING: ")) != NULL &&
               (at = find_after(at, "(signal ")) != NULL) {
        d->signal = atoi(at);
    }
}

/* "... noticed that process rank 1 with PID 0 on node node3 exited on signal 9 (Killed).", or
 * "  Process name: [[19330,1],0]" and "  Exit code:    3". */
static void search_open_mpi(ek_worker_death *d, const char *line)
{
    const char *at;

    if ((at = find_after(line, "noticed that process rank ")) != NULL) {
        if (sscanf(at, "%d with PID %*d on node %255s", &d->rank, d->host) != 2)
            d->rank = -1;
        if ((at = find_after(at, "exited on signal ")) != NULL)
            d->signal = atoi(at);
    } else if ((at = find_after(line, "Process name: [[")) != NULL) {
        if (sscanf(at, "%*d,%*d],%d", &d->rank) != 1)
            d->rank = -1;
    } else if ((at = find_after(line, "Exit code: ")) != NULL) {
        d->code = atoi(at);
    }
}

/* The worker whose connection closed first, if all workers are watched or it is on the same host as
 * the one that mpiexec named (else it may have been killed because of an unwatched one); otherwise
 * the one that mpiexec named. */
static int first_watched_death(const ek_job_output *t, int named)
{
    int first = t->watch != NULL ? t->watch->first : -1;

    if (first >= 0 && (t->watch->watched == t->ranks ||
                       (named >= 0 && strcmp(t->workers[first].host, t->workers[named].host) == 0)))
        return first;
    return named;
}

/* The worker that mpiexec reported, or -1. */
static int dead_rank(const ek_job_output *t)
{
    const ek_worker_death *d = &t->death;
    int named = -1;

    if (d->rank >= 0)
        return d->rank < t->ranks ? d->rank : -1;
    for (int same_host = 1; same_host >= 0 && named < 0; same_host--)
        for (int r = 0; r < t->ranks && d->pid > 0 && named < 0; r++)
            if (t->workers[r].pid == d->pid &&
                (!same_host || strcmp(t->workers[r].host, d->host) == 0))
                named = r;
    return d->signal == SIGKILL ? first_watched_death(t, named) : named;
}

int ek_job_output_death(const ek_job_output *t, char *text, size_t cap)
{
    const ek_worker_death *d = &t->death;
    int rank = dead_rank(t), n;

    if (rank < 0 && d->pid < 0 && t->death_unseen)
        rank = first_watched_death(t, -1);
    if (rank < 0 && d->pid < 0)
        return 0;
    if (rank >= 0 && t->workers[rank].pid > 0)
        n = snprintf(text, cap, "rank %d on %s (process %d)", rank, t->workers[rank].host,
                     t->workers[rank].pid);
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

/* --- lines ------------------------------------------------------------------------------------ */

/* Lines that Open MPI's mpiexec prints for every failed job, and its rulers. */
static int is_boilerplate(const char *line)
{
    return strncmp(line, "Primary job  terminated normally, but", 37) == 0 ||
           strncmp(line, "a non-zero exit code. Per user-direction", 40) == 0 ||
           (strlen(line) > 70 && strspn(line, "-") == strlen(line));
}

/* "[mpiexec@head] ...", "[proxy:0:2@node3] ...": internal messages of MPICH's mpiexec (Hydra). */
static int is_of_hydra(const char *line)
{
    return strncmp(line, "[mpiexec@", 9) == 0 || strncmp(line, "[proxy:", 7) == 0;
}

/* Whether those are shown: once all workers are ready, they only concern the end of a worker. */
static int shows_hydra(const ek_job_output *t)
{
    return !t->hide_mpiexec_reports && t->ready < t->ranks;
}

/* Holds back a line of mpiexec, a library or another program, with control characters escaped.
 * own: part of mpiexec's report of a worker's end. */
static void hold_line(ek_job_output *t, const char *line, size_t n, int own)
{
    char text[LINE_CAP];

    ek_printable_bytes(text, sizeof(text), line, n, "\t");
    search_mpich(&t->death, text);
    search_open_mpi(&t->death, text);
    if (is_boilerplate(text) || (t->hide_mpiexec_reports && own) ||
        (is_of_hydra(text) && !shows_hydra(t)))
        return;
    if (t->held_bytes + n + 2 > HELD_MAX)
        return;
    t->held_bytes +=
        ek_printable_bytes(t->held + t->held_bytes, HELD_MAX - 1 - t->held_bytes, line, n, "\t");
    t->held[t->held_bytes++] = '\n';
    if (t->held_since == 0)
        t->held_since = ek_clock_ns();
}

void ek_job_output_release(ek_job_output *t)
{
    if (t->held_bytes > 0)
        print_stderr(t, t->held, t->held_bytes);
    ek_job_output_drop(t);
}

void ek_job_output_drop(ek_job_output *t)
{
    t->held_bytes = 0;
    t->held_since = 0;
}

/* "[1795318471.361091] [vm:7928 :0]   mm_posix.c:219  UCX  ERROR ...": errors of MPICH's transport
 * on stdout, usually about a rank that has just died. */
static int is_of_ucx(const char *line, size_t n)
{
    static const char word[] = " UCX  ";

    return n > 0 && line[0] == '[' && memmem(line, n, word, sizeof(word) - 1) != NULL;
}

void ek_job_output_stdout(ek_job_output *t, const char *line, size_t n)
{
    static const char rule[] = "==============================";

    if (n == 0 && !t->in_mpiexec_report) {
        t->blank++;
        return;
    }
    t->in_mpiexec_report =
        t->in_mpiexec_report || (n > sizeof(rule) && memcmp(line, rule, sizeof(rule) - 1) == 0);
    if (t->in_mpiexec_report || is_of_ucx(line, n)) {
        hold_line(t, line, n, t->in_mpiexec_report);
        return;
    }
    for (; t->blank > 0; t->blank--)
        fputc('\n', stdout);
    fwrite(line, 1, n, stdout);
    fputc('\n', stdout);
    fflush(stdout);
}

/* A worker has started or joined; the latter has the host name as known to MPI. */
static void handle_worker(ek_job_output *t, const ek_worker_message *m)
{
    ek_worker_state *known;

    if (m->worker.rank >= t->ranks)
        return;
    known = &t->workers[m->worker.rank];
    t->started += known->pid == 0;
    t->ready += m->kind == EK_MESSAGE_JOINED && !known->joined;
    known->joined |= m->kind == EK_MESSAGE_JOINED;
    known->pid = m->worker.pid;
    snprintf(known->host, sizeof(known->host), "%s", m->worker.host);
    if (t->started == t->ranks && t->progress->phase == EK_PHASE_LAUNCH)
        ek_job_progress_enter(t->progress, EK_PHASE_CONNECT, ek_clock_ns());
    if (t->ready == t->ranks && t->progress->phase == EK_PHASE_CONNECT)
        ek_job_progress_enter(t->progress, EK_PHASE_PLAN, ek_clock_ns());
}

static void handle_failure(ek_job_output *t, const ek_worker_message *m)
{
    if (t->reported++ > 0)
        return;
    t->status = m->failed.status;
    t->reporter = m->failed.rank;
    t->lost = m->failed.lost;
}

static void handle_step(ek_job_output *t, const ek_worker_message *m)
{
    t->first_step = t->steps < 0 ? m->step.done - 1 : t->first_step;
    t->steps = m->step.done;
    t->is_last = m->step.done >= m->step.total;
    ek_job_progress_step(t->progress, ek_clock_ns());
}

static void handle_recovered(ek_job_output *t, const ek_worker_message *m)
{
    t->taken = (double)m->recovered.taken;
    t->copied = (double)m->recovered.copied;
    t->received = (double)m->recovered.received;
    t->prealloc = (double)m->recovered.prealloc;
    t->progress->heard = ek_clock_ns();
    t->recovered = 1;
}

static void handle_message(ek_job_output *t, const ek_worker_message *m)
{
    switch (m->kind) {
    case EK_MESSAGE_START:
    case EK_MESSAGE_JOINED: handle_worker(t, m); return;
    case EK_MESSAGE_FAILED: handle_failure(t, m); return;
    case EK_MESSAGE_PHASE: ek_job_progress_alive(t->progress, m->phase.name, ek_clock_ns()); return;
    case EK_MESSAGE_STEP: handle_step(t, m); return;
    case EK_MESSAGE_RECOVERED: handle_recovered(t, m); return;
    case EK_MESSAGE_LACKING: t->state_incomplete = 1; return;
    case EK_MESSAGE_MEMORY:
        if (t->members != NULL)
            ek_membership_set_blocks(t->members, m->memory.run, m->memory.blocks);
        return;
    case EK_MESSAGE_NOTICE:
        if (t->members != NULL)
            ek_membership_notice(t->members, m->notice.rank);
        return;
    case EK_MESSAGES: return;
    }
}

/* Prints a line of a worker.  Only the first failure report is shown: a second worker may have
 * begun its own before the first one ended the job, even before a line of the first has arrived. */
static void print_worker_line(ek_job_output *t, const char *text, size_t n, int part)
{
    if (t->reported > 1 && t->explained)
        return;
    t->explained |= t->reported > 0 && n > 0 && !part;
    if (t->drawn && n == 0) { /* terminates the live line */
        fputc('\n', stderr);
        t->drawn = 0;
        return;
    }
    print_stderr(t, text, n);
    if (part)
        t->drawn = 1;
    else
        fputc('\n', stderr);
}

void ek_job_output_stderr(ek_job_output *t, const char *line, size_t n)
{
    ek_worker_message m;
    const char *text;
    size_t bytes;

    switch (ek_line_read(line, n, &text, &bytes)) {
    case EK_LINE_MESSAGE:
        if (ek_message_read(text, bytes, &m))
            handle_message(t, &m);
        return;
    case EK_LINE_TEXT: print_worker_line(t, text, bytes, 0); return;
    case EK_LINE_PART: print_worker_line(t, text, bytes, 1); return;
    default: hold_line(t, line, n, 0); return;
    }
}
