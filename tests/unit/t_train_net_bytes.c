/* The bytes and messages of collectives, by level, that sim/price_net.c predicts are those that
 * comm sends: ranks that are threads call collectives on drawn groups, sizes and clusters, over a
 * back end that counts. */
#include "base/coll_limits.h"
#include "base/random.h"
#include "comm/coll.h"
#include "comm_threads.h"
#include "ek_test.h"
#include "sim/price_net.h"

enum { DRAWS = 250, TAG = 3 };

/* --- a back end that counts ------------------------------------------------------------------- */

typedef struct {
    const ek_backend *inner;
    const ek_cluster *cluster;
    int world_rank;
    ek_net_traffic sent;
} counter;

/* The back end's state of one group. */
typedef struct {
    counter *counter;
    void *inner;
    int world_of[OVER_MAX];
} counted_group;

static ek_status counted_send(void *self, const void *buf, int64_t bytes, int to, int tag,
                              ek_message *m)
{
    counted_group *g = self;
    counter *k = g->counter;
    int l = ek_cluster_level_between(k->cluster, k->world_rank, g->world_of[to]);

    k->sent.bytes[l] += (double)bytes;
    k->sent.messages[l]++;
    return k->inner->send(g->inner, buf, bytes, to, tag, m);
}

static ek_status counted_recv(void *self, void *buf, int64_t bytes, int from, int tag,
                              ek_message *m)
{
    counted_group *g = self;

    return g->counter->inner->recv(g->inner, buf, bytes, from, tag, m);
}

static ek_status counted_test(void *self, ek_message *m, int *done)
{
    counted_group *g = self;

    return g->counter->inner->test(g->inner, m, done);
}

static ek_status counted_make_group(void *self, const int *ranks, int n, void **out)
{
    const counted_group *parent = self;
    counted_group *g = calloc(1, sizeof(*g));

    g->counter = parent->counter;
    for (int i = 0; i < n; i++)
        g->world_of[i] = parent->world_of[ranks[i]];
    *out = g;
    return g->counter->inner->group(parent->inner, ranks, n, &g->inner);
}

static void counted_close(void *self, int failed)
{
    counted_group *g = self;

    g->counter->inner->close(g->inner, failed);
    free(g);
}

static const ek_backend counting = {
    .name = "counting",
    .message_max = INT64_MAX,
    .send = counted_send,
    .recv = counted_recv,
    .test = counted_test,
    .group = counted_make_group,
    .close = counted_close,
};

static void count_messages(ek_comm *world, const ek_cluster *c, counter *k)
{
    counted_group *g = calloc(1, sizeof(*g));

    *k = (counter){.cluster = c, .world_rank = ek_comm_rank(world)};
    g->counter = k;
    for (int i = 0; i < ek_comm_size(world); i++)
        g->world_of[i] = i;
    ek_comm_decorate(world, &counting, g, &k->inner, &g->inner);
}

/* --- draws ------------------------------------------------------------------------------------ */

/* A uniform integer of [lo, hi], the same on all ranks. */
static int draw_int(uint64_t seed, int what, int lo, int hi)
{
    return lo + (int)(ek_random_uniform(7, seed, (uint64_t)what) * (hi - lo + 1));
}

/* One to three levels, one of which may be that of nodes. */
static ek_cluster draw_cluster(uint64_t seed)
{
    ek_cluster c = {.n_levels = draw_int(seed, 0, 1, 3)};
    int node = draw_int(seed, 1, 0, 2);
    int64_t ranks = 1;

    for (int l = 0; l < c.n_levels; l++) {
        ranks *= draw_int(seed, 2 + l, l > 0 ? 2 : 1, 3);
        c.level[l] = (ek_cluster_level){.ranks = ranks, .bytes_s = 1e9, .rails = 1};
        snprintf(c.level[l].name, sizeof(c.level[l].name), l == node ? "node" : "level %d", l);
    }
    return c;
}

static ek_ranks draw_group(uint64_t seed, int world)
{
    int stride = draw_int(seed, 10, -2, 3);
    ek_ranks g = {.stride = stride > 1 && stride < world ? stride : 1};
    int most = (world - 1) / g.stride + 1;

    g.n = draw_int(seed, 11, most > 5 ? most - 4 : 2, most);
    g.first = draw_int(seed, 12, 0, world - 1 - (g.n - 1) * g.stride);
    return g;
}

