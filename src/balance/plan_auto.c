/* auto: primary copies by history, replicas by the counts of the micro-batch, each where it pays.
 *
 * Source       Ours, of known parts: the construction of `exact` (alias_balance.h: Walker's alias
 *              method on ranks; UltraEP, arXiv 2606.04101), SmartMoE's threshold for moves (ATC
 *              2023), and a replica's cost against what it saves, as in FasterMoE (PPoPP 2022) and
 *              Pro-Prophet (arXiv 2411.10003).
 *
 * Model        B the busiest rank's assignments, weighted where ranks differ (row_costs.h), D the
 * busiest source's, n the replicas on the busiest link (those a rank receives, or experts it sends,
 * each counted once): T = B compute_s_per_row + max(B, D) comm_s_per_row + n replica_s D is there
 * because balancing does not shorten what the busiest source sends.  If compute_s_per_row and
 * comm_s_per_row are 0, only balance counts, as in `exact`.
 *
 * Transient    Among the plans with at most n replicas per link, n = 0, 1, 2, ... up to what
 *              `exact` uses, the one with the least T; n stops where n replica_s exceeds what the
 *              mean load could save.  So no replica costs more time than it saves, T is never worse
 *              than without replicas, and with replica_s = 0 the plan is that of `exact`.  T
 *              assumes that a source sends all its rows; where locality replicas shorten that by
 *              ek_locality_time, they are added or used instead (locality_replicas.h), and so are
 *              further ones with which products stay as even (even_replicas.h).
 *
 * Persistent   A permutation of the primary copies; each rank keeps its number of them, and spare
 *              slots stay empty for transient replicas.  Packing: experts, heaviest first, stay as
 *              long as the other experts on their rank do not exceed a level; the rest go to the
 *              least loaded rank with a vacant slot.  "Other" excludes the rank's heaviest expert,
 *              because transient replicas take load from that one: a rank needs one heavy donor and
 *              the rest level.  One packing includes it, for ranks without spare slots.  Then moved
 *              experts return to their rank where they can swap with another moved expert of about
 *              the same load.  Of the packings for several levels and the present placement, the
 *              one with the least
 *                  horizon T + pays_factor (experts that the busiest link moves)
 *                              migrate_s_per_expert
 *              T of a micro-batch of the history, with the transient replicas it would get.  Future
 *              loads differ from the history, so a move must be expected to pay for itself
 *              pays_factor times.  T overstates what replicas cost: it counts the rows that a
 *              replica keeps on its own rank as sent, and all replica traffic as exposed.  So where
 *              the gain by T is below doubt_factor times the required saving, both placements get
 *              transient plans for the history, and ek_locality_time decides.
 *
 * Shortcuts    If one replica per link gets as low as the mean load would with two, larger n are
 *              skipped; n = 1 is skipped if some rank without its heaviest expert is too loaded.
 *              Each candidate is searched only as far as it can still win.  Packings are tried in
 *              the order in which they are most often best, until none can save more than 1 / 512
 *              of the time.
 *
 * Complexity   Transient: O(ranks experts) to add up the counts, plus the search of `exact` for
 *              each n that may pay.  Persistent: the same for each packing, O(experts ranks) to
 *              make it, plus the square of the moved experts per rank; in doubt, two transient
 *              plans more.  The close comparison looks at the best packing by T only. */
#include "balance/count_sums.h"
#include "balance/even_replicas.h"
#include "balance/plan_place.h"
#include "balance/replica_search.h"
#include "cost/cost.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* `level`: what the other experts of a rank may add up to for an expert to stay, as a fraction of
 * what the rank has at the level of all; `with_heaviest`: whether that includes the rank's heaviest
 * expert. */
typedef struct {
    double level;
    int with_heaviest;
} packing;

static const packing packings[] = {{0.8, 0}, {0.8, 1}, {1.1, 0}, {1.5, 0}};
enum { PACKINGS = sizeof(packings) / sizeof(packings[0]) };

/* No further packing is tried once none can save more than this fraction of the time. */
static const double least_gain = 1.0 / 512;

/* A move must be expected to save this many times its cost. */
static const double pays_factor = 2;

/* Gains below this many times the required saving are compared closely. */
static const double doubt_factor = 4;

/* Loads whose difference is within this fraction of the level of all are interchangeable. */
static const double swap_tolerance = 1.0 / 32;

