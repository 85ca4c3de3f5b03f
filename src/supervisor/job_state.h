/* supervisor/job_state.h - what workers, by their messages, and mpiexec have told about a job. */
#ifndef SUPERVISOR_JOB_STATE_H
#define SUPERVISOR_JOB_STATE_H

#include "evenkeel/err.h"

#include "supervisor/membership.h"
#include "supervisor/mpiexec.h"
#include "supervisor/progress.h"
#include "supervisor/protocol.h"
#include "supervisor/worker_watch.h"

#include <stddef.h>
#include <stdint.h>

typedef struct {
    int pid;
    int joined; /* ready, and reachable by SIGUSR1 */
    char host[EK_MESSAGE_HOST_CAP];
} ek_worker_state;

typedef struct {
    int ranks, started, ready; /* workers; those that have sent EK_MESSAGE_START, and _JOINED */
    ek_worker_state *workers;  /* [ranks] */
    int reported, status;      /* workers that reported a failure; exit status of the first */
    int reporter;              /* its rank */
    int lost;                  /* its failure is the loss of another rank */
    int64_t steps;             /* completed, as last reported; -1: no report yet */
    int64_t first_step;        /* first step of this start, counted from 0 */
    int is_last;               /* no step is left */
    int recovered;             /* continues from shared memory */
    int state_incomplete;      /* does not, as state in shared memory is incomplete */
    double taken, copied, received; /* bytes of state, if recovered */
    double prealloc;                /* bytes that hosts had preallocated before they joined */
    ek_worker_death death;          /* by mpiexec */
    int death_unseen;               /* mpiexec did not see how the first worker ended */
    const ek_worker_watch *watch;   /* or NULL */
    ek_job_progress *progress;
    ek_membership *members; /* or NULL */
} ek_job_state;

/* For a job of `ranks` workers.  watch, progress and members are then set by the caller. */
EK_CHECKED ek_status ek_job_state_init(ek_job_state *s, int ranks);
void ek_job_state_fini(ek_job_state *s);
/* A message of a worker, which is also told to progress and members. */
void ek_job_state_handle(ek_job_state *s, const ek_worker_message *m);
/* "rank 2 on node3 (process 123) was killed by signal 9 (Killed)"; returns 0 if it is not known
 * which worker died. */
int ek_job_state_death(const ek_job_state *s, char *text, size_t cap);

#endif
