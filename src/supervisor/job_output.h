/* supervisor/job_output.h - output of a job: prints lines of workers, handles their messages, holds
 * back and parses lines of mpiexec. */
#ifndef SUPERVISOR_JOB_OUTPUT_H
#define SUPERVISOR_JOB_OUTPUT_H

#include "evenkeel/err.h"

#include "supervisor/membership.h"
#include "supervisor/progress.h"
#include "supervisor/worker_watch.h"

#include <stddef.h>
#include <stdint.h>

typedef struct {
    int pid;
    int joined; /* ready, and reachable by SIGUSR1 */
    char host[256];
} ek_worker_state;

/* What mpiexec reported about the end of a worker. */
typedef struct {
    int rank, pid, code, signal; /* -1: not given */
    char host[256];
} ek_worker_death;

typedef struct {
    int ranks, started, ready;      /* workers; those that have sent "start", and "rank" */
    ek_worker_state *workers;       /* [ranks] */
    int reported, status;           /* workers that reported a failure; exit status of the first */
    int reporter;                   /* its rank */
    int explained;                  /* a line of a report was printed */
    int lost;                       /* its failure is the loss of another rank */
    int hide_mpiexec_reports;       /* do not show mpiexec's report of a worker's end */
    int64_t steps;                  /* completed, as last reported; -1: no report yet */
    int64_t first_step;             /* first step of this start, counted from 0 */
    int is_last;                    /* no step is left */
    int recovered;                  /* continues from shared memory */
    int state_incomplete;           /* does not, as state in shared memory is incomplete */
    double taken, copied, received; /* bytes of state, if recovered */
    double prealloc;                /* bytes that hosts had preallocated before they joined */
    int drawn;                      /* the live line on the terminal is not terminated */
    int in_mpiexec_report;          /* stdout: inside mpiexec's report */
    int blank;                      /* stdout: empty lines that may belong to the report */
    char *held;                     /* held-back lines of mpiexec */
    size_t held_bytes, held_room;
    int64_t held_since; /* ek_clock_ns() of the oldest; 0: none */
    ek_worker_death death;
    int death_unseen;       /* mpiexec did not see how the first worker ended */
    ek_worker_watch *watch; /* or NULL */
    ek_job_progress *progress;
    ek_membership *members; /* or NULL */
} ek_job_output;

EK_CHECKED ek_status ek_job_output_init(ek_job_output *t, int ranks);
void ek_job_output_fini(ek_job_output *t);
/* Processes a line (without newline) of the job's stdout or stderr. */
void ek_job_output_stdout(ek_job_output *t, const char *line, size_t n);
void ek_job_output_stderr(ek_job_output *t, const char *line, size_t n);
/* Prints, or drops, the held-back lines. */
void ek_job_output_release(ek_job_output *t);
void ek_job_output_drop(ek_job_output *t);
/* "rank 2 on node3 (process 123) was killed by signal 9 (Killed)"; returns 0 if it is not known
 * which worker died. */
int ek_job_output_death(const ek_job_output *t, char *text, size_t cap);

#endif
