/* Seconds of network ops: closed forms of simple cases, and laws that hold for drawn ones.  Bytes
 * are compared with what comm sends in t_train_net_bytes.c. */
#include "base/random.h"
#include "ek_test.h"
#include "machine_fixture.h"
#include "sim/price_net.h"
#include "unit/net_work.h"

/* Nodes of 4 ranks with 100 GB/s and 2 us, leaves of 16 with 10 GB/s and 5 us, spines of 64 with
 * 5 GB/s and 8 us. */
static ek_cluster three_levels(void)
{
    ek_cluster c = {.n_levels = 3,
                    .level = {{"node", 4, 100e9, 2e-6, 0, 1, 1, 0, 0},
                              {"leaf", 16, 10e9, 5e-6, 0, 1, 1, 0, 0},
                              {"spine", 64, 5e9, 8e-6, 0, 1, 1, 0, 0}}};

    return c;
}

static double total(ek_net_time t)
{
    return t.overhead_s + t.wire_s + t.latency_s;
}

static double seconds(const ek_cluster *c, ek_collective collective, ek_ranks group, double bytes)
{
    ek_net_work w = work_of(collective, group, bytes);

    return total(ek_price_net(c, &w));
}

static void one_rank_takes_no_time(void)
{
    ek_cluster c = three_levels();

    for (int k = 0; k < EK_COLLECTIVES; k++) {
        ek_net_work w = work_of((ek_collective)k, (ek_ranks){3, 1, 1}, 1e6);

        w.peer = 0;
        CHECK(total(ek_price_net(&c, &w)) == 0);
        w = work_of((ek_collective)k, (ek_ranks){0, 1, 8}, 0);
        w.peer = 0;
        CHECK(total(ek_price_net(&c, &w)) == 0);
    }
}

/* --- closed forms ----------------------------------------------------------------------------- */

/* What bytes cost the processor: those that a rank sends and as many that it receives; of a message
 * each of its ranks pays half. */
static void bytes_cost_both_ranks(void)
{
    ek_cluster c = three_levels();
    ek_ranks two = {0, 1, 2};
    ek_net_work send = work_of(EK_COLLECTIVE_SEND, two, 1e6), receive = send;
    ek_net_work rows = work_of(EK_COLLECTIVE_A2A_LINEAR, two, 1e6);
    ek_net_work sum = work_of(EK_COLLECTIVE_ALL_REDUCE, two, 1e6);

    c.level[0].byte_s = 1e-9;
    c.level[0].overhead_s = 1e-5;
    send.peer = receive.peer = 1;
    receive.collective = EK_COLLECTIVE_RECEIVE;
    CHECK_NEAR(ek_price_net_of(&c, &send, 0).overhead_s, 1e-5);
    CHECK_NEAR(ek_price_net_of(&c, &send, 0).beside_s, 0.5e-3);
    CHECK(ek_price_net_of(&c, &receive, 0).overhead_s == 0);
    CHECK_NEAR(ek_price_net_of(&c, &receive, 0).beside_s, 0.5e-3);
    CHECK_NEAR(ek_price_net_of(&c, &rows, 0).beside_s, 1e-3);
    CHECK_NEAR(ek_price_net(&c, &sum).beside_s, 1e-3); /* half of the vector, twice */
    CHECK_NEAR(ek_price_net_of(&c, &sum, 0).beside_s, 1e-3);
}

