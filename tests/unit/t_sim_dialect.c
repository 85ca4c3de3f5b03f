/* Graphs in the dialects of other programs: what ops become, and in which order. */
#include "dialect_graphs.h"

#include <math.h>

static const ek_dialect_layout expert_of_two = {.ep = 3, .etp = 2};

/* Attention, two parts of a backward pass with the gradients of each, and the update. */
static void build(ek_graph *g)
{
    static const ek_attention_work attention = {
        .heads = 2, .kv_heads = 2, .head_dim = 8, .queries = 10, .pairs = 55};
    int32_t a, b, wait;

    ek_graph_init(g);
    add(g, EK_OP_ATTENTION, EK_LANE_COMPUTE, 0, ek_work_of_attention(&attention), -1);
    add(g, EK_OP_REDUCE_SCATTER, EK_LANE_SUMS, 0, of_net(EK_COLLECTIVE_REDUCE_SCATTER), 0);
    a = add(g, EK_OP_HEAD_BACKWARD, EK_LANE_COMPUTE, 0, ek_work_of_rows(1, 1), 1);
    a = add(g, EK_OP_REDUCE_GRADIENTS, EK_LANE_NET, 0, of_net(EK_COLLECTIVE_ALL_REDUCE), a);
    b = add(g, EK_OP_EMBED_BACKWARD, EK_LANE_COMPUTE, 0, ek_work_of_rows(1, 1), 2);
    b = add(g, EK_OP_REDUCE_GRADIENTS, EK_LANE_NET, 0, of_net(EK_COLLECTIVE_ALL_REDUCE), b);
    wait = add(g, EK_OP_WAIT_GRADIENTS, EK_LANE_COMPUTE, -1, (ek_work){0}, a);
    add(g, EK_OP_ADAMW, EK_LANE_COMPUTE, -1, ek_work_of_rows(1, 1), wait > b ? wait : b);
    CHECK_INT(ek_graph_check(g), EK_OK);
}

static void translate(unsigned dialect, ek_graph *g, ek_dialect_graphs *d)
{
    static const int32_t rank = 0;
    ek_sim_class c = {.graph = g, .n_ranks = 1, .ranks = &rank};
    ek_sim_graphs all = {1, 1, &c};

    build(g);
    CHECK_INT(ek_dialect_open(dialect, &machine, &one, &all, d), EK_OK);
}

static void without_switches_graphs_are_the_same(void)
{
    ek_dialect_graphs d;
    ek_graph g;

    translate(0, &g, &d);
    CHECK(ek_graph_digest(&g) == ek_graph_digest(d.graphs.classes[0].graph));
    ek_dialect_close(&d);
    ek_graph_fini(&g);
}

static void gradients_are_reduced_behind_the_backward_pass(void)
{
    static const ek_op_kind order[] = {
        EK_OP_ATTENTION,        EK_OP_REDUCE_SCATTER,   EK_OP_HEAD_BACKWARD,  EK_OP_EMBED_BACKWARD,
        EK_OP_REDUCE_GRADIENTS, EK_OP_REDUCE_GRADIENTS, EK_OP_WAIT_GRADIENTS, EK_OP_ADAMW};
    ek_dialect_graphs d;
    const ek_graph *to;
    ek_graph g;

    translate(EK_DIALECT_LATE_GRADIENTS, &g, &d);
    to = d.graphs.classes[0].graph;
    CHECK_INT(to->n_ops, g.n_ops);
    for (int32_t i = 0; i < to->n_ops; i++)
        CHECK_INT(to->ops[i].kind, order[i]);
    for (int32_t i = 4; i < 6; i++) { /* both wait for the last op of the pass as well */
        const ek_op *op = &to->ops[i];

        CHECK_INT(op->n_deps, 2);
        CHECK_INT(to->deps[op->dep + 1], 3);
    }
    CHECK_INT(to->deps[to->ops[4].dep], 2);
    CHECK_INT(to->deps[to->ops[6].dep], 4);
    ek_dialect_close(&d);
    ek_graph_fini(&g);
}

static void messages_have_the_type_of_products(void)
{
    ek_dialect_graphs d;
    const ek_op *op;
    ek_graph g;

    translate(EK_DIALECT_LOW_MESSAGES, &g, &d);
    op = d.graphs.classes[0].graph->ops;
    CHECK(op[1].work.net.bytes == 500 && op[3].work.net.bytes == 1000);
    ek_dialect_close(&d);
    ek_graph_fini(&g);
    translate(EK_DIALECT_LOW_GRADIENTS, &g, &d);
    op = d.graphs.classes[0].graph->ops;
    CHECK(op[1].work.net.bytes == 1000 && op[3].work.net.bytes == 500 && op[3].bytes == 500);
    ek_dialect_close(&d);
    ek_graph_fini(&g);
}

