/* Joins or starts an MPI job; stderr of workers, and failure of a rank. */
#include "cli/job.h"

#include "base/threads.h"
#include "cli/launch.h"
#include "cli/limits.h"
#include "comm/mesh.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

/* Delays before a failed rank reports and aborts the job.
 *
 *   PASSED_ON_MS  between report and abort: mpiexec may drop output that it has not forwarded
 *   PEER_MS       communication failure, probably due to another rank's death: mpiexec reports it
 *   ARGUMENTS_MS  error in the arguments, ranks above 0: rank 0 reports it, which may take seconds
 *                 on a busy machine
 *   FOUND_MS      another rank has announced a failure, and reports it */
enum {
    LEAVE_SECONDS = 60,
    PASSED_ON_MS = 200,
    PEER_MS = 2000,
    ARGUMENTS_MS = 5000,
    FOUND_MS = 7000,
    LINE_CAP = 4096
};

/* --- environment ------------------------------------------------------------------------------ */

typedef struct {
    int inside;     /* part of an MPI job */
    int rank, size; /* size 0: not known */
    int launched;   /* number of ranks, if started by an evenkeel launcher; else 0 */
    int live, elastic;
    uint64_t launcher; /* its id, with --elastic */
    int n_draining;    /* draining ranks, the last ones of the job */
} job_environment;

static int number_in(const char *name)
{
    const char *text = getenv(name);

    return text != NULL ? atoi(text) : 0;
}

/* MPICH and srun --mpi=pmi2 set PMI_*, Open MPI OMPI_*, srun --mpi=pmix PMIX_*.  SLURM_* alone, as
 * in an sbatch script, does not mean that this process is part of an MPI job. */
static job_environment read_environment(void)
{
    static const char *const names[][3] = {
        {"PMI_RANK", "PMI_SIZE", "PMI_SIZE"},
        {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE"},
        {"PMIX_RANK", "PMIX_NAMESPACE", "SLURM_STEP_NUM_TASKS"},
    };
    const char *launched = getenv(LAUNCH_VARIABLE), *elastic, *n_draining;
    job_environment s = {0};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && !s.inside; i++)
        if (getenv(names[i][0]) != NULL && getenv(names[i][1]) != NULL) {
            s.inside = 1;
            s.rank = number_in(names[i][0]);
            s.size = number_in(names[i][2]);
        }
    if (s.inside && launched != NULL) {
        s.launched = atoi(launched);
        s.live = strstr(launched, " live") != NULL;
        s.elastic = (elastic = strstr(launched, " elastic=")) != NULL;
        s.launcher = s.elastic ? strtoull(strchr(elastic, '=') + 1, NULL, 16) : 0;
        n_draining = strstr(launched, " draining=");
        s.n_draining = n_draining != NULL ? atoi(strchr(n_draining, '=') + 1) : 0;
    }
    return s;
}

int cli_job_shared(void)
{
    job_environment s = read_environment();

    return s.inside && s.size != 1;
}

/* --- stderr of a worker ----------------------------------------------------------------------- */

/* Adds the type byte (cli/launch.h) to each line; one write per line, so that lines of several
 * workers do not interleave. */
static ssize_t write_marked(void *cookie, const char *text, size_t bytes)
{
    size_t done = 0;

    (void)cookie;
    while (done < bytes) {
        const char *from = text + done, *end = memchr(from, '\n', bytes - done);
        size_t n = end != NULL ? (size_t)(end - from) : bytes - done;
        char line[LINE_CAP];
        int length;

        if (n > LINE_CAP - 3)
            n = LINE_CAP - 3;
        length = *from == LAUNCH_MESSAGE
                     ? snprintf(line, sizeof(line), "%.*s\n", (int)n, from)
                     : snprintf(line, sizeof(line), "%c%.*s\n",
                                end != NULL ? LAUNCH_LINE : LAUNCH_PART, (int)n, from);
        if (write(STDERR_FILENO, line, (size_t)length) < 0)
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
        return; /* the launcher then treats our lines as mpiexec's */
    setvbuf(marked, NULL, _IOLBF, LINE_CAP);
    ek_command_set_err(marked);
}

/* Sends "start" as early as possible, as the worker may be killed while it joins, and "rank" after
 * it has joined. */
static void send_identity(const char *how, int rank, const char *host)
{
    fprintf(ek_command_err(), "%c%s %d pid %ld host %s\n", LAUNCH_MESSAGE, how, rank,
            (long)getpid(), host);
}

static void wait_ms(int ms)
{
    struct timespec left = {ms / 1000, ms % 1000 * 1000000L};

    while (nanosleep(&left, &left) != 0)
        ;
}

/* UCX, used by MPICH, aborts the process when it cannot read the memory of a rank that has just
 * died, possibly before that death is known.  Waits, so that mpiexec kills this process first if
 * another rank has died. */
static void abort_later(int sig)
{
    wait_ms(PEER_MS);
    signal(sig, SIG_DFL); /* abort() raises it again */
}

/* A launched worker dies with its parent, even while it is stopped. */
static void init_launched_worker(int rank)
{
    char host[256] = "";

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGABRT, abort_later);
    mark_stderr_lines();
    gethostname(host, sizeof(host) - 1);
    send_identity("start", rank, host);
    launch_worker_watch_join(rank);
}