typedef struct {
    ek_replica_search search;
    ek_locality locality;
    ek_even_replicas even;
    /* plan_persistent only */
    int32_t *order, *sorting; /* [experts] heaviest first; buffer of the sort */
    int32_t *primary;         /* [experts] present primary rank */
    int32_t *n_primaries;     /* [ranks] number of primary copies */
    int32_t *rank_of;         /* [experts] rank in the current packing */
    int32_t *away;            /* [experts] experts off their present rank, lightest first */
    int32_t *first, *after;   /* [ranks], [experts] linked lists of them by rank: indices into
                                 `away`, ascending; -1 ends */
    double level;             /* weighted load of all ranks if assignments could be divided */
    int64_t *sum;             /* [ranks] load in the current packing */
    int64_t *open;     /* [ranks] the same, weighted, where a slot is vacant, else INT64_MAX */
    int64_t *heaviest; /* [ranks] load of the rank's heaviest expert */
    int32_t *vacant, *moved; /* [ranks] vacant primary slots; experts that move in */
    ek_placement next, best;
    ek_plan served;   /* transient plan of the close comparison */
    double to_save_s; /* seconds that the moves of `best` must save within the horizon */
    double stay_s;    /* T of a micro-batch with the present placement; exact only where horizon *
                         stay_s is below known_s, beyond which the gain is not in doubt, otherwise
                         an upper bound */
    double known_s;
} memory;

static void *reserve_auto(ek_arena *a, const ek_plan_limits *l)
{
    memory *m = ek_arena_alloc(a, 1, sizeof(*m)), measured;
    memory *at = m != NULL ? m : &measured;

    ek_replica_search_reserve(&at->search, a, l);
    ek_locality_reserve(&at->locality, a, l);
    ek_even_replicas_reserve(&at->even, a, l);
    at->order = ek_arena_alloc(a, l->experts, sizeof(*at->order));
    at->sorting = ek_arena_alloc(a, l->experts, sizeof(*at->sorting));
    at->primary = ek_arena_alloc(a, l->experts, sizeof(*at->primary));
    at->n_primaries = ek_arena_alloc(a, l->ranks, sizeof(*at->n_primaries));
    at->rank_of = ek_arena_alloc(a, l->experts, sizeof(*at->rank_of));
    at->away = ek_arena_alloc(a, l->experts, sizeof(*at->away));
    at->first = ek_arena_alloc(a, l->ranks, sizeof(*at->first));
    at->after = ek_arena_alloc(a, l->experts, sizeof(*at->after));
    at->sum = ek_arena_alloc(a, l->ranks, sizeof(*at->sum));
    at->open = ek_arena_alloc(a, l->ranks, sizeof(*at->open));
    at->heaviest = ek_arena_alloc(a, l->ranks, sizeof(*at->heaviest));
    at->vacant = ek_arena_alloc(a, l->ranks, sizeof(*at->vacant));
    at->moved = ek_arena_alloc(a, l->ranks, sizeof(*at->moved));
    ek_placement_reserve(&at->next, a, l->experts, l->ranks, l->slots);
    ek_placement_reserve(&at->best, a, l->experts, l->ranks, l->slots);
    ek_plan_reserve(&at->served, a, l);
    return m;
}

/* --- transient -------------------------------------------------------------------------------- */

/* Sums counts, finds favourites, sets the model. */
static void set_model(memory *m, const ek_plan_limits *l, const int64_t *counts, int64_t of)
{
    int64_t busiest = 0;

    ek_count_sums(l, counts, ek_locality_worth(l), m->search.alias.total, m->locality.tokens,
                  m->locality.favourite);
    for (int32_t r = 0; r < l->ranks; r++)
        busiest = m->locality.tokens[r] > busiest ? m->locality.tokens[r] : busiest;
    ek_replica_search_set(&m->search, l, busiest, of);
}

/* Fills in replicas and quotas; *most: the largest weighted load without replicas. */
static ek_replica_outcome make_transient(memory *m, const ek_plan_limits *l, ek_plan *p,
                                         int64_t *most)
{
    ek_replica_outcome now;

    *most = ek_alias_start(&m->search.alias, l, &p->placement);
    ek_plan_primaries_only(l, m->search.alias.total, p);
    now = ek_replica_search_run(&m->search, l, *most, INFINITY);
    ek_alias_apply(m->search.kept, now.n, p);
    return now;
}

