/* The engine of messages (sim/messages.h) with the communicator's collectives: closed forms of
 * messages that share links and of collectives alone, laws, and where the closed forms of
 * sim/price_net.h part from it. */
#include "base/coll_limits.h"
#include "ek_test.h"
#include "sim/price_net.h"
#include "sim_world.h"
#include "train/net_calls.h"
#include "unit/net_work.h"

/* Links carry a byte a second, so bytes are seconds: ranks with links of their own; and pairs of
 * ranks that share an adapter of two bytes a second. */
static const ek_cluster own = {
    .name = "own", .n_levels = 1, .level = {{.name = "net", .ranks = RANKS_MOST, .bytes_s = 1}}};
static const ek_cluster paired = {
    .name = "paired",
    .n_levels = 1,
    .level = {{.name = "net", .ranks = RANKS_MOST, .bytes_s = 1, .shared_by = 2}}};

/* Pairs below a leaf that a spine joins with a byte a second for both ranks. */
static const ek_cluster spine = {
    .name = "spine",
    .n_levels = 2,
    .level = {{.name = "leaf", .ranks = 2, .bytes_s = 2},
              {.name = "spine", .ranks = RANKS_MOST, .bytes_s = 0.5, .shared_by = 2}}};

static const factors prices = {1, 0, 0, 0};
static const int32_t recorded[] = {0, 1, 2, 3};

static ek_sim_result messages_of(const world *w, const ek_cluster *c, const double *slow)
{
    ek_sim_config cfg = {.graphs = &w->all,
                         .price = price_by_bytes,
                         .context = &prices,
                         .slow = slow,
                         .recorded = recorded,
                         .n_recorded = w->all.ranks < 4 ? w->all.ranks : 4};
    ek_net_calls *calls = NULL;
    ek_sim_calls run;
    ek_sim_result r;
    int *node_of = NULL;

    CHECK_INT(ek_cluster_nodes(c, w->all.ranks, &node_of), EK_OK);
    CHECK_INT(ek_net_calls_open(w->all.ranks, node_of, &calls), EK_OK);
    run = ek_net_calls_for_sim(calls);
    CHECK_INT(ek_sim_messages(&cfg, c, &run, &r), EK_OK);
    CHECK(fabs(ek_sim_parts_sum(&r.parts) - r.step_s) <= 1e-9 * r.step_s);
    ek_net_calls_close(&calls);
    free(node_of);
    return r;
}

static double step_of(const world *w, const ek_cluster *c, const double *slow)
{
    return take_step(messages_of(w, c, slow));
}

/* --- messages --------------------------------------------------------------------------------- */

static void messages_share_a_link(void)
{
    world w;
    ek_sim_result r;

    open_world(&w, 4, 1);
    message(&w, 0, 2, 0, 4);
    CHECK_SECONDS(step_of(&w, &paired, NULL), 2);
    message(&w, 1, 3, 1, 4);
    r = messages_of(&w, &paired, NULL);
    CHECK_SECONDS(r.records[0].spans[0].end, 3); /* 1 of it alone, then half of the link */
    CHECK_SECONDS(r.records[3].spans[0].end, 4);
    ek_sim_free(&r);
    close_world(&w);
}

static void senders_to_one_rank_share_its_link(void)
{
    world w;

    open_world(&w, 4, 1);
    for (int32_t from = 0; from < 3; from++)
        message(&w, from, 3, 0, 2);
    CHECK_SECONDS(step_of(&w, &own, NULL), 6);
    close_world(&w);
}

/* To the spine a message passes the leaf's link as well, of which it takes half. */
static void messages_pass_the_links_of_all_levels(void)
{
    ek_cluster nodes = spine;
    world w;

    snprintf(nodes.level[0].name, sizeof(nodes.level[0].name), "node");
    open_world(&w, 8, 1);
    message(&w, 0, 4, 0, 4);
    message(&w, 0, 1, 0, 4);
    CHECK_SECONDS(step_of(&w, &spine, NULL), 4);
    message(&w, 1, 6, 0, 4); /* with the other to the spine; then the leaf's have it alone */
    CHECK_SECONDS(step_of(&w, &spine, NULL), 8);
    message(&w, 0, 1, 0, 8);
    CHECK_SECONDS(step_of(&w, &spine, NULL), 8);
    message(&w, 0, 1, 0, 4);
    CHECK_SECONDS(step_of(&w, &spine, NULL), 10);
    CHECK_SECONDS(step_of(&w, &nodes, NULL), 8); /* inside a node by another link */
    close_world(&w);
}

