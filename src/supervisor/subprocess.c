/* Auxiliary commands with a time limit: probes of hosts, --discover. */
#include "supervisor/subprocess.h"

#include "base/clock.h"
#include "supervisor/cleanup.h"
#include "supervisor/mpiexec.h"
#include "supervisor/process.h"
#include "supervisor/progress.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

ek_status ek_subprocess_begin(ek_subprocess *e, char *const *argv, int keep, double seconds)
{
    ek_process process = {.argv = argv,
                          .in = keep ? EK_PROCESS_NULL : EK_PROCESS_QUIET,
                          .out = EK_PROCESS_NULL,
                          .err = EK_PROCESS_NULL,
                          .mark = ek_cleanup_mark()};
    ek_status st;

    *e = (ek_subprocess){.out = -1, .begin = ek_clock_ns()};
    e->limit = seconds > 0 ? e->begin + ek_clock_from_s(seconds) : INT64_MAX;
    e->looked = e->begin;
    if (keep) {
        process.out = e->out = memfd_create("evenkeel", MFD_CLOEXEC);
        EK_REQUIRE(e->out >= 0, EK_EIO, "no memory for the output of %s", argv[0]);
    }
    st = ek_process_start(&process, &e->pid);
    if (st < 0) {
        e->pid = 0;
        ek_subprocess_end(e);
    }
    return st;
}

ek_status ek_subprocess_run(ek_subprocess *e, const ek_supervisor_config *config,
                            const char *mpiexec, int ranks, const char *hosts, char **argv,
                            int argc, double seconds)
{
    ek_supervisor_config own = *config;
    ek_mpiexec_args args;
    ek_status st;

    own.argc = argc;
    own.argv = argv;
    EK_TRY(ek_mpiexec_args_init(&own, mpiexec, ranks, hosts, &args));
    st = ek_subprocess_begin(e, args.argv, 0, seconds);
    ek_mpiexec_args_fini(&args);
    return st;
}

enum { STUCK_NS = 20000000, STUCK_LOOKS = 4 }; /* minimum interval of inspections; their number */

/* Whether mpiexec was seen STUCK_LOOKS times in a row as if it hung. */
static int is_stuck(ek_subprocess *e, int64_t now)
{
    int stuck;

    if (e->out >= 0 || now - e->children_at < STUCK_NS)
        return 0; /* not mpiexec, or inspected just before */
    stuck = ek_mpiexec_seems_stuck(e->pid);
    e->children_at = now;
    e->stuck = stuck ? e->stuck + 1 : 0;
    return e->stuck >= STUCK_LOOKS;
}

/* If this process was stalled (busy or suspended machine), so was the command: extends its
 * limit. */
static void extend_for_stalls(ek_subprocess *e, int64_t now)
{
    int64_t gap = now - e->looked;

    if (gap > EK_STALL_NS) {
        e->begin += gap;
        e->limit += e->limit < INT64_MAX ? gap : 0;
    }
    e->looked = now;
}

int ek_subprocess_poll(ek_subprocess *e)
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
            ek_cleanup_kill(e->pid);
        e->pid = 0;
        return WIFEXITED(status) ? WEXITSTATUS(status) : EK_SUBPROCESS_KILLED;
    }
    if (now >= e->limit)
        how = EK_SUBPROCESS_LATE;
    else if (is_stuck(e, now))
        how = EK_SUBPROCESS_STUCK;
    else
        return EK_SUBPROCESS_RUNNING;
    ek_subprocess_end(e);
    e->took = took;
    return how;
}

char *ek_subprocess_output(ek_subprocess *e)
{
    struct stat s;
    char *text = NULL;

    if (fstat(e->out, &s) == 0 && (text = malloc((size_t)s.st_size + 1)) != NULL) {
        ssize_t n = pread(e->out, text, (size_t)s.st_size, 0);

        text[n > 0 ? n : 0] = '\0';
    }
    return text;
}

void ek_subprocess_end(ek_subprocess *e)
{
    if (e->pid > 0) {
        kill(-e->pid, SIGKILL);
        kill(e->pid, SIGKILL); /* if it has no process group of its own yet */
        waitpid(e->pid, NULL, 0);
        ek_cleanup_kill(e->pid);
    }
    if (e->pid >= 0 && e->begin > 0 && e->out >= 0)
        close(e->out);
    *e = (ek_subprocess){.out = -1};
}
