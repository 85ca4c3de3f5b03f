/* All-to-all over the ranks of an MPI job, by message size and algorithm, against the link.
 *
 * Every rank sends one message of that size to every other rank.  The link bandwidth is that of
 * messages streamed in both directions at once between two ranks, on different nodes if there are
 * several: the best of all sizes, measured alternately with the rest.  The traffic of a link is
 * what the fullest node sends to others; on one node, what a rank sends.  Rank 0 prints. */
#include "bench/bench_priv.h"
#include "comm/comm.h"

#include <stdlib.h>
#include <string.h>

/* A stream keeps up to STREAM messages and STREAM_BYTES in flight each way. */
enum { SIZES_MAX = 16, ALGORITHMS = 3, STREAM = 8, STREAM_BYTES = 256 << 10 };

static const char *const names[ALGORITHMS] = {"linear", "pairwise", "2dh"};

typedef struct {
    ek_comm *world; /* borrowed */
    int rank, ranks, nodes;
    int pair[2];
    int64_t carried; /* messages per link in an all-to-all */
    int n_sizes;
    int64_t sizes[SIZES_MAX]; /* bytes */
    int64_t *rows;            /* [ranks][ranks] */
    unsigned char *send, *recv;
    bench_samples both[SIZES_MAX], one_way[SIZES_MAX]; /* bytes/s one way */
    bench_samples seconds[SIZES_MAX][ALGORITHMS];
} a2a;

/* --- setup ------------------------------------------------------------------------------------ */

static void find_link(a2a *m)
{
    m->pair[0] = 0;
    m->pair[1] = 1;
    for (int r = m->ranks - 1; r > 0; r--) {
        if (ek_comm_node(m->world, r) != ek_comm_node(m->world, 0))
            m->pair[1] = r;
        if (ek_comm_node(m->world, r) >= m->nodes)
            m->nodes = ek_comm_node(m->world, r) + 1;
    }
    m->carried = m->nodes > 1 ? 0 : m->ranks - 1;
    for (int node = 0; node < m->nodes && m->nodes > 1; node++) {
        int64_t here = 0;

        for (int r = 0; r < m->ranks; r++)
            here += ek_comm_node(m->world, r) == node;
        if (here * (m->ranks - here) > m->carried)
            m->carried = here * (m->ranks - here);
    }
}

static ek_status a2a_open(const bench *b, a2a *m)
{
    int64_t bytes;

    EK_REQUIRE(b->job->ranks > 1, EK_EINVAL,
               "bench a2a needs at least two ranks: run it with --ranks 2, or as %s -n 2 evenkeel "
               "bench a2a",
               ek_comm_launcher());
    m->world = b->job->world;
    m->rank = b->job->rank;
    m->ranks = b->job->ranks;
    m->nodes = 1;
    find_link(m);
    for (int64_t size = 1024; size <= 1024 * b->cfg->longest_kib && m->n_sizes < SIZES_MAX;
         size *= 4)
        m->sizes[m->n_sizes++] = size;
    bytes = m->sizes[m->n_sizes - 1] * m->ranks + STREAM_BYTES;
    m->rows = calloc((size_t)m->ranks * (size_t)m->ranks, sizeof(*m->rows));
    m->send = malloc((size_t)bytes);
    m->recv = malloc((size_t)bytes);
    EK_REQUIRE(m->rows != NULL && m->send != NULL && m->recv != NULL, EK_ENOMEM,
               "no memory for messages of %lld bytes to %d ranks",
               (long long)m->sizes[m->n_sizes - 1], m->ranks);
    memset(m->send, 1, (size_t)bytes);
    memset(m->recv, 0, (size_t)bytes);
    return bench_set_nodes(b);
}

static void a2a_close(a2a *m)
{
    free(m->rows);
    free(m->send);
    free(m->recv);
}

/* --- measuring -------------------------------------------------------------------------------- */

/* A call to measure. */
typedef struct {
    const a2a *m;
    int size;
    int how; /* of all_to_all: the algorithm; of stream: 1 in both directions */
} a2a_call;

static ek_status all_to_all(const void *context)
{
    const a2a_call *call = context;
    const a2a *m = call->m;
    static const ek_a2a forms[ALGORITHMS] = {EK_A2A_LINEAR, EK_A2A_PAIRWISE, EK_A2A_2DH};
    ek_coll *op;

    for (int i = 0; i < m->ranks * m->ranks; i++)
        m->rows[i] = i / m->ranks != i % m->ranks ? m->sizes[call->size] : 0;
    EK_TRY(ek_comm_all_to_all(m->world, forms[call->how], m->rows, 1, m->send, m->recv, &op));
    EK_TRY(ek_coll_wait(&op));
    return EK_OK;
}

static int streamed(const a2a *m, int size)
{
    int64_t n = STREAM_BYTES / m->sizes[size];

    return n < 1 ? 1 : n > STREAM ? STREAM : (int)n;
}

