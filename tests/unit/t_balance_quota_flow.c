/* The least maximum load and the most local assignments, against plain searches: bisection with a
 * maximum flow, and a minimum-cost flow by one shortest path at a time, over a matrix of arcs. */
#include "balance/quota_flow.h"
#include "base/clock.h"
#include "base/random.h"
#include "ek_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    RANKS = 9,
    EXPERTS = 14,
    SLOTS = 7,
    DRAWS = EK_T_SLOW ? 100 : 500,
    NODES = RANKS + EXPERTS + 2
};

typedef struct {
    ek_arena arena;
    ek_plan_limits l;
    ek_plan p;
    ek_quota_flow f;
    int64_t *counts; /* [ranks][experts] */
    int32_t *cost;   /* [ranks] */
} layer;

static int64_t drawn(int draw, int i, int64_t below)
{
    return (int64_t)((ek_random_bits(71, (uint64_t)draw, (uint64_t)i) >> 9) % (uint64_t)below);
}

static void lay_out(layer *x)
{
    ek_plan_reserve(&x->p, &x->arena, &x->l);
    ek_quota_flow_reserve(&x->f, &x->arena, &x->l);
    x->counts = ek_arena_alloc(&x->arena, (int64_t)x->l.ranks * x->l.experts, sizeof(*x->counts));
    x->cost = ek_arena_alloc(&x->arena, x->l.ranks, sizeof(*x->cost));
}

static void open_layer(layer *x, int32_t experts, int32_t ranks, int32_t slots)
{
    memset(x, 0, sizeof(*x));
    x->l = (ek_plan_limits){.experts = experts, .ranks = ranks, .slots = slots};
    ek_arena_measure(&x->arena);
    lay_out(x);
    CHECK(ek_arena_reserve(&x->arena, "quotas") == EK_OK);
    lay_out(x);
    CHECK(ek_arena_check(&x->arena, "quotas") == EK_OK);
    ek_placement_block(&x->p.placement, 1);
}

static void close_layer(layer *x)
{
    ek_arena_fini(&x->arena);
}

/* Any replicas, some twice on a rank; counts that are skewed, small, zero or equal.  In every other
 * draw ranks cost different amounts of time. */
static void draw_layer(layer *x, int draw)
{
    int32_t ranks = 1 + (int32_t)drawn(draw, 0, RANKS), own = 1 + (int32_t)drawn(draw, 1, 3);
    int32_t experts = (int32_t)(own * ranks - drawn(draw, 2, ranks)), i = 10;
    int64_t most = draw % 4 == 0 ? 3 : draw % 4 == 1 ? 1000000 : 40;

    experts = experts < EXPERTS ? experts : EXPERTS;
    own = (experts + ranks - 1) / ranks;
    open_layer(x, experts, ranks, own + (int32_t)drawn(draw, 3, SLOTS - 3));
    for (int32_t s = 0; s < ranks * x->l.slots; s++)
        if (x->p.placement.expert_of[s] < 0 && drawn(draw, i++, 3) > 0)
            x->p.placement.expert_of[s] = (int32_t)drawn(draw, i++, experts);
    for (int32_t r = 0; r < ranks; r++)
        for (int32_t e = 0; e < experts; e++, i += 2)
            x->counts[r * experts + e] =
                drawn(draw, i, 3) == 0
                    ? 0
                    : drawn(draw, i + 1, most) * (draw % 3 == 0 && e < 2 ? 20 : 1);
    for (int32_t r = 0; r < ranks; r++, i += 2)
        x->cost[r] = (int32_t)(EK_ROW_COST_ONE + drawn(draw, i, 3) * drawn(draw, i + 1, 400));
    x->l.row_cost = draw % 2 == 1 ? x->cost : NULL;
}

/* --- plain searches --------------------------------------------------------------------------- */

/* Arcs: source, experts, ranks, sink. */
typedef struct {
    int32_t experts, ranks, n;
    int64_t room[NODES][NODES][2];  /* residual capacity, of cost 0 and of cost 1 */
    int64_t taken[NODES][NODES][2]; /* flow */
} plain;

static int32_t rank_node(const plain *g, int32_t rank)
{
    return 1 + g->experts + rank;
}

