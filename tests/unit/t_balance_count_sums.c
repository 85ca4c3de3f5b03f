/* What `auto` adds up of counts in one pass against plain sums, and its plans against those from
 * plain sums. */
#include "balance/count_sums.h"
#include "balance/even_replicas.h"
#include "balance/replica_search.h"
#include "base/random.h"
#include "plan_fixture.h"

#include <math.h>
#include <string.h>

enum { DRAWS = 600, RANKS = 70, EXPERTS = 200 };

static int64_t drawn(int draw, int i, uint64_t below)
{
    return (int64_t)(ek_random_bits(43, (uint64_t)draw, (uint64_t)i) % below);
}

/* Rows of zeros, sources that are alike or not, many equal counts, and single large ones. */
static void draw_counts(int draw, const ek_plan_limits *l, int64_t *counts)
{
    int kind = (int)drawn(draw, 50, 4);
    uint64_t most = (uint64_t)1 << drawn(draw, 51, 1 + (kind == 2 ? 40 : 12));

    for (int32_t r = 0; r < l->ranks; r++)
        for (int32_t e = 0; e < l->experts; e++) {
            int i = 1000 + r * l->experts + e;
            int64_t n = drawn(draw, i, most), of_expert = drawn(draw, 200 + e, most);

            n = kind == 0 ? of_expert + n / 8 : kind == 1 ? n % 4 : n;
            n *= drawn(draw, i + 100000, 50) == 0 ? 9 : 1;
            *counts++ = drawn(draw, 100 + r, 6) == 0 ? 0 : n;
        }
}

/* --- sums ------------------------------------------------------------------------------------- */

typedef struct {
    int64_t total[EXPERTS], tokens[RANKS];
    int32_t favourite[RANKS];
} sums;

static void sum_plainly(const ek_plan_limits *l, const int64_t *counts, int64_t worth, sums *x)
{
    memset(x, 0, sizeof(*x));
    for (int32_t r = 0; r < l->ranks; r++, counts += l->experts) {
        int32_t first = ek_first_largest(counts, l->experts);

        x->favourite[r] = first >= 0 && counts[first] > worth ? first : -1;
        for (int32_t e = 0; e < l->experts; e++) {
            x->total[e] += counts[e];
            x->tokens[r] += counts[e];
        }
    }
}

static int64_t draw_worth(int draw, const ek_plan_limits *l, const int64_t *counts)
{
    int64_t some = counts[drawn(draw, 61, (uint64_t)(l->ranks * l->experts))];

    switch (drawn(draw, 60, 4)) {
    case 0: return 0;
    case 1: return some;
    case 2: return some > 0 ? some - 1 : 0;
    default: return drawn(draw, 62, 2) ? 3 * some : INT64_MAX;
    }
}

static void sums_are_plain(void)
{
    static int64_t counts[RANKS * EXPERTS];
    static sums plain, x;
    int favourites = 0;

    for (int draw = 0; draw < DRAWS; draw++) {
        ek_plan_limits l = {.ranks = 1 + (int32_t)drawn(draw, 0, RANKS),
                            .experts = 1 + (int32_t)drawn(draw, 1, EXPERTS)};
        int64_t worth;

        draw_counts(draw, &l, counts);
        worth = draw_worth(draw, &l, counts);
        sum_plainly(&l, counts, worth, &plain);
        memset(&x, 0, sizeof(x));
        ek_count_sums(&l, counts, worth, x.total, x.tokens, x.favourite);
        CHECK(memcmp(&x, &plain, sizeof(x)) == 0);
        memset(x.total, 0xff, sizeof(x.total));
        ek_plan_totals(&l, counts, x.total);
        CHECK(memcmp(x.total, plain.total, (size_t)l.experts * sizeof(*x.total)) == 0);
        favourites += x.favourite[l.ranks - 1] >= 0;
    }
    CHECK(favourites > DRAWS / 4);
}

/* --- plans ------------------------------------------------------------------------------------ */

typedef struct {
    fixture f, plain;
    ek_arena arena;
    ek_replica_search search;
    ek_locality near;
    ek_even_replicas even;
    int32_t node_of[RANKS], row_cost[RANKS];
} world;

static void lay_out(world *w, ek_arena *a)
{
    ek_replica_search_reserve(&w->search, a, &w->f.l);
    ek_locality_reserve(&w->near, a, &w->f.l);
    ek_even_replicas_reserve(&w->even, a, &w->f.l);
}

