/* supervisor/mpiexec.h - the command line of mpiexec, of MPICH (Hydra) or Open MPI. */
#ifndef SUPERVISOR_MPIEXEC_H
#define SUPERVISOR_MPIEXEC_H

#include "evenkeel/err.h"

#include "supervisor/config.h"

#include <stddef.h>
#include <sys/types.h>

/* NULL-terminated argv; `owned`: strings it refers to. */
typedef struct {
    char **argv;
    size_t n, room;
    char *owned[4];
} ek_mpiexec_args;

/* mpiexec: its path.  hosts: list as of ek_host_list_text(), borrowed; NULL: this host. */
EK_CHECKED ek_status ek_mpiexec_args_init(const ek_supervisor_config *config, const char *mpiexec,
                                          int ranks, const char *hosts, ek_mpiexec_args *out);
void ek_mpiexec_args_fini(ek_mpiexec_args *a);

/* MPICH's mpiexec hangs when its remote launcher (ssh or a replacement) cannot reach a host.
 * Whether one of its launchers has failed; whether all have, and mpiexec sleeps.  Look several
 * times: it may be about to exit. */
int ek_mpiexec_has_failed_launcher(pid_t pid);
int ek_mpiexec_seems_stuck(pid_t pid);

#endif
