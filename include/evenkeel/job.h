/** @file
 *  evenkeel/job.h - a parallel job: the processes that MPI started together.
 *
 *  A process joins the job in which it was started (mpiexec, srun), passes the world to a run
 *  (ek_train_config.world), and leaves.  A process started without a launcher needs none of this.
 *
 *  ek_job_join loads MPI from a module beside this library (libevenkeel_mpi_*.so), with global
 *  symbols.  The caller's signal handlers stay in place.
 *
 *  @par Collective
 *  Join, cores and leave: every process of the job makes the call.  The others are not.
 *
 *  @par Ownership
 *  Join returns a world; leave frees it.
 *
 *  @par Threads
 *  One call at a time per world. */
#ifndef EK_JOB_H
#define EK_JOB_H

#include "evenkeel/err.h"

#ifdef __cplusplus
extern "C" {
#endif

/** The processes of a job. */
typedef struct ek_comm ek_comm;

/** Joins the job in which this process was started.  Once per process.  Collective.
 *
 *  @param[out] world  its processes; a process started without a launcher, or with that of another
 *                     MPI than ek_job_launcher() names, is a job of one
 *  @return EK_EUNSUPPORTED in a build without MPI, or where its module or MPI library is missing;
 *          EK_ECOMM if MPI does not start */
EK_CHECKED EK_API ek_status ek_job_join(ek_comm **world);

/** Rank of this process.  Not collective.
 *
 *  @param[in] world  may be NULL
 *  @return 0 to size - 1; -1 for NULL */
EK_API int ek_job_rank(const ek_comm *world);

/** Number of processes.  Not collective.
 *
 *  @param[in] world  may be NULL
 *  @return at least 1; 0 for NULL */
EK_API int ek_job_size(const ek_comm *world);

/** Host name of a rank.  Not collective.
 *
 *  @param[in] world  may be NULL
 *  @param[in] rank   any number
 *  @return borrowed from the world; "" where there is no such rank */
EK_API const char *ek_job_host(const ek_comm *world, int rank);

/** Cores for each process on this host when its processes share the available cores evenly.
 *  Collective.
 *
 *  @param[in]  world  the job
 *  @param[out] cores  at least 1
 *  @return EK_ECOMM, EK_EPEER */
EK_CHECKED EK_API ek_status ek_job_cores(ek_comm *world, int *cores);

/** Ends every process of the job at once, this one too.  Not collective.
 *
 *  @param[in] world   NULL: no effect
 *  @param[in] status  exit status */
EK_API void ek_job_abort(ek_comm *world, int status);

/** Leaves the job: waits until every process calls it.  Collective.
 *
 *  Where ek_job_join has initialised MPI it is at its end then: the process calls neither MPI nor
 *  ek_job_join again, and MPI_Finalized may say that MPI_Finalize was not called (with MPICH before
 *  4.2 on several hosts, where it may hang).
 *
 *  @param[in,out] world  *world is set to NULL; no effect if world or *world is NULL */
EK_API void ek_job_leave(ek_comm **world);

/** The MPI of this build.  Not collective.
 *
 *  @return such as "MPICH 4.0.2"; "none" without one; static */
EK_API const char *ek_job_library(void);

/** The mpiexec of that MPI.  Not collective.
 *
 *  @return its path; "" without one; static */
EK_API const char *ek_job_launcher(void);

#ifdef __cplusplus
}
#endif
#endif
