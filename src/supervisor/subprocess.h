/* supervisor/subprocess.h - auxiliary commands with a time limit: probes of hosts, --discover. */
#ifndef SUPERVISOR_SUBPROCESS_H
#define SUPERVISOR_SUBPROCESS_H

#include "evenkeel/err.h"

#include "supervisor/config.h"

#include <stdint.h>
#include <sys/types.h>

enum {
    EK_SUBPROCESS_RUNNING = -1,
    EK_SUBPROCESS_KILLED = 1000, /* by a signal */
    EK_SUBPROCESS_LATE,          /* time limit exceeded */
    EK_SUBPROCESS_STUCK          /* mpiexec whose remote launchers (ssh) have all failed */
};

typedef struct {
    pid_t pid;            /* 0: none */
    int64_t begin, limit; /* ek_clock_ns() */
    double took;          /* seconds, once it has ended */
    int out;              /* its stdout in memory; -1: not kept */
    int64_t looked;       /* last poll */
    int64_t children_at;  /* last inspection of its children */
    int stuck;            /* consecutive inspections in which all its children had failed */
} ek_subprocess;

/* Starts a command.  keep: capture its stdout.  It is killed after `seconds` (0: never), not
 * counting periods in which nobody polled (the supervisor itself was stalled). */
EK_CHECKED ek_status ek_subprocess_begin(ek_subprocess *e, char *const *argv, int keep,
                                         double seconds);
/* Runs this program with other arguments through mpiexec. */
EK_CHECKED ek_status ek_subprocess_run(ek_subprocess *e, const ek_supervisor_config *config,
                                       const char *mpiexec, int ranks, const char *hosts,
                                       char **argv, int argc, double seconds);
/* EK_SUBPROCESS_RUNNING, or once its exit status or another EK_SUBPROCESS_ value. */
int ek_subprocess_poll(ek_subprocess *e);
/* Captured stdout, to be freed by the caller; NULL: no memory. */
char *ek_subprocess_output(ek_subprocess *e);
/* Kills it if it still runs, and resets *e.  May be called on {.out = -1}. */
void ek_subprocess_end(ek_subprocess *e);

#endif