static void explain_transient(const memory *m, const ek_plan_limits *l, int64_t before,
                              const ek_replica_outcome *now, ek_plan *p)
{
    char a[EK_COST_QUANTITY], b[EK_COST_QUANTITY];
    int64_t level = ek_replica_search_level(&m->search, l);

    if (now->n == 0)
        snprintf(
            p->reason, sizeof(p->reason),
            "no replicas: the busiest rank's %lld assignments%s take %s; the mean load of %lld "
            "with one replica per link would take %s",
            ek_row_costs_shown(l, before), ek_row_costs_note(l),
            ek_cost_quantity(a, p->before_s, "s"), ek_row_costs_shown(l, level),
            ek_cost_quantity(b, ek_replica_search_time(&m->search, level, 1), "s"));
    else
        snprintf(p->reason, sizeof(p->reason),
                 "%d replica%s, at most %d per link: busiest rank %lld -> %lld assignments%s "
                 "(%.4f of the mean), %s -> %s",
                 (int)now->n, now->n == 1 ? "" : "s", (int)now->links,
                 ek_row_costs_shown(l, before), ek_row_costs_shown(l, now->most),
                 ek_row_costs_note(l), level > 0 ? (double)now->most / (double)level : 1.0,
                 ek_cost_quantity(a, p->before_s, "s"), ek_cost_quantity(b, p->after_s, "s"));
}

static void explain_further(const char *what, double s, ek_plan *p)
{
    char a[EK_COST_QUANTITY];
    size_t n = strlen(p->reason);

    snprintf(p->reason + n, sizeof(p->reason) - n, "; with %s %s", what,
             ek_cost_quantity(a, s, "s"));
}

/* Replicas for rows on links, beside those for loads; *s: the time of the plan. */
static void shorten_links(memory *m, const ek_plan_limits *l, const int64_t *counts, ek_plan *p,
                          double *s)
{
    if (ek_locality_improve(&m->locality, l, counts, m->search.alias.total, p, s) && p->explain)
        explain_further("locality replicas", *s, p);
    if (ek_even_replicas_improve(&m->even, &m->locality, l, counts, p, s) && p->explain)
        explain_further("further replicas", *s, p);
}

static ek_status plan_transient(void *mem, const ek_plan_limits *l, const int64_t *counts,
                                ek_plan *p)
{
    memory *m = mem;
    int64_t before;
    ek_replica_outcome now;

    set_model(m, l, counts, 1);
    now = make_transient(m, l, p, &before);
    p->before_s = ek_replica_search_time(&m->search, before, 0);
    p->after_s = now.s;
    if (p->explain)
        explain_transient(m, l, before, &now, p);
    shorten_links(m, l, counts, p, &p->after_s);
    return EK_OK;
}

/* --- persistent: packings --------------------------------------------------------------------- */

/* Fills m->order: stable radix sort by bytes, lowest first. */
static void sort_by_load(memory *m, const ek_plan_limits *l)
{
    int64_t all = 0;

    for (int32_t e = 0; e < l->experts; e++) {
        m->order[e] = e;
        all |= m->search.alias.total[e];
    }
    for (int shift = 0; shift < 63 && all >> shift > 0; shift += 8) {
        int32_t end[257] = {0}, *sorted = m->sorting;

        for (int32_t e = 0; e < l->experts; e++)
            end[255 - (m->search.alias.total[e] >> shift & 255) + 1]++;
        for (int d = 0; d < 255; d++)
            end[d + 1] += end[d];
        for (int32_t i = 0; i < l->experts; i++)
            sorted[end[255 - (m->search.alias.total[m->order[i]] >> shift & 255)]++] = m->order[i];
        m->sorting = m->order;
        m->order = sorted;
    }
}

/* Prepares for packing: order of experts, present ranks, the level that all could have.
 * Returns the largest weighted load with the present placement. */
static int64_t prepare_packing(memory *m, const ek_plan_limits *l, const ek_placement *p)
{
    sort_by_load(m, l);
    m->level = 0;
    memset(m->n_primaries, 0, (size_t)l->ranks * sizeof(*m->n_primaries));
    memset(m->sum, 0, (size_t)l->ranks * sizeof(*m->sum));
    for (int32_t e = 0; e < l->experts; e++) {
        int32_t primary = m->primary[e] = p->primary[e] / l->slots;

        m->n_primaries[primary]++;
        m->sum[primary] += m->search.alias.total[e];
        m->level += (double)m->search.alias.total[e] / l->ranks;
    }
    m->level *= ek_row_costs_mean(l, l->ranks);
    return ek_row_costs_largest(l, m->sum);
}

