/* Locality replicas, by trial.
 *
 * Complexity   O(ranks slots + experts) for the time of a plan; O(ranks experts slots) to find the
 *              expert that each rank sends most rows to, twice; O(experts + B + ranks / B) for each
 *              further replica tried, at most one per spare slot, with blocks of B ranks
 *              (maxima.h), and the slots that give rows to it. */
#include "balance/locality_replicas.h"

#include <string.h>

static void reserve_sums(ek_locality_sums *s, ek_arena *a, const ek_plan_limits *l)
{
    s->served = ek_arena_alloc(a, l->ranks, sizeof(*s->served));
    s->stay = ek_arena_alloc(a, l->ranks, sizeof(*s->stay));
    s->gets = ek_arena_alloc(a, l->ranks, sizeof(*s->gets));
    s->gives = ek_arena_alloc(a, l->ranks, sizeof(*s->gives));
    s->given = ek_arena_alloc(a, l->experts, sizeof(*s->given));
}

static void copy_sums(const ek_plan_limits *l, ek_locality_sums *to, const ek_locality_sums *from)
{
    size_t ranks = (size_t)l->ranks;

    memcpy(to->served, from->served, ranks * sizeof(*to->served));
    memcpy(to->stay, from->stay, ranks * sizeof(*to->stay));
    memcpy(to->gets, from->gets, ranks * sizeof(*to->gets));
    memcpy(to->gives, from->gives, ranks * sizeof(*to->gives));
    memcpy(to->given, from->given, (size_t)l->experts);
}

void ek_locality_reserve(ek_locality *n, ek_arena *a, const ek_plan_limits *l)
{
    int64_t all = (int64_t)l->ranks * l->slots;

    n->tokens = ek_arena_alloc(a, l->ranks, sizeof(*n->tokens));
    reserve_sums(&n->sums, a, l);
    n->favourite = ek_arena_alloc(a, l->ranks, sizeof(*n->favourite));
    n->giver = ek_arena_alloc(a, l->experts, sizeof(*n->giver));
    n->next_giver = ek_arena_alloc(a, all, sizeof(*n->next_giver));
    n->taken = ek_arena_alloc(a, all, sizeof(*n->taken));
    ek_maxima_reserve(&n->weighted, a, l->ranks);
    ek_maxima_reserve(&n->link, a, l->ranks);
    ek_maxima_reserve(&n->replicas, a, l->ranks);
    ek_maxima_reserve(&n->sends, a, l->ranks);
    for (int i = 0; i < 2; i++) {
        reserve_sums(&n->saved[i], a, l);
        n->expert_of[i] = ek_arena_alloc(a, all, sizeof(*n->expert_of[i]));
        n->quota[i] = ek_arena_alloc(a, all, sizeof(*n->quota[i]));
    }
}

int ek_locality_uses(const ek_plan_limits *l)
{
    return l->costs.comm_s_per_row > 0 && l->ranks >= 2;
}

int64_t ek_locality_worth(const ek_plan_limits *l)
{
    double rows = l->costs.replica_s / l->costs.comm_s_per_row * (1 - 1e-9) - 1;

    if (!ek_locality_uses(l) || !(rows < 0x1p62))
        return INT64_MAX;
    return rows > 0 ? (int64_t)rows : 0;
}

/* --- time of a plan --------------------------------------------------------------------------- */

