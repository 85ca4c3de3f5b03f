/* comm_cases.h - cases of collectives for any back end: every rank runs each case on its world and
 * compares with a result that it computes serially from all ranks' inputs. */
#ifndef COMM_CASES_H
#define COMM_CASES_H

#include "base/random.h"
#include "comm/backend.h"
#include "comm/comm.h"
#include "comm/mesh.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One rank in a case. */
typedef struct {
    ek_comm *world;
    int rank, size, failed;
    uint64_t seed;
} peer;

typedef struct {
    const char *name;
    void (*run)(peer *p);
} comm_case;

#define EXPECT(p, cond)                                                                            \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            (p)->failed++;                                                                         \
            fprintf(stderr, "%s:%d: rank %d of %d: failed: %s\n", __FILE__, __LINE__, (p)->rank,   \
                    (p)->size, #cond);                                                             \
        }                                                                                          \
    } while (0)
/* For calls that must succeed. */
#define MUST(p, call)                                                                              \
    do {                                                                                           \
        if ((call) < 0) {                                                                          \
            (p)->failed++;                                                                         \
            fprintf(stderr, "%s:%d: rank %d: %s\n", __FILE__, __LINE__, (p)->rank, ek_err_text()); \
        }                                                                                          \
    } while (0)
/* Starts an operation and waits for it. */
#define DO(p, call)                                                                                \
    do {                                                                                           \
        ek_coll *op = NULL;                                                                        \
        MUST(p, call);                                                                             \
        if (op != NULL)                                                                            \
            MUST(p, ek_coll_wait(&op));                                                            \
    } while (0)

static inline int64_t pick(uint64_t seed, uint64_t stream, uint64_t i, int64_t below)
{
    return (int64_t)(ek_random_bits(seed, stream, i) % (uint64_t)below);
}

/* A cheap hash, from which most of the test data is made. */
static inline uint64_t mix(uint64_t seed, uint64_t stream, int64_t i)
{
    uint64_t x = (seed * 1000003 + stream) * UINT64_C(0x9e3779b97f4a7c15) + (uint64_t)i;

    x = (x ^ x >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
    return x ^ x >> 32;
}

/* Element i of rank r: small integers, so that sums are exact in every type. */
static inline int64_t value_of(uint64_t seed, int r, int64_t i)
{
    return (int64_t)(mix(seed, (uint64_t)r, i) % 2001) - 1000;
}

/* The result over ranks [n] (NULL: 0 to n - 1). */
static inline int64_t expected_of(uint64_t seed, const int *ranks, int n, ek_reduce how, int64_t i)
{
    int64_t all = value_of(seed, ranks != NULL ? ranks[0] : 0, i);

    for (int r = 1; r < n; r++) {
        int64_t one = value_of(seed, ranks != NULL ? ranks[r] : r, i);

        if (how == EK_MAX_F64 || how == EK_MAX_I64)
            all = one > all ? one : all;
        else
            all += one;
    }
    return all;
}

static inline int64_t expected(const peer *p, ek_reduce how, int64_t i)
{
    return expected_of(p->seed, NULL, p->size, how, i);
}

static inline void store(ek_reduce how, void *buf, int64_t i, int64_t value)
{
    if (how == EK_SUM_F32)
        ((float *)buf)[i] = (float)value;
    else if (how == EK_SUM_F64 || how == EK_MAX_F64)
        ((double *)buf)[i] = (double)value;
    else
        ((int64_t *)buf)[i] = value;
}

static inline int64_t load(ek_reduce how, const void *buf, int64_t i)
{
    if (how == EK_SUM_F32)
        return (int64_t)((const float *)buf)[i];
    if (how == EK_SUM_F64 || how == EK_MAX_F64)
        return (int64_t)((const double *)buf)[i];
    return ((const int64_t *)buf)[i];
}

static const ek_reduce all_kinds[] = {EK_SUM_F32, EK_SUM_F64, EK_SUM_I64, EK_MAX_F64, EK_MAX_I64};

static inline int64_t wrong_elements(const peer *p, ek_reduce how, const void *buf, int64_t from,
                                     int64_t to)
{
    int64_t wrong = 0;

    for (int64_t i = from; i < to; i++)
        wrong += load(how, buf, i) != expected(p, how, i);
    return wrong;
}

/* --- reductions ------------------------------------------------------------------------------- */

static void case_all_reduce(peer *p)
{
    static const int64_t sizes[] = {0, 1, 2, 7, 1000, 2049, 5003, 33000, 80001};

    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++)
        for (int k = 0; k < 5; k++) {
            int64_t n = sizes[s];
            double *buf = malloc((size_t)n * 8 + 8);

            p->seed++;
            for (int64_t i = 0; i < n; i++)
                store(all_kinds[k], buf, i, value_of(p->seed, p->rank, i));
            buf[n] = 77; /* must not be written */
            DO(p, ek_comm_all_reduce(p->world, buf, n, all_kinds[k], &op));
            EXPECT(p, wrong_elements(p, all_kinds[k], buf, 0, n) == 0);
            EXPECT(p, buf[n] == 77);
            free(buf);
        }
}

