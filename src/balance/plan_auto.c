/* auto: homes by history, replicas by this micro-batch's counts, each where it pays.
 *
 * Source       Ours, of known parts: what `exact` searches with (alias_balance.h: Walker's alias
 * method on ranks; UltraEP, arXiv 2606.04101), a threshold for moving homes as SmartMoE has one
 *              (ATC 2023), a replica's time against what it saves as in FasterMoE (PPoPP 2022) and
 *              Pro-Prophet (arXiv 2411.10003).
 *
 * Model        B the busiest rank's assignments, D the busiest source's, n the replicas that the
 *              busiest link carries (a rank gets them; or gives experts, each counted once):
 *                  T = B compute_s_per_row + max(B, D) comm_s_per_row + n replica_s
 *              Balancing does not shorten what the busiest source sends, hence D.  Without
 * compute_s_per_row and comm_s_per_row balance is all that counts, as for `exact`.
 *
 * fast         Of the plans with at most n replicas a link, for each n = 0, 1, 2, ... up to what
 *              `exact` takes, the one with the least T: n is bound to be too many where
 *              n replica_s is more than the mean load could save.  So a replica that takes more
 *              time than it saves is left out, T is never worse than doing nothing, and with
 *              replica_s = 0 the plan is that of `exact`.  T takes it that a source sends all its
 *              tokens; where replicas near their tokens shorten that, by ek_locality_time, they are
 *              added, or made instead (locality_replicas.h).
 *
 * slow         A permutation of homes; a rank keeps as many as it has, spare slots are left for the
 *              fast side.  Experts, heaviest first, stay where they are as long as the others on
 *              their rank do not come above a level; who may not stay goes to the least loaded rank
 *              that has room.  `Others` leaves out the rank's heaviest expert, as that is the one
 *              that the fast side gives of: a rank needs one heavy donor and the rest level, not
 *              all of it.  One packing counts it in, for ranks without spare slots.  Then experts
 *              go back home that can change places with one that is not at home either and has
 *              about their load.  Of the packings for several levels and the present homes, the one
 *              with the least
 *                  lasts * T + pays * (experts that the busiest link moves) migrate_s_per_expert
 *              T for a micro-batch of the history, with what fast makes of it.  Loads to come are
 *              not those of the history, and homes that suit them less save less: so homes move
 *              for a gain that is expected to pay for it twice over.  By T replicas take more than
 *              they do: it has all assignments sent, but what a replica serves of its own rank's
 *              stays there, and all that travels for it waited for.  So where the gain by T is
 *              less than some times what a move has to save, the history is served from both
 *              homes as fast would do it, and ek_locality_time says whether it is enough.
 *
 * Shortcuts    Where one replica a link comes as low as the mean load would with two, no more are
 *              looked for; nor is one, where a rank had too much without its heaviest expert.
 *              A packing, or the present homes, is searched only as far as it may yet have the
 *              least.  Packings come in the order in which they are mostly best, and no more are
 *              made once none could save more than 1 / 512 of the time.
 *
 * Complexity   fast: O(ranks experts) to add up the counts, and that of `exact` to search, times
 *              the replicas a link that may pay.  slow: the same for each packing, and
 *              O(experts ranks) to make it, plus the square of those away on one rank for each;
 *              where it is in doubt, fast twice more.  Looked at closely is the best packing by T
 *              alone. */
#include "balance/alias_balance.h"
#include "balance/locality_replicas.h"
#include "balance/plan_place.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* What others of a rank may come to for an expert to stay, in parts of the mean load; whether the
 * rank's heaviest expert counts. */
typedef struct {
    double level;
    int with_heaviest;
} packing;

static const packing packings[] = {{0.8, 0}, {0.8, 1}, {1.1, 0}, {1.5, 0}};
enum { PACKINGS = sizeof(packings) / sizeof(packings[0]) };

/* No more packings are tried where they could save no more than this part of the time. */
static const double worth = 1.0 / 512;

/* How many times over a move is expected to pay. */
static const double pays = 2;

