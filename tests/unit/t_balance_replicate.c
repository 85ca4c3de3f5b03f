/* replicate: the planner, and its results against all placements of small cases. */
#include "balance_golden.h"
#include "replicate_cases.h"

enum { DRAWS = EK_T_SLOW ? 40 : 100 };

/* --- against all placements ------------------------------------------------------------------- */

typedef struct {
    const fixture *f;
    int32_t held[8];  /* nodes that hold each expert */
    unsigned mask[8]; /* experts of each node */
    int64_t best[8];
} search;

static void compare_all(search *x)
{
    int64_t fatal[8] = {0};
    int32_t nodes = x->f->s.nodes;

    for (unsigned failed = 1; failed + 1 < 1u << nodes; failed++) {
        unsigned alive = 0;

        for (int32_t n = 0; n < nodes; n++)
            alive |= failed >> n & 1 ? 0 : x->mask[n];
        fatal[__builtin_popcount(failed)] += alive + 1 != 1u << x->f->s.experts;
    }
    for (int32_t k = 1; k < nodes; k++)
        if (fatal[k] != x->best[k]) {
            if (fatal[k] < x->best[k])
                memcpy(x->best, fatal, sizeof(fatal));
            return;
        }
}

/* Enumerates all fillings of the nodes from the n-th on, up to order.  Replicas may be left over:
 * placing them could not add risk. */
static void fill_nodes(search *x, int32_t n)
{
    const ek_replicate_nodes *s = &x->f->s;

    if (n == s->nodes) {
        compare_all(x);
        return;
    }
    for (unsigned mask = n > 0 ? x->mask[n - 1] : 0; mask < 1u << s->experts; mask++) {
        int fits = __builtin_popcount(mask) <= s->node_slots[n];

        for (int32_t e = 0; e < s->experts; e++)
            fits &= (x->held[e] += (int32_t)(mask >> e & 1)) <= x->f->r[e];
        x->mask[n] = mask;
        if (fits)
            fill_nodes(x, n + 1);
        for (int32_t e = 0; e < s->experts; e++)
            x->held[e] -= (int32_t)(mask >> e & 1);
    }
}
/* --- the planner ------------------------------------------------------------------------------ */

/* By hand: 2 ranks of 2 slots, one expert has 30 of 36: it gets three of four slots. */
static void popular_expert_is_replicated(void)
{
    planned f;

    start(&f, 2, 2, 2, 1, 1);
    count_same(&f, 0, 15);
    count_same(&f, 1, 3);
    make(&f);
    CHECK(moved(&f));
    CHECK(fabs(f.p.before_s - 30 * 3e-6) < 1e-12);
    CHECK(fabs(f.p.after_s - 20 * 3e-6) < 1e-12); /* ten per replica, two of them on one rank */
    for (int r = 0; r < 2; r++)
        CHECK(ek_plan_slot(&f.p.placement, r, 0) >= 0);
    finish(&f);
}

/* By hand: one node of two ranks of three slots; 400, 500 and 500 get one, two and three replicas.
 * Both ranks hold the second expert, though one of them already has less load. */
static void replicas_on_different_ranks(void)
{
    planned f;

    start(&f, 3, 2, 3, 2, 1);
    f.counts[0] = 400;
    f.counts[1] = 500;
    f.counts[5] = 500;
    make(&f);
    CHECK(moved(&f));
    for (int32_t e = 1; e < 3; e++)
        for (int32_t r = 0; r < 2; r++)
            CHECK(ek_plan_slot(&f.p.placement, r, e) >= 0);
    finish(&f);
}

static void remainders_go_to_the_first_slots(void)
{
    planned f;

    start(&f, 1, 3, 1, 1, 1);
    f.counts[1] = 101;
    make(&f);
    CHECK_INT(f.p.quota[0], 34);
    CHECK_INT(f.p.quota[1], 34);
    CHECK_INT(f.p.quota[2], 33);
    CHECK_INT(f.p.placement.primary[0], 0);
    finish(&f);
}

static void nothing_to_do(void)
{
    int32_t was[8];
    planned f;

    start(&f, 8, 4, 2, 1, 1);
    memcpy(was, f.p.placement.expert_of, sizeof(was));
    make(&f); /* no counts */
    CHECK(!moved(&f) && f.p.after_s == 0);
    for (int e = 0; e < 8; e++)
        count_same(&f, e, 100);
    f.counts[0] += 5; /* no vacant slot, one percent of skew */
    make(&f);
    CHECK(!moved(&f));
    CHECK(memcmp(was, f.p.placement.expert_of, sizeof(was)) == 0);
    CHECK(f.p.before_s == f.p.after_s);
    finish(&f);
}

