/* exact: balance after the gate, from the counts of this very micro-batch.
 *
 * Source: what UltraEP (arXiv 2606.04101), LLEP (arXiv 2601.17111) and MicroMoE (arXiv 2511.16947)
 * do, transient replicas in spare slots and one expert's assignments split over its slots.  The
 * construction is Walker's alias method (A. J. Walker, 1977; M. D. Vose, 1991) on ranks: with one
 * spare slot a rank, any loads balance perfectly as long as no gap needs two experts.
 *
 * Formula: for a target load, of the ranks above it the one that has the largest expert left gives
 * of that expert to the rank furthest below it, as much as fills that one's gap and the expert has,
 * even where the giver falls below the target itself: it then takes from another in its own spare
 * slot.  Where experts are small, gaps stay open, and the smallest target that all ranks can keep
 * is found by bisection, from the mean upwards.  Replicas that lower nothing are dropped.
 *
 * Complexity: O(ranks experts) to add up the counts; O(replicas (ranks + experts / ranks)) for each
 * target, of which there are at most SEARCH + 1.
 *
 * Homes stay.  Balance comes first, then the fewest replicas; whether a replica is worth its bytes
 * is not asked here. */
#include "balance/planner.h"

#include <stdio.h>
#include <string.h>

enum { SEARCH = 12 };

/* A load is as good as another that is lower by this part of the mean. */
static const double close_enough = 0.0005;

/* An expert's assignments that go to a spare slot. */
typedef struct {
    int32_t expert, slot;
    int64_t amount;
} move;

typedef struct {
    int64_t *total;        /* [experts] */
    int64_t *load, *start; /* [ranks]; with every expert at home alone */
    int64_t *left;         /* [experts] what home still serves */
    int32_t *spare;        /* [ranks * slots] numbers of empty slots, rank by rank */
    int32_t *n_spare;      /* [ranks] */
    int32_t *homes;        /* [experts] by home rank */
    int32_t *first_home;   /* [ranks + 1] */
    int32_t *largest;      /* [ranks] of the experts at home, the one with most left; -1: none */
    move *moves, *best;    /* [ranks * slots] */
} memory;

static void *take(ek_arena *a, const ek_plan_limits *l)
{
    int64_t slots = (int64_t)l->ranks * l->slots;
    memory *m = ek_arena_take(a, 1, sizeof(*m)), measured;
    memory *at = m != NULL ? m : &measured;

    at->total = ek_arena_take(a, l->experts, sizeof(*at->total));
    at->left = ek_arena_take(a, l->experts, sizeof(*at->left));
    at->load = ek_arena_take(a, l->ranks, sizeof(*at->load));
    at->start = ek_arena_take(a, l->ranks, sizeof(*at->start));
    at->spare = ek_arena_take(a, slots, sizeof(*at->spare));
    at->n_spare = ek_arena_take(a, l->ranks, sizeof(*at->n_spare));
    at->homes = ek_arena_take(a, l->experts, sizeof(*at->homes));
    at->first_home = ek_arena_take(a, l->ranks + 1, sizeof(*at->first_home));
    at->largest = ek_arena_take(a, l->ranks, sizeof(*at->largest));
    at->moves = ek_arena_take(a, slots, sizeof(*at->moves));
    at->best = ek_arena_take(a, slots, sizeof(*at->best));
    return m;
}

/* --- where it starts -------------------------------------------------------------------------- */

/* Empties all slots but homes, and lists both. */
static void clear(memory *m, const ek_plan_limits *l, ek_placement *p)
{
    int32_t n = 0;

    for (int32_t r = 0; r < l->ranks; r++) {
        m->first_home[r] = n;
        m->start[r] = 0;
        m->n_spare[r] = 0;
        for (int32_t s = r * l->slots; s < (r + 1) * l->slots; s++) {
            int32_t e = p->expert_of[s];

            if (e >= 0 && p->home[e] == s) {
                m->homes[n++] = e;
                m->start[r] += m->total[e];
            } else {
                p->expert_of[s] = -1;
                m->spare[r * l->slots + m->n_spare[r]++] = s;
            }
        }
    }
    m->first_home[l->ranks] = n;
}

/* --- one target ------------------------------------------------------------------------------- */

static void find_largest(memory *m, int32_t rank)
{
    int32_t best = -1;

    for (int32_t i = m->first_home[rank]; i < m->first_home[rank + 1]; i++)
        if (best < 0 || m->left[m->homes[i]] > m->left[best])
            best = m->homes[i];
    m->largest[rank] = best;
}

/* Of the ranks above the target, the one with the largest expert left; -1: none is, or none of them
 * has anything to give. */
static int32_t giver(const memory *m, int32_t ranks, int64_t target)
{
    int32_t best = -1;
    int64_t most = 0;

    for (int32_t r = 0; r < ranks; r++)
        if (m->load[r] > target && m->largest[r] >= 0 && m->left[m->largest[r]] > most) {
            best = r;
            most = m->left[m->largest[r]];
        }
    return best;
}

/* Of the ranks below the target with an empty slot, the lowest; -1: there is none. */
static int32_t receiver(const memory *m, int32_t ranks, int64_t target)
{
    int32_t best = -1;

    for (int32_t r = 0; r < ranks; r++)
        if (m->load[r] < target && m->n_spare[r] > 0 && (best < 0 || m->load[r] < m->load[best]))
            best = r;
    return best;
}

