/* The MPI back end: one communicator per group, non-blocking messages, completion by MPI_Test.
 *
 * Only the creation of groups, and opening and closing the world, block in MPI; only ek_comm_abort
 * ends the job.  MPI counts are int, so the caller splits longer messages. */
#include "comm/mpi/mpi.h"

#include <dirent.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const int64_t message_max = 1 << 30;

/* Longest message to another host over sockets.  MPICH (over UCX) and Open MPI use a rendezvous
 * protocol for longer messages: the clear-to-send shares the connection with the data in the other
 * direction, and queues behind all of it in the kernel's socket buffers.  When ranks send to each
 * other, the two directions therefore alternate: 0.55 of the link's bandwidth, against 0.95 with
 * messages short enough for the eager protocol. */
static const int64_t socket_message_max = 16 << 10;

/* The back end's state of one group. */
typedef struct {
    MPI_Comm comm;
    int finalise; /* MPI was initialised here */
    int far;      /* world only: its ranks are on several hosts */
} mpi_group;

/* A message's MPI_Request, and the bytes to be received; -1: a send. */
typedef struct {
    MPI_Request request;
    int expected;
} mpi_message;

_Static_assert(sizeof(mpi_message) <= sizeof(ek_message), "an mpi_message fits into ek_message");

static ek_status check_mpi(int code, const char *call)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;

    if (code == MPI_SUCCESS)
        return EK_OK;
    MPI_Error_string(code, text, &length);
    return EK_FAIL(EK_ECOMM, "%s failed: %s", call, text);
}

/* --- messages --------------------------------------------------------------------------------- */

static ek_status mpi_send(void *self, const void *buf, int64_t bytes, int to, int tag,
                          ek_message *m)
{
    const mpi_group *g = self;
    mpi_message sent = {.expected = -1};

    EK_TRY(check_mpi(MPI_Isend(buf, (int)bytes, MPI_BYTE, to, tag, g->comm, &sent.request),
                     "MPI_Isend"));
    memcpy(m, &sent, sizeof(sent));
    return EK_OK;
}

static ek_status mpi_send_matched(void *self, const void *buf, int64_t bytes, int to, int tag,
                                  ek_message *m)
{
    const mpi_group *g = self;
    mpi_message sent = {.expected = -1};

    EK_TRY(check_mpi(MPI_Issend(buf, (int)bytes, MPI_BYTE, to, tag, g->comm, &sent.request),
                     "MPI_Issend"));
    memcpy(m, &sent, sizeof(sent));
    return EK_OK;
}

static ek_status mpi_recv(void *self, void *buf, int64_t bytes, int from, int tag, ek_message *m)
{
    const mpi_group *g = self;
    mpi_message wanted = {.expected = (int)bytes};

    EK_TRY(check_mpi(MPI_Irecv(buf, (int)bytes, MPI_BYTE, from, tag, g->comm, &wanted.request),
                     "MPI_Irecv"));
    memcpy(m, &wanted, sizeof(wanted));
    return EK_OK;
}