static void two_ranks_on_one_link(void)
{
    ek_cluster c = three_levels();
    ek_ranks two = {0, 1, 2};
    ek_net_work w = work_of(EK_COLLECTIVE_SEND, two, 1e6);
    ek_net_time t;

    c.level[0].overhead_s = 1e-6;
    w.peer = 1;
    t = ek_price_net_of(&c, &w, 0);
    CHECK_NEAR(t.wire_s, 1e-5);
    CHECK_NEAR(t.latency_s, 2e-6);
    CHECK_NEAR(t.overhead_s, 1e-6);
    c.level[0].overhead_s = 0;
    CHECK_NEAR(seconds(&c, EK_COLLECTIVE_A2A_LINEAR, two, 1e6), 12e-6);
    CHECK_NEAR(seconds(&c, EK_COLLECTIVE_A2A_PAIRWISE, two, 1e6), 12e-6);
    CHECK_NEAR(seconds(&c, EK_COLLECTIVE_A2A_2DH, two, 1e6), 12e-6);
    CHECK_NEAR(seconds(&c, EK_COLLECTIVE_MULTICASTS, two, 1e6), 12e-6);
    CHECK_NEAR(seconds(&c, EK_COLLECTIVE_TRANSFERS, two, 1e6), 12e-6);
    /* whole; halves in two phases; halves around the ring, in one and in several segments */
    CHECK_NEAR(seconds(&c, EK_COLLECTIVE_ALL_REDUCE, two, 1e4), 1e-7 + 2e-6);
    CHECK_NEAR(seconds(&c, EK_COLLECTIVE_ALL_REDUCE, two, 1e5), 1e-6 + 4e-6);
    CHECK_NEAR(seconds(&c, EK_COLLECTIVE_ALL_REDUCE, two, 4e5), 4e-6 + 4e-6);
    CHECK_NEAR(seconds(&c, EK_COLLECTIVE_ALL_REDUCE, two, 1e8), 1e-3 + 2e-6);
    CHECK_NEAR(seconds(&c, EK_COLLECTIVE_REDUCE_SCATTER, two, 1e5), 0.5e-6 + 2e-6);
    CHECK_NEAR(seconds(&c, EK_COLLECTIVE_ALL_GATHER, two, 1e8), 0.5e-3 + 2e-6);
}

/* Sums and gathers, short and long, and of the levels that they pass; not exchanges. */
static void collectives_take_what_the_cluster_says(void)
{
    static const double bytes[] = {1e4, 1e5, 1e8};
    ek_cluster plain = three_levels(), c = plain;
    ek_ranks node = {0, 1, 4}, nodes = {0, 1, 8};

    c.level[0].collective_s = 20e-6;
    c.level[1].collective_s = 50e-6;
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < EK_COLLECTIVES; k++) {
            ek_collective of = (ek_collective)k;
            int sums = of == EK_COLLECTIVE_ALL_REDUCE || of == EK_COLLECTIVE_ALL_GATHER ||
                       of == EK_COLLECTIVE_REDUCE_SCATTER;

            if (of == EK_COLLECTIVE_SEND || of == EK_COLLECTIVE_RECEIVE)
                continue;
            CHECK_NEAR(seconds(&c, of, node, bytes[i]),
                       seconds(&plain, of, node, bytes[i]) + sums * 20e-6);
            CHECK_NEAR(seconds(&c, of, nodes, bytes[i]),
                       seconds(&plain, of, nodes, bytes[i]) + sums * 50e-6);
        }
}

/* Messages, and what an exchange has for each peer; not sums and gathers. */
static void a_peer_has_a_bandwidth_and_a_message_a_gap(void)
{
    ek_cluster plain = three_levels(), c = plain;
    ek_ranks two = {0, 1, 2}, node = {0, 1, 4}, eight = {0, 1, 8};
    ek_net_work send = work_of(EK_COLLECTIVE_SEND, two, 1e6);

    c.level[0].peer_bytes_s = 25e9;
    c.level[0].gap_s = 1e-6;
    c.level[1].gap_s = 3e-6;
    send.peer = 1;
    CHECK_NEAR(ek_price_net_of(&c, &send, 0).wire_s, 4e-5 + 1e-6);
    /* Three peers together are slower than each alone. */
    CHECK_NEAR(seconds(&c, EK_COLLECTIVE_A2A_LINEAR, node, 6e6), 8e-5 + 3e-6 + 2e-6);
    CHECK_NEAR(seconds(&c, EK_COLLECTIVE_A2A_PAIRWISE, node, 6e6), 3 * (8e-5 + 1e-6 + 2e-6));
    /* 4 of 7 MB leave the node, at the rate of the network as before. */
    CHECK_NEAR(seconds(&c, EK_COLLECTIVE_A2A_LINEAR, eight, 7e6), 4e-4 + 3e-6 + 12e-6 + 5e-6);
    c.level[1].peer_bytes_s = 2e9; /* 1 MB to each */
    CHECK_NEAR(seconds(&c, EK_COLLECTIVE_A2A_LINEAR, eight, 7e6), 5e-4 + 3e-6 + 12e-6 + 5e-6);
    /* A forwarder has 4 MB for its peer; before, 3 go to gateways, and with them 3 to the node. */
    CHECK_NEAR(seconds(&c, EK_COLLECTIVE_A2A_2DH, eight, 7e6),
               4e-5 + 3e-6 + 2e-6 + 2e-3 + 3e-6 + 3e-6 + 5e-6);
    CHECK(seconds(&c, EK_COLLECTIVE_ALL_REDUCE, eight, 8e8) ==
          seconds(&plain, EK_COLLECTIVE_ALL_REDUCE, eight, 8e8));
    CHECK(seconds(&c, EK_COLLECTIVE_ALL_GATHER, node, 1e4) ==
          seconds(&plain, EK_COLLECTIVE_ALL_GATHER, node, 1e4));
}

