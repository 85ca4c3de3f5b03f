/* The public interface of evenkeel/job.h, and the division of a host's cores among its ranks. */
#include "evenkeel/job.h"

#include "base/entry.h"
#include "base/threads.h"
#include "comm/comm.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

ek_status ek_job_join(ek_comm **world)
{
    EK_C_LOCALE;

    EK_NOT_NULL(world);
    *world = NULL;
    return ek_comm_open(EK_COMM_MPI, world);
}

int ek_job_rank(const ek_comm *world)
{
    return world != NULL ? ek_comm_rank(world) : -1;
}

int ek_job_size(const ek_comm *world)
{
    return world != NULL ? ek_comm_size(world) : 0;
}

const char *ek_job_host(const ek_comm *world, int rank)
{
    if (world == NULL || rank < 0 || rank >= ek_comm_size(world))
        return "";
    return ek_comm_host(world, rank);
}

void ek_job_abort(ek_comm *world, int status)
{
    if (world != NULL)
        ek_comm_abort(world, status);
}

void ek_job_leave(ek_comm **world)
{
    if (world != NULL)
        ek_comm_close(world);
}

const char *ek_job_library(void)
{
    return ek_comm_library(EK_COMM_MPI);
}

const char *ek_job_launcher(void)
{
    return ek_comm_launcher();
}

/* The cores of one rank, gathered from all ranks. */
typedef struct {
    cpu_set_t mask;
    int usable; /* cores of the mask, limited by a quota */
} core_share;

/* Cores for this rank: its own if it is bound to cores, else an equal part of the shared mask. */
static int cores_of_rank(const ek_comm *world, const core_share *all)
{
    int rank = ek_comm_rank(world), ranks = 0, cores;
    cpu_set_t host;

    CPU_ZERO(&host);
    for (int r = 0; r < ek_comm_size(world); r++)
        if (ek_comm_node(world, r) == ek_comm_node(world, rank)) {
            CPU_OR(&host, &host, &all[r].mask);
            ranks++;
        }
    cores = CPU_COUNT(&host);
    if (all[rank].usable < CPU_COUNT(&all[rank].mask) && all[rank].usable < cores)
        cores = all[rank].usable; /* a CPU quota, shared by the ranks of the host */
    cores /= ranks;
    if (cores > all[rank].usable)
        cores = all[rank].usable;
    return cores > 0 ? cores : 1;
}

static ek_status count_cores(ek_comm *world, int *cores)
{
    int size = ek_comm_size(world), rank = ek_comm_rank(world);
    core_share *all = calloc((size_t)size, sizeof(*all));
    int64_t *first = calloc((size_t)size + 1, sizeof(*first));
    ek_coll *op = NULL;
    ek_status st = EK_OK;

    EK_REQUIRE_OUT(all != NULL && first != NULL, EK_ENOMEM, "no memory for %d ranks", size);
    for (int r = 0; r <= size; r++)
        first[r] = r;
    all[rank].usable = ek_cores_usable();
    if (sched_getaffinity(0, sizeof(all[rank].mask), &all[rank].mask) != 0)
        for (int i = 0; i < all[rank].usable && i < CPU_SETSIZE; i++)
            CPU_SET((size_t)i, &all[rank].mask);
    EK_TRY_OUT(ek_comm_all_gather(world, all, first, sizeof(*all), &op));
    EK_TRY_OUT(ek_coll_wait(&op));
    *cores = cores_of_rank(world, all);
out:
    free(all);
    free(first);
    return st;
}

ek_status ek_job_cores(ek_comm *world, int *cores)
{
    EK_C_LOCALE;

    EK_NOT_NULL(world);
    EK_NOT_NULL(cores);
    return count_cores(world, cores);
}