/* Message to the --elastic launcher: this host will be reclaimed. */
static char notice_text[32];

static void send_notice(int sig)
{
    int e = errno;

    (void)sig;
    (void)!write(STDERR_FILENO, notice_text, strlen(notice_text));
    errno = e;
}

/* A launcher sends SIGUSR1 to all workers.  SIGTERM, which Open MPI sends to the survivors of a
 * dead rank, is ignored; with --elastic it may also announce that the host will be reclaimed, which
 * the launcher distinguishes. */
void cli_job_catch(void (*stop)(int sig))
{
    job_environment s = read_environment();
    struct sigaction caught = {.sa_handler = stop, .sa_flags = SA_RESTART};
    struct sigaction noticed = {.sa_handler = send_notice, .sa_flags = SA_RESTART};

    snprintf(notice_text, sizeof(notice_text), "%cnotice %d\n", LAUNCH_MESSAGE, s.rank);
    sigaction(SIGUSR1, &caught, NULL);
    ek_command_catch(s.launched > 0 ? SIG_IGN : stop);
    if (s.elastic)
        sigaction(SIGTERM, &noticed, NULL);
}

uint64_t cli_job_launcher(void)
{
    return read_environment().launcher;
}

int cli_job_draining(void)
{
    return read_environment().n_draining;
}

void cli_job_report(const cli_job *job, const char *format, ...)
{
    char text[LAUNCH_MESSAGE_CAP];
    va_list args;

    if (job->rank != 0 || !read_environment().elastic)
        return;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    fprintf(ek_command_err(), "%c%s\n", LAUNCH_MESSAGE, text);
    fflush(ek_command_err());
}

/* Whether the first word of the file that STOP_VARIABLE names is this phase. */
static int is_to_stop_at(const char *phase)
{
    const char *path = getenv(STOP_VARIABLE);
    FILE *f = path != NULL ? fopen(path, "re") : NULL;
    char name[32];
    int is = f != NULL && fscanf(f, "%31s", name) == 1 && strcmp(name, phase) == 0;

    if (f != NULL)
        fclose(f);
    return is;
}

void cli_job_enter_phase(const cli_job *job, const char *phase)
{
    cli_job_report(job, "phase %s", phase);
    if (job->rank == 0 && read_environment().elastic && is_to_stop_at(phase))
        raise(SIGSTOP);
}

/* --- entering a job --------------------------------------------------------------------------- */

/* --discover needs --elastic, and excludes --hosts. */
static ek_status check_discover(const ek_options *o)
{
    const char *discover = ek_options_text(o, "discover");

    EK_REQUIRE(discover == NULL || ek_options_flag(o, "elastic"), EK_EINVAL,
               "--discover requires --elastic; without it, give a host file (--hosts)");
    EK_REQUIRE(discover == NULL || ek_options_text(o, "hosts") == NULL, EK_EINVAL,
               "--hosts and --discover both name the hosts; give only one of them");
    return EK_OK;
}