static void pairs_that_share_no_link_do_not_interact(void)
{
    world w;

    open_world(&w, 4, 1);
    message(&w, 0, 1, 0, 2);
    message(&w, 2, 3, 0, 2);
    message(&w, 1, 0, 0, 2); /* the other direction */
    CHECK_SECONDS(step_of(&w, &own, NULL), 2);
    close_world(&w);
}

/* Of a rank to another the second message leaves when the first has left; both pay the latency. */
static void messages_of_a_pair_are_one_after_the_other(void)
{
    ek_cluster slow = own;
    world w;
    ek_sim_result r;

    slow.level[0].latency_s = 10;
    open_world(&w, 2, 1);
    message(&w, 0, 1, 0, 2);
    message(&w, 0, 1, 0, 3);
    r = messages_of(&w, &slow, NULL);
    CHECK_SECONDS(r.records[0].spans[0].end, 2); /* the sender does not wait for the latency */
    CHECK_SECONDS(r.records[0].spans[1].end, 5);
    CHECK_SECONDS(r.records[1].spans[0].end, 12);
    CHECK_SECONDS(r.records[1].spans[1].end, 15);
    ek_sim_free(&r);
    close_world(&w);
}

/* Two messages to different ranks: the second leaves after the overhead of both. */
static void overheads_of_messages_are_the_processors(void)
{
    ek_cluster dear = own;
    world w;
    ek_sim_result r;
    int32_t last;

    dear.level[0].overhead_s = 2;
    open_world(&w, 3, 1);
    message(&w, 0, 1, 0, 1);
    message(&w, 0, 2, 0, 3);
    last = compute(&w.graph[0], 1, compute(&w.graph[0], 1, -1));
    r = messages_of(&w, &dear, NULL);
    CHECK_SECONDS(r.records[1].spans[0].end, 3);
    CHECK_SECONDS(r.records[2].spans[0].end, 7);
    CHECK_SECONDS(r.records[0].spans[last].end, 6); /* it began behind the first computation */
    CHECK_SECONDS(r.of_class[0].overhead, 4);
    ek_sim_free(&r);
    close_world(&w);
}

/* Both ranks compute later for the bytes of a message, which is not later itself. */
static void bytes_of_messages_cost_both_ranks(void)
{
    ek_cluster dear = own;
    world w;
    ek_sim_result r;
    int32_t sender, receiver;

    dear.level[0].byte_s = 2;
    open_world(&w, 2, 1);
    message(&w, 0, 1, 0, 3);
    sender = compute(&w.graph[0], 1, compute(&w.graph[0], 1, -1));
    receiver = compute(&w.graph[1], 1, compute(&w.graph[1], 4, -1));
    r = messages_of(&w, &dear, NULL);
    CHECK_SECONDS(r.records[1].spans[0].end, 3);
    CHECK_SECONDS(r.records[0].spans[sender].end, 5);   /* half of 3 bytes at 2 s */
    CHECK_SECONDS(r.records[1].spans[receiver].end, 8); /* it arrives during the first */
    CHECK_SECONDS(r.of_class[0].overhead, 3);
    CHECK_SECONDS(r.of_class[1].overhead, 3);
    ek_sim_free(&r);
    close_world(&w);
}

/* A message leaves when its receiver has called, too. */
static void messages_wait_for_their_receivers(void)
{
    const ek_ranks two = {0, 1, 2};
    world w;
    ek_sim_result r;

    open_world(&w, 2, 1);
    net(&w.graph[0], EK_OP_SEND, EK_COLLECTIVE_SEND, two, 1, 3, -1);
    net(&w.graph[1], EK_OP_RECEIVE, EK_COLLECTIVE_RECEIVE, two, 0, 3, compute(&w.graph[1], 5, -1));
    r = messages_of(&w, &own, NULL);
    CHECK_SECONDS(r.records[0].spans[0].end, 8);
    CHECK_SECONDS(r.records[1].spans[1].end, 8);
    ek_sim_free(&r);
    close_world(&w);
}

