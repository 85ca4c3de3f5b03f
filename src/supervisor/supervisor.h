/* supervisor/supervisor.h - starts the workers of a job through mpiexec and supervises them.
 *
 * The supervisor runs mpiexec, forwards the workers' output line by line, and exits with the status
 * of the job.  SIGINT and SIGTERM are forwarded as SIGUSR1, the one signal that both MPICH and Open
 * MPI pass on to the workers without ending the job themselves; a second one kills the job.
 *
 * The program that calls it must serve the internal commands (internal_command.h). */
#ifndef SUPERVISOR_SUPERVISOR_H
#define SUPERVISOR_SUPERVISOR_H

#include "supervisor/config.h"

/* Runs the job; returns its exit status. */
int ek_supervise(const ek_supervisor_config *config);

#endif
