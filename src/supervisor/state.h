/* supervisor/state.h - the state of the supervisor, around its decision core. */
#ifndef SUPERVISOR_STATE_H
#define SUPERVISOR_STATE_H

#include "supervisor/config.h"
#include "supervisor/core.h"
#include "supervisor/generation.h"
#include "supervisor/host_list.h"
#include "supervisor/protocol.h"
#include "supervisor/tasks.h"
#include "supervisor/wait_timer.h"

#include <signal.h>
#include <stdint.h>
#include <time.h>

/* The run in --out, with --elastic. */
typedef struct {
    int lock;                                  /* of --out; -1: none */
    int made_out;                              /* this supervisor has created --out */
    uint64_t supervisor_id;                    /* of this supervisor */
    uint64_t run;                              /* id of the run; 0: not known */
    char blocks[EK_PREALLOC_TEXT];             /* sizes of a rank's state blocks; "": not known */
    int64_t taken, copied, received, prealloc; /* bytes of state that this generation continues
                                                  from */
} ek_supervised_run;

/* What is said to the user. */
typedef struct {
    ek_wait_timer wait;    /* current wait, */
    int wait_of;           /* its state or phase */
    int list_failed;       /* that was said */
    int64_t seen_at;       /* the loss that seen_epoch belongs to */
    double seen_epoch;     /* when it was seen, seconds since 1970 */
    char end_reason[1024]; /* why the last generation ended */
} ek_supervisor_said;

enum { EK_ANSWERS_MAX = 64 };

typedef struct {
    const ek_supervisor_config *config;
    const char *mpiexec;
    ek_core core;
    ek_message_listener on_message; /* turns messages of workers into events of the core */
    ek_generation generation;
    ek_tasks tasks;         /* commands on hosts */
    ek_subprocess discover; /* --discover */
    ek_host_list listed;    /* the list as last read, until the core has taken it */
    int64_t even_slots;     /* of a host without slots, by the first list; 0: none was read */
    ek_supervised_run run;
    ek_supervisor_said said;
    ek_core_event answer[EK_ANSWERS_MAX]; /* [n_answers] to actions that had an answer at once */
    int n_answers;
    int signals;   /* signalfd */
    sigset_t mask; /* original signal mask */
    time_t begin;
    int64_t reached_at;    /* last look at mpiexec's launchers */
    ek_status list_status; /* of the first list, if it could not be read */
    int status;            /* exit status */
} ek_supervisor;

#endif
