/* replicate_cases.h - shared by the tests of replicate and its parts: an allocation, placements on
 * nodes, and a planner with its counts. */
#ifndef REPLICATE_CASES_H
#define REPLICATE_CASES_H

#include "balance/planner.h"
#include "balance/replicate_place.h"
#include "base/random.h"
#include "ek_test.h"

enum { MANY = 256 };

static inline void allocate(int32_t experts, int32_t slots, int32_t least, const int64_t *total,
                            int32_t *order, int32_t *replicas)
{
    CHECK(ek_replicate_allocate(experts, slots, least, total, order, replicas) == EK_OK);
}

typedef struct {
    ek_arena arena;
    ek_replicate_nodes s;
    ek_replicate_place w, other, now, near;
    int32_t order[MANY], r[MANY], left[MANY], need[MANY];
    int64_t key[MANY], fatal[MANY], load[MANY];
} fixture;

static inline void lay_out(fixture *f, int32_t nodes, int32_t room, int32_t experts)
{
    ek_replicate_nodes_reserve(&f->s, &f->arena, nodes, experts, nodes * room);
    ek_replicate_place_reserve(&f->w, &f->arena, &f->s);
    ek_replicate_place_reserve(&f->other, &f->arena, &f->s);
    ek_replicate_place_reserve(&f->now, &f->arena, &f->s);
    ek_replicate_place_reserve(&f->near, &f->arena, &f->s);
}

/* Equal nodes of one rank; each expert needs `least` nodes, or as many as it has replicas. */
static inline void setup(fixture *f, int32_t nodes, int32_t room, int32_t experts,
                         const int32_t *replicas, int32_t least)
{
    ek_arena measure;

    ek_arena_measure(&measure);
    f->arena = measure;
    lay_out(f, nodes, room, experts);
    CHECK(ek_arena_init(&f->arena, f->arena.used, "nodes") == EK_OK);
    lay_out(f, nodes, room, experts);
    for (int32_t n = 0; n < nodes; n++) {
        f->s.node_slots[n] = room;
        f->s.ranks[n] = 1;
    }
    ek_replicate_nodes_ready(&f->s);
    for (int32_t e = 0; e < experts; e++) {
        f->key[e] = f->r[e] = replicas[e];
        f->need[e] = replicas[e] < least ? replicas[e] : least;
        f->need[e] = f->need[e] < nodes ? f->need[e] : nodes;
    }
    ek_replicate_ascending(experts, f->key, f->order);
}

static inline void teardown(fixture *f)
{
    ek_arena_fini(&f->arena);
}

static inline void mro(fixture *f)
{
    ek_replicate_mro(&f->s, f->order, f->r, f->left, &f->w);
    ek_replicate_score(&f->s, f->need, &f->w);
}

static inline void spread(fixture *f)
{
    ek_replicate_spread(&f->s, f->order, f->r, f->left, &f->w);
    ek_replicate_score(&f->s, f->need, &f->w);
}

/* The placement steps of the planner. */
static inline void best(fixture *f)
{
    int64_t weight[MANY];

    for (int32_t e = 0; e < f->s.experts; e++)
        weight[e] = 100;
    spread(f);
    ek_replicate_repair(&f->s, f->need, &f->w);
    ek_replicate_place_copy(&f->s, &f->other, &f->w);
    mro(f);
    ek_replicate_repair(&f->s, f->need, &f->w);
    if (ek_replicate_compare(&f->s, &f->other, &f->w) < 0)
        ek_replicate_place_copy(&f->s, &f->w, &f->other);
    ek_replicate_climb(&f->s, f->need, weight, &f->w, f->fatal, f->load);
}

/* Checks that every replica is placed and that the counts, masks and slots agree. */
static inline void check_place_of(const fixture *f, const ek_replicate_place *w)
{
    for (int32_t n = 0; n < f->s.nodes; n++)
        CHECK_INT(w->vacant[n], 0);
    for (int32_t e = 0; e < f->s.experts; e++) {
        int32_t n = 0, nodes = 0, slots = 0;

        for (int32_t i = 0; i < f->s.nodes; i++) {
            n += w->count[e * f->s.nodes + i];
            nodes += w->count[e * f->s.nodes + i] > 0;
        }
        for (int32_t i = 0; i < f->s.slots; i++)
            slots += w->at[i] == e;
        CHECK_INT(n, f->r[e]);
        CHECK_INT(slots, f->r[e]);
        CHECK_INT(w->distinct[e], nodes);
    }
}

