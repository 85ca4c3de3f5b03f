/* Joins or starts the MPI job of a command; failure of a rank. */
#include "supervisor/command_job.h"

#include "base/clock.h"
#include "base/command.h"
#include "base/threads.h"
#include "comm/mesh.h"
#include "supervisor/elastic_default.h"
#include "supervisor/limits.h"
#include "supervisor/supervisor.h"
#include "supervisor/worker.h"
#include "train/output/run_file.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Delays before a failed rank reports and aborts the job.
 *
 *   PASSED_ON_MS  between report and abort: mpiexec may drop output that it has not forwarded
 *   ARGUMENTS_MS  error in the arguments, ranks above 0: rank 0 reports it, which may take seconds
 *                 on a busy machine
 *   FOUND_MS      another rank has announced a failure, and reports it */
enum {
    LEAVE_SECONDS = 60,
    PASSED_ON_MS = 200,
    ARGUMENTS_MS = 5000,
    FOUND_MS = 7000,
    LINE_CAP = 4096
};

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

/* Of ek_supervisor_config: --elastic, as given or by default; says which default a train command
 * has on several hosts. */
static int is_elastic(const ek_option_table *table, const ek_options *o)
{
    char why[EK_ELASTIC_WHY];
    int by_default;

    if (strcmp(table->command, "train") != 0)
        return 0;
    by_default = ek_elastic_by_default(o, why);
    if (by_default && !ek_options_flag(o, "quiet"))
        fprintf(stderr,
                "info: several hosts: --elastic is on, so that %s (--elastic=false: without)\n",
                ek_elastic_waits_for_hosts(o)
                    ? "a run that ends with the loss of one, as too few ranks are left for --pp, "
                      "--tp and --etp, goes on with --resume"
                    : "training goes on when one is lost");
    if (why[0] != '\0')
        fprintf(
            stderr,
            "warning: the loss of a host ends this run: --elastic is not on by default, as %s\n",
            why);
    return by_default ? EK_ELASTIC_BY_DEFAULT : ek_options_flag(o, "elastic");
}

/* Starts again without --elastic, by default the last argument; a run in --out goes on. */
static int start_without_elastic(ek_supervisor_config *config)
{
    ek_path run;
    ek_status st = ek_run_file_find(config->out, &run);

    if (st < 0)
        return ek_command_fail(config->command, st);
    fprintf(stderr, "warning: the loss of a host ends this run: it starts without --elastic, "
                    "which is on by default, as shared memory is too small\n");
    config->elastic = 0;
    config->argv[config->argc - 1] = (char *)(uintptr_t) "--elastic=false";
    if (run.s[0] != '\0' && !config->resume) {
        config->argv[config->argc++] = (char *)(uintptr_t) "--resume";
        config->resume = 1;
    }
    return ek_supervise(config);
}