static ek_status mpi_test(void *self, ek_message *m, int *done)
{
    mpi_message message;
    MPI_Status status;
    int bytes;

    (void)self;
    memcpy(&message, m, sizeof(message));
    EK_TRY(check_mpi(MPI_Test(&message.request, done, &status), "MPI_Test"));
    memcpy(m, &message, sizeof(message));
    if (!*done || message.expected < 0)
        return EK_OK;
    EK_TRY(check_mpi(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count"));
    EK_REQUIRE(bytes == message.expected, EK_ECOMM,
               "a message of %d bytes was sent where %d bytes are expected", bytes,
               message.expected);
    return EK_OK;
}

/* --- groups ----------------------------------------------------------------------------------- */

static ek_status make_group(MPI_Comm parent, const int *ranks, int n, MPI_Comm *out)
{
    MPI_Group all = MPI_GROUP_NULL, some = MPI_GROUP_NULL;
    ek_status st;

    EK_TRY_OUT(check_mpi(MPI_Comm_group(parent, &all), "MPI_Comm_group"));
    EK_TRY_OUT(check_mpi(MPI_Group_incl(all, n, ranks, &some), "MPI_Group_incl"));
    EK_TRY_OUT(check_mpi(MPI_Comm_create_group(parent, some, 0, out), "MPI_Comm_create_group"));
    EK_TRY_OUT(
        check_mpi(MPI_Comm_set_errhandler(*out, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler"));
out:
    if (some != MPI_GROUP_NULL)
        MPI_Group_free(&some);
    if (all != MPI_GROUP_NULL)
        MPI_Group_free(&all);
    return st;
}

static ek_status mpi_make_group(void *self, const int *ranks, int n, void **out)
{
    const mpi_group *parent = self;
    mpi_group *g = calloc(1, sizeof(*g));
    ek_status st;

    EK_REQUIRE(g != NULL, EK_ENOMEM, "no memory for a group of %d ranks", n);
    st = make_group(parent->comm, ranks, n, &g->comm);
    if (st < 0) {
        free(g);
        return st;
    }
    *out = g;
    return EK_OK;
}

/* After a failure, unmatched messages may be in flight: MPI is not finalised. */
static void mpi_close(void *self, int failed)
{
    mpi_group *g = self;

    if (!failed) {
        MPI_Comm_free(&g->comm);
        if (g->finalise)
            ek_mpi_end(g->far);
    }
    free(g);
}

/* On MPI_COMM_WORLD: with another communicator MPICH ends only this process. */
static void mpi_abort(void *self, int status)
{
    (void)self;
    MPI_Abort(MPI_COMM_WORLD, status);
}

static const ek_backend backend = {
    .name = "mpi",
    .message_max = message_max,
    .send = mpi_send,
    .send_matched = mpi_send_matched,
    .recv = mpi_recv,
    .test = mpi_test,
    .group = mpi_make_group,
    .close = mpi_close,
    .abort = mpi_abort,
};

/* --- the world -------------------------------------------------------------------------------- */

/* MPI_THREAD_SERIALIZED: any thread may call, one at a time. */
static ek_status initialise_mpi(int *mine)
{
    int before = 0, level = 0;

    EK_TRY(check_mpi(MPI_Initialized(&before), "MPI_Initialized"));
    *mine = !before;
    if (before)
        EK_TRY(check_mpi(MPI_Query_thread(&level), "MPI_Query_thread"));
    else
        EK_TRY(check_mpi(MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level),
                         "MPI_Init_thread"));
    EK_REQUIRE(level >= MPI_THREAD_SERIALIZED, EK_EUNSUPPORTED,
               "this MPI can be called only by the thread that initialised it (thread level %d)",
               level);
    EK_TRY(check_mpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN),
                     "MPI_Comm_set_errhandler"));
    return EK_OK;
}

/* Whether this host has a network adapter with RDMA. */
static int has_rdma(void)
{
    static const char *const classes[] = {"/sys/class/infiniband", "/sys/class/cxi"};
    int found = 0;

    for (size_t i = 0; i < sizeof(classes) / sizeof(classes[0]) && !found; i++) {
        DIR *folder = opendir(classes[i]);
        struct dirent *entry;

        while (folder != NULL && !found && (entry = readdir(folder)) != NULL)
            found = entry->d_name[0] != '.';
        if (folder != NULL)
            closedir(folder);
    }
    return found;
}

/* Whether all ranks' hosts have RDMA, as all ranks must split messages alike. */
static ek_status all_have_rdma(MPI_Comm comm, int *all)
{
    int mine = has_rdma();

    return check_mpi(MPI_Allreduce(&mine, all, 1, MPI_INT, MPI_MIN, comm), "MPI_Allreduce");
}

static ek_status gather_hosts(MPI_Comm comm, int ranks, char (**hosts)[EK_HOST_CAP])
{
    char mine[EK_HOST_CAP] = "";

    gethostname(mine, sizeof(mine) - 1);
    *hosts = calloc((size_t)ranks, sizeof(**hosts));
    EK_REQUIRE(*hosts != NULL, EK_ENOMEM, "no memory for the names of %d ranks' hosts", ranks);
    EK_TRY(
        check_mpi(MPI_Allgather(mine, EK_HOST_CAP, MPI_CHAR, *hosts, EK_HOST_CAP, MPI_CHAR, comm),
                  "MPI_Allgather"));
    return EK_OK;
}

ek_status ek_mpi_open(const ek_mpi_host *host, ek_comm **world)
{
    mpi_group *g = calloc(1, sizeof(*g));
    char(*hosts)[EK_HOST_CAP] = NULL;
    int rank, ranks, rdma = 0;
    ek_status st;

    EK_REQUIRE(g != NULL, EK_ENOMEM, "no memory for the MPI world");
    EK_TRY_OUT(initialise_mpi(&g->finalise));
    EK_TRY_OUT(check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &g->comm), "MPI_Comm_dup"));
    EK_TRY_OUT(check_mpi(MPI_Comm_rank(g->comm, &rank), "MPI_Comm_rank"));
    EK_TRY_OUT(check_mpi(MPI_Comm_size(g->comm, &ranks), "MPI_Comm_size"));
    EK_TRY_OUT(gather_hosts(g->comm, ranks, &hosts));
    for (int r = 1; r < ranks; r++)
        g->far = g->far || strcmp(hosts[r], hosts[0]) != 0;
    EK_TRY_OUT(all_have_rdma(g->comm, &rdma));
    st = host->create(&backend, g, rank, ranks, (const char(*)[EK_HOST_CAP])hosts, world);
    g = NULL;
    if (st == EK_OK && !rdma)
        host->set_far_max(*world, socket_message_max);
out:
    free(hosts);
    free(g);
    return st;
}
