/* Dispatch settings (chunks, all-to-all) that change every step, or are tuned: the same losses as
 * one rank alone.  Ranks are threads. */
#include "equal_threads.h"

enum { ALL = 12, FEW = EK_T_SLOW ? 10 : 16, MANY = EK_T_SLOW ? 6 : 10 };

static equal_layout over(int ranks, equal_ways ways)
{
    return (equal_layout){.ranks = ranks,
                          .pp = 1,
                          .model_chunks = 1,
                          .tp = 1,
                          .ep = ranks,
                          .etp = 1,
                          .degree = ways == EQUAL_RESTLESS ? 8 : 1,
                          .nodes = EQUAL_TWOS,
                          .ways = ways};
}

/* Number of different settings used, which are the same on all ranks. */
static int count_ways(const equal_layout *l, const equal_result *of_rank, int steps)
{
    uint64_t seen = 0;

    for (int i = 0; i < steps; i++) {
        const ek_moe_traffic *w = &of_rank[0].way[i];

        const ek_moe_traffic told = equal_traffic(l, i);

        if (l->ways == EQUAL_RESTLESS)
            CHECK(w->degree == told.degree && w->a2a == told.a2a && w->gather == told.gather);
        CHECK_INT(of_rank[0].cut[i], w->degree > 0 ? w->degree : 1);
        for (int r = 1; r < l->ranks; r++)
            CHECK(of_rank[r].way[i].degree == w->degree && of_rank[r].way[i].a2a == w->a2a &&
                  of_rank[r].way[i].gather == w->gather);
        seen |= UINT64_C(1) << ((w->degree * 3 + (int)w->a2a + 27 * (w->gather + 1)) % 61);
    }
    return __builtin_popcountll(seen);
}

/* Takes some steps; returns the number of different settings. */
static int trains(const equal_layout *l, int steps)
{
    static equal_result result[EQUAL_RANKS_MAX];
    equal_leg leg = {.to = steps, .save_at = -1};

    equal_check_leg_into(l, &leg, result);
    return count_ways(l, result, steps);
}

static void any_way_is_the_same(void)
{
    for (int ranks = 2; ranks <= 4; ranks++) {
        equal_layout l = over(ranks, EQUAL_RESTLESS);

        l.recompute = ranks == 3 ? EK_RECOMPUTE_FULL : EK_RECOMPUTE_OFF;
        CHECK(trains(&l, EQUAL_STEPS) > MANY);
    }
}

/* 2DH forwards rows of other ranks: each step sends the bytes that its all-to-all needs.
 */
static void bytes_are_those_of_the_way(void)
{
    static equal_result got[3][EQUAL_RANKS_MAX];
    equal_layout l = over(4, EQUAL_GIVEN);
    equal_leg leg = {.to = FEW, .save_at = -1};
    int64_t nodes = 0;

    equal_check_leg_into(&l, &leg, got[0]);
    l.a2a = EK_A2A_2DH;
    equal_check_leg_into(&l, &leg, got[1]);
    l.ways = EQUAL_RESTLESS;
    equal_check_leg_into(&l, &leg, got[2]);
    for (int i = 0; i < FEW; i++) {
        int by_nodes = equal_traffic(&l, i).a2a == EK_A2A_2DH;

        nodes += by_nodes;
        CHECK(got[0][0].bytes[i] < got[1][0].bytes[i]);
        CHECK_INT(got[2][0].bytes[i], got[by_nodes][0].bytes[i]);
    }
    CHECK(nodes > 0 && nodes < FEW);
}

/* With expert, shard, pipeline and data parallelism, and a sharded embedding. */
static void in_other_layouts(void)
{
    equal_layout l = over(4, EQUAL_RESTLESS);

    l.ep = 2;
    l.etp = 2;
    l.columns = 1;
    trains(&l, FEW);
    l.etp = 1;
    l.zero = 3;
    trains(&l, FEW);
    l.zero = 0;
    l.pp = 2;
    l.model_chunks = 2;
    l.worker = 1;
    trains(&l, FEW);
    l = over(4, EQUAL_RESTLESS);
    l.tp = 2;
    l.shape = 2;
    trains(&l, FEW);
}

/* Tutel's r, another one every step: 0, and all divisors of the shards. */
static void any_r(void)
{
    equal_layout l = over(4, EQUAL_RESTLESS);

    l.gather = EK_GATHER_ALL;
    CHECK(trains(&l, EQUAL_STEPS) > MANY);
    l.ep = 1;
    l.etp = 4;
    l.recompute = EK_RECOMPUTE_FULL;
    CHECK(trains(&l, EQUAL_STEPS) > MANY);
    l.ep = l.etp = 2;
    l.recompute = EK_RECOMPUTE_OFF;
    trains(&l, FEW);
    l.balance = 2;
    trains(&l, FEW);
    l.balance = 0;
    l.ways = EQUAL_TUNED;
    trains(&l, EQUAL_STEPS);
    l = over(3, EQUAL_RESTLESS); /* an inner width that three shards do not divide */
    l.ep = 1;
    l.etp = 3;
    l.gather = EK_GATHER_ALL;
    trains(&l, FEW);
}

/* Plans are made from gate statistics, which are cut like the chunks. */
static void under_planners(void)
{
    for (int balance = 1; balance < EQUAL_DRAWN; balance += 1 + 3 * EK_T_SLOW) {
        equal_layout l = over(2, EQUAL_RESTLESS);

        l.degree = 5;
        l.balance = balance;
        CHECK(trains(&l, FEW) > 6);
    }
}

static void capacities_and_other_gates(void)
{
    for (int model = 2; model < EQUAL_MODELS; model += 5) {
        equal_layout l = over(2, EQUAL_RESTLESS);

        l.model = model;
        trains(&l, FEW);
    }
}

/* In so few steps all settings have been tried: 12 on nodes of two, 8 on one node, 4 of two ranks.
 */
static void tuned(void)
{
    equal_layout l = over(4, EQUAL_TUNED);

    CHECK_INT(trains(&l, ALL + 4), ALL);
    l.nodes = EQUAL_ONE_NODE;
    CHECK_INT(trains(&l, FEW), 8);
    l = over(2, EQUAL_TUNED);
    CHECK_INT(trains(&l, FEW), 4);
}

static void not_tuned_where_there_is_no_choice(void)
{
    equal_layout l = over(4, EQUAL_TUNED);

    l.degree = 2;
    l.group = 1; /* chunks by distance */
    CHECK_INT(trains(&l, FEW), 1);
    l.group = 0;
    l.ep = 1; /* nothing is dispatched */
    CHECK_INT(trains(&l, FEW), 1);
}

static const ek_case cases[] = {
    EK_CASE(any_way_is_the_same),
    EK_CASE(bytes_are_those_of_the_way),
    EK_CASE(in_other_layouts),
    EK_CASE(any_r),
    EK_CASE(under_planners),
    EK_CASE(capacities_and_other_gates),
    EK_CASE(tuned),
    EK_CASE(not_tuned_where_there_is_no_choice),
};
EK_TEST_MAIN(cases)