/* Experts move onto the required number of nodes although nothing gets faster, once. */
static void replicas_min_is_kept(void)
{
    int32_t was[16];
    planned f;

    start(&f, 8, 4, 4, 2, 2);
    for (int e = 0; e < 8; e++)
        count_same(&f, e, 100);
    make(&f);
    CHECK(moved(&f));
    for (int32_t e = 0; e < 8; e++)
        CHECK_INT(nodes_with(&f, e), 2);
    memcpy(was, f.p.placement.expert_of, sizeof(was));
    make(&f);
    CHECK(!moved(&f));
    CHECK(memcmp(was, f.p.placement.expert_of, sizeof(was)) == 0);
    finish(&f);
}

static void random_counts(planned *f, uint64_t n)
{
    for (int32_t i = 0; i < f->l.ranks * f->l.experts; i++) {
        uint64_t bits = ek_random_bits(n, 2, (uint64_t)i), skew;

        skew = ek_random_bits(n, 3, (uint64_t)(i % f->l.experts)) % 12;
        f->counts[i] = (int64_t)(bits % (UINT64_C(1) << skew));
    }
}

static int32_t pick(uint64_t n, uint64_t i, int32_t from, int32_t to)
{
    return from + (int32_t)(ek_random_bits(n, 4, i) % (uint64_t)(to - from + 1));
}

/* With as many spare slots as ek_placement_spare_slots_for gives, whatever the loads, also where
 * the last node has fewer ranks. */
static void experts_are_on_two_nodes_with_enough_spare_slots(void)
{
    int smaller = 0;

    for (uint64_t n = 0; n < 3000; n++) {
        int32_t of_node = pick(n, 5, 1, 4), ranks = pick(n, 6, of_node + 1, 4 * of_node);
        int32_t experts = pick(n, 7, 1, 20), node_of[16], spare;
        planned f;

        for (int32_t r = 0; r < ranks; r++)
            node_of[r] = r / of_node;
        spare = ek_placement_spare_slots_for(node_of, ranks, experts, 2);
        CHECK(spare >= 0);
        start(&f, experts, ranks, (experts + ranks - 1) / ranks + spare, of_node, 2);
        random_counts(&f, n);
        make(&f);
        for (int32_t e = 0; e < experts; e++)
            if (nodes_with(&f, e) < 2) {
                EK_T_FAIL("%d experts on %d ranks, %d a node, %d spare slots: expert %d", experts,
                          ranks, of_node, spare, e);
                break;
            }
        smaller += ranks % of_node != 0;
        finish(&f);
    }
    CHECK(smaller > 500);
}

static void edges_of_ranks(void)
{
    planned f;

    start(&f, 5, 1, 7, 1, 2); /* one rank */
    count_same(&f, 3, 9);
    make(&f);
    CHECK(!moved(&f));
    finish(&f);
    start(&f, 2, 7, 1, 2, 2); /* more ranks than experts; the last node has one of them */
    count_same(&f, 1, 9);
    make(&f);
    CHECK(moved(&f));
    CHECK(nodes_with(&f, 0) >= 2 && nodes_with(&f, 1) >= 2);
    finish(&f);
    start(&f, 4, 4, 1, 1, 3); /* no vacant slot: no replicas */
    count_same(&f, 0, 1000);
    make(&f);
    CHECK(!moved(&f));
    finish(&f);
}

/* Experts are on the required number of nodes where all nodes have equal slots. */
static void check_promise(const planned *f, int32_t nodes)
{
    int32_t least = ek_replicate_least(f->l.experts, f->l.ranks * f->l.slots, f->l.replicas_min);

    for (int32_t e = 0; e < f->l.experts; e++)
        CHECK(nodes_with(f, e) >= (least < nodes ? least : nodes));
}

