/* Every collective over the ranks of an MPI job, and messages between halves of them, by size; with
 * --cluster next to the times that sim/price_net.h predicts from a cluster file.
 *
 * Bytes are those of the vector, of a row block to each other rank, or of the message.  A message
 * goes from each rank of the first half to one of the second, and one comes back; half of that
 * counts.  Rank 0 prints. */
#include "bench/bench_priv.h"
#include "comm/comm.h"
#include "sim/price_net.h"

#include <stdlib.h>
#include <string.h>

enum { SIZES_MAX = 10, SMALLEST = 4 << 10, STEP = 8, KINDS = EK_COLLECTIVE_SEND + 1 };

typedef struct {
    ek_comm *world; /* borrowed */
    int rank, ranks;
    int n_sizes;
    int64_t sizes[SIZES_MAX]; /* bytes */
    int64_t *rows;            /* [ranks][ranks] */
    int64_t *first;           /* [ranks + 1] */
    unsigned char *send, *recv;
    ek_cluster *cluster; /* NULL: none */
    bench_samples seconds[SIZES_MAX][KINDS];
} collectives;

/* A call to measure. */
typedef struct {
    const collectives *m;
    ek_collective kind;
    int64_t bytes;
} collective_call;

/* --- setup ------------------------------------------------------------------------------------ */

static ek_status read_cluster(const bench *b, collectives *m)
{
    if (b->cfg->cluster == NULL)
        return EK_OK;
    m->cluster = malloc(sizeof(*m->cluster));
    EK_REQUIRE(m->cluster != NULL, EK_ENOMEM, "no memory for a cluster");
    return ek_cluster_read(b->cfg->cluster, m->cluster);
}

static ek_status open_collectives(const bench *b, collectives *m)
{
    int64_t bytes;

    EK_REQUIRE(b->job->ranks > 1, EK_EINVAL,
               "bench collectives needs at least two ranks: run it with --ranks 2, or as %s -n 2 "
               "evenkeel bench collectives",
               ek_comm_launcher());
    m->world = b->job->world;
    m->rank = b->job->rank;
    m->ranks = b->job->ranks;
    for (int64_t size = SMALLEST; size <= 1024 * b->cfg->longest_kib && m->n_sizes < SIZES_MAX;
         size *= STEP)
        m->sizes[m->n_sizes++] = size;
    EK_REQUIRE(m->n_sizes > 0, EK_EINVAL, "--longest: bench collectives begins with 4 KiB");
    bytes = m->sizes[m->n_sizes - 1] * m->ranks;
    m->rows = calloc((size_t)m->ranks * (size_t)m->ranks, sizeof(*m->rows));
    m->first = calloc((size_t)m->ranks + 1, sizeof(*m->first));
    m->send = calloc(1, (size_t)bytes);
    m->recv = calloc(1, (size_t)bytes);
    EK_REQUIRE(m->rows != NULL && m->first != NULL && m->send != NULL && m->recv != NULL, EK_ENOMEM,
               "no memory for messages of %lld bytes to %d ranks",
               (long long)m->sizes[m->n_sizes - 1], m->ranks);
    EK_TRY(read_cluster(b, m));
    return bench_set_nodes(b);
}

static void close_collectives(collectives *m)
{
    free(m->rows);
    free(m->first);
    free(m->send);
    free(m->recv);
    free(m->cluster);
}

/* --- measuring -------------------------------------------------------------------------------- */

static ek_status call_all_to_all(const collective_call *call, ek_coll **op)
{
    const collectives *m = call->m;

    for (int i = 0; i < m->ranks * m->ranks; i++)
        m->rows[i] = i / m->ranks != i % m->ranks ? call->bytes : 0;
    return ek_comm_all_to_all(m->world, (ek_a2a)(call->kind - EK_COLLECTIVE_A2A_LINEAR), m->rows, 1,
                              m->send, m->recv, op);
}

/* There and back between the rank and its partner, if there is one. */
static ek_status call_messages(const collective_call *call)
{
    const collectives *m = call->m;
    int half = m->ranks / 2, is_first = m->rank < half;
    int peer = is_first ? m->rank + half : m->rank - half;
    ek_coll *op;

    for (int i = 0; i < 2 && m->rank < 2 * half; i++) {
        if (is_first == (i == 0))
            EK_TRY(ek_comm_send(m->world, m->send, call->bytes, peer, 0, &op));
        else
            EK_TRY(ek_comm_recv(m->world, m->recv, call->bytes, peer, 0, &op));
        EK_TRY(ek_coll_wait(&op));
    }
    return EK_OK;
}