static void scores_of_all_pairs_are_stored(void)
{
    ek_dialect_graphs d;
    const ek_op *op;
    ek_graph g;

    translate(EK_DIALECT_UNFUSED_ATTENTION, &g, &d);
    op = d.graphs.classes[0].graph->ops;
    CHECK(op[0].work.attention.pairs == 100 && op[0].work.attention.score_passes == 6);
    CHECK(op[1].work.net.bytes == 1000);
    ek_dialect_close(&d);
    ek_graph_fini(&g);
}

/* The end of an expert layer's backward pass, and the sum of its gradients. */
static void build_experts(ek_graph *g)
{
    int32_t a2a, weight;

    ek_graph_init(g);
    add(g, EK_OP_REPACK, EK_LANE_COMPUTE, 0, ek_work_of_rows(1, 1), -1);
    a2a = add(g, EK_OP_DISPATCH_A2A_BACKWARD, EK_LANE_NET, 0, of_net(EK_COLLECTIVE_A2A_LINEAR), 0);
    add(g, EK_OP_EXPERT_DOWN_WEIGHT, EK_LANE_COMPUTE, 0, ek_work_of_rows(1, 1), 0);
    weight = add(g, EK_OP_EXPERT_UP_WEIGHT, EK_LANE_COMPUTE, 0, ek_work_of_rows(1, 1), 0);
    add(g, EK_OP_REDUCE_GRADIENTS, EK_LANE_NET, 0, of_net(EK_COLLECTIVE_ALL_REDUCE), weight);
    add(g, EK_OP_PERMUTE_BACKWARD, EK_LANE_COMPUTE, 0, ek_work_of_rows(1, 1), a2a);
    CHECK_INT(ek_graph_check(g), EK_OK);
}

static void check_order(unsigned dialect, const ek_op_kind *order)
{
    static const int32_t rank = 0;
    ek_dialect_graphs d;
    const ek_graph *to;
    ek_graph g;
    ek_sim_class c = {.graph = &g, .n_ranks = 1, .ranks = &rank};
    ek_sim_graphs all = {1, 1, &c};

    build_experts(&g);
    CHECK_INT(ek_dialect_open(dialect, &machine, &one, &all, &d), EK_OK);
    to = d.graphs.classes[0].graph;
    CHECK_INT(to->n_ops, g.n_ops);
    for (int32_t i = 0; i < to->n_ops; i++)
        CHECK_INT(to->ops[i].kind, order[i]);
    CHECK_INT(to->ops[3].n_deps, 2); /* the rows, and the last product of weights */
    CHECK_INT(to->deps[to->ops[3].dep], 0);
    CHECK_INT(to->deps[to->ops[3].dep + 1], 2);
    ek_dialect_close(&d);
    ek_graph_fini(&g);
}

static void rows_go_back_behind_the_products_of_weights(void)
{
    static const ek_op_kind first[] = {EK_OP_REPACK,           EK_OP_EXPERT_DOWN_WEIGHT,
                                       EK_OP_EXPERT_UP_WEIGHT, EK_OP_DISPATCH_A2A_BACKWARD,
                                       EK_OP_REDUCE_GRADIENTS, EK_OP_PERMUTE_BACKWARD};
    static const ek_op_kind both[] = {EK_OP_REPACK,           EK_OP_EXPERT_DOWN_WEIGHT,
                                      EK_OP_EXPERT_UP_WEIGHT, EK_OP_DISPATCH_A2A_BACKWARD,
                                      EK_OP_PERMUTE_BACKWARD, EK_OP_REDUCE_GRADIENTS};

    check_order(EK_DIALECT_WEIGHTS_FIRST, first);
    check_order(EK_DIALECT_WEIGHTS_FIRST | EK_DIALECT_LATE_GRADIENTS, both);
}

