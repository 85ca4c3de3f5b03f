/* Recorded worlds (comm/record.h): operations go on as their messages are let through, and not
 * before; multicasts and multireduces send each byte once to each rank, or from it. */
#include "comm/backend.h"
#include "comm/coll.h"
#include "comm/record.h"
#include "ek_test.h"

enum { RANKS_MOST = 64, LONG = 9 * EK_COLL_SEGMENT };

static char nowhere; /* buffers */

static void open_ranks(int n, ek_recorder **r)
{
    CHECK_INT(ek_record_open(n, r), EK_OK);
}

static void a_message_ends_when_it_is_let_through(void)
{
    ek_recorder *r = NULL;
    ek_coll *sends = NULL, *gets = NULL;
    ek_recorded m, other;

    open_ranks(2, &r);
    CHECK_INT(ek_comm_send(ek_record_world(r, 0), &nowhere, 100, 1, 5, &sends), EK_OK);
    CHECK(!ek_record_take(r, &other)); /* not before the receiver has called */
    CHECK_INT(ek_comm_recv(ek_record_world(r, 1), &nowhere, 100, 0, 5, &gets), EK_OK);
    CHECK(ek_record_take(r, &m) && m.from == 0 && m.to == 1 && m.bytes == 100);
    CHECK(!ek_record_take(r, &other));
    CHECK_INT(ek_coll_test(&sends), EK_PENDING);
    ek_record_left(r, m.id);
    CHECK_INT(ek_coll_test(&sends), EK_OK);
    CHECK_INT(ek_coll_test(&gets), EK_PENDING);
    ek_record_arrived(r, m.id);
    CHECK_INT(ek_coll_test(&gets), EK_OK);
    ek_record_close(&r);
}

/* A receive gets the oldest message of its pair, tag and group, whichever is called first. */
static void messages_match_by_group_and_tag(void)
{
    static const int both[] = {0, 1};
    ek_recorder *r = NULL;
    ek_comm *g[2] = {NULL, NULL};
    ek_coll *get[3], *put[3];
    ek_recorded m;

    open_ranks(2, &r);
    CHECK_INT(ek_record_group(r, "both", both, 2, g), EK_OK);
    CHECK_INT(ek_comm_recv(g[1], &nowhere, 10, 0, 1, &get[0]), EK_OK);
    CHECK_INT(ek_comm_send(ek_record_world(r, 0), &nowhere, 30, 1, 1, &put[2]), EK_OK);
    CHECK_INT(ek_comm_send(g[0], &nowhere, 20, 1, 2, &put[1]), EK_OK);
    CHECK_INT(ek_comm_send(g[0], &nowhere, 10, 1, 1, &put[0]), EK_OK);
    CHECK_INT(ek_comm_recv(g[1], &nowhere, 20, 0, 2, &get[1]), EK_OK);
    CHECK_INT(ek_comm_recv(ek_record_world(r, 1), &nowhere, 30, 0, 1, &get[2]), EK_OK);
    for (int bytes = 10; ek_record_take(r, &m); bytes += 10) {
        CHECK_INT(m.bytes, bytes);
        ek_record_left(r, m.id);
        ek_record_arrived(r, m.id);
    }
    for (int i = 0; i < 3; i++) {
        CHECK_INT(ek_coll_test(&get[i]), EK_OK);
        CHECK_INT(ek_coll_test(&put[i]), EK_OK);
    }
    CHECK_INT(ek_comm_send(g[0], &nowhere, 10, 1, 1, &put[0]), EK_OK);
    CHECK_INT(ek_comm_recv(g[1], &nowhere, 11, 0, 1, &get[0]), EK_ECOMM);
    CHECK(strstr(ek_err_message(), "10 bytes was sent where 11 bytes") != NULL);
    ek_comm_close(&g[0]);
    ek_comm_close(&g[1]);
    ek_record_close(&r);
}

/* Lets messages through until all n operations have ended; adds up what ranks send and get. */
static void run_to_end(ek_recorder *r, ek_coll **ops, int n, int64_t *sent, int64_t *got)
{
    ek_recorded m;
    int left = n, moved = 1;

    memset(sent, 0, RANKS_MOST * sizeof(*sent));
    memset(got, 0, RANKS_MOST * sizeof(*got));
    while (moved) {
        for (moved = 0; ek_record_take(r, &m); moved = 1) {
            sent[m.from] += m.bytes;
            got[m.to] += m.bytes;
            ek_record_left(r, m.id);
            ek_record_arrived(r, m.id);
        }
        for (int i = 0; i < n; i++)
            left -= ops[i] != NULL && ek_coll_test(&ops[i]) == EK_OK;
    }
    CHECK_INT(left, 0);
}

/* Over ranks n - 1, ..., 0: to all but the first of the list, from all but the first. */
static void replicas_and_their_gradients_pass_each_rank_once(void)
{
    static const int sizes[] = {2, 3, 7, 8, 64};
    static const int64_t bytes[] = {8, 1000, EK_COLL_SEGMENT, LONG, LONG + 8};

    for (int s = 0; s < 5; s++)
        for (int b = 0; b < 5; b++) {
            int n = sizes[s], list[RANKS_MOST];
            int64_t sent[RANKS_MOST], got[RANKS_MOST], sum = 0;
            ek_coll *ops[RANKS_MOST];
            ek_recorder *r = NULL;

            open_ranks(n, &r);
            for (int i = 0; i < n; i++)
                list[i] = n - 1 - i;
            for (int i = 0; i < n; i++)
                CHECK_INT(ek_comm_multicast(ek_record_world(r, i), &nowhere, bytes[b], list, n, 7,
                                            &ops[i]),
                          EK_OK);
            run_to_end(r, ops, n, sent, got);
            for (int i = 0; i < n; i++) {
                CHECK_INT(got[i], i < n - 1 ? bytes[b] : 0);
                if (bytes[b] >= LONG) /* a chain */
                    CHECK_INT(sent[i], i > 0 ? bytes[b] : 0);
                sum += sent[i];
            }
            CHECK_INT(sum, (n - 1) * bytes[b]);
            for (int i = 0; i < n; i++)
                CHECK_INT(ek_comm_multireduce(ek_record_world(r, i), &nowhere, bytes[b] / 4,
                                              EK_SUM_F32, list, n, 7, &ops[i]),
                          EK_OK);
            run_to_end(r, ops, n, sent, got);
            for (int i = 0; i < n; i++) {
                CHECK_INT(sent[i], i < n - 1 ? bytes[b] : 0);
                CHECK_INT(got[i], i > 0 ? bytes[b] : 0);
            }
            ek_record_close(&r);
        }
}

static const ek_case cases[] = {
    EK_CASE(a_message_ends_when_it_is_let_through),
    EK_CASE(messages_match_by_group_and_tag),
    EK_CASE(replicas_and_their_gradients_pass_each_rank_once),
};
EK_TEST_MAIN(cases)