static int start_job(const ek_option_table *table, int argc, char **argv, const ek_options *o)
{
    ek_mesh_sizes sizes = {(int)ek_options_int(o, "pp"), (int)ek_options_int(o, "tp"),
                           (int)ek_options_int(o, "ep"), (int)ek_options_int(o, "etp")};
    ek_status st = check_discover(o);
    const char *out = ek_options_text(o, "out");
    char **args = calloc((size_t)argc + 2, sizeof(*args));
    int status;
    launch l = {.command = table->command,
                .ranks = (int)ek_options_int(o, "ranks"),
                .hosts = ek_options_text(o, "hosts"),
                .mpiexec_args = ek_options_text(o, "mpiexec-args"),
                .out = out,
                .resume = ek_options_flag(o, "resume"),
                .discover = ek_options_text(o, "discover"),
                .elastic = ek_options_flag(o, "elastic"),
                .unit = ek_mesh_unit(&sizes),
                .watchdog = ek_options_real(o, "watchdog"),
                .live = isatty(STDERR_FILENO),
                .quiet = ek_options_flag(o, "quiet"),
                .argc = argc,
                .argv = args};

    if (st == EK_OK && l.hosts == NULL && l.discover == NULL)
        st = cli_check_ranks(l.ranks);
    if (st == EK_OK && l.hosts == NULL && l.discover == NULL)
        st = cli_check_threads(ek_options_int(o, "threads"), l.ranks > 0 ? l.ranks : 1);
    if (st == EK_OK && args == NULL)
        st = EK_FAIL(EK_ENOMEM, "no memory for the command line");
    if (st < 0) {
        free(args);
        return ek_command_fail(table->command, st);
    }
    memcpy(args, argv, (size_t)argc * sizeof(*args));
    if (out != NULL && ek_options_is_stored(o, "out")) { /* workers would choose another default */
        args[l.argc++] = (char *)(uintptr_t) "--out";
        args[l.argc++] = (char *)(uintptr_t)out;
    }
    status = cli_launch(&l);
    free(args);
    return status;
}

static ek_status check_size(const job_environment *s, const cli_job *job, const ek_options *o)
{
    int size = job->size, wanted = (int)ek_options_int(o, "ranks");

    if (ek_options_is_stored(o, "ranks"))
        wanted = 0; /* from the settings of the resumed run: not binding */
    if (s->launched > 0)
        wanted = s->launched;
    EK_REQUIRE(s->size == 0 || s->size == size, EK_EINVAL,
               "%d processes were started, but MPI sees %d: this evenkeel was built with %s, so "
               "start it with the mpiexec of that MPI (%s)",
               s->size, size, ek_job_library(), ek_job_launcher());
    EK_REQUIRE(
        wanted == 0 || wanted == size, EK_EINVAL,
        "--ranks is %d, but this MPI job has %d processes; give the same number, or omit --ranks",
        wanted, size);
    return EK_OK;
}

/* Joins before checking the arguments, so that an error in them is reported only once. */
static int join_job(const job_environment *s, ek_status parsed, const ek_options *o, cli_job *job)
{
    char mistake[LINE_CAP] = "";
    ek_status st;

    if (parsed < 0)
        snprintf(mistake, sizeof(mistake), "%s", ek_err_message());
    job->rank = s->rank;
    st = ek_job_join(&job->world);
    if (st == EK_EUNSUPPORTED && s->size == 1)
        return parsed < 0 ? cli_job_fail(job, EK_FAIL(parsed, "%s", mistake)) : -1;
    if (st < 0)
        return cli_job_fail(job, st);
    job->rank = ek_job_rank(job->world);
    job->size = ek_job_size(job->world);
    if (s->size > 0 && s->size != job->size &&
        s->rank > 0) { /* each process is rank 0 of its own world */
        wait_ms(1000);
        cli_job_leave(job);
        return EK_EXIT_USAGE; /* check_size() fails on the real rank 0, which reports it */
    }
    if (s->launched > 0)
        send_identity("rank", job->rank, ek_job_host(job->world, job->rank));
    st = parsed < 0 ? EK_FAIL(parsed, "%s", mistake) : check_size(s, job, o);
    if (st == EK_OK && s->launched == 0 && ek_options_flag(o, "elastic"))
        st = EK_FAIL(EK_EINVAL, "--elastic starts its workers itself, and restarts them after a "
                                "loss: run evenkeel without mpiexec or srun");
    return st < 0 ? cli_job_fail_arguments(job, st) : -1;
}

