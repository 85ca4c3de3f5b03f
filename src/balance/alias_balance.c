/* Alias-method construction for one target, and the search for the smallest target.
 *
 * Complexity   O(ranks + replicas (B + ranks / B + experts / ranks)) per target with blocks of
 *              B = 32 ranks; there are at most EK_ALIAS_SEARCH + 1 targets, and one more where
 *              nodes have several ranks, with O(nodes + ranks of a node) more per replica. */
#include "balance/alias_balance.h"

#include <string.h>

/* Weighted loads within this fraction of the level are treated as equal. */
static const double close_enough = 0.0005;

static int32_t mask_words(int32_t nodes)
{
    return (nodes + 63) / 64;
}

void ek_alias_reserve(ek_alias *m, ek_arena *a, const ek_plan_limits *l)
{
    int64_t slots = (int64_t)l->ranks * l->slots;

    m->total = ek_arena_alloc(a, l->experts, sizeof(*m->total));
    m->left = ek_arena_alloc(a, l->experts, sizeof(*m->left));
    m->load = ek_arena_alloc(a, l->ranks, sizeof(*m->load));
    m->start = ek_arena_alloc(a, l->ranks, sizeof(*m->start));
    m->capacity = ek_arena_alloc(a, l->ranks, sizeof(*m->capacity));
    m->spare = ek_arena_alloc(a, slots, sizeof(*m->spare));
    m->n_spare = ek_arena_alloc(a, l->ranks, sizeof(*m->n_spare));
    m->primaries = ek_arena_alloc(a, l->experts, sizeof(*m->primaries));
    m->first_primary = ek_arena_alloc(a, l->ranks + 1, sizeof(*m->first_primary));
    m->rank_of = ek_arena_alloc(a, l->experts, sizeof(*m->rank_of));
    m->node_of = ek_arena_alloc(a, l->ranks, sizeof(*m->node_of));
    m->node_first = ek_arena_alloc(a, l->ranks + 1, sizeof(*m->node_first));
    ek_maxima_reserve(&m->node_gap, a, l->ranks);
    m->has_node =
        ek_arena_alloc(a, (int64_t)l->experts * mask_words(l->ranks), sizeof(*m->has_node));
    m->last_move = ek_arena_alloc(a, l->experts, sizeof(*m->last_move));
    m->node_of_move = ek_arena_alloc(a, slots, sizeof(*m->node_of_move));
    m->move_before = ek_arena_alloc(a, slots, sizeof(*m->move_before));
    m->largest = ek_arena_alloc(a, l->ranks, sizeof(*m->largest));
    m->most_left = ek_arena_alloc(a, l->ranks, sizeof(*m->most_left));
    m->largest_first = ek_arena_alloc(a, l->ranks, sizeof(*m->largest_first));
    m->most_first = ek_arena_alloc(a, l->ranks, sizeof(*m->most_first));
    ek_maxima_reserve(&m->offer, a, l->ranks);
    ek_maxima_reserve(&m->gap, a, l->ranks);
    m->slots_left = ek_arena_alloc(a, l->ranks, sizeof(*m->slots_left));
    m->gives = ek_arena_alloc(a, l->ranks, sizeof(*m->gives));
    m->given = ek_arena_alloc(a, l->experts, sizeof(*m->given));
    m->moves = ek_arena_alloc(a, slots, sizeof(*m->moves));
    m->best = ek_arena_alloc(a, slots, sizeof(*m->best));
}

static void find_nodes(ek_alias *m, const ek_plan_limits *l)
{
    m->nodes = 0;
    for (int32_t r = 0; r < l->ranks; r++) {
        if (r == 0 || l->node_of == NULL || l->node_of[r] != l->node_of[r - 1])
            m->node_first[m->nodes++] = r;
        m->node_of[r] = m->nodes - 1;
    }
    m->node_first[m->nodes] = l->ranks;
}

int64_t ek_alias_start(ek_alias *m, const ek_plan_limits *l, ek_placement *p)
{
    int32_t n = 0;

    find_nodes(m, l);
    for (int32_t r = 0; r < l->ranks; r++) {
        int32_t largest = -1;
        int64_t most = 0, load = 0;

        m->first_primary[r] = n;
        m->n_spare[r] = 0;
        for (int32_t s = r * l->slots; s < (r + 1) * l->slots; s++) {
            int32_t e = p->expert_of[s];

            if (e >= 0 && p->primary[e] == s) {
                m->primaries[n++] = e;
                m->rank_of[e] = r;
                load += m->total[e];
                largest = m->total[e] > most ? e : largest;
                most = m->total[e] > most ? m->total[e] : most;
            } else {
                p->expert_of[s] = -1;
                m->spare[r * l->slots + m->n_spare[r]++] = s;
            }
        }
        m->largest_first[r] = largest;
        m->most_first[r] = most;
        m->start[r] = m->load[r] = load;
    }
    m->first_primary[l->ranks] = n;
    m->n_best = 0;
    return m->least = ek_row_costs_largest(l, m->load);
}