static ek_plan_costs draw_costs(int draw)
{
    double unit = drawn(draw, 5, 4) ? 1 : 1e-9;

    return (ek_plan_costs){.compute_s_per_row = unit * (double)drawn(draw, 6, 4),
                           .comm_s_per_row = unit * (double)drawn(draw, 7, 6),
                           .replica_s = unit * (double)drawn(draw, 8, 2000) *
                                        (drawn(draw, 9, 3) ? 1 : 0.01)};
}

static void setup(world *w, int draw)
{
    int32_t ranks = 1 + (int32_t)drawn(draw, 0, draw % 16 ? 20 : RANKS);
    int32_t experts = 1 + (int32_t)drawn(draw, 1, draw % 16 ? 40 : EXPERTS);
    int32_t slots = (experts + ranks - 1) / ranks + (int32_t)drawn(draw, 2, 3);
    int32_t of_node = 1 + (int32_t)drawn(draw, 3, 4);
    ek_plan_costs costs = draw_costs(draw);

    memset(w, 0, sizeof(*w));
    plan_setup(&w->f, &ek_planner_auto, experts, ranks, slots, costs);
    plan_setup(&w->plain, &ek_planner_auto, experts, ranks, slots, costs);
    for (int32_t r = 0; r < ranks; r++) {
        w->node_of[r] = r / of_node;
        w->row_cost[r] = 256 + (int32_t)drawn(draw, 600 + r, 200);
    }
    w->f.l.node_of = of_node > 1 ? w->node_of : NULL;
    w->f.l.row_cost = drawn(draw, 4, 3) ? NULL : w->row_cost;
    draw_counts(draw, &w->f.l, w->f.counts);
    ek_arena_measure(&w->arena);
    lay_out(w, &w->arena);
    CHECK(ek_arena_reserve(&w->arena, "a plain plan") == EK_OK);
    lay_out(w, &w->arena);
}

static void drop(world *w)
{
    ek_arena_fini(&w->arena);
    teardown(&w->plain);
    teardown(&w->f);
}

/* The plan of plan_auto.c, from plain sums and every favourite; returns whether replicas for links
 * have changed it. */
static int plan_plainly(world *w)
{
    static sums x;
    const ek_plan_limits *l = &w->f.l;
    const int64_t *counts = w->f.counts;
    ek_plan *p = &w->plain.p;
    int64_t busiest = 0, most;
    ek_replica_outcome now;
    int better;

    sum_plainly(l, counts, 0, &x);
    for (int32_t r = 0; r < l->ranks; r++)
        busiest = x.tokens[r] > busiest ? x.tokens[r] : busiest;
    memcpy(w->search.alias.total, x.total, (size_t)l->experts * sizeof(*x.total));
    memcpy(w->near.tokens, x.tokens, (size_t)l->ranks * sizeof(*x.tokens));
    memcpy(w->near.favourite, x.favourite, (size_t)l->ranks * sizeof(*x.favourite));
    ek_replica_search_set(&w->search, l, busiest, 1);
    most = ek_alias_start(&w->search.alias, l, &p->placement);
    ek_plan_primaries_only(l, x.total, p);
    now = ek_replica_search_run(&w->search, l, most, INFINITY);
    ek_alias_apply(w->search.kept, now.n, p);
    p->after_s = now.s;
    better = ek_locality_improve(&w->near, l, counts, x.total, p, &p->after_s);
    better |= ek_even_replicas_improve(&w->even, &w->near, l, counts, p, &p->after_s);
    return better;
}

static void plans_are_plain(void)
{
    int better = 0;

    for (int draw = 0; draw < DRAWS; draw++) {
        world w;
        size_t slots;

        setup(&w, draw);
        slots = (size_t)w.f.l.ranks * (size_t)w.f.l.slots;
        CHECK(w.f.planner->plan_transient(w.f.memory, &w.f.l, w.f.counts, &w.f.p) == EK_OK);
        better += plan_plainly(&w);
        CHECK(memcmp(w.f.p.placement.expert_of, w.plain.p.placement.expert_of,
                     slots * sizeof(*w.f.p.placement.expert_of)) == 0);
        CHECK(memcmp(w.f.p.quota, w.plain.p.quota, slots * sizeof(*w.f.p.quota)) == 0);
        CHECK(w.f.p.after_s == w.plain.p.after_s);
        drop(&w);
    }
    CHECK(better > DRAWS / 4);
}

static const ek_case cases[] = {
    EK_CASE(sums_are_plain),
    EK_CASE(plans_are_plain),
};
EK_TEST_MAIN(cases)
