/* The launcher: mpiexec as a child, its output, signals, deadlines, and the status of the job. */
#include "cli/launch.h"

#include "evenkeel/job.h"

#include "base/clock.h"
#include "base/file.h"
#include "cli/cli.h"
#include "cli/launch_priv.h"
#include "store/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* VAIN_MAX: starts running that may be lost without a step. */
enum { LINE_MAX_BYTES = 1 << 20, TICK_MS = 50, VAIN_MAX = 4 };

static const int64_t second = 1000000000;

/* One of the job's streams, cut into lines. */
typedef struct {
    int fd; /* -1: at its end */
    size_t n;
    char *text; /* [LINE_MAX_BYTES] */
    void (*line)(launch_talk *t, const char *line, size_t n);
} stream;

typedef struct {
    const launch *l;
    int ranks;
    int signals;    /* signalfd */
    sigset_t mask;  /* before */
    int interrupts; /* signals that asked for the end */
    time_t begin;
    int64_t steps; /* done when the generation before ended */
    int joined;    /* workers have been there, in whichever generation */
    int vain;      /* generations running that were lost and had not done a step */

    /* of one generation of workers */
    launch_talk talk;
    pid_t child;
    int ended, wait_status;
    stream streams[2]; /* stdout, stderr */
    launch_watch watch;
    int told; /* the workers know of the interruption */
    int64_t kill_at, drain_until;
    int again; /* another generation shall go on */
} launcher;

/* --- the child -------------------------------------------------------------------------------- */

/* Between fork and exec.  When the launcher is killed, mpiexec goes, and with it the workers. */
static void become_mpiexec(const launcher *x, pid_t parent, const int *out, const int *err,
                           char **argv)
{
    int null = open("/dev/null", O_RDONLY);

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(CLI_FAILED);
    setpgid(0, 0); /* what the terminal sends goes to the launcher alone */
    sigprocmask(SIG_SETMASK, &x->mask, NULL);
    signal(SIGPIPE, SIG_DFL);
    dup2(null, STDIN_FILENO);
    dup2(out[1], STDOUT_FILENO);
    dup2(err[1], STDERR_FILENO);
    execvp(argv[0], argv);
    dprintf(STDERR_FILENO, "%cfailed %d\n%cevenkeel %s: cannot start %s: %s\n", LAUNCH_NOTE,
            CLI_FAILED, LAUNCH_LINE, x->l->command, argv[0], strerror(errno));
    _exit(CLI_FAILED);
}

static ek_status start_child(launcher *x, char **argv)
{
    int out[2] = {-1, -1}, err[2] = {-1, -1};
    pid_t parent = getpid();
    int ok = pipe2(out, O_CLOEXEC) == 0 && pipe2(err, O_CLOEXEC) == 0;

    if (ok) {
        fflush(stdout);
        x->child = fork();
        if (x->child == 0)
            become_mpiexec(x, parent, out, err, argv);
        ok = x->child > 0;
    }
    close(out[1]);
    close(err[1]);
    x->streams[0].fd = out[0];
    x->streams[1].fd = err[0];
    EK_REQUIRE(ok, EK_EIO, "cannot start %s: %s", argv[0], strerror(errno));
    setpgid(x->child, x->child);
    return EK_OK;
}

static ek_status prepare(launcher *x)
{
    static const int caught[] = {SIGINT, SIGTERM, SIGHUP, SIGCHLD};
    char value[32];
    sigset_t set;

    for (int i = 0; i < 2; i++) {
        x->streams[i].text = malloc(LINE_MAX_BYTES);
        EK_REQUIRE(x->streams[i].text != NULL, EK_ENOMEM, "no memory for the output of a job");
    }
    x->streams[0].line = launch_talk_stdout;
    x->streams[1].line = launch_talk_stderr;
    snprintf(value, sizeof(value), "%d%s", x->ranks, x->l->live ? " live" : "");
    EK_REQUIRE(setenv(LAUNCH_VARIABLE, value, 1) == 0, EK_ENOMEM, "no memory for a variable");
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof(caught) / sizeof(caught[0]); i++)
        sigaddset(&set, caught[i]);
    sigprocmask(SIG_BLOCK, &set, &x->mask);
    x->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    EK_REQUIRE(x->signals >= 0, EK_EIO, "cannot wait for signals: %s", strerror(errno));
    x->begin = time(NULL);
    return EK_OK;
}