/* Values whose sum depends on the order: all ranks get the same bits, close to the exact sum. */
static void case_same_bits(peer *p)
{
    static const int64_t sizes[] = {3, 500, 2049, 9001, 40001};

    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        int64_t n = sizes[s], first[65], wrong = 0;
        double *buf = malloc((size_t)n * 8);
        double *all = malloc((size_t)(n * p->size) * 8);

        for (int64_t i = 0; i < n; i++)
            buf[i] = ek_random_normal(3, (uint64_t)p->rank, (uint64_t)i);
        DO(p, ek_comm_all_reduce(p->world, buf, n, EK_SUM_F64, &op));
        for (int64_t i = 0; i < n; i++) {
            double sum = 0;

            for (int r = 0; r < p->size; r++)
                sum += ek_random_normal(3, (uint64_t)r, (uint64_t)i);
            wrong += !(fabs(sum - buf[i]) < 1e-12);
        }
        EXPECT(p, wrong == 0);
        for (int r = 0; r <= p->size; r++)
            first[r] = r * n;
        memcpy(all + p->rank * n, buf, (size_t)n * 8);
        DO(p, ek_comm_all_gather(p->world, all, first, 8, &op));
        for (int r = 0; r < p->size; r++)
            EXPECT(p, memcmp(all + r * n, buf, (size_t)n * 8) == 0);
        free(all);
        free(buf);
    }
}

/* Random ranges, many of them empty, of at most `most` elements. */
static void random_ranges(const peer *p, int64_t most, int64_t *first)
{
    first[0] = 0;
    for (int r = 0; r < p->size; r++) {
        int64_t n = pick(p->seed, 1000, (uint64_t)r, most + 1);

        first[r + 1] = first[r] + (pick(p->seed, 1001, (uint64_t)r, 3) == 0 ? 0 : n);
    }
}

static void case_reduce_scatter(peer *p)
{
    static const int64_t most[] = {0, 1, 30, 400, 3000, 40000};

    for (size_t s = 0; s < sizeof(most) / sizeof(most[0]); s++)
        for (int k = 0; k < 5; k++) {
            int64_t first[65], n;
            void *buf;

            p->seed++;
            random_ranges(p, most[s], first);
            n = first[p->size];
            buf = malloc((size_t)n * 8 + 8);
            for (int64_t i = 0; i < n; i++)
                store(all_kinds[k], buf, i, value_of(p->seed, p->rank, i));
            DO(p, ek_comm_reduce_scatter(p->world, buf, first, all_kinds[k], &op));
            EXPECT(p,
                   wrong_elements(p, all_kinds[k], buf, first[p->rank], first[p->rank + 1]) == 0);
            free(buf);
        }
}

static unsigned char byte_of(uint64_t seed, int64_t i)
{
    return (unsigned char)mix(seed, 7777, i);
}

