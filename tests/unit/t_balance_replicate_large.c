/* replicate at many ranks, and against what an earlier build planned: on random loads its
 * placements survived as many losses or fewer, with as much load or more. */
#include "balance/planner.h"
#include "base/random.h"
#include "ek_test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* --- a layer ---------------------------------------------------------------------------------- */

typedef struct {
    int32_t experts, ranks, slots, nodes, least;
} shape;

typedef struct {
    shape s;
    ek_arena arena;
    ek_plan_limits l;
    ek_plan p;
    void *memory;
    int32_t *node_of, *was;
    int64_t *counts, *load;
    ek_replica_sets sets;
} fixture;

static void lay_out(fixture *f)
{
    f->node_of = ek_arena_alloc(&f->arena, f->s.ranks, sizeof(*f->node_of));
    for (int32_t r = 0; r < f->s.ranks && f->node_of != NULL; r++)
        f->node_of[r] = (int32_t)((int64_t)r * f->s.nodes / f->s.ranks);
    f->l.node_of = f->node_of;
    f->counts = ek_arena_alloc(&f->arena, (int64_t)f->s.ranks * f->s.experts, sizeof(*f->counts));
    f->was = ek_arena_alloc(&f->arena, (int64_t)f->s.ranks * f->s.slots, sizeof(*f->was));
    f->load = ek_arena_alloc(&f->arena, f->s.ranks, sizeof(*f->load));
    ek_replica_sets_reserve(&f->sets, &f->arena, f->s.nodes, f->s.experts);
    f->memory = ek_planner_reserve(&ek_planner_replicate, &f->arena, &f->l);
    ek_plan_reserve(&f->p, &f->arena, &f->l);
}

static void setup(fixture *f, const shape *s)
{
    memset(f, 0, sizeof(*f));
    f->s = *s;
    f->l = (ek_plan_limits){.experts = s->experts,
                            .ranks = s->ranks,
                            .slots = s->slots,
                            .replicas_min = s->least,
                            .horizon = 100,
                            .costs = {.compute_s_per_row = 2e-7,
                                      .comm_s_per_row = 3e-7,
                                      .replica_s = 5e-4,
                                      .migrate_s_per_expert = 2e-3}};
    ek_arena_measure(&f->arena);
    lay_out(f);
    CHECK(ek_arena_reserve(&f->arena, "a plan") == EK_OK);
    lay_out(f);
    CHECK(ek_arena_check(&f->arena, "a plan") == EK_OK);
    ek_placement_block(&f->p.placement, 1);
}

static void teardown(fixture *f)
{
    ek_arena_fini(&f->arena);
}

/* Loads between 1 and e^spread, the logarithm being uniform; equal on all sources. */
static void draw_loads(fixture *f, uint64_t seed, double spread)
{
    for (int32_t e = 0; e < f->s.experts; e++) {
        uint64_t bits = ek_random_bits(seed, 7, (uint64_t)e);
        int64_t n = (int64_t)(100 * exp(spread * (double)(bits >> 11) * 0x1p-53));

        for (int32_t r = 0; r < f->s.ranks; r++)
            f->counts[(int64_t)r * f->s.experts + e] = n;
    }
}

typedef struct {
    double max_over_mean;
    double survives; /* with replicas_min nodes lost, one more than the least */
    double moved;    /* replicas on ranks that lacked the expert before */
    int32_t always;
} outcome;

static int holds(const fixture *f, const int32_t *expert_of, int32_t rank, int32_t expert)
{
    for (int32_t i = rank * f->s.slots; i < (rank + 1) * f->s.slots; i++)
        if (expert_of[i] == expert)
            return 1;
    return 0;
}

static outcome plan(fixture *f)
{
    outcome o = {0};
    double sum = 0;
    const int32_t *is = f->p.placement.expert_of;

    memcpy(f->was, is, (size_t)(f->s.ranks * f->s.slots) * sizeof(*is));

    CHECK(ek_planner_replicate.plan_persistent(f->memory, &f->l, f->counts, &f->p) == EK_OK);
    if (ek_plan_check(&f->l, f->counts, &f->p) != EK_OK)
        EK_T_FAIL("%s", ek_err_message());
    o.max_over_mean = (double)ek_plan_loads(&f->l, &f->p, f->load);
    for (int32_t r = 0; r < f->s.ranks; r++)
        sum += (double)f->load[r];
    for (int32_t i = 0; i < f->s.ranks * f->s.slots; i++)
        o.moved += !holds(f, f->was, i / f->s.slots, is[i]);
    o.max_over_mean *= f->s.ranks / sum;
    ek_replica_sets_clear(&f->sets);
    ek_replica_sets_add_placement(&f->sets, &f->p.placement, f->node_of, 0);
    o.always = ek_replica_sets_survive(&f->sets);
    o.survives =
        ek_replica_sets_survivability(&f->sets, f->s.least < f->s.nodes ? f->s.least : 1).p;
    return o;
}

/* --- against an earlier build ----------------------------------------------------------------- */

enum { SEEDS = 4 };

/* of before, in each case */
static const double load_limit = 1.035, moved_limit = 1.2;

/* Means over seeds: the largest load over the mean of two plans, the second from the first one's
 * placement; the probability to survive `least` lost nodes; what both plans move. */