/* Up to how many times what it has to save a gain is looked at more closely. */
static const double doubt = 4;

/* Loads that differ by no more than this part of the mean are as good as each other. */
static const double about = 1.0 / 32;

/* A way to serve a layer. */
typedef struct {
    double s;      /* predicted, of a micro-batch */
    int64_t most;  /* the busiest rank's load */
    int32_t links; /* replicas that the busiest link carries */
    int32_t n;     /* replicas */
} outcome;

typedef struct {
    ek_plan_costs costs; /* that a search works with */
    int64_t busiest;     /* source's assignments: D */
    double of;           /* micro-batches that counts are the sum of */
    ek_alias alias;
    ek_locality locality;
    ek_alias_move *kept; /* [ranks * slots] of the best outcome */
    /* slow */
    int32_t *order, *sorting; /* [experts] heaviest first, and half sorted */
    int32_t *primary;         /* [experts] the rank where it is at home now */
    int32_t *primaries;       /* [ranks] how many these are */
    int32_t *rank_of;         /* [experts] of the packing at work */
    int32_t *away;            /* [experts] those of it that are not at home, the lightest first */
    int32_t *first, *after;   /* [ranks], [experts] lists of them by rank: numbers in `away`,
                                 ascending; -1 ends */
    int64_t *sum;             /* [ranks] its loads */
    int64_t *open;            /* [ranks] the same where there is room, INT64_MAX elsewhere */
    int64_t *heaviest;        /* [ranks] and those of its heaviest experts */
    int32_t *room, *moved;    /* [ranks] homes that a rank may still get, and those that come */
    ek_placement next, best;
    ek_plan served;   /* of homes that are looked at more closely */
    double to_save_s; /* by the moves of `best`, while homes last */
    double stay_s; /* by T, a micro-batch with the homes that there are; if all that they last for
                      comes to known_s, which leaves no doubt, some time of which it does, too */
    double known_s;
} memory;

static void *reserve(ek_arena *a, const ek_plan_limits *l)
{
    memory *m = ek_arena_alloc(a, 1, sizeof(*m)), measured;
    memory *at = m != NULL ? m : &measured;

    ek_alias_reserve(&at->alias, a, l);
    ek_locality_reserve(&at->locality, a, l);
    at->kept = ek_arena_alloc(a, (int64_t)l->ranks * l->slots, sizeof(*at->kept));
    at->order = ek_arena_alloc(a, l->experts, sizeof(*at->order));
    at->sorting = ek_arena_alloc(a, l->experts, sizeof(*at->sorting));
    at->primary = ek_arena_alloc(a, l->experts, sizeof(*at->primary));
    at->primaries = ek_arena_alloc(a, l->ranks, sizeof(*at->primaries));
    at->rank_of = ek_arena_alloc(a, l->experts, sizeof(*at->rank_of));
    at->away = ek_arena_alloc(a, l->experts, sizeof(*at->away));
    at->first = ek_arena_alloc(a, l->ranks, sizeof(*at->first));
    at->after = ek_arena_alloc(a, l->experts, sizeof(*at->after));
    at->sum = ek_arena_alloc(a, l->ranks, sizeof(*at->sum));
    at->open = ek_arena_alloc(a, l->ranks, sizeof(*at->open));
    at->heaviest = ek_arena_alloc(a, l->ranks, sizeof(*at->heaviest));
    at->room = ek_arena_alloc(a, l->ranks, sizeof(*at->room));
    at->moved = ek_arena_alloc(a, l->ranks, sizeof(*at->moved));
    ek_placement_reserve(&at->next, a, l->experts, l->ranks, l->slots);
    ek_placement_reserve(&at->best, a, l->experts, l->ranks, l->slots);
    ek_plan_reserve(&at->served, a, l);
    return m;
}

/* --- what things take ------------------------------------------------------------------------- */

