/* The end of MPI in this process.
 *
 * MPICH before 4.2 hangs in MPI_Finalize over UCX's TCP when a rank enters it later than others: it
 * disconnects from each peer, which may need answers of the peer (part of a connection may not have
 * been used before), but a rank that is done with its own disconnecting waits in a barrier of the
 * process manager and answers no more (docs/cluster.md).  No wait before MPI_Finalize is long
 * enough on a busy machine.  Under Hydra, the mpiexec of MPICH, such ranks therefore meet without
 * the network, through Hydra, and tell it what MPI_Finalize would at its end: the process may then
 * exit.  What MPI_Finalize would free, the kernel frees. */
#include "comm/mpi/mpi.h"

#include <errno.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { REPLY_CAP = 256 };

/* The connection to Hydra in version 1 of its protocol, where MPI_Finalize of the MPI that runs
 * (not the one this was compiled with) may hang; else -1.  Both variables are Hydra's; an MPICH
 * that was configured for another protocol says so. */
static int hydra_instead(void)
{
    static const char name[] = "MPICH Version:";
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    const char *fd = getenv("PMI_FD"), *at;
    int length = 0, major = 0, minor = 0;

    if (fd == NULL || getenv("HYDI_CONTROL_FD") == NULL ||
        MPI_Get_library_version(text, &length) != MPI_SUCCESS)
        return -1;
    at = strstr(text, name);
    if (at == NULL || sscanf(at + strlen(name), "%d.%d", &major, &minor) != 2 || major > 4 ||
        (major == 4 && minor >= 2))
        return -1;
    if (strstr(text, "ch4:ucx") == NULL || strstr(text, "--with-pmi=") != NULL)
        return -1;
    return atoi(fd);
}

static int send_line(int fd, const char *line)
{
    size_t n = strlen(line), done = 0;

    while (done < n) {
        ssize_t more = send(fd, line + done, n - done, MSG_NOSIGNAL);

        if (more < 0 && errno != EINTR)
            return 0;
        done += more > 0 ? (size_t)more : 0;
    }
    return 1;
}

/* Reads a line, which is to begin with `wanted`. */
static int receive_line(int fd, const char *wanted)
{
    char line[REPLY_CAP];
    size_t n = 0;

    while (n == 0 || line[n - 1] != '\n') {
        ssize_t more = n < sizeof(line) ? read(fd, line + n, 1) : 0;

        if (more == 0 || (more < 0 && errno != EINTR))
            return 0;
        n += more > 0 ? (size_t)more : 0;
    }
    return strncmp(line, wanted, strlen(wanted)) == 0;
}

/* Two barriers: after the first, no rank waits for a message from before it; so those of the second
 * find the sockets' buffers empty, and are sent when the second has returned. */
static void meet(void)
{
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
}

void ek_mpi_end(int far)
{
    struct timespec left = {.tv_nsec = 60000000};
    int fd;

    if (far) {
        meet();
        fd = hydra_instead();
        if (fd >= 0) {
            /* No rank may exit, and break its connections, while another one reads from them. */
            if (send_line(fd, "cmd=barrier_in\n") && receive_line(fd, "cmd=barrier_out") &&
                send_line(fd, "cmd=finalize\n"))
                receive_line(fd, "cmd=finalize_ack");
            return;
        }
        while (nanosleep(&left, &left) != 0) /* with other process managers: usually enough */
            ;
    }
    MPI_Finalize();
}
