/* evenkeel/job.h - a parallel job: the processes that run together, as MPI started them.
 *
 * A process joins the job that it was started in (mpiexec, srun), hands the world to a run
 * (ek_train_config.world), and leaves.  Started plainly it needs none of this.
 *
 * MPI is loaded by join, from a module beside this library (libevenkeel_mpi_*.so), with its symbols
 * visible to all.  Signal handlers stay those of the caller.
 *
 * Collective   join, cores and leave: every process of the job makes the call.
 * Ownership    join gives, leave takes.
 * Threads      one at a time per world. */
#ifndef EK_JOB_H
#define EK_JOB_H

#include "evenkeel/err.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ek_comm ek_comm;

/** Joins the job that this process was started in.  Once per process.  Collective.
 *
 *  @param[out] world  its processes; a process that was started plainly is a job of one
 *  @return EK_EUNSUPPORTED in a build without MPI, or where its module or MPI library is missing;
 *          EK_ECOMM if MPI does not start */
EK_CHECKED EK_API ek_status ek_job_join(ek_comm **world);

/** This process among those of the job: 0 to size - 1.  Of NULL: rank -1 of 0. */
EK_API int ek_job_rank(const ek_comm *world);
EK_API int ek_job_size(const ek_comm *world);

/** Host name of a rank; borrowed from the world.  "" where there is no such rank. */
EK_API const char *ek_job_host(const ek_comm *world, int rank);

/** Cores that each process of this one's host may keep busy, when all of them share theirs out
 *  evenly; at least 1.  Collective. */
EK_CHECKED EK_API ek_status ek_job_cores(ek_comm *world, int *cores);

/** Ends every process of the job at once, this one too, with this exit status; NULL: nothing. */
EK_API void ek_job_abort(ek_comm *world, int status);

/** Leaves: waits until every process of the job has come here, and sets *world to NULL.  NULL and
 *  *world == NULL are fine.  Collective. */
EK_API void ek_job_leave(ek_comm **world);

/** The MPI of this build, such as "MPICH 4.0.2"; "none" without one. */
EK_API const char *ek_job_library(void);

/** The mpiexec that belongs to it; "" without one. */
EK_API const char *ek_job_launcher(void);

#ifdef __cplusplus
}
#endif
#endif