int64_t ek_alias_bound_of_one(const ek_alias *m, const ek_plan_limits *l)
{
    int64_t bound = 0;

    for (int32_t r = 0; r < l->ranks; r++) {
        int64_t others = (m->start[r] - m->most_first[r]) * ek_row_cost(l, r);

        bound = others > bound ? others : bound;
    }
    return bound;
}

/* --- one target ------------------------------------------------------------------------------- */

static void find_largest(ek_alias *m, int32_t rank, int32_t budget)
{
    int any = m->gives[rank] < budget;
    int32_t best = -1;
    int64_t most = 0;

    for (int32_t i = m->first_primary[rank]; i < m->first_primary[rank + 1]; i++) {
        int32_t e = m->primaries[i];
        int64_t left = m->left[e] * (any | m->given[e]);

        best = left > most ? e : best;
        most = left > most ? left : most;
    }
    m->largest[rank] = best;
    m->most_left[rank] = most;
}

/* What a rank can give at once if it is above the target, and what it lacks below. */
static int64_t offer_of(const ek_alias *m, int32_t rank)
{
    return m->load[rank] > m->capacity[rank] ? m->most_left[rank] : 0;
}

static int64_t gap_of(const ek_alias *m, int32_t rank)
{
    return m->load[rank] < m->capacity[rank] && m->slots_left[rank] > 0
               ? m->capacity[rank] - m->load[rank]
               : 0;
}

static void update_rank(ek_alias *m, const ek_plan_limits *l, int32_t rank)
{
    ek_maxima_change(&m->offer, l->ranks, rank, offer_of(m, rank));
    ek_maxima_change(&m->gap, l->ranks, rank, gap_of(m, rank));
}

/* offer_of and gap_of for all ranks. */
static void fill_offers(ek_alias *m, int32_t ranks)
{
    const int64_t *restrict load = m->load, *restrict capacity = m->capacity;
    const int64_t *restrict most_left = m->most_left;
    const int32_t *restrict slots_left = m->slots_left;
    int64_t *restrict offer = m->offer.of, *restrict gap = m->gap.of;

    for (int32_t r = 0; r < ranks; r++) {
        int64_t lack = capacity[r] - load[r];

        offer[r] = lack < 0 ? most_left[r] : 0;
        gap[r] = lack > 0 && slots_left[r] > 0 ? lack : 0;
    }
}

static void start_target(ek_alias *m, const ek_plan_limits *l, int64_t target, int32_t budget)
{
    memcpy(m->load, m->start, (size_t)l->ranks * sizeof(*m->load));
    memcpy(m->left, m->total, (size_t)l->experts * sizeof(*m->left));
    memset(m->given, 0, (size_t)l->experts);
    memset(m->gives, 0, (size_t)l->ranks * sizeof(*m->gives));
    memcpy(m->largest, m->largest_first, (size_t)l->ranks * sizeof(*m->largest));
    memcpy(m->most_left, m->most_first, (size_t)l->ranks * sizeof(*m->most_left));
    ek_row_costs_capacities(l, target, m->capacity);
    for (int32_t r = 0; r < l->ranks; r++)
        m->slots_left[r] = m->n_spare[r] < budget ? m->n_spare[r] : budget;
    fill_offers(m, l->ranks);
    ek_maxima_find(&m->offer, l->ranks);
    ek_maxima_find(&m->gap, l->ranks);
}

static void add_move(ek_alias *m, const ek_plan_limits *l, int32_t n, int32_t from, int32_t to,
                     int64_t amount)
{
    int32_t expert = m->largest[from];

    m->moves[n] = (ek_alias_move){expert, m->spare[to * l->slots + --m->slots_left[to]], amount};
    m->left[expert] -= amount;
    m->load[from] -= amount;
    m->load[to] += amount;
    m->gives[from] += !m->given[expert];
    m->given[expert] = 1;
}

/* --- by nodes --------------------------------------------------------------------------------- */

static int64_t largest_gap(const ek_alias *m, int32_t node)
{
    int64_t most = 0;

    for (int32_t r = m->node_first[node]; r < m->node_first[node + 1]; r++)
        most = m->gap.of[r] > most ? m->gap.of[r] : most;
    return most;
}

/* The nodes that have an expert, as bits. */
static uint64_t *nodes_of(const ek_alias *m, int32_t expert)
{
    return m->has_node + (int64_t)expert * mask_words(m->nodes);
}

