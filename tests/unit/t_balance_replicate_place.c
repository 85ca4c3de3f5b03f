/* The parts of replicate: allocation, initial placements and their survivability, and the climb,
 * against all placements of small cases. */
#include "replicate_cases.h"

/* --- allocation ------------------------------------------------------------------------------- */

/* The paper's setting: 10 nodes of 6 slots, 16 experts, each on at least 2 nodes. */
static void allocation_of_equal_loads(void)
{
    int64_t total[16];
    int32_t order[16], r[16];

    for (int factor = 0; factor < 3; factor++) { /* 0: no assignments */
        for (int e = 0; e < 16; e++)
            total[e] = 1000 * factor;
        allocate(16, 60, 2, total, order, r);
        for (int e = 0; e < 16; e++) {
            CHECK_INT(order[e], e);
            CHECK_INT(r[e], e < 4 ? 3 : 4);
        }
    }
}

/* 87 % of the assignments go to two experts. */
static void allocation_of_skewed_loads(void)
{
    int64_t total[16];
    int32_t order[16], r[16];

    for (int e = 0; e < 16; e++)
        total[e] = e == 3 || e == 9 ? 43500 : 13000 / 14;
    allocate(16, 60, 2, total, order, r);
    for (int e = 0; e < 16; e++)
        CHECK_INT(r[e], e == 3 || e == 9 ? 16 : 2);
    CHECK_INT(order[14], 3);
    CHECK_INT(order[15], 9);
}

static void allocation_at_its_edges(void)
{
    int64_t total[16] = {5, 0, 0, 0};
    int32_t order[16], r[16];

    /* 30 slots do not suffice for 2 each of 16: the minimum falls to 1 */
    allocate(16, 30, 2, total, order, r);
    CHECK_INT(r[0], 15);
    CHECK_INT(r[15], 1);
    CHECK_INT(ek_replicate_least(16, 30, 2), 1);
    CHECK_INT(ek_replicate_least(16, 32, 2), 2);
    CHECK_INT(ek_replicate_least(16, 32, 0), 1);
    allocate(1, 7, 3, total, order, r);
    CHECK_INT(r[0], 7);
    allocate(4, 4, 9, total, order, r);
    for (int e = 0; e < 4; e++)
        CHECK_INT(r[e], 1);
    CHECK_INT(ek_replicate_allocate(4, 3, 1, total, order, r), EK_EINVAL);
    total[0] = total[1] = INT64_MAX / 4; /* products exceed 64 bits */
    allocate(4, 1000, 2, total, order, r);
    CHECK_INT(r[2], 2);
    CHECK_INT(r[0], 498);
    CHECK_INT(r[1], 498);
}

static void allocation_adds_up(void)
{
    for (uint64_t n = 0; n < 2000; n++) {
        int64_t total[32], many[32];
        int32_t order[32], r[32], again[32], sum = 0;
        int32_t experts = 1 + (int32_t)(ek_random_bits(n, 0, 0) % 32);
        int32_t slots = experts + (int32_t)(ek_random_bits(n, 0, 1) % 100);
        int32_t least = (int32_t)(ek_random_bits(n, 0, 2) % 5), sure;

        for (int32_t e = 0; e < experts; e++) {
            uint64_t bits = ek_random_bits(n, 1, (uint64_t)e);

            total[e] = (int64_t)(bits % (UINT64_C(1) << (bits >> 59)));
            many[e] = 7 * total[e];
        }
        sure = ek_replicate_least(experts, slots, least);
        allocate(experts, slots, least, total, order, r);
        for (int32_t i = 0; i < experts; i++) {
            sum += r[i];
            CHECK(r[i] >= sure);
            CHECK(i == 0 ||
                  (r[order[i]] >= r[order[i - 1]] && total[order[i]] >= total[order[i - 1]]));
        }
        CHECK_INT(sum, slots);
        allocate(experts, slots, least, many, order, again);
        CHECK(memcmp(r, again, (size_t)experts * sizeof(*r)) == 0);
    }
}
/* --- placements ------------------------------------------------------------------------------- */

