/* Graphs of ZeRO 1 in the dialects of other programs (sim/dialect_zero.h): sums of gradients that
 * become one, and weights that are gathered at once and copied. */
#include "dialect_graphs.h"

#include <math.h>

static void open_dialect(unsigned dialect, const ek_graph *g, ek_dialect_graphs *d)
{
    static const int32_t rank = 0;
    ek_sim_class c = {.graph = g, .n_ranks = 1, .ranks = &rank};
    ek_sim_graphs all = {1, 1, &c};

    CHECK_INT(ek_graph_check(g), EK_OK);
    CHECK_INT(ek_dialect_open(dialect, &machine, &one, &all, d), EK_OK);
}

enum { STEP_OPS = 17 };

/* The updates of three buckets, each of which waits for what the last but one gathered. */
static void add_updates(ek_graph *g, int32_t op)
{
    static const double bytes[] = {1000, 1000, 2000};
    ek_work gather = of_net(EK_COLLECTIVE_ALL_GATHER);
    int32_t gathered = -1;

    gather.net.element = 4;
    for (int i = 0; i < 3; i++) {
        int32_t before = gathered;

        op = add(g, EK_OP_ADAMW, EK_LANE_COMPUTE, -1, ek_work_of_rows(1, 1), op);
        gather.net.bytes = bytes[i];
        gathered = add(g, EK_OP_GATHER_WEIGHTS, EK_LANE_NET, -1, gather, op);
        if (before >= 0)
            op = add(g, EK_OP_PACK, EK_LANE_COMPUTE, -1, ek_work_of_rows(1, 1), before);
    }
    add(g, EK_OP_PACK, EK_LANE_COMPUTE, -1, ek_work_of_rows(1, 1), gathered);
}

/* A step with ZeRO 1 of a matrix and a norm, and of three experts of another group of ranks. */
static void build_zero(ek_graph *g)
{
    ek_work sum = of_net(EK_COLLECTIVE_REDUCE_SCATTER);
    ek_product weights = ek_product_of(10, 20, 10, EK_PRODUCT_WEIGHT), experts = weights;
    int32_t sums[3], op;

    experts.groups = 3;
    sum.net.element = 4;
    ek_graph_init(g);
    op = add(g, EK_OP_ATTENTION_OUT_BACKWARD, EK_LANE_COMPUTE, 0, ek_work_of_product(weights), -1);
    sums[0] = add(g, EK_OP_REDUCE_GRADIENTS, EK_LANE_NET, 0, sum, op);
    op = add(g, EK_OP_NORM_BACKWARD, EK_LANE_COMPUTE, 0, ek_work_of_rows(1, 1), op);
    sum.net.bytes = 3000;
    sums[1] = add(g, EK_OP_REDUCE_GRADIENTS, EK_LANE_NET, 0, sum, op);
    op = add(g, EK_OP_EXPERT_UP_WEIGHT, EK_LANE_COMPUTE, 0, ek_work_of_product(experts), op);
    sum.net.group.n = 2;
    sums[2] = add(g, EK_OP_REDUCE_GRADIENTS, EK_LANE_NET, 0, sum, op);
    op = ek_graph_add(g, &(ek_op){.kind = EK_OP_WAIT_GRADIENTS, .micro = -1}, sums, 3);
    op = add(g, EK_OP_GRADIENT_NORM, EK_LANE_COMPUTE, -1, ek_work_of_rows(62.5, 1), op);
    add_updates(g, op);
    CHECK_INT(g->n_ops, STEP_OPS);
}

static void translate_zero(unsigned dialect, ek_graph *g, ek_dialect_graphs *d)
{
    build_zero(g);
    open_dialect(dialect, g, d);
}

static void check_kinds(const ek_graph *g, int32_t first, const ek_op_kind *kinds, int32_t n)
{
    for (int32_t i = 0; i < n && first + i < g->n_ops; i++)
        CHECK_INT(g->ops[first + i].kind, kinds[i]);
}

/* Each group's are one all-reduce, of all bytes, in front of what waits for them; the norm is of
 * all: 250 and 750 numbers of 4 ranks, and 750 of 2, where 62.5 were its own of those counted. */
static void gradients_are_summed_whole(void)
{
    static const ek_op_kind kinds[] = {EK_OP_ATTENTION_OUT_BACKWARD, EK_OP_NORM_BACKWARD,
                                       EK_OP_EXPERT_UP_WEIGHT,       EK_OP_REDUCE_GRADIENTS,
                                       EK_OP_REDUCE_GRADIENTS,       EK_OP_WAIT_GRADIENTS,
                                       EK_OP_GRADIENT_NORM};
    ek_dialect_graphs d;
    const ek_graph *to;
    ek_graph g;

    translate_zero(EK_DIALECT_WHOLE_SUMS, &g, &d);
    to = d.graphs.classes[0].graph;
    CHECK_INT(to->n_ops, STEP_OPS - 1);
    check_kinds(to, 0, kinds, 7);
    for (int32_t i = 3; i < 5; i++) {
        CHECK_INT(to->ops[i].work.net.collective, EK_COLLECTIVE_ALL_REDUCE);
        CHECK(to->ops[i].work.net.bytes == (i == 3 ? 4000 : 3000));
        CHECK(to->ops[i].bytes == (i == 3 ? 2 * 4000 * 3 / 4 : 2 * 3000 / 2));
    }
    CHECK_INT(deps_of(to, 3), 1 | 2);
    CHECK_INT(deps_of(to, 4), 4);
    CHECK_INT(deps_of(to, 5), 8 | 16);
    CHECK(fabs(to->ops[6].bytes - 1000 - 4 * (250 * 0.75 + 750 * 0.75 + 750 * 0.5)) < 1e-9);
    ek_dialect_close(&d);
    ek_graph_fini(&g);
}

