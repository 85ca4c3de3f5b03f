/* clang-format off */
/* supervisor/command_job.h - the MPI job of a command: none, started by it, or joined.
 *
 *   evenkeel train ...                  a single process
 *   evenkeel train --ranks 4 ...        supervisor: runs mpiexec with 4 workers (supervisor.h)
 *   mpiexec -n 4 evenkeel train ...     joins the job, as do the workers of --ranks
 *
 * Only rank 0 prints progress and results.  A failure is reported by the lowest rank that detects
 * it, which then aborts the job. */
/* clang-format on */
#ifndef SUPERVISOR_COMMAND_JOB_H
#define SUPERVISOR_COMMAND_JOB_H

#include "evenkeel/job.h"

#include "base/options.h"

typedef struct {
    const char *command;
    ek_comm *world; /* NULL: this process alone */
    int rank, size; /* 0, 1: alone */
    int live;       /* stderr, or the supervisor's stderr, is a terminal */
} ek_command_job;

/* Call ek_worker_catch() before.  Parses the arguments and joins or starts the job.  Returns -1 to
 * continue; else an exit status: of an error, of --help, or of the job that this process launched.
 * The last n_layout_words arguments state the first layout of a run that changes it: only the
 * launching process reads them, and workers choose the layout themselves.  Collective inside a
 * job. */
int ek_command_job_enter(const ek_option_table *table, int argc, char **argv, int n_layout_words,
                         ek_options **o, ek_command_job *job);

/* --threads, or an even share of this host's cores among its ranks.  Collective. */
EK_CHECKED ek_status ek_command_job_threads(const ek_command_job *job, const ek_options *o,
                                            int *threads);

/* Reports this thread's failure once for the whole job and aborts the job; returns only if there is
 * a single rank, or for EK_ECANCELED, on which all ranks have agreed. */
int ek_command_job_fail(ek_command_job *job, ek_status st);

/* The same for an error in the arguments, which all ranks detect: rank 0 reports it, the others
 * wait for it to abort the job. */
int ek_command_job_fail_arguments(ek_command_job *job, ek_status st);

/* Flushes output and leaves the job.  Collective. */
void ek_command_job_leave(ek_command_job *job);

#endif
