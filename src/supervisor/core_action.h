/* supervisor/core_action.h - what the decision core of the supervisor asks for (supervisor/core.h):
 * one list of actions per event, in the order in which they are to be performed. */
#ifndef SUPERVISOR_CORE_ACTION_H
#define SUPERVISOR_CORE_ACTION_H

#include "evenkeel/err.h"

#include <stddef.h>

/* A command that is run on one host, at most one at a time. */
typedef enum {
    EK_TASK_NONE,
    EK_TASK_PROBE,    /* ends with 0 if the host responds */
    EK_TASK_LINKS,    /* a connectivity test between this host and those in use */
    EK_TASK_PREALLOC, /* preallocates memory for the ranks that it may get */
    EK_TASK_FREE      /* frees that memory */
} ek_core_task;

/* How a task or link job ended: 0 passed, the exit status of its command, or: */
enum {
    EK_RESULT_PENDING = -1,
    EK_RESULT_KILLED = 1000, /* by a signal */
    EK_RESULT_LATE,          /* time limit exceeded */
    EK_RESULT_STUCK,         /* mpiexec whose remote launchers have all failed */
    EK_RESULT_NOT_STARTED    /* the command could not be started */
};

typedef enum {
    EK_CORE_READ_LIST,         /* answered by LIST or LIST_FAILED */
    EK_CORE_RUN_TASK,          /* task on `host`; LINKS: together with hosts[n]; answered by
                                  TASK_ENDED */
    EK_CORE_CANCEL_TASK,       /* ends the task of `host`; no answer */
    EK_CORE_RUN_LINK_JOB,      /* link job `job` among hosts[n]; answered by LINK_JOB_ENDED */
    EK_CORE_CANCEL_LINK_JOB,   /* ends it; no answer */
    EK_CORE_START,             /* starts core->ranks + core->n_draining workers; answered by their
                                  messages and MPIEXEC_ENDED */
    EK_CORE_KILL,              /* kills mpiexec */
    EK_CORE_FORWARD_INTERRUPT, /* tells the workers to save and exit */
    EK_CORE_REPORT,            /* prints or records `report` */
    EK_CORE_EXIT               /* says why the supervisor exits, and notes the status */
} ek_core_action_kind;

typedef enum {
    EK_REPORT_LIST_FAILED, /* the list cannot be read; the current hosts are kept */
    EK_REPORT_CUT,         /* host cannot reach others (core->links) */
    EK_REPORT_UNPROVEN,    /* no step was completed with host, which is excluded for seconds */
    EK_REPORT_HOSTS,       /* what the assignment of ranks has changed (.change of the hosts) */
    EK_REPORT_FIRST_STEP,  /* the first step of a generation: core->resumption, core->progress */
    EK_REPORT_FAILURE,     /* a worker reported its failure; if core->restart: continues, without
                              host, which is excluded for seconds (-1: with the same hosts) */
    EK_REPORT_INCOMPLETE,  /* it has failed as it would have gone back (core->least_step) without
                              hosts that were late, which are waited for, at most seconds */
    EK_REPORT_LOSS,        /* the generation was lost without a worker's report */
    EK_REPORT_END          /* it has ended as wanted */
} ek_core_report;

typedef enum {
    EK_CORE_EXIT_JOB,        /* with core->status */
    EK_CORE_EXIT_LIST,       /* the first host list cannot be read */
    EK_CORE_EXIT_SLOTS,      /* more ranks are wanted than the listed hosts have slots */
    EK_CORE_EXIT_UNIT,       /* the wanted ranks are no multiple of the unit */
    EK_CORE_EXIT_NO_HOSTS,   /* too few hosts respond */
    EK_CORE_EXIT_INTERRUPTED /* while no worker was running */
} ek_core_exit;

typedef struct {
    ek_core_action_kind kind;
    int host;          /* its number; -1: none */
    ek_core_task task; /* RUN_TASK */
    int job;           /* RUN_LINK_JOB, CANCEL_LINK_JOB */
    const int *hosts;  /* [n] numbers, valid until the next event */
    int n;
    ek_core_report report; /* REPORT */
    double seconds;
    ek_core_exit exit; /* EXIT */
} ek_core_action;

typedef struct {
    ek_core_action *action; /* [n] */
    size_t n, cap;
    int failed; /* no memory for an action */
} ek_core_actions;

void ek_core_act(ek_core_actions *out, const ek_core_action *a);

#endif
