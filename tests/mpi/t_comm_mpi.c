/* The cases of comm_cases.h over MPI, with whole and with split messages; sums in segments of both
 * lengths; and late receivers.  Rank 0 reports. */
#include "comm_ahead.h"
#include "comm_segments.h"

#include <unistd.h>

/* Number of failed checks over all ranks. */
static int agree(ek_comm *world, int mine)
{
    int64_t all = mine;
    ek_coll *op = NULL;

    if (ek_comm_all_reduce(world, &all, 1, EK_SUM_I64, &op) < 0 || ek_coll_wait(&op) < 0) {
        fprintf(stderr, "%s\n", ek_err_text());
        return 1;
    }
    return (int)all;
}

static int run_all(ek_comm *world, int rank, const char *only)
{
    int failed = 0;

    for (size_t i = 0; i < sizeof(comm_cases) / sizeof(comm_cases[0]); i++) {
        peer p = {.world = world, .rank = rank, .size = ek_comm_size(world)};
        int wrong;

        if (only != NULL && strcmp(only, comm_cases[i].name) != 0)
            continue;
        comm_cases[i].run(&p);
        wrong = agree(world, p.failed);
        failed += wrong;
        if (rank == 0)
            printf("%s %s\n", wrong ? "FAIL" : "ok  ", comm_cases[i].name);
    }
    return failed;
}

int main(int argc, char **argv)
{
    const char *only = argc > 1 ? argv[1] : NULL;
    ek_comm *world = NULL;
    int failed, rank;
    peer over_nodes;

    alarm(600);
    if (ek_comm_open(EK_COMM_MPI, &world) < 0) {
        fprintf(stderr, "%s\n", ek_err_text());
        return 1;
    }
    rank = ek_comm_rank(world);
    over_nodes = (peer){.world = world, .rank = rank, .size = ek_comm_size(world)};
    if (rank == 0)
        printf("%s, %d ranks on %s\n", ek_comm_library(EK_COMM_MPI), ek_comm_size(world),
               ek_comm_host(world, 0));
    failed = run_all(world, rank, only);
    ek_comm_set_message_max(world, 808);
    failed += run_all(world, rank, only);
    compare_segments(&over_nodes);
    late_receivers(&over_nodes);
    for (over_nodes.seed = 1; over_nodes.seed <= 5; over_nodes.seed++)
        opposite_orders(&over_nodes);
    failed += agree(world, over_nodes.failed);
    ek_comm_close(&world);
    return failed > 0;
}