static void staged_2dh_copies_before_each_phase(void)
{
    ek_cluster plain = three_levels(), c = plain;
    ek_net_work w = work_of(EK_COLLECTIVE_A2A_2DH, (ek_ranks){0, 1, 8}, 7e6);
    ek_net_time t;

    c.staged_2dh = 1;
    c.machine.copy = 1e12;
    t = ek_price_net(&c, &w);
    /* 8 MB with the rank's own are read and written twice; 6 MB in the node; 4 MB out. */
    CHECK_NEAR(t.wire_s, 2 * 16e-6 + 6e-5 + 2e-6 + 4e-4 + 5e-6);
    CHECK(t.latency_s == 0);
    c.level[0].gap_s = c.level[1].gap_s = 1e-6; /* three messages, and one */
    CHECK_NEAR(ek_price_net(&c, &w).wire_s, t.wire_s + 4e-6);
    w.group = (ek_ranks){0, 1, 4};
    c.level[0].gap_s = 0;
    CHECK_NEAR(total(ek_price_net(&c, &w)), total(ek_price_net(&plain, &w)));
    w.group = (ek_ranks){0, 4, 2};
    c.level[1].gap_s = 0;
    CHECK_NEAR(total(ek_price_net(&c, &w)), total(ek_price_net(&plain, &w)));
}

static void all_ranks_in_one_node(void)
{
    ek_cluster c = three_levels();
    ek_ranks node = {4, 1, 4};

    CHECK_NEAR(seconds(&c, EK_COLLECTIVE_A2A_LINEAR, node, 3e6), 3e-5 + 2e-6);
    CHECK_NEAR(seconds(&c, EK_COLLECTIVE_A2A_2DH, node, 3e6), 3e-5 + 2e-6);
    CHECK_NEAR(seconds(&c, EK_COLLECTIVE_A2A_PAIRWISE, node, 3e6), 3e-5 + 3 * 2e-6);
    CHECK_NEAR(seconds(&c, EK_COLLECTIVE_ALL_REDUCE, node, 4e8), 2 * 3e-3 + 2e-6);
    CHECK_NEAR(seconds(&c, EK_COLLECTIVE_REDUCE_SCATTER, node, 4e5), 3 * (1e-6 + 2e-6));
}

static void two_nodes(void)
{
    ek_cluster c = three_levels();
    ek_ranks eight = {0, 1, 8};

    /* Of 7 MB, 3 stay in the node. */
    CHECK_NEAR(seconds(&c, EK_COLLECTIVE_A2A_LINEAR, eight, 7e6), 4e-4 + 5e-6);
    CHECK_NEAR(seconds(&c, EK_COLLECTIVE_A2A_PAIRWISE, eight, 7e6), 7 * (1e-4 + 5e-6));
    /* 3 of 4 rows for the other node go to other gateways, and then all 4 out. */
    CHECK_NEAR(seconds(&c, EK_COLLECTIVE_A2A_2DH, eight, 7e6), 3e-5 + 2e-6 + 4e-4 + 5e-6);
    /* The ring crosses to the other node and back. */
    CHECK_NEAR(seconds(&c, EK_COLLECTIVE_ALL_REDUCE, eight, 8e8), 14e8 / 10e9 + 5e-6);
    /* With the nodes side by side, each message crosses. */
    CHECK_NEAR(seconds(&c, EK_COLLECTIVE_A2A_LINEAR, ((ek_ranks){0, 4, 2}), 1e6), 1e-4 + 5e-6);
}

