/* supervisor/worker.h - a process as worker of a job: its environment, and what it tells the
 * supervisor (protocol.h).  All but the environment does nothing without a supervisor. */
#ifndef SUPERVISOR_WORKER_H
#define SUPERVISOR_WORKER_H

#include "supervisor/protocol.h"

#include <stdint.h>

/* Communication failure, probably due to another rank's death: time for mpiexec to report it. */
enum { EK_WORKER_PEER_MS = 2000 };

typedef struct {
    int inside;           /* part of an MPI job */
    int rank, size;       /* size 0: not known */
    ek_launched launched; /* by a supervisor; ranks = 0: by another program */
} ek_worker_environment;

ek_worker_environment ek_worker_environment_read(void);

/* Whether this process is one of several ranks, by its environment. */
int ek_worker_has_peers(void);
/* The id of the --elastic supervisor; 0: none. */
uint64_t ek_worker_supervisor_id(void);
/* Whether the job is elastic though --elastic was not given. */
int ek_worker_elastic_by_default(void);
/* Number of draining ranks, the last ones of the job, which only hand over their state
 * (--elastic). */
int ek_worker_n_draining(void);
/* The earliest step from which the job may continue (--elastic); 0: any. */
int64_t ek_worker_least_step(void);
/* Losses of hosts since the first step of the command (--elastic), and seconds of all hosts. */
int64_t ek_worker_lost_hosts(double *host_s);
/* The rack of each rank, *rack_of [ranks], to be freed by the caller; NULL if racks are not known.
 * Assignment to hosts starts over where there are more ranks than slots. */
EK_CHECKED ek_status ek_worker_racks(int ranks, int **rack_of);

/* As ek_command_catch(), plus SIGUSR1, which a supervisor sends.  Call before ek_worker_start(). */
void ek_worker_catch(void (*stop)(int sig));

/* In a launched worker, once: from here it dies with its parent, marks its lines on stderr, is
 * connected to the supervisor, and has sent "start", as early as possible, as it may be killed
 * while it joins.  With --elastic a thread sends heartbeats until it exits. */
void ek_worker_start(int rank);
/* A regular exit of a launched worker: before it leaves the job, its silence is no loss; once it
 * has left, its death is none. */
void ek_worker_leaving(int rank);
void ek_worker_left(void);
/* In a launched worker that has joined the job: sends "rank"; host as known to MPI. */
void ek_worker_joined(int rank, const char *host);
/* Before a failure is printed; status: exit status of the job.  lost: caused by the loss of another
 * rank. */
void ek_worker_report_failure(int rank, int status, int lost);

/* Sends a message of rank 0 to the --elastic supervisor; otherwise does nothing. */
void ek_worker_report(const ek_worker_message *m);
/* Rank 0 enters a phase, and tells the same supervisor; other ranks do nothing.  When it is the
 * phase in the file that EK_STOP_AT_VARIABLE names, the process stops itself (SIGSTOP). */
void ek_worker_enter_phase(const char *phase);

#endif
