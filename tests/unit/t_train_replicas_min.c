/* Training with each expert on several nodes, so that a node may be lost: from the first placement
 * on, with the losses of one rank alone; `auto` with transient replicas as well, of experts that
 * have persistent ones.  Ranks are threads, some per node. */
#include "equal_threads.h"

#include <stdatomic.h>

static const int keepers[] = {EQUAL_REPLICATE, EQUAL_AUTO}; /* of equal_planners */

/* On a busy machine a planner may take too large a part of such short steps, and is switched off:
 * before each step it is switched on again. */
static ek_status keep_planning(ek_trainer *tr, int step)
{
    (void)step;
    return ek_trainer_set_planner(tr, ek_trainer_pass(tr)->planning.planner);
}

/* ep ranks two to a node, as planner `keeper` has it. */
static equal_layout on_nodes(int keeper, int ranks, int ep, int hosts)
{
    equal_layout l = {.ranks = ranks,
                      .pp = ranks / ep,
                      .model_chunks = 1,
                      .tp = 1,
                      .ep = ep,
                      .etp = 1,
                      .degree = 2,
                      .shape = 1,
                      .nodes = EQUAL_TWOS,
                      .balance = EQUAL_REPLICATE,
                      .replicas_min = hosts};

    l.planner = ek_planner_for(equal_planners[keepers[keeper]], hosts);
    l.turn = keep_planning;
    return l;
}

/* Nodes that hold the expert which has the fewest, in the step and on the rank where that is least;
 * losses are compared inside.  Returns the results of the first rank. */
static const equal_result *train(const equal_layout *l, int *nodes)
{
    static equal_result result[EQUAL_RANKS_MAX];

    equal_check_into(l, result);
    for (int i = 0; i < EQUAL_STEPS; i++) {
        nodes[i] = result[0].least_nodes[i];
        for (int r = 1; r < l->ranks; r++)
            nodes[i] = result[r].least_nodes[i] < nodes[i] ? result[r].least_nodes[i] : nodes[i];
    }
    CHECK(result[0].replicas > 0 && result[0].moved > 0 && result[0].persistent_rows > 0);
    return &result[0];
}

static const equal_result *check_hosts(const equal_layout *l, int hosts)
{
    int nodes[EQUAL_STEPS];
    const equal_result *result = train(l, nodes);

    CHECK_INT(nodes[0], 1); /* before there are loads to go by */
    for (int i = 1; i < EQUAL_STEPS; i++)
        if (nodes[i] < hosts) {
            EK_T_FAIL("%s: in step %d an expert is on %d of %d nodes", equal_text(l), i, nodes[i],
                      hosts);
            break;
        }
    return result;
}

/* Transient replicas serve rows, some of experts that persistent ones serve at the same time. */
static void check_both_kinds(const equal_result *r)
{
    CHECK(r->transient_rows > 0 && r->both > 0);
}

static void experts_lie_on_two_nodes(void)
{
    double after[2];

    for (int keeper = 0; keeper < 2; keeper++) {
        equal_layout l = on_nodes(keeper, 4, 4, 2);
        const equal_result *r;

        CHECK(strcmp(l.planner->name, keeper == 0 ? "replicate" : "auto") == 0);
        r = check_hosts(&l, 2);
        after[keeper] = r->after / EQUAL_STEPS;
        if (keeper == 0)
            CHECK_INT(r->transient_rows, 0);
        else
            check_both_kinds(r);
    }
    CHECK(after[0] > 1.1 && after[1] < 1.01); /* by past loads; by those of the micro-batch */
}

/* All slots are needed for two copies of each expert: those are split by the counts alone. */
static void without_a_slot_for_transient_replicas(void)
{
    equal_layout l = on_nodes(1, 4, 4, 2);
    const equal_result *r;

    l.model = 2; /* six experts */
    l.shape = 0; /* one spare slot */
    r = check_hosts(&l, 2);
    CHECK_INT(r->transient_rows, 0);
    CHECK(r->after < 0.7 * r->before);
}