/* Replicas beside a product, which the next one needs, and the sum of their gradients. */
static void build_replicas(ek_graph *g)
{
    int32_t sent, sum;

    ek_graph_init(g);
    add(g, EK_OP_ROUTER, EK_LANE_COMPUTE, 0, ek_work_of_rows(1, 1), -1);
    add(g, EK_OP_PERMUTE, EK_LANE_COMPUTE, 0, ek_work_of_rows(1, 1), 0);
    sent = add(g, EK_OP_REPLICAS, EK_LANE_NET, 0, of_net(EK_COLLECTIVE_MULTICASTS), 0);
    add(g, EK_OP_DISPATCH_A2A, EK_LANE_NET, 0, of_net(EK_COLLECTIVE_A2A_LINEAR), 1);
    add(g, EK_OP_EXPERT_UP, EK_LANE_COMPUTE, 0, ek_work_of_rows(1, 1), sent);
    sum = add(g, EK_OP_REPLICA_GRADIENTS, EK_LANE_NET, 0, of_net(EK_COLLECTIVE_MULTIREDUCES), sent);
    add(g, EK_OP_PERMUTE_BACKWARD, EK_LANE_COMPUTE, 0, ek_work_of_rows(1, 1), 3);
    add(g, EK_OP_ADAMW, EK_LANE_COMPUTE, -1, ek_work_of_rows(1, 1), sum);
    CHECK_INT(ek_graph_check(g), EK_OK);
}

static void nothing_goes_on_beside_replicas(void)
{
    static const int32_t rank = 0, after[] = {-1, 0, 1, 2, 2, 4, 5, 5};
    ek_graph g;
    ek_sim_class c = {.graph = &g, .n_ranks = 1, .ranks = &rank};
    ek_sim_graphs all = {1, 1, &c};
    ek_dialect_graphs d;
    const ek_graph *to;

    build_replicas(&g);
    CHECK_INT(ek_dialect_open(EK_DIALECT_REPLICAS_ALONE, &machine, &one, &all, &d), EK_OK);
    to = d.graphs.classes[0].graph;
    CHECK_INT(to->n_ops, g.n_ops);
    for (int32_t i = 0; i < to->n_ops; i++) {
        CHECK_INT(to->ops[i].kind, g.ops[i].kind);
        CHECK_INT(last_dep(to, i), after[i]);
    }
    ek_dialect_close(&d);
    ek_graph_fini(&g);
}

/* Replicas behind an exchange that they do not need and others that follow at once, a message of
 * the next stage, and the sum of gradients behind both. */
static void build_adjacent_replicas(ek_graph *g)
{
    ek_graph_init(g);
    add(g, EK_OP_ROUTER, EK_LANE_COMPUTE, 0, ek_work_of_rows(1, 1), -1);
    add(g, EK_OP_DISPATCH_A2A, EK_LANE_NET, 0, of_net(EK_COLLECTIVE_A2A_LINEAR), 0);
    add(g, EK_OP_REPLICAS, EK_LANE_NET, 0, of_net(EK_COLLECTIVE_MULTICASTS), 0);
    add(g, EK_OP_LATE_REPLICAS, EK_LANE_NET, 0, of_net(EK_COLLECTIVE_MULTICASTS), 0);
    add(g, EK_OP_RECEIVE_GRADIENT, EK_LANE_NET, 0, of_net(EK_COLLECTIVE_RECEIVE), -1);
    add(g, EK_OP_REDUCE_SCATTER, EK_LANE_SUMS, 0, of_net(EK_COLLECTIVE_REDUCE_SCATTER), 0);
    add(g, EK_OP_COMBINE_A2A, EK_LANE_NET, 0, of_net(EK_COLLECTIVE_A2A_LINEAR), 0);
    add(g, EK_OP_REPLICA_GRADIENTS, EK_LANE_NET, 0, of_net(EK_COLLECTIVE_MULTIREDUCES), 0);
    add(g, EK_OP_ADAMW, EK_LANE_COMPUTE, -1, ek_work_of_rows(1, 1), 0);
    CHECK_INT(ek_graph_check(g), EK_OK);
}

static void replicas_wait_for_exchanges_and_each_other(void)
{
    static const int32_t rank = 0;
    static const unsigned expected[] = {0,     1,     1 | 2,           1 | 4,  8,
                                        1 | 8, 1 | 8, 1 | 8 | 32 | 64, 1 | 128};
    ek_graph g;
    ek_sim_class c = {.graph = &g, .n_ranks = 1, .ranks = &rank};
    ek_sim_graphs all = {1, 1, &c};
    ek_dialect_graphs d;
    const ek_graph *to;

    build_adjacent_replicas(&g);
    CHECK_INT(ek_dialect_open(EK_DIALECT_REPLICAS_ALONE, &machine, &one, &all, &d), EK_OK);
    to = d.graphs.classes[0].graph;
    CHECK_INT(to->n_ops, g.n_ops);
    for (int32_t i = 0; i < to->n_ops; i++)
        CHECK_INT(deps_of(to, i), expected[i]);
    ek_dialect_close(&d);
    ek_graph_fini(&g);
}

