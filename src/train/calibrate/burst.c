/* Measures what links between nodes let pass at once after a pause, which links that are limited by
 * a bucket of tokens do: the first of some all-to-alls in a row, after a pause, is as much faster
 * than the others. */
#include "base/clock.h"
#include "base/sort.h"
#include "comm/agree.h"
#include "train/calibrate/calibrate_priv.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    CALLS = 4, /* in a row */
    REPEATS = 5,
    REPEATS_LEAST = 3,
    PAUSE_MS = 20,
    BYTES_LEAST = 128 << 10, /* of a rank to others of its class */
    BYTES_MOST = 8 << 20
};

#define CALL_S  0.01
#define LEAST   0.05 /* of a call: less is noise */
#define TOTAL_S 0.25 /* unless the least repeats take longer */

typedef struct {
    ek_calibration *c;
    int64_t *rows; /* [ranks][ranks] bytes */
    unsigned char *send, *recv;
    double sent; /* bytes of a rank, the most of any */
} bench;

static int is_far(const ek_calibration *c, int a, int b)
{
    return ek_calibrate_node(c, a) != ek_calibrate_node(c, b);
}

/* Bytes for each rank of another node, the same on all ranks. */
static int64_t choose_bytes(const ek_calibration *c, int most)
{
    const ek_cost_table *t = &c->m->link[EK_LINK_NET].message;
    double bytes = CALL_S / most * t->x[t->n - 1] / t->y[t->n - 1];

    return (int64_t)fmin(fmax(bytes, (double)BYTES_LEAST / most), (double)BYTES_MOST / most);
}

static ek_status open_bench(bench *b)
{
    const ek_calibration *c = b->c;
    int most = 0;
    int64_t each;

    for (int i = 0; i < c->ranks; i++) {
        int n = 0;

        for (int j = 0; j < c->ranks; j++)
            n += is_far(c, i, j);
        most = n > most ? n : most;
    }
    each = choose_bytes(c, most);
    b->sent = (double)(each * most);
    b->rows = calloc((size_t)c->ranks * (size_t)c->ranks, sizeof(*b->rows));
    b->send = malloc((size_t)(each * most) + 1);
    b->recv = malloc((size_t)(each * most) + 1);
    EK_REQUIRE(b->rows != NULL && b->send != NULL && b->recv != NULL, EK_ENOMEM,
               "no memory for messages between %d ranks", c->ranks);
    memset(b->send, 1, (size_t)(each * most) + 1);
    memset(b->recv, 1, (size_t)(each * most) + 1);
    for (int i = 0; i < c->ranks; i++)
        for (int j = 0; j < c->ranks; j++)
            b->rows[i * c->ranks + j] = is_far(c, i, j) ? each : 0;
    return EK_OK;
}

static ek_status time_call(const bench *b, double *seconds)
{
    int64_t start = ek_clock_ns();
    ek_coll *op;

    EK_TRY(ek_comm_all_to_all(b->c->world, EK_A2A_LINEAR, b->rows, 1, b->send, b->recv, &op));
    EK_TRY(ek_coll_wait(&op));
    *seconds = (double)(ek_clock_ns() - start) * 1e-9;
    return EK_OK;
}

/* *bytes that the first call has passed at once; by the slowest rank's times. */
static ek_status repeat(const bench *b, double *bytes)
{
    double t[CALLS], others = 0;

    ek_clock_sleep_ms(PAUSE_MS);
    EK_TRY(ek_comm_barrier(b->c->world));
    for (int i = 0; i < CALLS; i++)
        EK_TRY(time_call(b, &t[i]));
    EK_TRY(ek_calibrate_largest(b->c, t, CALLS));
    for (int i = 1; i < CALLS; i++)
        others += t[i] / (CALLS - 1);
    *bytes = b->sent * (1 - t[0] / others);
    return EK_OK;
}

static ek_status measure(const bench *b, double *burst)
{
    double bytes[REPEATS], took = 0;
    int64_t start = ek_clock_ns();
    int n = 0;

    EK_TRY(repeat(b, &bytes[0])); /* a warm-up */
    while (n < REPEATS && (n < REPEATS_LEAST || took < TOTAL_S)) {
        EK_TRY(repeat(b, &bytes[n++]));
        took = (double)(ek_clock_ns() - start) * 1e-9;
        EK_TRY(ek_calibrate_largest(b->c, &took, 1));
    }
    ek_sort_reals(bytes, n);
    *burst = bytes[n / 2] > LEAST * b->sent ? ek_cost_round(bytes[n / 2]) : 0;
    return EK_OK;
}

ek_status ek_calibrate_burst(ek_calibration *c)
{
    bench b = {.c = c};
    ek_status st;

    if (c->ranks == 1 || c->m->link[EK_LINK_NET].message.n == 0)
        return EK_OK;
    EK_TRY_OUT(ek_agree(c->world, "measure messages after a pause", open_bench(&b)));
    EK_TRY_OUT(measure(&b, &c->m->link[EK_LINK_NET].burst));
out:
    free(b.rows);
    free(b.send);
    free(b.recv);
    return st;
}
