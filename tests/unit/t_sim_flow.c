/* The engine of flows (sim/flow.h) against closed forms, and against the replay where ranks share
 * no links.  Links carry a byte a second, so bytes are seconds. */
#include "ek_test.h"
#include "sim/flow.h"
#include "sim/flow_cores.h"
#include "sim/price_net.h"
#include "sim_world.h"

/* Ranks with links of their own; and pairs of ranks that share an adapter of two bytes a second. */
static const ek_cluster own = {
    .name = "own", .n_levels = 1, .level = {{.name = "net", .ranks = RANKS_MOST, .bytes_s = 1}}};
static const ek_cluster paired = {
    .name = "paired",
    .n_levels = 1,
    .level = {{.name = "net", .ranks = RANKS_MOST, .bytes_s = 1, .shared_by = 2}}};
/* Pairs below a leaf that a spine joins with half of their bandwidth. */
static const ek_cluster spine = {
    .name = "spine",
    .n_levels = 2,
    .level = {{.name = "leaf", .ranks = 2, .bytes_s = 1},
              {.name = "spine", .ranks = RANKS_MOST, .bytes_s = 0.5, .shared_by = 2}}};

/* The slowest rank's, with all links to itself. */
static void price_on(const void *context, const ek_sim_class *c, const ek_op *op, ek_sim_price *out)
{
    const ek_cluster *alone = context;

    *out = (ek_sim_price){0};
    if (op->work.kind == EK_WORK_NET) {
        ek_net_work w = op->work.net;
        ek_net_time t;

        w.group = ek_ranks_around(c->ranks[0], w.group.stride, w.group.n);
        t = w.peer < 0 ? ek_price_net(alone, &w) : ek_price_net_of(alone, &w, c->ranks[0]);
        out->wire = t.wire_s;
        out->skew = w.peer < 0 ? alone->level[0].arrival_skew_s : 0;
    } else if (op->work.kind != EK_WORK_NONE) {
        out->seconds = op->bytes;
    }
}

static const int32_t recorded[] = {0, 1, 2, 3};

static ek_sim_result flow_of(const world *w, const ek_cluster *c, const double *slow)
{
    ek_cluster alone = ek_cluster_alone(c);
    ek_sim_config cfg = {.graphs = &w->all,
                         .price = price_on,
                         .context = &alone,
                         .slow = slow,
                         .recorded = recorded,
                         .n_recorded = w->all.ranks < 4 ? w->all.ranks : 4};
    ek_sim_result r;

    CHECK_INT(ek_sim_flow(&cfg, c, &r), EK_OK);
    CHECK(fabs(ek_sim_parts_sum(&r.parts) - r.step_s) <= 1e-9 * r.step_s);
    return r;
}

static double step_of(const world *w, const ek_cluster *c, const double *slow)
{
    return take_step(flow_of(w, c, slow));
}

static void ranks_that_share_an_adapter_halve(void)
{
    world w;

    open_world(&w, 4, 1);
    message(&w, 0, 2, 0, 4);
    CHECK_SECONDS(step_of(&w, &paired, NULL), 2);
    message(&w, 1, 3, 0, 4);
    CHECK_SECONDS(step_of(&w, &paired, NULL), 4);
    CHECK_SECONDS(step_of(&w, &own, NULL), 4);
    close_world(&w);
}

static void what_begins_later_slows_down_what_is_in_flight(void)
{
    world w;
    ek_sim_result r;

    open_world(&w, 4, 1);
    message(&w, 0, 2, 0, 4);
    message(&w, 1, 3, 1, 4);
    r = flow_of(&w, &paired, NULL);
    CHECK_SECONDS(r.records[0].spans[0].end, 3); /* 1 of it alone, then half of the link */
    CHECK_SECONDS(r.records[1].spans[1].end, 4);
    CHECK_SECONDS(r.records[3].spans[0].end, 4);
    CHECK_SECONDS(r.step_s, 4);
    ek_sim_free(&r);
    close_world(&w);
}