static void case_all_gather(peer *p)
{
    static const int64_t most[] = {0, 1, 100, 4000, 100000};
    static const size_t sizes[] = {1, 3, 8};

    for (size_t s = 0; s < sizeof(most) / sizeof(most[0]); s++)
        for (size_t z = 0; z < 3; z++) {
            int64_t first[65], bytes, wrong = 0;
            unsigned char *buf;

            p->seed++;
            random_ranges(p, most[s], first);
            bytes = first[p->size] * (int64_t)sizes[z];
            buf = calloc((size_t)bytes + 1, 1);
            for (int64_t i = first[p->rank] * (int64_t)sizes[z];
                 i < first[p->rank + 1] * (int64_t)sizes[z]; i++)
                buf[i] = byte_of(p->seed, i);
            DO(p, ek_comm_all_gather(p->world, buf, first, sizes[z], &op));
            for (int64_t i = 0; i < bytes; i++)
                wrong += buf[i] != byte_of(p->seed, i);
            EXPECT(p, wrong == 0 && buf[bytes] == 0);
            free(buf);
        }
}

/* --- copies ----------------------------------------------------------------------------------- */

static int64_t wrong_bytes(uint64_t seed, const unsigned char *buf, int64_t bytes)
{
    int64_t wrong = 0;

    for (int64_t i = 0; i < bytes; i++)
        wrong += buf[i] != byte_of(seed, i);
    return wrong;
}

static void case_broadcast(peer *p)
{
    static const int64_t sizes[] = {0, 1, 999, 300001};
    static const int64_t chained = (9 << 18) + 5;

    for (int root = 0; root < p->size; root++)
        for (size_t s = 0; s < 5; s++) {
            int64_t bytes = s < 4 ? sizes[s] : root == 1 ? chained : 0;
            unsigned char *buf = calloc((size_t)bytes + 1, 1);

            p->seed++;
            for (int64_t i = 0; i < bytes && p->rank == root; i++)
                buf[i] = byte_of(p->seed, i);
            DO(p, ek_comm_broadcast(p->world, buf, bytes, root, &op));
            EXPECT(p, wrong_bytes(p->seed, buf, bytes) == 0 && buf[bytes] == 0);
            free(buf);
        }
}

/* --- lists of ranks --------------------------------------------------------------------------- */

typedef struct {
    int n, ranks[64], at; /* at: the caller's index, -1: none */
} rank_list;

/* Some of the ranks, at least one, in random order. */
static rank_list random_list(const peer *p, uint64_t seed)
{
    rank_list l = {.n = 1 + (int)pick(seed, 3, 0, p->size), .at = -1};

    for (int i = 0; i < l.n; i++) {
        l.ranks[i] = (int)ek_random_permute(seed, 4, (uint64_t)p->size, (uint64_t)i);
        if (l.ranks[i] == p->rank)
            l.at = i;
    }
    return l;
}

/* Two sets of ranks at once, in random order, each with its own root; some ranks are in both. */
static void case_multicast(peer *p)
{
    for (int round = 0; round < 6; round++) {
        ek_coll *flight[2] = {NULL, NULL};
        unsigned char buf[2][2000];

        p->seed++;
        memset(buf, 0, sizeof(buf));
        for (int set = 0; set < 2; set++) {
            uint64_t seed = p->seed * 2 + (uint64_t)set;
            rank_list l = random_list(p, seed);

            for (int64_t i = 0; i < 2000 && l.at == 0; i++)
                buf[set][i] = byte_of(seed, i);
            if (l.at >= 0)
                MUST(p, ek_comm_multicast(p->world, buf[set], 2000, l.ranks, l.n, 10 + set,
                                          &flight[set]));
        }
        for (int set = 1; set >= 0; set--)
            if (flight[set] != NULL) {
                MUST(p, ek_coll_wait(&flight[set]));
                EXPECT(p, wrong_bytes(p->seed * 2 + (uint64_t)set, buf[set], 2000) == 0);
            }
    }
}

/* Starts the multireduce of this seed if the caller is in the list; allocates buf [n + 1]. */
static void start_multireduce(peer *p, const rank_list *l, uint64_t seed, ek_reduce how, int64_t n,
                              int tag, double **buf, ek_coll **op)
{
    *buf = malloc((size_t)n * 8 + 8);
    for (int64_t i = 0; i < n; i++)
        store(how, *buf, i, value_of(seed, p->rank, i));
    (*buf)[n] = 77; /* must not be written */
    if (l->at >= 0)
        MUST(p, ek_comm_multireduce(p->world, *buf, n, how, l->ranks, l->n, tag, op));
}