static const struct {
    shape s;
    double spread, max_over_mean, survives, moved;
} earlier[] = {
    {{256, 32, 9, 32, 1}, 3, 1.0003, 0.0000, 468},   {{256, 64, 5, 64, 1}, 3, 1.0024, 0.0000, 496},
    {{64, 16, 8, 16, 2}, 2, 1.0332, 0.9333, 102},    {{64, 32, 6, 32, 2}, 3, 1.0186, 0.9677, 291},
    {{32, 16, 5, 8, 2}, 4, 1.0338, 0.8571, 125},     {{128, 48, 6, 48, 2}, 3, 1.0200, 0.9787, 427},
    {{256, 64, 10, 64, 2}, 1, 1.0321, 0.9885, 1077}, {{16, 10, 6, 10, 2}, 6, 1.0529, 0.8889, 78},
    {{64, 64, 3, 64, 3}, 2, 1.0825, 0.9993, 240},    {{32, 16, 4, 4, 2}, 3, 1.0666, 0.6667, 102},
    {{64, 8, 18, 8, 2}, 2, 1.0366, 0.8571, 98},      {{256, 16, 36, 16, 2}, 2, 1.0088, 0.9333, 711},
    {{256, 32, 9, 8, 1}, 2, 1.0122, 0.0000, 481},
};

/* Each shape about as before, their mean no worse: the fewer moves, the more load is allowed. */
static void is_no_worse_than_before(void)
{
    const double n = sizeof(earlier) / sizeof(*earlier);
    double all_loads = 0, all_moved = 0;

    for (size_t i = 0; i < sizeof(earlier) / sizeof(*earlier); i++) {
        double load = 0, survives = 0, moved = 0;

        for (uint64_t seed = 0; seed < SEEDS; seed++) {
            fixture f;

            setup(&f, &earlier[i].s);
            for (uint64_t k = 0; k < 2; k++) {
                outcome o;

                draw_loads(&f, 2 * seed + k, earlier[i].spread);
                o = plan(&f);
                load += o.max_over_mean / (2 * SEEDS);
                survives += o.survives / (2 * SEEDS);
                moved += o.moved / SEEDS;
            }
            teardown(&f);
        }
        if (load > earlier[i].max_over_mean * load_limit ||
            moved > earlier[i].moved * moved_limit || survives < earlier[i].survives - 0.002)
            EK_T_FAIL("case %d: max/mean %.4f instead of %.4f, survival %.4f instead of %.4f, "
                      "%.0f moved instead of %.0f",
                      (int)i, load, earlier[i].max_over_mean, survives, earlier[i].survives, moved,
                      earlier[i].moved);
        all_loads += load / earlier[i].max_over_mean / n;
        all_moved += moved / earlier[i].moved / n;
    }
    printf("load %.4f of before, %.3f moved\n", all_loads, all_moved);
    CHECK(all_loads < 1.005 && all_moved < 1);
}

/* --- the same plans --------------------------------------------------------------------------- */

/* Loads of whole numbers, the same with any libm. */
static void draw_whole_loads(fixture *f, uint64_t seed)
{
    for (int32_t e = 0; e < f->s.experts; e++) {
        int64_t n = (int64_t)(ek_random_bits(seed, 8, (uint64_t)e) % 1000);

        for (int32_t r = 0; r < f->s.ranks; r++)
            f->counts[(int64_t)r * f->s.experts + e] = 20 + n * n / (100 + 5 * (e % 40));
    }
}

/* FNV-1a of the experts of all slots after three plans, each from the placement of the one before.
 */
static uint64_t hash_plans(const shape *s)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    fixture f;

    setup(&f, s);
    for (uint64_t k = 0; k < 3; k++) {
        draw_whole_loads(&f, k);
        (void)plan(&f);
        for (int32_t i = 0; i < s->ranks * s->slots; i++)
            h = (h ^ (uint64_t)(uint32_t)f.p.placement.expert_of[i]) * UINT64_C(0x100000001b3);
    }
    teardown(&f);
    return h;
}

/* Of the build before short cuts in the searches: they may change no plan. */
static void plans_are_those_without_short_cuts(void)
{
    static const uint64_t recorded[] = {
        UINT64_C(0xa92e21b8b6957958), UINT64_C(0xe417d5b47081afd0), UINT64_C(0x9f619699472845f9),
        UINT64_C(0xc3a4d1e7e884ca88), UINT64_C(0x13ba01e807a3360e), UINT64_C(0xc9224d32cc804d30),
        UINT64_C(0x0756214530b723cd), UINT64_C(0x9bb2471d39ccd7d0), UINT64_C(0xd23a6f1127820c67),
        UINT64_C(0x35cfeb539b28346f), UINT64_C(0x1a719edf87051bdd), UINT64_C(0x31fd24acd7b57adf),
        UINT64_C(0x61a72d13ecae5e82),
    };

    for (size_t i = 0; i < sizeof(earlier) / sizeof(*earlier); i++) {
        uint64_t h = hash_plans(&earlier[i].s);

        if (h != recorded[i])
            EK_T_FAIL("case %d: hash 0x%016llx", (int)i, (unsigned long long)h);
    }
}

/* --- many ranks ------------------------------------------------------------------------------- */

/* The cost of an assignment of nodes, of risk and of moves must not grow with ranks^3, or this
 * takes minutes.  Experts have more replicas than nodes in one case. */
static void plans_at_a_thousand_ranks(void)
{
    static const shape shapes[] = {
        {256, 1024, 2, 1024, 1}, {256, 1024, 2, 1024, 2}, {256, 1024, 2, 128, 2}};

    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++) {
        outcome o;
        fixture f;

        setup(&f, &shapes[i]);
        for (uint64_t seed = 0; seed < 2; seed++) {
            draw_loads(&f, seed, 4);
            o = plan(&f);
            CHECK(o.always >= shapes[i].least - 1);
            CHECK(o.max_over_mean < 1.6); /* 19 to 39 before */
        }
        teardown(&f);
    }
}

static const ek_case cases[] = {
    EK_CASE(is_no_worse_than_before),
    EK_CASE(plans_are_those_without_short_cuts),
    EK_CASE(plans_at_a_thousand_ranks),
};
EK_TEST_MAIN(cases)