static void receives_without_a_sender_are_an_error(void)
{
    const ek_ranks two = {0, 1, 2};
    ek_sim_config cfg = {.price = price_by_bytes, .context = &prices};
    static const int node_of[] = {0, 1};
    ek_net_calls *calls = NULL;
    ek_sim_calls run;
    ek_sim_result r;
    world w;

    open_world(&w, 2, 1);
    net(&w.graph[1], EK_OP_RECEIVE, EK_COLLECTIVE_RECEIVE, two, 0, 3, -1);
    cfg.graphs = &w.all;
    CHECK_INT(ek_net_calls_open(2, node_of, &calls), EK_OK);
    run = ek_net_calls_for_sim(calls);
    CHECK_INT(ek_sim_messages(&cfg, &own, &run, &r), EK_EINTERNAL);
    CHECK(strstr(ek_err_message(), "wait for one another") != NULL);
    ek_sim_free(&r);
    ek_net_calls_close(&calls);
    close_world(&w);
}

/* Three ranks have computed for a second, and one for ten. */
static void ranks_wait_for_the_last_of_a_collective(void)
{
    const double slow[] = {1, 1, 10, 1};
    world w;
    ek_sim_result r;

    open_world(&w, 1, 4);
    compute(&w.graph[0], 1,
            all_reduce(&w.graph[0], (ek_ranks){0, 1, 4}, 4, compute(&w.graph[0], 1, -1)));
    r = messages_of(&w, &own, slow);
    CHECK_SECONDS(r.records[0].spans[1].begun, 10);
    CHECK_SECONDS(r.records[0].spans[1].end, 22); /* the whole vector to three others */
    CHECK_SECONDS(r.step_s, 32);
    CHECK_SECONDS(r.parts.skew, 9 * 0.75);
    CHECK_SECONDS(r.parts.transfer[EK_COLLECTIVE_ALL_REDUCE], 12);
    ek_sim_free(&r);
    close_world(&w);
}

/* --- collectives alone ------------------------------------------------------------------------ */

/* Nodes of 4 ranks with 100 GB/s and 2 us, and 10 GB/s and 5 us between them. */
static ek_cluster two_levels(void)
{
    ek_cluster c = {
        .n_levels = 2,
        .level = {{"node", 4, 100e9, 2e-6, 0, 1, 1, 0, 0}, {"net", 64, 10e9, 5e-6, 0, 1, 1, 0, 0}}};

    return c;
}

/* The ranks of a group, and of all between them, make one call. */
static double alone(const ek_cluster *c, ek_collective collective, ek_ranks group, double bytes)
{
    ek_op op = {.kind = EK_OP_REDUCE_GRADIENTS,
                .lane = EK_LANE_NET,
                .work = {.kind = EK_WORK_NET, .net = work_of(collective, group, bytes)}};
    world w;
    double s;

    open_world(&w, 1, group.stride * group.n);
    ek_graph_after(&w.graph[0], &op, -1);
    s = step_of(&w, c, NULL);
    close_world(&w);
    return s;
}

static double priced(const ek_cluster *c, ek_collective collective, ek_ranks group, double bytes)
{
    ek_net_work w = work_of(collective, group, bytes);
    ek_net_time t = ek_price_net(c, &w);

    return t.overhead_s + t.wire_s + t.latency_s;
}

static const ek_collective all[] = {EK_COLLECTIVE_ALL_REDUCE,     EK_COLLECTIVE_ALL_GATHER,
                                    EK_COLLECTIVE_REDUCE_SCATTER, EK_COLLECTIVE_A2A_LINEAR,
                                    EK_COLLECTIVE_A2A_PAIRWISE,   EK_COLLECTIVE_A2A_2DH};
static const ek_ranks groups[] = {{0, 1, 2},  {0, 1, 4}, {0, 1, 8},
                                  {0, 1, 16}, {0, 4, 4}, {0, 2, 8}};
static const double sizes[] = {1e3, 1e5, 1e6, 1e7};

enum { COLLECTIVES = 6, GROUPS = 6, SIZES = 4 };

static void rings_take_their_formula(void)
{
    ek_cluster c = two_levels();

    for (int n = 2; n <= 16; n++) {
        double chunk = 16 * EK_COLL_SEGMENT, segment = EK_COLL_SEGMENT / 4;
        double steps = 2 * (n - 1);

        c.level[0] = (ek_cluster_level){
            .name = "net", .ranks = 64, .bytes_s = 10e9, .latency_s = 5e-6, .rails = 1};
        c.n_levels = 1;
        CHECK_SECONDS(alone(&c, EK_COLLECTIVE_ALL_REDUCE, (ek_ranks){0, 1, n}, n * chunk),
                      steps * chunk / 10e9 + 5e-6);
        if (n * segment > EK_COLL_DIRECT_MAX)
            CHECK_SECONDS(alone(&c, EK_COLLECTIVE_ALL_REDUCE, (ek_ranks){0, 1, n}, n * segment),
                          steps * (segment / 10e9 + 5e-6));
    }
}