static void end_multireduce(peer *p, const rank_list *l, uint64_t seed, ek_reduce how, int64_t n,
                            double **buf, ek_coll **op)
{
    int64_t wrong = 0;

    if (*op != NULL)
        MUST(p, ek_coll_wait(op));
    for (int64_t i = 0; i < n && l->at == 0; i++)
        wrong += load(how, *buf, i) != expected_of(seed, l->ranks, l->n, how, i);
    EXPECT(p, wrong == 0 && (*buf)[n] == 77);
    free(*buf);
    *buf = NULL;
}

/* One after the other with one tag, over other ranks each time; up to more segments than are in
 * flight at once. */
static void case_multireduce(peer *p)
{
    static const int64_t sizes[] = {0, 1, 7, 202, 2049, 33000, 140001};

    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++)
        for (int k = 0; k < (sizes[s] < 3000 ? 5 : 2); k++)
            for (int round = 0; round < (sizes[s] < 3000 ? 3 : 1); round++) {
                uint64_t seed = ++p->seed;
                rank_list l = random_list(p, seed);
                ek_coll *op = NULL;
                double *buf;

                start_multireduce(p, &l, seed, all_kinds[k], sizes[s], 5, &buf, &op);
                end_multireduce(p, &l, seed, all_kinds[k], sizes[s], &buf, &op);
            }
}

/* Many at once over overlapping lists, with multicasts of the same tags in the other direction,
 * started and waited for in a different order on every rank. */
static void case_many_lists(peer *p)
{
    enum { LISTS = 12 };
    static const int64_t sizes[] = {0, 1, 33, 500, 34001, 80001};
    uint64_t me = (uint64_t)p->rank;
    ek_coll *sum[LISTS] = {NULL}, *copy[LISTS] = {NULL};
    unsigned char bytes[LISTS][3000];
    double *buf[LISTS];
    rank_list l[LISTS];
    int back[64];

    memset(bytes, 0, sizeof(bytes));
    for (uint64_t k = 0; k < LISTS; k++) {
        int i = (int)ek_random_permute(20, me, LISTS, k), tag = i == 0 ? EK_COMM_TAGS - 1 : i - 1;
        ek_reduce how = i % 2 == 0 ? EK_SUM_F32 : EK_SUM_F64;

        l[i] = random_list(p, 300 + (uint64_t)i);
        start_multireduce(p, &l[i], (uint64_t)i, how, sizes[i % 6], tag, &buf[i], &sum[i]);
        for (int r = 0; r < l[i].n; r++)
            back[r] = l[i].ranks[l[i].n - 1 - r];
        for (int64_t b = 0; b < 3000 && back[0] == p->rank; b++)
            bytes[i][b] = byte_of((uint64_t)i, b);
        if (l[i].at >= 0)
            MUST(p, ek_comm_multicast(p->world, bytes[i], 3000, back, l[i].n, tag, &copy[i]));
    }
    for (uint64_t k = 0; k < LISTS; k++) {
        int i = (int)ek_random_permute(21, me, LISTS, k);
        ek_reduce how = i % 2 == 0 ? EK_SUM_F32 : EK_SUM_F64;

        end_multireduce(p, &l[i], (uint64_t)i, how, sizes[i % 6], &buf[i], &sum[i]);
        if (copy[i] != NULL) {
            MUST(p, ek_coll_wait(&copy[i]));
            EXPECT(p, wrong_bytes((uint64_t)i, bytes[i], 3000) == 0);
        }
    }
}

/* Values whose sum depends on the order: added from the end of the list, with the same bits on
 * every back end and for every message length. */
