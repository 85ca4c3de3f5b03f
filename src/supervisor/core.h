/* supervisor/core.h - the decisions of the supervisor as a state machine without side effects:
 * (state, event) -> (state, actions).
 *
 * The core never reads a clock, starts a process or prints.  The supervisor (supervisor.c) turns
 * what happens into events and performs the actions in their order; a test can do the same.
 *
 *   LISTING   waits for the first host list
 *   BACKOFF   before a generation: waits if the ones before it completed no step
 *   PROBING   asks all hosts whether they respond
 *   LINKING   tests which hosts in use reach each other, after a hang or two failed generations
 *   RETRYING  waits before it probes again, as too few hosts responded
 *   RUNNING   a generation: the workers of one start, until mpiexec and its output have ended
 *   FREEING   has said why it exits; hosts free memory that they preallocated
 *   DONE      the supervisor exits
 *
 * Without a host list (one host, or no --elastic), BACKOFF leads straight to RUNNING.
 *
 * Hosts join between steps: when a completed step is reported, the workers are killed, which loses
 * only their part of the next step.  A host that will be reclaimed may hold state that no other
 * host has; a generation in between, which takes no step, lets it hand that state over: its ranks
 * are the draining ones.
 *
 * Hosts that respond too late to a probe are left out, and may hold state that no other host has. A
 * generation without them may not go back: if it would repeat completed steps it fails, and they
 * are probed longer, as long as what would be repeated takes (core_wait.c).  Then one may.
 *
 * Times are in nanoseconds of a monotonic clock.  Gaps of more than EK_STALL_NS between events
 * mean that the supervisor itself did not run (busy or suspended machine); they do not count
 * against the time limits of hosts and workers. */
#ifndef SUPERVISOR_CORE_H
#define SUPERVISOR_CORE_H

#include "evenkeel/err.h"

#include "comm/mesh.h"
#include "supervisor/core_action.h"
#include "supervisor/core_hosts.h"
#include "supervisor/core_links.h"
#include "supervisor/heartbeats.h"
#include "supervisor/progress.h"

#include <stdint.h>

enum {
    EK_CORE_FAILED_MAX = 4,  /* consecutive generations that may complete no step, */
    EK_CORE_BEHIND_MAX = 20, /* and those that may not get beyond the furthest step so far */
};

typedef enum {
    EK_CORE_LISTING,
    EK_CORE_BACKOFF,
    EK_CORE_PROBING,
    EK_CORE_LINKING,
    EK_CORE_RETRYING,
    EK_CORE_RUNNING,
    EK_CORE_FREEING,
    EK_CORE_DONE,
    EK_CORE_STATES
} ek_core_state;

/* --- events ----------------------------------------------------------------------------------- */

typedef enum {
    EK_CORE_TIME, /* nothing but time has passed; at least every 0.1 s where something may be due */
    EK_CORE_LIST, /* the host list was read: list */
    EK_CORE_LIST_FAILED,    /* it could not be read */
    EK_CORE_TASK_ENDED,     /* of host (number): result, took_s */
    EK_CORE_LINK_JOB_ENDED, /* job: result */
    EK_CORE_ABANDON,        /* an action failed, which was reported: exits */
    EK_CORE_INTERRUPT,      /* the user asks for the end */

    /* of a generation */
    EK_CORE_WORKER_WATCHED, /* a worker has connected to the supervisor */
    EK_CORE_WORKER_CLOSED,  /* such a connection has closed; rank: of a worker that ended without a
                               regular exit; else -1 */
    EK_CORE_WORKER_STARTED, /* rank */
    EK_CORE_WORKER_JOINED,  /* rank: MPI is initialised */
    EK_CORE_WORKER_FAILED,  /* rank reports a failure: status, lost (caused by the loss of another
                               rank) */
    EK_CORE_DEATH,          /* mpiexec reports that a worker was killed by a signal */
    EK_CORE_PHASE,         /* rank 0 enters `phase`, or, if negative, just shows that it is alive */
    EK_CORE_STEP,          /* `step` of `all` are completed */
    EK_CORE_RECOVERED,     /* the generation continues from shared memory */
    EK_CORE_INCOMPLETE,    /* it does not, as the state in shared memory is incomplete; step: from
                              which it continues, or would (core->least_step) */
    EK_CORE_SIZES,         /* the sizes of a rank's state are known: hosts can preallocate */
    EK_CORE_LAYOUT,        /* the layout in use has these sizes */
    EK_CORE_NOTICE,        /* the host of `rank` will be reclaimed */
    EK_CORE_ALIVE,         /* `rank` runs */
    EK_CORE_LEAVING,       /* `rank` exits, and is no longer heard */
    EK_CORE_REACHED,       /* result: 1: a remote launcher of mpiexec has failed while workers are
                               missing */
    EK_CORE_MPIEXEC_ENDED, /* result: its exit status, or -1: killed by a signal */
    EK_CORE_OUTPUT_ENDED,  /* after that; its output was taken in.  step: steps that metrics.jsonl
                              has, if it was written since this command began, else 0 */
    EK_CORE_EVENTS
} ek_core_event_kind;