/* Five weights, of 1,000 numbers, by 4 ranks: updates follow one another, not what is gathered. */
static void weights_are_gathered_at_once_and_copied(void)
{
    static const ek_op_kind kinds[] = {EK_OP_GRADIENT_NORM, EK_OP_ADAMW, EK_OP_ADAMW,
                                       EK_OP_ADAMW,         EK_OP_PACK,  EK_OP_GATHER_WEIGHTS,
                                       EK_OP_PACK,          EK_OP_PACK,  EK_OP_PACK,
                                       EK_OP_PACK,          EK_OP_PACK};
    static const double kernels[] = {4, 0, 4, 5 * 4};
    ek_dialect_graphs d;
    const ek_graph *to;
    ek_graph g;

    translate_zero(EK_DIALECT_GATHER_COPIES, &g, &d);
    to = d.graphs.classes[0].graph;
    CHECK_INT(to->n_ops, STEP_OPS + 1);
    check_kinds(to, 7, kinds, 11);
    for (int32_t i = 8; i < 15; i++)
        CHECK_INT(deps_of(to, i) >> (i - 1) & 1, 1);
    CHECK(to->ops[12].work.net.bytes == 4000);
    for (int32_t i = 11; i < 15; i++) {
        if (i == 12)
            continue;
        CHECK(to->ops[i].work.rows.kernels == kernels[i - 11]);
        CHECK(to->ops[i].work.rows.rows == 1000 && to->ops[i].bytes == 2 * 1000 * 2);
    }
    for (int32_t i = 15; i < 18; i++)
        CHECK_INT(last_dep(to, i), 14);
    ek_dialect_close(&d);
    ek_graph_fini(&g);
}

/* Sums of one group of ranks of which each waits for the one before, as buckets do. */
static void sums_that_follow_one_another_are_one(void)
{
    static const ek_op_kind kinds[] = {EK_OP_HEAD_BACKWARD, EK_OP_EMBED_BACKWARD,
                                       EK_OP_REDUCE_GRADIENTS, EK_OP_WAIT_GRADIENTS};
    ek_work work = of_net(EK_COLLECTIVE_ALL_REDUCE);
    ek_op sum = {.kind = EK_OP_REDUCE_GRADIENTS, .lane = EK_LANE_SUMS, .layer = -1, .work = work};
    ek_dialect_graphs d;
    const ek_graph *to;
    ek_graph g;

    ek_graph_init(&g);
    add(&g, EK_OP_HEAD_BACKWARD, EK_LANE_COMPUTE, 0, ek_work_of_rows(1, 1), -1);
    add(&g, EK_OP_REDUCE_GRADIENTS, EK_LANE_SUMS, 0, work, 0);
    add(&g, EK_OP_EMBED_BACKWARD, EK_LANE_COMPUTE, 0, ek_work_of_rows(1, 1), 0);
    (void)ek_graph_add(&g, &sum, (const int32_t[]){2, 1}, 2);
    add(&g, EK_OP_REDUCE_GRADIENTS, EK_LANE_SUMS, 0, work, 3);
    add(&g, EK_OP_WAIT_GRADIENTS, EK_LANE_COMPUTE, -1, (ek_work){0}, 4);
    open_dialect(EK_DIALECT_WHOLE_SUMS, &g, &d);
    to = d.graphs.classes[0].graph;
    CHECK_INT(to->n_ops, 4);
    check_kinds(to, 0, kinds, 4);
    if (to->n_ops == 4) {
        CHECK(to->ops[2].work.net.bytes == 3000);
        CHECK_INT(deps_of(to, 2), 1 | 2);
        CHECK_INT(deps_of(to, 3), 4);
    }
    ek_dialect_close(&d);
    ek_graph_fini(&g);
}