/* With `alive` nodes left, `survived` of `sets` keep every expert. */
static void survives(const fixture *f, int32_t alive, int64_t survived, int64_t sets)
{
    int32_t k = f->s.nodes - alive;

    CHECK(f->s.exact);
    CHECK_INT(f->s.sets[k], sets);
    CHECK_INT(f->s.sets[k] - f->w.fatal[k], survived);
}

/* Survival in thousandths for k = 1, 2, ... failed nodes. */
static void survives_parts(const fixture *f, const int *want, int n)
{
    for (int k = 1; k <= n; k++) {
        double part = 1 - (double)f->w.fatal[k] / (double)f->s.sets[k];

        CHECK_INT((int)(part * 1000 + 0.5), want[k - 1]);
    }
}

/* Allocations of eq. 1 for which MRO alone is not optimal, and the optimum over all placements by
 * enumeration: nodes alive, survived by MRO, by the optimum, out of. */
static void overlap_is_repaired(void)
{
    static const struct {
        int32_t nodes, room, experts, r[5], alive, overlap, best, sets;
    } c[] = {
        {3, 2, 3, {2, 2, 2}, 2, 2, 3, 3},    {4, 2, 3, {2, 3, 3}, 2, 4, 5, 6},
        {5, 2, 3, {3, 3, 4}, 3, 9, 10, 10},  {4, 3, 4, {3, 3, 3, 3}, 2, 3, 6, 6},
        {4, 3, 4, {3, 3, 3, 3}, 3, 3, 4, 4}, {5, 4, 5, {4, 4, 4, 4, 4}, 4, 4, 5, 5},
    };

    for (size_t i = 0; i < sizeof(c) / sizeof(*c); i++) {
        fixture f;

        setup(&f, c[i].nodes, c[i].room, c[i].experts, c[i].r, 2);
        mro(&f);
        check_place(&f);
        survives(&f, c[i].alive, c[i].overlap, c[i].sets);
        best(&f);
        check_place(&f);
        CHECK_INT(f.w.lack, 0);
        survives(&f, c[i].alive, c[i].best, c[i].sets);
        survives(&f, c[i].nodes - 1, c[i].nodes, c[i].nodes); /* any one node may fail */
        teardown(&f);
    }
}

/* The paper's GPT-S: 8 experts in equal demand on 10 nodes of 6 slots. */
static void small_model_in_equal_demand(void)
{
    static const int32_t r[] = {7, 7, 7, 7, 8, 8, 8, 8};
    static const int overlap[] = {1000, 1000, 992, 967, 917, 833};
    static const int even[] = {1000, 1000, 1000, 1000, 1000, 1000};
    fixture f;

    setup(&f, 10, 6, 8, r, 2);
    mro(&f);
    check_place(&f);
    survives_parts(&f, overlap, 6);
    spread(&f);
    check_place(&f);
    survives_parts(&f, even, 6);
    best(&f);
    check_place(&f);
    survives_parts(&f, even, 6);
    teardown(&f);
}

/* The paper's GPT-L: 16 experts; MRO is better there, and the climb does not make it worse. */
static void large_model_in_equal_demand(void)
{
    static const int overlap[] = {1000, 1000, 983, 929, 810, 600};
    static const int even[] = {1000, 1000, 967, 867, 675, 400};
    int32_t r[16];
    fixture f;

    for (int e = 0; e < 16; e++)
        r[e] = e < 4 ? 3 : 4;
    setup(&f, 10, 6, 16, r, 2);
    mro(&f);
    check_place(&f);
    survives_parts(&f, overlap, 6);
    spread(&f);
    survives_parts(&f, even, 6);
    best(&f);
    check_place(&f);
    survives_parts(&f, overlap, 6);
    teardown(&f);
}

/* The paper's compact placement, the worst of the three. */
static void fill_node_by_node(const ek_replicate_nodes *s, const int32_t *order,
                              const int32_t *replicas, ek_replicate_place *w)
{
    int32_t node = 0;

    ek_replicate_place_clear(s, w);
    for (int32_t i = 0; i < s->experts; i++)
        for (int32_t k = 0; k < replicas[order[i]]; k++) {
            while (w->vacant[node] == 0)
                node++;
            ek_replicate_put(s, w, node, order[i]);
        }
}

