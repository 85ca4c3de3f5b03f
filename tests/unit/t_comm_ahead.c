/* Streams whose receivers are late: a sender is held back although its transport buffers messages,
 * and notices a peer that never comes. */
#include "comm/fault.h"
#include "comm_ahead.h"
#include "comm_threads.h"
#include "ek_test.h"

/* --- a transport that buffers ----------------------------------------------------------------- */

/* A message that is sent from a copy. */
typedef struct copied {
    struct copied *next;
    ek_message m;
    unsigned char bytes[];
} copied;

/* Around the back end of a rank: send is done at once. */
typedef struct {
    const ek_backend *inner;
    void *state;
    copied *list;
} buffering;

static ek_status buffer_send(void *self, const void *buf, int64_t bytes, int to, int tag,
                             ek_message *m)
{
    buffering *b = self;
    copied *c = malloc(sizeof(*c) + (size_t)bytes);

    EK_REQUIRE(c != NULL, EK_ENOMEM, "no memory for a message");
    c->next = b->list;
    b->list = c;
    if (bytes > 0)
        memcpy(c->bytes, buf, (size_t)bytes);
    m->handle[0] = NULL;
    return b->inner->send(b->state, c->bytes, bytes, to, tag, &c->m);
}

static ek_status buffer_send_matched(void *self, const void *buf, int64_t bytes, int to, int tag,
                                     ek_message *m)
{
    buffering *b = self;

    return b->inner->send(b->state, buf, bytes, to, tag, m);
}

static ek_status buffer_recv(void *self, void *buf, int64_t bytes, int from, int tag, ek_message *m)
{
    const buffering *b = self;

    return b->inner->recv(b->state, buf, bytes, from, tag, m);
}

static ek_status buffer_test(void *self, ek_message *m, int *done)
{
    const buffering *b = self;

    *done = 1;
    return m->handle[0] == NULL ? EK_OK : b->inner->test(b->state, m, done);
}

/* Once all messages have arrived: the inner back end drops what is sent and not received. */
static void buffer_close(void *self, int failed)
{
    buffering *b = self;

    for (copied *c = b->list; c != NULL && !failed; c = c->next)
        for (int done = 0; !done && b->inner->test(b->state, &c->m, &done) == EK_OK;)
            sched_yield();
    b->inner->close(b->state, failed);
    while (b->list != NULL) {
        copied *c = b->list;

        b->list = c->next;
        free(c);
    }
    free(b);
}

static void buffer_failed(void *self, const char *reason)
{
    const buffering *b = self;

    b->inner->failed(b->state, reason);
}

static const ek_backend buffering_backend = {
    .name = "buffering",
    .message_max = 1 << 30,
    .send = buffer_send,
    .send_matched = buffer_send_matched,
    .recv = buffer_recv,
    .test = buffer_test,
    .close = buffer_close,
    .failed = buffer_failed,
};

static void buffer(peer *p)
{
    buffering *b = calloc(1, sizeof(*b));

    EXPECT(p, b != NULL);
    ek_comm_decorate(p->world, &buffering_backend, b, &b->inner, &b->state);
}

/* With faults around it. */
static void buffer_and_delay(peer *p)
{
    ek_fault how = {.seed = 3, .delay = 0.1, .delay_tests = 5};

    buffer(p);
    MUST(p, ek_fault_wrap(p->world, &how));
}

/* --- cases ------------------------------------------------------------------------------------ */

static void a_sender_is_held_back(void)
{
    for (int ranks = 2; ranks <= 4; ranks++) {
        ek_t.failed += over(ranks, NULL, late_receivers, 0);
        ek_t.failed += over(ranks, buffer, late_receivers, 0);
        ek_t.failed += over(ranks, buffer_and_delay, late_receivers, 0);
    }
}

static void ranks_start_in_other_orders(void)
{
    for (int ranks = 2; ranks <= 8; ranks++) {
        ek_t.failed += over(ranks, NULL, opposite_orders, 1);
        ek_t.failed += over(ranks, buffer, opposite_orders, 1);
    }
    ek_t.failed += over(5, buffer_and_delay, opposite_orders, 1);
}

/* Rings in which all but some sends are done at once, in segments of 72 bytes. */
static void ring_of_tiny_segments(peer *p)
{
    enum { N = 80001 };
    float *buf = malloc(N * sizeof(*buf));

    use_short_segments(p);
    ek_comm_set_far_max(p->world, 72);
    for (int64_t i = 0; i < N; i++)
        store(EK_SUM_F32, buf, i, value_of(p->seed, p->rank, i));
    DO(p, ek_comm_all_reduce(p->world, buf, N, EK_SUM_F32, &op));
    EXPECT(p, wrong_elements(p, EK_SUM_F32, buf, 0, N) == 0);
    MUST(p, ek_comm_barrier(p->world));
    free(buf);
}

static void rings(void)
{
    for (int ranks = 2; ranks <= 8; ranks++)
        ek_t.failed += over(ranks, buffer, ring_of_tiny_segments, 4);
}

/* Rank 1 never receives: the watchdog ends the wait of rank 0 and names it. */
static void receiver_never_comes(peer *p)
{
    static const int list[] = {0, 1};
    unsigned char *buf = calloc(2 << 20, 1);
    ek_coll *stream = NULL;

    use_short_segments(p);
    if (p->rank == 0) {
        ek_comm_set_watchdog(p->world, 0.05);
        MUST(p, ek_comm_multicast(p->world, buf, 2 << 20, list, 2, 1, &stream));
        EXPECT(p, ek_coll_wait(&stream) == EK_ETIMEOUT);
        EXPECT(p, strstr(ek_err_message(), "rank 0 of 2 waits to send to rank 1 (") != NULL);
    }
    free(buf);
}

/* Rank 1 fails while rank 0 waits for it. */
static void receiver_fails(peer *p)
{
    static const int list[] = {0, 1};
    unsigned char *buf = calloc(2 << 20, 1);
    ek_coll *stream = NULL;
    char there = 0;

    use_short_segments(p);
    if (p->rank == 0) {
        MUST(p, ek_comm_multicast(p->world, buf, 2 << 20, list, 2, 1, &stream));
        DO(p, ek_comm_send(p->world, &there, 1, 1, 2, &op));
        EXPECT(p, ek_coll_wait(&stream) == EK_ECOMM);
        EXPECT(p, strstr(ek_err_message(), "rank 1 has failed: the disk is gone") != NULL);
    } else {
        DO(p, ek_comm_recv(p->world, &there, 1, 0, 2, &op));
        (void)EK_FAIL(EK_EIO, "the disk is gone");
        ek_comm_give_up(p->world);
    }
    free(buf);
}

static void a_receiver_that_is_gone_is_noticed(void)
{
    ek_t.failed += over(2, buffer, receiver_never_comes, 0);
    ek_t.failed += over(2, buffer, receiver_fails, 0);
}

static const ek_case cases[] = {
    EK_CASE(a_sender_is_held_back),
    EK_CASE(ranks_start_in_other_orders),
    EK_CASE(rings),
    EK_CASE(a_receiver_that_is_gone_is_noticed),
};

EK_TEST_MAIN(cases)
