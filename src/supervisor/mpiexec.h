/* supervisor/mpiexec.h - the adapter to mpiexec, of MPICH (Hydra) or Open MPI: its command line,
 * what its output says, and whether it hangs. */
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

/* What mpiexec reported about the end of a worker. */
typedef struct {
    int rank, pid, code, signal; /* -1: not given */
    char host[256];
} ek_worker_death;

/* Adds what a line says about it; the line has no newline and no control characters. */
void ek_mpiexec_read_death(const char *line, ek_worker_death *d);

typedef enum {
    EK_MPIEXEC_OTHER,
    EK_MPIEXEC_BOILERPLATE, /* printed for every failed job */
    EK_MPIEXEC_INTERNAL     /* for developers of mpiexec */
} ek_mpiexec_line;

/* Kind of a line of its stdout or stderr. */
ek_mpiexec_line ek_mpiexec_classify(const char *line);
/* Whether a line of the job's stdout begins its report of a worker's end, to which all further
 * lines belong. */
int ek_mpiexec_begins_report(const char *line, size_t n);
/* Whether a line of the job's stdout is an error of UCX, the transport of MPICH: usually about a
 * rank that has just died. */
int ek_mpiexec_is_ucx_error(const char *line, size_t n);

/* A worker, by host and process, that could not reach process `lost` of its host. */
typedef struct {
    char host[256];
    int pid, lost;
} ek_lost_peer;

/* Reads that from a line, as of ek_mpiexec_read_death(): UCX prints it when a worker connects to
 * another that is dying. */
int ek_mpiexec_read_lost_peer(const char *line, ek_lost_peer *out);

/* MPICH's mpiexec hangs when its remote launcher (ssh or a replacement) cannot reach a host.
 * Whether one of its launchers has failed; whether all have, and mpiexec sleeps.  Look several
 * times: it may be about to exit. */
int ek_mpiexec_has_failed_launcher(pid_t pid);
int ek_mpiexec_seems_stuck(pid_t pid);

#endif