static void check_random(uint64_t n, int32_t of_node)
{
    int32_t ranks = of_node * pick(n, 0, 1, 9), experts = pick(n, 1, 1, 20);
    int32_t was[MANY], slots, least = pick(n, 3, 0, 4);
    planned f, g;
    int first;

    if (n % 3 == 0 && ranks > 1)
        ranks--; /* the last node is smaller */
    slots = (experts + ranks - 1) / ranks + pick(n, 2, 0, 3);
    start(&f, experts, ranks, slots, of_node, least);
    start(&g, experts, ranks, slots, of_node, least);
    for (uint64_t step = 0; step < 3; step++) {
        random_counts(&f, n * 3 + step);
        memcpy(g.counts, f.counts, sizeof(f.counts));
        memcpy(was, f.p.placement.expert_of, (size_t)(ranks * slots) * sizeof(*was));
        make(&f);
        make(&g);
        first = strstr(f.p.reason, "too few nodes") != NULL;
        CHECK(memcmp(f.p.quota, g.p.quota, (size_t)(ranks * slots) * sizeof(*f.p.quota)) == 0);
        CHECK(strcmp(f.p.reason, g.p.reason) == 0);
        CHECK(first || f.p.after_s <= f.p.before_s);
        CHECK(first || !moved(&f) || f.p.after_s < 0.95001 * f.p.before_s);
        CHECK(moved(&f) ||
              memcmp(was, f.p.placement.expert_of, (size_t)(ranks * slots) * sizeof(*was)) == 0);
        make(&g); /* nothing more to gain from the same counts */
        CHECK(!moved(&g));
        if (n % 3 != 0)
            check_promise(&f, ranks / of_node);
        for (int32_t s = 0; s < ranks * slots; s++)
            CHECK(!moved(&f) || f.p.placement.expert_of[s] >= 0);
    }
    finish(&f);
    finish(&g);
}

static void random_cases(void)
{
    for (uint64_t n = 0; n < 200; n++)
        check_random(n, 1 + (int32_t)(n % 4));
}

/* Whether the slot is the first one of its rank that holds its expert. */
static int is_first(const planned *f, int32_t slot)
{
    int32_t rank = slot / f->l.slots;

    return ek_plan_slot(&f->p.placement, rank, f->p.placement.expert_of[slot]) == slot;
}

/* The minimum of incoming replicas over all assignments of nodes from i on, at most one per rank,
 * if node i now were node `to`.  Nodes have two ranks. */
static int64_t least_incoming(const planned *f, const int32_t *was, int32_t i, unsigned used,
                              int as_it_is)
{
    int32_t of_node = 2 * f->l.slots, nodes = f->l.ranks / 2;
    int64_t best = i < nodes ? INT64_MAX : 0;

    for (int32_t to = 0; to < nodes && i < nodes; to++) {
        int64_t n = 0;

        if ((used >> to & 1) != 0 || (as_it_is && to != i))
            continue;
        for (int32_t s = i * of_node; s < (i + 1) * of_node; s++)
            n += is_first(f, s) &&
                 ek_slot_find(was + to * of_node, of_node, f->p.placement.expert_of[s]) < 0;
        n += least_incoming(f, was, i + 1, used | 1U << to, as_it_is);
        best = n < best ? n : best;
    }
    return best;
}

/* Against all permutations: the node mapping has the fewest incoming replicas. */
static void fewest_incoming_replicas(void)
{
    int plans = 0;

    for (uint64_t n = 0; n < 60; n++) {
        int32_t ranks = 2 * (2 + (int32_t)(n % 5)), was[MANY];
        planned f;

        start(&f, 10, ranks, (10 + ranks - 1) / ranks + 2, 2, 2);
        for (uint64_t step = 0; step < 3; step++) {
            memcpy(was, f.p.placement.expert_of, (size_t)(ranks * f.l.slots) * sizeof(*was));
            random_counts(&f, n * 3 + step);
            make(&f);
            plans += moved(&f);
            CHECK_INT(least_incoming(&f, was, 0, 0, 1), least_incoming(&f, was, 0, 0, 0));
        }
        finish(&f);
    }
    CHECK(plans > 100);
}

/* Experts that are new to their rank. */
static int64_t came(const planned *f, const int32_t *was)
{
    int64_t n = 0;

    for (int32_t s = 0; s < f->l.ranks * f->l.slots; s++)
        n += is_first(f, s) && ek_slot_find(was + s / f->l.slots * f->l.slots, f->l.slots,
                                            f->p.placement.expert_of[s]) < 0;
    return n;
}

/* With costly moves and a short horizon fewer experts move, for 5 % of load at most; with free
 * moves no load is given up. */