/* Whether an expert may stay on its rank. */
static int may_stay(const memory *m, int32_t primary, int64_t load, double level, int with_heaviest)
{
    int64_t others = m->sum[primary] - (with_heaviest ? 0 : m->heaviest[primary]);

    return m->vacant[primary] > 0 && (m->sum[primary] == 0 || (double)(others + load) <= level);
}

static int32_t least_loaded(const memory *m, int32_t ranks)
{
    int64_t least = INT64_MAX;
    int32_t best = -1;

#pragma GCC unroll 4
    for (int32_t r = 0; r < ranks; r++) {
        best = m->open[r] < least ? r : best;
        least = m->open[r] < least ? m->open[r] : least;
    }
    return best;
}

/* Fills m->rank_of. */
static void pack_experts(memory *m, const ek_plan_limits *l, const packing *with)
{
    memcpy(m->vacant, m->n_primaries, (size_t)l->ranks * sizeof(*m->vacant));
    memset(m->sum, 0, (size_t)l->ranks * sizeof(*m->sum));
    memset(m->heaviest, 0, (size_t)l->ranks * sizeof(*m->heaviest));
    for (int32_t r = 0; r < l->ranks; r++)
        m->open[r] = m->vacant[r] > 0 ? 0 : INT64_MAX;
    for (int32_t i = 0; i < l->experts; i++) {
        int32_t e = m->order[i], to = m->primary[e];
        int64_t load = m->search.alias.total[e];

        if (!may_stay(m, to, load, with->level * (m->level / (double)ek_row_cost(l, to)),
                      with->with_heaviest))
            to = least_loaded(m, l->ranks);
        m->rank_of[e] = to;
        m->heaviest[to] = m->sum[to] > 0 ? m->heaviest[to] : load;
        m->sum[to] += load;
        m->open[to] = --m->vacant[to] > 0 ? m->sum[to] * ek_row_cost(l, to) : INT64_MAX;
    }
}

/* Whether two experts may swap ranks: neither rank then exceeds the larger of both present weighted
 * loads and the level of all. */
static int may_swap_ranks(const memory *m, const ek_plan_limits *l, int32_t a, int32_t b)
{
    int64_t more = m->search.alias.total[a] - m->search.alias.total[b];
    int64_t cost_a = ek_row_cost(l, m->rank_of[a]), cost_b = ek_row_cost(l, m->rank_of[b]);
    int64_t of_a = m->sum[m->rank_of[a]], of_b = m->sum[m->rank_of[b]];
    double most = (double)(of_a * cost_a > of_b * cost_b ? of_a * cost_a : of_b * cost_b);

    most = most > m->level ? most : m->level;
    return fabs((double)more) * (double)(cost_a > cost_b ? cost_a : cost_b) <=
               swap_tolerance * m->level &&
           (double)((of_a - more) * cost_a) <= most && (double)((of_b + more) * cost_b) <= most;
}

static void swap_ranks(memory *m, int32_t a, int32_t b)
{
    int64_t more = m->search.alias.total[a] - m->search.alias.total[b];
    int32_t rank = m->rank_of[a];

    m->sum[rank] -= more;
    m->sum[m->rank_of[b]] += more;
    m->rank_of[a] = m->rank_of[b];
    m->rank_of[b] = rank;
}

/* Adds index i of `away` to the list of the rank that holds its expert. */
static void list_away(memory *m, int32_t i)
{
    int32_t *at = &m->first[m->rank_of[m->away[i]]];

    while (*at >= 0 && *at < i)
        at = &m->after[*at];
    m->after[i] = *at;
    *at = i;
}

/* Removes index i from a rank's list. */
static void unlist_away(memory *m, int32_t i, int32_t rank)
{
    int32_t *at = &m->first[rank];

    while (*at != i)
        at = &m->after[*at];
    *at = m->after[i];
}

/* Lists the experts off their present rank, lightest first: m->away and the lists of ranks.
 * Returns their number. */
static int32_t find_away(memory *m, const ek_plan_limits *l)
{
    int32_t n = 0;

    for (int32_t i = l->experts; i-- > 0;) {
        m->away[n] = m->order[i];
        n += m->rank_of[m->order[i]] != m->primary[m->order[i]];
    }
    for (int32_t r = 0; r < l->ranks; r++)
        m->first[r] = -1;
    for (int32_t i = n; i-- > 0;) /* backwards, so that each goes to the head of its list */
        list_away(m, i);
    return n;
}

/* Returns experts to their present rank where they can swap with another moved one; lightest first,
 * because those were placed last, wherever a slot was vacant. */