static inline void check_place(const fixture *f)
{
    check_place_of(f, &f->w);
}

typedef struct {
    ek_arena arena;
    ek_plan_limits l;
    ek_plan p;
    void *memory;
    int32_t node_of[MANY];
    int64_t counts[MANY * MANY];
} planned;

static inline void reserve_plan(planned *f)
{
    f->memory = ek_planner_replicate.reserve(&f->arena, &f->l);
    ek_plan_reserve(&f->p, &f->arena, &f->l);
}

/* Block order; a node has `of_node` ranks, the last one the remainder.  domain_of: see
 * ek_plan_limits. */
static inline void start_in(planned *f, int32_t experts, int32_t ranks, int32_t slots,
                            int32_t of_node, int32_t least, const int32_t *domain_of)
{
    memset(f, 0, sizeof(*f));
    f->l = (ek_plan_limits){.experts = experts,
                            .ranks = ranks,
                            .slots = slots,
                            .node_of = of_node > 1 ? f->node_of : NULL,
                            .domain_of = domain_of,
                            .replicas_min = least,
                            .costs = {.compute_s_per_row = 2e-6, .comm_s_per_row = 1e-6}};
    for (int32_t r = 0; r < ranks; r++)
        f->node_of[r] = 7 - r / of_node; /* any numbers */
    ek_arena_measure(&f->arena);
    reserve_plan(f);
    CHECK(f->memory == NULL);
    CHECK(ek_arena_init(&f->arena, f->arena.used, "a plan") == EK_OK);
    reserve_plan(f);
    CHECK(ek_arena_check(&f->arena, "a plan") == EK_OK);
    ek_placement_block(&f->p.placement, 1);
    f->p.explain = 1;
}

static inline void start(planned *f, int32_t experts, int32_t ranks, int32_t slots, int32_t of_node,
                         int32_t least)
{
    start_in(f, experts, ranks, slots, of_node, least, NULL);
}

static inline void finish(planned *f)
{
    ek_arena_fini(&f->arena);
}

static inline int32_t nodes_with(const planned *f, int32_t expert)
{
    int32_t n = 0;

    for (int32_t r = 0; r < f->l.ranks; r++) {
        int32_t first = ek_plan_slot(&f->p.placement, r, expert) >= 0;

        for (int32_t q = 0; q < r; q++)
            if (ek_plan_node(&f->l, q) == ek_plan_node(&f->l, r))
                first &= ek_plan_slot(&f->p.placement, q, expert) < 0;
        n += first;
    }
    return n;
}

static inline int64_t primaries_only(const planned *f)
{
    int64_t most = 0;

    for (int32_t r = 0; r < f->l.ranks; r++) {
        int64_t load = 0;

        for (int32_t e = 0; e < f->l.experts; e++)
            for (int32_t q = 0; q < f->l.ranks && f->p.placement.primary[e] / f->l.slots == r; q++)
                load += f->counts[q * f->l.experts + e];
        most = load > most ? load : most;
    }
    return most;
}

/* Plans; checks validity and the predicted times. */
static inline void make(planned *f)
{
    int64_t load[MANY], off = primaries_only(f);

    CHECK(ek_planner_replicate.plan_persistent(f->memory, &f->l, f->counts, &f->p) == EK_OK);
    CHECK(ek_plan_check(&f->l, f->counts, &f->p) == EK_OK);
    CHECK(f->p.before_s <= (double)off * 3e-6 * (1 + 1e-9));
    CHECK(fabs(f->p.after_s - 3e-6 * (double)ek_plan_loads(&f->l, &f->p, load)) <=
          1e-9 * f->p.after_s);
}

static inline int moved(const planned *f)
{
    return strncmp(f->p.reason, "moved", 5) == 0;
}

static inline void count_same(planned *f, int32_t expert, int64_t n)
{
    for (int32_t r = 0; r < f->l.ranks; r++)
        f->counts[r * f->l.experts + expert] = n;
}

#endif