static void moves_are_weighed(void)
{
    int64_t cheap_moves = 0, dear_moves = 0;
    double cheap_s = 0, dear_s = 0;

    for (uint64_t n = 0; n < 60; n++) {
        int32_t was[MANY];
        planned cheap, dear;

        start(&cheap, 12, 6, 4, 1, 2);
        start(&dear, 12, 6, 4, 1, 2);
        cheap.l.horizon = dear.l.horizon = 1;
        dear.l.costs.migrate_s_per_expert = 1;
        random_counts(&cheap, 2 * n); /* from a placement for other counts */
        make(&cheap);
        memcpy(was, cheap.p.placement.expert_of, sizeof(was[0]) * 24);
        ek_placement_copy(&dear.p.placement, &cheap.p.placement);
        random_counts(&cheap, 2 * n + 1);
        memcpy(dear.counts, cheap.counts, sizeof(dear.counts));
        make(&cheap);
        make(&dear);
        cheap_moves += came(&cheap, was);
        dear_moves += came(&dear, was);
        cheap_s += cheap.p.after_s;
        dear_s += dear.p.after_s;
        CHECK(dear.p.after_s < cheap.p.after_s / 0.95 + 4 * 3e-6);
        finish(&cheap);
        finish(&dear);
    }
    CHECK(10 * dear_moves < 9 * cheap_moves);
    CHECK(cheap_s < dear_s);
}

/* Number of racks of `of_rack` ranks that hold an expert. */
static int32_t racks_with(const planned *f, int32_t of_rack, int32_t expert)
{
    int32_t n = 0;

    for (int32_t r = 0; r < f->l.ranks; r += of_rack)
        n += ek_slot_find(f->p.placement.expert_of + r * f->l.slots,
                          (r + of_rack < f->l.ranks ? of_rack : f->l.ranks - r) * f->l.slots,
                          expert) >= 0;
    return n;
}

/* Racks of nodes of one rank or two: each expert is in all racks and, where these are fewer than
 * the nodes required, nearly always still on that many nodes. */
static void experts_on_racks(void)
{
    int alone = 0, few = 0, all = 0;

    for (uint64_t n = 0; n < 80; n++) {
        int32_t racks = 2 + (int32_t)(n % 2), of_rack = 2 + (int32_t)(n / 2 % 2), domain_of[MANY];
        int32_t of_node = 1 + (int32_t)(n / 4 % 2), ranks, slots;
        planned f;

        of_rack *= of_node;
        ranks = racks * of_rack;
        slots = 36 / ranks + 1;
        for (int known = 0; known < 2; known++) {
            for (int32_t r = 0; r < ranks; r++)
                domain_of[r] = 5 - r / of_rack;
            start_in(&f, 12, ranks, slots, of_node, 3, known ? domain_of : NULL);
            random_counts(&f, n);
            make(&f);
            for (int32_t e = 0; e < 12; e++) {
                alone += !known && racks_with(&f, of_rack, e) < racks;
                CHECK(!known || racks_with(&f, of_rack, e) == racks);
                CHECK(known || nodes_with(&f, e) >= 3);
                all += known;
                few += known && nodes_with(&f, e) < 3;
            }
            CHECK(!known || strstr(f.p.reason, racks == 2 ? "of 2 racks" : "of 3 racks") != NULL);
            finish(&f);
        }
    }
    CHECK(alone > 0); /* plans without racks */
    CHECK(20 * few < all);
}

static double outlive_two(ek_replica_sets *h, const planned *a, const planned *b)
{
    static const int32_t node_of[] = {0, 1, 2, 3, 4, 5};

    ek_replica_sets_clear(h);
    ek_replica_sets_add_placement(h, &a->p.placement, node_of, 0);
    ek_replica_sets_add_placement(h, &b->p.placement, node_of, 0);
    return ek_replica_sets_survivability(h, 2).p;
}

/* A layer planned with the replica sets of another: as balanced as without, up to the threshold for
 * moves, and together they survive as many losses of two or more nodes. */
