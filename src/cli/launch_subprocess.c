/* Auxiliary commands with a time limit: probes of hosts, --discover.
 *
 * MPICH's mpiexec hangs when its remote launcher (ssh or a replacement) cannot reach a host.  This
 * is detected by its children: all have failed, and mpiexec still runs. */
#include "base/clock.h"
#include "cli/launch_priv.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* In the child, between fork and exec. */
static void exec_subprocess(char *const *argv, pid_t parent, int in, int out)
{
    sigset_t none;

    sigemptyset(&none);
    launch_child_become(parent, &none, in, out, -1);
    execvp(argv[0], argv);
    _exit(127);
}

ek_status launch_subprocess_begin(launch_subprocess *e, char *const *argv, int keep, double seconds)
{
    pid_t parent = getpid();
    int in = keep ? -1 : launch_child_stdin();

    *e = (launch_subprocess){.out = -1, .begin = ek_clock_ns()};
    e->limit = e->begin + (int64_t)(seconds * 1e9);
    e->looked = e->begin;
    if (keep) {
        e->out = memfd_create("evenkeel", MFD_CLOEXEC);
        EK_REQUIRE(e->out >= 0, EK_EIO, "no memory for the output of %s", argv[0]);
    }
    e->pid = fork();
    if (e->pid == 0)
        exec_subprocess(argv, parent, in, e->out);
    if (e->pid < 0) {
        e->pid = 0;
        launch_subprocess_end(e);
        return EK_FAIL(EK_EIO, "cannot start %s", argv[0]);
    }
    setpgid(e->pid, e->pid);
    return EK_OK;
}

ek_status launch_subprocess_run(launch_subprocess *e, const launch *l, const char *mpiexec,
                                int ranks, const char *hosts, char **argv, int argc, double seconds)
{
    launch subprocess = *l;
    launch_args args;
    ek_status st;

    subprocess.argc = argc;
    subprocess.argv = argv;
    EK_TRY(launch_args_make(&subprocess, mpiexec, ranks, hosts, &args));
    st = launch_subprocess_begin(e, args.argv, 0, seconds);
    launch_args_free(&args);
    return st;
}

/* State letter of a process and, for a zombie, its wait status in *ended: the third and the last
 * field of /proc/PID/stat, see proc_pid_stat(5).  0: no such process. */
static char state_of(long pid, int *ended)
{
    char path[64], text[1200], *at, state = 0;
    FILE *f;

    *ended = 0;
    snprintf(path, sizeof(path), "/proc/%ld/stat", pid);
    f = fopen(path, "re");
    if (f == NULL)
        return state;
    if (fgets(text, sizeof(text), f) != NULL && (at = strrchr(text, ')')) != NULL && at[1] == ' ') {
        state = at[2];
        *ended = atoi(strrchr(at, ' ') + 1);
    }
    fclose(f);
    return state;
}

int launch_has_failed_children(pid_t pid, int *others)
{
    char path[64];
    int failed = 0;
    long child;
    FILE *f;

    *others = 0;
    snprintf(path, sizeof(path), "/proc/%ld/task/%ld/children", (long)pid, (long)pid);
    f = fopen(path, "re");
    while (f != NULL && fscanf(f, "%ld", &child) == 1) {
        int ended, has_failed = state_of(child, &ended) == 'Z' && ended != 0;

        failed += has_failed;
        *others += !has_failed;
    }
    if (f != NULL)
        fclose(f);
    return failed;
}

enum { STUCK_NS = 20000000, STUCK_LOOKS = 4 }; /* minimum interval of inspections; their number */

/* Whether mpiexec hangs: seen STUCK_LOOKS times asleep, with failed children only.  A single time
 * is not enough, as it may be about to exit. */
static int is_stuck(launch_subprocess *e, int64_t now)
{
    int others, stuck, ended;

    if (e->out >= 0 || now - e->children_at < STUCK_NS)
        return 0; /* not mpiexec, or inspected just before */
    stuck = launch_has_failed_children(e->pid, &others) > 0 && others == 0 &&
            state_of(e->pid, &ended) == 'S';
    e->children_at = now;
    e->stuck = stuck ? e->stuck + 1 : 0;
    return e->stuck >= STUCK_LOOKS;
}

/* If this process was stalled (busy or suspended machine), so was the command: extends its
 * limit. */
static void extend_for_stalls(launch_subprocess *e, int64_t now)
{
    int64_t gap = now - e->looked;

    if (gap > LAUNCH_STALL_NS) {
        e->begin += gap;
        e->limit += gap;
    }
    e->looked = now;
}

int launch_subprocess_poll(launch_subprocess *e)
{
    int64_t now = ek_clock_ns();
    int status, how;
    double took;

    extend_for_stalls(e, now);
    took = (double)(now - e->begin) / 1e9;
    if (waitpid(e->pid, &status, WNOHANG) == e->pid) {
        e->took = took;
        kill(-e->pid, SIGKILL); /* remaining processes of its group */
        if (status != 0)
            launch_child_kill(e->pid);
        e->pid = 0;
        return WIFEXITED(status) ? WEXITSTATUS(status) : LAUNCH_SUBPROCESS_KILLED;
    }
    if (now >= e->limit)
        how = LAUNCH_SUBPROCESS_LATE;
    else if (is_stuck(e, now))
        how = LAUNCH_SUBPROCESS_STUCK;
    else
        return LAUNCH_SUBPROCESS_RUNNING;
    launch_subprocess_end(e);
    e->took = took;
    return how;
}

char *launch_subprocess_output(launch_subprocess *e)
{
    struct stat s;
    char *text = NULL;

    if (fstat(e->out, &s) == 0 && (text = malloc((size_t)s.st_size + 1)) != NULL) {
        ssize_t n = pread(e->out, text, (size_t)s.st_size, 0);

        text[n > 0 ? n : 0] = '\0';
    }
    return text;
}

void launch_subprocess_end(launch_subprocess *e)
{
    if (e->pid > 0) {
        kill(-e->pid, SIGKILL);
        kill(e->pid, SIGKILL); /* if it has no process group of its own yet */
        waitpid(e->pid, NULL, 0);
        launch_child_kill(e->pid);
    }
    if (e->pid >= 0 && e->begin > 0 && e->out >= 0)
        close(e->out);
    *e = (launch_subprocess){.out = -1};
}
