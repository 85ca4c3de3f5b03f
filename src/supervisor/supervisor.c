/* The supervisor's event loop: mpiexec as a child process, its output, signals, deadlines, and the
 * exit status of the job. */
#include "supervisor/supervisor.h"

#include "evenkeel/job.h"

#include "base/clock.h"
#include "base/command.h"
#include "supervisor/cleanup.h"
#include "supervisor/elastic.h"
#include "supervisor/exit_policy.h"
#include "supervisor/limits.h"
#include "supervisor/mpiexec.h"
#include "supervisor/process.h"
#include "supervisor/protocol.h"
#include "supervisor/racks.h"
#include "supervisor/supervisor_priv.h"
#include "supervisor/wait_report.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LINE_MAX_BYTES = 1 << 20, TICK_MS = 50 };

static const int64_t second = 1000000000;

/* --- child process ---------------------------------------------------------------------------- */

/* What a process prints that cannot execute mpiexec, except for the reason: it speaks as a worker.
 */
static void describe_failed_start(const ek_supervisor *x, const char *mpiexec, char *text,
                                  size_t cap)
{
    static const ek_worker_message failed = {.kind = EK_MESSAGE_FAILED,
                                             .failed = {.status = EK_EXIT_FAILED}};
    char reason[PATH_MAX];
    size_t n = ek_message_write(&failed, text);

    snprintf(reason, sizeof(reason), "evenkeel %s: cannot start %s: ", x->config->command, mpiexec);
    n += ek_line_write(EK_LINE_TEXT, reason, strlen(reason), text + n, cap - n);
    text[n - 1] = '\0'; /* in place of the newline */
}

static ek_status start_child(ek_supervisor *x, char **argv)
{
    char failed[EK_MESSAGE_CAP + PATH_MAX];
    int out[2] = {-1, -1}, err[2] = {-1, -1};
    int piped = pipe2(out, O_CLOEXEC) == 0 && pipe2(err, O_CLOEXEC) == 0;
    ek_process process = {.argv = argv,
                          .in = EK_PROCESS_QUIET,
                          .out = out[1],
                          .err = err[1],
                          .mask = &x->mask,
                          .mark = ek_cleanup_mark(),
                          .failed = failed};
    ek_status st;

    describe_failed_start(x, argv[0], failed, sizeof(failed));
    fflush(stdout);
    st = piped ? ek_process_start(&process, &x->child)
               : EK_FAIL(EK_EIO, "cannot start %s: %s", argv[0], strerror(errno));
    close(out[1]);
    close(err[1]);
    x->streams[0].fd = out[0];
    x->streams[1].fd = err[0];
    return st;
}

static ek_status prepare_supervisor(ek_supervisor *x)
{
    static const int caught[] = {SIGINT, SIGTERM, SIGHUP, SIGCHLD};
    sigset_t set;

    for (int i = 0; i < 2; i++) {
        x->streams[i].text = malloc(LINE_MAX_BYTES);
        EK_REQUIRE(x->streams[i].text != NULL, EK_ENOMEM, "no memory for the output of a job");
    }
    x->streams[0].line = ek_job_output_stdout;
    x->streams[1].line = ek_job_output_stderr;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof(caught) / sizeof(caught[0]); i++)
        if (caught[i] != SIGHUP ||
            !ek_command_ignores_hangup()) /* signalfd also receives ignored signals */
            sigaddset(&set, caught[i]);
    sigprocmask(SIG_BLOCK, &set, &x->mask);
    x->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    EK_REQUIRE(x->signals >= 0, EK_EIO, "cannot wait for signals: %s", strerror(errno));
    x->begin = time(NULL);
    return EK_OK;
}

static ek_status begin_generation(ek_supervisor *x, char **argv)
{
    ek_launched launched = {.ranks = x->ranks + x->n_draining,
                            .live = x->config->live,
                            .elastic = x->config->elastic,
                            .supervisor_id = x->number,
                            .n_draining = x->n_draining};

    x->ended = x->workers_told = x->short_grace = x->restart = x->resumed = 0;
    x->wait_of = -1;
    x->kill_at = 0;
    x->reason = EK_END_NONE;
    EK_TRY(ek_launched_set(&launched));
    EK_TRY(ek_job_state_init(&x->job, x->ranks + x->n_draining));
    EK_TRY(ek_job_output_init(&x->job_output, &x->job));
    ek_worker_watch_init(&x->watch);
    ek_job_progress_begin(&x->progress, ek_clock_ns());
    x->job_output.hide_mpiexec_reports = x->config->elastic;
    x->job.watch = &x->watch;
    x->job.progress = &x->progress;
    x->job.members = x->members;
    return start_child(x, argv);
}

static void end_generation(ek_supervisor *x)
{
    for (int i = 0; i < 2; i++) {
        if (x->streams[i].fd >= 0)
            close(x->streams[i].fd);
        x->streams[i].fd = -1;
        x->streams[i].n = 0;
    }
    ek_worker_watch_fini(&x->watch);
    ek_job_output_fini(&x->job_output);
    ek_job_state_fini(&x->job);
}