/* By how much the closed form is longer, at most and at least, over groups and sizes. */
static void compare(const ek_cluster *c, ek_collective collective, double *least, double *most)
{
    *least = HUGE_VAL;
    *most = -HUGE_VAL;
    for (int g = 0; g < GROUPS; g++)
        for (int s = 0; s < SIZES; s++) {
            double by = priced(c, collective, groups[g], sizes[s]) /
                            alone(c, collective, groups[g], sizes[s]) -
                        1;

            *least = fmin(*least, by);
            *most = fmax(*most, by);
        }
}

/* Where ranks share no links all closed forms are right; of shared links, those of pairs, whose
 * rounds overlap, and of two interleaved rings, whose segments meet at times, are too long. */
static void collectives_take_their_closed_forms(void)
{
    ek_cluster c = two_levels(), shared = two_levels();
    double least, most;

    shared.level[1].shared_by = 4;
    for (int i = 0; i < COLLECTIVES; i++) {
        compare(&c, all[i], &least, &most);
        CHECK(least > -1e-3 && most < 1e-3);
        compare(&shared, all[i], &least, &most);
        CHECK(least > -1e-3 && most < (all[i] == EK_COLLECTIVE_A2A_PAIRWISE ? 0.25 : 0.05));
    }
    compare(&shared, EK_COLLECTIVE_A2A_PAIRWISE, &least, &most);
    CHECK(most > 0.1);
}

/* --- laws ------------------------------------------------------------------------------------- */

static void costs_twice_as_high_take_twice_the_time(void)
{
    ek_cluster c = two_levels(), twice = two_levels();

    for (int l = 0; l < 2; l++) {
        c.level[l].overhead_s = 3e-7;
        twice.level[l].overhead_s = 6e-7;
        twice.level[l].bytes_s /= 2;
        twice.level[l].latency_s *= 2;
    }
    c.level[1].shared_by = twice.level[1].shared_by = 4;
    for (int i = 0; i < COLLECTIVES; i++)
        for (int g = 0; g < GROUPS; g++)
            for (int s = 0; s < 3; s++)
                CHECK_SECONDS(alone(&twice, all[i], groups[g], sizes[s]),
                              2 * alone(&c, all[i], groups[g], sizes[s]));
}

static void slower_links_are_never_faster(void)
{
    for (int what = 0; what < 6; what++)
        for (int i = 0; i < COLLECTIVES; i++)
            for (int g = 0; g < GROUPS; g++) {
                ek_cluster c = two_levels(), slower;
                double before, after;

                c.level[1].shared_by = 4;
                slower = c;
                slower.level[what / 3].bytes_s /= what % 3 == 0 ? 3 : 1;
                slower.level[what / 3].latency_s *= what % 3 == 1 ? 3 : 1;
                slower.level[what / 3].overhead_s += what % 3 == 2 ? 1e-6 : 0;
                before = alone(&c, all[i], groups[g], 1e6);
                after = alone(&slower, all[i], groups[g], 1e6);
                CHECK(after >= before * (1 - 1e-9));
            }
}

static const ek_case cases[] = {
    EK_CASE(messages_share_a_link),
    EK_CASE(senders_to_one_rank_share_its_link),
    EK_CASE(messages_pass_the_links_of_all_levels),
    EK_CASE(pairs_that_share_no_link_do_not_interact),
    EK_CASE(messages_of_a_pair_are_one_after_the_other),
    EK_CASE(overheads_of_messages_are_the_processors),
    EK_CASE(bytes_of_messages_cost_both_ranks),
    EK_CASE(messages_wait_for_their_receivers),
    EK_CASE(receives_without_a_sender_are_an_error),
    EK_CASE(ranks_wait_for_the_last_of_a_collective),
    EK_CASE(rings_take_their_formula),
    EK_CASE(collectives_take_their_closed_forms),
    EK_CASE(costs_twice_as_high_take_twice_the_time),
    EK_CASE(slower_links_are_never_faster),
};
EK_TEST_MAIN(cases)
