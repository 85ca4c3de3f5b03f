/* Collectives over ranks that are threads: every case with 1 to 8 ranks, with whole_messages and
 * with split messages; and failures. */
#include "comm/backend.h"
#include "comm_segments.h"
#include "comm_threads.h"
#include "ek_test.h"

static void whole_messages(void)
{
    for (int ranks = 1; ranks <= 8; ranks++)
        ek_t.failed += over_cases(ranks, NULL);
}

static void small_messages(peer *p)
{
    ek_comm_set_message_max(p->world, 808);
}

static void split_messages(void)
{
    for (int ranks = 2; ranks <= 5; ranks++)
        ek_t.failed += over_cases(ranks, small_messages);
}

static void short_to_other_nodes(peer *p)
{
    ek_comm_set_far_max(p->world, 72);
}

static void split_far_messages(void)
{
    for (int ranks = 2; ranks <= 5; ranks++)
        ek_t.failed += over_cases(ranks, short_to_other_nodes);
}

/* --- failures --------------------------------------------------------------------------------- */

/* Sender and receiver give different lengths: an error on every rank, and in every later
 * operation. */
static void wrong_length(peer *p)
{
    char buf[64] = "";
    ek_coll *op = NULL, *other = NULL;
    ek_status st;

    st = ek_comm_recv(p->world, buf + 32, 5, (p->rank + 1) % p->size, 9, &other);
    if (st == EK_OK)
        st = p->rank == 0 ? ek_comm_send(p->world, buf, 16, 1, 3, &op)
                          : ek_comm_recv(p->world, buf, p->rank == 1 ? 17 : 16, 0, 3, &op);
    while (st == EK_OK && op != NULL)
        st = ek_coll_wait(&op);
    EXPECT(p, st == EK_ECOMM);
    EXPECT(p, p->rank != 1 || strstr(ek_err_message(), "recv on world") != NULL ||
                  strstr(ek_err_message(), "rank 0 has failed") != NULL);
    EXPECT(p, ek_comm_all_reduce(p->world, buf, 1, EK_SUM_F32, &op) == EK_ECOMM);
    EXPECT(p, ek_comm_barrier(p->world) == EK_ECOMM);
}

static void failure(void)
{
    ek_t.failed += over(3, NULL, wrong_length, 0);
}

/* Rank 1 describes what it waits for, then lets rank 0 send it. */
static void describe_waits(peer *p)
{
    char text[256], buf[8] = "", go[1] = "";
    ek_coll *recv = NULL, *sum = NULL;
    int64_t one = 1;

    if (p->rank == 0) {
        DO(p, ek_comm_recv(p->world, go, 1, 1, 6, &op));
        DO(p, ek_comm_send(p->world, buf, 8, 1, 5, &op));
        DO(p, ek_comm_all_reduce(p->world, &one, 1, EK_SUM_I64, &op));
        return;
    }
    MUST(p, ek_comm_recv(p->world, buf, 8, 0, 5, &recv));
    ek_coll_describe(recv, text, sizeof(text));
    EXPECT(p, strstr(text, "recv on world: rank 1 of 2 waits for rank 0 (") == text);
    EXPECT(p, strstr(text, "), 8 bytes") != NULL);
    MUST(p, ek_comm_all_reduce(p->world, &one, 1, EK_SUM_I64, &sum));
    ek_coll_describe(sum, text, sizeof(text));
    EXPECT(p, strstr(text, "all_reduce on world: rank 1 of 2 waits for rank 0 (") == text);
    EXPECT(p, strstr(text, "called at ") != NULL && strstr(text, "t_comm_collectives.c:") != NULL);
    DO(p, ek_comm_send(p->world, go, 1, 0, 6, &op));
    MUST(p, ek_coll_wait(&sum));
    MUST(p, ek_coll_wait(&recv));
    EXPECT(p, one == 2);
}

