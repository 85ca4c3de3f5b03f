/* What links carry of rows (sim/level_rows.h): by hand, and as flows share the same links. */
#include "base/random.h"
#include "ek_test.h"
#include "sim/flow.h"
#include "sim/level_rows.h"
#include "sim_world.h"

enum { EP = 8, DRAWN = 200 };

/* Pairs of ranks on a node, which share its adapter. */
static const ek_cluster adapters = {
    .name = "adapters",
    .n_levels = 2,
    .level = {{.name = "node", .ranks = 2, .bytes_s = 1000},
              {.name = "net", .ranks = RANKS_MOST, .bytes_s = 1, .shared_by = 2}}};

static const ek_cluster own = {
    .name = "own", .n_levels = 1, .level = {{.name = "net", .ranks = RANKS_MOST, .bytes_s = 1}}};

/* Nodes of two ranks; a spine of half the bandwidth behind two nodes. */
static const ek_cluster spine = {
    .name = "spine",
    .n_levels = 3,
    .level = {{.name = "node", .ranks = 2, .bytes_s = 10},
              {.name = "leaf", .ranks = 4, .bytes_s = 1, .shared_by = 2},
              {.name = "spine", .ranks = RANKS_MOST, .bytes_s = 0.5, .shared_by = 4}}};

/* 100 rows from each rank to each. */
static void set_even(int64_t *rows, int32_t ep)
{
    for (int32_t i = 0; i < ep * ep; i++)
        rows[i] = 100;
}

static void check_wires(const ek_level_group *g, const int64_t *rows, const double *want)
{
    double wires[EP];
    ek_level_rows scratch[EP];

    ek_level_wires_of(g, rows, scratch, wires);
    for (int32_t r = 0; r < g->ep; r++)
        if (fabs(wires[r] - want[r]) > 1e-12)
            EK_T_FAIL("rank %d: %g, not %g", (int)r, wires[r], want[r]);
}

/* Four ranks: 0 and 1, 2 and 3 share an adapter. */
static void ranks_share_what_their_adapter_carries(void)
{
    ek_level_group g = {.cluster = &adapters, .ep = 4, .etp = 1, .shards = 1, .each = 100};
    int64_t rows[16];

    set_even(rows, 4);
    check_wires(&g, rows, (double[]){1, 1, 1, 1});
    for (int r = 2; r < 4; r++) { /* to rank 0 what was rank 1's, too: the node gets as much */
        rows[r * 4] = 200;
        rows[r * 4 + 1] = 0;
    }
    check_wires(&g, rows, (double[]){1, 1, 1, 1});
    set_even(rows, 4);
    rows[1] = rows[4] = rows[11] = rows[14] = 100000; /* within nodes */
    check_wires(&g, rows, (double[]){1, 1, 1, 1});
    set_even(rows, 4);
    for (int r = 2; r < 4; r++) /* the first node gets twice as much, and the second sends it */
        rows[r * 4] = rows[r * 4 + 1] = 200;
    check_wires(&g, rows, (double[]){2, 2, 2, 2});
    memset(rows, 0, sizeof(rows));
    rows[0] = 7; /* its own */
    check_wires(&g, rows, (double[]){0, 0, 0, 0});
}

static void ranks_with_links_of_their_own_carry_the_larger_direction(void)
{
    ek_level_group g = {.cluster = &own, .ep = 4, .etp = 1, .shards = 1, .each = 100};
    int64_t rows[16];

    set_even(rows, 4);
    rows[1] = 400; /* 0 sends 600, 1 gets 600 of 300 */
    check_wires(&g, rows, (double[]){2, 2, 1, 1});
}

/* Two expert ranks of two shards, a node each: what an expert rank has for another passes to both
 * shards of it; sent to the own shard alone, once. */
static void shards_share_the_adapter(void)
{
    ek_level_group g = {.cluster = &adapters, .ep = 2, .etp = 2, .shards = 2, .each = 100};
    int64_t rows[] = {0, 300, 100, 0};

    check_wires(&g, rows, (double[]){3, 3});
    g.shards = 1;
    check_wires(&g, rows, (double[]){3, 3});
    rows[1] = 100;
    check_wires(&g, rows, (double[]){1, 1});
}

/* --- as flows --------------------------------------------------------------------------------- */

typedef struct {
    ek_level_rows rows[EP];
    double wires[EP], whole[EP];
} exchange;

