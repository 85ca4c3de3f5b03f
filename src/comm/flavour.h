/* comm/flavour.h - the MPI that a program is linked with.
 *
 * comm/mpi is compiled once for each MPI that a build has; a program or library takes the objects
 * of one of them, or of none. */
#ifndef COMM_FLAVOUR_H
#define COMM_FLAVOUR_H

#include "comm/comm.h"

typedef struct {
    const char *library;  /* "MPICH 4.0.2" */
    const char *launcher; /* its mpiexec, "" when there was none */
    ek_status (*open)(ek_comm **world);
} ek_mpi_flavour;

/* NULL: none.  Replaced by the function of that name in comm/mpi where it is linked in. */
const ek_mpi_flavour *ek_mpi_linked(void);

#endif