static void set_unchecked(peer *p)
{
    ek_comm_set_checked(p->world, 0);
}

static void describe(void)
{
    ek_t.failed += over(2, set_unchecked, describe_waits, 0);
}

/* Rank 0 never sends: the watchdog ends the wait of rank 2, and the error names rank 0 by its rank
 * in the group and in the world. */
static void never_comes(peer *p)
{
    static const int ranks[] = {2, 0};
    ek_comm *pair = NULL;
    ek_coll *recv = NULL;
    char buf[8];

    if (p->rank == 1)
        return;
    MUST(p, ek_comm_group(p->world, "pair", ranks, 2, &pair));
    if (p->rank == 2) {
        ek_comm_set_watchdog(p->world, 0.05);
        MUST(p, ek_comm_recv(pair, buf, 8, 1, 5, &recv));
        EXPECT(p, ek_coll_wait(&recv) == EK_ETIMEOUT && recv == NULL);
        EXPECT(p, strstr(ek_err_message(), "nothing has moved for ") == ek_err_message());
        EXPECT(p, strstr(ek_err_message(), "recv on pair: rank 0 of 2 waits for rank 1 (") != NULL);
        EXPECT(p, strstr(ek_err_message(), ", rank 0 of all), 8 bytes") != NULL);
        EXPECT(p, ek_comm_barrier(p->world) == EK_ETIMEOUT); /* the world has failed */
    }
    ek_comm_close(&pair);
}

static void watchdog(void)
{
    ek_t.failed += over(3, NULL, never_comes, 0);
}

/* After ek_comm_give_up, every call fails with the reason. */
static void gives_up(peer *p)
{
    (void)EK_FAIL(EK_EIO, "the disk is gone");
    ek_comm_give_up(p->world);
    (void)EK_FAIL(EK_EIO, "something else");
    EXPECT(p, ek_comm_barrier(p->world) < 0);
    EXPECT(p, strstr(ek_err_message(), "the disk is gone") != NULL);
}

static void given_up(void)
{
    ek_t.failed += over(2, NULL, gives_up, 0);
}

/* --- progress --------------------------------------------------------------------------------- */

/* A back end around that of rank 0, which counts tests of messages and sees how long they are. */
static struct {
    const ek_backend *inner;
    void *state;
    int tests;
    int64_t longest;
} counted;

static ek_status counted_send(void *self, const void *buf, int64_t bytes, int to, int tag,
                              ek_message *m)
{
    (void)self;
    counted.longest = bytes > counted.longest ? bytes : counted.longest;
    return counted.inner->send(counted.state, buf, bytes, to, tag, m);
}

static ek_status counted_recv(void *self, void *buf, int64_t bytes, int from, int tag,
                              ek_message *m)
{
    (void)self;
    return counted.inner->recv(counted.state, buf, bytes, from, tag, m);
}

static ek_status counted_test(void *self, ek_message *m, int *done)
{
    (void)self;
    counted.tests++;
    return counted.inner->test(counted.state, m, done);
}

static void counted_close(void *self, int failed)
{
    (void)self;
    counted.inner->close(counted.state, failed);
}

static void count_messages(peer *p)
{
    static const ek_backend counting = {.name = "counting",
                                        .message_max = 1 << 20,
                                        .send = counted_send,
                                        .recv = counted_recv,
                                        .test = counted_test,
                                        .close = counted_close};

    if (p->rank == 0)
        ek_comm_decorate(p->world, &counting, NULL, &counted.inner, &counted.state);
}

enum { PENDING = 8 };