static void case_multireduce_order(peer *p)
{
    static const int64_t sizes[] = {1, 2, 505, 9001, 70001};

    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        rank_list l = {.n = p->size};
        int64_t n = sizes[s], wrong = 0;
        double *buf = malloc((size_t)n * 8);
        float *small = malloc((size_t)n * 4);

        for (int i = 0; i < l.n; i++)
            l.ranks[i] = (int)ek_random_permute(s, 9, (uint64_t)l.n, (uint64_t)i);
        for (int64_t i = 0; i < n; i++) {
            buf[i] = 1 / (double)(value_of(s, p->rank, i) * 2 + 1);
            small[i] = (float)buf[i];
        }
        DO(p, ek_comm_multireduce(p->world, buf, n, EK_SUM_F64, l.ranks, l.n, 0, &op));
        DO(p, ek_comm_multireduce(p->world, small, n, EK_SUM_F32, l.ranks, l.n, 0, &op));
        for (int64_t i = 0; i < n && p->rank == l.ranks[0]; i++) {
            double sum = 1 / (double)(value_of(s, l.ranks[l.n - 1], i) * 2 + 1);
            float less = (float)sum;

            for (int r = l.n - 2; r >= 0; r--) {
                double one = 1 / (double)(value_of(s, l.ranks[r], i) * 2 + 1);

                sum = one + sum;
                less = (float)one + less;
            }
            wrong += memcmp(&sum, &buf[i], 8) != 0 || memcmp(&less, &small[i], 4) != 0;
        }
        EXPECT(p, wrong == 0);
        free(small);
        free(buf);
    }
}

/* A list of one rank: finished at once, buf unchanged. */
static void case_multireduce_one(peer *p)
{
    float buf[3] = {-0.0f, NAN, (float)p->rank}, was[3];
    ek_coll *op = NULL;

    memcpy(was, buf, sizeof(buf));
    MUST(p, ek_comm_multireduce(p->world, buf, 3, EK_SUM_F32, &p->rank, 1, EK_COMM_TAGS - 1, &op));
    EXPECT(p, op != NULL && ek_coll_test(&op) == EK_OK && op == NULL);
    EXPECT(p, memcmp(was, buf, sizeof(buf)) == 0);
}

/* In a ring, with several tags at once, received in a different order than sent. */
static void case_send_recv(peer *p)
{
    int to = (p->rank + 1) % p->size, from = (p->rank + p->size - 1) % p->size;
    int64_t out[6], in[6];
    ek_coll *send[6], *recv[6];

    if (p->size == 1)
        return;
    for (int i = 0; i < 6; i++)
        out[i] = 100 * p->rank + i;
    for (int i = 0; i < 6; i++) /* tags 0, 1, 2, 0, 1, 2 */
        MUST(p, ek_comm_send(p->world, &out[i], i == 4 ? 0 : 8, to, i % 3, &send[i]));
    for (int i = 5; i >= 0; i--) { /* messages with equal tags keep their order */
        int at = (i + 3) % 6;

        in[at] = -1;
        MUST(p, ek_comm_recv(p->world, &in[at], at == 4 ? 0 : 8, from, i % 3, &recv[i]));
    }
    for (int i = 0; i < 6; i++) {
        MUST(p, ek_coll_wait(&recv[i]));
        MUST(p, ek_coll_wait(&send[5 - i]));
    }
    for (int i = 0; i < 6; i++)
        EXPECT(p, in[i] == (i == 4 ? -1 : 100 * from + i));
}

/* --- all to all ------------------------------------------------------------------------------- */

/* Byte i of the block from rank `from` to rank `to`. */
static unsigned char block_byte(uint64_t seed, int from, int to, int64_t i)
{
    return (unsigned char)mix(seed, (uint64_t)(100 + from * 64 + to), i);
}

static void one_all_to_all(peer *p, ek_comm *c, ek_a2a how, const int64_t *rows, size_t size)
{
    int n = ek_comm_size(c), me = ek_comm_rank(c);
    int64_t out = 0, in = 0, wrong = 0, at = 0;
    unsigned char *send, *recv;

    for (int r = 0; r < n; r++) {
        out += rows[me * n + r] * (int64_t)size;
        in += rows[r * n + me] * (int64_t)size;
    }
    send = malloc((size_t)out + 1);
    recv = calloc((size_t)in + 1, 1);
    for (int r = 0; r < n; r++)
        for (int64_t i = 0; i < rows[me * n + r] * (int64_t)size; i++)
            send[at++] = block_byte(p->seed, me, r, i);
    DO(p, ek_comm_all_to_all(c, how, rows, size, send, recv, &op));
    at = 0;
    for (int r = 0; r < n; r++)
        for (int64_t i = 0; i < rows[r * n + me] * (int64_t)size; i++)
            wrong += recv[at++] != block_byte(p->seed, r, me, i);
    EXPECT(p, wrong == 0 && recv[in] == 0);
    free(recv);
    free(send);
}

