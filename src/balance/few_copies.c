/* Searches quotas in which few copies serve. */
#include "balance/few_copies.h"

#include <string.h>

/* Copies that are tried to be left out, at most. */
enum { TRIES = 8 };

void ek_few_copies_reserve(ek_few_copies *a, ek_arena *arena, const ek_plan_limits *l)
{
    int64_t all = (int64_t)l->ranks * l->slots;

    ek_locality_reserve(&a->locality, arena, l);
    a->free = ek_arena_alloc(arena, all, 1);
    a->open = ek_arena_alloc(arena, all, 1);
    a->tried = ek_arena_alloc(arena, all, 1);
    a->quota = ek_arena_alloc(arena, all, sizeof(*a->quota));
    a->load = ek_arena_alloc(arena, l->ranks, sizeof(*a->load));
    a->order = ek_arena_alloc(arena, l->experts, sizeof(*a->order));
    a->serving = ek_arena_alloc(arena, l->experts, sizeof(*a->serving));
}

/* What is the same for all steps of a search. */
typedef struct {
    ek_few_copies *a;
    ek_quota_flow *f;
    const ek_plan_limits *l;
    const int64_t *counts;
    int32_t states;
    ek_plan *p;
} search;

static int is_transient(const search *x, int32_t slot)
{
    return slot % x->l->slots >= x->states;
}

static int has_served(const search *x, int32_t slot)
{
    return x->l->served != NULL && x->l->served[slot];
}

/* --- time ------------------------------------------------------------------------------------- */

/* Sets a->serving, of the plan's quotas and what has gradients anyway. */
static void count_serving(const search *x)
{
    const ek_placement *at = &x->p->placement;

    memset(x->a->serving, 0, (size_t)x->l->experts * sizeof(*x->a->serving));
    for (int32_t s = 0; s < x->l->ranks * x->l->slots; s++)
        if (at->expert_of[s] >= 0 && !is_transient(x, s))
            x->a->serving[at->expert_of[s]] += x->p->quota[s] > 0 || x->a->free[s];
}

static double plan_seconds(const search *x)
{
    ek_plan_limits without = *x->l;
    int64_t batches = x->l->batches > 0 ? x->l->batches : 1, sums = 0;

    count_serving(x);
    for (int32_t e = 0; e < x->l->experts; e++)
        sums += x->a->serving[e] > 1 ? x->a->serving[e] - 1 : 0;
    without.costs.replica_s = 0;
    return ek_locality_time(&x->a->locality, &without, x->counts, x->p) +
           x->l->costs.gradient_s * (double)sums / (double)(x->l->ranks * batches);
}

/* --- one copy of each expert ------------------------------------------------------------------ */

/* Sets a->free. */
static void find_free_copies(const search *x)
{
    const ek_placement *at = &x->p->placement;

    memset(x->a->free, 0, (size_t)x->l->ranks * (size_t)x->l->slots);
    for (int32_t s = 0; s < x->l->ranks * x->l->slots; s++) {
        int32_t e = at->expert_of[s];

        if (e < 0)
            continue;
        if (is_transient(x, s))
            x->a->free[at->primary[e]] = 1;
        x->a->free[s] |= is_transient(x, s) || has_served(x, s);
    }
}

/* Sets a->order, by insertion. */
static void sort_experts(const search *x)
{
    const int64_t *total = x->f->total;

    for (int32_t e = 0; e < x->l->experts; e++) {
        int32_t i = e;

        for (; i > 0 && total[x->a->order[i - 1]] < total[e]; i--)
            x->a->order[i] = x->a->order[i - 1];
        x->a->order[i] = e;
    }
}

/* Of an expert's copies, that whose rank takes least time with it; at the same time, that with the
 * most rows of its own rank.  only_open: one that is open; -1: none is. */
static int32_t best_copy(const search *x, int32_t expert, int only_open)
{
    const ek_quota_flow *f = x->f;
    int64_t least = INT64_MAX, local = -1;
    int32_t best = -1;

    for (int32_t i = f->first[expert]; i < f->first[expert + 1]; i++) {
        int32_t s = f->slots[i], r = s / x->l->slots;
        int64_t then = (x->a->load[r] + f->total[expert]) * ek_row_cost(x->l, r);

        if ((only_open && !x->a->open[s]) || then > least ||
            (then == least && f->local[s] <= local))
            continue;
        least = then;
        local = f->local[s];
        best = s;
    }
    return best;
}

