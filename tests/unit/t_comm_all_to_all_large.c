/* The start of an all-to-all among 2,048 ranks, as rank 0 sees it: a back end that drops all
 * messages stands for the other ranks.  Checks which row counts are read and what is sent, and
 * prints the time of a start. */
#include "base/clock.h"
#include "comm/backend.h"
#include "ek_test.h"

#include <stdio.h>
#include <stdlib.h>

enum { RANKS = 2048, NODE = 8, NODES = RANKS / NODE, REPEATS = 9 };

/* --- the back end ----------------------------------------------------------------------------- */

static int64_t messages, bytes_sent, bytes_received;

static ek_status null_send(void *self, const void *buf, int64_t bytes, int to, int tag,
                           ek_message *m)
{
    (void)self, (void)buf, (void)to, (void)tag, (void)m;
    messages++;
    bytes_sent += bytes;
    return EK_OK;
}

static ek_status null_recv(void *self, void *buf, int64_t bytes, int from, int tag, ek_message *m)
{
    (void)self, (void)buf, (void)from, (void)tag, (void)m;
    bytes_received += bytes;
    return EK_OK;
}

static ek_status null_test(void *self, ek_message *m, int *done)
{
    (void)self, (void)m;
    *done = 1;
    return EK_OK;
}

static void null_close(void *self, int failed)
{
    (void)self, (void)failed;
}

static const ek_backend null_backend = {.name = "null",
                                        .message_max = INT64_MAX,
                                        .send = null_send,
                                        .recv = null_recv,
                                        .test = null_test,
                                        .close = null_close};

/* --- one start -------------------------------------------------------------------------------- */

typedef struct {
    ek_comm *world;
    int64_t *rows; /* [RANKS][RANKS] */
    unsigned char *send, *recv;
} fixture;

static int64_t rows_between(int from, int to)
{
    return (from * 7 + to * 3) % 5;
}

/* All counts that rank 0 need not read are negative: reading one is an error. */
static void setup(fixture *f)
{
    static char hosts[RANKS][EK_HOST_CAP];

    for (int r = 0; r < RANKS; r++)
        snprintf(hosts[r], sizeof(hosts[r]), "node%d", r / NODE);
    CHECK(ek_comm_create(&null_backend, NULL, 0, RANKS, (const char(*)[EK_HOST_CAP])hosts,
                         &f->world) == EK_OK);
    ek_comm_set_checked(f->world, 0); /* a checked world compares all counts */
    f->rows = malloc((size_t)RANKS * RANKS * sizeof(*f->rows));
    f->send = calloc(RANKS, 5);
    f->recv = calloc(RANKS, 5);
    CHECK(f->rows != NULL && f->send != NULL && f->recv != NULL);
    for (int i = 0; i < RANKS; i++)
        for (int j = 0; j < RANKS; j++)
            f->rows[i * RANKS + j] = i < NODE || j == 0 ? rows_between(i, j) : -1;
}

static void teardown(fixture *f)
{
    free(f->rows);
    free(f->send);
    free(f->recv);
    ek_comm_close(&f->world);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Starts and ends an all-to-all several times; prints the median time. */
static void exchange(fixture *f, ek_a2a how, const char *name)
{
    double ms[REPEATS];

    for (int i = 0; i < REPEATS; i++) {
        ek_coll *op;
        int64_t start = ek_clock_ns();

        messages = bytes_sent = bytes_received = 0;
        CHECK(ek_comm_all_to_all(f->world, how, f->rows, 1, f->send, f->recv, &op) == EK_OK);
        ms[i] = (double)(ek_clock_ns() - start) / 1e6;
        CHECK(ek_coll_wait(&op) == EK_OK);
    }
    qsort(ms, REPEATS, sizeof(*ms), by_size);
    printf("%s among %d ranks: %.3f ms to start (median of %d)\n", name, RANKS, ms[REPEATS / 2],
           REPEATS);
}

/* Rows from one rank to others and to it. */
static void own_rows(int64_t *out, int64_t *in, int64_t *receivers)
{
    *out = *in = *receivers = 0;
    for (int r = 1; r < RANKS; r++) {
        *out += rows_between(0, r);
        *in += rows_between(r, 0);
        *receivers += rows_between(0, r) > 0;
    }
}

static void linear_reads_one_row_and_column(void)
{
    int64_t out, in, receivers;
    fixture f;

    setup(&f);
    own_rows(&out, &in, &receivers);
    exchange(&f, EK_A2A_LINEAR, "linear");
    CHECK_INT(messages, receivers);
    CHECK_INT(bytes_sent, out);
    CHECK_INT(bytes_received, in);
    exchange(&f, EK_A2A_PAIRWISE, "pairwise");
    CHECK_INT(bytes_sent, out);
    teardown(&f);
}

/* Rank 0 forwards what its node sends to local rank 0 of the other nodes. */
static void hierarchical_reads_the_rows_of_its_node(void)
{
    int64_t out, in, receivers, forwarded = 0, to_gateways = 0, via = 0;
    fixture f;

    setup(&f);
    own_rows(&out, &in, &receivers);
    for (int to = NODE; to < RANKS; to++)
        for (int from = 0; from < NODE; from++) {
            forwarded += to % NODE == 0 ? rows_between(from, to) : 0;
            via += to % NODE == 0 && from > 0 ? rows_between(from, to) : 0;
            to_gateways += to % NODE > 0 && from == 0 ? rows_between(from, to) : 0;
        }
    for (int r = 1; r < NODE; r++)
        to_gateways += rows_between(0, r); /* rows within the node go directly */
    exchange(&f, EK_A2A_2DH, "2DH");
    CHECK_INT(bytes_sent, to_gateways + forwarded);
    CHECK_INT(bytes_received, in + via);
    CHECK(messages < 2 * NODE + NODES);
    teardown(&f);
}

static void a_negative_count_is_named(void)
{
    ek_coll *op;
    fixture f;

    setup(&f);
    f.rows[5] = -3;
    CHECK(ek_comm_all_to_all(f.world, EK_A2A_LINEAR, f.rows, 1, f.send, f.recv, &op) == EK_EINVAL);
    CHECK(strcmp(ek_err_message(),
                 "all_to_all on world: -3 rows of 1 bytes from rank 0 to rank 5") == 0);
    teardown(&f);
}

static const ek_case cases[] = {
    EK_CASE(linear_reads_one_row_and_column),
    EK_CASE(hierarchical_reads_the_rows_of_its_node),
    EK_CASE(a_negative_count_is_named),
};
EK_TEST_MAIN(cases)