/* Streams concurrent messages between the two ranks of the link. */
static ek_status stream(const void *context)
{
    const a2a_call *call = context;
    const a2a *m = call->m;
    int first = m->rank == m->pair[0], peer = m->pair[first], n = streamed(m, call->size);
    int both = call->how;
    int64_t bytes = m->sizes[call->size];
    ek_coll *in[STREAM] = {NULL}, *out[STREAM] = {NULL};

    if (!first && m->rank != m->pair[1])
        return EK_OK;
    for (int i = 0; i < n && (both || !first); i++)
        EK_TRY(ek_comm_recv(m->world, m->recv + i * bytes, bytes, peer, 0, &in[i]));
    for (int i = 0; i < n && (both || first); i++)
        EK_TRY(ek_comm_send(m->world, m->send + i * bytes, bytes, peer, 0, &out[i]));
    for (int i = 0; i < n; i++) {
        if (in[i] != NULL)
            EK_TRY(ek_coll_wait(&in[i]));
        if (out[i] != NULL)
            EK_TRY(ek_coll_wait(&out[i]));
    }
    return EK_OK;
}

static ek_status measure(const bench *b, a2a *m)
{
    for (int s = 0; s < m->n_sizes; s++) {
        double bytes = streamed(m, s) * (double)m->sizes[s], t;

        EK_TRY(bench_time_calls(b, stream, &(a2a_call){m, s, 1}, &t));
        bench_add(&m->both[s], bytes / t);
        EK_TRY(bench_time_calls(b, stream, &(a2a_call){m, s, 0}, &t));
        bench_add(&m->one_way[s], bytes / t);
        for (int a = 0; a < ALGORITHMS; a++) {
            EK_TRY(bench_time_calls(b, all_to_all, &(a2a_call){m, s, a}, &t));
            bench_add(&m->seconds[s][a], t);
        }
    }
    return EK_OK;
}

/* --- printing --------------------------------------------------------------------------------- */

/* Samples of the message size with the highest median. */
static const bench_samples *best(const bench_samples *by_size, int n)
{
    const bench_samples *found = &by_size[0];

    for (int s = 1; s < n; s++)
        if (bench_stat_of(&by_size[s]).median > bench_stat_of(found).median)
            found = &by_size[s];
    return found;
}

static void put_row(bench *b, const a2a *m, int s, int a, double link, json_t *all)
{
    const bench_samples *seconds = &m->seconds[s][a];
    bench_stat t = bench_stat_of(seconds);
    double bytes = (double)m->sizes[s], rate = bytes * (m->ranks - 1) / t.median;
    double carried = bytes * (double)m->carried / t.median;
    char time[BENCH_RANGE], of_rank[EK_COST_QUANTITY], of_link[EK_COST_QUANTITY];

    bench_say(b, "%9.0f KiB  %-9s %s %10s %10s %7.2f\n", bytes / 1024, names[a],
              bench_range(time, t, "s", 7), ek_cost_quantity(of_rank, rate, "B/s"),
              ek_cost_quantity(of_link, carried, "B/s"), carried / link);
    bench_append(b, all,
                 json_pack("{s:I, s:s, s:o, s:f, s:f, s:f}", "bytes", (json_int_t)m->sizes[s],
                           "algorithm", names[a], "ms", bench_stat_json(seconds, 1e3), "rank_gbs",
                           rate / 1e9, "link_gbs", carried / 1e9, "ratio", carried / link));
}

static void put(bench *b, const a2a *m)
{
    const bench_samples *both = best(m->both, m->n_sizes);
    const bench_samples *one_way = best(m->one_way, m->n_sizes);
    double link = bench_stat_of(both).median;
    char two[EK_COST_QUANTITY], one[EK_COST_QUANTITY];
    json_t *all = json_array();

    bench_say(b, "a2a, %d ranks on %d node%s, %s\n\n", m->ranks, m->nodes, m->nodes > 1 ? "s" : "",
              ek_comm_library(EK_COMM_MPI));
    bench_say(b, "link from rank 0 to rank %d, one way: %s when both send, %s when one does\n\n",
              m->pair[1], ek_cost_quantity(two, link, "B/s"),
              ek_cost_quantity(one, bench_stat_of(one_way).median, "B/s"));
    bench_say(b, "%13s  %-9s %7s (%7s .. %7s) %10s %10s %7s\n", "a message", "algorithm", "time",
              "min", "max", "by a rank", "by a link", "of link");
    for (int s = 0; s < m->n_sizes; s++)
        for (int a = 0; a < ALGORITHMS; a++)
            put_row(b, m, s, a, link, all);
    bench_put(b, "ranks", json_integer(m->ranks));
    bench_put(b, "nodes", json_integer(m->nodes));
    bench_put(b, "library", json_string(ek_comm_library(EK_COMM_MPI)));
    bench_put(b, "repeats", json_integer(b->cfg->repeats));
    bench_put(b, "link_gbs", bench_stat_json(both, 1e-9));
    bench_put(b, "link_one_way_gbs", bench_stat_json(one_way, 1e-9));
    bench_put(b, "all_to_all", all);
}

ek_status bench_a2a(bench *b)
{
    a2a *m = calloc(1, sizeof(*m));
    ek_status st = EK_OK;

    EK_REQUIRE(m != NULL, EK_ENOMEM, "no memory for a benchmark");
    EK_TRY_OUT(a2a_open(b, m));
    for (int64_t r = 0; r < b->cfg->repeats; r++)
        EK_TRY_OUT(measure(b, m));
    if (m->rank == 0)
        put(b, m);
out:
    a2a_close(m);
    free(m);
    return st;
}
