/* evenkeel/job.h - a parallel job: the processes that MPI started together.
 *
 * A process joins the job in which it was started (mpiexec, srun), passes the world to a run
 * (ek_train_config.world), and leaves.  A process started without a launcher needs none of this.
 *
 * ek_job_join loads MPI from a module beside this library (libevenkeel_mpi_*.so), with global
 * symbols.  The caller's signal handlers stay in place.
 *
 * Collective   join, cores and leave: every process of the job makes the call.
 * Ownership    join returns a world; leave frees it.
 * Threads      one call at a time per world. */
#ifndef EK_JOB_H
#define EK_JOB_H

#include "evenkeel/err.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ek_comm ek_comm;

/** Joins the job in which this process was started.  Once per process.  Collective.
 *
 *  @param[out] world  its processes; a process started without a launcher is a job of one
 *  @return EK_EUNSUPPORTED in a build without MPI, or where its module or MPI library is missing;
 *          EK_ECOMM if MPI does not start */
EK_CHECKED EK_API ek_status ek_job_join(ek_comm **world);

/** Rank of this process, 0 to size - 1; number of processes.  NULL: rank -1, size 0. */
EK_API int ek_job_rank(const ek_comm *world);
EK_API int ek_job_size(const ek_comm *world);

/** Host name of a rank; borrowed from the world.  "" where there is no such rank. */
EK_API const char *ek_job_host(const ek_comm *world, int rank);

/** Cores for each process on this host when its processes share the available cores evenly; at
 *  least 1.  Collective. */
EK_CHECKED EK_API ek_status ek_job_cores(ek_comm *world, int *cores);

/** Ends every process of the job at once, this one too, with this exit status.  NULL: no effect. */
EK_API void ek_job_abort(ek_comm *world, int status);

/** Leaves the job: waits until every process calls it, and sets *world to NULL.  No effect if world
 *  or *world is NULL.  Collective. */
EK_API void ek_job_leave(ek_comm **world);

/** The MPI of this build, such as "MPICH 4.0.2"; "none" without one. */
EK_API const char *ek_job_library(void);

/** The mpiexec of that MPI; "" without one. */
EK_API const char *ek_job_launcher(void);

#ifdef __cplusplus
}
#endif
#endif