static int divisor_of(uint64_t seed, int n)
{
    int d = draw_int(seed, 13, 1, 2 * n);

    if (d > n)
        return n;

    while (n % d != 0)
        d--;
    return d;
}

/* Elements of a vector: few, and around the sizes at which algorithms change. */
static int64_t draw_elements(uint64_t seed, int64_t element)
{
    static const int64_t near[] = {1,      20, 3000, EK_COLL_WHOLE_MAX, 80000, EK_COLL_DIRECT_MAX,
                                   3000000};
    int64_t bytes = near[draw_int(seed, 14, 0, 6)];

    return bytes / element + draw_int(seed, 15, 1, 4);
}

/* --- one draw --------------------------------------------------------------------------------- */

static char *buffer_of(int64_t bytes)
{
    return calloc((size_t)bytes + 1, 1);
}

static ek_status call_vector(ek_comm *g, const ek_net_work *w, int64_t n)
{
    int64_t first[OVER_MAX + 1];
    char *buf = buffer_of(n * w->element);
    ek_reduce how = w->element == 4 ? EK_SUM_F32 : EK_SUM_F64;
    ek_coll *op;
    ek_status st;

    for (int r = 0; r <= g->size; r++)
        first[r] = ek_range_first(n, g->size, r);
    if (w->collective == EK_COLLECTIVE_ALL_REDUCE)
        st = ek_comm_all_reduce(g, buf, n, how, &op);
    else if (w->collective == EK_COLLECTIVE_REDUCE_SCATTER)
        st = ek_comm_reduce_scatter(g, buf, first, how, &op);
    else
        st = ek_comm_all_gather(g, buf, first, (size_t)w->element, &op);
    if (st == EK_OK)
        st = ek_coll_wait(&op);
    free(buf);
    return st;
}

static ek_status call_all_to_all(ek_comm *g, const ek_net_work *w, int64_t rows)
{
    int64_t *table = calloc((size_t)(g->size * g->size), sizeof(*table));
    char *send = buffer_of(rows * g->size * w->element),
         *recv = buffer_of(rows * g->size * w->element);
    ek_coll *op;
    ek_status st;

    for (int i = 0; i < g->size; i++)
        for (int j = 0; j < g->size; j++)
            table[i * g->size + j] = i / w->span == j / w->span && i != j ? rows : 0;
    st = ek_comm_all_to_all(g, (ek_a2a)(w->collective - EK_COLLECTIVE_A2A_LINEAR), table,
                            (size_t)w->element, send, recv, &op);
    if (st == EK_OK)
        st = ek_coll_wait(&op);
    free(table);
    free(send);
    free(recv);
    return st;
}

/* The rank after the caller gets a message. */
static ek_status call_messages(ek_comm *g, const ek_net_work *w)
{
    char *out = buffer_of((int64_t)w->bytes), *in = buffer_of((int64_t)w->bytes);
    ek_coll *sent = NULL, *got = NULL;
    ek_status st =
        ek_comm_recv(g, in, (int64_t)w->bytes, (g->rank + g->size - 1) % g->size, TAG, &got);

    if (st == EK_OK)
        st = ek_comm_send(g, out, (int64_t)w->bytes, w->peer, TAG, &sent);
    if (st == EK_OK)
        st = ek_coll_wait(&got);
    if (st == EK_OK)
        st = ek_coll_wait(&sent);
    free(out);
    free(in);
    return st;
}

/* The work that is drawn, and the call that does it. */
static ek_status call(uint64_t seed, ek_comm *g, ek_net_work *w)
{
    int64_t n;

    w->element = draw_int(seed, 20, 1, 2) * 4;
    n = draw_elements(seed, w->element);
    w->peer = (g->rank + 1) % g->size;
    switch (w->collective) {
    case EK_COLLECTIVE_SEND: w->bytes = (double)n; return call_messages(g, w);
    case EK_COLLECTIVE_A2A_LINEAR:
    case EK_COLLECTIVE_A2A_PAIRWISE:
    case EK_COLLECTIVE_A2A_2DH:
        n = n / 8 + 1;
        w->span = divisor_of(seed, g->size);
        w->bytes = (double)(n * w->element * (w->span - 1));
        return call_all_to_all(g, w, n);
    default: w->bytes = (double)(n * w->element); return call_vector(g, w, n);
    }
}