static void sums_of_copies_have_the_type_of_products(void)
{
    static const int32_t rank = 0;
    ek_graph g;
    ek_sim_class c = {.graph = &g, .n_ranks = 1, .ranks = &rank};
    ek_sim_graphs all = {1, 1, &c};
    ek_dialect_graphs d;
    const ek_graph *to;

    build_replicas(&g);
    CHECK_INT(ek_dialect_open(EK_DIALECT_LOW_GRADIENTS, &machine, &one, &all, &d), EK_OK);
    to = d.graphs.classes[0].graph;
    CHECK(to->ops[5].work.net.bytes == 500);
    CHECK(to->ops[2].work.net.bytes == 1000); /* weights */
    ek_dialect_close(&d);
    ek_graph_fini(&g);
}

/* Numbers of which the rank has a quarter, and others that are all its own. */
static void gradients_are_passed_over(void)
{
    static const int32_t rank = 0;
    ek_graph g;
    ek_sim_class c = {.graph = &g, .n_ranks = 1, .ranks = &rank};
    ek_sim_graphs all = {1, 1, &c};
    ek_work sharded = of_net(EK_COLLECTIVE_REDUCE_SCATTER);
    ek_dialect_graphs d;

    sharded.net.element = 4; /* 250 numbers */
    ek_graph_init(&g);
    add(&g, EK_OP_REDUCE_GRADIENTS, EK_LANE_NET, 0, sharded, -1);
    add(&g, EK_OP_REDUCE_GRADIENTS, EK_LANE_NET, 0, of_net(EK_COLLECTIVE_ALL_REDUCE), 0);
    add(&g, EK_OP_GRADIENT_NORM, EK_LANE_COMPUTE, -1, ek_work_of_rows(62.5 + 1000, 1), 1);
    CHECK_INT(ek_dialect_open(EK_DIALECT_GRADIENT_PASSES | EK_DIALECT_LOW_GRADIENTS, &machine, &one,
                              &all, &d),
              EK_OK);
    CHECK(d.graphs.classes[0].graph->ops[2].bytes == 1000 + 3 * 4 * (250 + 1000));
    CHECK(d.graphs.classes[0].graph->ops[0].work.net.bytes == 500);
    ek_dialect_close(&d);
    ek_graph_fini(&g);
}

static ek_product product_of_passes(double out, double in, int32_t passes)
{
    return ek_product_of(3, out, in, passes);
}

/* Rows of an MLP, attention and a loss: each op is followed by what passes memory again, which the
 * next one waits for; a micro-batch's logits, or gradients, are kept. */