/* Each of 7 steps is paid: 6 hops inside nodes and 2 between, but for a quick one. */
static void ring_of_steps(void)
{
    ek_cluster c = three_levels();
    ek_ranks group = {0, 1, 8};

    c.ring_steps = 1;
    CHECK_NEAR(seconds(&c, EK_COLLECTIVE_ALL_GATHER, group, 8e6), 7 * 100e-6 + 5 * 2e-6 + 2 * 5e-6);
    c.level[0].ring_step_s = 1e-6;
    c.level[1].ring_step_s = 9e-6;
    CHECK_NEAR(seconds(&c, EK_COLLECTIVE_ALL_REDUCE, group, 8e6),
               2 * (7 * 100e-6 + 5 * 1e-6 + 2 * 9e-6));
}

/* 16 nodes of 4: up a chain of 4 ranks and 4 levels of a tree, and down; a ring has 126 steps,
 * which are longer where a tree could be chosen. */
static void all_reduce_by_trees(void)
{
    ek_cluster c = three_levels();
    ek_ranks group = {0, 1, 64};
    double steps = 47 * 2e-6 + 12 * 5e-6 + 4 * 8e-6, others;

    c.ring_steps = 1;
    CHECK_NEAR(seconds(&c, EK_COLLECTIVE_ALL_REDUCE, group, 8e6),
               2 * (63 * 8e6 / 64 / 5e9 + steps));
    CHECK_NEAR(seconds(&c, EK_COLLECTIVE_ALL_REDUCE, group, 4e5),
               2 * (63 * 4e5 / 64 / 5e9 + steps));
    others = seconds(&c, EK_COLLECTIVE_ALL_GATHER, group, 1e6) +
             seconds(&c, EK_COLLECTIVE_ALL_REDUCE, (ek_ranks){0, 1, 4}, 1e6);
    c.tree_sums = 1;
    CHECK_NEAR(seconds(&c, EK_COLLECTIVE_ALL_REDUCE, group, 8e6), /* by a tree 5.045 ms */
               2 * (63 * 8e6 / 64 / 5e9 + 1.4 * steps));
    CHECK_NEAR(seconds(&c, EK_COLLECTIVE_ALL_REDUCE, group, 4e5), /* by a ring 0.678 ms */
               2 * 4e5 / 5e9 / (0.92 * 0.5) + 2 * (3 * 2e-6 + 4 * 8e-6));
    CHECK_NEAR(seconds(&c, EK_COLLECTIVE_ALL_REDUCE, (ek_ranks){0, 1, 48}, 3e5), /* 3 levels */
               2 * 3e5 / 5e9 / (0.92 * 0.5) + 2 * (3 * 2e-6 + 3 * 8e-6));
    CHECK_NEAR(seconds(&c, EK_COLLECTIVE_ALL_REDUCE, group, 1e9), /* by a tree 435 ms */
               2 * (63 * 1e9 / 64 / 5e9 + 1.4 * steps));
    /* gathers, and sums inside a node, are rings all the same */
    CHECK_NEAR(seconds(&c, EK_COLLECTIVE_ALL_GATHER, group, 1e6) +
                   seconds(&c, EK_COLLECTIVE_ALL_REDUCE, (ek_ranks){0, 1, 4}, 1e6),
               others);
}

/* Steps of 1 us on links of 5 us: what a segment takes around the ring is the larger, and is not
 * longer where a tree could be chosen. */
static void only_steps_are_longer(void)
{
    ek_cluster c = three_levels();
    ek_ranks group = {0, 4, 2};
    double around = 2 * (3e5 / 2 / 10e9 + 5e-6);

    c.ring_steps = 1;
    c.level[1].ring_step_s = 1e-6;
    CHECK_NEAR(seconds(&c, EK_COLLECTIVE_ALL_REDUCE, group, 3e5), around);
    c.tree_sums = 1;
    CHECK_NEAR(seconds(&c, EK_COLLECTIVE_ALL_REDUCE, group, 3e5), around);
}

/* Latencies of all hops but one, where chunks are short. */
static void short_ring_over_two_nodes(void)
{
    ek_cluster c = three_levels();
    double chunk = 3e5 / 8, inside = 2e-6 + chunk / 100e9, between = 5e-6 + chunk / 10e9;

    CHECK_NEAR(seconds(&c, EK_COLLECTIVE_ALL_GATHER, ((ek_ranks){0, 1, 8}), 3e5),
               fmax(5 * inside + 2 * between, 7 * chunk / 10e9 + 5e-6));
}