static void pairs_that_share_no_link_do_not_interact(void)
{
    world w;

    open_world(&w, 4, 1);
    message(&w, 0, 1, 0, 2);
    message(&w, 2, 3, 0, 2);
    CHECK_SECONDS(step_of(&w, &own, NULL), 2);
    message(&w, 1, 0, 0, 2); /* the other direction */
    CHECK_SECONDS(step_of(&w, &own, NULL), 2);
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

static void messages_to_one_rank_go_one_after_the_other(void)
{
    world w;
    ek_sim_result r;

    open_world(&w, 2, 1);
    message(&w, 0, 1, 0, 4);
    message(&w, 0, 1, 0, 2);
    r = flow_of(&w, &own, NULL);
    CHECK_SECONDS(r.records[1].spans[0].end, 4);
    CHECK_SECONDS(r.records[1].spans[1].end, 6);
    ek_sim_free(&r);
    close_world(&w);
}

static void a_spine_is_shared_by_those_who_cross_it(void)
{
    world w;

    open_world(&w, 8, 1);
    message(&w, 0, 4, 0, 2);
    message(&w, 2, 3, 0, 2); /* below a leaf */
    CHECK_SECONDS(step_of(&w, &spine, NULL), 2);
    message(&w, 1, 6, 0, 2); /* the same link up */
    CHECK_SECONDS(step_of(&w, &spine, NULL), 4);
    close_world(&w);
}

/* Inside a node a message does not pass the link to the network; below a leaf switch it does. */
static void links_of_a_node_are_others_than_those_of_the_network(void)
{
    ek_cluster nodes = spine, leaves = spine;
    world w;

    for (int l = 0; l < 2; l++) {
        nodes.level[l].shared_by = leaves.level[l].shared_by = 1;
        nodes.level[l].bytes_s = leaves.level[l].bytes_s = 1;
    }
    (void)snprintf(nodes.level[0].name, sizeof(nodes.level[0].name), "node");
    open_world(&w, 4, 1);
    message(&w, 0, 1, 0, 2);
    message(&w, 0, 2, 0, 2);
    CHECK_SECONDS(step_of(&w, &nodes, NULL), 2);
    CHECK_SECONDS(step_of(&w, &leaves, NULL), 4);
    close_world(&w);
}

static void collectives_of_a_rank_share_its_link_all_the_time(void)
{
    const ek_ranks both = {0, 1, 2};
    world w;
    ek_sim_result r;
    int32_t a;

    open_world(&w, 1, 2);
    all_reduce(&w.graph[0], both, 4, -1);
    a = compute(&w.graph[0], 2, -1);
    all_reduce(&w.graph[0], both, 1, a);
    r = flow_of(&w, &own, NULL);
    CHECK_SECONDS(r.records[0].spans[0].end, 5);
    CHECK_SECONDS(r.records[0].spans[2].end, 4);
    ek_sim_free(&r);
    close_world(&w);
}

/* Four stages of ranks that share adapters within and between stages: rings within a stage, and
 * messages between stages. */
static void build_stages(world *w, int each, int stages)
{
    open_world(w, stages, each);
    for (int k = 0; k < stages; k++) {
        ek_ranks stage = {k * each, 1, each}, line = {0, each, stages};
        int32_t a = -1;

        for (int micro = 0; micro < 3; micro++) {
            if (k > 0)
                a = net(&w->graph[k], EK_OP_RECEIVE, EK_COLLECTIVE_RECEIVE, line, k - 1, 0.5, -1);
            a = compute(&w->graph[k], 1 + 0.25 * k, a);
            a = net(&w->graph[k], EK_OP_DISPATCH_A2A, EK_COLLECTIVE_A2A_LINEAR, stage, -1, 2, a);
            a = compute(&w->graph[k], 0.5, a);
            if (k + 1 < stages)
                net(&w->graph[k], EK_OP_SEND, EK_COLLECTIVE_SEND, line, k + 1, 0.5, a);
            all_reduce(&w->graph[k], stage, 0.25, a);
        }
    }
}

static void classes_are_as_their_ranks_one_by_one(void)
{
    double slow[RANKS_MOST];
    static const int shared[] = {1, 2, 4, 8, 16};

    for (int i = 0; i < 5; i++) {
        ek_cluster c = paired;
        world w;

        c.level[0].shared_by = shared[i];
        build_stages(&w, 4, 4);
        for (int r = 0; r < RANKS_MOST; r++)
            slow[r] = r == 0 ? 1 + 1e-13 : 1;
        CHECK_SECONDS(step_of(&w, &c, NULL), step_of(&w, &c, slow));
        close_world(&w);
    }
}

/* More of an adapter is never longer; all ranks alone on theirs is the replay's time. */
static void sharing_with_fewer_is_no_slower(void)
{
    double last = 0;

    for (int64_t shared = 16; shared >= 1; shared /= 2) {
        ek_cluster c = own;
        double step;
        world w;

        c.level[0].shared_by = shared; /* of a link that carries one byte a second in all */
        c.level[0].bytes_s = 1.0 / (double)shared;
        build_stages(&w, 4, 4);
        step = step_of(&w, &c, NULL);
        CHECK(last == 0 || step <= last * (1 + 1e-9));
        CHECK(last == 0 || step < last || shared < 4);
        last = step;
        close_world(&w);
    }
}

/* Pairs of ranks on a node, whose adapter carries two bytes a second. */
static const ek_cluster adapters = {
    .name = "adapters",
    .n_levels = 2,
    .level = {{.name = "node", .ranks = 2, .bytes_s = 1000},
              {.name = "net", .ranks = RANKS_MOST, .bytes_s = 1, .shared_by = 2}}};

static const double twice[] = {2, 2, 2, 2};

static const double *all_twice(const void *loads, const ek_op *op)
{
    (void)loads;
    return op->work.kind == EK_WORK_NET ? twice : NULL;
}

static const ek_level_rows *rows_of(const void *loads, const ek_op *op)
{
    (void)op;
    return loads;
}

/* Seconds of an all-to-all of 4 ranks, a byte to each under even loads. */
static double exchange_seconds(const ek_cluster *c, const ek_level_rows *rows)
{
    static const int32_t column[] = {0, 1, 2, 3};
    ek_cluster alone = ek_cluster_alone(c);
    world w;
    ek_sim_config cfg = {.graphs = &w.all,
                         .price = price_on,
                         .context = &alone,
                         .factors = all_twice,
                         .exchange = rows_of,
                         .loads = rows,
                         .column_of = column,
                         .n_columns = 4};
    ek_sim_result r;

    open_world(&w, 1, 4);
    net(&w.graph[0], EK_OP_DISPATCH_A2A, EK_COLLECTIVE_A2A_LINEAR, (ek_ranks){0, 1, 4}, -1, 3, -1);
    CHECK_INT(ek_sim_flow(&cfg, c, &r), EK_OK);
    close_world(&w);
    return take_step(r);
}

/* What a rank gets more than another of its node, the adapter does not carry more; nor what stays
 * inside the node. */
static void an_adapter_carries_what_its_ranks_exchange(void)
{
    ek_level_rows even[4], rows[4], busy[4], near[4];

    for (int r = 0; r < 4; r++)
        even[r] = (ek_level_rows){{1, 1}, {1, 1}};
    CHECK_SECONDS(exchange_seconds(&adapters, even), 2);
    for (int r = 0; r < 4; r++)
        rows[r] = (ek_level_rows){{1, 1}, {1, r % 2 == 0 ? 1.75 : 0.25}};
    CHECK_SECONDS(exchange_seconds(&adapters, rows), 2);
    for (int r = 0; r < 4; r++) /* to the first node more than to the second */
        busy[r] = (ek_level_rows){{1, r < 2 ? 0.5 : 1.5}, {1, r < 2 ? 1.5 : 0.5}};
    CHECK_SECONDS(exchange_seconds(&adapters, busy), 3);
    for (int r = 0; r < 4; r++)
        near[r] = (ek_level_rows){{2, 0.5}, {2, 0.5}};
    CHECK_SECONDS(exchange_seconds(&adapters, near), 1);
    near[0].got[1] = near[1].got[1] = 0;
    near[2].sent[1] = near[3].sent[1] = 0;
    CHECK_SECONDS(exchange_seconds(&adapters, near), 1); /* the other direction */
}

/* With links of their own ranks take as long as by factors: the larger of both directions. */
static void ranks_with_links_of_their_own_take_their_factors(void)
{
    ek_level_rows rows[4];

    for (int r = 0; r < 4; r++)
        rows[r] = (ek_level_rows){{r == 2 ? 2 : 0.5}, {r == 1 ? 1.5 : 1}};
    CHECK_SECONDS(exchange_seconds(&own, rows), 6);
    rows[1].got[0] = 3;
    CHECK_SECONDS(exchange_seconds(&own, rows), 9);
}

/* What ranks send and get in a sum of copies, of 2 bytes each. */
typedef struct {
    ek_copy_messages sent[4], got[4];
} sums;

static void price_sums(const void *context, const ek_sim_class *c, const ek_op *op,
                       ek_sim_price *out)
{
    const sums *s = context;

    (void)c;
    (void)op;
    *out = (ek_sim_price){.wire = 1, .sent = s->sent, .got = s->got, .unit = 2};
}

static void add_sum(sums *s, int from, int to, int32_t n)
{
    int level = from / 2 != to / 2;

    s->sent[from].gradients[level] += n;
    s->got[to].gradients[level] += n;
    s->sent[from].largest[level] = s->got[to].largest[level] = n;
}

static double sums_seconds(const ek_cluster *c, const sums *s)
{
    static const int32_t column[] = {0, 1, 2, 3};
    world w;
    ek_sim_config cfg = {.graphs = &w.all,
                         .price = price_sums,
                         .context = s,
                         .factors = all_twice,
                         .column_of = column,
                         .n_columns = 4};
    ek_sim_result r;

    open_world(&w, 1, 4);
    net(&w.graph[0], EK_OP_SHARE_GRADIENTS, EK_COLLECTIVE_MULTICASTS, (ek_ranks){0, 1, 4}, -1, 3,
        -1);
    CHECK_INT(ek_sim_flow(&cfg, c, &r), EK_OK);
    close_world(&w);
    return take_step(r);
}

/* The ranks that send use the links up, those that get the links down, and the others none. */
static void sums_of_copies_pass_the_links_of_their_ranks(void)
{
    ek_cluster slow = adapters, own_links = adapters;
    sums one = {0}, both, opposite, gathered;

    add_sum(&one, 0, 2, 3);
    CHECK_SECONDS(sums_seconds(&adapters, &one), 3);
    both = opposite = one; /* 6 bytes, of 2 in a second */
    add_sum(&both, 1, 3, 3);
    CHECK_SECONDS(sums_seconds(&adapters, &both), 6);
    add_sum(&opposite, 3, 1, 3);
    CHECK_SECONDS(sums_seconds(&adapters, &opposite), 3);
    gathered = one;
    add_sum(&gathered, 1, 2, 3);
    own_links.level[1].shared_by = 1;
    CHECK_SECONDS(sums_seconds(&own_links, &gathered), 12); /* what one rank gets */
    add_sum(&one, 1, 0, 3);
    CHECK_SECONDS(sums_seconds(&adapters, &one), 3); /* inside the node */
    slow.level[1].peer_bytes_s = 0.5;
    CHECK_SECONDS(sums_seconds(&slow, &one), 12);
}

/* A rank computes twice as fast alone, and a node's two 1.25 times while the other waits. */
static void ranks_that_wait_leave_their_cores_to_the_others(void)
{
    ek_cluster c = adapters;
    ek_sim_result r;
    world w;

    c.machine.ranks = 4;
    c.machine.rank_alone = 2;
    c.machine.node_alone = 1.25;
    open_world(&w, 4, 1);
    compute(&w.graph[0], 4, -1);
    CHECK_SECONDS(step_of(&w, &c, NULL), 2);
    CHECK_SECONDS(step_of(&w, &adapters, NULL), 4); /* cores of their own */
    compute(&w.graph[1], 2, -1);
    r = flow_of(&w, &c, NULL); /* until the other has done 2: 1.6 s; then alone */
    CHECK_SECONDS(r.records[1].spans[0].end, 1.6);
    CHECK_SECONDS(r.records[0].spans[0].end, 2.6);
    CHECK_SECONDS(r.parts.compute[ek_op_info_of(EK_OP_EXPERT_UP)->group], (1.6 + 2.6) / 4);
    ek_sim_free(&r);
    compute(&w.graph[2], 4, -1);
    compute(&w.graph[3], 4, -1);
    r = flow_of(&w, &c,
                NULL); /* all until 2 s; then the second node 1.25 each, the first the rest */
    CHECK_SECONDS(r.records[1].spans[0].end, 2);
    CHECK_SECONDS(r.records[0].spans[0].end, 2 + 2 / 1.5);
    CHECK_SECONDS(r.records[2].spans[0].end, 3.6);
    CHECK_SECONDS(r.step_s, 3.6);
    ek_sim_free(&r);
    close_world(&w);
}

/* Of the same pairs, without a graph; the other node computes meanwhile. */
static void work_that_begins_together_ends_as_cores_are_shared(void)
{
    static const double seconds[] = {4, 2, 4, 4}, alone[] = {0, 3, 0, 0};
    ek_cluster c = adapters;
    ek_flow_cores cores;
    double done[4];

    c.machine.ranks = 4;
    c.machine.rank_alone = 2;
    c.machine.node_alone = 1.25;
    cores = ek_flow_cores_of(&c, 4, 0);
    CHECK_INT(ek_flow_cores_finish(&cores, 4, seconds, done), EK_OK);
    CHECK_SECONDS(done[1], 2);
    CHECK_SECONDS(done[0], 2 + 2 / 1.5);
    CHECK_SECONDS(done[2], 3.6);
    CHECK_INT(ek_flow_cores_finish(&cores, 4, alone, done), EK_OK);
    CHECK(done[0] == 0 && done[3] == 0);
    CHECK_SECONDS(done[1], 1.5);
}

/* What computes all the time on all ranks takes its price; also what follows, and is waited for. */
static void busy_ranks_share_nothing(void)
{
    ek_cluster c = adapters;
    world w;

    c.machine.ranks = 4;
    c.machine.rank_alone = 2;
    open_world(&w, 4, 1);
    for (int32_t k = 0; k < 4; k++)
        compute(&w.graph[k], 2,
                all_reduce(&w.graph[k], (ek_ranks){0, 1, 4}, 1, compute(&w.graph[k], 3, -1)));
    CHECK_SECONDS(step_of(&w, &c, NULL), step_of(&w, &adapters, NULL));
    close_world(&w);
}

/* Four ranks that compute, sum, compute for less, sum, and sum once more. */
static double summing_seconds(double meeting)
{
    static const ek_ranks all = {0, 1, 4};
    ek_cluster c = own;
    double seconds;
    world w;

    c.level[0].arrival_skew_s = meeting;
    open_world(&w, 4, 1);
    for (int32_t k = 0; k < 4; k++) {
        ek_graph *g = &w.graph[k];
        int32_t first = all_reduce(g, all, 1, compute(g, 3 - 0.5 * (k == 2), -1));

        all_reduce(g, all, 1, all_reduce(g, all, 1, compute(g, 0.25, first)));
    }
    seconds = step_of(&w, &c, NULL);
    close_world(&w);
    return seconds;
}

/* By no more than what they have computed since they waited, and no message does. */
static void ranks_that_have_computed_meet_late(void)
{
    double without = summing_seconds(0);
    ek_cluster c = own;
    world w;

    CHECK_SECONDS(summing_seconds(0.125), without + 2 * 0.125);
    CHECK_SECONDS(summing_seconds(0.5), without + 0.5 + 0.25);
    c.level[0].arrival_skew_s = 0.5;
    open_world(&w, 4, 1);
    message(&w, 0, 2, 1, 4);
    CHECK_SECONDS(step_of(&w, &c, NULL), 5);
    close_world(&w);
}

static void alone_is_all_of_a_shared_link(void)
{
    ek_cluster alone = ek_cluster_alone(&spine);

    CHECK(alone.level[0].bytes_s == 1 && alone.level[1].bytes_s == 1);
    CHECK_INT(alone.level[1].shared_by, 1);
}

static void ranks_that_wait_for_one_another_are_named(void)
{
    world w;
    ek_sim_config cfg = {.graphs = &w.all, .price = price_on, .context = &own};
    ek_sim_result r;

    open_world(&w, 2, 1);
    net(&w.graph[0], EK_OP_RECEIVE, EK_COLLECTIVE_RECEIVE, (ek_ranks){0, 1, 2}, 1, 1, -1);
    compute(&w.graph[0], 1, 0);
    all_reduce(&w.graph[1], (ek_ranks){0, 1, 2}, 1, -1);
    CHECK_INT(ek_sim_flow(&cfg, &own, &r), EK_EINTERNAL);
    CHECK(strstr(ek_err_message(), "wait for one another, rank 0 before expert up") != NULL);
    ek_sim_free(&r);
    close_world(&w);
}

static const ek_case cases[] = {EK_CASE(ranks_that_share_an_adapter_halve),
                                EK_CASE(what_begins_later_slows_down_what_is_in_flight),
                                EK_CASE(pairs_that_share_no_link_do_not_interact),
                                EK_CASE(senders_to_one_rank_share_its_link),
                                EK_CASE(messages_to_one_rank_go_one_after_the_other),
                                EK_CASE(a_spine_is_shared_by_those_who_cross_it),
                                EK_CASE(links_of_a_node_are_others_than_those_of_the_network),
                                EK_CASE(collectives_of_a_rank_share_its_link_all_the_time),
                                EK_CASE(classes_are_as_their_ranks_one_by_one),
                                EK_CASE(sharing_with_fewer_is_no_slower),
                                EK_CASE(an_adapter_carries_what_its_ranks_exchange),
                                EK_CASE(ranks_with_links_of_their_own_take_their_factors),
                                EK_CASE(sums_of_copies_pass_the_links_of_their_ranks),
                                EK_CASE(ranks_that_wait_leave_their_cores_to_the_others),
                                EK_CASE(work_that_begins_together_ends_as_cores_are_shared),
                                EK_CASE(busy_ranks_share_nothing),
                                EK_CASE(ranks_that_have_computed_meet_late),
                                EK_CASE(alone_is_all_of_a_shared_link),
                                EK_CASE(ranks_that_wait_for_one_another_are_named)};
EK_TEST_MAIN(cases)