typedef struct {
    ek_core_event_kind kind;
    int64_t now;
    const ek_host *list; /* LIST, [n_list], borrowed */
    int n_list;
    int host, job, result;
    double took_s;
    int rank, status, lost, phase;
    int64_t step, all;
    ek_mesh_sizes sizes;
} ek_core_event;

/* --- state ------------------------------------------------------------------------------------ */

typedef struct {
    int ranks;           /* wanted; 0: as many as there are slots */
    int unit;            /* a generation has a multiple of so many ranks */
    ek_mesh_sizes sizes; /* that its ranks have to fit (ek_mesh_elastic_ranks); zeros: any do */
    int elastic;         /* restart after losses */
    int listed;          /* hosts come from a list that may change */
    double list_s;       /* interval of reading it */
    double watchdog_s;   /* limit where no better estimate is known; 0: none */
    int64_t steps;       /* that the run has completed before this command */
} ek_core_config;

/* Why a generation is ended. */
typedef enum {
    EK_REASON_NONE,
    EK_REASON_HUNG,        /* no progress */
    EK_REASON_SILENT,      /* a worker does not run any more */
    EK_REASON_UNREACHABLE, /* mpiexec cannot reach all hosts, and hangs */
    EK_REASON_REGROUP,     /* more hosts are available */
    EK_REASON_HAND_OVER    /* a host will be released: the next generation drains it */
} ek_core_reason;

/* Instants (0: none) and durations, from a loss to the first step after it. */
typedef struct {
    int64_t seen_at;   /* the loss was seen */
    int64_t end_seen;  /* the end of this generation was seen */
    int64_t chosen_at; /* the choice of its hosts began */
    double ending_s;   /* from end_seen until the generation had ended */
    double drain_s;    /* generations that drained hosts */
    double probe_s;    /* from chosen_at until hosts were chosen */
} ek_core_times;

/* The first step after a loss, for REPORT_FIRST_STEP. */
typedef struct {
    ek_core_times times;
    double total_s;   /* from seen_at to this step; 0: nothing was lost */
    int64_t repeated; /* completed steps that the generation repeats */
    int incomplete;   /* state in memory was found but incomplete, in it or while hosts drained */
    int from_memory;  /* continued from shared memory */
} ek_core_resumption;

/* What workers have reported in a generation. */
typedef struct {
    unsigned char *worker;      /* [n] EK_WORKER_ flags */
    int n, started, joined;     /* workers; how many have started, joined */
    int watched, closed;        /* connections that were opened; that have closed */
    int died;                   /* one has closed without a regular exit */
    int killed;                 /* mpiexec reports a death by a signal */
    int failed;                 /* failures reported; of the first one: */
    int reporter, status, lost; /* rank, exit status, caused by the loss of another rank */
    int64_t steps;              /* completed, as last reported; -1: no report yet */
    int64_t first_step;         /* first step of this generation, counted from 0 */
    int is_last;                /* no step is left */
    int recovered, incomplete;  /* RECOVERED, INCOMPLETE */
    int64_t begins;             /* INCOMPLETE: the step from which it would continue */
} ek_core_reported;