/* Three nodes of two ranks; nodes of one, two and three ranks; two stages of two nodes. */
static void on_other_nodes(void)
{
    equal_layout three = on_nodes(1, 6, 6, 3), ragged = on_nodes(1, 6, 6, 2);
    equal_layout stages = on_nodes(1, 8, 4, 2);

    check_hosts(&three, 3);
    ragged.nodes = EQUAL_RAGGED;
    check_both_kinds(check_hosts(&ragged, 2));
    check_both_kinds(check_hosts(&stages, 2));
}

/* Two groups shard each expert, and each has it on two of its own nodes. */
static void sharded_experts_lie_on_two_nodes(void)
{
    for (int zero = 1; zero <= 3; zero++)
        for (int keeper = zero % 2; keeper < (EK_T_SLOW ? 1 : 2); keeper++) {
            equal_layout l = on_nodes(keeper, 8, 4, 2);

            l.pp = 1;
            l.zero = zero;
            check_hosts(&l, 2);
        }
}

/* Shards of each expert on a node gather each other's slices, also of persistent and transient
 * replicas. */
static void gathered_experts_lie_on_two_nodes(void)
{
    for (int keeper = 0; keeper < 2; keeper++)
        for (int ways = EQUAL_GIVEN; ways <= EQUAL_RESTLESS; ways++) {
            equal_layout l = on_nodes(keeper, 8, 4, 2);
            const equal_result *r;

            if (EK_T_SLOW && keeper + ways == 1)
                continue;
            l.pp = 1;
            l.etp = l.gather = 2;
            l.ways = (equal_ways)ways;
            r = check_hosts(&l, 2);
            CHECK(r->brought > 0);
            if (keeper == 1)
                check_both_kinds(r);
        }
}

static ek_status sleepy(void *memory, const ek_plan_limits *l, const int64_t *counts, ek_plan *p)
{
    usleep(60000);
    return ek_planner_auto_replicas.plan_transient(memory, l, counts, p);
}

/* A planner that is too slow for the steps is switched off; persistent copies still share rows. */
static void without_the_planner_persistent_copies_serve(void)
{
    ek_planner slow = ek_planner_auto_replicas;
    equal_layout l = on_nodes(1, 4, 4, 2);
    const equal_result *r;

    slow.plan_transient = sleepy;
    l.planner = &slow;
    l.turn = NULL;
    r = check_hosts(&l, 2);
    CHECK(r->persistent_rows > 50 * EQUAL_STEPS);
    CHECK(r->after < 0.8 * r->before);
}

/* Persistent copies in the plans of `dear_sums`, and those of them that serve rows. */
static atomic_int all_copies, serving_copies;

/* `auto` where sums of gradients take long: one copy of most experts serves all rows. */
static ek_status dear_sums(void *memory, const ek_plan_limits *l, const int64_t *counts, ek_plan *p)
{
    ek_plan_limits dear = *l;
    int32_t states = l->slots - ek_planner_transient_slots(&ek_planner_auto_replicas, l);

    dear.costs.gradient_s = 10;
    EK_TRY(ek_planner_auto_replicas.plan_transient(memory, &dear, counts, p));
    for (int32_t s = 0; s < l->ranks * l->slots; s++)
        if (s % l->slots < states && p->placement.expert_of[s] >= 0) {
            atomic_fetch_add(&all_copies, 1);
            atomic_fetch_add(&serving_copies, p->quota[s] > 0);
        }
    return EK_OK;
}

/* Copies that serve nothing get the sum of the others' gradients. */
static void copies_without_rows_follow(void)
{
    ek_planner few = ek_planner_auto_replicas;

    few.plan_transient = dear_sums;
    for (int zero = 0; zero <= 2; zero += 2) { /* sums once a step; after each micro-batch */
        equal_layout l = on_nodes(1, zero > 0 ? 8 : 4, 4, 2);

        l.pp = 1;
        l.zero = zero;
        l.planner = &few;
        all_copies = serving_copies = 0;
        check_hosts(&l, 2);
        CHECK(all_copies > 0);
        CHECK(zero > 0 || 3 * serving_copies < 2 * all_copies);
    }
}