static void large_model_in_skewed_demand(void)
{
    static const int overlap[] = {1000, 933, 800, 614, 405, 210};
    static const int even[] = {1000, 889, 667, 381, 127, 0};
    static const int packed[] = {500, 222, 75, 14, 0, 0};
    int32_t r[16];
    fixture f;

    for (int e = 0; e < 16; e++)
        r[e] = e < 14 ? 2 : 16;
    setup(&f, 10, 6, 16, r, 2);
    mro(&f);
    check_place(&f);
    survives_parts(&f, overlap, 6);
    spread(&f);
    check_place(&f);
    survives_parts(&f, even, 6);
    fill_node_by_node(&f.s, f.order, f.r, &f.w);
    ek_replicate_score(&f.s, f.need, &f.w);
    check_place(&f);
    survives_parts(&f, packed, 6);
    best(&f);
    check_place(&f);
    survives_parts(&f, overlap, 6);
    teardown(&f);
}

static void put_all(fixture *f, const char *const *nodes)
{
    ek_replicate_place_clear(&f->s, &f->w);
    for (int32_t n = 0; n < f->s.nodes; n++)
        for (const char *e = nodes[n]; *e != '\0'; e++)
            ek_replicate_put(&f->s, &f->w, n, *e - 'A');
    check_place(f);
    ek_replicate_score(&f->s, f->need, &f->w);
}

/* The paper's figures 4 and 5: survival of three failures of five nodes. */
static void worked_examples(void)
{
    static const int32_t nested[] = {2, 4, 6, 8}, alike[] = {2, 3, 3, 12}, pairs[] = {2, 2, 3, 3};
    static const char *const overlap[] = {"AB", "AB", "CD", "CD", "CD"};
    static const char *const mixed[] = {"AB", "AD", "BC", "CD", "CD"};
    fixture f;

    setup(&f, 5, 4, 4, nested, 2);
    mro(&f);
    check_place(&f);
    survives(&f, 2, 7, 10);
    for (int n = 0; n < 5; n++) /* the sets of nodes are nested */
        for (int e = 0; e < 4; e++)
            CHECK_INT(f.w.count[e * 5 + n] > 0, n < nested[e]);
    teardown(&f);

    setup(&f, 5, 4, 4, alike, 2); /* two experts that both need the third node */
    mro(&f);
    for (int n = 0; n < 5; n++)
        for (int e = 0; e < 4; e++)
            CHECK_INT(f.w.count[e * 5 + n] > 0, n < alike[e]);
    teardown(&f);

    setup(&f, 5, 2, 4, pairs, 2);
    put_all(&f, mixed);
    survives(&f, 2, 3, 10);
    put_all(&f, overlap);
    survives(&f, 2, 6, 10);
    mro(&f);
    survives(&f, 2, 6, 10);
    best(&f);
    survives(&f, 2, 6, 10);
    teardown(&f);
}

/* Survival of segments of nodes by inclusion and exclusion. */
static double segments_survive(int nodes, int failed, int segments, int length)
{
    double sum = 0;

    for (int u = 0; u < 1 << segments; u++) {
        int rest = nodes - length * __builtin_popcount((unsigned)u);
        double p = 1; /* C(rest, alive) / C(nodes, alive) */

        for (int i = 0; i < nodes - failed; i++)
            p *= rest - i > 0 ? (double)(rest - i) / (nodes - i) : 0;
        sum += __builtin_popcount((unsigned)u) % 2 ? -p : p;
    }
    return sum;
}

static void formula_agrees(int32_t nodes, int32_t segments, int32_t length, double within)
{
    int32_t r[MANY];
    fixture f;

    for (int32_t e = 0; e < 2 * segments; e++)
        r[e] = length;
    r[2 * segments - 1] = length + 2 * (nodes - segments * length); /* what is left */
    setup(&f, nodes, 2, 2 * segments, r, 2);
    mro(&f);
    check_place(&f);
    CHECK_INT(f.s.exact, nodes <= 16);
    for (int k = 1; k <= f.s.most; k++) {
        double want = segments_survive(nodes, k, segments, length);
        double got = 1 - (double)f.w.fatal[k] / (double)f.s.sets[k];

        CHECK(fabs(got - want) <= within);
    }
    teardown(&f);
}