/* A message to the spine passes the leaf's link, too, but not the node's. */
static void links_of_the_network_carry_what_goes_higher(void)
{
    ek_cluster c = three_levels();
    ek_ranks all = {0, 1, 64};
    ek_net_work w = work_of(EK_COLLECTIVE_A2A_LINEAR, all, 63e6);

    CHECK_NEAR(ek_price_net(&c, &w).wire_s, fmax(48e6 / 5e9, 60e6 / 10e9));
    c.level[2].bytes_s = 10e9;
    CHECK_NEAR(ek_price_net(&c, &w).wire_s, 60e6 / 10e9);
    c.level[0].bytes_s = 1e9; /* 3 MB */
    CHECK_NEAR(ek_price_net(&c, &w).wire_s, 60e6 / 10e9);
    c.level[0].bytes_s = 0.1e9;
    CHECK_NEAR(ek_price_net(&c, &w).wire_s, 3e6 / 0.1e9);
}

/* The adapter of a node: 40 GB/s for its 4 ranks. */
static void shared_links_are_faster_for_few(void)
{
    ek_cluster c = three_levels();
    ek_ranks eight = {0, 1, 8}, pairs = {0, 2, 4}, columns = {1, 4, 2};

    c.level[1].shared_by = 4;
    /* a ring crosses once; two interleaved ones twice; four as often as there are ranks */
    CHECK_NEAR(seconds(&c, EK_COLLECTIVE_ALL_REDUCE, eight, 8e8), 14e8 / 40e9 + 5e-6);
    CHECK_NEAR(seconds(&c, EK_COLLECTIVE_ALL_REDUCE, pairs, 8e8), 12e8 / 20e9 + 5e-6);
    CHECK_NEAR(seconds(&c, EK_COLLECTIVE_ALL_REDUCE, columns, 8e8), 8e8 / 10e9 + 5e-6);
    CHECK_NEAR(seconds(&c, EK_COLLECTIVE_TRANSFERS, columns, 1e6), 1e-4 + 5e-6);
    /* all ranks send to all */
    CHECK_NEAR(seconds(&c, EK_COLLECTIVE_A2A_LINEAR, eight, 7e6), 4e-4 + 5e-6);
    CHECK_NEAR(seconds(&c, EK_COLLECTIVE_A2A_2DH, eight, 7e6), 3e-5 + 2e-6 + 4e-4 + 5e-6);
    /* 1, 2, 3, 4, 3, 2, 1 ranks of a node to the other */
    CHECK_NEAR(seconds(&c, EK_COLLECTIVE_A2A_PAIRWISE, eight, 7e6), 16 * 1e6 / 40e9 + 7 * 5e-6);
    CHECK_NEAR(seconds(&c, EK_COLLECTIVE_A2A_PAIRWISE, pairs, 3e6),
               2 * (1 + 2 + 1) * 1e6 / 40e9 + 3 * 5e-6);
}

static void shared_link_of_a_message(void)
{
    ek_cluster c = three_levels();
    ek_net_work w = work_of(EK_COLLECTIVE_SEND, (ek_ranks){0, 8, 2}, 1e6);

    c.level[1].shared_by = 4;
    w.peer = 1; /* 8 stages' messages: all ranks of a node send at once */
    CHECK_NEAR(total(ek_price_net(&c, &w)), 1e-4 + 5e-6);
    w.group = (ek_ranks){3, 1, 2};
    CHECK_NEAR(total(ek_price_net(&c, &w)), 1e6 / 40e9 + 5e-6);
}

static void rows_stay_in_the_span(void)
{
    ek_cluster c = three_levels();
    ek_net_work w = work_of(EK_COLLECTIVE_A2A_LINEAR, (ek_ranks){0, 1, 64}, 3e6);

    w.span = 4;
    CHECK_NEAR(total(ek_price_net(&c, &w)), 3e-5 + 2e-6);
    w.span = 8;
    w.bytes = 7e6;
    CHECK_NEAR(total(ek_price_net(&c, &w)), 4e-4 + 5e-6);
}

/* A message goes to the peer; of an unknown sender it comes from the farther neighbour. */
static void message_between_stages(void)
{
    ek_cluster c = three_levels();
    ek_net_work w = work_of(EK_COLLECTIVE_RECEIVE, (ek_ranks){0, 2, 4}, 1e6);

    w.peer = 1;
    CHECK_NEAR(total(ek_price_net_of(&c, &w, 0)), 1e-5 + 2e-6);
    CHECK_NEAR(total(ek_price_net_of(&c, &w, 4)), 1e-4 + 5e-6);
    CHECK_NEAR(total(ek_price_net(&c, &w)), 1e-4 + 5e-6);
    w.group = (ek_ranks){0, 1, 8};
    CHECK_NEAR(total(ek_price_net(&c, &w)), 1e-5 + 2e-6); /* however far others are */
}