static ek_status call_collective(const void *context)
{
    const collective_call *call = context;
    const collectives *m = call->m;
    int64_t n = call->bytes / (int64_t)sizeof(float);
    ek_coll *op;

    for (int r = 0; r <= m->ranks; r++)
        m->first[r] = ek_range_first(n, m->ranks, r);
    switch (call->kind) {
    case EK_COLLECTIVE_SEND: return call_messages(call);
    case EK_COLLECTIVE_ALL_REDUCE:
        EK_TRY(ek_comm_all_reduce(m->world, m->send, n, EK_SUM_F32, &op));
        break;
    case EK_COLLECTIVE_REDUCE_SCATTER:
        EK_TRY(ek_comm_reduce_scatter(m->world, m->send, m->first, EK_SUM_F32, &op));
        break;
    case EK_COLLECTIVE_ALL_GATHER:
        EK_TRY(ek_comm_all_gather(m->world, m->send, m->first, sizeof(float), &op));
        break;
    default: EK_TRY(call_all_to_all(call, &op));
    }
    return ek_coll_wait(&op);
}

static ek_status measure(const bench *b, collectives *m)
{
    for (int s = 0; s < m->n_sizes; s++)
        for (int k = 0; k < KINDS; k++) {
            collective_call call = {m, (ek_collective)k, m->sizes[s]};
            double t;

            EK_TRY(bench_time_calls(b, call_collective, &call, &t));
            bench_add(&m->seconds[s][k], k == EK_COLLECTIVE_SEND ? t / 2 : t);
        }
    return EK_OK;
}

/* --- printing --------------------------------------------------------------------------------- */

static double predicted(const collectives *m, int size, ek_collective kind)
{
    double bytes = (double)m->sizes[size];
    ek_net_work w = {.collective = kind,
                     .group = {0, 1, m->ranks},
                     .span = m->ranks,
                     .peer = 1,
                     .element = kind < EK_COLLECTIVE_A2A_LINEAR ? (int32_t)sizeof(float) : 1,
                     .bytes = bytes};
    ek_net_time t;

    if (kind >= EK_COLLECTIVE_A2A_LINEAR && kind <= EK_COLLECTIVE_A2A_2DH)
        w.bytes = bytes * (m->ranks - 1);
    if (kind == EK_COLLECTIVE_SEND)
        w.group = (ek_ranks){0, m->ranks / 2, 2};
    t = ek_price_net(m->cluster, &w);
    return t.overhead_s + t.wire_s + t.latency_s;
}

static void put_row(bench *b, const collectives *m, int s, ek_collective kind, json_t *all)
{
    bench_stat t = bench_stat_of(&m->seconds[s][kind]);
    char time[BENCH_RANGE];
    json_t *row =
        json_pack("{s:s, s:I, s:o}", "collective", ek_collective_name(kind), "bytes",
                  (json_int_t)m->sizes[s], "ms", bench_stat_json(&m->seconds[s][kind], 1e3));

    bench_say(b, "%-20s %9.0f KiB %s", ek_collective_name(kind), (double)m->sizes[s] / 1024,
              bench_range(time, t, "s", 7));
    if (m->cluster != NULL) {
        double p = predicted(m, s, kind);

        bench_say(b, " %10s %6.2f", ek_cost_quantity(time, p, "s"), p / t.median);
        b->lost |= json_object_set_new(row, "predicted_ms", json_real(p * 1e3)) != 0;
    }
    bench_say(b, "\n");
    bench_append(b, all, row);
}

static void put(bench *b, const collectives *m)
{
    json_t *all = json_array();

    bench_say(b, "collectives, %d ranks, %s\n\n%-20s %13s %7s (%7s .. %7s)%s\n", m->ranks,
              ek_comm_library(EK_COMM_MPI), "", "bytes", "time", "min", "max",
              m->cluster != NULL ? "  predicted  ratio" : "");
    for (int k = 0; k < KINDS; k++)
        for (int s = 0; s < m->n_sizes; s++)
            put_row(b, m, s, (ek_collective)k, all);
    bench_put(b, "ranks", json_integer(m->ranks));
    bench_put(b, "library", json_string(ek_comm_library(EK_COMM_MPI)));
    bench_put(b, "repeats", json_integer(b->cfg->repeats));
    bench_put(b, "collectives", all);
}

ek_status bench_collectives(bench *b)
{
    collectives *m = calloc(1, sizeof(*m));
    ek_status st = EK_OK;

    EK_REQUIRE(m != NULL, EK_ENOMEM, "no memory for a benchmark");
    EK_TRY_OUT(open_collectives(b, m));
    for (int64_t r = 0; r < b->cfg->repeats; r++)
        EK_TRY_OUT(measure(b, m));
    if (m->rank == 0)
        put(b, m);
out:
    close_collectives(m);
    free(m);
    return st;
}
