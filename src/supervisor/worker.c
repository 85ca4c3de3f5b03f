/* A process as worker of a job: its environment, stderr, signals, and messages to the supervisor.
 */
#include "supervisor/worker.h"

#include "base/clock.h"
#include "base/command.h"
#include "base/threads.h"
#include "supervisor/heartbeats.h"
#include "supervisor/protocol.h"
#include "supervisor/worker_link.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { LINE_CAP = 4096 };

static int number_in(const char *name)
{
    const char *text = getenv(name);

    return text != NULL ? atoi(text) : 0;
}

/* MPICH and srun --mpi=pmi2 set PMI_*, Open MPI OMPI_*, srun --mpi=pmix PMIX_*.  SLURM_* alone, as
 * in an sbatch script, does not mean that this process is part of an MPI job. */
ek_worker_environment ek_worker_environment_read(void)
{
    static const char *const names[][3] = {
        {"PMI_RANK", "PMI_SIZE", "PMI_SIZE"},
        {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE"},
        {"PMIX_RANK", "PMIX_NAMESPACE", "SLURM_STEP_NUM_TASKS"},
    };
    ek_worker_environment s = {0};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && !s.inside; i++)
        if (getenv(names[i][0]) != NULL && getenv(names[i][1]) != NULL) {
            s.inside = 1;
            s.rank = number_in(names[i][0]);
            s.size = number_in(names[i][2]);
        }
    if (s.inside)
        s.launched = ek_launched_read(getenv(EK_LAUNCHED_VARIABLE));
    return s;
}

int ek_worker_has_peers(void)
{
    ek_worker_environment s = ek_worker_environment_read();

    return s.inside && s.size != 1;
}

ek_status ek_worker_racks(int ranks, int **rack_of)
{
    ek_rack_slots *host = NULL;
    int n = 0;

    *rack_of = NULL;
    EK_TRY(ek_racks_read(getenv(EK_RACKS_VARIABLE), &host, &n));
    if (n == 0)
        return EK_OK;
    *rack_of = calloc((size_t)ranks, sizeof(**rack_of));
    for (int r = 0, i = 0; r < ranks && *rack_of != NULL; i = (i + 1) % n)
        for (int k = 0; k < host[i].slots && r < ranks; k++)
            (*rack_of)[r++] = host[i].rack;
    free(host);
    EK_REQUIRE(*rack_of != NULL, EK_ENOMEM, "no memory for the racks of %d ranks", ranks);
    return EK_OK;
}

/* --- stderr of a worker ----------------------------------------------------------------------- */

/* Adds the type byte (protocol.h) to each line; one write per line, so that lines of several
 * workers do not interleave. */
static ssize_t write_marked(void *cookie, const char *text, size_t bytes)
{
    size_t done = 0;

    (void)cookie;
    while (done < bytes) {
        const char *from = text + done, *end = memchr(from, '\n', bytes - done);
        size_t n = end != NULL ? (size_t)(end - from) : bytes - done;
        char line[LINE_CAP];
        size_t length;

        length =
            ek_line_write(end != NULL ? EK_LINE_TEXT : EK_LINE_PART, from, n, line, sizeof(line));
        if (write(STDERR_FILENO, line, length) < 0)
            return 0;
        done += n + (end == from + n);
    }
    return (ssize_t)bytes;
}

/* Output of libraries to stderr stays unmarked. */
static void mark_stderr_lines(void)
{
    static const cookie_io_functions_t functions = {.write = write_marked};
    FILE *marked = fopencookie(NULL, "w", functions);

    if (marked == NULL)
        return; /* the supervisor then treats our lines as mpiexec's */
    setvbuf(marked, NULL, _IOLBF, LINE_CAP);
    ek_command_set_err(marked);
}

/* Thread: sends heartbeats, each as one write, beside what the worker does. */
static void *send_heartbeats(void *rank)
{
    ek_worker_message m = {.kind = EK_MESSAGE_ALIVE, .notice = {(int)(intptr_t)rank}};
    int ms = ek_heartbeat_ms(ek_worker_environment_read().launched.ranks);
    char line[EK_MESSAGE_CAP];
    size_t n = ek_message_write(&m, line);

    for (;;) {
        ek_clock_sleep_ms(ms);
        (void)!write(STDERR_FILENO, line, n);
    }
    return NULL;
}

static void send_identity(ek_message_kind kind, int rank, const char *host)
{
    ek_worker_message m = {.kind = kind, .worker = {.rank = rank, .pid = (int)getpid()}};

    snprintf(m.worker.host, sizeof(m.worker.host), "%s", host);
    ek_message_send(&m, ek_command_err());
}

