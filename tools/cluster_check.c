/* Measures transfers of 4 MiB between two ranks, in both directions, for `tools/cluster check`.
 *
 * Rank 0 prints "bits_per_second RATE" twice: the median of the sends from rank 0 to rank 1, then
 * of those from rank 1 to rank 0.  A send lasts until the receiver's answer has come back, so that
 * what lies in buffers does not count as sent.
 *
 * MPICH's MPI_Finalize over UCX's TCP waits for ever when a rank enters it while another still
 * makes progress in the call before.  So all ranks leave MPI first; if that does not suffice, an
 * alarm ends the program, which has printed what it had to say. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { BYTES = 4 << 20, WARM_UP = 1, SENDS = 5, LEAVE_US = 50000, FINALIZE_S = 5 };

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median time of a send from rank `from` to the other, in seconds; only known to `from`. */
static double send_seconds(int from, int rank, char *bytes)
{
    double seconds[SENDS] = {0};
    char answer = 0;
    for (int i = -WARM_UP; i < SENDS; i++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double start = MPI_Wtime();
        if (rank == from) {
            MPI_Send(bytes, BYTES, MPI_CHAR, 1 - from, 0, MPI_COMM_WORLD);
            MPI_Recv(&answer, 1, MPI_CHAR, 1 - from, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            MPI_Recv(bytes, BYTES, MPI_CHAR, from, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(&answer, 1, MPI_CHAR, from, 1, MPI_COMM_WORLD);
        }
        if (i >= 0) {
            seconds[i] = MPI_Wtime() - start;
        }
    }
    qsort(seconds, SENDS, sizeof(seconds[0]), ascending);
    return seconds[SENDS / 2];
}

int main(int argc, char **argv)
{
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    char *bytes = calloc(BYTES, 1);
    if (size != 2 || !bytes) {
        fprintf(stderr, "cluster_check needs two ranks (here: %d) and 4 MiB\n", size);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    for (int from = 0; from < 2; from++) {
        double seconds = send_seconds(from, rank, bytes);
        MPI_Bcast(&seconds, 1, MPI_DOUBLE, from, MPI_COMM_WORLD);
        if (rank == 0) {
            printf("bits_per_second %.0f\n", 8.0 * BYTES / seconds);
        }
    }
    free(bytes);
    fflush(stdout);
    MPI_Barrier(MPI_COMM_WORLD);
    usleep(LEAVE_US);
    alarm(FINALIZE_S);
    MPI_Finalize();
    return 0;
}