static void fill_plain(plain *g, const layer *x, int64_t capacity)
{
    memset(g, 0, sizeof(*g));
    g->experts = x->l.experts;
    g->ranks = x->l.ranks;
    g->n = g->experts + g->ranks + 2;
    for (int32_t r = 0; r < g->ranks; r++) {
        g->room[rank_node(g, r)][g->n - 1][0] = capacity / ek_row_cost(&x->l, r);
        for (int32_t e = 0; e < g->experts; e++) {
            int64_t sent = x->counts[r * g->experts + e];

            g->room[0][1 + e][0] += sent;
            if (ek_plan_slot(&x->p.placement, r, e) < 0)
                continue;
            g->room[1 + e][rank_node(g, r)][0] = sent;
            g->room[1 + e][rank_node(g, r)][1] = INT64_MAX / 4;
        }
    }
}

/* The cheapest way to send one more from a to b; *k: the arc: 0, 1 forwards, 2, 3 backwards. */
static int32_t arc_cost(const plain *g, int32_t a, int32_t b, int32_t *k)
{
    static const int32_t cost[] = {0, 1, 0, -1};
    const int64_t room[] = {g->room[a][b][0], g->room[a][b][1], g->taken[b][a][0],
                            g->taken[b][a][1]};

    *k = -1;
    for (int32_t i = 0; i < 4; i++)
        if (room[i] > 0 && (*k < 0 || cost[i] < cost[*k]))
            *k = i;
    return *k < 0 ? 0 : cost[*k];
}

static void send_along(plain *g, int32_t a, int32_t b, int32_t k, int64_t n)
{
    int back = k > 1;
    int64_t *room = back ? &g->room[b][a][k - 2] : &g->room[a][b][k];
    int64_t *taken = back ? &g->taken[b][a][k - 2] : &g->taken[a][b][k];

    *room -= back ? -n : n;
    *taken += back ? -n : n;
}

/* One shortest path (Bellman and Ford); returns what it takes, 0 if there is none. */
static int64_t augment(plain *g, int64_t *cost)
{
    int32_t d[NODES] = {0}, from[NODES] = {0}, k;
    int64_t n = INT64_MAX;

    for (int32_t v = 1; v < g->n; v++)
        d[v] = INT32_MAX / 2;
    for (int32_t round = 0; round < g->n; round++)
        for (int32_t a = 0; a < g->n; a++)
            for (int32_t b = 0; b < g->n; b++) {
                int32_t c = arc_cost(g, a, b, &k);

                if (k >= 0 && d[a] < INT32_MAX / 2 && d[a] + c < d[b]) {
                    d[b] = d[a] + c;
                    from[b] = a;
                }
            }
    if (d[g->n - 1] >= INT32_MAX / 2)
        return 0;
    for (int32_t v = g->n - 1; v != 0; v = from[v]) {
        (void)arc_cost(g, from[v], v, &k);
        const int64_t room = k < 2 ? g->room[from[v]][v][k] : g->taken[v][from[v]][k - 2];

        n = room < n ? room : n;
    }
    for (int32_t v = g->n - 1; v != 0; v = from[v]) {
        (void)arc_cost(g, from[v], v, &k);
        send_along(g, from[v], v, k, n);
    }
    *cost += n * d[g->n - 1];
    return n;
}

/* The most that are served within a capacity; *remote: the fewest of them that leave their rank. */
static int64_t serve_plainly(const layer *x, int64_t capacity, int64_t *remote)
{
    static plain g;
    int64_t served = 0, n;

    *remote = 0;
    fill_plain(&g, x, capacity);
    while ((n = augment(&g, remote)) > 0)
        served += n;
    return served;
}

static int64_t sum_counts(const layer *x)
{
    int64_t sum = 0;

    for (int32_t i = 0; i < x->l.ranks * x->l.experts; i++)
        sum += x->counts[i];
    return sum;
}