static void rows_pass_memory_again(void)
{
    enum { BOTH = EK_PRODUCT_INPUT | EK_PRODUCT_WEIGHT };
    static const ek_attention_work attention = {
        .heads = 4, .kv_heads = 2, .head_dim = 8, .queries = 10, .pairs = 55};
    /* 2 bytes a number, 4 of the real type: 2 q and 6 k and v; 2 of the width; 1 and 9 real of a
     * logit; 4 q and 6 k and v; 8 of the width, and 10 bytes a weight */
    static const double again[] = {10 * 8 * 2 * (2 * 4 + 6 * 4), 2 * 3 * 10 * 2, 32 * (2 + 9 * 4),
                                   10 * 8 * 2 * (4 * 4 + 6 * 4), 8 * 3 * 10 * 2 + (50 + 100) * 10};
    static const int32_t rank = 0;
    ek_graph g;
    ek_sim_class c = {.graph = &g, .n_ranks = 1, .ranks = &rank, .memory = 1000, .weights = 900};
    ek_sim_graphs all = {1, 1, &c};
    ek_attention_work back = attention;
    ek_dialect_graphs d;
    const ek_graph *to;

    back.backward = 1;
    ek_graph_init(&g);
    add(&g, EK_OP_ATTENTION, EK_LANE_COMPUTE, 0, ek_work_of_attention(&attention), -1);
    add(&g, EK_OP_SHARED_EXPERT, EK_LANE_COMPUTE, 0,
        ek_work_of_products(product_of_passes(20, 5, EK_PRODUCT_FORWARD),
                            product_of_passes(5, 10, EK_PRODUCT_FORWARD)),
        0);
    add(&g, EK_OP_CROSS_ENTROPY, EK_LANE_COMPUTE, 0, ek_work_of_rows(4, 8), 1);
    add(&g, EK_OP_ATTENTION_BACKWARD, EK_LANE_COMPUTE, 0, ek_work_of_attention(&back), 2);
    add(&g, EK_OP_SHARED_EXPERT_BACKWARD, EK_LANE_COMPUTE, 0,
        ek_work_of_products(product_of_passes(5, 10, BOTH), product_of_passes(20, 5, BOTH)), 3);
    add(&g, EK_OP_ADAMW, EK_LANE_COMPUTE, -1, ek_work_of_rows(1, 1), 4);
    CHECK_INT(ek_dialect_open(EK_DIALECT_UNFUSED_ROWS, &machine, &one, &all, &d), EK_OK);
    to = d.graphs.classes[0].graph;
    CHECK_INT(to->n_ops, 11);
    for (int32_t i = 0; i < 5; i++) {
        CHECK(fabs(to->ops[2 * i + 1].bytes - again[i]) < 1e-9);
        CHECK_INT(to->ops[2 * i + 1].work.kind, EK_WORK_ROWS);
        CHECK_INT(to->deps[to->ops[2 * i + 2].dep], 2 * i + 1);
    }
    /* gradients of 150 weights, beside 100 bytes that are free again by then; logits: 32 of 8
     * bytes, less 6 that are counted */
    CHECK(fabs(d.graphs.classes[0].memory - 1000 - fmax(150 * 2 - 100, 32 * 2)) < 1e-9);
    ek_dialect_close(&d);
    c.weights = 0;
    CHECK_INT(ek_dialect_open(EK_DIALECT_UNFUSED_ROWS, &machine, &one, &all, &d), EK_OK);
    CHECK(fabs(d.graphs.classes[0].memory - 1000 - 32 * 2) < 1e-9);
    ek_dialect_close(&d);
    ek_graph_fini(&g);
}

/* Of 12 ranks, experts of 2 in groups of 6: 1,000 bytes to 5 others are 600 for each of 2 ranks of
 * three experts, 400 of which leave for other experts once, and 1,200 are gathered. */
static void rows_are_gathered_by_the_ranks_of_an_expert(void)
{
    static const int32_t rank = 0;
    static const ek_op_kind kinds[] = {EK_OP_DISPATCH_A2A, EK_OP_COMBINE_A2A};
    ek_graph g;
    ek_sim_class c = {.graph = &g, .n_ranks = 1, .ranks = &rank};
    ek_sim_graphs all = {1, 1, &c};
    ek_work exchange = of_net(EK_COLLECTIVE_A2A_LINEAR);
    ek_dialect_graphs d;
    const ek_graph *to;

    exchange.net.group = (ek_ranks){0, 1, 12};
    exchange.net.span = 6;
    exchange.net.element = 100;
    ek_graph_init(&g);
    for (int i = 0; i < 2; i++)
        add(&g, kinds[i], EK_LANE_NET, 0, exchange, i - 1);
    add(&g, EK_OP_ADAMW, EK_LANE_COMPUTE, -1, ek_work_of_rows(1, 1), 1);
    CHECK_INT(ek_dialect_open(EK_DIALECT_ETP_GATHER, &machine, &expert_of_two, &all, &d), EK_OK);
    to = d.graphs.classes[0].graph;
    CHECK_INT(to->n_ops, 5);
    for (int i = 0; i < 4; i++) {
        const ek_net_work *w = &to->ops[i].work.net;
        int once = i == 0 || i == 3;

        CHECK_INT(w->collective, once     ? EK_COLLECTIVE_A2A_LINEAR
                                 : i == 1 ? EK_COLLECTIVE_ALL_GATHER
                                          : EK_COLLECTIVE_REDUCE_SCATTER);
        CHECK_INT(w->group.stride, once ? 2 : 1);
        CHECK_INT(w->group.n, once ? 6 : 2);
        CHECK_INT(w->span, once ? 3 : 2);
        CHECK_INT(w->element, once ? 100 : 2);
        CHECK(fabs(w->bytes - (once ? 400 : 1200)) < 1e-9);
        CHECK_INT(to->deps[to->ops[i + 1].dep], i);
    }
    ek_dialect_close(&d);
    CHECK_INT(ek_dialect_open(EK_DIALECT_ETP_GATHER, &machine, &one, &all, &d), EK_OK);
    CHECK_INT(d.graphs.classes[0].graph->n_ops, 3);
    ek_dialect_close(&d);
    ek_graph_fini(&g);
}