static ek_status begin_generation(launcher *x, char **argv)
{
    x->ended = x->told = x->again = 0;
    x->kill_at = 0;
    EK_TRY(launch_talk_init(&x->talk, x->ranks));
    launch_watch_init(&x->watch);
    x->talk.watch = &x->watch;
    return start_child(x, argv);
}

static void end_generation(launcher *x)
{
    for (int i = 0; i < 2; i++) {
        if (x->streams[i].fd >= 0)
            close(x->streams[i].fd);
        x->streams[i].fd = -1;
        x->streams[i].n = 0;
    }
    launch_watch_fini(&x->watch);
    launch_talk_fini(&x->talk);
}

/* --- its output ------------------------------------------------------------------------------- */

/* Hands on all whole lines; at the end, or where a line is longer than there is room, the rest. */
static void cut(launcher *x, stream *s, int all)
{
    size_t at = 0;
    char *end;

    while ((end = memchr(s->text + at, '\n', s->n - at)) != NULL) {
        size_t n = (size_t)(end - s->text) - at;

        s->line(&x->talk, s->text + at, n);
        at += n + 1;
    }
    if (s->n > at && (all || (at == 0 && s->n == LINE_MAX_BYTES))) {
        s->line(&x->talk, s->text + at, s->n - at);
        at = s->n;
    }
    memmove(s->text, s->text + at, s->n - at);
    s->n -= at;
}