static void start_nodes(ek_alias *m, const ek_plan_limits *l)
{
    for (int32_t node = 0; node < m->nodes; node++)
        m->node_gap.of[node] = largest_gap(m, node);
    ek_maxima_find(&m->node_gap, m->nodes);
    memset(m->has_node, 0,
           (size_t)l->experts * (size_t)mask_words(m->nodes) * sizeof(*m->has_node));
    for (int32_t e = 0; e < l->experts; e++) {
        int32_t node = m->node_of[m->rank_of[e]];

        nodes_of(m, e)[node / 64] |= (uint64_t)1 << node % 64;
        m->last_move[e] = -1;
    }
}

/* Of the nodes that have an expert the one with the largest gap: the primary rank's first, then
 * that of the latest move; -1: none has a gap. */
static int32_t find_node_with(const ek_alias *m, int32_t expert)
{
    int64_t largest = ek_maxima_largest(&m->node_gap, m->nodes), most = 0;
    int32_t node = m->node_of[m->rank_of[expert]], best = -1;

    for (int32_t i = m->last_move[expert];; i = m->move_before[i]) {
        best = m->node_gap.of[node] > most ? node : best;
        most = m->node_gap.of[node] > most ? m->node_gap.of[node] : most;
        if (i < 0 || most == largest)
            return best;
        node = m->node_of_move[i];
    }
}

/* Whether a first copy of an expert on a node keeps rows of its tokens inside that take longer to
 * send than the copy; loads of sources are not known here, and taken as even. */
static int keeps_enough_rows(const ek_alias *m, const ek_plan_limits *l, int32_t from, int32_t node)
{
    int64_t rows = m->total[m->largest[from]] / m->nodes;

    rows = m->offer.of[from] < rows ? m->offer.of[from] : rows;
    rows = m->node_gap.of[node] < rows ? m->node_gap.of[node] : rows;
    return (double)rows * l->costs.comm_s_per_row > l->costs.replica_s;
}

/* The receiver of a move: of those that lack most on nodes without the expert and on nodes with it,
 * the one that costs less. */
static int32_t find_receiver(ek_alias *m, const ek_plan_limits *l, int32_t from)
{
    int32_t expert = m->largest[from], r;
    int32_t node = ek_maxima_first_outside(&m->node_gap, m->nodes, nodes_of(m, expert));

    if (node < 0 || !keeps_enough_rows(m, l, from, node))
        node = find_node_with(m, expert);
    if (node < 0)
        return ek_maxima_first(&m->gap, l->ranks);
    for (r = m->node_first[node]; m->gap.of[r] < m->node_gap.of[node];)
        r++;
    return r;
}

/* Adds move n to the list of its expert, instead of an earlier one to the same node. */
static void list_move(ek_alias *m, int32_t n, int32_t node)
{
    int32_t expert = m->moves[n].expert, *at = &m->last_move[expert];
    uint64_t *has = &nodes_of(m, expert)[node / 64], bit = (uint64_t)1 << node % 64;

    if (node == m->node_of[m->rank_of[expert]])
        return;
    if (*has & bit) {
        while (m->node_of_move[*at] != node)
            at = &m->move_before[*at];
        *at = m->move_before[*at];
    }
    *has |= bit;
    m->node_of_move[n] = node;
    m->move_before[n] = m->last_move[expert];
    m->last_move[expert] = n;
}

/* After move n. */
static void follow_move(ek_alias *m, const ek_plan_limits *l, int32_t n, int32_t from)
{
    int32_t node = m->node_of[from], to = m->node_of[m->moves[n].slot / l->slots];

    list_move(m, n, to);
    ek_maxima_change(&m->node_gap, m->nodes, node, largest_gap(m, node));
    ek_maxima_change(&m->node_gap, m->nodes, to, largest_gap(m, to));
}

/* Makes the moves for one target, until no rank is above it or no further move is possible;
 * by_nodes: to receivers by the links of nodes.  Returns their number. */
static int32_t fill_to_target(ek_alias *m, const ek_plan_limits *l, int64_t target, int32_t budget,
                              int by_nodes)
{
    int32_t n = 0, from, to;

    start_target(m, l, target, budget);
    if (by_nodes)
        start_nodes(m, l);
    while ((from = ek_maxima_first(&m->offer, l->ranks)) >= 0 &&
           (to = by_nodes ? find_receiver(m, l, from) : ek_maxima_first(&m->gap, l->ranks)) >= 0) {
        int64_t excess = m->load[from] - m->capacity[from];
        int64_t amount = m->offer.of[from] < m->gap.of[to] ? m->offer.of[from] : m->gap.of[to];

        /* Give more than the excess only if the giving rank has a spare slot to get the deficit
         * back, and if the receiving rank has just one, which would otherwise be half used. */
        if (amount > excess && (m->slots_left[from] == 0 || m->slots_left[to] > 1))
            amount = excess;
        add_move(m, l, n++, from, to, amount);
        find_largest(m, from, budget);
        update_rank(m, l, from);
        update_rank(m, l, to);
        if (by_nodes)
            follow_move(m, l, n - 1, from);
    }
    return n;
}