int cli_job_enter(const ek_option_table *table, int argc, char **argv, ek_options **o, cli_job *job)
{
    job_environment s = read_environment();
    ek_status parsed;
    int status;

    *o = NULL;
    *job = (cli_job){.command = table->command, .size = 1};
    if (!s.inside) {
        status = ek_command_parse(table, argc, argv, o);
        if (status >= 0)
            return status;
        if (ek_options_flag(*o, "dry-run")) { /* starts no workers (cli/dry_run.h) */
            job->live = isatty(STDERR_FILENO);
            return -1;
        }
        if (ek_options_int(*o, "ranks") > 1 || ek_options_text(*o, "hosts") != NULL ||
            ek_options_flag(*o, "elastic") || ek_options_text(*o, "discover") != NULL) {
            status = start_job(table, argc, argv, *o);
            ek_options_destroy(*o);
            return status;
        }
        job->live = isatty(STDERR_FILENO);
        parsed = cli_check_threads(ek_options_int(*o, "threads"), 1);
        if (parsed == EK_OK)
            return -1;
        ek_options_destroy(*o);
        return ek_command_fail(table->command, parsed);
    }
    if (s.launched > 0)
        init_launched_worker(s.rank);
    job->live = s.launched > 0 ? s.live : isatty(STDERR_FILENO);
    parsed = ek_options_parse(table, argc - 1, argv + 1, o);
    if (parsed == EK_OK)
        parsed = cli_check_threads(ek_options_int(*o, "threads"), 1);
    if (parsed == EK_OK && ek_options_help_wanted(*o)) {
        ek_options_destroy(*o);
        return s.rank == 0 ? ek_command_parse(table, argc, argv, o) : EK_EXIT_DONE;
    }
    status = join_job(&s, parsed, *o, job);
    if (status >= 0)
        ek_options_destroy(*o);
    return status;
}

ek_status cli_job_threads(const cli_job *job, const ek_options *o, int *threads)
{
    int64_t wanted = ek_options_int(o, "threads");

    *threads = wanted > 0 ? (int)wanted : ek_cores_usable();
    return job->world != NULL && wanted == 0 ? ek_job_cores(job->world, threads) : EK_OK;
}

/* --- failing and leaving ---------------------------------------------------------------------- */

/* Delay before a failed rank reports: the lowest one reports first and aborts the others
 * meanwhile. */
static int report_delay_ms(const cli_job *job, ek_status st)
{
    int ms = job->rank == 0 ? 0 : 500 + 50 * job->rank;

    if (st == EK_EPEER)
        return FOUND_MS;
    if (st == EK_ECOMM)
        return PEER_MS; /* a rank has died, which mpiexec reports */
    return ms < 1000 ? ms : 1000;
}

/* Whether the failure is that of another rank or of the connection to it. */
static int is_loss(ek_status st)
{
    return ek_status_class(st) == EK_CLASS_RANK || st == EK_ECOMM || st == EK_ETIMEOUT;
}

static void report_failure(const cli_job *job, ek_status st)
{
    char who[512];

    snprintf(who, sizeof(who), "%s", job->command);
    if (job->size > 1 && ek_status_class(st) != EK_CLASS_USAGE && st != EK_ECANCELED)
        snprintf(who, sizeof(who), "%s: rank %d on %s", job->command, job->rank,
                 ek_job_host(job->world, job->rank));
    if (ek_command_err() != stderr)
        fprintf(ek_command_err(), "%cfailed %d rank %d%s\n", LAUNCH_MESSAGE, ek_command_status(st),
                job->rank, is_loss(st) ? " lost" : "");
    ek_command_fail(who, st);
    fflush(stdout);
}

static void end_now(int sig)
{
    (void)sig;
    _exit(EK_EXIT_FAILED);
}

/* Reports a failure after `ms`, unless the job is aborted before, and aborts the job. */
static int fail_after(cli_job *job, int ms, ek_status st)
{
    int status = ek_command_status(st);

    if (st == EK_ECANCELED) { /* all ranks have agreed on it */
        if (job->rank == 0)
            report_failure(job, st);
    } else {
        signal(SIGTERM, end_now); /* sent by Open MPI to the other ranks: exit without a report */
        wait_ms(ms);
        report_failure(job, st);
        if (job->size > 1) {
            fflush(ek_command_err());
            wait_ms(PASSED_ON_MS);
            ek_job_abort(job->world, status);
            _exit(status);
        }
    }
    cli_job_leave(job);
    return status;
}

int cli_job_fail(cli_job *job, ek_status st)
{
    return fail_after(job, report_delay_ms(job, st), st);
}

int cli_job_fail_arguments(cli_job *job, ek_status st)
{
    return fail_after(job, job->rank > 0 ? ARGUMENTS_MS : 0, st);
}

void cli_job_leave(cli_job *job)
{
    if (job->world == NULL)
        return;
    fflush(stdout);
    fflush(ek_command_err());
    signal(SIGALRM, end_now);
    launch_worker_watch_leave();
    alarm(LEAVE_SECONDS); /* do not wait forever for a rank that hangs */
    ek_job_leave(&job->world);
    alarm(0);
}
