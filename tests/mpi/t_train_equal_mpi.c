/* Every layout trains to the same losses as one rank, over MPI.  Rank 0 reports. */
#include "equal_cases.h"

enum { LAYOUTS = 4 };

static void check(ek_comm *world, const equal_layout *l)
{
    static equal_result result[EQUAL_RANKS_MAX];
    int64_t first[EQUAL_RANKS_MAX + 1];
    int rank = ek_comm_rank(world);
    equal_leg leg = equal_whole(l);
    ek_coll *op = NULL;

    for (int i = 0; i <= l->ranks; i++)
        first[i] = i;
    equal_set_nodes(world, l);
    if (equal_train(world, l, &leg, &result[rank]) < 0) {
        EK_T_FAIL("%s: rank %d: %s", equal_text(l), rank, ek_err_text());
        ek_comm_abort(world, 1); /* the others wait for this one */
    }
    equal_compare(l, &leg, &result[rank]);
    CHECK(ek_comm_all_gather(world, result, first, sizeof(result[0]), &op) == EK_OK);
    CHECK(ek_coll_wait(&op) == EK_OK);
    if (rank == 0)
        equal_shares(l, result);
}

int main(int argc, char **argv)
{
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 2;
    ek_comm *world = NULL;
    int ranks;

    alarm(600);
    if (ek_comm_open(EK_COMM_MPI, &world) < 0) {
        fprintf(stderr, "%s\n", ek_err_text());
        return 1;
    }
    ranks = ek_comm_size(world);
    for (int i = 0; i < LAYOUTS; i++) {
        equal_layout l = equal_draw(seed, ranks, i);

        check(world, &l);
    }
    if (ek_comm_rank(world) == 0)
        printf("%s, %d ranks: %d layouts, %s\n", ek_comm_library(EK_COMM_MPI), ranks, LAYOUTS,
               ek_t.failed > 0 ? "FAIL" : "ok");
    ek_comm_close(&world);
    return ek_t.failed > 0;
}