/* UCX, used by MPICH, aborts the process when it cannot read the memory of a rank that has just
 * died, possibly before that death is known.  Waits, so that mpiexec kills this process first if
 * another rank has died. */
static void abort_later(int sig)
{
    ek_clock_sleep_ms(EK_WORKER_PEER_MS);
    signal(sig, SIG_DFL); /* abort() raises it again */
}

/* A launched worker dies with its parent, even while it is stopped. */
void ek_worker_start(int rank)
{
    char host[256] = "";

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGABRT, abort_later);
    mark_stderr_lines();
    gethostname(host, sizeof(host) - 1);
    send_identity(EK_MESSAGE_START, rank, host);
    ek_worker_link_join(rank);
    if (ek_worker_environment_read().launched.elastic)
        ek_thread_detach(send_heartbeats, (void *)(intptr_t)rank);
}

void ek_worker_leaving(int rank)
{
    ek_worker_message m = {.kind = EK_MESSAGE_LEAVING, .notice = {rank}};

    if (ek_worker_environment_read().launched.elastic)
        ek_message_send(&m, ek_command_err());
}

void ek_worker_left(void)
{
    ek_worker_link_leave();
}

/* Message to the --elastic supervisor: this host will be reclaimed. */
static char notice_line[EK_MESSAGE_CAP];

static void send_notice(int sig)
{
    int e = errno;

    (void)sig;
    (void)!write(STDERR_FILENO, notice_line, strlen(notice_line));
    errno = e;
}

/* A supervisor sends SIGUSR1 to all workers.  SIGTERM, which Open MPI sends to the survivors of a
 * dead rank, is ignored; with --elastic it may also announce that the host will be reclaimed, which
 * the supervisor distinguishes. */
void ek_worker_catch(void (*stop)(int sig))
{
    ek_worker_environment s = ek_worker_environment_read();
    struct sigaction caught = {.sa_handler = stop, .sa_flags = SA_RESTART};
    ek_worker_message notice = {.kind = EK_MESSAGE_NOTICE, .notice = {s.rank}};
    struct sigaction noticed = {.sa_handler = send_notice, .sa_flags = SA_RESTART};

    ek_message_write(&notice, notice_line);
    sigaction(SIGUSR1, &caught, NULL);
    ek_command_catch(s.launched.ranks > 0 ? SIG_IGN : stop);
    if (s.launched.elastic)
        sigaction(SIGTERM, &noticed, NULL);
}

uint64_t ek_worker_supervisor_id(void)
{
    return ek_worker_environment_read().launched.supervisor_id;
}

int ek_worker_elastic_by_default(void)
{
    return ek_worker_environment_read().launched.elastic == EK_ELASTIC_BY_DEFAULT;
}

int ek_worker_n_draining(void)
{
    return ek_worker_environment_read().launched.n_draining;
}

int64_t ek_worker_least_step(void)
{
    return ek_worker_environment_read().launched.least_step;
}

int64_t ek_worker_lost_hosts(double *host_s)
{
    ek_launched l = ek_worker_environment_read().launched;

    *host_s = (double)l.host_s;
    return l.lost_hosts;
}

void ek_worker_report(const ek_worker_message *m)
{
    ek_worker_environment s = ek_worker_environment_read();

    if (s.rank == 0 && s.launched.elastic)
        ek_message_send(m, ek_command_err());
}

/* Whether the first word of the file that EK_STOP_AT_VARIABLE names is this phase. */
static int is_to_stop_at(const char *phase)
{
    const char *path = getenv(EK_STOP_AT_VARIABLE);
    FILE *f = path != NULL ? fopen(path, "re") : NULL;
    char name[32];
    int is = f != NULL && fscanf(f, "%31s", name) == 1 && strcmp(name, phase) == 0;

    if (f != NULL)
        fclose(f);
    return is;
}

void ek_worker_enter_phase(const char *phase)
{
    ek_worker_message m = {.kind = EK_MESSAGE_PHASE};
    ek_worker_environment s = ek_worker_environment_read();

    snprintf(m.phase.name, sizeof(m.phase.name), "%s", phase);
    ek_worker_report(&m);
    if (s.rank == 0 && s.launched.elastic && is_to_stop_at(phase))
        raise(SIGSTOP);
}

void ek_worker_joined(int rank, const char *host)
{
    send_identity(EK_MESSAGE_JOINED, rank, host);
}

void ek_worker_report_failure(int rank, int status, int lost)
{
    ek_worker_message m = {.kind = EK_MESSAGE_FAILED, .failed = {status, rank, lost}};

    ek_message_send(&m, ek_command_err());
}
