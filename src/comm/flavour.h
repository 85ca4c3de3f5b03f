/* comm/flavour.h - the MPI library of a program, and the plugin module that uses it.
 *
 * A program or library is built for one MPI (src/comm/mpi/flavour.c) or none, but not linked with
 * it: MPI libraries and their transports replace signal handlers as soon as they are loaded, and
 * most processes never join a job.  The back end (src/comm/mpi/mpi.c), linked with MPI, is a module
 * that comm/module.c loads when a job is joined. */
#ifndef COMM_FLAVOUR_H
#define COMM_FLAVOUR_H

#include "evenkeel/version.h"

#include "comm/backend.h"

typedef struct {
    const char *library;  /* "MPICH 4.0.2" */
    const char *launcher; /* its mpiexec; "": none was found */
    const char *module;   /* file name */
} ek_mpi_flavour;

/* Static; NULL: no MPI.  Weak: overridden by the function in comm/mpi if that is linked in. */
const ek_mpi_flavour *ek_mpi_linked(void);

/* Functions of the loading program that the module calls. */
typedef struct {
    ek_status (*raise)(const char *file, int line, const char *func, ek_status st,
                       const char *message);
    ek_status (*pass)(const char *file, int line, const char *func, ek_status st);
    ek_status (*create)(const ek_backend *backend, void *state, int rank, int ranks,
                        const char (*hosts)[EK_HOST_CAP], ek_comm **out);
    void (*set_far_max)(ek_comm *world, int64_t bytes);
} ek_mpi_host;

/* The one symbol that a module exports. */
typedef struct {
    const char *version; /* EK_MPI_MODULE_VERSION of its build */
    ek_status (*open)(const ek_mpi_host *host, ek_comm **world);
} ek_mpi_module;

#define EK_MPI_MODULE_SYMBOL  "ek_mpi_module_entry"
#define EK_MPI_MODULE_VERSION EK_VERSION ", module interface 2"
extern const ek_mpi_module ek_mpi_module_entry;

/* Loads the module of this MPI on the first call, and joins the job.  Restores the caller's signal
 * handlers.  EK_EUNSUPPORTED: the module or its MPI library is missing.  Collective. */
EK_CHECKED ek_status ek_mpi_module_open(const ek_mpi_flavour *mpi, ek_comm **world);

#endif