/* Above 16 nodes sets are drawn: 1,024 of them have a standard deviation of at most 1.6 %. */
static void survival_formula(void)
{
    formula_agrees(10, 3, 2, 1e-12);
    formula_agrees(16, 4, 3, 1e-12);
    formula_agrees(20, 3, 3, 0.06);
    formula_agrees(70, 3, 2, 0.06);
}

/* Single node failures are all tried, for any number of nodes. */
static void many_nodes(void)
{
    int32_t r[MANY];
    fixture f;

    for (int32_t e = 0; e < 140; e++)
        r[e] = e == 0 ? 1 : e < 139 ? 2 : 2 * 140 - 1 - 2 * 138;
    setup(&f, 140, 2, 140, r, 2);
    CHECK_INT(f.s.sets[1], 140);
    spread(&f);
    check_place(&f);
    CHECK_INT(f.w.fatal[1], 1);
    best(&f);
    check_place(&f);
    CHECK_INT(f.w.fatal[1], 1);
    teardown(&f);
}

/* Exchanging experts with equal numbers of replicas keeps the risk. */
static void loads_are_evened_out(void)
{
    static const int32_t r[] = {2, 2, 2, 2, 2, 2, 2, 2};
    int64_t weight[8], most = 0, fatal[8];
    fixture f;

    setup(&f, 4, 4, 8, r, 2);
    for (int e = 0; e < 8; e++)
        weight[e] = 10 + 10 * e; /* MRO puts 0 to 3 on two nodes: 100 each, 260 on the others */
    mro(&f);
    memcpy(fatal, f.w.fatal, (size_t)(f.s.most + 1) * sizeof(*fatal));
    ek_replicate_even(&f.s, f.r, weight, &f.w, f.load);
    check_place(&f);
    for (int n = 0; n < 4; n++) {
        int64_t load = 0;

        for (int i = 4 * n; i < 4 * n + 4; i++)
            load += weight[f.w.at[i]];
        CHECK_INT(load, f.load[n]);
        most = load > most ? load : most;
    }
    CHECK_INT(most, 180);
    ek_replicate_score(&f.s, f.need, &f.w);
    CHECK(memcmp(fatal + 1, f.w.fatal + 1, (size_t)f.s.most * sizeof(*fatal)) == 0);
    teardown(&f);
}

/* Nodes of 5, 3 and 1 slots: all replicas are placed, on different nodes as far as slots allow. */
static void nodes_of_unequal_room(void)
{
    static const int32_t r[] = {2, 2, 2, 3}, room[] = {5, 3, 1};
    fixture f;

    setup(&f, 3, 3, 4, r, 2);
    memcpy(f.s.node_slots, room, sizeof(room));
    ek_replicate_nodes_ready(&f.s);
    mro(&f);
    check_place(&f);
    spread(&f);
    check_place(&f);
    ek_replicate_repair(&f.s, f.need, &f.w);
    CHECK_INT(f.w.lack, 0); /* all four on the first node, three on the second, one on the third */
    best(&f);
    check_place(&f);
    CHECK_INT(f.w.lack, 0);
    CHECK_INT(f.w.fatal[1], 0);
    teardown(&f);
}

static const ek_case cases[] = {
    EK_CASE(allocation_of_equal_loads),
    EK_CASE(allocation_of_skewed_loads),
    EK_CASE(allocation_at_its_edges),
    EK_CASE(allocation_adds_up),
    EK_CASE(overlap_is_repaired),
    EK_CASE(small_model_in_equal_demand),
    EK_CASE(large_model_in_equal_demand),
    EK_CASE(large_model_in_skewed_demand),
    EK_CASE(worked_examples),
    EK_CASE(survival_formula),
    EK_CASE(many_nodes),
    EK_CASE(loads_are_evened_out),
    EK_CASE(nodes_of_unequal_room),
};

EK_TEST_MAIN(cases)