/* More than the number of nodes: all nodes. */
static void as_far_as_nodes_suffice(void)
{
    equal_layout l = on_nodes(1, 4, 4, 3);

    check_hosts(&l, 2);
}

/* Pairs of nodes that together hold all copies of some expert, in the plans of `counted`. */
static atomic_int fatal_pairs;

static ek_status counted(void *memory, const ek_plan_limits *l, const int64_t *counts, ek_plan *p)
{
    unsigned pairs = 0; /* bits */

    EK_TRY(ek_planner_replicate.plan_persistent(memory, l, counts, p));
    for (int32_t e = 0; e < l->experts; e++) {
        unsigned nodes = 0;

        for (int32_t s = 0; s < l->ranks * l->slots; s++)
            nodes |= p->placement.expert_of[s] == e ? 1U << l->node_of[s / l->slots] : 0;
        if (__builtin_popcount(nodes) == 2)
            pairs |= 1U << nodes;
    }
    atomic_fetch_add(&fatal_pairs, __builtin_popcount(pairs));
    return EK_OK;
}

/* Four nodes of six slots.  The four cold experts are on two of the nodes where few losses are
 * fatal, which leaves most of the two hot ones to the other nodes; speed spreads all of them. */
static void survival_is_preferred(void)
{
    enum { EXPERTS = 6 };
    static const uint32_t loads[EXPERTS] = {500, 500, 4, 4, 4, 4};
    static const ek_trace hot = {.data = (const unsigned char *)loads,
                                 .width = sizeof(*loads),
                                 .iterations = 1,
                                 .layers = 1,
                                 .sources = 1,
                                 .experts = EXPERTS};
    ek_planner counting = ek_planner_replicate;
    int pairs[2];

    counting.plan_persistent = counted;
    for (int survival = 0; survival < 2; survival++) {
        equal_layout l = on_nodes(0, 8, 8, 2);

        l.model = 2; /* six experts */
        l.spare = 2;
        l.replay = &hot;
        l.survival = survival;
        l.planner = &counting;
        fatal_pairs = 0;
        check_hosts(&l, 2);
        pairs[survival] = fatal_pairs;
    }
    CHECK(pairs[1] > 0 && pairs[1] < pairs[0]);
}

/* Control: by popularity alone some experts are on one node. */
static void without_it_some_lie_on_one(void)
{
    equal_layout l = on_nodes(0, 4, 4, 1);
    int nodes[EQUAL_STEPS], least = 2;

    train(&l, nodes);
    for (int i = 1; i < EQUAL_STEPS; i++)
        least = nodes[i] < least ? nodes[i] : least;
    CHECK_INT(least, 1);
    CHECK(ek_planner_for(&ek_planner_auto, 1) == &ek_planner_auto);
    CHECK(ek_planner_for(&ek_planner_auto, 0) == &ek_planner_auto);
    CHECK(ek_planner_for(&ek_planner_exact, 2) == &ek_planner_exact);
}

/* Replicas are equal on all nodes, and one rank continues from them. */
static void replicas_are_the_same_bits(void)
{
    equal_layout l = on_nodes(1, 4, 4, 2), one = on_nodes(1, 4, 4, 2);

    one.ranks = one.ep = one.pp = 1;
    one.balance = 0;
    one.planner = NULL;
    one.turn = NULL;
    equal_check_pair(&l, &one, EQUAL_STEPS * 2 / 5);
}

static const ek_case cases[] = {
    EK_CASE(experts_lie_on_two_nodes),
    EK_CASE(on_other_nodes),
    EK_CASE(sharded_experts_lie_on_two_nodes),
    EK_CASE(gathered_experts_lie_on_two_nodes),
    EK_CASE(without_a_slot_for_transient_replicas),
    EK_CASE(without_the_planner_persistent_copies_serve),
    EK_CASE(copies_without_rows_follow),
    EK_CASE(as_far_as_nodes_suffice),
    EK_CASE(survival_is_preferred),
    EK_CASE(without_it_some_lie_on_one),
    EK_CASE(replicas_are_the_same_bits),
};
EK_TEST_MAIN(cases)