/* Drops moves without which no weighted load exceeds `most`; returns the number left. */
static int32_t drop_idle(ek_alias *m, const ek_plan_limits *l, int32_t n, int64_t most)
{
    int32_t kept = 0;

    ek_row_costs_capacities(l, most, m->capacity);
    for (int32_t i = 0; i < n; i++) {
        ek_alias_move *v = &m->moves[i];
        int32_t from = m->rank_of[v->expert], to = v->slot / l->slots;

        if (m->load[from] + v->amount <= m->capacity[from]) {
            m->load[from] += v->amount;
            m->load[to] -= v->amount;
        } else {
            m->moves[kept++] = *v;
        }
    }
    return kept;
}

/* --- the search ------------------------------------------------------------------------------- */

/* Makes the moves for a target and keeps them if they lower the largest weighted load of the best
 * so far, or equal it with fewer replicas.  Returns the largest weighted load. */
static int64_t try_target(ek_alias *m, const ek_plan_limits *l, int64_t target, int64_t slack,
                          int32_t budget)
{
    int32_t n = fill_to_target(m, l, target, budget, 0);
    int64_t most = ek_row_costs_largest(l, m->load);
    int64_t bound = most > target + slack ? most : target + slack;

    n = drop_idle(m, l, n, bound);
    most = ek_row_costs_largest(l, m->load);
    if (most < m->least || (most == m->least && n < m->n_best)) {
        m->least = most;
        m->n_best = n;
        memcpy(m->best, m->moves, (size_t)n * sizeof(*m->best));
    }
    return most;
}

static int32_t busiest_link(ek_alias *m, const ek_plan_limits *l, const ek_alias_move *moves,
                            int32_t n)
{
    int32_t most = 0;

    memset(m->given, 0, (size_t)l->experts);
    memset(m->gives, 0, (size_t)l->ranks * sizeof(*m->gives));
    memset(m->slots_left, 0,
           (size_t)l->ranks * sizeof(*m->slots_left)); /* here: replicas received */
    for (int32_t i = 0; i < n; i++) {
        int32_t e = moves[i].expert, from = m->rank_of[e], to = moves[i].slot / l->slots;

        m->slots_left[to]++;
        m->gives[from] += !m->given[e];
        m->given[e] = 1;
        most = m->slots_left[to] > most ? m->slots_left[to] : most;
        most = m->gives[from] > most ? m->gives[from] : most;
    }
    return most;
}

/* Replaces the plan found by one that heeds the links of nodes, if it is as good otherwise. */
static void heed_nodes(ek_alias *m, const ek_plan_limits *l, int32_t budget)
{
    int32_t n, links;

    if (m->nodes == 1 || m->nodes == l->ranks || m->n_best == 0)
        return;
    links = busiest_link(m, l, m->best, m->n_best);
    n = drop_idle(m, l, fill_to_target(m, l, m->least, budget, 1), m->least);
    if (n > m->n_best || ek_row_costs_largest(l, m->load) > m->least ||
        busiest_link(m, l, m->moves, n) > links)
        return;
    m->n_best = n;
    memcpy(m->best, m->moves, (size_t)n * sizeof(*m->best));
}

int ek_alias_search(ek_alias *m, const ek_plan_limits *l, int64_t level, int32_t budget,
                    int64_t limit)
{
    int64_t low = level, slack = (int64_t)(close_enough * (double)level), high, most;
    int64_t first = limit < INT64_MAX && limit - slack > level ? limit - slack : level;

    m->least = INT64_MAX;
    m->n_best = 0;
    most = try_target(m, l, first, slack, budget);
    if (most > limit)
        return 0;
    if (first > low)
        most = try_target(m, l, low, slack, budget);
    high = m->least;
    for (int i = 0; i < EK_ALIAS_SEARCH && most > low + slack && high - low > slack; i++) {
        int64_t target = low + (high - low) / 2, reached = try_target(m, l, target, slack, budget);

        if (reached > target + slack)
            low = target;
        else
            high = target;
        high = reached < high ? reached : high;
    }
    heed_nodes(m, l, budget);
    return 1;
}

int32_t ek_alias_busiest_link(ek_alias *m, const ek_plan_limits *l)
{
    return busiest_link(m, l, m->best, m->n_best);
}

void ek_alias_apply(const ek_alias_move *moves, int32_t n, ek_plan *p)
{
    for (int32_t i = 0; i < n; i++) {
        const ek_alias_move *v = &moves[i];

        p->placement.expert_of[v->slot] = v->expert;
        p->quota[v->slot] = v->amount;
        p->quota[p->placement.primary[v->expert]] -= v->amount;
    }
}