/* Buckets of two groups of ranks, 4 with more bytes and 2, and one that no other rank has. */
static void build_two_groups(ek_graph *g, int32_t element)
{
    ek_work gather = of_net(EK_COLLECTIVE_ALL_GATHER);
    int32_t of_four, of_two, update;

    gather.net.element = element;
    gather.net.bytes = 2000;
    ek_graph_init(g);
    update = add(g, EK_OP_ADAMW, EK_LANE_COMPUTE, -1, ek_work_of_rows(1, 1), -1);
    of_four = add(g, EK_OP_GATHER_WEIGHTS, EK_LANE_NET, -1, gather, update);
    update = add(g, EK_OP_ADAMW, EK_LANE_COMPUTE, -1, ek_work_of_rows(1, 1), of_four);
    gather.net.group.n = 2;
    gather.net.bytes = 1000;
    of_two = add(g, EK_OP_GATHER_WEIGHTS, EK_LANE_NET, -1, gather, update);
    add(g, EK_OP_ADAMW, EK_LANE_COMPUTE, -1, ek_work_of_rows(1, 1), -1);
    add(g, EK_OP_UNPACK, EK_LANE_COMPUTE, -1, ek_work_of_rows(1, 1), of_two);
    add(g, EK_OP_UNPACK, EK_LANE_COMPUTE, -1, ek_work_of_rows(1, 1), of_four);
}

/* All updates are before both gathers, that of the larger group alone is copied.  Elements of no
 * size, as a graph may have that moves none, are bytes. */
static void other_groups_gather_without_copies(void)
{
    static const ek_op_kind kinds[] = {
        EK_OP_ADAMW, EK_OP_ADAMW, EK_OP_ADAMW,          EK_OP_PACK,   EK_OP_GATHER_WEIGHTS,
        EK_OP_PACK,  EK_OP_PACK,  EK_OP_GATHER_WEIGHTS, EK_OP_UNPACK, EK_OP_UNPACK};
    static const unsigned deps[] = {0, 1, 2, 4, 1 | 8, 16, 32, 2 | 4, 128, 64};

    for (int32_t element = 0; element <= 4; element += 4) {
        double numbers = element > 0 ? 500 : 2000;
        ek_dialect_graphs d;
        const ek_graph *to;
        ek_graph g;

        build_two_groups(&g, element);
        open_dialect(EK_DIALECT_GATHER_COPIES, &g, &d);
        to = d.graphs.classes[0].graph;
        CHECK_INT(to->n_ops, 10);
        check_kinds(to, 0, kinds, 10);
        for (int32_t i = 0; i < 10 && to->n_ops == 10; i++)
            CHECK_INT(deps_of(to, i), deps[i]);
        CHECK(to->ops[3].work.rows.rows == numbers && to->ops[5].bytes == 2 * numbers * 2);
        CHECK(to->ops[4].work.net.group.n == 4 && to->ops[4].work.net.bytes == 2000);
        CHECK(to->ops[7].work.net.group.n == 2 && to->ops[7].work.net.bytes == 1000);
        ek_dialect_close(&d);
        ek_graph_fini(&g);
    }
}

/* Its two sums are one all-reduce; nothing gathers what is updated. */
static void graphs_without_sharded_weights_stay(void)
{
    enum { BOTH = EK_DIALECT_WHOLE_SUMS | EK_DIALECT_GATHER_COPIES };
    static const ek_op_kind kinds[] = {EK_OP_ATTENTION_BACKWARD, EK_OP_REDUCE_SCATTER,
                                       EK_OP_EMBED_BACKWARD, EK_OP_REDUCE_GRADIENTS, EK_OP_ADAMW};
    int32_t sums[2];
    ek_dialect_graphs d;
    ek_graph g;

    ek_graph_init(&g);
    add(&g, EK_OP_ATTENTION_BACKWARD, EK_LANE_COMPUTE, 0, ek_work_of_rows(1, 1), -1);
    add(&g, EK_OP_REDUCE_SCATTER, EK_LANE_SUMS, 0, of_net(EK_COLLECTIVE_REDUCE_SCATTER), 0);
    sums[0] = add(&g, EK_OP_REDUCE_GRADIENTS, EK_LANE_NET, 0, of_net(EK_COLLECTIVE_ALL_REDUCE), 0);
    add(&g, EK_OP_EMBED_BACKWARD, EK_LANE_COMPUTE, 0, ek_work_of_rows(1, 1), 1);
    sums[1] = add(&g, EK_OP_REDUCE_GRADIENTS, EK_LANE_NET, 0, of_net(EK_COLLECTIVE_ALL_REDUCE), 3);
    (void)ek_graph_add(&g, &(ek_op){.kind = EK_OP_ADAMW, .layer = -1, .micro = -1}, sums, 2);
    open_dialect(BOTH, &g, &d);
    CHECK_INT(d.graphs.classes[0].graph->n_ops, 5);
    check_kinds(d.graphs.classes[0].graph, 0, kinds, 5);
    ek_dialect_close(&d);
    ek_graph_fini(&g);
}

static const ek_case cases[] = {
    EK_CASE(gradients_are_summed_whole),
    EK_CASE(sums_that_follow_one_another_are_one),
    EK_CASE(weights_are_gathered_at_once_and_copied),
    EK_CASE(other_groups_gather_without_copies),
    EK_CASE(graphs_without_sharded_weights_stay),
};
EK_TEST_MAIN(cases)