static int64_t least_plainly(const layer *x, int64_t *remote)
{
    int64_t low = 0, high = sum_counts(x) *
                            (EK_ROW_COST_ONE + 800); /* low - 1 does not suffice, high does */

    while (low < high) {
        int64_t middle = low + (high - low) / 2;

        if (serve_plainly(x, middle, remote) == sum_counts(x))
            high = middle;
        else
            low = middle + 1;
    }
    (void)serve_plainly(x, high, remote);
    return high;
}

/* --- properties ------------------------------------------------------------------------------- */

/* Assignments that leave their rank, by the dispatcher's own split. */
static int64_t remote_of(const layer *x)
{
    static int64_t memory[RANKS + RANKS * SLOTS], rows[RANKS * RANKS * SLOTS];
    static int32_t slots[RANKS * SLOTS];
    int64_t remote = 0;

    for (int32_t e = 0; e < x->l.experts; e++) {
        int32_t n =
            ek_plan_split(&x->l, x->counts, &x->p.placement, x->p.quota, e, memory, slots, rows);

        for (int32_t r = 0; r < x->l.ranks; r++)
            for (int32_t i = 0; i < n; i++)
                remote += slots[i] / x->l.slots != r ? rows[r * n + i] : 0;
    }
    return remote;
}

static int64_t largest_load(const layer *x)
{
    int64_t load[RANKS];

    (void)ek_plan_loads(&x->l, &x->p, load);
    for (int32_t r = 0; r < x->l.ranks; r++)
        CHECK_INT(x->f.load[r], load[r]);
    return ek_row_costs_largest(&x->l, load);
}

static void any_layer_has_the_least_load_with_the_fewest_rows_moved(void)
{
    int above_mean = 0, replicated = 0;

    for (int draw = 0; draw < DRAWS && ek_t.failed == 0; draw++) {
        int64_t remote, least;
        layer x;

        draw_layer(&x, draw);
        least = least_plainly(&x, &remote);
        ek_quota_flow_start(&x.f, &x.l, x.counts, &x.p.placement);
        CHECK_INT(ek_quota_flow_least(&x.f, &x.l, &x.p.placement, x.p.quota), least);
        if (ek_plan_check(&x.l, x.counts, &x.p) != EK_OK)
            EK_T_FAIL("draw %d: %s", draw, ek_err_message());
        CHECK_INT(largest_load(&x), least);
        CHECK_INT(remote_of(&x), remote);
        above_mean += least > ek_row_costs_level(&x.l, NULL, sum_counts(&x));
        for (int32_t s = 0; s < x.l.ranks * x.l.slots; s++)
            replicated += ek_plan_is_replica(&x.p.placement, s) && x.p.quota[s] > 0;
        close_layer(&x);
    }
    CHECK(above_mean > DRAWS / 4 && above_mean < DRAWS * 9 / 10 && replicated > DRAWS / 2);
}

/* Below the least maximum, too: as much as any flow, and as much of it local. */
static void any_capacity_serves_the_most(void)
{
    int unserved = 0;

    for (int draw = 0; draw < DRAWS && ek_t.failed == 0; draw++) {
        int64_t remote, most, capacity, left, sum = 0, leave = 0;
        layer x;

        draw_layer(&x, draw);
        capacity = drawn(draw, 5, 2 * ek_row_costs_level(&x.l, NULL, sum_counts(&x)) + 1);
        most = serve_plainly(&x, capacity, &remote);
        ek_quota_flow_start(&x.f, &x.l, x.counts, &x.p.placement);
        left = ek_quota_flow_within(&x.f, &x.l, &x.p.placement, capacity, x.p.quota);
        CHECK_INT(sum_counts(&x) - left, most);
        CHECK(largest_load(&x) <= capacity);
        for (int32_t s = 0; s < x.l.ranks * x.l.slots; s++) {
            int64_t local = x.f.local[s];

            sum += x.p.quota[s];
            leave += x.p.quota[s] > local ? x.p.quota[s] - local : 0;
        }
        CHECK_INT(sum, most);
        CHECK_INT(leave, remote);
        unserved += left > 0;
        close_layer(&x);
    }
    CHECK(unserved > DRAWS / 4);
}

/* --- by hand ---------------------------------------------------------------------------------- */