/* Counts of an expert-parallel group of 6 of 12 ranks, and weights in the type of products. */
static void gathers_are_shorter(void)
{
    static const int32_t rank = 0;
    ek_graph g;
    ek_sim_class c = {.graph = &g, .n_ranks = 1, .ranks = &rank};
    ek_sim_graphs all = {1, 1, &c};
    ek_work gather = of_net(EK_COLLECTIVE_ALL_GATHER);
    ek_dialect_graphs d;
    const ek_op *op;

    gather.net.group = (ek_ranks){0, 1, 12};
    gather.net.bytes = 1200;
    ek_graph_init(&g);
    add(&g, EK_OP_GATHER_COUNTS, EK_LANE_NET, 0, gather, -1);
    add(&g, EK_OP_GATHER_WEIGHTS, EK_LANE_NET, -1, gather, 0);
    gather.net.bytes = 0;
    add(&g, EK_OP_GATHER_COUNTS, EK_LANE_NET, 0, gather, 1);
    CHECK_INT(ek_dialect_open(EK_DIALECT_EXPERT_COUNTS | EK_DIALECT_LOW_WEIGHTS, &machine,
                              &expert_of_two, &all, &d),
              EK_OK);
    op = d.graphs.classes[0].graph->ops;
    CHECK(op[0].work.net.group.n == 6 && op[0].work.net.bytes == 600 && op[0].bytes == 500);
    CHECK(op[1].work.net.group.n == 12 && op[1].work.net.bytes == 600 && op[1].bytes == 500);
    CHECK(op[2].work.net.bytes == 0 && op[2].bytes == 1000); /* of nothing: as it was */
    ek_dialect_close(&d);
    ek_graph_fini(&g);
}

/* Whether a token with two of 8 experts may have both: its groups, of 2 experts, are any two. */
static double parts_of_pairs(const ek_dialect_layout *l, int parts, int limited)
{
    double sum = 0, n = 0;

    for (int g = 0; g < 4; g++)
        for (int h = g + 1; h < 4; h++)
            for (int a = 0; a < 8; a++)
                for (int b = a + 1; b < 8; b++) {
                    int in = (a / 2 == g || a / 2 == h) && (b / 2 == g || b / 2 == h);

                    if (!limited || in) {
                        sum += 1 + (a * parts / (int)l->experts != b * parts / (int)l->experts);
                        n++;
                    }
                }
    return sum / n;
}

/* 8 of 16 ranks exchange 100 bytes each with the 7 others, of tokens with two experts: between two
 * nodes and inside them, at once, by the mean over all pairs of experts. */
static void rows_are_sent_once(void)
{
    static const int32_t rank = 0;
    ek_dialect_layout l = {
        .ep = 8, .etp = 1, .experts = 8, .top_k = 2, .groups = 4, .node_ranks = 4};
    ek_graph g;
    ek_sim_class c = {.graph = &g, .n_ranks = 1, .ranks = &rank};
    ek_sim_graphs all = {1, 1, &c};
    ek_work exchange = of_net(EK_COLLECTIVE_A2A_LINEAR);
    const ek_net_work *w[2];
    ek_dialect_graphs d;
    const ek_graph *to;

    exchange.net.group = (ek_ranks){0, 1, 16};
    exchange.net.span = 8;
    exchange.net.bytes = 700;
    ek_graph_init(&g);
    add(&g, EK_OP_DISPATCH_A2A, EK_LANE_NET, 0, exchange, -1);
    add(&g, EK_OP_UNPACK, EK_LANE_COMPUTE, 0, ek_work_of_rows(1, 1), 0);
    for (l.group_top = 0; l.group_top <= 2; l.group_top += 2) {
        CHECK_INT(ek_dialect_open(EK_DIALECT_NODE_ONCE, &machine, &l, &all, &d), EK_OK);
        to = d.graphs.classes[0].graph;
        CHECK(to->n_ops == 3 && to->ops[1].n_deps == 0 && to->ops[2].n_deps == 2);
        for (int i = 0; i < 2; i++)
            w[i] = &to->ops[i].work.net;
        CHECK(w[0]->group.stride == 4 && w[0]->group.n == 4 && w[0]->span == 2);
        CHECK(w[1]->group.stride == 1 && w[1]->group.n == 4 && w[1]->span == 4);
        /* 800 bytes with a rank's own are 400 a token */
        CHECK(fabs(w[0]->bytes - 400 * parts_of_pairs(&l, 2, l.group_top) / 2) < 1e-9);
        CHECK(fabs(w[1]->bytes - 400 * parts_of_pairs(&l, 8, l.group_top) * 3 / 4) < 1e-9);
        CHECK(fabs(to->ops[0].bytes - 1000 * w[0]->bytes / 700) < 1e-9);
        ek_dialect_close(&d);
    }
    l.group_top = 0;
    l.node_ranks = 16; /* all in a node */
    CHECK_INT(ek_dialect_open(EK_DIALECT_NODE_ONCE, &machine, &l, &all, &d), EK_OK);
    to = d.graphs.classes[0].graph;
    CHECK(to->n_ops == 2 && to->ops[0].work.net.group.n == 16 && to->ops[0].work.net.span == 8);
    CHECK(fabs(to->ops[0].work.net.bytes - 400 * parts_of_pairs(&l, 8, 0) * 7 / 8) < 1e-9);
    ek_dialect_close(&d);
    ek_graph_fini(&g);
}