static int start_job(const ek_option_table *table, int argc, char **argv, int n_layout_words,
                     const ek_options *o)
{
    ek_mesh_sizes sizes = {(int)ek_options_int(o, "pp"), (int)ek_options_int(o, "tp"),
                           (int)ek_options_int(o, "ep"), (int)ek_options_int(o, "etp")};
    ek_status st = check_discover(o);
    const char *out = ek_options_text(o, "out");
    char **args = calloc((size_t)argc + 4, sizeof(*args));
    int status, no_room = 0, elastic = st == EK_OK ? is_elastic(table, o) : 0;
    ek_supervisor_config config = {.command = table->command,
                                   .ranks = (int)ek_options_int(o, "ranks"),
                                   .hosts = ek_options_text(o, "hosts"),
                                   .mpiexec_args = ek_options_text(o, "mpiexec-args"),
                                   .out = out,
                                   .resume = ek_options_flag(o, "resume"),
                                   .discover = ek_options_text(o, "discover"),
                                   .elastic = elastic,
                                   .unit = ek_mesh_rank_multiple(&sizes),
                                   .sizes = sizes,
                                   .layout_changes = n_layout_words > 0,
                                   .watchdog = ek_options_real(o, "watchdog"),
                                   .live = isatty(STDERR_FILENO),
                                   .quiet = ek_options_flag(o, "quiet"),
                                   .no_room = &no_room,
                                   .argc = argc - n_layout_words,
                                   .argv = args};

    if (st == EK_OK && config.hosts == NULL && config.discover == NULL)
        st = ek_limits_check_ranks(config.ranks);
    if (st == EK_OK && config.hosts == NULL && config.discover == NULL)
        st = ek_limits_check_threads(ek_options_int(o, "threads"),
                                     config.ranks > 0 ? config.ranks : 1);
    if (st == EK_OK && args == NULL)
        st = EK_FAIL(EK_ENOMEM, "no memory for the command line");
    if (st < 0) {
        free(args);
        return ek_command_fail(table->command, st);
    }
    memcpy(args, argv, (size_t)config.argc * sizeof(*args));
    if (out != NULL && ek_options_is_stored(o, "out")) { /* workers would choose another default */
        args[config.argc++] = (char *)(uintptr_t) "--out";
        args[config.argc++] = (char *)(uintptr_t)out;
    }
    if (elastic == EK_ELASTIC_BY_DEFAULT)
        args[config.argc++] = (char *)(uintptr_t) "--elastic";
    status = ek_supervise(&config);
    if (elastic == EK_ELASTIC_BY_DEFAULT && no_room && status == EK_EXIT_FAILED)
        status = start_without_elastic(&config);
    free(args);
    return status;
}

static ek_status check_size(const ek_worker_environment *s, const ek_command_job *job,
                            const ek_options *o)
{
    int size = job->size, wanted = (int)ek_options_int(o, "ranks");

    if (ek_options_is_stored(o, "ranks"))
        wanted = 0; /* from the settings of the resumed run: not binding */
    if (s->launched.ranks > 0)
        wanted = s->launched.ranks;
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
static int join_job(const ek_worker_environment *s, ek_status parsed, const ek_options *o,
                    ek_command_job *job)
{
    char mistake[LINE_CAP] = "";
    ek_status st;

    if (parsed < 0)
        snprintf(mistake, sizeof(mistake), "%s", ek_err_message());
    job->rank = s->rank;
    st = ek_job_join(&job->world);
    if (st == EK_EUNSUPPORTED && s->size == 1)
        return parsed < 0 ? ek_command_job_fail(job, EK_FAIL(parsed, "%s", mistake)) : -1;
    if (st < 0)
        return ek_command_job_fail(job, st);
    job->rank = ek_job_rank(job->world);
    job->size = ek_job_size(job->world);
    if (s->size > 0 && s->size != job->size &&
        s->rank > 0) { /* each process is rank 0 of its own world */
        ek_clock_sleep_ms(1000);
        ek_command_job_leave(job);
        return EK_EXIT_USAGE; /* check_size() fails on the real rank 0, which reports it */
    }
    if (s->launched.ranks > 0)
        ek_worker_joined(job->rank, ek_job_host(job->world, job->rank));
    st = parsed < 0 ? EK_FAIL(parsed, "%s", mistake) : check_size(s, job, o);
    if (st == EK_OK && s->launched.ranks == 0 && ek_options_flag(o, "elastic"))
        st = EK_FAIL(EK_EINVAL, "--elastic starts its workers itself, and restarts them after a "
                                "loss: run evenkeel without mpiexec or srun");
    return st < 0 ? ek_command_job_fail_arguments(job, st) : -1;
}

int ek_command_job_enter(const ek_option_table *table, int argc, char **argv, int n_layout_words,
                         ek_options **o, ek_command_job *job)
{
    ek_worker_environment s = ek_worker_environment_read();
    ek_status parsed;
    int status;

    *o = NULL;
    *job = (ek_command_job){.command = table->command, .size = 1};
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
            status = start_job(table, argc, argv, n_layout_words, *o);
            ek_options_destroy(*o);
            return status;
        }
        job->live = isatty(STDERR_FILENO);
        parsed = ek_limits_check_threads(ek_options_int(*o, "threads"), 1);
        if (parsed == EK_OK)
            return -1;
        ek_options_destroy(*o);
        return ek_command_fail(table->command, parsed);
    }
    if (s.launched.ranks > 0)
        ek_worker_start(s.rank);
    job->live = s.launched.ranks > 0 ? s.launched.live : isatty(STDERR_FILENO);
    parsed = ek_options_parse(table, argc - 1, argv + 1, o);
    if (parsed == EK_OK)
        parsed = ek_limits_check_threads(ek_options_int(*o, "threads"), 1);
    if (parsed == EK_OK && ek_options_help_wanted(*o)) {
        ek_options_destroy(*o);
        return s.rank == 0 ? ek_command_parse(table, argc, argv, o) : EK_EXIT_DONE;
    }
    status = join_job(&s, parsed, *o, job);
    if (status >= 0)
        ek_options_destroy(*o);
    return status;
}

