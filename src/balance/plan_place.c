/* place: permutes primary copies for the least largest load of a rank.
 *
 * Source       SmartMoE (ATC 2023), online stage: section 6, algorithms 1 and 2, and the placement
 *              greedy of its artifact.
 * Minimises    max over ranks of the sum of counts of its primary experts, with at most
 *              ceil(experts / ranks) per rank.  Time: that load *
 *              (compute_s_per_row + comm_s_per_row).
 * Steps        1. Bound: max(heaviest expert, ceil(all / ranks)).  If even that would be rejected
 *                 by step 4, nothing is searched.
 *              2. Packing: longest processing time first (LPT: heaviest expert first, to the least
 *                 loaded rank with a vacant slot; ties to smaller numbers).  Where that misses the
 *                 bound: up to 12 experts exactly (place_dp.h); more experts by LPT onto M virtual
 *                 devices, ranks < M <= 12, and those exactly onto ranks, the best M if it beats
 *                 LPT.
 *              3. Relabelling: groups of the packing are assigned to ranks so that the most experts
 *                 stay (Hungarian method on the number of common experts).  Experts that stay keep
 *                 their slot; the others take empty slots, lowest first.
 *              4. Threshold: the placement is accepted if the predicted time falls by more than
 *                 5 %.
 * Complexity   O(experts^2 + experts ranks + ranks 3^min(experts, 12) + ranks^3); the third term
 *              only where LPT misses the bound, the last only for an accepted placement.
 * Departures   - Where ranks differ in speed, loads are weighted by what assignments cost there
 *                (row_costs.h): LPT puts an expert where the weighted load is then least, and step
 * 3 assigns a group only to ranks as fast as the one it was packed for.
 *              - The artifact accepts any improvement and ignores the cost of moves.  On its own
 *                trace the 5 % threshold saves nine of ten updates and costs about 1 % of balance.
 *              - The artifact numbers groups in LPT's order; step 3 moves fewer experts.
 *              - The paper's hybrid fills a rank with M / N virtual devices; here a rank has a
 *                capacity in experts, so no number need divide another.
 *              - The exact program's ranks need not be full.
 *              - No replicas: a placement with replicas is rejected; slots without a primary copy
 *                stay empty.
 *
 * Counts multiplied by a constant give the same placement, since only integer loads are compared.
 * The caller decides which counts are planned for, and how often. */
#include "balance/plan_place.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

/* A placement is accepted if it saves more than 1 / WORTH of the load. */
enum { WORTH = 20 };

