/* comm/mpi/mpi.h - the MPI back end, internal to its module. */
#ifndef COMM_MPI_MPI_H
#define COMM_MPI_MPI_H

#include "comm/flavour.h"

/* Joins the job that this process was started in.  Collective. */
EK_CHECKED ek_status ek_mpi_open(const ek_mpi_host *host, ek_comm **world);

/* Ends MPI in this process, which initialised it, when no message is in flight.  far: the ranks are
 * on several hosts.  Collective. */
void ek_mpi_end(int far);

#endif