/* Experts of two ranks: rows are sent once to each node and each expert's first rank, and the
 * gather of them by the other is as it was. */
static void only_exchanges_are_sent_once(void)
{
    static const int32_t rank = 0;
    static const ek_dialect_layout l = {
        .ep = 4, .etp = 2, .experts = 8, .top_k = 2, .node_ranks = 4};
    ek_graph g;
    ek_sim_class c = {.graph = &g, .n_ranks = 1, .ranks = &rank};
    ek_sim_graphs all = {1, 1, &c};
    ek_work exchange = of_net(EK_COLLECTIVE_A2A_LINEAR);
    ek_dialect_graphs d;
    const ek_graph *to;

    exchange.net.group = (ek_ranks){0, 1, 16};
    exchange.net.span = 8;
    exchange.net.bytes = 700;
    ek_graph_init(&g);
    add(&g, EK_OP_DISPATCH_A2A, EK_LANE_NET, 0, exchange, -1);
    CHECK_INT(ek_dialect_open(EK_DIALECT_ETP_GATHER | EK_DIALECT_NODE_ONCE, &machine, &l, &all, &d),
              EK_OK);
    to = d.graphs.classes[0].graph;
    CHECK_INT(to->n_ops, 3);
    CHECK(to->ops[0].work.net.group.stride == 4 && to->ops[0].work.net.span == 2);
    CHECK(to->ops[1].work.net.group.stride == 2 && to->ops[1].work.net.span == 2);
    CHECK_INT(to->ops[2].work.net.collective, EK_COLLECTIVE_ALL_GATHER);
    CHECK(to->ops[2].n_deps == 2 && to->ops[2].work.net.group.n == 2);
    CHECK(fabs(to->ops[2].work.net.bytes - 800) < 1e-9);
    ek_dialect_close(&d);
    ek_graph_fini(&g);
}

/* Of a layer with 20, 5 and 10 million weights two sums, the first of 20; of one with 6 a single
 * one; each waits for that before. */
static void gradients_are_reduced_in_buckets(void)
{
    static const int32_t rank = 0, outs[] = {20000, 5000, 10000, 6000};
    static const double bytes[] = {140e6 * 20 / 35, 140e6 * 15 / 35, 24e6};
    ek_graph g;
    ek_sim_class c = {.graph = &g, .n_ranks = 1, .ranks = &rank};
    ek_sim_graphs all = {1, 1, &c};
    ek_work sum = of_net(EK_COLLECTIVE_ALL_REDUCE);
    ek_dialect_graphs d;
    const ek_graph *to;

    sum.net.element = 4;
    ek_graph_init(&g);
    for (int i = 0; i < 4; i++) {
        add(&g, EK_OP_SHARED_EXPERT_BACKWARD, EK_LANE_COMPUTE, 0,
            ek_work_of_product(ek_product_of(10, outs[i], 1000, EK_PRODUCT_WEIGHT)), g.n_ops - 1);
        g.ops[g.n_ops - 1].layer = i < 3;
        sum.net.bytes = i < 3 ? 140e6 : 24e6;
        if (i >= 2) {
            add(&g, EK_OP_REDUCE_GRADIENTS, EK_LANE_NET, -1, sum, g.n_ops - 1);
            g.ops[g.n_ops - 1].layer = i < 3;
        }
    }
    add(&g, EK_OP_ADAMW, EK_LANE_COMPUTE, -1, ek_work_of_rows(1, 1), 3);
    CHECK_INT(ek_dialect_open(EK_DIALECT_DDP_BUCKETS, &machine, &one, &all, &d), EK_OK);
    to = d.graphs.classes[0].graph;
    CHECK_INT(to->n_ops, 8);
    for (int i = 0, at = 3; i < 3; at += 1 + (i > 0), i++) { /* ops 3, 4 and 6 */
        const ek_op *op = &to->ops[at];

        CHECK(op->kind == EK_OP_REDUCE_GRADIENTS && op->lane == EK_LANE_SUMS);
        CHECK(fabs(op->work.net.bytes - bytes[i]) < 1);
        CHECK_INT(op->n_deps, 1 + (i == 2));
        CHECK_INT(to->deps[op->dep + op->n_deps - 1], i == 0 ? 2 : i == 1 ? 3 : 4);
    }
    CHECK_INT(to->deps[to->ops[7].dep], 4); /* the update waits for the last */
    ek_dialect_close(&d);
    ek_graph_fini(&g);
}