static int64_t smaller_of(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t larger_of(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static void count_replica(ek_locality_sums *n, const ek_plan_limits *l, const ek_plan *p, int32_t e,
                          int32_t rank)
{
    n->gets[rank]++;
    n->gives[p->placement.primary[e] / l->slots] += !n->given[e];
    n->given[e] = 1;
}

/* Assignments of an expert that a rank serves, over all its slots. */
static int64_t served_of(const ek_plan_limits *l, const ek_plan *p, int32_t rank, int32_t e)
{
    int64_t n = 0;

    for (int32_t s = rank * l->slots; s < (rank + 1) * l->slots; s++)
        n += p->placement.expert_of[s] == e ? p->quota[s] : 0;
    return n;
}

/* Computes n->sums. */
static void compute_sums(ek_locality *n, const ek_plan_limits *l, const int64_t *counts,
                         const ek_plan *p)
{
    const ek_placement *at = &p->placement;
    ek_locality_sums *sums = &n->sums;

    memset(sums->served, 0, (size_t)l->ranks * sizeof(*sums->served));
    memset(sums->stay, 0, (size_t)l->ranks * sizeof(*sums->stay));
    memset(sums->gets, 0, (size_t)l->ranks * sizeof(*sums->gets));
    memset(sums->gives, 0, (size_t)l->ranks * sizeof(*sums->gives));
    memset(sums->given, 0, (size_t)l->experts);
    for (int32_t r = 0, s = 0; r < l->ranks; r++, counts += l->experts)
        for (int32_t i = 0; i < l->slots; i++, s++) {
            int32_t e = at->expert_of[s];

            if (e < 0)
                continue;
            sums->served[r] += p->quota[s];
            if (ek_plan_slot(at, r, e) != s)
                continue;
            sums->stay[r] += smaller_of(served_of(l, p, r, e), counts[e]);
            if (at->primary[e] / l->slots != r)
                count_replica(sums, l, p, e, r);
        }
}

/* Rows that the link of a rank carries, and replicas. */
static int64_t link_of(const ek_locality *n, int32_t r)
{
    return larger_of(n->tokens[r], n->sums.served[r]) - n->sums.stay[r];
}

static int64_t replicas_of(const ek_locality *n, int32_t r)
{
    return larger_of(n->sums.gets[r], n->sums.gives[r]);
}

static double time_of_largest(const ek_plan_limits *l, int64_t weighted, int64_t link,
                              int64_t replicas)
{
    return (double)weighted * (l->costs.compute_s_per_row / (double)ek_row_cost_unit(l)) +
           (double)link * l->costs.comm_s_per_row + (double)replicas * l->costs.replica_s;
}

/* Seconds for n->sums. */
static double time_of_sums(const ek_locality *n, const ek_plan_limits *l)
{
    int64_t link = 0, replicas = 0;

    for (int32_t r = 0; r < l->ranks; r++) {
        link = larger_of(link, link_of(n, r));
        replicas = larger_of(replicas, replicas_of(n, r));
    }
    return time_of_largest(l, ek_row_costs_largest(l, n->sums.served), link, replicas);
}

double ek_locality_time(ek_locality *n, const ek_plan_limits *l, const int64_t *counts,
                        const ek_plan *p)
{
    compute_sums(n, l, counts, p);
    return time_of_sums(n, l);
}

/* --- adding a replica ------------------------------------------------------------------------- */

/* The expert that most tokens of a rank go to, among those the rank does not hold; -1: none. */
static int32_t most_wanted_expert(ek_locality *n, const ek_plan_limits *l, const int64_t *counts,
                                  const ek_plan *p, int32_t rank)
{
    const int64_t *own = counts + (int64_t)rank * l->experts;
    int32_t best = -1;

    if (n->favourite[rank] < 0 || ek_plan_slot(&p->placement, rank, n->favourite[rank]) < 0)
        return n->favourite[rank];
    for (int32_t e = 0; e < l->experts; e++)
        if (own[e] > (best >= 0 ? own[best] : 0) && ek_plan_slot(&p->placement, rank, e) < 0)
            best = e;
    return best;
}

/* Rows that a slot serves for other ranks. */
static int64_t for_others(const ek_plan_limits *l, const int64_t *counts, const ek_plan *p,
                          int32_t slot, int32_t e)
{
    int64_t own = counts[(int64_t)(slot / l->slots) * l->experts + e];

    return larger_of(p->quota[slot] - own, 0);
}

/* Lists the slots that serve rows for other ranks.  While replicas are added they only lose such
 * rows, and a new replica has none. */
static void list_givers(ek_locality *n, const ek_plan_limits *l, const int64_t *counts,
                        const ek_plan *p)
{
    for (int32_t e = 0; e < l->experts; e++)
        n->giver[e] = -1;
    for (int32_t s = l->ranks * l->slots; s-- > 0;) {
        int32_t e = p->placement.expert_of[s];

        if (e < 0 || for_others(l, counts, p, s, e) == 0)
            continue;
        n->next_giver[s] = n->giver[e];
        n->giver[e] = s;
    }
}

/* Takes up to `amount` of what a slot serves for other ranks; returns how much. */
static int64_t take_from(ek_locality *n, const ek_plan_limits *l, const int64_t *counts, ek_plan *p,
                         int32_t slot, int32_t e, int64_t amount)
{
    int64_t some = smaller_of(amount, for_others(l, counts, p, slot, e));

    p->quota[slot] -= some;
    n->sums.served[slot / l->slots] -= some;
    n->taken[n->n_taken] = (ek_locality_take){slot, some};
    n->n_taken += some > 0;
    return some;
}

/* Adds a replica that serves the rank's own assignments. */
static void add_local_replica(ek_locality *n, const ek_plan_limits *l, const int64_t *counts,
                              ek_plan *p, int32_t rank, int32_t e, int32_t slot)
{
    int64_t amount = counts[(int64_t)rank * l->experts + e], left;

    n->n_taken = 0;
    n->first_given = !n->sums.given[e];
    n->first_giver = n->giver[e];
    left = amount - take_from(n, l, counts, p, p->placement.primary[e], e, amount);
    while (left > 0 && n->giver[e] >= 0) {
        left -= take_from(n, l, counts, p, n->giver[e], e, left);
        if (left > 0)
            n->giver[e] = n->next_giver[n->giver[e]];
    }
    p->placement.expert_of[slot] = e;
    p->quota[slot] = amount - left;
    n->sums.served[rank] += amount - left;
    n->sums.stay[rank] += amount - left;
    count_replica(&n->sums, l, p, e, rank);
}

/* Takes back the last replica, in this slot. */
static void remove_last_replica(ek_locality *n, const ek_plan_limits *l, ek_plan *p, int32_t slot)
{
    int32_t rank = slot / l->slots, e = p->placement.expert_of[slot];

    for (int32_t i = 0; i < n->n_taken; i++) {
        p->quota[n->taken[i].slot] += n->taken[i].rows;
        n->sums.served[n->taken[i].slot / l->slots] += n->taken[i].rows;
    }
    n->sums.served[rank] -= p->quota[slot];
    n->sums.stay[rank] -= p->quota[slot];
    n->sums.gets[rank]--;
    n->giver[e] = n->first_giver;
    if (n->first_given) {
        n->sums.gives[p->placement.primary[e] / l->slots]--;
        n->sums.given[e] = 0;
    }
    p->placement.expert_of[slot] = -1;
    p->quota[slot] = 0;
}

/* Adds the replica that most of a rank's tokens need, if it has an empty slot and the rows cost
 * more to send than the replica.  Returns the slot, or -1. */
static int32_t add_wanted_replica(ek_locality *n, const ek_plan_limits *l, const int64_t *counts,
                                  ek_plan *p, int32_t rank)
{
    int32_t slot = ek_plan_free_slot(&p->placement, rank);
    int32_t e = slot >= 0 ? most_wanted_expert(n, l, counts, p, rank) : -1;

    if (e < 0 || !((double)counts[(int64_t)rank * l->experts + e] * l->costs.comm_s_per_row >
                   l->costs.replica_s))
        return -1;
    add_local_replica(n, l, counts, p, rank, e, slot);
    return slot;
}

/* --- the trials ------------------------------------------------------------------------------- */

static void save_plan(ek_locality *n, const ek_plan_limits *l, const ek_plan *p, int where)
{
    size_t all = (size_t)l->ranks * (size_t)l->slots;

    copy_sums(l, &n->saved[where], &n->sums);
    memcpy(n->expert_of[where], p->placement.expert_of, all * sizeof(*n->expert_of[where]));
    memcpy(n->quota[where], p->quota, all * sizeof(*n->quota[where]));
}

static void restore_plan(ek_locality *n, const ek_plan_limits *l, ek_plan *p, int where)
{
    size_t all = (size_t)l->ranks * (size_t)l->slots;

    copy_sums(l, &n->sums, &n->saved[where]);
    memcpy(p->placement.expert_of, n->expert_of[where], all * sizeof(*n->expert_of[where]));
    memcpy(p->quota, n->quota[where], all * sizeof(*n->quota[where]));
}

enum { BEST, TRIED };

/* Adds a replica on every rank at once: where all ranks send alike, one alone lowers no maximum. */
static void add_on_all_ranks(ek_locality *n, const ek_plan_limits *l, const int64_t *counts,
                             ek_plan *p, double *s)
{
    double now;

    save_plan(n, l, p, TRIED);
    for (int32_t r = 0; r < l->ranks; r++)
        (void)add_wanted_replica(n, l, counts, p, r);
    now = time_of_sums(n, l);
    if (now < *s) {
        *s = now;
        return;
    }
    restore_plan(n, l, p, TRIED);
    list_givers(n, l, counts, p);
}

static int64_t sends_of(const ek_locality *n, int32_t r)
{
    return n->tokens[r] - n->sums.stay[r];
}

static void find_maxima(ek_locality *n, const ek_plan_limits *l)
{
    int32_t ranks = l->ranks;

    for (int32_t r = 0; r < ranks; r++) {
        n->weighted.of[r] = n->sums.served[r] * ek_row_cost(l, r);
        n->link.of[r] = link_of(n, r);
        n->replicas.of[r] = replicas_of(n, r);
        n->sends.of[r] = sends_of(n, r);
    }
    ek_maxima_find(&n->weighted, ranks);
    ek_maxima_find(&n->link, ranks);
    ek_maxima_find(&n->replicas, ranks);
    ek_maxima_find(&n->sends, ranks);
}

static void change_maxima(ek_locality *n, const ek_plan_limits *l, int32_t r)
{
    int32_t ranks = l->ranks;

    ek_maxima_change(&n->weighted, ranks, r, n->sums.served[r] * ek_row_cost(l, r));
    ek_maxima_change(&n->link, ranks, r, link_of(n, r));
    ek_maxima_change(&n->replicas, ranks, r, replicas_of(n, r));
    ek_maxima_change(&n->sends, ranks, r, sends_of(n, r));
}

/* Seconds after the last replica was added, in this slot. */
static double time_after_replica(ek_locality *n, const ek_plan_limits *l, const ek_plan *p,
                                 int32_t slot)
{
    int32_t primary = p->placement.primary[p->placement.expert_of[slot]];

    for (int32_t i = 0; i < n->n_taken; i++)
        change_maxima(n, l, n->taken[i].slot / l->slots);
    change_maxima(n, l, slot / l->slots);
    change_maxima(n, l, primary / l->slots);
    return time_of_largest(l, ek_maxima_largest(&n->weighted, l->ranks),
                           ek_maxima_largest(&n->link, l->ranks),
                           ek_maxima_largest(&n->replicas, l->ranks));
}

/* Adds replicas on the rank that sends most, as long as that is faster. */
static void add_on_busiest(ek_locality *n, const ek_plan_limits *l, const int64_t *counts,
                           ek_plan *p, double *s)
{
    find_maxima(n, l);
    for (int32_t i = 0; i < l->ranks * l->slots; i++) {
        int32_t most = ek_maxima_first(&n->sends, l->ranks), sender = most < 0 ? 0 : most;
        int32_t slot = add_wanted_replica(n, l, counts, p, sender);
        double now;

        if (slot < 0)
            return;
        now = time_after_replica(n, l, p, slot);
        if (!(now < *s)) {
            remove_last_replica(n, l, p, slot);
            return;
        }
        *s = now;
    }
}

static void add_locality_replicas(ek_locality *n, const ek_plan_limits *l, const int64_t *counts,
                                  ek_plan *p, double *s)
{
    list_givers(n, l, counts, p);
    add_on_all_ranks(n, l, counts, p, s);
    add_on_busiest(n, l, counts, p, s);
}

/* Removes all replicas. */
static void drop_replicas(const ek_plan_limits *l, const int64_t *total, ek_plan *p)
{
    for (int32_t s = 0; s < l->ranks * l->slots; s++)
        if (p->placement.expert_of[s] >= 0 && p->placement.primary[p->placement.expert_of[s]] != s)
            p->placement.expert_of[s] = -1;
    ek_plan_primaries_only(l, total, p);
}

int ek_locality_improve(ek_locality *n, const ek_plan_limits *l, const int64_t *counts,
                        const int64_t *total, ek_plan *p, double *s)
{
    double given, with, alone;

    if (!ek_locality_uses(l))
        return 0;
    given = with = ek_locality_time(n, l, counts, p);
    add_locality_replicas(n, l, counts, p, &with);
    save_plan(n, l, p, BEST);
    drop_replicas(l, total, p);
    alone = ek_locality_time(n, l, counts, p);
    add_locality_replicas(n, l, counts, p, &alone);
    if (!(alone < with))
        restore_plan(n, l, p, BEST);
    *s = alone < with ? alone : with;
    return *s < given;
}
