/* The bytes and messages of collectives, by level, that sim/price_net.c predicts are those that
 * comm sends: all ranks of drawn groups, sizes and clusters call collectives over a back end that
 * records (train/net_calls.h). */
#include "base/coll_limits.h"
#include "base/random.h"
#include "ek_test.h"
#include "sim/price_net.h"
#include "train/net_calls.h"

enum { RANKS_MOST = 64, DRAWS = 250, SMALL = 9, TAG = 3 };

/* --- draws ------------------------------------------------------------------------------------ */

/* A uniform integer of [lo, hi]. */
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

static ek_net_work draw_work(uint64_t seed, ek_collective collective, ek_ranks ranks)
{
    ek_net_work w = {.collective = collective,
                     .group = ranks,
                     .span = ranks.n,
                     .peer = -1,
                     .element = draw_int(seed, 20, 1, 2) * 4};
    int64_t n = draw_elements(seed, w.element);

    w.bytes = (double)(n * w.element);
    if (collective >= EK_COLLECTIVE_A2A_LINEAR && collective <= EK_COLLECTIVE_A2A_2DH) {
        w.span = divisor_of(seed, ranks.n);
        w.bytes = (double)((n / 8 + 1) * w.element * (w.span - 1));
    }
    if (collective == EK_COLLECTIVE_PARTNERS)
        w.after = draw_int(seed, 16, 1, ranks.n - 1);
    return w;
}

/* --- one draw --------------------------------------------------------------------------------- */

/* Lets all messages arrive at once until every rank of the group has finished its calls. */
static int count_sent(ek_net_calls *calls, const ek_cluster *c, ek_ranks g, int n_calls,
                      ek_net_traffic *sent)
{
    ek_recorder *r = ek_net_calls_recorder(calls);
    int left = g.n * n_calls, moved = 1;
    ek_recorded m;

    while (moved) {
        for (moved = 0; ek_record_take(r, &m); moved = 1) {
            int l = ek_cluster_level_between(c, m.from, m.to);

            sent[m.from].bytes[l] += (double)m.bytes;
            sent[m.from].messages[l]++;
            ek_record_left(r, m.id);
            ek_record_arrived(r, m.id);
        }
        for (int32_t i = 0; i < g.n; i++) {
            int32_t call = -1;

            do {
                CHECK_INT(ek_net_calls_finished(calls, ek_ranks_at(g, i), &call), EK_OK);
                left -= call >= 0;
                moved |= call >= 0;
            } while (call >= 0);
        }
    }
    return left;
}

/* All ranks make the call; of a message, the next rank gets it. */
static void call_on_all(ek_net_calls *calls, const ek_net_work *w)
{
    for (int32_t i = 0; i < w->group.n; i++) {
        int32_t rank = ek_ranks_at(w->group, i);
        ek_net_work own = *w;

        if (w->collective == EK_COLLECTIVE_SEND) {
            own.collective = EK_COLLECTIVE_RECEIVE;
            own.peer = (i + w->group.n - 1) % w->group.n;
            CHECK_INT(ek_net_calls_start(calls, rank, &own, TAG, 0), EK_OK);
            own.collective = EK_COLLECTIVE_SEND;
            own.peer = (i + 1) % w->group.n;
        }
        CHECK_INT(ek_net_calls_start(calls, rank, &own, TAG, 1), EK_OK);
    }
}

static void compare(uint64_t seed, const ek_cluster *c, const ek_net_work *w,
                    const ek_net_traffic *sent)
{
    for (int32_t i = 0; i < w->group.n; i++) {
        int32_t rank = ek_ranks_at(w->group, i);
        ek_net_work own = *w;
        ek_net_traffic t;

        own.peer = w->collective == EK_COLLECTIVE_SEND ? (i + 1) % w->group.n : -1;
        t = ek_net_traffic_of(c, &own, rank);
        for (int l = 0; l < c->n_levels; l++) {
            int segments =
                w->collective < EK_COLLECTIVE_A2A_LINEAR && w->bytes > EK_COLL_DIRECT_MAX;

            if (t.bytes[l] != sent[rank].bytes[l] ||
                (t.messages[l] != sent[rank].messages[l] && !segments))
                EK_T_FAIL("draw %d: %s of %g bytes over ranks %d + %d i, %d of them, span %d: "
                          "level %d of %d: rank %d sends %g bytes in %g messages, predicted %g in "
                          "%g",
                          (int)seed, ek_collective_name(w->collective), w->bytes, w->group.first,
                          w->group.stride, w->group.n, w->span, l, c->n_levels, rank,
                          sent[rank].bytes[l], sent[rank].messages[l], t.bytes[l], t.messages[l]);
        }
    }
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
        levels += sent[w.group.first].bytes[l] > 0;
    used_levels[levels]++;
    forwarded += memcmp(&linear, &sent[w.group.first], sizeof(linear)) != 0;
}

static void run_draw(uint64_t seed, int ranks)
{
    static const ek_collective all[] = {EK_COLLECTIVE_ALL_REDUCE,     EK_COLLECTIVE_ALL_GATHER,
                                        EK_COLLECTIVE_REDUCE_SCATTER, EK_COLLECTIVE_A2A_LINEAR,
                                        EK_COLLECTIVE_A2A_PAIRWISE,   EK_COLLECTIVE_A2A_2DH,
                                        EK_COLLECTIVE_SEND,           EK_COLLECTIVE_PARTNERS};
    static ek_net_traffic sent[RANKS_MOST];
    ek_cluster c = draw_cluster(seed);
    ek_ranks group = draw_group(seed, ranks);
    ek_net_calls *calls = NULL;
    int *node_of = NULL;

    CHECK_INT(ek_cluster_nodes(&c, ranks, &node_of), EK_OK);
    CHECK_INT(ek_net_calls_open(ranks, node_of, &calls), EK_OK);
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        ek_net_work w = draw_work(seed, all[i], group);

        memset(sent, 0, sizeof(sent));
        call_on_all(calls, &w);
        CHECK_INT(count_sent(calls, &c, group, w.collective == EK_COLLECTIVE_SEND ? 2 : 1, sent),
                  0);
        compare(seed, &c, &w, sent);
        if (w.collective == EK_COLLECTIVE_A2A_2DH)
            note_2dh(&c, w, sent);
    }
    ek_net_calls_close(&calls);
    free(node_of);
}

static void traffic_is_what_is_sent(void)
{
    for (uint64_t seed = 0; seed < DRAWS; seed++)
        run_draw(seed, seed % 5 > 0 ? 2 + (int)seed % (SMALL - 1)
                                    : draw_int(seed, 30, SMALL, RANKS_MOST));
    CHECK(forwarded > DRAWS / 10);
    CHECK(used_levels[2] > DRAWS / 10 && used_levels[3] > 0);
}

static void works_that_depend_on_plans_are_refused(void)
{
    static const int node_of[] = {0, 0};
    ek_net_work w = {.collective = EK_COLLECTIVE_MULTICASTS, .group = {0, 1, 2}, .bytes = 1};
    ek_net_calls *calls = NULL;

    CHECK_INT(ek_net_calls_open(2, node_of, &calls), EK_OK);
    CHECK_INT(ek_net_calls_start(calls, 0, &w, 0, 0), EK_EUNSUPPORTED);
    CHECK(strstr(ek_err_message(), "depend on a plan") != NULL);
    ek_net_calls_close(&calls);
}

static const ek_case cases[] = {
    EK_CASE(traffic_is_what_is_sent),
    EK_CASE(works_that_depend_on_plans_are_refused),
};
EK_TEST_MAIN(cases)