ek_status ek_command_job_threads(const ek_command_job *job, const ek_options *o, int *threads)
{
    int64_t wanted = ek_options_int(o, "threads");

    *threads = wanted > 0 ? (int)wanted : ek_cores_usable();
    return job->world != NULL && wanted == 0 ? ek_job_cores(job->world, threads) : EK_OK;
}

/* --- failing and leaving ---------------------------------------------------------------------- */

/* Delay before a failed rank reports: the lowest one reports first and aborts the others
 * meanwhile. */
static int report_delay_ms(const ek_command_job *job, ek_status st)
{
    int ms = job->rank == 0 ? 0 : 500 + 50 * job->rank;

    if (st == EK_EPEER)
        return FOUND_MS;
    if (st == EK_ECOMM)
        return EK_WORKER_PEER_MS; /* a rank has died, which mpiexec reports */
    return ms < 1000 ? ms : 1000;
}

/* Whether the failure is that of another rank or of the connection to it. */
static int is_loss(ek_status st)
{
    return ek_status_class(st) == EK_CLASS_RANK || st == EK_ECOMM || st == EK_ETIMEOUT;
}

static void report_failure(const ek_command_job *job, ek_status st)
{
    char who[512];

    snprintf(who, sizeof(who), "%s", job->command);
    if (job->size > 1 && ek_status_class(st) != EK_CLASS_USAGE && st != EK_ECANCELED)
        snprintf(who, sizeof(who), "%s: rank %d on %s", job->command, job->rank,
                 ek_job_host(job->world, job->rank));
    if (ek_command_err() != stderr)
        ek_worker_report_failure(job->rank, ek_command_status(st), is_loss(st));
    ek_command_fail(who, st);
    fflush(stdout);
}

static void end_now(int sig)
{
    (void)sig;
    _exit(EK_EXIT_FAILED);
}

/* Reports a failure after `ms`, unless the job is aborted before, and aborts the job. */
static int fail_after(ek_command_job *job, int ms, ek_status st)
{
    int status = ek_command_status(st);

    if (st == EK_ECANCELED) { /* all ranks have agreed on it */
        if (job->rank == 0)
            report_failure(job, st);
    } else {
        signal(SIGTERM, end_now); /* sent by Open MPI to the other ranks: exit without a report */
        ek_clock_sleep_ms(ms);
        report_failure(job, st);
        if (job->size > 1) {
            fflush(ek_command_err());
            ek_clock_sleep_ms(PASSED_ON_MS);
            ek_job_abort(job->world, status);
            _exit(status);
        }
    }
    ek_command_job_leave(job);
    return status;
}

int ek_command_job_fail(ek_command_job *job, ek_status st)
{
    return fail_after(job, report_delay_ms(job, st), st);
}

int ek_command_job_fail_arguments(ek_command_job *job, ek_status st)
{
    return fail_after(job, job->rank > 0 ? ARGUMENTS_MS : 0, st);
}

void ek_command_job_leave(ek_command_job *job)
{
    if (job->world == NULL)
        return;
    fflush(stdout);
    fflush(ek_command_err());
    signal(SIGALRM, end_now);
    ek_worker_leaving(job->rank);
    alarm(LEAVE_SECONDS); /* do not wait forever for a rank that hangs */
    ek_job_leave(&job->world);
    alarm(0);
    ek_worker_left();
}