/* Row counts of a kind: dense, sparse, one rank gets all, none. */
static void random_rows(const peer *p, int n, int kind, int64_t *rows)
{
    for (int i = 0; i < n * n; i++) {
        int64_t some = pick(p->seed, 50, (uint64_t)i, 40);

        rows[i] = kind == 0   ? some
                  : kind == 1 ? (pick(p->seed, 51, (uint64_t)i, 3) == 0 ? some : 0)
                  : kind == 2 ? (i % n == n - 1 ? some : 0)
                              : 0;
    }
}

static void case_all_to_all(peer *p)
{
    static const size_t sizes[] = {1, 24, 500};

    for (int how = 0; how < 3; how++)
        for (int kind = 0; kind < 4; kind++)
            for (size_t s = 0; s < 3; s++) {
                int64_t rows[64 * 64];

                p->seed++;
                random_rows(p, p->size, kind, rows);
                one_all_to_all(p, p->world, (ek_a2a)how, rows, sizes[s]);
            }
}

/* 2DH over nodes of every shape: one, single ranks, ragged neighbours, scattered ranks. */
static void case_all_to_all_nodes(peer *p)
{
    int ranks[64], node[64];
    ek_comm *c = NULL;

    for (int r = 0; r < p->size; r++)
        ranks[r] = p->size - 1 - r; /* a group in another order than the world */
    MUST(p, ek_comm_group(p->world, "nodes", ranks, p->size, &c));
    for (int shape = 0; shape < 12; shape++) {
        int64_t rows[64 * 64];

        for (int r = 0; r < p->size; r++)
            node[r] = shape == 0   ? 9
                      : shape == 1 ? 50 - r
                      : shape == 2 ? r / 2
                      : shape == 3 ? (r >= 1) + (r >= 4)
                      : shape == 4 ? r % 2
                                   : (int)pick((uint64_t)shape, 60, (uint64_t)r, 1 + shape % 4);
        ek_comm_set_nodes(c, node);
        for (int kind = 0; kind < 3; kind++) {
            p->seed++;
            random_rows(p, p->size, kind, rows);
            one_all_to_all(p, c, EK_A2A_2DH, rows, 1 + 8 * (size_t)shape);
        }
    }
    ek_comm_close(&c);
}

/* --- groups, overlap, bytes sent -------------------------------------------------------------- */

/* Two sets of groups of every third rank: equal calls on all of them at once do not mix. */
static void case_groups(peer *p)
{
    ek_comm *c[2] = {NULL, NULL};
    int ranks[64], n = 0, color = p->rank % 3;
    ek_coll *flight[3];
    int64_t value[3] = {p->rank, 1, 1000 + p->rank}, want[3] = {0, 0, 0};

    for (int r = color; r < p->size; r += 3)
        ranks[n++] = r;
    for (int i = 0; i < 2; i++)
        MUST(p, ek_comm_group(p->world, i == 0 ? "one" : "two", ranks, n, &c[i]));
    EXPECT(p, ek_comm_size(c[0]) == n && ek_comm_rank(c[0]) == p->rank / 3);
    EXPECT(p, ek_comm_send(c[1], NULL, -1, 0, 0, &flight[0]) == EK_EINVAL);
    EXPECT(p, strcmp(ek_err_message(), "send on two: -1 bytes") == 0);
    EXPECT(p, strcmp(ek_comm_host(c[0], 0), ek_comm_host(p->world, color)) == 0);
    for (int i = 0; i < n; i++) {
        want[0] += ranks[i];
        want[1] += 1;
        want[2] += 1000 + ranks[i];
    }
    if (p->rank % 2 == 0) {
        MUST(p, ek_comm_all_reduce(c[0], &value[0], 1, EK_SUM_I64, &flight[0]));
        MUST(p, ek_comm_all_reduce(c[1], &value[1], 1, EK_SUM_I64, &flight[1]));
    } else {
        MUST(p, ek_comm_all_reduce(c[1], &value[1], 1, EK_SUM_I64, &flight[1]));
        MUST(p, ek_comm_all_reduce(c[0], &value[0], 1, EK_SUM_I64, &flight[0]));
    }
    MUST(p, ek_comm_all_reduce(c[0], &value[2], 1, EK_SUM_I64, &flight[2]));
    for (int i = 2; i >= 0; i--) {
        MUST(p, ek_coll_wait(&flight[i]));
        EXPECT(p, value[i] == want[i]);
    }
    for (int i = 0; i < 2; i++)
        ek_comm_close(&c[i]);
}

