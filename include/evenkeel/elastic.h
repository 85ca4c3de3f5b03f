/** @file
 *  evenkeel/elastic.h - programs that train elastically: the program becomes the supervisor of its
 *  own workers, which it starts through mpiexec, watches, and starts again when workers or hosts
 *  are lost, when hosts join, and when hosts are to be released.  Workers continue from the state
 *  that the ones before them have left in shared memory.  `evenkeel train --elastic` does the same.
 *
 *      int main(int argc, char **argv)
 *      {
 *          ek_elastic *worker;
 *          int status = ek_elastic_enter(&elastic, argc, argv, &worker);
 *
 *          if (status >= 0)
 *              return status;
 *          return ek_elastic_leave(&worker, ek_elastic_train(worker, &cfg, &hooks, &summary));
 *      }
 *
 *  Needs a library that was built with MPI.  The program is started alone, not through mpiexec; its
 *  workers are the same program with the same arguments.
 *
 *  @par The process
 *  Unlike the rest of the library, these functions act as a program does: they print on stderr,
 *  install signal handlers, read and set environment variables, and may end the process.
 *
 *  @par Threads
 *  ek_elastic_enter is called before other threads are started. */
#ifndef EK_ELASTIC_H
#define EK_ELASTIC_H

#include "evenkeel/err.h"
#include "evenkeel/train.h"

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/** A worker's connection to its supervisor. */
typedef struct ek_elastic ek_elastic;

/** The job.  Strings are borrowed until ek_elastic_enter returns. */
typedef struct {
    size_t size;              /**< sizeof(ek_elastic_config) */
    const char *name;         /**< of the program in messages; NULL: "program" */
    const char *out;          /**< folder of the run: that of ek_train_config */
    int ranks;                /**< at most; 0: as many as the hosts have slots, or 1 */
    const char *hosts;        /**< host file, read again while the job runs; NULL: this host */
    const char *discover;     /**< command that prints the hosts, instead of a file; or NULL */
    const char *mpiexec_args; /**< more arguments of mpiexec, separated by spaces; or NULL */
    int unit; /**< ranks come in multiples of it: pp times the least common multiple of tp and etp;
                 0: 1 */
    double watchdog_s; /**< seconds without progress after which workers are ended, where no better
                          estimate is known; 0: never */
    int quiet;         /**< reports waits later */
} ek_elastic_config;

/** Call first in main.  In the process that the user starts: supervises the job to its end, and
 *  prints messages on stderr.  In a worker: joins the job.  Collective in workers.
 *
 *  @param[in]  cfg   borrowed during the call; the same in all processes
 *  @param[in]  argc  that of main
 *  @param[in]  argv  that of main.  "--version" alone, and commands of the supervisor to hosts (a
 *                    first argument `reserve`, `links` or `guard`), are handled here
 *  @param[out] out   the worker, freed by ek_elastic_leave; NULL otherwise
 *  @return -1: a worker; otherwise the exit status of the process (0 done, 1 failed, 2 and 3 bad
 *          arguments and files, 130 interrupted) */
EK_API int ek_elastic_enter(const ek_elastic_config *cfg, int argc, char **argv, ek_elastic **out);

/** ek_train() in a worker.  Sets world, elastic, supervised, threads (0: a share of the host's
 *  cores) and rack_of (NULL: racks of the host list) in a copy of cfg.  An interrupt of the
 *  supervisor counts as one that the hook `stop` reports.  Collective.
 *
 *  @param[in]  e        the worker
 *  @param[in]  cfg      borrowed during the call
 *  @param[in]  hooks    called in each worker; NULL: none
 *  @param[out] summary  as ek_train()
 *  @return as ek_train() */
EK_CHECKED EK_API ek_status ek_elastic_train(ek_elastic *e, const ek_train_config *cfg,
                                             const ek_train_hooks *hooks,
                                             ek_train_summary *summary);

/** This worker's rank.  Not collective.
 *
 *  @param[in] e  may be NULL
 *  @return from 0; -1 for NULL */
EK_API int ek_elastic_rank(const ek_elastic *e);

/** Whether the workers of this start only take over the state of hosts that are to be released.
 *  None takes a step: ek_elastic_train succeeds, and the run continues with the next start.  Not
 *  collective.
 *
 *  @param[in] e  may be NULL
 *  @return 1 or 0, the same in all workers; 0 for NULL */
EK_API int ek_elastic_is_draining(const ek_elastic *e);

/** Leaves the job and frees the worker; reports st if it is a failure.  The supervisor then decides
 *  whether workers are started again.  Collective, unless st is a failure.
 *
 *  @param[in,out] e   *e is set to NULL; NULL and *e == NULL are allowed
 *  @param[in]     st  the result of ek_elastic_train
 *  @return the exit status of the process; a failure of one of several ranks does not return */
EK_API int ek_elastic_leave(ek_elastic **e, ek_status st);

#ifdef __cplusplus
}
#endif

#endif