static void layers_share_fatal_sets(void)
{
    static const int32_t node_of[] = {0, 1, 2, 3, 4, 5};
    ek_replica_sets others, both;
    ek_arena a;
    int more = 0;

    CHECK(ek_arena_init(&a, 1 << 16, "holders") == EK_OK);
    ek_replica_sets_reserve(&others, &a, 6, 8);
    ek_replica_sets_reserve(&both, &a, 6, 16);
    for (uint64_t n = 0; n < DRAWS; n++) {
        planned first, alone, told;
        double p, q;

        start(&first, 8, 6, 3, 1, 2);
        start(&alone, 8, 6, 3, 1, 2);
        start(&told, 8, 6, 3, 1, 2);
        random_counts(&first, n);
        random_counts(&alone, n + 1000);
        memcpy(told.counts, alone.counts, sizeof(told.counts));
        make(&first);
        ek_replica_sets_clear(&others);
        ek_replica_sets_add_placement(&others, &first.p.placement, node_of, 2);
        told.l.others = &others;
        make(&alone);
        make(&told);
        CHECK(alone.p.after_s < told.p.after_s / 0.95 + 3.5 * 3e-6); /* one row more per slot */
        CHECK(told.p.after_s < alone.p.after_s / 0.95 + 3.5 * 3e-6);
        p = outlive_two(&both, &first, &alone);
        q = outlive_two(&both, &first, &told);
        CHECK(q > p - 1e-12);
        more += q > p + 1e-12;
        finish(&first);
        finish(&alone);
        finish(&told);
    }
    CHECK(more > DRAWS / 4);
    ek_arena_fini(&a);
}

/* Most experts have few assignments, so the slots of some nodes may hold popular ones alone. */
static void skewed_counts(planned *f, uint64_t n)
{
    for (int32_t e = 0; e < f->l.experts; e++)
        count_same(f, e,
                   1 + (int64_t)(ek_random_bits(n, 3, (uint64_t)e) % (e % 5 == 0 ? 400 : 30)));
}

/* Together with another layer, at least as many losses are survived if survival is preferred, also
 * by what speed has placed before; the load does not matter then. */
static void survival_is_preferred(void)
{
    static const int32_t node_of[] = {0, 1, 2, 3, 4, 5};
    ek_replica_sets others, both;
    int more = 0, slower = 0, again = 0;
    ek_arena a;

    CHECK(ek_arena_init(&a, 1 << 16, "holders") == EK_OK);
    ek_replica_sets_reserve(&others, &a, 6, 16);
    ek_replica_sets_reserve(&both, &a, 6, 32);
    for (uint64_t n = 0; n < DRAWS; n++) {
        planned first, speed, survival;
        double p, q, after_s;

        start(&first, 16, 6, 8, 1, 2);
        start(&speed, 16, 6, 8, 1, 2);
        start(&survival, 16, 6, 8, 1, 2);
        skewed_counts(&first, n);
        skewed_counts(&speed, n + 1000);
        memcpy(survival.counts, speed.counts, sizeof(survival.counts));
        first.l.prefer_survival = 1;
        make(&first);
        ek_replica_sets_clear(&others);
        ek_replica_sets_add_placement(&others, &first.p.placement, node_of, 2);
        speed.l.others = survival.l.others = &others;
        survival.l.prefer_survival = 1;
        make(&speed);
        make(&survival);
        p = outlive_two(&both, &first, &speed);
        q = outlive_two(&both, &first, &survival);
        CHECK(q > p - 1e-12);
        more += q > p + 1e-12;
        slower += survival.p.after_s > 1.05 * speed.p.after_s;
        after_s = speed.p.after_s;
        speed.l.prefer_survival = 1;
        make(&speed);
        q = outlive_two(&both, &first, &speed);
        CHECK(q > p - 1e-12);
        CHECK(moved(&speed) || speed.p.after_s < 1.06 * after_s);
        again += q > p + 1e-12;
        finish(&first);
        finish(&speed);
        finish(&survival);
    }
    CHECK(more > DRAWS / 10 && slower > DRAWS / 10 && again > DRAWS / 10);
    ek_arena_fini(&a);
}

/* Primary copies stay on ranks that keep a replica. */
static void primaries_stay(void)
{
    for (uint64_t n = 0; n < 50; n++) {
        int32_t was[12];
        planned f;

        start(&f, 12, 6, 4, 2, 2);
        memcpy(was, f.p.placement.primary, sizeof(was));
        random_counts(&f, n);
        make(&f);
        for (int32_t e = 0; e < 12; e++) {
            int32_t rank = f.p.placement.primary[e] / 4, s = 0;

            while (f.p.placement.expert_of[s] != e)
                s++;
            if (ek_plan_slot(&f.p.placement, was[e] / 4, e) >= 0)
                CHECK_INT(rank, was[e] / 4);
            else
                CHECK_INT(f.p.placement.primary[e], s);
        }
        finish(&f);
    }
}
/* The planner finds the same, unless it prefers the spread placement for its load.  Returns whether
 * it did not. */
