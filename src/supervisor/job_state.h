/* supervisor/job_state.h - the workers of a job, by their messages, and which of them died first,
 * by their connections and mpiexec. */
#ifndef SUPERVISOR_JOB_STATE_H
#define SUPERVISOR_JOB_STATE_H

#include "evenkeel/err.h"

#include "supervisor/mpiexec.h"
#include "supervisor/protocol.h"
#include "supervisor/worker_watch.h"

#include <stddef.h>

typedef struct {
    int pid;
    int joined; /* ready, and reachable by SIGUSR1 */
    int lost;   /* process of a worker of its host that it could no longer reach; 0: none */
    char host[EK_MESSAGE_HOST_CAP];
} ek_worker_state;

/* Called with each message of a worker, which is valid during the call. */
typedef struct {
    void (*call)(void *context, const ek_worker_message *m);
    void *context;
} ek_message_listener;

typedef struct {
    int ranks, ready;             /* workers; those that have sent EK_MESSAGE_JOINED */
    ek_worker_state *workers;     /* [ranks] */
    int reported;                 /* workers that reported a failure */
    ek_worker_death death;        /* by mpiexec */
    int death_unseen;             /* mpiexec did not see how the first worker ended */
    int mpiexec_status;           /* exit status of mpiexec; -1: none, or it was killed */
    int lost_reports;             /* workers that could not reach another, */
    int first_reporter;           /* and the first of them */
    const ek_worker_watch *watch; /* or NULL */
    ek_message_listener on_message;
} ek_job_state;

/* For a job of `ranks` workers.  watch and on_message are then set by the caller. */
EK_CHECKED ek_status ek_job_state_init(ek_job_state *s, int ranks);
void ek_job_state_fini(ek_job_state *s);
/* A message of a worker, which the listener gets, too. */
void ek_job_state_handle(ek_job_state *s, const ek_worker_message *m);
/* A worker could no longer reach another one of its host. */
void ek_job_state_lost_peer(ek_job_state *s, const ek_lost_peer *c);
/* "rank 2 on node3 (process 123) was killed by signal 9 (Killed)"; returns 0 if it is not known
 * which worker died. */
int ek_job_state_death(const ek_job_state *s, char *text, size_t cap);

#endif