static void open_one_each(const search *x)
{
    memcpy(x->a->open, x->a->free, (size_t)x->l->ranks * (size_t)x->l->slots);
    memcpy(x->a->tried, x->a->free, (size_t)x->l->ranks * (size_t)x->l->slots);
    memset(x->a->load, 0, (size_t)x->l->ranks * sizeof(*x->a->load));
    sort_experts(x);
    for (int32_t i = 0; i < x->l->experts; i++) {
        int32_t e = x->a->order[i], s = best_copy(x, e, 1);

        if (s < 0)
            s = best_copy(x, e, 0);
        x->a->open[s] = 1;
        x->a->load[s / x->l->slots] += x->f->total[e];
    }
}

/* --- those that are needed -------------------------------------------------------------------- */

/* Quotas of the open copies, and their time. */
static double serve_open(const search *x, int64_t *most)
{
    ek_quota_flow_start_in(x->f, x->l, x->counts, &x->p->placement, x->a->open);
    *most = ek_quota_flow_least(x->f, x->l, &x->p->placement, x->p->quota);
    return plan_seconds(x);
}

/* Opens those that serve then, and what costs nothing more. */
static void open_needed(const search *x)
{
    ek_quota_flow_prefer(x->f, x->l, &x->p->placement, x->a->open);
    (void)ek_quota_flow_least(x->f, x->l, &x->p->placement, x->p->quota);
    for (int32_t s = 0; s < x->l->ranks * x->l->slots; s++)
        x->a->open[s] = x->a->free[s] || x->p->quota[s] > 0;
}

/* The copy with the fewest rows beside another one, by a->quota; -1: none is left to be tried. */
static int32_t smallest_part(const search *x)
{
    int32_t best = -1;

    for (int32_t s = 0; s < x->l->ranks * x->l->slots; s++)
        if (x->a->open[s] && !x->a->tried[s] && x->a->serving[x->p->placement.expert_of[s]] > 1 &&
            (best < 0 || x->a->quota[s] < x->a->quota[best]))
            best = s;
    return best;
}

/* Leaves out copies where that takes less time than *s; a->quota: the best. */
static void leave_out(const search *x, double *s, int64_t *most)
{
    size_t quotas = (size_t)x->l->ranks * (size_t)x->l->slots * sizeof(*x->p->quota);

    memcpy(x->a->quota, x->p->quota, quotas);
    for (int i = 0; i < TRIES; i++) {
        int32_t slot = smallest_part(x);
        int64_t most_then;
        double then;

        if (slot < 0)
            break;
        x->a->open[slot] = 0;
        x->a->tried[slot] = 1;
        then = serve_open(x, &most_then);
        if (then < *s) {
            *s = then;
            *most = most_then;
            memcpy(x->a->quota, x->p->quota, quotas);
        } else {
            x->a->open[slot] = 1;
            memcpy(x->p->quota, x->a->quota, quotas);
            count_serving(x);
        }
    }
}

int64_t ek_few_copies_choose(ek_few_copies *a, ek_quota_flow *f, const ek_plan_limits *l,
                             const int64_t *counts, int32_t states, ek_plan *p)
{
    search x = {a, f, l, counts, states, p};
    int64_t all_most, most;
    double all, few;

    (void)ek_plan_loads(l, p, a->load);
    all_most = ek_row_costs_largest(l, a->load);
    if (!(l->costs.gradient_s > 0))
        return all_most;
    ek_plan_sources(l, counts, a->locality.tokens);
    find_free_copies(&x);
    all = plan_seconds(&x);
    ek_quota_flow_start(f, l, counts, &p->placement);
    open_one_each(&x);
    open_needed(&x);
    few = serve_open(&x, &most);
    leave_out(&x, &few, &most);
    if (few < all)
        return most;
    ek_quota_flow_start(f, l, counts, &p->placement);
    return ek_quota_flow_least(f, l, &p->placement, p->quota);
}