/* A layer's weights have two buckets, and its norms, which others sum, one. */
static void short_sums_are_not_split(void)
{
    static const int32_t rank = 0;
    static const double sums[] = {160e6, 8e3}, bytes[] = {80e6, 80e6, 8e3};
    ek_graph g;
    ek_sim_class c = {.graph = &g, .n_ranks = 1, .ranks = &rank};
    ek_sim_graphs all = {1, 1, &c};
    ek_product weights = ek_product_of(10, 20000, 1000, EK_PRODUCT_WEIGHT);
    ek_work sum = of_net(EK_COLLECTIVE_ALL_REDUCE);
    ek_dialect_graphs d;
    const ek_graph *to;

    sum.net.element = 4;
    ek_graph_init(&g);
    add(&g, EK_OP_SHARED_EXPERT_BACKWARD, EK_LANE_COMPUTE, 0, ek_work_of_products(weights, weights),
        -1);
    for (int i = 0; i < 2; i++) {
        sum.net.bytes = sums[i];
        add(&g, EK_OP_REDUCE_GRADIENTS, EK_LANE_NET, -1, sum, 0);
    }
    for (int32_t i = 0; i < g.n_ops; i++)
        g.ops[i].layer = 0;
    CHECK_INT(ek_dialect_open(EK_DIALECT_DDP_BUCKETS, &machine, &one, &all, &d), EK_OK);
    to = d.graphs.classes[0].graph;
    CHECK_INT(to->n_ops, 4);
    for (int i = 0; i < 3; i++)
        CHECK(fabs(to->ops[i + 1].work.net.bytes - bytes[i]) < 1e-6);
    ek_dialect_close(&d);
    ek_graph_fini(&g);
}

static void unknown_switches_are_refused(void)
{
    const char *words[] = {"late-gradients", "ring-steps", "megatron"};
    unsigned bits = 0;

    CHECK(ek_dialect_parse(words, 2, &bits) == EK_OK &&
          bits == (EK_DIALECT_LATE_GRADIENTS | EK_DIALECT_RING_STEPS));
    CHECK_INT(ek_dialect_parse(words, 3, &bits), EK_EINVAL);
    CHECK(strstr(ek_err_message(), "--dialect megatron is unknown: unfused-attention, ") != NULL);
}

static const ek_case cases[] = {
    EK_CASE(without_switches_graphs_are_the_same),
    EK_CASE(gradients_are_reduced_behind_the_backward_pass),
    EK_CASE(messages_have_the_type_of_products),
    EK_CASE(scores_of_all_pairs_are_stored),
    EK_CASE(rows_go_back_behind_the_products_of_weights),
    EK_CASE(nothing_goes_on_beside_replicas),
    EK_CASE(replicas_wait_for_exchanges_and_each_other),
    EK_CASE(sums_of_copies_have_the_type_of_products),
    EK_CASE(gradients_are_passed_over),
    EK_CASE(rows_pass_memory_again),
    EK_CASE(rows_are_gathered_by_the_ranks_of_an_expert),
    EK_CASE(gathers_are_shorter),
    EK_CASE(rows_are_sent_once),
    EK_CASE(only_exchanges_are_sent_once),
    EK_CASE(gradients_are_reduced_in_buckets),
    EK_CASE(short_sums_are_not_split),
    EK_CASE(unknown_switches_are_refused),
};
EK_TEST_MAIN(cases)