/* --- output ----------------------------------------------------------------------------------- */

/* Passes on all complete lines; at end of file, or if a line exceeds the buffer, also the rest. */
static void emit_lines(ek_supervisor *x, ek_output_stream *s, int all)
{
    size_t at = 0;
    char *end;

    while ((end = memchr(s->text + at, '\n', s->n - at)) != NULL) {
        size_t n = (size_t)(end - s->text) - at;

        s->line(&x->job_output, s->text + at, n);
        at += n + 1;
    }
    if (s->n > at && (all || (at == 0 && s->n == LINE_MAX_BYTES))) {
        s->line(&x->job_output, s->text + at, s->n - at);
        at = s->n;
    }
    memmove(s->text, s->text + at, s->n - at);
    s->n -= at;
}

static void read_stream(ek_supervisor *x, ek_output_stream *s)
{
    ssize_t n = read(s->fd, s->text + s->n, LINE_MAX_BYTES - s->n);

    if (n < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    if (n > 0)
        s->n += (size_t)n;
    emit_lines(x, s, n <= 0);
    if (n <= 0) {
        close(s->fd);
        s->fd = -1;
    }
}

/* --- signals and deadlines -------------------------------------------------------------------- */

static void kill_job(ek_supervisor *x, int sig)
{
    if (!x->ended)
        kill(x->child, sig);
}

void ek_supervisor_handle_signals(ek_supervisor *x)
{
    struct signalfd_siginfo info;

    while (read(x->signals, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        if (info.ssi_signo == SIGCHLD) {
            if (x->child > 0 && waitpid(x->child, &x->wait_status, WNOHANG) == x->child) {
                if (WIFSIGNALED(x->wait_status))
                    kill(-x->child, SIGKILL);
                ek_cleanup_kill(x->child);
                x->ended = 1;
                x->drain_until = ek_clock_ns() + (x->interrupts > 0 ? second / 4 : 2 * second);
            }
            continue;
        }
        x->interrupts++;
        if (x->child > 0 && (x->interrupts > 1 || x->job.ready < x->job.ranks))
            x->kill_at = ek_clock_ns(); /* not all workers can be signalled yet */
    }
}

/* Deadline after which mpiexec is killed although it still runs: a worker has failed or ended,
 * which mpiexec may not notice.  0: no deadline. */
static int64_t kill_time(const ek_supervisor *x, int64_t now)
{
    int failed = x->job.reported && x->job.status != EK_EXIT_INTERRUPTED;
    int lost = failed || x->watch.first >= 0;

    if (!failed && x->watch.ended == 0 && !(x->config->elastic && x->job.reported))
        return 0;
    return now + (x->config->elastic && lost ? second / 4 : 5 * second);
}

/* Forwards an interrupt as SIGUSR1.  With --elastic, workers that have not reached the first step
 * may be waiting for others, so they get a short grace period; the state they start from stays in
 * shared memory or in a checkpoint, for the same command. */
static void forward_interrupt(ek_supervisor *x, int64_t now)
{
    if (!x->workers_told && x->kill_at == 0) {
        kill_job(x, SIGUSR1);
        x->workers_told = 1;
        x->short_grace = x->config->elastic && x->progress.phase < EK_PHASE_STEP;
        x->kill_at = x->short_grace ? now + 3 * second / 4 : 0;
    } else if (x->short_grace && x->interrupts == 1 && x->progress.phase >= EK_PHASE_STEP) {
        x->short_grace = 0;
        x->kill_at = 0;
    }
}

/* Runs whatever is due: interrupts, hang detection, deadlines, release of held-back output. */
static void handle_timers(ek_supervisor *x)
{
    int64_t now = ek_clock_ns();

    ek_job_progress_look(&x->progress, now);
    if (x->interrupts > 0 && x->job.ready == x->job.ranks)
        forward_interrupt(x, now);
    if (x->config->elastic) {
        ek_elastic_tick(x, now);
    } else if (x->kill_at == 0 && x->job.ready < x->job.ranks &&
               ek_job_progress_hangs(&x->progress, now)) {
        x->reason = EK_END_HUNG;
        x->kill_at = now;
    }
    if (!x->ended && x->kill_at == 0)
        ek_wait_report_workers(x, now);
    if (x->kill_at == 0)
        x->kill_at = kill_time(x, now);
    if (x->kill_at != 0 && now >= x->kill_at && !x->ended) {
        x->job.death_unseen = 1;
        kill_job(x, SIGKILL);
    }
    if (x->job_output.held_since != 0 && now - x->job_output.held_since > 3 * second && !x->ended &&
        !x->job.reported && x->interrupts == 0 && x->watch.ended == 0)
        ek_job_output_release(&x->job_output);
}

static void run_event_loop(ek_supervisor *x)
{
    while (!x->ended ||
           ((x->streams[0].fd >= 0 || x->streams[1].fd >= 0) && ek_clock_ns() < x->drain_until)) {
        struct pollfd p[4] = {{x->streams[0].fd, POLLIN, 0},
                              {x->streams[1].fd, POLLIN, 0},
                              {x->signals, POLLIN, 0},
                              {x->watch.fd, POLLIN, 0}};
        int due = x->ended || x->interrupts > 0 || x->job.reported ||
                  x->job_output.held_since != 0 || x->watch.ended > 0 || x->config->elastic ||
                  x->job.ready < x->job.ranks;

        if (poll(p, 4, due ? TICK_MS : -1) > 0) {
            if (p[3].revents != 0) /* first: mpiexec is about to kill the other workers */
                ek_worker_watch_poll(&x->watch);
            for (int i = 0; i < 2; i++)
                if (p[i].revents != 0)
                    read_stream(x, &x->streams[i]);
            if (p[2].revents != 0)
                ek_supervisor_handle_signals(x);
        }
        handle_timers(x);
    }
    for (int i = 0; i < 2; i++)
        emit_lines(x, &x->streams[i], 1);
}

/* --- running a job ---------------------------------------------------------------------------- */

static void release_supervisor(ek_supervisor *x)
{
    for (int i = 0; i < 2; i++)
        free(x->streams[i].text);
    if (x->signals >= 0) {
        close(x->signals);
        sigprocmask(SIG_SETMASK, &x->mask, NULL);
    }
}

static ek_status run_generation(ek_supervisor *x, char **argv, int *status)
{
    ek_status st;

    EK_TRY_OUT(begin_generation(x, argv));
    run_event_loop(x);
    x->child = 0;
    *status = ek_exit_policy(x);
out:
    end_generation(x);
    x->starts++;
    return st;
}

/* Without --elastic: reads the host file, if any, and determines the number of ranks. */
static ek_status read_hosts(ek_supervisor *x, ek_host_list *out)
{
    if (x->config->hosts != NULL)
        EK_TRY(ek_host_list_read(x->config->hosts, out));
    EK_REQUIRE(out->n == 0 || x->config->ranks <= (int64_t)out->n * EK_HOST_RANKS_MAX, EK_EINVAL,
               "--ranks %d is more than %d processes on each of %d hosts", x->config->ranks,
               EK_HOST_RANKS_MAX, out->n);
    x->ranks = x->config->ranks > 0 ? x->config->ranks
               : out->n > 0         ? (int)ek_host_list_slots(out)
                                    : 1;
    return EK_OK;
}

/* One start of workers: chooses hosts, runs mpiexec, applies the exit policy. */
static ek_status start_once(ek_supervisor *x, int *status)
{
    ek_host_list hosts = {0};
    ek_mpiexec_args args = {0};
    char *list = NULL, *racks = NULL;
    ek_status st = EK_OK;

    EK_TRY_OUT(x->config->elastic ? ek_elastic_choose(x, &hosts) : read_hosts(x, &hosts));
    if (hosts.n > 0)
        EK_TRY_OUT(ek_host_list_text(&hosts, &list));
    EK_TRY_OUT(ek_host_list_racks(&hosts, &racks));
    EK_TRY_OUT(ek_racks_set(racks));
    EK_TRY_OUT(ek_mpiexec_args_init(x->config, x->mpiexec, x->ranks + x->n_draining, list, &args));
    x->hosts = hosts.n > 0 ? &hosts : NULL;
    EK_TRY_OUT(run_generation(x, args.argv, status));
out:
    x->hosts = NULL;
    ek_mpiexec_args_fini(&args);
    ek_host_list_free(&hosts);
    free(list);
    free(racks);
    return st;
}

/* Repeats starts while the exit policy asks for another (--elastic). */
static ek_status run_job(ek_supervisor *x, int *status)
{
    EK_TRY(prepare_supervisor(x));
    if (x->config->elastic)
        EK_TRY(ek_elastic_open(x));
    do
        EK_TRY(start_once(x, status));
    while (x->restart);
    return EK_OK;
}

static ek_status run(ek_supervisor *x, int *status)
{
    x->mpiexec = getenv("EK_MPIEXEC");
    if (x->mpiexec == NULL)
        x->mpiexec = ek_job_launcher();
    EK_REQUIRE(x->mpiexec[0] != '\0', EK_EINVAL,
               "--ranks, --hosts and --elastic need MPI, which this evenkeel was built without "
               "(EK_MPI=ON)");
    ek_cleanup_open();
    return run_job(x, status);
}

int ek_supervise(const ek_supervisor_config *config)
{
    ek_supervisor x = {.config = config,
                       .signals = -1,
                       .watch = {.fd = -1, .door = -1},
                       .streams = {{.fd = -1}, {.fd = -1}},
                       .progress = {.watchdog_s = config->watchdog},
                       .lock = -1};
    int status = EK_EXIT_FAILED;
    ek_status st = run(&x, &status);

    status = st < 0 ? ek_command_fail(config->command, st) : status;
    if (config->elastic)
        ek_elastic_close(&x, status);
    release_supervisor(&x);
    ek_cleanup_close();
    return status;
}
