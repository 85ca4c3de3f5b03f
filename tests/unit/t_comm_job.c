/* The public interface of a job: ranks on one host divide its cores. */
#include "evenkeel/job.h"

#include "base/threads.h"
#include "comm/comm.h"
#include "ek_test.h"

#include <pthread.h>
#include <sched.h>

enum { RANKS = 3 };

typedef struct {
    pthread_t thread;
    ek_comm *world;
    const int *node_of; /* NULL: one node */
    int alone;          /* bound to one core each, different ones if there are enough */
    int cores;
    ek_status st;
} peer;

/* Core `n` (from 0) of those that this thread may use. */
static void bind_to(int n)
{
    cpu_set_t all, one;
    int cpu = 0;

    CPU_ZERO(&one);
    sched_getaffinity(0, sizeof(all), &all);
    for (n %= CPU_COUNT(&all);; cpu++)
        if (CPU_ISSET((size_t)cpu, &all) && n-- == 0)
            break;
    CPU_SET((size_t)cpu, &one);
    CHECK(sched_setaffinity(0, sizeof(one), &one) == 0);
}

static void *ask_rank(void *arg)
{
    peer *p = arg;

    if (p->node_of != NULL)
        ek_comm_set_nodes(p->world, p->node_of);
    if (p->alone)
        bind_to(ek_job_rank(p->world));
    p->st = ek_job_cores(p->world, &p->cores);
    return NULL;
}

/* cores [RANKS]: the result of ek_job_cores on each rank. */
static void ask_all(const int *node_of, int alone, int *cores)
{
    ek_comm *worlds[RANKS];
    peer peers[RANKS];

    CHECK_INT(ek_comm_open_threads(RANKS, worlds), EK_OK);
    for (int r = 0; r < RANKS; r++) {
        peers[r] = (peer){.world = worlds[r], .node_of = node_of, .alone = alone};
        CHECK(pthread_create(&peers[r].thread, NULL, ask_rank, &peers[r]) == 0);
    }
    for (int r = 0; r < RANKS; r++) {
        pthread_join(peers[r].thread, NULL);
        CHECK_INT(peers[r].st, EK_OK);
        cores[r] = peers[r].cores;
        ek_job_leave(&worlds[r]);
    }
}

static int share(int ranks)
{
    int cores = ek_cores_usable() / ranks;

    return cores > 0 ? cores : 1;
}

static void one_host(void)
{
    int cores[RANKS];

    ask_all(NULL, 0, cores);
    for (int r = 0; r < RANKS; r++)
        CHECK_INT(cores[r], share(RANKS));
}

static void two_hosts(void)
{
    static const int node_of[RANKS] = {0, 1, 0};
    int cores[RANKS];

    ask_all(node_of, 0, cores);
    CHECK_INT(cores[0], share(2));
    CHECK_INT(cores[1], share(1));
    CHECK_INT(cores[2], share(2));
}

/* A rank bound to one core gets one. */
static void bound(void)
{
    static const int node_of[RANKS] = {0, 1, 2};
    int cores[RANKS];

    ask_all(node_of, 1, cores);
    for (int r = 0; r < RANKS; r++)
        CHECK_INT(cores[r], 1);
}

static void alone(void)
{
    ek_comm *world = NULL;
    int cores = 0;

    CHECK_INT(ek_comm_open(EK_COMM_SELF, &world), EK_OK);
    CHECK_INT(ek_job_size(world), 1);
    CHECK_INT(ek_job_rank(world), 0);
    CHECK_INT(ek_job_cores(world, &cores), EK_OK);
    CHECK_INT(cores, ek_cores_usable());
    ek_job_leave(&world);
    CHECK(world == NULL);
    ek_job_leave(&world);
}

/* A program linked without MPI, as this one, gets EK_EUNSUPPORTED. */
static void no_mpi(void)
{
    ek_comm *world = NULL;

    CHECK_INT(ek_job_join(&world), EK_EUNSUPPORTED);
    CHECK(world == NULL);
    CHECK(strcmp(ek_job_library(), "none") == 0);
    CHECK(strcmp(ek_job_launcher(), "") == 0);
}

static const ek_case cases[] = {
    EK_CASE(one_host), EK_CASE(two_hosts), EK_CASE(bound), EK_CASE(alone), EK_CASE(no_mpi),
};

EK_TEST_MAIN(cases)