/* Expert 0 is on ranks 0 and 1, expert 1 on rank 1 and expert 2 on rank 2. */
static void open_three(layer *x, int64_t a, int64_t b, int64_t c)
{
    open_layer(x, 3, 3, 2);
    x->p.placement.expert_of[3] = 0;
    x->counts[0] = a; /* all of rank 0's tokens */
    x->counts[1] = b;
    x->counts[2] = c;
}

static int64_t least_of(layer *x)
{
    ek_quota_flow_start(&x->f, &x->l, x->counts, &x->p.placement);
    return ek_quota_flow_least(&x->f, &x->l, &x->p.placement, x->p.quota);
}

static void two_copies_are_split_at_the_least_maximum(void)
{
    layer x;

    open_three(&x, 100, 41, 7);
    CHECK_INT(least_of(&x), 71); /* 141 on two ranks */
    CHECK_INT(x.p.quota[0], 71); /* rank 0's own come first */
    CHECK_INT(x.p.quota[3], 29);
    CHECK_INT(x.p.quota[2], 41);
    CHECK_INT(x.p.quota[4], 7);
    close_layer(&x);
}

static void rows_stay_on_their_rank_where_the_maximum_is_elsewhere(void)
{
    layer x;

    open_three(&x, 10, 1, 50);
    CHECK_INT(least_of(&x), 50);
    CHECK_INT(x.p.quota[0], 10);
    CHECK_INT(x.p.quota[3], 0);
    close_layer(&x);
}

static void without_assignments_nothing_is_served(void)
{
    layer x;

    open_three(&x, 0, 0, 0);
    CHECK_INT(least_of(&x), 0);
    CHECK_INT(largest_load(&x), 0);
    close_layer(&x);
}

static void huge_counts_do_not_overflow(void)
{
    layer x;

    open_three(&x, (int64_t)1 << 61, (int64_t)1 << 60, 1);
    CHECK_INT(least_of(&x), ((int64_t)3 << 60) / 2);
    close_layer(&x);
}

/* --- many ranks ------------------------------------------------------------------------------- */

/* Two experts a rank, each with a second copy on the rank after, and an empty slot, as `auto` with
 * --replicas-min 2 may have them; popular experts have up to seven times the assignments of others.
 */
static void open_ring(layer *x, int32_t ranks)
{
    open_layer(x, 2 * ranks, ranks, 5);
    for (int32_t e = 0; e < 2 * ranks; e++)
        x->p.placement.expert_of[(e / 2 + 1) % ranks * 5 + 2 + e % 2] = e;
    for (int32_t i = 0; i < 2 * ranks * ranks; i++)
        x->counts[i] = 16 + drawn(ranks, i % (2 * ranks), 100) + drawn(ranks + 1, i, 9);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Prints the median time of the quotas of a layer. */
static void quotas_of_many_ranks_are_valid(void)
{
    enum { REPEATS = 99 };
    static const int32_t ranks[] = {4, 16, 64};

    for (size_t i = 0; i < sizeof(ranks) / sizeof(*ranks); i++) {
        double us[REPEATS];
        layer x;

        open_ring(&x, ranks[i]);
        for (int n = 0; n < REPEATS; n++) {
            int64_t start = ek_clock_ns();

            (void)least_of(&x);
            us[n] = (double)(ek_clock_ns() - start) / 1e3;
        }
        CHECK(ek_plan_check(&x.l, x.counts, &x.p) == EK_OK);
        qsort(us, REPEATS, sizeof(*us), by_size);
        printf("%d ranks, %d experts with two copies: %.1f us for quotas (median of %d)\n",
               ranks[i], 2 * ranks[i], us[REPEATS / 2], REPEATS);
        close_layer(&x);
    }
}

static const ek_case cases[] = {
    EK_CASE(any_layer_has_the_least_load_with_the_fewest_rows_moved),
    EK_CASE(any_capacity_serves_the_most),
    EK_CASE(two_copies_are_split_at_the_least_maximum),
    EK_CASE(rows_stay_on_their_rank_where_the_maximum_is_elsewhere),
    EK_CASE(without_assignments_nothing_is_served),
    EK_CASE(huge_counts_do_not_overflow),
    EK_CASE(quotas_of_many_ranks_are_valid),
};
EK_TEST_MAIN(cases)