/* Several long and short operations in flight; every rank waits for them in a different order. */
static void case_overlap(peer *p)
{
    enum { OPS = 7, N = 40000 };
    double *buf[OPS];
    ek_coll *flight[OPS] = {NULL};
    int64_t first[65];

    for (int r = 0; r <= p->size; r++)
        first[r] = ek_range_first(N, p->size, r);
    for (int i = 0; i < OPS; i++) {
        int64_t n = i % 2 == 0 ? N : 100;
        int root = i % p->size;

        p->seed = (uint64_t)(900 + i);
        buf[i] = malloc(N * sizeof(double));
        for (int64_t k = 0; k < N; k++)
            buf[i][k] = (double)value_of(p->seed, i >= 5 ? 0 : p->rank, k);
        if (i >= 5 && p->rank != root)
            memset(buf[i], 0, N * sizeof(double));
        if (i == 4)
            MUST(p, ek_comm_reduce_scatter(p->world, buf[i], first, EK_SUM_F64, &flight[i]));
        else if (i < 4)
            MUST(p, ek_comm_all_reduce(p->world, buf[i], n, EK_SUM_F64, &flight[i]));
        else
            MUST(p, ek_comm_broadcast(p->world, buf[i], N * 8, root, &flight[i]));
    }
    for (int k = 0; k < OPS; k++) {
        int i = (int)ek_random_permute(5, (uint64_t)p->rank, OPS, (uint64_t)k);

        MUST(p, ek_coll_wait(&flight[i]));
    }
    for (int i = 0; i < OPS; i++) {
        int64_t wrong = 0, from = i == 4 ? first[p->rank] : 0;
        int64_t to = i == 4 ? first[p->rank + 1] : i % 2 == 0 || i == 5 ? N : 100;

        p->seed = (uint64_t)(900 + i);
        for (int64_t k = from; k < to; k++)
            wrong += buf[i][k] !=
                     (double)(i >= 5 ? value_of(p->seed, 0, k) : expected(p, EK_SUM_F64, k));
        EXPECT(p, wrong == 0);
        free(buf[i]);
    }
}

/* Payload bytes, exactly: around the ring, directly, to each rank. */
static void case_bytes_sent(peer *p)
{
    int64_t n = 840 * 128, before, all = n * 8; /* divisible by 1 to 8 ranks */
    double *buf = calloc((size_t)n, 8);
    int64_t rows[64 * 64], sum = 0;
    int list[64];

    before = ek_comm_bytes_sent(p->world);
    DO(p, ek_comm_all_reduce(p->world, buf, n, EK_SUM_F64, &op));
    EXPECT(p, ek_comm_bytes_sent(p->world) - before == 2 * (p->size - 1) * (all / p->size));
    before = ek_comm_bytes_sent(p->world);
    DO(p, ek_comm_all_reduce(p->world, buf, 5, EK_SUM_F64, &op));
    EXPECT(p, ek_comm_bytes_sent(p->world) - before == (p->size - 1) * 40);
    before = ek_comm_bytes_sent(p->world);
    for (int i = 0; i < p->size * p->size; i++) {
        rows[i] = i % 5;
        sum += i / p->size == p->rank && i % p->size != p->rank ? i % 5 : 0;
    }
    DO(p, ek_comm_all_to_all(p->world, EK_A2A_LINEAR, rows, 16, buf, buf + n / 2, &op));
    EXPECT(p, ek_comm_bytes_sent(p->world) - before == sum * 16);
    before = ek_comm_bytes_sent(p->world);
    DO(p, ek_comm_broadcast(p->world, buf, all, 0, &op));
    sum = ek_comm_bytes_sent(p->world) - before;
    DO(p, ek_comm_all_reduce(p->world, &sum, 1, EK_SUM_I64, &op));
    EXPECT(p, sum == (p->size - 1) * all);
    for (int r = 0; r < p->size; r++)
        list[r] = r;
    before = ek_comm_bytes_sent(p->world);
    DO(p, ek_comm_multireduce(p->world, buf, n, EK_SUM_F64, list, p->size, 7, &op));
    EXPECT(p, ek_comm_bytes_sent(p->world) - before == (p->rank > 0 ? all : 0));
    free(buf);
}