static void take_output(launcher *x, stream *s)
{
    ssize_t n = read(s->fd, s->text + s->n, LINE_MAX_BYTES - s->n);

    if (n < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    if (n > 0)
        s->n += (size_t)n;
    cut(x, s, n <= 0);
    if (n <= 0) {
        close(s->fd);
        s->fd = -1;
    }
}

/* --- signals and deadlines -------------------------------------------------------------------- */

static void kill_job(launcher *x, int sig)
{
    if (!x->ended)
        kill(x->child, sig);
}

static void take_signals(launcher *x)
{
    struct signalfd_siginfo info;

    while (read(x->signals, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        if (info.ssi_signo == SIGCHLD) {
            if (waitpid(x->child, &x->wait_status, WNOHANG) == x->child) {
                x->ended = 1;
                x->drain_until = ek_clock_ns() + 2 * second;
            }
            continue;
        }
        x->interrupts++;
        if (x->interrupts == 1 && x->talk.ready < x->talk.ranks)
            x->kill_at = ek_clock_ns() + 8 * second; /* nobody may be there to be told */
        else if (x->interrupts > 1)
            x->kill_at = ek_clock_ns();
    }
}

/* What has become due. */
static void tick(launcher *x)
{
    int64_t now = ek_clock_ns();

    if (x->interrupts > 0 && !x->told && x->talk.ready == x->talk.ranks) {
        kill_job(x, SIGUSR1);
        x->told = 1;
        if (x->interrupts == 1)
            x->kill_at = 0;
    }
    if (x->kill_at == 0 && ((x->talk.reported && x->talk.status != CLI_INTERRUPTED) ||
                            x->watch.ended > 0)) /* which mpiexec may fail to see */
        x->kill_at = now + (x->l->elastic ? second / 4 : 5 * second);
    if (x->kill_at != 0 && now >= x->kill_at && !x->ended) {
        x->talk.unseen = 1;
        kill_job(x, SIGKILL);
    }
    if (x->talk.held_since != 0 && now - x->talk.held_since > 3 * second && !x->ended &&
        !x->talk.reported && x->interrupts == 0 && x->watch.ended == 0)
        launch_talk_release(&x->talk);
}

static void follow(launcher *x)
{
    while (!x->ended ||
           ((x->streams[0].fd >= 0 || x->streams[1].fd >= 0) && ek_clock_ns() < x->drain_until)) {
        struct pollfd p[4] = {{x->streams[0].fd, POLLIN, 0},
                              {x->streams[1].fd, POLLIN, 0},
                              {x->signals, POLLIN, 0},
                              {x->watch.fd, POLLIN, 0}};
        int due = x->ended || x->interrupts > 0 || x->talk.reported || x->talk.held_since != 0 ||
                  x->watch.ended > 0;

        if (poll(p, 4, due ? TICK_MS : -1) > 0) {
            if (p[3].revents != 0) /* first: the others are about to be killed */
                launch_watch_look(&x->watch);
            for (int i = 0; i < 2; i++)
                if (p[i].revents != 0)
                    take_output(x, &x->streams[i]);
            if (p[2].revents != 0)
                take_signals(x);
        }
        tick(x);
    }
    for (int i = 0; i < 2; i++)
        cut(x, &x->streams[i], 1);
}

/* --- the end ---------------------------------------------------------------------------------- */

/* Steps that the run has done, from the last line of its metrics; 0: it has not taken one. */
static int64_t steps_done(const launcher *x)
{
    ek_path path;
    ek_file_map m;
    struct stat s;
    const char *text, *line;
    size_t n;
    json_t *last;
    int64_t done = 0;

    if (ek_path_set(&path, "%s/metrics.jsonl", x->l->out) < 0 || stat(path.s, &s) != 0 ||
        s.st_mtim.tv_sec < x->begin - 1 || ek_file_map_open(path.s, &m) < 0)
        return 0;
    text = m.data;
    for (n = m.bytes; n > 0 && text[n - 1] != '\n';) /* a line that was being written */
        n--;
    line = n > 0 ? memrchr(text, '\n', n - 1) : NULL;
    line = line != NULL ? line + 1 : text;
    last = json_loadb(line, (size_t)(text + n - line), 0, NULL);
    if (json_is_integer(json_object_get(last, "step")))
        done = (int64_t)json_integer_value(json_object_get(last, "step")) + 1;
    json_decref(last);
    ek_file_map_close(&m);
    return done;
}

/* Whether any worker has said so, or mpiexec that it was there. */
static int came_up(const launch_talk *t)
{
    int any = t->death.signal > 0;

    for (int r = 0; r < t->ranks; r++)
        any |= t->workers[r].pid > 0;
    return any;
}

/* Whether another generation of workers is worth it: not where there never were any, and not
 * without end where none takes a step. */
static int may_go_on(launcher *x)
{
    int64_t done = steps_done(x);

    x->vain = done > x->steps ? 0 : x->vain + 1;
    x->steps = done; /* fewer, where a checkpoint was gone back to */
    x->joined |= came_up(&x->talk);
    return x->l->elastic && x->joined && x->interrupts == 0 && x->vain <= VAIN_MAX;
}

/* Ends what is said of a run that broke off: how far it came, and how to go on. */
static void say_how_far(const launcher *x)
{
    int64_t done = steps_done(x);
    ek_checkpoint_found found;

    if (done > 0)
        fprintf(stderr, " after step %lld", (long long)done);
    else
        fprintf(stderr, " before a step was done");
    if (x->again)
        fprintf(stderr, "; going on from memory\n");
    else if (x->l->elastic && x->vain > VAIN_MAX)
        fprintf(stderr,
                "; %d starts running were lost before a step was done, so this is the end; the "
                "state may still be in memory, where the same command finds it\n",
                x->vain);
    else if ((done > 0 || x->l->resume) &&
             ek_checkpoint_latest(x->l->out, EK_CHECK_SIZES, &found) == EK_OK)
        fprintf(stderr, "; the checkpoint %s is whole, go on from it with --resume\n",
                found.path.s);
    else
        fprintf(stderr, "; there is no checkpoint yet, start again\n");
}

static int judge(launcher *x)
{
    int code = WIFEXITED(x->wait_status) ? WEXITSTATUS(x->wait_status) : -1;
    launch_talk *t = &x->talk;
    char who[512];

    if (t->reported) {
        launch_talk_drop(t);
        x->again = t->lost && may_go_on(x);
        if (x->again)
            fprintf(stderr, "evenkeel %s: going on from memory\n", x->l->command);
        return t->status;
    }
    t->unseen = t->unseen || code >= 0;
    if (code == CLI_DONE) {
        launch_talk_release(t);
        return CLI_DONE;
    }
    if (t->drawn)
        fputc('\n', stderr);
    t->drawn = 0;
    x->again = may_go_on(x);
    if (x->interrupts > 0) {
        fprintf(stderr, "evenkeel %s: interrupted, ended without saving", x->l->command);
    } else if (launch_talk_death(t, who, sizeof(who))) {
        if (t->death.signal <= 0)
            launch_talk_release(t); /* it may have said why */
        fprintf(stderr, "evenkeel %s: %s", x->l->command, who);
    } else {
        launch_talk_release(t);
        fprintf(stderr, "evenkeel %s: mpiexec ended (%s %d) without a worker's report",
                x->l->command, code >= 0 ? "status" : "signal",
                code >= 0 ? code : WTERMSIG(x->wait_status));
    }
    if (x->l->out != NULL)
        say_how_far(x);
    else
        fputc('\n', stderr);
    return x->interrupts > 0 ? CLI_INTERRUPTED : CLI_FAILED;
}

static void finish(launcher *x)
{
    for (int i = 0; i < 2; i++)
        free(x->streams[i].text);
    if (x->signals >= 0) {
        close(x->signals);
        sigprocmask(SIG_SETMASK, &x->mask, NULL);
    }
}

static ek_status run_generation(launcher *x, char **argv, int *status)
{
    ek_status st;

    EK_TRY_OUT(begin_generation(x, argv));
    follow(x);
    *status = judge(x);
out:
    end_generation(x);
    return st;
}

/* Longer from start to start while none of them takes a step. */
static void wait_before(const launcher *x)
{
    struct timespec t = {0, 0};
    int64_t ns = x->vain > 0 ? second / 20 << x->vain : 0;

    t.tv_sec = ns / second;
    t.tv_nsec = ns % second;
    nanosleep(&t, NULL);
}

/* With --elastic, generation after generation until one comes to its end. */
static ek_status run_job(launcher *x, char **argv, int *status)
{
    EK_TRY(prepare(x));
    do {
        wait_before(x);
        EK_TRY(run_generation(x, argv, status));
    } while (x->again);
    return EK_OK;
}

static ek_status run(const launch *l, int *status)
{
    launcher x = {.l = l,
                  .ranks = l->ranks,
                  .signals = -1,
                  .watch = {.fd = -1, .door = -1},
                  .streams = {{.fd = -1}, {.fd = -1}}};
    const char *mpiexec = getenv("EK_MPIEXEC");
    launch_hosts hosts = {0};
    launch_args args = {0};
    ek_status st = EK_OK;

    if (mpiexec == NULL)
        mpiexec = ek_job_launcher();
    EK_REQUIRE(mpiexec[0] != '\0', EK_EINVAL,
               "--ranks, --hosts and --elastic need MPI, which this evenkeel was built without "
               "(EK_MPI=ON)");
    if (l->hosts != NULL)
        EK_TRY_OUT(launch_hosts_read(l->hosts, &hosts));
    if (x.ranks == 0)
        x.ranks = l->hosts != NULL ? (int)hosts.slots : 1;
    EK_TRY_OUT(launch_args_make(l, mpiexec, x.ranks, hosts.list, &args));
    EK_TRY_OUT(run_job(&x, args.argv, status));
out:
    finish(&x);
    launch_args_free(&args);
    launch_hosts_free(&hosts);
    return st;
}

int cli_launch(const launch *l)
{
    int status = CLI_FAILED;
    ek_status st = run(l, &status);

    return st < 0 ? cli_fail(l->command, st) : status;
}