static void compare(peer *p, uint64_t seed, const ek_cluster *c, const ek_net_work *w,
                    const ek_net_traffic *sent)
{
    ek_net_traffic t = ek_net_traffic_of(c, w, p->rank);

    for (int l = 0; l < c->n_levels; l++) {
        int segments = w->collective < EK_COLLECTIVE_A2A_LINEAR && w->bytes > EK_COLL_DIRECT_MAX;

        if (t.bytes[l] == sent->bytes[l] && (t.messages[l] == sent->messages[l] || segments))
            continue;
        p->failed++;
        fprintf(stderr,
                "draw %d: %s of %g bytes over ranks %d + %d i, %d of them, span %d: level %d of "
                "%d: rank %d sends %g bytes in %g messages, predicted %g in %g\n",
                (int)seed, ek_collective_name(w->collective), w->bytes, w->group.first,
                w->group.stride, w->group.n, w->span, l, c->n_levels, p->rank, sent->bytes[l],
                sent->messages[l], t.bytes[l], t.messages[l]);
    }
}

static void set_nodes(ek_comm *world, const ek_cluster *c)
{
    int node_of[OVER_MAX];

    for (int r = 0; r < world->size; r++)
        node_of[r] = r / (int)ek_cluster_node_ranks(c);
    ek_comm_set_nodes(world, node_of);
}

static int used_levels[EK_CLUSTER_LEVELS + 1]; /* draws whose 2DH all-to-all used so many levels */
static int forwarded;                          /* draws in which it forwarded rows */

static void note_2dh(const ek_cluster *c, ek_net_work w, const ek_net_traffic *sent)
{
    ek_net_traffic linear;
    int levels = 0;

    w.collective = EK_COLLECTIVE_A2A_LINEAR;
    linear = ek_net_traffic_of(c, &w, w.group.first);
    for (int l = 0; l < c->n_levels; l++)
        levels += sent->bytes[l] > 0;
    used_levels[levels]++;
    forwarded += memcmp(&linear, sent, sizeof(linear)) != 0;
}

static void run_draw(peer *p)
{
    static const ek_collective all[] = {
        EK_COLLECTIVE_ALL_REDUCE, EK_COLLECTIVE_ALL_GATHER,   EK_COLLECTIVE_REDUCE_SCATTER,
        EK_COLLECTIVE_A2A_LINEAR, EK_COLLECTIVE_A2A_PAIRWISE, EK_COLLECTIVE_A2A_2DH,
        EK_COLLECTIVE_SEND};
    ek_cluster c = draw_cluster(p->seed);
    ek_ranks ranks = draw_group(p->seed, p->size);
    ek_comm *g = NULL;
    counter k;
    int list[OVER_MAX];

    if (p->rank < ranks.first || (p->rank - ranks.first) % ranks.stride != 0 ||
        (p->rank - ranks.first) / ranks.stride >= ranks.n)
        return;
    ek_comm_set_checked(p->world, 0);
    set_nodes(p->world, &c);
    count_messages(p->world, &c, &k);
    for (int i = 0; i < ranks.n; i++)
        list[i] = ek_ranks_at(ranks, i);
    p->failed += ek_comm_group(p->world, "drawn", list, ranks.n, &g) != EK_OK;
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        ek_net_work w = {.collective = all[i], .group = ranks, .span = ranks.n};

        memset(&k.sent, 0, sizeof(k.sent));
        if (call(p->seed, g, &w) != EK_OK) {
            fprintf(stderr, "%s\n", ek_err_text());
            p->failed++;
            break;
        }
        compare(p, p->seed, &c, &w, &k.sent);
        if (p->rank == ranks.first && w.collective == EK_COLLECTIVE_A2A_2DH)
            note_2dh(&c, w, &k.sent);
    }
    ek_comm_close(&g);
}

static void traffic_is_what_is_sent(void)
{
    for (uint64_t seed = 0; seed < DRAWS; seed++)
        CHECK_INT(over(2 + (int)seed % (OVER_MAX - 1), NULL, run_draw, seed), 0);
    CHECK(forwarded > DRAWS / 10);
    CHECK(used_levels[2] > DRAWS / 10 && used_levels[3] > 0);
}

static const ek_case cases[] = {
    EK_CASE(traffic_is_what_is_sent),
};
EK_TEST_MAIN(cases)