static void case_barrier(peer *p)
{
    for (int i = 0; i < 20; i++)
        MUST(p, ek_comm_barrier(p->world));
}

static void refused_lists(peer *p, ek_coll **none)
{
    int twice[2] = {p->rank, p->rank}, other = (p->rank + 1) % p->size;
    float one = 1;

    for (int tag = -1; tag <= EK_COMM_TAGS; tag += EK_COMM_TAGS + 1) {
        EXPECT(p, ek_comm_multicast(p->world, &one, 4, twice, 1, tag, none) == EK_EINVAL);
        EXPECT(p, ek_comm_multireduce(p->world, &one, 1, EK_SUM_F32, twice, 1, tag, none) ==
                      EK_EINVAL);
    }
    EXPECT(p, ek_comm_multicast(p->world, &one, -1, twice, 1, 0, none) == EK_EINVAL);
    EXPECT(p, ek_comm_multicast(p->world, &one, 4, &p->size, 1, 0, none) == EK_EINVAL);
    EXPECT(p, ek_comm_multireduce(p->world, &one, -1, EK_SUM_F32, twice, 1, 0, none) == EK_EINVAL);
    EXPECT(p, ek_comm_multireduce(p->world, &one, 1, EK_SUM_F32, twice, 2, 0, none) == EK_EINVAL);
    EXPECT(p, ek_comm_multireduce(p->world, &one, 1, EK_SUM_F32, twice, 0, 0, none) == EK_EINVAL);
    EXPECT(p,
           ek_comm_multireduce(p->world, &one, 1, EK_SUM_F32, &p->size, 1, 0, none) == EK_EINVAL);
    EXPECT(p, other == p->rank || ek_comm_multireduce(p->world, &one, 1, EK_SUM_F32, &other, 1, 0,
                                                      none) == EK_EINVAL);
}

/* Invalid arguments on every rank: EK_EINVAL, without any effect. */
static void case_refused(peer *p)
{
    int64_t first[65] = {0}, one = 1;
    ek_coll *none = NULL;

    first[p->size] = -1;
    EXPECT(p, ek_comm_all_reduce(p->world, &one, -1, EK_SUM_I64, &none) == EK_EINVAL);
    EXPECT(p, ek_comm_all_gather(p->world, &one, first, 8, &none) == EK_EINVAL);
    EXPECT(p, ek_comm_broadcast(p->world, &one, 8, p->size, &none) == EK_EINVAL);
    EXPECT(p, ek_comm_send(p->world, &one, 8, p->rank, 0, &none) == EK_EINVAL);
    EXPECT(p, ek_comm_recv(p->world, &one, 8, 0, EK_COMM_TAGS, &none) == EK_EINVAL);
    EXPECT(p, ek_comm_group(p->world, "none", &p->size, 1, &p->world) == EK_EINVAL);
    refused_lists(p, &none);
    EXPECT(p, none == NULL);
    DO(p, ek_comm_all_reduce(p->world, &one, 1, EK_SUM_I64, &op));
    EXPECT(p, one == p->size);
}

static const comm_case comm_cases[] = {
    {"all_reduce", case_all_reduce},
    {"same_bits", case_same_bits},
    {"reduce_scatter", case_reduce_scatter},
    {"all_gather", case_all_gather},
    {"broadcast", case_broadcast},
    {"multicast", case_multicast},
    {"multireduce", case_multireduce},
    {"multireduce_order", case_multireduce_order},
    {"multireduce_one", case_multireduce_one},
    {"many_lists", case_many_lists},
    {"send_recv", case_send_recv},
    {"all_to_all", case_all_to_all},
    {"all_to_all_nodes", case_all_to_all_nodes},
    {"groups", case_groups},
    {"overlap", case_overlap},
    {"bytes_sent", case_bytes_sent},
    {"barrier", case_barrier},
    {"refused", case_refused},
};

#endif