/* The costs, and what there is to serve: totals of experts and sources, m->busiest. */
static void set_model(memory *m, const ek_plan_limits *l, const int64_t *counts, int64_t of)
{
    int64_t *total = m->alias.total;

    m->costs = l->costs;
    if (!(m->costs.compute_s_per_row + m->costs.comm_s_per_row > 0)) {
        m->costs.compute_s_per_row = 1;
        m->costs.replica_s = 0;
    }
    m->of = of > 0 ? (double)of : 1;
    m->busiest = 0;
    memset(total, 0, (size_t)l->experts * sizeof(*total));
    for (int32_t r = 0; r < l->ranks; r++, counts += l->experts) {
        int64_t sum = 0;

        for (int32_t e = 0; e < l->experts; e++) {
            sum += counts[e];
            total[e] += counts[e];
        }
        m->locality.tokens[r] = sum;
        m->busiest = sum > m->busiest ? sum : m->busiest;
    }
}

static double time_of(const memory *m, int64_t most, int32_t links)
{
    int64_t sent = most > m->busiest ? most : m->busiest;

    return ((double)most * m->costs.compute_s_per_row + (double)sent * m->costs.comm_s_per_row) /
               m->of +
           (links > 0 ? links * m->costs.replica_s : 0);
}

/* The largest load of a rank for which the time is below `s` with so many replicas a link; -1. */
static int64_t load_for(const memory *m, double s, int32_t links)
{
    double left = (s - links * m->costs.replica_s) * m->of;
    double load = left / (m->costs.compute_s_per_row + m->costs.comm_s_per_row);

    if (load < (double)m->busiest) { /* which takes what it takes to send */
        left -= (double)m->busiest * m->costs.comm_s_per_row;
        load = m->costs.compute_s_per_row > 0 ? left / m->costs.compute_s_per_row
               : left > 0                     ? (double)m->busiest
                                              : -1;
    }
    return load < 0 ? -1 : load < 0x1p62 ? (int64_t)load : (int64_t)1 << 62;
}

/* --- fast ------------------------------------------------------------------------------------- */

static int64_t mean_of(const memory *m, const ek_plan_limits *l)
{
    int64_t sum = 0;

    for (int32_t e = 0; e < l->experts; e++)
        sum += m->alias.total[e];
    return sum / l->ranks + (sum % l->ranks > 0);
}

/* Looks for moves with so many replicas a link, from a load of `floor` upwards, and takes them if
 * they are better.  Whether a rank's load stays at or below `limit`. */
static int try_links(memory *m, const ek_plan_limits *l, int64_t floor, int32_t links,
                     int64_t limit, outcome *best)
{
    int found = ek_alias_search(&m->alias, l, floor, links, limit);
    outcome now = {.most = m->alias.least, .n = m->alias.n_best};

    now.links = ek_alias_busiest_link(&m->alias, l);
    now.s = time_of(m, now.most, now.links);
    if (now.s < best->s) {
        *best = now;
        memcpy(m->kept, m->alias.best, (size_t)now.n * sizeof(*m->kept));
    }
    return found;
}

/* The least time for the homes that fill starts from, `most` with them alone: m->kept.  Where it is
 * not below `below`, the least that came up until that was known. */
static outcome search(memory *m, const ek_plan_limits *l, int64_t most, double below)
{
    outcome best = {.s = time_of(m, most, 0), .most = most};
    int64_t floor = mean_of(m, l), limit = INT64_MAX;
    double two = time_of(m, floor, 2), wanted = fmin(best.s, below);
    int one = time_of(m, ek_alias_bound_of_one(&m->alias, l), 1) < below; /* may be enough */
    int32_t links;

    if (!(time_of(m, floor, 1) < wanted))
        return best;
    /* Where one replica a link comes as low as the mean with two, more cannot be better. */
    if (m->costs.replica_s > 0 &&
        ((one && try_links(m, l, floor, 1, load_for(m, fmin(two, wanted), 1), &best)) ||
         two >= wanted))
        return best;
    if (below < best.s)
        limit = load_for(m, below, 1);
    if (!try_links(m, l, floor, INT32_MAX, limit, &best))
        return best;
    links = ek_alias_busiest_link(&m->alias, l);
    floor = m->alias.least; /* fewer replicas are not expected to come below */
    for (int32_t n = one ? 1 : 2; n < links && time_of(m, floor, n) < fmin(best.s, below); n++)
        (void)try_links(m, l, floor, n, load_for(m, fmin(best.s, below), n), &best);
    return best;
}