/* --- laws ------------------------------------------------------------------------------------- */

typedef struct {
    ek_cluster c;
    ek_net_work w;
} subject;

static int64_t draw_int(int seed, int what, int64_t lo, int64_t hi)
{
    return lo +
           (int64_t)(ek_random_uniform(11, (uint64_t)seed, (uint64_t)what) * (double)(hi - lo + 1));
}

static double draw_log(int seed, int what, double lo, double hi)
{
    return lo * exp(ek_random_uniform(12, (uint64_t)seed, (uint64_t)what) * log(hi / lo));
}

static subject draw_subject(int seed)
{
    subject s = {.c = {.n_levels = (int32_t)draw_int(seed, 0, 1, 4)}};
    int node = (int)draw_int(seed, 1, 0, 2);
    int64_t ranks = 1, n = draw_int(seed, 2, 2, 40);

    for (int l = 0; l < s.c.n_levels; l++) {
        ranks *= draw_int(seed, 3 + l, 1, 5);
        s.c.level[l] = (ek_cluster_level){.ranks = ranks,
                                          .bytes_s = draw_log(seed, 20 + l, 1e7, 1e12),
                                          .latency_s = draw_log(seed, 30 + l, 1e-7, 1e-3),
                                          .overhead_s = draw_log(seed, 40 + l, 1e-8, 1e-5),
                                          .rails = 1,
                                          .shared_by = draw_int(seed, 50 + l, 1, 4)};
        snprintf(s.c.level[l].name, EK_CLUSTER_NAME, l == node ? "node" : "level %d", l);
    }
    s.w = work_of(
        (ek_collective)draw_int(seed, 8, 0, EK_COLLECTIVES - 1),
        (ek_ranks){(int32_t)draw_int(seed, 9, 0, 5), (int32_t)draw_int(seed, 10, 1, 6), (int32_t)n},
        4 * floor(draw_log(seed, 11, 1, 1e8)));
    s.w.peer = (int32_t)draw_int(seed, 12, 0, n - 1);
    while (s.w.collective >= EK_COLLECTIVE_A2A_LINEAR && n % s.w.span != 0)
        s.w.span--;
    return s;
}

static void cost_times(ek_cluster_level *l, double factor)
{
    l->bytes_s /= factor;
    l->latency_s *= factor;
    l->overhead_s *= factor;
}

enum { DRAWS = 3000 };

static void all_links_twice_as_slow_take_twice_the_time(void)
{
    for (int i = 0; i < DRAWS; i++) {
        subject s = draw_subject(i);
        double t = total(ek_price_net(&s.c, &s.w));

        for (int l = 0; l < s.c.n_levels; l++)
            cost_times(&s.c.level[l], 2);
        CHECK(t >= 0 && isfinite(t));
        CHECK(fabs(total(ek_price_net(&s.c, &s.w)) - 2 * t) <= 1e-9 * t);
    }
}

static void slower_link_never_speeds_up(void)
{
    int slowed = 0;

    for (int i = 0; i < DRAWS; i++)
        for (int l = 0; l < draw_subject(i).c.n_levels; l++)
            for (int what = 0; what < 3; what++) {
                subject s = draw_subject(i);
                double t = total(ek_price_net(&s.c, &s.w)), after;

                s.c.level[l].bytes_s /= what == 0 ? 3 : 1;
                s.c.level[l].latency_s *= what == 1 ? 3 : 1;
                s.c.level[l].overhead_s *= what == 2 ? 3 : 1;
                after = total(ek_price_net(&s.c, &s.w));
                if (after < t * (1 - 1e-12))
                    EK_T_FAIL("draw %d, %s: level %d slower takes %g instead of %g", i,
                              ek_collective_name(s.w.collective), l, after, t);
                slowed += after > t;
            }
    CHECK(slowed > DRAWS);
}