static void return_experts(memory *m, const ek_plan_limits *l)
{
    int32_t n = find_away(m, l);

    for (int32_t i = 0; i < n; i++) {
        int32_t e = m->away[i], at = m->rank_of[e], primary = m->primary[e], k = -1;

        if (at != primary)
            for (k = m->first[primary]; k >= 0 && !may_swap_ranks(m, l, e, m->away[k]);)
                k = m->after[k];
        if (k < 0)
            continue;
        swap_ranks(m, e, m->away[k]);
        unlist_away(m, i, at);
        unlist_away(m, k, primary);
        if (m->primary[m->away[k]] != at)
            list_away(m, k);
    }
}

/* Experts that the busiest link moves. */
static int32_t busiest_move(memory *m, const ek_plan_limits *l)
{
    int32_t most = 0;

    memset(m->moved, 0, (size_t)l->ranks * sizeof(*m->moved));
    for (int32_t e = 0; e < l->experts; e++) /* each rank keeps its number */
        m->moved[m->rank_of[e]] += m->rank_of[e] != m->primary[e];
    for (int32_t r = 0; r < l->ranks; r++)
        most = m->moved[r] > most ? m->moved[r] : most;
    return most;
}

/* The packing as a placement, m->next: a moved expert takes a slot that another one left, lowest
 * slot first. */
static void build_placement(memory *m, const ek_plan_limits *l, const ek_placement *p)
{
    enum { LEFT = -2 };
    ek_placement *n = &m->next;

    ek_placement_copy(n, p);
    for (int32_t e = 0; e < l->experts; e++)
        n->expert_of[p->primary[e]] = m->primary[e] != m->rank_of[e] ? LEFT : e;
    for (int32_t e = 0; e < l->experts; e++)
        if (m->primary[e] != m->rank_of[e]) {
            n->primary[e] = ek_plan_slot(n, m->rank_of[e], LEFT);
            n->expert_of[n->primary[e]] = e;
        }
}

/* --- persistent: choice ----------------------------------------------------------------------- */

/* Predicted time of a micro-batch of the history with this placement; if horizon times that is not
 * below `below`, only an upper bound. */
static double expected_time(memory *m, const ek_plan_limits *l, ek_placement *p, double below)
{
    return ek_replica_search_run(&m->search, l, ek_alias_start(&m->search.alias, l, p),
                                 l->horizon > 0 ? below / (double)l->horizon : INFINITY)
        .s;
}

static int32_t count_moved(const memory *m, const ek_plan_limits *l)
{
    int32_t n = 0;

    for (int32_t e = 0; e < l->experts; e++)
        n += m->best.primary[e] / l->slots != m->primary[e];
    return n;
}

static void explain_persistent(const ek_plan_limits *l, int32_t moved, ek_plan *p)
{
    char a[EK_COST_QUANTITY], b[EK_COST_QUANTITY];

    if (moved == 0)
        snprintf(p->reason, sizeof(p->reason),
                 "no move, %s per micro-batch: none of %d packings saves %g times the cost of its "
                 "moves in %lld micro-batches",
                 ek_cost_quantity(a, p->before_s, "s"), (int)PACKINGS, pays_factor,
                 (long long)l->horizon);
    else
        snprintf(p->reason, sizeof(p->reason),
                 "%d of %d experts move: %s -> %s per micro-batch, for %lld micro-batches",
                 (int)moved, (int)l->experts, ek_cost_quantity(a, p->before_s, "s"),
                 ek_cost_quantity(b, p->after_s, "s"), (long long)l->horizon);
}

/* Makes a packing and keeps it as m->best if it takes less than *least, moves included. */
static void consider_packing(memory *m, const ek_plan_limits *l, const packing *with, double *least,
                             ek_plan *p)
{
    double moves_s, s;
    int32_t links;

    pack_experts(m, l, with);
    return_experts(m, l);
    links = busiest_move(m, l);
    moves_s = pays_factor * links * l->costs.migrate_s_per_expert;
    if (links == 0 || !(moves_s < *least)) /* the present placement is considered separately */
        return;
    build_placement(m, l, &p->placement);
    s = expected_time(m, l, &m->next, *least - moves_s);
    if (s * (double)l->horizon + moves_s < *least) {
        *least = s * (double)l->horizon + moves_s;
        p->after_s = s;
        m->to_save_s = moves_s;
        ek_placement_copy(&m->best, &m->next);
    }
}

