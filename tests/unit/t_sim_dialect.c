/* Graphs in the dialects of other programs: what ops become, and in which order. */
#include "ek_test.h"
#include "sim/dialect.h"

static const ek_machine machine = {.dtype = "bf16"};

static int32_t add(ek_graph *g, ek_op_kind kind, ek_lane lane, int32_t micro, ek_work work,
                   int32_t dep)
{
    ek_op op = {.kind = kind, .lane = lane, .layer = -1, .micro = micro, .bytes = 1000};

    op.work = work;
    return ek_graph_after(g, &op, dep);
}

static ek_work of_net(ek_collective collective)
{
    ek_work w = {.kind = EK_WORK_NET};

    w.net = (ek_net_work){.collective = collective, .group = {0, 1, 4}, .peer = -1, .bytes = 1000};
    return w;
}

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
    CHECK_INT(ek_dialect_open(dialect, &machine, &all, d), EK_OK);
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
    CHECK_INT(ek_dialect_open(dialect, &machine, &all, &d), EK_OK);
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
    CHECK_INT(
        ek_dialect_open(EK_DIALECT_GRADIENT_PASSES | EK_DIALECT_LOW_GRADIENTS, &machine, &all, &d),
        EK_OK);
    CHECK(d.graphs.classes[0].graph->ops[2].bytes == 1000 + 3 * 4 * (250 + 1000));
    CHECK(d.graphs.classes[0].graph->ops[0].work.net.bytes == 500);
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
    CHECK(strstr(ek_err_message(), "--dialect megatron: unfused-attention, ") != NULL);
}

static const ek_case cases[] = {
    EK_CASE(without_switches_graphs_are_the_same),
    EK_CASE(gradients_are_reduced_behind_the_backward_pass),
    EK_CASE(messages_have_the_type_of_products),
    EK_CASE(scores_of_all_pairs_are_stored),
    EK_CASE(rows_go_back_behind_the_products_of_weights),
    EK_CASE(gradients_are_passed_over),
    EK_CASE(unknown_switches_are_refused),
};
EK_TEST_MAIN(cases)
