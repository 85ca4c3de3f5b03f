/* comm_ahead.h - streams whose receivers are late, or start operations in another order, for any
 * back end. */
#ifndef COMM_AHEAD_H
#define COMM_AHEAD_H

#include "comm_cases.h"

enum { AHEAD_SEGMENT = 16 << 10, AHEAD_MOST = 39 * AHEAD_SEGMENT, AHEAD_POLLS = 3000 };

/* All ranks are on nodes of their own, and segments short; the world is left so, and unchecked. */
static inline void use_short_segments(const peer *p)
{
    int apart[64];

    for (int r = 0; r < p->size; r++)
        apart[r] = r;
    ek_comm_set_checked(p->world, 0);
    ek_comm_set_nodes(p->world, apart);
    ek_comm_set_message_max(p->world, 1 << 30);
    ek_comm_set_far_max(p->world, AHEAD_SEGMENT);
}

/* Rank 0 sends a long vector along the chain of all ranks; the others start only when it tells them
 * to, after many tests.  Until then it has sent AHEAD_MOST bytes at most. */
static inline void late_receivers(peer *p)
{
    enum { BYTES = 4 << 20 };
    unsigned char *buf = calloc(BYTES, 1);
    int64_t before = ek_comm_bytes_sent(p->world);
    ek_coll *stream = NULL;
    int list[64];
    char go = 0;

    use_short_segments(p);
    for (int r = 0; r < p->size; r++)
        list[r] = r;
    if (p->rank != 0)
        DO(p, ek_comm_recv(p->world, &go, 1, 0, 1, &op));
    for (int64_t i = 0; i < BYTES && p->rank == 0; i++)
        buf[i] = byte_of(7, i);
    MUST(p, ek_comm_multicast(p->world, buf, BYTES, list, p->size, 2, &stream));
    if (p->rank == 0) {
        for (int i = 0; i < AHEAD_POLLS && stream != NULL; i++) {
            MUST(p, ek_coll_test(&stream));
            sched_yield();
        }
        EXPECT(p, stream != NULL);
        EXPECT(p, ek_comm_bytes_sent(p->world) - before <= AHEAD_MOST);
        for (int r = 1; r < p->size; r++)
            DO(p, ek_comm_send(p->world, &go, 1, r, 1, &op));
    }
    if (stream != NULL)
        MUST(p, ek_coll_wait(&stream));
    EXPECT(p, wrong_bytes(7, buf, BYTES) == 0);
    MUST(p, ek_comm_barrier(p->world));
    free(buf);
}

/* Two sums over chains in opposite directions, longer than what is sent ahead: ranks start them in
 * different orders, and the second one after tests of the first. */
static inline void opposite_orders(peer *p)
{
    enum { N = 250000, FIRST_TESTS = 50 };
    float *buf[2] = {malloc(N * sizeof(float)), malloc(N * sizeof(float))};
    ek_coll *sum[2] = {NULL, NULL};
    int list[2][64], first = p->rank % 2;

    use_short_segments(p);
    for (int r = 0; r < p->size; r++)
        list[0][r] = list[1][p->size - 1 - r] = r;
    for (int s = 0; s < 2; s++)
        for (int64_t i = 0; i < N; i++)
            buf[s][i] = (float)value_of(p->seed + (uint64_t)s, p->rank, i);
    for (int k = 0; k < 2; k++) {
        int s = k == 0 ? first : 1 - first;

        MUST(p, ek_comm_multireduce(p->world, buf[s], N, EK_SUM_F32, list[s], p->size, s, &sum[s]));
        for (int i = 0; i < FIRST_TESTS && k == 0 && sum[s] != NULL; i++)
            MUST(p, ek_coll_test(&sum[s]));
    }
    for (int k = 0; k < 2; k++) {
        int s = k == 0 ? 1 - first : first;
        int64_t wrong = 0;

        if (sum[s] != NULL)
            MUST(p, ek_coll_wait(&sum[s]));
        for (int64_t i = 0; i < N && p->rank == list[s][0]; i++)
            wrong += load(EK_SUM_F32, buf[s], i) !=
                     expected_of(p->seed + (uint64_t)s, NULL, p->size, EK_SUM_F32, i);
        EXPECT(p, wrong == 0);
    }
    MUST(p, ek_comm_barrier(p->world));
    free(buf[0]);
    free(buf[1]);
}

#endif