static void start(memory *m, const ek_plan_limits *l)
{
    memcpy(m->load, m->start, (size_t)l->ranks * sizeof(*m->load));
    memcpy(m->left, m->total, (size_t)l->experts * sizeof(*m->left));
    for (int32_t r = 0; r < l->ranks; r++)
        find_largest(m, r);
}

static int64_t most_of(const memory *m, int32_t ranks)
{
    int64_t most = 0;

    for (int32_t r = 0; r < ranks; r++)
        most = m->load[r] > most ? m->load[r] : most;
    return most;
}

/* Moves until no rank is above the target, or nothing more can go; their number. */
static int32_t balance(memory *m, const ek_plan_limits *l, int64_t target)
{
    int32_t n = 0, from, to;

    start(m, l);
    while ((from = giver(m, l->ranks, target)) >= 0 && (to = receiver(m, l->ranks, target)) >= 0) {
        int32_t expert = m->largest[from];
        int64_t excess = m->load[from] - target, gap = target - m->load[to];
        int64_t amount = m->left[expert] < gap ? m->left[expert] : gap;

        /* More than the excess only where what is then missing can come back, and where it fills a
         * slot that would have to stay half empty. */
        if (amount > excess && (m->n_spare[from] == 0 || m->n_spare[to] > 1))
            amount = excess;
        m->moves[n++] = (move){expert, m->spare[to * l->slots + --m->n_spare[to]], amount};
        m->left[expert] -= amount;
        m->load[from] -= amount;
        m->load[to] += amount;
        find_largest(m, from);
    }
    for (int32_t i = 0; i < n; i++) /* for the next target */
        m->n_spare[m->moves[i].slot / l->slots]++;
    return n;
}

/* Drops moves without which no rank comes above `most`; how many are left. */
static int32_t drop_idle(memory *m, const ek_plan_limits *l, const ek_placement *p, int32_t n,
                         int64_t most)
{
    int32_t kept = 0;

    for (int32_t i = 0; i < n; i++) {
        move *v = &m->moves[i];
        int32_t home = p->home[v->expert] / l->slots, at = v->slot / l->slots;

        if (m->load[home] + v->amount <= most) {
            m->load[home] += v->amount;
            m->load[at] -= v->amount;
        } else {
            m->moves[kept++] = *v;
        }
    }
    return kept;
}

/* --- the search ------------------------------------------------------------------------------- */

/* Makes the plan for a target and keeps it if its busiest rank is less busy than *least, or as busy
 * with fewer replicas.  Returns that rank's load. */
static int64_t attempt(memory *m, const ek_plan_limits *l, const ek_placement *p, int64_t target,
                       int64_t slack, int64_t *least, int32_t *n_best)
{
    int32_t n = balance(m, l, target);
    int64_t most = most_of(m, l->ranks), bound = most > target + slack ? most : target + slack;

    n = drop_idle(m, l, p, n, bound);
    most = most_of(m, l->ranks);
    if (most < *least || (most == *least && n < *n_best)) {
        *least = most;
        *n_best = n;
        memcpy(m->best, m->moves, (size_t)n * sizeof(move));
    }
    return most;
}

static void apply(const memory *m, int32_t n, ek_plan *p)
{
    for (int32_t i = 0; i < n; i++) {
        const move *v = &m->best[i];

        p->placement.expert_of[v->slot] = v->expert;
        p->quota[v->slot] = v->amount;
        p->quota[p->placement.home[v->expert]] -= v->amount;
    }
}

static ek_status plan(void *mem, const ek_plan_limits *l, const int64_t *counts, ek_plan *p)
{
    memory *m = mem;
    int64_t sum = 0, low, high, slack, before, least = INT64_MAX;
    int32_t n = 0;

    ek_plan_totals(l, counts, m->total);
    clear(m, l, &p->placement);
    ek_plan_homes_only(l, m->total, p);
    for (int32_t e = 0; e < l->experts; e++)
        sum += m->total[e];
    low = (sum + l->ranks - 1) / l->ranks;
    slack = (int64_t)(close_enough * (double)low);
    start(m, l);
    before = most_of(m, l->ranks);
    high = attempt(m, l, &p->placement, low, slack, &least, &n);
    for (int i = 0; i < SEARCH && high - low > slack; i++) {
        int64_t target = low + (high - low) / 2;
        int64_t most = attempt(m, l, &p->placement, target, slack, &least, &n);

        if (most > target + slack)
            low = target;
        else
            high = target;
        high = most < high ? most : high;
    }
    apply(m, n, p);
    p->before_s = (double)before * (l->costs.row_s + l->costs.send_s);
    p->after_s =
        (double)least * (l->costs.row_s + l->costs.send_s) + (n > 0 ? l->costs.replica_s : 0);
    if (p->explain)
        snprintf(
            p->why, sizeof(p->why),
            "%d replicas bring the busiest rank from %lld to %lld assignments, %.4f of the mean",
            (int)n, (long long)before, (long long)least,
            sum > 0 ? (double)least * l->ranks / (double)sum : 1.0);
    return EK_OK;
}

const ek_planner ek_planner_exact = {
    .name = "exact",
    .what = "replicas from this micro-batch's counts, assignments split (UltraEP and others)",
    .take = take,
    .fast = plan};