static int32_t smaller_of(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/* --- memory ----------------------------------------------------------------------------------- */

static void reserve_match(ek_place_match *m, ek_arena *a, int32_t n)
{
    m->n = n;
    m->overlap = ek_arena_alloc(a, (int64_t)n * n, sizeof(*m->overlap));
    m->group_of = ek_arena_alloc(a, n, sizeof(*m->group_of));
    m->price_group = ek_arena_alloc(a, n, sizeof(*m->price_group));
    m->price_rank = ek_arena_alloc(a, n, sizeof(*m->price_rank));
    m->slack = ek_arena_alloc(a, n, sizeof(*m->slack));
    m->from = ek_arena_alloc(a, n, sizeof(*m->from));
    m->done = ek_arena_alloc(a, n, sizeof(*m->done));
}

ek_place *ek_place_reserve(ek_arena *a, int32_t experts, int32_t ranks)
{
    ek_place *m = ek_arena_alloc(a, 1, sizeof(*m)), at = {.experts = experts, .ranks = ranks};
    int32_t items = smaller_of(experts, EK_PLACE_ITEMS), bins = ranks > items ? ranks : items;

    at.load = ek_arena_alloc(a, experts, sizeof(*at.load));
    at.order = ek_arena_alloc(a, experts, sizeof(*at.order));
    at.rank_of = ek_arena_alloc(a, experts, sizeof(*at.rank_of));
    at.sum = ek_arena_alloc(a, bins, sizeof(*at.sum));
    at.held = ek_arena_alloc(a, bins, sizeof(*at.held));
    at.device = ek_arena_alloc(a, experts, sizeof(*at.device));
    if (ranks < items) /* otherwise LPT reaches the bound, or no number of devices is possible */
        ek_place_dp_reserve(&at.dp, a, items, ranks);
    reserve_match(&at.match, a, ranks);
    if (m != NULL)
        *m = at;
    return m;
}

/* --- packing ---------------------------------------------------------------------------------- */

/* ceil(experts / bins): the capacity of a bin. */
static int32_t bin_capacity(const ek_place *m, int32_t bins)
{
    return m->experts / bins + (m->experts % bins > 0);
}

int32_t ek_place_capacity(const ek_place *m)
{
    return bin_capacity(m, m->ranks);
}

/* What the arithmetic of row_costs.h reads. */
static ek_plan_limits limits_of(const ek_place *m)
{
    return (ek_plan_limits){.ranks = m->ranks, .row_cost = m->row_cost};
}

int64_t ek_place_bound(const ek_place *m)
{
    ek_plan_limits l = limits_of(m);
    int64_t all = 0, heaviest = 0, level;

    for (int32_t e = 0; e < m->experts; e++) {
        all += m->load[e];
        heaviest = m->load[e] > heaviest ? m->load[e] : heaviest;
    }
    heaviest *= ek_row_cost_least(&l);
    level = ek_row_costs_level(&l, NULL, all);
    return heaviest > level ? heaviest : level;
}

/* Insertion sort: stable, and qsort may allocate. */
/* Sorts indices of load [n]: heaviest first, equal loads by number. */
static void order_by_load(const int64_t *load, int32_t n, int32_t *order)
{
    for (int32_t e = 0; e < n; e++) {
        int32_t i = e;

        for (; i > 0 && load[order[i - 1]] < load[e]; i--)
            order[i] = order[i - 1];
        order[i] = e;
    }
}

void ek_place_sort(ek_place *m)
{
    order_by_load(m->load, m->experts, m->order);
}

/* The vacant rank that has the least weighted load with an expert more. */
static int32_t soonest_rank(const ek_place *m, int64_t load, int32_t capacity)
{
    int32_t to = -1;

    for (int32_t r = 0; r < m->ranks; r++)
        if (m->held[r] < capacity &&
            (to < 0 || (m->sum[r] + load) * m->row_cost[r] < (m->sum[to] + load) * m->row_cost[to]))
            to = r;
    return to;
}

static int32_t lightest_bin(const ek_place *m, int32_t bins, int32_t capacity)
{
    int32_t to = -1;

    for (int32_t b = 0; b < bins; b++)
        if (m->held[b] < capacity && (to < 0 || m->sum[b] < m->sum[to]))
            to = b;
    return to;
}

/* LPT into any number of bins, which are the ranks if `onto_ranks`: fills bin_of [experts], and sum
 * and held of the bins.  Returns the largest weighted load. */
static int64_t pack_lpt(ek_place *m, int32_t bins, int onto_ranks, int32_t *bin_of)
{
    int differ = onto_ranks && m->row_cost != NULL;
    int32_t capacity = bin_capacity(m, bins);
    int64_t most = 0;

    memset(m->sum, 0, (size_t)bins * sizeof(*m->sum));
    memset(m->held, 0, (size_t)bins * sizeof(*m->held));
    for (int32_t i = 0; i < m->experts; i++) {
        int32_t e = m->order[i];
        int32_t to =
            differ ? soonest_rank(m, m->load[e], capacity) : lightest_bin(m, bins, capacity);
        int64_t weighted;

        bin_of[e] = to;
        m->held[to]++;
        m->sum[to] += m->load[e];
        weighted = differ ? m->sum[to] * m->row_cost[to] : m->sum[to];
        most = weighted > most ? weighted : most;
    }
    return most;
}

int64_t ek_place_lpt(ek_place *m)
{
    return pack_lpt(m, m->ranks, 1, m->rank_of);
}

/* Packs devices exactly onto ranks.  rank_of changes only for a better packing; otherwise the plan
 * would depend on whether the bound is an integer. */
static int64_t pack_exactly(ek_place *m, int32_t devices, int64_t below)
{
    int64_t most = ek_place_exact(&m->dp, m->sum, m->held, devices, m->ranks, m->row_cost,
                                  ek_place_capacity(m), m->rank_of_device);

    if (most < 0 || most >= below)
        return -1;
    for (int32_t e = 0; e < m->experts; e++)
        m->rank_of[e] = m->rank_of_device[m->device[e]];
    return most;
}

int64_t ek_place_all(ek_place *m, int64_t below)
{
    for (int32_t e = 0; e < m->experts; e++) {
        m->device[e] = e;
        m->sum[e] = m->load[e];
        m->held[e] = 1;
    }
    return pack_exactly(m, m->experts, below);
}

int64_t ek_place_hybrid(ek_place *m, int32_t devices, int64_t below)
{
    (void)pack_lpt(m, devices, 0, m->device);
    return pack_exactly(m, devices, below);
}

int64_t ek_place_pack(ek_place *m, int32_t *devices)
{
    int64_t most, bound = ek_place_bound(m);
    int32_t from = smaller_of(m->experts, EK_PLACE_ITEMS);

    ek_place_sort(m);
    *devices = 0;
    most = ek_place_lpt(m);
    for (int32_t d = from; d > m->ranks && most > bound; d--) {
        int64_t now = d == m->experts ? ek_place_all(m, most) : ek_place_hybrid(m, d, most);

        if (now >= 0) {
            most = now;
            *devices = d;
        }
        if (d == m->experts) /* exact: no other is better */
            break;
    }
    return most;
}

/* --- relabelling ------------------------------------------------------------------------------ */

/* Assigns group `g` by the cheapest augmenting path to a free rank; groups on the path change
 * ranks.  The prices keep every reduced cost at 0 or above. */
static void assign_group(ek_place_match *m, int32_t g)
{
    int32_t at = g, last = -1; /* last group and rank of the path */

    memset(m->done, 0, (size_t)m->n);
    for (int32_t r = 0; r < m->n; r++)
        m->slack[r] = INT_MAX;
    do {
        const int32_t *overlap = m->overlap + (int64_t)at * m->n;
        int32_t next = -1, step;

        for (int32_t r = 0; r < m->n; r++) {
            int32_t cost = -overlap[r] - m->price_group[at] - m->price_rank[r];

            if (m->done[r])
                continue;
            if (cost < m->slack[r]) {
                m->slack[r] = cost;
                m->from[r] = last;
            }
            if (next < 0 || m->slack[r] < m->slack[next])
                next = r;
        }
        step = m->slack[next];
        m->price_group[g] += step;
        for (int32_t r = 0; r < m->n; r++)
            if (m->done[r]) {
                m->price_group[m->group_of[r]] += step;
                m->price_rank[r] -= step;
            } else {
                m->slack[r] -= step;
            }
        m->done[next] = 1;
        last = next;
        at = m->group_of[next];
    } while (at >= 0);
    for (int32_t before; last >= 0; last = before) {
        before = m->from[last];
        m->group_of[last] = before >= 0 ? m->group_of[before] : g;
    }
}

void ek_place_assign(ek_place_match *m)
{
    for (int32_t i = 0; i < m->n; i++) {
        m->group_of[i] = -1;
        m->price_group[i] = m->price_rank[i] = 0;
    }
    for (int32_t g = 0; g < m->n; g++)
        assign_group(m, g);
}

/* A group must not go to a rank of another speed: no overlap makes up for it. */
static void forbid_other_speeds(ek_place *m)
{
    int32_t *overlap = m->match.overlap;

    for (int32_t g = 0; g < m->ranks; g++)
        for (int32_t r = 0; r < m->ranks; r++)
            if (m->row_cost[g] != m->row_cost[r])
                overlap[(int64_t)g * m->ranks + r] = -m->experts - 1;
}

/* Renumbers the ranks of m->rank_of so that the most experts stay on their primary rank; returns
 * the number that move. */
static int32_t relabel_ranks(ek_place *m, const ek_placement *p)
{
    ek_place_match *by = &m->match;
    int32_t moved = 0, *rank_of_group = by->slack;

    memset(by->overlap, 0, (size_t)m->ranks * (size_t)m->ranks * sizeof(*by->overlap));
    for (int32_t e = 0; e < m->experts; e++)
        by->overlap[(int64_t)m->rank_of[e] * m->ranks + p->primary[e] / p->slots]++;
    if (m->row_cost != NULL)
        forbid_other_speeds(m);
    ek_place_assign(by);
    for (int32_t r = 0; r < m->ranks; r++)
        rank_of_group[by->group_of[r]] = r;
    for (int32_t e = 0; e < m->experts; e++) {
        m->rank_of[e] = rank_of_group[m->rank_of[e]];
        moved += m->rank_of[e] != p->primary[e] / p->slots;
    }
    return moved;
}

/* --- the planner ------------------------------------------------------------------------------ */

static void *reserve_place(ek_arena *a, const ek_plan_limits *l)
{
    return ek_place_reserve(a, l->experts, l->ranks);
}

/* More than 5 %, in integers: d > n / 20 if and only if d > floor(n / 20). */
static int is_worth_moving(int64_t before, int64_t after)
{
    return before - after > before / WORTH;
}

/* Empties the slots of moving experts, then gives them new ones.  Every rank has enough slots for
 * its primary copies. */
static void place_primaries(const int32_t *rank_of, ek_placement *p)
{
    for (int32_t e = 0; e < p->experts; e++)
        if (p->primary[e] / p->slots != rank_of[e])
            p->expert_of[p->primary[e]] = -1;
    for (int32_t e = 0; e < p->experts; e++)
        if (p->primary[e] / p->slots != rank_of[e]) {
            p->primary[e] = ek_plan_free_slot(p, rank_of[e]);
            p->expert_of[p->primary[e]] = e;
        }
}

static ek_status check_no_replicas(const ek_placement *p)
{
    for (int32_t s = 0; s < p->ranks * p->slots; s++) {
        int32_t e = p->expert_of[s];

        EK_REQUIRE(e < 0 || p->primary[e] == s, EK_EUNSUPPORTED,
                   "planner place: slot %d holds a replica of expert %d, but place moves primary "
                   "copies only; start from a placement without replicas or use another planner",
                   (int)s, (int)e);
    }
    return EK_OK;
}

static double percent_saved(int64_t before, int64_t after)
{
    return before > 0 ? 100.0 * (double)(before - after) / (double)before : 0.0;
}

static void explain_stay(const ek_plan_limits *l, ek_plan *p, int64_t before, int64_t after,
                         const char *what)
{
    if (p->explain)
        snprintf(p->reason, sizeof(p->reason),
                 "place: no move, largest load %lld%s; %s %lld would save %.1f %%, not more than "
                 "%d %%",
                 ek_row_costs_shown(l, before), ek_row_costs_note(l), what,
                 ek_row_costs_shown(l, after), percent_saved(before, after), 100 / WORTH);
}

static void explain_move(const ek_plan_limits *l, ek_plan *p, int64_t before, int64_t after,
                         int64_t bound, int32_t devices, int32_t moved)
{
    char by[48] = "LPT";

    if (!p->explain)
        return;
    if (devices == p->placement.experts)
        snprintf(by, sizeof(by), "exact packing");
    else if (devices > 0)
        snprintf(by, sizeof(by), "hybrid of %d devices", (int)devices);
    snprintf(p->reason, sizeof(p->reason),
             "place: %d of %d experts move, largest load %lld -> %lld%s (-%.1f %%, bound %lld) by "
             "%s",
             (int)moved, (int)p->placement.experts, ek_row_costs_shown(l, before),
             ek_row_costs_shown(l, after), ek_row_costs_note(l), percent_saved(before, after),
             ek_row_costs_shown(l, bound), by);
}

/* Decides and applies; returns the largest weighted load with the resulting placement. */
static int64_t decide_placement(ek_place *m, const ek_plan_limits *l, int64_t before, ek_plan *p)
{
    int64_t bound = ek_place_bound(m), after;
    int32_t devices, moved;

    if (!is_worth_moving(before, bound)) {
        explain_stay(l, p, before, bound, "the lower bound of");
        return before;
    }
    after = ek_place_pack(m, &devices);
    if (!is_worth_moving(before, after)) {
        explain_stay(l, p, before, after, "the best packing, with");
        return before;
    }
    moved = relabel_ranks(m, &p->placement);
    place_primaries(m->rank_of, &p->placement);
    explain_move(l, p, before, after, bound, devices, moved);
    return after;
}

static ek_status plan_place(void *memory, const ek_plan_limits *l, const int64_t *counts,
                            ek_plan *p)
{
    ek_place *m = memory;
    int64_t before;

    EK_TRY(check_no_replicas(&p->placement));
    ek_plan_totals(l, counts, m->load);
    ek_plan_primaries_only(l, m->load, p);
    m->row_cost = l->row_cost;
    (void)ek_plan_loads(l, p, m->sum);
    before = ek_row_costs_largest(l, m->sum);
    p->before_s = ek_row_costs_seconds(l, before);
    p->after_s = ek_row_costs_seconds(l, decide_placement(m, l, before, p));
    ek_plan_primaries_only(l, m->load, p);
    return EK_OK;
}

const ek_planner ek_planner_place = {
    .name = "place",
    .what = "primary copies permuted for the least largest load (SmartMoE, ATC 2023)",
    .reserve = reserve_place,
    .plan_persistent = plan_place};