/* Replicas and quotas for a plan's homes, with which the busiest rank has `most`. */
static outcome serve(memory *m, const ek_plan_limits *l, ek_plan *p, int64_t *most)
{
    outcome now;

    *most = ek_alias_start(&m->alias, l, &p->placement);
    ek_plan_primaries_only(l, m->alias.total, p);
    now = search(m, l, *most, INFINITY);
    ek_alias_apply(m->kept, now.n, p);
    return now;
}

static void explain_transient(const memory *m, int64_t before, int64_t mean, const outcome *now,
                              ek_plan *p)
{
    if (now->n == 0)
        snprintf(p->reason, sizeof(p->reason),
                 "no replicas: the busiest rank's %lld assignments take %.4g ms, the mean's %lld "
                 "with one replica a link %.4g",
                 (long long)before, p->before_s * 1e3, (long long)mean, time_of(m, mean, 1) * 1e3);
    else
        snprintf(p->reason, sizeof(p->reason),
                 "%d replicas, at most %d a link, bring the busiest rank from %lld to %lld "
                 "assignments, %.4f of the mean, and %.4g to %.4g ms",
                 (int)now->n, (int)now->links, (long long)before, (long long)now->most,
                 mean > 0 ? (double)now->most / (double)mean : 1.0, p->before_s * 1e3,
                 p->after_s * 1e3);
}

static void explain_locality(ek_plan *p)
{
    size_t n = strlen(p->reason);

    snprintf(p->reason + n, sizeof(p->reason) - n, "; others, near their tokens, %.4g ms",
             p->after_s * 1e3);
}

static ek_status plan_transient(void *mem, const ek_plan_limits *l, const int64_t *counts,
                                ek_plan *p)
{
    memory *m = mem;
    int64_t before;
    outcome now;

    set_model(m, l, counts, 1);
    now = serve(m, l, p, &before);
    p->before_s = time_of(m, before, 0);
    p->after_s = now.s;
    if (p->explain)
        explain_transient(m, before, mean_of(m, l), &now, p);
    if (ek_locality_improve(&m->locality, l, counts, m->alias.total, p, &p->after_s) && p->explain)
        explain_locality(p);
    return EK_OK;
}

/* --- slow: packings --------------------------------------------------------------------------- */

/* m->order: by digits of eight bits, the lowest first, which keeps equals in order. */
static void sort_by_load(memory *m, const ek_plan_limits *l)
{
    int64_t all = 0;

    for (int32_t e = 0; e < l->experts; e++) {
        m->order[e] = e;
        all |= m->alias.total[e];
    }
    for (int shift = 0; shift < 63 && all >> shift > 0; shift += 8) {
        int32_t end[257] = {0}, *sorted = m->sorting;

        for (int32_t e = 0; e < l->experts; e++)
            end[255 - (m->alias.total[e] >> shift & 255) + 1]++;
        for (int d = 0; d < 255; d++)
            end[d + 1] += end[d];
        for (int32_t i = 0; i < l->experts; i++)
            sorted[end[255 - (m->alias.total[m->order[i]] >> shift & 255)]++] = m->order[i];
        m->sorting = m->order;
        m->order = sorted;
    }
}

/* What all packings start from: the experts' order and where they are now.  The busiest rank's load
 * with them there. */