/* How the generation comes to its end. */
typedef struct {
    ek_core_reason reason;
    int silent;                    /* SILENT: the worker, */
    double silent_s;               /* and the time after which it was */
    int64_t kill_at;               /* mpiexec is killed then; 0: it is not */
    int kill_sent;                 /* it was */
    int forwarded, short_grace;    /* the interrupt was forwarded; workers have little time left */
    int ended, code;               /* mpiexec has ended; exit status, -1: by a signal, or not yet */
    int unreached;                 /* consecutive REACHED with failures */
    int64_t more_since;            /* step at which more hosts were first available; -1: none are */
    int64_t leave_since, leave_at; /* step and time at which a leaving host was first seen;
                                      leave_at 0: none */
} ek_core_ending;

/* Over all generations of this command. */
typedef struct {
    int64_t generations; /* that have ended */
    int64_t steps;       /* written by this command when the last loss was judged, */
    int64_t written;     /* and when the last generation ended */
    int64_t done;        /* completed by the run */
    int any_started;     /* any worker has ever started */
    int64_t furthest;    /* the most steps that were ever written */
    int failed;          /* consecutive generations lost without a completed step, */
    int behind;          /* and without one beyond the furthest */
    int64_t lost_hosts;  /* hosts in use that stopped responding; those that come back count anew */
    int64_t began_at;    /* instant of the first step; 0: none yet */
    int64_t resumed;     /* generations with a step after a loss or a change of hosts, */
    double resumed_s;    /* and the sum of their resumption.total_s */
    int64_t repeated;    /* completed steps that were taken again */
} ek_core_history;

/* Finding hosts for the next generation. */
typedef struct {
    int attempt;
    int64_t begin, until; /* BACKOFF, RETRYING: when it ends */
    int skip_probe;       /* hosts have just shown that they respond */
    int test_links;       /* hosts in use may not reach each other */
    int cut;              /* some did not; being probed again */
    int unproven;         /* the last generation completed no step, for no known reason: its new
                             hosts may be the cause */
    int reading;          /* READ_LIST is not answered yet */
    int64_t read_at;      /* the list is read again */
    int64_t polled_at;    /* last look at hosts during a generation */
} ek_core_search;

typedef struct {
    ek_core_config cfg;
    ek_core_state state;
    int64_t seen; /* time of the last event */
    ek_core_hosts hosts;
    ek_core_links links;
    ek_core_search search;
    ek_job_progress progress;
    ek_heartbeats heartbeats;
    ek_core_reported reported; /* by the generation that runs, or ran last, */
    ek_core_ending ending;     /* and its end */
    ek_core_times times;
    ek_core_resumption resumption;
    ek_core_history history;
    int interrupts;
    int ranks, n_draining;   /* of the generation; draining ranks come last, and then no step is
                                taken */
    int idle;                /* slots that its ranks leave out (ek_core_idle_on) */
    int resumed;             /* its first step was reported */
    int drain_incomplete;    /* state in memory was incomplete in a generation that drained hosts */
    int64_t least_step;      /* the generation fails if it would continue from an earlier step; 0:
                                it may */
    int restart;             /* another generation follows */
    int status;              /* of the job, once it has ended */
    ek_core_actions actions; /* of the last event */
} ek_core;

enum { EK_WORKER_STARTED = 1, EK_WORKER_JOINED = 2 };

/* Begins at `now`; c->actions has the first actions.  The caller calls ek_core_fini, also after a
 * failure.  EK_ENOMEM. */
EK_CHECKED ek_status ek_core_begin(ek_core *c, const ek_core_config *cfg, int64_t now);
void ek_core_fini(ek_core *c);

/* Takes one event; c->actions is what is to be done, in order, before the next one.  Events that do
 * not fit the state (a late answer, for example) change nothing.  EK_ENOMEM. */
EK_CHECKED ek_status ek_core_take(ek_core *c, const ek_core_event *e);

/* Number of ranks to start on `slots` slots: at most those wanted, a multiple of the unit that fits
 * the sizes. */
int ek_core_ranks_on(const ek_core *c, int64_t slots);
/* Number of those wanted that it leaves out. */
int ek_core_idle_on(const ek_core *c, int64_t slots);
/* Whether this command has continued from shared memory, or left state there. */
int ek_core_has_state(const ek_core *c);

#endif
