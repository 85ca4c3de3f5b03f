/* Checked worlds: the same call on all ranks passes; different calls fail with both sites. */
#include "comm_threads.h"
#include "ek_test.h"

static void set_checked(peer *p)
{
    ek_comm_set_checked(p->world, 1);
}

static void same_calls(void)
{
    for (int ranks = 1; ranks <= 4; ranks++)
        ek_t.failed += over_cases(ranks, set_checked);
}

enum {
    OPERATION,
    SIZE,
    TYPE,
    RUNS,
    ROOT,
    ALGORITHM,
    ROWS,
    MULTICAST,
    MULTIREDUCE,
    KIND,
    LIST,
    BARRIER,
    WAYS
};

static const char *const sites[3] = {"layer/a.c:1", "layer/b.c:22", "layer/c.c:333"};

/* Rank 1 (odd) makes another call than ranks 0 and 2. */
static ek_status call(const peer *p, int way, int odd, int64_t *buf, ek_coll **op)
{
    static const int64_t first[2][4] = {{0, 1, 2, 3}, {0, 1, 1, 3}};
    static const int64_t rows[2][9] = {{0}, {0, 1}};
    static const int ranks[3] = {0, 1, 2};
    const char *site = sites[p->rank];
    ek_comm *c = p->world;

    switch (way) {
    case OPERATION:
        return odd ? ek_comm_broadcast_at(c, buf, 8, 0, op, site)
                   : ek_comm_all_reduce_at(c, buf, 1, EK_SUM_I64, op, site);
    case SIZE: return ek_comm_all_reduce_at(c, buf, 6 + odd, EK_SUM_I64, op, site);
    case TYPE: return ek_comm_all_reduce_at(c, buf, 6, odd ? EK_MAX_I64 : EK_SUM_I64, op, site);
    case RUNS: return ek_comm_all_gather_at(c, buf, first[odd], 8, op, site);
    case ROOT: return ek_comm_broadcast_at(c, buf, 8, odd, op, site);
    case ALGORITHM:
        return ek_comm_all_to_all_at(c, odd ? EK_A2A_PAIRWISE : EK_A2A_LINEAR, rows[0], 8, buf,
                                     buf + 32, op, site);
    case ROWS: return ek_comm_all_to_all_at(c, EK_A2A_2DH, rows[odd], 8, buf, buf + 32, op, site);
    case MULTICAST: return ek_comm_multicast_at(c, buf, 8 + 8 * odd, ranks, 3, 4, op, site);
    case MULTIREDUCE:
        return ek_comm_multireduce_at(c, buf, 6 + odd, EK_SUM_I64, ranks, 3, 4, op, site);
    case KIND:
        return ek_comm_multireduce_at(c, buf, 6, odd ? EK_SUM_F64 : EK_SUM_I64, ranks, 3, 4, op,
                                      site);
    case LIST: /* rank 0 is listed before rank 1 in both */
        return ek_comm_multireduce_at(c, buf, 6, EK_SUM_I64, ranks, 3 - odd, 4, op, site);
    default: return odd ? ek_comm_barrier(c) : ek_comm_all_gather_at(c, buf, first[0], 8, op, site);
    }
}

/* The rank after the odd one detects the mismatch; the others fail with it. */
static void one_difference(peer *p)
{
    int64_t buf[64] = {0};
    ek_coll *op = NULL;
    ek_status st = call(p, (int)p->seed, p->rank == 1, buf, &op);
    const char *message = ek_err_message();

    if (st == EK_OK && op != NULL)
        st = ek_coll_wait(&op);
    if (p->rank == 0 && (p->seed == ALGORITHM || p->seed == ROWS) && st == EK_OK)
        return; /* nothing is sent, so it may finish before rank 2 detects the mismatch */
    EXPECT(p, st == EK_ECOMM);
    EXPECT(p, strstr(message, "ranks of world make different calls: rank ") != NULL);
    EXPECT(p, p->seed == BARRIER || strstr(message, sites[1]) != NULL);
    EXPECT(p, strstr(message, "rank 1 ") != NULL);
    EXPECT(p, (strstr(message, sites[0]) != NULL && strstr(message, "rank 0 ") != NULL) ||
                  (strstr(message, sites[2]) != NULL && strstr(message, "rank 2 ") != NULL));
}

static void different_calls(void)
{
    for (uint64_t way = 0; way < WAYS; way++) {
        int wrong = over(3, set_checked, one_difference, way);

        if (wrong > 0)
            fprintf(stderr, "way %d to differ\n", (int)way);
        ek_t.failed += wrong;
    }
}

/* The lists of ranks 0 and 1 differ only in the third rank: rank 1 detects it. */
static void third_differs(peer *p)
{
    const int ranks[3] = {0, 1, 2 + p->rank};
    int64_t buf[6] = {0};
    ek_coll *op = NULL;
    ek_status st = EK_OK;

    if (p->rank > 1)
        return;
    if (p->seed == 0)
        st = ek_comm_multireduce(p->world, buf, 6, EK_SUM_I64, ranks, 3, 4, &op);
    else
        st = ek_comm_multicast(p->world, buf, 48, ranks, 3, 4, &op);
    if (st == EK_OK)
        st = ek_coll_wait(&op);
    EXPECT(p, st == EK_ECOMM);
    EXPECT(p, strstr(ek_err_message(), "ranks of world make different calls: rank 0 ") != NULL);
}

static void different_lists(void)
{
    for (uint64_t multicast = 0; multicast < 2; multicast++)
        ek_t.failed += over(4, set_checked, third_differs, multicast);
}

/* An operation first waits for the neighbour's call, then for data. */
static void describe_unmade_call(peer *p)
{
    char text[256];
    int64_t one = 1;
    ek_coll *sum = NULL;

    if (p->rank == 0) {
        DO(p, ek_comm_recv(p->world, &one, 8, 1, 6, &op));
        DO(p, ek_comm_all_reduce(p->world, &one, 1, EK_SUM_I64, &op));
        return;
    }
    MUST(p, ek_comm_all_reduce(p->world, &one, 1, EK_SUM_I64, &sum));
    ek_coll_describe(sum, text, sizeof(text));
    EXPECT(p, strstr(text, "all_reduce on world: rank 1 of 2 waits for rank 0 (") == text);
    EXPECT(p, strstr(text, ") to make this call, called at ") != NULL);
    DO(p, ek_comm_send(p->world, &one, 8, 0, 6, &op));
    MUST(p, ek_coll_wait(&sum));
    EXPECT(p, one == 2);
}

static void describe(void)
{
    ek_t.failed += over(2, set_checked, describe_unmade_call, 0);
}

static const ek_case cases[] = {
    EK_CASE(same_calls),
    EK_CASE(different_calls),
    EK_CASE(different_lists),
    EK_CASE(describe),
};

EK_TEST_MAIN(cases)