/* Rank 0 waits for messages that rank 1 sends when it is told to. */
static void test_in_turn(peer *p)
{
    ek_coll *ops[PENDING] = {NULL};
    int64_t got[PENDING];
    char go[1] = "";
    int left = PENDING;

    if (p->rank == 1) {
        DO(p, ek_comm_recv(p->world, go, 1, 0, PENDING, &op));
        for (int64_t i = 0; i < PENDING; i++)
            DO(p, ek_comm_send(p->world, &i, sizeof(i), 0, (int)i, &op));
        return;
    }
    for (int i = 0; i < PENDING; i++)
        MUST(p, ek_comm_recv(p->world, &got[i], sizeof(got[i]), 1, i, &ops[i]));
    counted.tests = 0;
    for (int turn = 1; turn <= 3; turn++) {
        for (int i = 0; i < PENDING; i++)
            EXPECT(p, ek_coll_test(&ops[i]) == EK_PENDING);
        EXPECT(p, counted.tests == turn * PENDING);
    }
    EXPECT(p, ek_coll_test(&ops[2]) == EK_PENDING); /* each test of one alone advances it */
    EXPECT(p, ek_coll_test(&ops[2]) == EK_PENDING);
    EXPECT(p, counted.tests == 5 * PENDING);
    DO(p, ek_comm_send(p->world, go, 1, 1, PENDING, &op));
    while (left > 0)
        for (int i = 0; i < PENDING; i++)
            left -= ops[i] != NULL && ek_coll_test(&ops[i]) == EK_OK;
    for (int i = 0; i < PENDING; i++)
        EXPECT(p, got[i] == i);
}

/* Tests of several operations in turn advance each of them once a turn, not once for each test. */
static void a_turn_of_tests_advances_each_operation_once(void)
{
    ek_t.failed += over(2, count_messages, test_in_turn, 0);
}

static void split_far_segments(void)
{
    for (int ranks = 2; ranks <= 5; ranks++)
        ek_t.failed += over(ranks, NULL, compare_segments, 0);
}

/* Sends a vector of 3 MiB over two ranks of this node or of two, which send 16 KiB at most. */
static void send_long_vectors(peer *p)
{
    static const int nodes[2][2] = {{0, 0}, {0, 1}};
    static const int list[] = {0, 1};
    float *buf = calloc(786432, sizeof(*buf));

    ek_comm_set_far_max(p->world, 16 << 10);
    for (int far = 0; far < 2; far++) {
        int64_t longest = far ? 16 << 10 : 256 << 10;

        ek_comm_set_nodes(p->world, nodes[far]);
        if (p->rank == 0)
            counted.longest = 0;
        DO(p, ek_comm_all_reduce(p->world, buf, 786432, EK_SUM_F32, &op));
        EXPECT(p, p->rank != 0 || counted.longest == longest);
        DO(p, ek_comm_multicast(p->world, buf, 3 << 20, list, 2, 1, &op));
        EXPECT(p, p->rank != 0 || counted.longest == longest);
    }
    free(buf);
}

/* Segments are as long as one message between the ranks that they pass. */
static void lengths_of_segments(void)
{
    ek_t.failed += over(2, count_messages, send_long_vectors, 0);
}

/* The same cases in a world of one rank, which has its own back end. */
static void self(void)
{
    for (size_t i = 0; i < sizeof(comm_cases) / sizeof(comm_cases[0]); i++) {
        peer p = {.size = 1};

        CHECK(ek_comm_open(EK_COMM_SELF, &p.world) == EK_OK);
        CHECK_INT(ek_comm_size(p.world), 1);
        comm_cases[i].run(&p);
        ek_comm_close(&p.world);
        CHECK(p.world == NULL);
        ek_t.failed += p.failed;
    }
}

static const ek_case cases[] = {
    EK_CASE(whole_messages),
    EK_CASE(split_messages),
    EK_CASE(split_far_messages),
    EK_CASE(split_far_segments),
    EK_CASE(lengths_of_segments),
    EK_CASE(failure),
    EK_CASE(describe),
    EK_CASE(watchdog),
    EK_CASE(given_up),
    EK_CASE(self),
    EK_CASE(a_turn_of_tests_advances_each_operation_once),
};

EK_TEST_MAIN(cases)
