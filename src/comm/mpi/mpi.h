/* comm/mpi/mpi.h - the MPI back end, internal to its module. */
#ifndef COMM_MPI_MPI_H
#define COMM_MPI_MPI_H

#include "comm/flavour.h"

/* Joins the job that this process was started in.  Collective. */
EK_CHECKED ek_status ek_mpi_open(const ek_mpi_host *host, ek_comm **world);

#endif
