/* supervisor/supervisor_priv.h - the state of the supervisor. */
#ifndef SUPERVISOR_SUPERVISOR_PRIV_H
#define SUPERVISOR_SUPERVISOR_PRIV_H

#include "supervisor/config.h"
#include "supervisor/host_list.h"
#include "supervisor/job_output.h"
#include "supervisor/job_state.h"
#include "supervisor/membership.h"
#include "supervisor/progress.h"
#include "supervisor/wait_timer.h"
#include "supervisor/worker_watch.h"

#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

/* stdout or stderr of the job, split into lines. */
typedef struct {
    int fd; /* -1: end of file */
    size_t n;
    char *text;
    void (*line)(ek_job_output *t, const char *line, size_t n);
} ek_output_stream;

/* Why the supervisor ended a start of workers. */
typedef enum {
    EK_END_NONE,
    EK_END_HUNG,        /* no progress */
    EK_END_UNREACHABLE, /* mpiexec could not reach all hosts, and hangs */
    EK_END_REGROUP,     /* more hosts are available */
    EK_END_HAND_OVER    /* a host will be released: the next start drains it */
} ek_end_reason;

typedef struct {
    const ek_supervisor_config *config;
    const char *mpiexec;
    int ranks;
    int signals;    /* signalfd */
    sigset_t mask;  /* original signal mask */
    int interrupts; /* signals received that request the end */
    time_t begin;
    int64_t steps;     /* of this command, completed when the previous start ended */
    int64_t done;      /* with --elastic: of the run, including earlier commands */
    int joined;        /* any worker has ever started */
    int failed_starts; /* consecutive starts lost without a completed step */
    int64_t starts;
    ek_membership *members; /* NULL: this host only, or a fixed host list */
    ek_membership members_space;
    ek_job_progress progress;
    int lock;              /* of --out, with --elastic */
    int made_out;          /* this supervisor has created --out */
    uint64_t number;       /* id of this supervisor */
    int64_t seen_at;       /* when the loss was detected, ek_clock_ns(); 0: none pending */
    double seen_epoch;     /* the same, seconds since 1970 */
    double ending_s;       /* from there until the start had ended */
    double drain_s;        /* starts that drained hosts */
    double probe_s;        /* until hosts had responded */
    int drain_incomplete;  /* state in memory was incomplete in one of these */
    char end_reason[1024]; /* why the last start ended */
    ek_wait_timer wait;    /* current wait */
    int wait_of;           /* its ek_phase; EK_PHASES: interrupt; -1: other */

    /* of one start */
    int n_draining;            /* ranks behind these, on draining hosts; then no step is taken */
    int64_t chosen_at;         /* when its hosts were chosen, ek_clock_ns() */
    const ek_host_list *hosts; /* NULL: this host */
    ek_job_state job;
    ek_job_output job_output;
    pid_t child;
    int ended, wait_status;
    ek_output_stream streams[2]; /* stdout, stderr */
    ek_worker_watch watch;
    int workers_told; /* the interrupt was forwarded to the workers, */
    int short_grace;  /* with a short grace period, as they take no steps yet */
    int64_t kill_at, drain_until;
    int restart; /* another start follows */
    ek_end_reason reason;
    int skip_probe;     /* hosts have just shown that they respond (step, preallocation): start the
                           next job without a probe */
    int resumed;        /* its first step was reported */
    int64_t end_seen;   /* when its end was detected; 0: not yet */
    int64_t more_since; /* step at which more hosts were first available; -1: none are */
    int64_t leave_since, leave_at; /* step and time at which a leaving host was first seen; leave_at
                                      0: none */
    int64_t tended_at;             /* last poll of the members */
    int stuck; /* consecutive polls in which a remote launcher of mpiexec had failed */
} ek_supervisor;

/* Handles pending signals. */
void ek_supervisor_handle_signals(ek_supervisor *x);

#endif
