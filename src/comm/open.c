/* Opens the world of this process, over the back end that the caller asks for. */
#include "comm/comm.h"
#include "comm/fake.h"
#include "comm/flavour.h"

__attribute__((weak)) const ek_mpi_flavour *ek_mpi_linked(void)
{
    return NULL;
}

ek_status ek_comm_open(ek_comm_kind kind, ek_comm **world)
{
    const ek_mpi_flavour *mpi = ek_mpi_linked();

    if (kind == EK_COMM_SELF)
        return ek_fake_open(0, 1, world);
    EK_REQUIRE(mpi != NULL, EK_EUNSUPPORTED,
               "this build has no MPI: install MPICH or Open MPI and configure with EK_MPI=ON");
    return ek_mpi_module_open(mpi, world);
}

const char *ek_comm_library(ek_comm_kind kind)
{
    const ek_mpi_flavour *mpi = ek_mpi_linked();

    return kind == EK_COMM_SELF ? "self" : mpi != NULL ? mpi->library : "none";
}

const char *ek_comm_launcher(void)
{
    const ek_mpi_flavour *mpi = ek_mpi_linked();

    return mpi != NULL ? mpi->launcher : "";
}
