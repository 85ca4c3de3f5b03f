/* The MPI that a program was built for.  Linked into the program; needs only mpi.h. */
#include "comm/flavour.h"

#include <mpi.h>

#define TEXT2(x) #x
#define TEXT(x)  TEXT2(x)

const ek_mpi_flavour *ek_mpi_linked(void)
{
    static const ek_mpi_flavour flavour = {
#if defined(MPICH_VERSION)
        .library = "MPICH " MPICH_VERSION,
#elif defined(OMPI_MAJOR_VERSION)
        .library = "Open MPI " TEXT(OMPI_MAJOR_VERSION) "." TEXT(OMPI_MINOR_VERSION) "." TEXT(
            OMPI_RELEASE_VERSION),
#else
        .library = "MPI " TEXT(MPI_VERSION) "." TEXT(MPI_SUBVERSION),
#endif
        .launcher = EK_MPI_LAUNCHER,
        .module = EK_MPI_MODULE_FILE,
    };

    return &flavour;
}