static int plan_is_best(fixture *f, const int64_t *total, const int64_t *fatal)
{
    int32_t room = f->s.node_slots[0], most;
    planned p;

    start(&p, f->s.experts, f->s.nodes, room, 1, 2);
    memcpy(p.counts, total, (size_t)f->s.experts * sizeof(*total));
    make(&p);
    most = strstr(p.p.reason, "fewest fatal sets") != NULL;
    ek_replicate_place_clear(&f->s, &f->w);
    for (int32_t s = 0; s < f->s.slots; s++)
        ek_replicate_put(&f->s, &f->w, s / room, p.p.placement.expert_of[s]);
    ek_replicate_score(&f->s, f->need, &f->w);
    CHECK_INT(f->w.lack, 0);
    for (int32_t k = 1; k < f->s.nodes && most; k++)
        CHECK_INT(f->w.fatal[k], fatal[k]);
    finish(&p);
    return most;
}

/* The climb finds the optimum over all placements; its start was not always optimal. */
static void climbing_finds_the_best(void)
{
    int tried = 0, missed = 0, planned_too = 0;

    for (uint64_t n = 0; tried < (EK_T_SLOW ? 20 : 60); n++) {
        int32_t nodes = 3 + (int32_t)(n % 3), room = 2 + (int32_t)(n / 3 % 3), order[8], r[8];
        int32_t experts = room + (int32_t)(n / 9 % 3);
        int64_t total[8];
        search x = {0};
        fixture f;

        if (experts > 5 || nodes * room < 2 * experts)
            continue;
        for (int32_t e = 0; e < experts; e++)
            total[e] = 10 + (int64_t)(ek_random_bits(n, 5, (uint64_t)e) % 20);
        allocate(experts, nodes * room, 2, total, order, r);
        setup(&f, nodes, room, experts, r, 2);
        x.f = &f;
        x.best[1] = INT64_MAX;
        fill_nodes(&x, 0);
        spread(&f);
        ek_replicate_place_copy(&f.s, &f.other, &f.w);
        mro(&f);
        if (ek_replicate_compare(&f.s, &f.other, &f.w) < 0)
            ek_replicate_place_copy(&f.s, &f.w, &f.other);
        missed += memcmp(f.w.fatal + 1, x.best + 1, (size_t)f.s.most * 8) != 0;
        best(&f);
        CHECK_INT(f.w.lack, 0);
        for (int32_t k = 1; k < nodes; k++)
            CHECK_INT(f.w.fatal[k], x.best[k]);
        planned_too += plan_is_best(&f, total, x.best);
        teardown(&f);
        tried++;
    }
    CHECK(missed > 0 && planned_too > missed);
}

/* --- measured cases ------------------------------------------------------------------------- */

enum { STEPS = 5, SOURCES = 16, EXPERTS = 32 };

/* Every plan starts from block order: 16 ranks on 8 nodes, four slots each, an expert on at least
 * one node or two.  Two replicas of 32 experts fill all slots. */
static void traced_counts(void)
{
    int64_t counts[SOURCES * EXPERTS], load[SOURCES], sum;

    if (!golden_counts(0, counts))
        SKIP(golden_missing);
    for (int step = 0; step < STEPS; step++)
        for (int32_t least = 1; least <= 2; least++) {
            planned f;

            CHECK(golden_counts(step, counts));
            start(&f, EXPERTS, SOURCES, 4, 2, least);
            sum = 0;
            for (int i = 0; i < SOURCES * EXPERTS; i++)
                sum += f.counts[i] = counts[i];
            make(&f);
            CHECK(moved(&f));
            check_promise(&f, 8);
            CHECK(f.p.after_s < f.p.before_s);
            CHECK(ek_plan_loads(&f.l, &f.p, load) < 2 * sum / SOURCES);
            finish(&f);
        }
}

static const ek_case cases[] = {
    EK_CASE(climbing_finds_the_best),
    EK_CASE(popular_expert_is_replicated),
    EK_CASE(replicas_on_different_ranks),
    EK_CASE(remainders_go_to_the_first_slots),
    EK_CASE(nothing_to_do),
    EK_CASE(replicas_min_is_kept),
    EK_CASE(experts_are_on_two_nodes_with_enough_spare_slots),
    EK_CASE(edges_of_ranks),
    EK_CASE(random_cases),
    EK_CASE(fewest_incoming_replicas),
    EK_CASE(moves_are_weighed),
    EK_CASE(experts_on_racks),
    EK_CASE(layers_share_fatal_sets),
    EK_CASE(survival_is_preferred),
    EK_CASE(primaries_stay),
    EK_CASE(traced_counts),
};

EK_TEST_MAIN(cases)