static const double *loads_of(const void *loads, const ek_op *op)
{
    return op->work.kind == EK_WORK_NET ? ((const exchange *)loads)->whole : NULL;
}

static const ek_level_rows *rows_of(const void *loads, const ek_op *op)
{
    (void)op;
    return ((const exchange *)loads)->rows;
}

static const double *wires_of(const void *loads, const ek_op *op)
{
    (void)op;
    return ((const exchange *)loads)->wires;
}

static void price_on(const void *context, const ek_sim_class *c, const ek_op *op, ek_sim_price *out)
{
    *out = (ek_sim_price){0};
    (void)c;
    if (op->work.kind == EK_WORK_NET)
        out->wire = ek_price_net(context, &op->work.net).wire_s;
}

/* Seconds of an all-to-all of EP ranks alone. */
static double exchange_seconds(const ek_cluster *c, const exchange *x, int flow)
{
    static const int32_t column[EP] = {0, 1, 2, 3, 4, 5, 6, 7};
    ek_cluster alone = ek_cluster_alone(c);
    world w;
    ek_sim_config cfg = {.graphs = &w.all,
                         .price = price_on,
                         .context = flow ? &alone : c,
                         .factors = loads_of,
                         .exchange = rows_of,
                         .replayed = flow ? NULL : wires_of,
                         .loads = x,
                         .column_of = column,
                         .n_columns = EP};
    ek_sim_result r;

    open_world(&w, 1, EP);
    net(&w.graph[0], EK_OP_DISPATCH_A2A, EK_COLLECTIVE_A2A_LINEAR, (ek_ranks){0, 1, EP}, -1, EP - 1,
        -1);
    CHECK_INT(flow ? ek_sim_flow(&cfg, c, &r) : ek_sim_replay(&cfg, &r), EK_OK);
    close_world(&w);
    return take_step(r);
}

/* A replay's exchange takes as long as its busiest link.  So do flows, unless what they share on
 * another level holds back those of that link. */
static void a_replay_takes_what_flows_take(void)
{
    static const ek_cluster *const all[] = {&own, &adapters, &spine};
    uint64_t state = 0;

    for (int i = 0; i < DRAWN; i++) {
        const ek_cluster *c = all[i % 3];
        ek_level_group g = {.cluster = c, .ep = EP, .etp = 1, .shards = 1, .each = 100};
        int64_t rows[EP * EP];
        ek_level_rows scratch[EP];
        exchange x;
        double flow, replay;

        for (int k = 0; k < EP * EP; k++)
            rows[k] = (int64_t)(ek_random_bits(3, 0, ++state) % 200);
        for (int r = 0; r < EP; r++)
            x.whole[r] = 1;
        ek_level_rows_of(&g, rows, x.rows, scratch);
        ek_level_wires_of(&g, rows, scratch, x.wires);
        flow = exchange_seconds(c, &x, 1);
        replay = exchange_seconds(c, &x, 0);
        CHECK(replay <= flow * (1 + 1e-9));
        CHECK(flow <= replay * (c == &spine ? 1.2 : 1 + 1e-9));
    }
}

/* Of drawn groups, those that are counted one by one. */
static void ranks_below_a_switch_follow_one_another(void)
{
    for (uint64_t seed = 0; seed < DRAWN; seed++) {
        ek_ranks g = {(int32_t)(ek_random_bits(3, seed, 0) % 5),
                      1 + (int32_t)(ek_random_bits(3, seed, 1) % 4),
                      1 + (int32_t)(ek_random_bits(3, seed, 2) % 12)};
        int64_t rank = (int64_t)(ek_random_bits(3, seed, 3) % RANKS_MOST);

        for (int l = 0; l < spine.n_levels; l++) {
            int64_t ranks = spine.level[l].ranks;
            ek_rank_range below = ek_rank_range_below(&spine, g, l, rank);

            for (int32_t i = 0; i < g.n; i++)
                CHECK_INT(i >= below.first && i < below.end,
                          l + 1 == spine.n_levels || ek_ranks_at(g, i) / ranks == rank / ranks);
        }
    }
}

static const ek_case cases[] = {EK_CASE(ranks_below_a_switch_follow_one_another),
                                EK_CASE(ranks_share_what_their_adapter_carries),
                                EK_CASE(ranks_with_links_of_their_own_carry_the_larger_direction),
                                EK_CASE(shards_share_the_adapter),
                                EK_CASE(a_replay_takes_what_flows_take)};
EK_TEST_MAIN(cases)