/* Considers the present placement, searched up to the limit of doubt.  A full search is for the
 * reason text only: all ranks must decide alike, and not all explain. */
static void consider_staying(memory *m, const ek_plan_limits *l, double *least, ek_plan *p)
{
    m->known_s = *least + doubt_factor * m->to_save_s;
    m->stay_s = expected_time(m, l, &p->placement, m->known_s);
    p->before_s = m->stay_s;
    if (m->stay_s * (double)l->horizon <= *least) {
        *least = m->stay_s * (double)l->horizon;
        p->after_s = m->stay_s;
        m->to_save_s = 0;
        ek_placement_copy(&m->best, &p->placement);
    } else if (p->explain) {
        p->before_s = expected_time(m, l, &p->placement, INFINITY);
    }
}

/* Time of a micro-batch of the history with these primary copies and transient replicas, by
 * ek_locality_time. */
static double close_time(memory *m, const ek_plan_limits *l, const int64_t *counts,
                         const ek_placement *primaries)
{
    ek_plan_limits of_one = *l;
    ek_plan *p = &m->served;
    int64_t most;
    ek_replica_outcome now;

    of_one.costs.compute_s_per_row /= m->search.of;
    of_one.costs.comm_s_per_row /= m->search.of;
    ek_placement_copy(&p->placement, primaries);
    now = make_transient(m, l, p, &most);
    shorten_links(m, &of_one, counts, p, &now.s);
    if (!ek_locality_uses(l))
        return now.s; /* ek_locality_improve did nothing */
    if (of_one.costs.exposed_s > 0)
        of_one.costs.replica_s = of_one.costs.exposed_s;
    return ek_locality_time(&m->locality, &of_one, counts, p);
}

/* Whether to keep the present placement after the close comparison, made if in doubt. */
static int keeps_present(memory *m, const ek_plan_limits *l, const int64_t *counts, ek_plan *p)
{
    char a[EK_COST_QUANTITY], b[EK_COST_QUANTITY], c[EK_COST_QUANTITY];
    double horizon = (double)l->horizon, stay, move;
    double below = p->after_s * horizon + doubt_factor * m->to_save_s;

    if (below > m->known_s) /* a packing tried later has costlier moves */
        m->stay_s = expected_time(m, l, &p->placement, below);
    if (!((m->stay_s - p->after_s) * horizon < doubt_factor * m->to_save_s))
        return 0;
    stay = close_time(m, l, counts, &p->placement);
    move = close_time(m, l, counts, &m->best);
    if ((stay - move) * horizon > m->to_save_s)
        return 0;
    if (p->explain)
        snprintf(p->reason, sizeof(p->reason),
                 "no move, %s per micro-batch: moving %d of %d experts would save %s in each of "
                 "%lld micro-batches and cost %s",
                 ek_cost_quantity(a, stay, "s"), (int)count_moved(m, l), (int)l->experts,
                 ek_cost_quantity(b, stay - move, "s"), (long long)l->horizon,
                 ek_cost_quantity(c, m->to_save_s / pays_factor, "s"));
    p->after_s = p->before_s;
    ek_placement_copy(&m->best, &p->placement);
    return 1;
}

static ek_status plan_persistent(void *mem, const ek_plan_limits *l, const int64_t *counts,
                                 ek_plan *p)
{
    memory *m = mem;
    double least, enough;

    set_model(m, l, counts, p->of);
    m->to_save_s = 0;
    least = (double)l->horizon *
            ek_replica_search_time(&m->search, prepare_packing(m, l, &p->placement), 0);
    enough = (double)l->horizon *
             ek_replica_search_time(&m->search, ek_replica_search_level(&m->search, l), 0) *
             (1 + least_gain);
    consider_packing(m, l, &packings[0], &least, p);
    consider_staying(m, l, &least, p);
    for (int i = 1; i < PACKINGS && least > enough; i++)
        consider_packing(m, l, &packings[i], &least, p);
    if (!keeps_present(m, l, counts, p) && p->explain)
        explain_persistent(l, count_moved(m, l), p);
    ek_placement_copy(&p->placement, &m->best);
    ek_plan_primaries_only(l, m->search.alias.total, p);
    return EK_OK;
}

const ek_planner ek_planner_auto = {
    .name = "auto",
    .what = "primary copies by history, replicas by the counts, each where it pays",
    .reserve = reserve_auto,
    .plan_persistent = plan_persistent,
    .plan_transient = plan_transient,
    .may_use_previous_counts = 1};