/* Within an algorithm. */
static void more_bytes_take_no_less_time(void)
{
    for (int i = 0; i < DRAWS; i++) {
        subject s = draw_subject(i);
        double t = total(ek_price_net(&s.c, &s.w));
        int n = s.w.group.n, small = s.w.bytes <= 256 << 10;

        s.w.bytes += 4 * n;
        if (s.w.collective < EK_COLLECTIVE_A2A_LINEAR &&
            (s.w.bytes > (small ? (16 << 10) / n : 1 << 30)))
            continue;
        CHECK(total(ek_price_net(&s.c, &s.w)) >= t * (1 - 1e-12));
    }
}

/* Parts of the wire's time are those of the traffic. */
static void wire_carries_all_bytes(void)
{
    for (int i = 0; i < DRAWS; i++) {
        subject s = draw_subject(i);
        int32_t rank = s.w.group.first;
        ek_net_traffic t = ek_net_traffic_of(&s.c, &s.w, rank);
        double wire = ek_price_net_of(&s.c, &s.w, rank).wire_s, sum = 0;

        for (int l = 0; l < s.c.n_levels; l++) {
            CHECK(t.bytes[l] >= 0 && t.messages[l] >= 0);
            CHECK((t.bytes[l] > 0) == (t.messages[l] > 0));
            CHECK(wire * (double)s.c.level[l].shared_by >=
                  t.bytes[l] / s.c.level[l].bytes_s * (1 - 1e-4));
            sum += t.bytes[l];
        }
        if (s.w.collective >= EK_COLLECTIVE_MULTICASTS && s.w.span > 1)
            CHECK(fabs(sum - s.w.bytes) <= 1e-9 * sum);
    }
}

/* Exactly, but for 2DH, where the nodes' sizes decide what a gateway serves, and for vectors whose
 * ranges differ, which are left out. */
static void slowest_rank_is_found(void)
{
    int uneven = 0;

    for (int i = 0; i < DRAWS; i++) {
        subject s = draw_subject(i);
        double near = s.w.collective == EK_COLLECTIVE_A2A_2DH ? 0.9 : 1 - 1e-12;
        double least = HUGE_VAL, most = 0, t;

        s.w.group.stride = 1;
        if (s.w.collective == EK_COLLECTIVE_SEND || s.w.collective == EK_COLLECTIVE_RECEIVE ||
            s.w.span < s.w.group.n)
            continue;
        s.w.bytes = 4 * s.w.group.n * ceil(s.w.bytes / (4 * s.w.group.n));
        for (int r = 0; r < s.w.group.n; r++) {
            double of = total(ek_price_net_of(&s.c, &s.w, s.w.group.first + r));

            least = fmin(least, of);
            most = fmax(most, of);
        }
        t = total(ek_price_net(&s.c, &s.w));
        uneven += most > 1.01 * least;
        if (t > most * (1 + 1e-12) || t < near * most)
            EK_T_FAIL("draw %d, %s, ranks %d + %d: %g, of all ranks %g to %g", i,
                      ek_collective_name(s.w.collective), s.w.group.first, s.w.group.n, t, least,
                      most);
    }
    CHECK(uneven > DRAWS / 20);
}

static const ek_case cases[] = {
    EK_CASE(one_rank_takes_no_time),
    EK_CASE(two_ranks_on_one_link),
    EK_CASE(collectives_take_what_the_cluster_says),
    EK_CASE(bytes_cost_both_ranks),
    EK_CASE(a_peer_has_a_bandwidth_and_a_message_a_gap),
    EK_CASE(staged_2dh_copies_before_each_phase),
    EK_CASE(all_ranks_in_one_node),
    EK_CASE(two_nodes),
    EK_CASE(ring_of_steps),
    EK_CASE(all_reduce_by_trees),
    EK_CASE(only_steps_are_longer),
    EK_CASE(short_ring_over_two_nodes),
    EK_CASE(links_of_the_network_carry_what_goes_higher),
    EK_CASE(shared_links_are_faster_for_few),
    EK_CASE(shared_link_of_a_message),
    EK_CASE(rows_stay_in_the_span),
    EK_CASE(message_between_stages),
    EK_CASE(all_links_twice_as_slow_take_twice_the_time),
    EK_CASE(slower_link_never_speeds_up),
    EK_CASE(more_bytes_take_no_less_time),
    EK_CASE(wire_carries_all_bytes),
    EK_CASE(slowest_rank_is_found),
};
EK_TEST_MAIN(cases)