static int64_t survey(memory *m, const ek_plan_limits *l, const ek_placement *p)
{
    int64_t most = 0;

    sort_by_load(m, l);
    memset(m->primaries, 0, (size_t)l->ranks * sizeof(*m->primaries));
    memset(m->sum, 0, (size_t)l->ranks * sizeof(*m->sum));
    for (int32_t e = 0; e < l->experts; e++) {
        int32_t primary = m->primary[e] = p->primary[e] / l->slots;

        m->primaries[primary]++;
        m->sum[primary] += m->alias.total[e];
        most = m->sum[primary] > most ? m->sum[primary] : most;
    }
    return most;
}

/* Whether an expert may stay. */
static int stays(const memory *m, int32_t primary, int64_t load, double level, int with_heaviest)
{
    int64_t others = m->sum[primary] - (with_heaviest ? 0 : m->heaviest[primary]);

    return m->room[primary] > 0 && (m->sum[primary] == 0 || (double)(others + load) <= level);
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

/* m->rank_of. */
static void pack(memory *m, const ek_plan_limits *l, double level, int with_heaviest)
{
    memcpy(m->room, m->primaries, (size_t)l->ranks * sizeof(*m->room));
    memset(m->sum, 0, (size_t)l->ranks * sizeof(*m->sum));
    memset(m->heaviest, 0, (size_t)l->ranks * sizeof(*m->heaviest));
    for (int32_t r = 0; r < l->ranks; r++)
        m->open[r] = m->room[r] > 0 ? 0 : INT64_MAX;
    for (int32_t i = 0; i < l->experts; i++) {
        int32_t e = m->order[i], to = m->primary[e];
        int64_t load = m->alias.total[e];

        if (!stays(m, to, load, level, with_heaviest))
            to = least_loaded(m, l->ranks);
        m->rank_of[e] = to;
        m->heaviest[to] = m->sum[to] > 0 ? m->heaviest[to] : load;
        m->sum[to] += load;
        m->open[to] = --m->room[to] > 0 ? m->sum[to] : INT64_MAX;
    }
}

/* Whether two experts may change places: neither rank then has more than the fuller of them has
 * now, and neither much less. */
static int alike(const memory *m, int32_t a, int32_t b, double mean)
{
    int64_t more = m->alias.total[a] - m->alias.total[b];
    int64_t of_a = m->sum[m->rank_of[a]], of_b = m->sum[m->rank_of[b]];
    double most = (double)(of_a > of_b ? of_a : of_b);

    most = most > mean ? most : mean;
    return fabs((double)more) <= about * mean && (double)(of_a - more) <= most &&
           (double)(of_b + more) <= most;
}

static void change_places(memory *m, int32_t a, int32_t b)
{
    int64_t more = m->alias.total[a] - m->alias.total[b];
    int32_t rank = m->rank_of[a];

    m->sum[rank] -= more;
    m->sum[m->rank_of[b]] += more;
    m->rank_of[a] = m->rank_of[b];
    m->rank_of[b] = rank;
}

/* Adds a number in `away` to the list of the rank where its expert is. */
static void list(memory *m, int32_t i)
{
    int32_t *at = &m->first[m->rank_of[m->away[i]]];

    while (*at >= 0 && *at < i)
        at = &m->after[*at];
    m->after[i] = *at;
    *at = i;
}

/* Takes it out of a rank's. */
static void unlist(memory *m, int32_t i, int32_t rank)
{
    int32_t *at = &m->first[rank];

    while (*at != i)
        at = &m->after[*at];
    *at = m->after[i];
}

/* Who is away, the lightest first: m->away and the lists of ranks.  How many. */
static int32_t find_away(memory *m, const ek_plan_limits *l)
{
    int32_t n = 0;

    for (int32_t i = l->experts; i-- > 0;) {
        m->away[n] = m->order[i];
        n += m->rank_of[m->order[i]] != m->primary[m->order[i]];
    }
    for (int32_t r = 0; r < l->ranks; r++)
        m->first[r] = -1;
    for (int32_t i = n; i-- > 0;) /* from behind each goes to the head of its list */
        list(m, i);
    return n;
}

/* Lets experts go back home that may change places with one that is not at home either; lightest
 * first, as they moved last, to where room was left. */
static void send_primary(memory *m, const ek_plan_limits *l, double mean)
{
    int32_t n = find_away(m, l);

    for (int32_t i = 0; i < n; i++) {
        int32_t e = m->away[i], at = m->rank_of[e], primary = m->primary[e], k = -1;

        if (at != primary)
            for (k = m->first[primary]; k >= 0 && !alike(m, e, m->away[k], mean);)
                k = m->after[k];
        if (k < 0)
            continue;
        change_places(m, e, m->away[k]);
        unlist(m, i, at);
        unlist(m, k, primary);
        if (m->primary[m->away[k]] != at)
            list(m, k);
    }
}

/* Experts that the busiest link moves. */
static int32_t busiest_move(memory *m, const ek_plan_limits *l)
{
    int32_t most = 0;

    memset(m->moved, 0, (size_t)l->ranks * sizeof(*m->moved));
    for (int32_t e = 0; e < l->experts; e++) /* as many leave as come */
        m->moved[m->rank_of[e]] += m->rank_of[e] != m->primary[e];
    for (int32_t r = 0; r < l->ranks; r++)
        most = m->moved[r] > most ? m->moved[r] : most;
    return most;
}

/* The packing as a placement, m->next: who moves takes a slot that another leaves, lower numbers
 * first. */
static void reduce_moves(memory *m, const ek_plan_limits *l, const ek_placement *p)
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

/* --- slow: the choice ------------------------------------------------------------------------- */

/* Predicted with these homes, of a micro-batch of the history; where all that they last for does
 * not take less than `below`, some time that they can be served in. */
static double expected(memory *m, const ek_plan_limits *l, ek_placement *p, double below)
{
    return search(m, l, ek_alias_start(&m->alias, l, p),
                  l->horizon > 0 ? below / (double)l->horizon : INFINITY)
        .s;
}

static int32_t movers(const memory *m, const ek_plan_limits *l)
{
    int32_t n = 0;

    for (int32_t e = 0; e < l->experts; e++)
        n += m->best.primary[e] / l->slots != m->primary[e];
    return n;
}

static void explain_persistent(const ek_plan_limits *l, int32_t moved, ek_plan *p)
{
    if (moved == 0)
        snprintf(
            p->reason, sizeof(p->reason),
            "homes stay, at %.4g ms a micro-batch: no packing of %d saves in %lld of them %g times "
            "what its moves take",
            p->before_s * 1e3, (int)PACKINGS, (long long)l->horizon, pays);
    else
        snprintf(p->reason, sizeof(p->reason),
                 "%d of %d experts move, for %.4g instead of %.4g ms a micro-batch, %lld of them",
                 (int)moved, (int)l->experts, p->after_s * 1e3, p->before_s * 1e3,
                 (long long)l->horizon);
}

/* Keeps a packing as m->best if it takes less than *least, moves and all. */
static void consider(memory *m, const ek_plan_limits *l, const packing *with, double mean,
                     double *least, ek_plan *p)
{
    double migrate_s_per_expert, s;
    int32_t links;

    pack(m, l, with->level * mean, with->with_heaviest);
    send_primary(m, l, mean);
    links = busiest_move(m, l);
    migrate_s_per_expert = pays * links * l->costs.migrate_s_per_expert;
    if (links == 0 || !(migrate_s_per_expert < *least)) /* homes that stay are considered anyway */
        return;
    reduce_moves(m, l, &p->placement);
    s = expected(m, l, &m->next, *least - migrate_s_per_expert);
    if (s * (double)l->horizon + migrate_s_per_expert < *least) {
        *least = s * (double)l->horizon + migrate_s_per_expert;
        p->after_s = s;
        m->to_save_s = migrate_s_per_expert;
        ek_placement_copy(&m->best, &m->next);
    }
}

/* The same of the homes that there are, as far as what they take may leave a doubt; in full only to
 * be told of, for ranks have to decide alike, and one may explain. */
static void consider_staying(memory *m, const ek_plan_limits *l, double *least, ek_plan *p)
{
    m->known_s = *least + doubt * m->to_save_s;
    m->stay_s = expected(m, l, &p->placement, m->known_s);
    p->before_s = m->stay_s;
    if (m->stay_s * (double)l->horizon <= *least) {
        *least = m->stay_s * (double)l->horizon;
        p->after_s = m->stay_s;
        m->to_save_s = 0;
        ek_placement_copy(&m->best, &p->placement);
    } else if (p->explain) {
        p->before_s = expected(m, l, &p->placement, INFINITY);
    }
}

/* What a micro-batch of the history takes with these homes, as fast serves them, by links. */
static double closely(memory *m, const ek_plan_limits *l, const int64_t *counts,
                      const ek_placement *primaries)
{
    ek_plan_limits of_one = *l;
    ek_plan *p = &m->served;
    int64_t most;
    outcome now;

    of_one.costs.compute_s_per_row /= m->of;
    of_one.costs.comm_s_per_row /= m->of;
    ek_placement_copy(&p->placement, primaries);
    now = serve(m, l, p, &most);
    (void)ek_locality_improve(&m->locality, &of_one, counts, m->alias.total, p, &now.s);
    if (!(l->costs.comm_s_per_row > 0) || l->ranks < 2)
        return now.s; /* it did not look at them */
    if (of_one.costs.exposed_s > 0)
        of_one.costs.replica_s = of_one.costs.exposed_s;
    return ek_locality_time(&m->locality, &of_one, counts, p);
}

/* Whether homes stay after all: on a closer look, where that is in doubt. */
static int better_stay(memory *m, const ek_plan_limits *l, const int64_t *counts, ek_plan *p)
{
    double horizon = (double)l->horizon, stay, move;
    double below = p->after_s * horizon + doubt * m->to_save_s;

    if (below > m->known_s) /* the moves of a later packing take more */
        m->stay_s = expected(m, l, &p->placement, below);
    if (!((m->stay_s - p->after_s) * horizon < doubt * m->to_save_s))
        return 0;
    stay = closely(m, l, counts, &p->placement);
    move = closely(m, l, counts, &m->best);
    if ((stay - move) * horizon > m->to_save_s)
        return 0;
    if (p->explain)
        snprintf(p->reason, sizeof(p->reason),
                 "homes stay, at %.4g ms a micro-batch: moving %d of %d experts would save %.4g of "
                 "that, %lld times, and take %.4g",
                 stay * 1e3, (int)movers(m, l), (int)l->experts, (stay - move) * 1e3,
                 (long long)l->horizon, m->to_save_s / pays * 1e3);
    p->after_s = p->before_s;
    ek_placement_copy(&m->best, &p->placement);
    return 1;
}

static ek_status plan_persistent(void *mem, const ek_plan_limits *l, const int64_t *counts,
                                 ek_plan *p)
{
    memory *m = mem;
    double least, enough, mean = 0;

    set_model(m, l, counts, p->of);
    m->to_save_s = 0;
    for (int32_t e = 0; e < l->experts; e++)
        mean += (double)m->alias.total[e] / l->ranks;
    least = (double)l->horizon * time_of(m, survey(m, l, &p->placement), 0);
    enough = (double)l->horizon * time_of(m, mean_of(m, l), 0) * (1 + worth);
    consider(m, l, &packings[0], mean, &least, p);
    consider_staying(m, l, &least, p);
    for (int i = 1; i < PACKINGS && least > enough; i++)
        consider(m, l, &packings[i], mean, &least, p);
    if (!better_stay(m, l, counts, p) && p->explain)
        explain_persistent(l, movers(m, l), p);
    ek_placement_copy(&p->placement, &m->best);
    ek_plan_primaries_only(l, m->alias.total, p);
    return EK_OK;
}

const ek_planner ek_planner_auto = {
    .name = "auto",
    .what = "homes by history, replicas by the counts, each where it pays",
    .reserve = reserve,
    .plan_persistent = plan_persistent,
    .plan_transient = plan_transient};
