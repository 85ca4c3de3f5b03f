/* replicate: popular experts get more replicas, all replicas of one expert serve alike, and they
 * lie where failures of nodes hurt least.
 *
 * Source       Lazarus (arXiv 2407.04656v2): allocation (eq. 1), placement by maximum rank overlap,
 *              its dispatcher's quotas, planned nodes matched to those that are there.
 * Allocation   experts by assignments t ascending, S slots, f = limits.replicas_min:
 *                r_e = max(floor(t_e / (sum over e' >= e of t_e') * (S - sum over e' < e of r_e')),
 *                          f')
 *              f' = min(f, floor(S / E)).  The r_e add up to S: every slot is filled.  Of an expert
 *              that many take, several replicas lie on a node, even on a rank.
 *              Nodes here are limits.domain_of where that says which nodes fail as one (racks); in
 *              one of these, replicas of an expert go to different nodes as far as there is room.
 * Placement    the better of maximum rank overlap and spread, repaired until every expert lies on
 *              min(f, r_e, nodes) nodes as far as the nodes' slots admit that, then improved by
 *              swaps (replicate_place.c).  Planned nodes become real ones of their size by the
 *              assignment (assign.h) with which the fewest replicas come to nodes that do not have
 *              their expert, and of such ones the fewest to other ranks of a node that has it.
 *              With f > 1 nodes then change places where the layer comes to fall with the same
 *              losses as others do (align_replica_sets.h): survival is worth moves.  Of the
 * placements that survive as much and have as much load, or 4 % more on a node, one is looked for
 * to which less has to move (replicate_min_move.h), and taken if that takes less time for as long
 * as it lasts.  In a node, replicas go to the rank with the least load that does not have the
 * expert, largest first. Quotas       floor(t / r) a slot, the first t mod r slots one more. Model
 * largest load of a rank * (compute_s_per_row + comm_s_per_row).  The sum of the replicas'
 * gradients and what moving the experts takes only tell placements apart that are as good. Accepted
 * when the largest load falls by more than 5 %, or experts come to lie on f' nodes that did not.
 * The latter is worth any load: survival is a constraint, not a term. Then alone the plan may be
 * slower than no balancing.  A plan that would be accepted as planned is, if not as what is nearer.
 * Departures   Overlap is a starting point and not the answer: it can put all replicas of an
 *              expert on one node.  Among placements that survive as much, the nodes' loads are
 *              evened out: overlap puts unpopular experts together, and nodes of popular ones get
 *              more than their share.  The paper matches nodes one after the other.  Survival
 *              beyond f - 1 failures is worth 5 % of load: where the spread placement has less by
 *              more, it is taken.  A placement that stays is served by homes alone where that is
 *              better.
 * Complexity   O(E^2 + nodes^2 E + nodes^3 + S ranks slots), the climb's limit of work, that
 *              of settling, six times, and that of the alignment. */
#include "balance/assign.h"
#include "balance/locality_replicas.h"
#include "balance/planner.h"
#include "balance/replicate_min_move.h"
#include "placement/align_replica_sets.h"

#include <stdio.h>
#include <string.h>

__extension__ typedef __int128 wide;

enum { GAIN_OF = 100, GAIN_TO = 95 }; /* a plan that takes less than 95 % is worth moving for */
enum { SPARE_TO = 96 }; /* and one that takes 96 % is not, whatever rows are left over */
enum { GRADIENTS = 3 }; /* so many times their size an expert's state is */
enum { ONE = 1 << 24 }; /* all assignments, as replicas' loads are measured */

typedef struct {
    ek_replicate_nodes nodes;
    ek_replicate_place now, best, other;
    ek_replicate_place real, locality, matched, least; /* of real nodes: see settle() and offer() */
    int32_t *node_of_rank;                             /* [ranks] */
    int32_t *image;   /* [nodes] the node that a planned one becomes */
    ek_assign assign; /* of [nodes] */
    ek_locality time;
    ek_set_alignment align;
    int64_t *cost; /* [nodes][nodes] of a planned one becoming a node */
    int32_t *order, *replicas, *left, *need, *by_weight; /* [experts] */
    int64_t *total, *weight, *key;                       /* [experts] */
    int64_t *fatal, *node_load, *load;                   /* [most + 1], [nodes], [ranks] */
    int32_t *drawn;                                      /* [ranks * slots] */
    ek_placement next;
    int64_t *quota; /* [ranks * slots] */
} memory;

/* --- memory ----------------------------------------------------------------------------------- */

static void take_arrays(memory *m, ek_arena *a, const ek_plan_limits *l)
{
    int32_t nodes = ek_plan_number_domains(l, NULL), slots = l->ranks * l->slots;
    int32_t **of_expert[] = {&m->order, &m->replicas, &m->left, &m->need, &m->by_weight};

    ek_replicate_nodes_reserve(&m->nodes, a, nodes, l->experts, slots);
    ek_replicate_place_reserve(&m->now, a, &m->nodes);
    ek_replicate_place_reserve(&m->best, a, &m->nodes);
    ek_replicate_place_reserve(&m->other, a, &m->nodes);
    ek_replicate_place_reserve(&m->real, a, &m->nodes);
    ek_replicate_place_reserve(&m->locality, a, &m->nodes);
    ek_replicate_place_reserve(&m->matched, a, &m->nodes);
    ek_replicate_place_reserve(&m->least, a, &m->nodes);
    m->node_of_rank = ek_arena_alloc(a, l->ranks, sizeof(*m->node_of_rank));
    m->image = ek_arena_alloc(a, nodes, sizeof(*m->image));
    ek_assign_reserve(&m->assign, a, nodes);
    ek_align_reserve(&m->align, a, nodes, l->experts);
    ek_locality_reserve(&m->time, a, l);
    m->cost = ek_arena_alloc(a, (int64_t)nodes * nodes, sizeof(*m->cost));
    for (size_t i = 0; i < sizeof(of_expert) / sizeof(*of_expert); i++)
        *of_expert[i] = ek_arena_alloc(a, l->experts, sizeof(**of_expert[i]));
    m->total = ek_arena_alloc(a, l->experts, sizeof(*m->total));
    m->weight = ek_arena_alloc(a, l->experts, sizeof(*m->weight));
    m->key = ek_arena_alloc(a, l->experts, sizeof(*m->key));
    m->fatal = ek_arena_alloc(a, m->nodes.most + 1, sizeof(*m->fatal));
    m->node_load = ek_arena_alloc(a, nodes, sizeof(*m->node_load));
    m->load = ek_arena_alloc(a, l->ranks, sizeof(*m->load));
    m->drawn = ek_arena_alloc(a, slots, sizeof(*m->drawn));
    ek_placement_reserve(&m->next, a, l->experts, l->ranks, l->slots);
    m->quota = ek_arena_alloc(a, slots, sizeof(*m->quota));
}

/* Which failures are tried depends on the nodes alone, and is laid out here once. */
static void *reserve(ek_arena *a, const ek_plan_limits *l)
{
    memory m = {0}, *kept = ek_arena_alloc(a, 1, sizeof(m));

    take_arrays(&m, a, l);
    if (kept == NULL || a->overflow)
        return NULL;
    ek_plan_number_domains(l, m.node_of_rank);
    for (int32_t r = 0; r < l->ranks; r++) {
        m.nodes.ranks[m.node_of_rank[r]]++;
        m.nodes.room[m.node_of_rank[r]] += l->slots;
    }
    ek_replicate_nodes_ready(&m.nodes);
    *kept = m;
    return kept;
}

/* --- serving ---------------------------------------------------------------------------------- */

/* Quotas of replicas that serve alike; returns the largest load of a rank. */
static int64_t serve_alike(const memory *m, const ek_plan_limits *l, const ek_placement *at,
                           int64_t *quota)
{
    int32_t slots = l->ranks * l->slots, *seen = m->left;
    ek_plan p = {.quota = quota};

    memset(seen, 0, (size_t)l->experts * sizeof(*seen));
    for (int32_t s = 0; s < slots; s++)
        if (at->expert_of[s] >= 0)
            seen[at->expert_of[s]]++;
    for (int32_t e = 0; e < l->experts; e++)
        m->key[e] = seen[e];
    memset(seen, 0, (size_t)l->experts * sizeof(*seen));
    for (int32_t s = 0; s < slots; s++) {
        int32_t e = at->expert_of[s];

        quota[s] = e < 0 ? 0 : m->total[e] / m->key[e] + (seen[e]++ < m->total[e] % m->key[e]);
    }
    return ek_plan_loads(l, &p, m->load);
}

/* The placement as it is, served as well as it is here: alike or by homes alone. */
static int64_t serve_now(const memory *m, const ek_plan_limits *l, ek_plan *p)
{
    int64_t alike = serve_alike(m, l, &p->placement, p->quota), primaries;

    ek_plan_primaries_only(l, m->total, p);
    primaries = ek_plan_loads(l, p, m->load);
    return primaries <= alike ? primaries : serve_alike(m, l, &p->placement, p->quota);
}

/* --- from planned nodes to real ones ---------------------------------------------------------- */

/* The placement as it is, by nodes. */
static void read_now(memory *m, const ek_plan_limits *l, const ek_placement *p)
{
    ek_replicate_place_clear(&m->nodes, &m->now);
    for (int32_t s = 0; s < l->ranks * l->slots; s++)
        if (p->expert_of[s] >= 0)
            ek_replicate_put(&m->nodes, &m->now, m->node_of_rank[s / l->slots], p->expert_of[s]);
}

/* What it takes that a planned node becomes a node: replicas of experts that it does not have, one
 * for each rank, which have to come from others, before those that its ranks copy. */
static int64_t cost_of(const memory *m, const ek_replicate_place *w, int32_t planned, int32_t node)
{
    int64_t come = 0, copied = 0;

    for (int32_t e = 0; e < m->nodes.experts; e++) {
        int32_t a = w->count[(int64_t)e * m->nodes.nodes + planned];
        int32_t b = m->now.count[(int64_t)e * m->nodes.nodes + node];
        int32_t ranks = m->nodes.ranks[node];
        int32_t from_others = b > 0 ? 0 : a < ranks ? a : ranks;

        come += from_others;
        copied += a > b + from_others ? a - b - from_others : 0;
    }
    return come * (m->nodes.slots + 1) + copied;
}

/* Lets the layer fall with the same losses as others, where several nodes have to hold each expert.
 */
static void align_nodes(memory *m, const ek_plan_limits *l, const ek_replicate_place *w)
{
    int32_t words = (m->nodes.nodes + 63) / 64;

    if (l->others == NULL || l->others->n == 0 || l->replicas_min <= 1)
        return;
    ek_align_clear(&m->align);
    for (int32_t e = 0; e < l->experts; e++)
        ek_align_add(&m->align, w->mask + (int64_t)e * words);
    ek_align_replica_sets(&m->align, l->others, m->nodes.room, m->image);
}

/* Planned nodes become real ones of their size, with the fewest replicas that come. */
static void match_nodes(memory *m, const ek_replicate_place *w)
{
    const ek_replicate_nodes *s = &m->nodes;
    const int64_t never = (int64_t)(s->slots + 1) * (s->slots + 1); /* more than all together */

    for (int32_t i = 0; i < s->nodes; i++)
        for (int32_t n = 0; n < s->nodes; n++)
            m->cost[(int64_t)i * s->nodes + n] =
                s->room[n] == s->room[i] ? cost_of(m, w, i, n) : never;
    ek_assign_rows(&m->assign, s->nodes, m->cost, m->image);
}

/* A plan by real nodes, m->real. */
static void match(memory *m, const ek_plan_limits *l, const ek_replicate_place *w)
{
    match_nodes(m, w);
    align_nodes(m, l, w);
    ek_replicate_place_as(&m->nodes, w, m->image, &m->real);
}

/* --- among what lies there -------------------------------------------------------------------- */

/* The largest load of a node, for each of its ranks. */
static int64_t largest(const memory *m, const ek_replicate_place *w)
{
    int64_t most = 0;

    ek_replicate_loads(&m->nodes, m->weight, w, m->node_load);
    for (int32_t n = 0; n < m->nodes.nodes; n++) {
        int64_t load = (m->node_load[n] + m->nodes.ranks[n] - 1) / m->nodes.ranks[n];

        most = load > most ? load : most;
    }
    return most;
}

/* Takes what lies near, if that comes to what is aimed at, where no more replicas come. */
static void try_near(memory *m, const ek_replicate_aim *aim)
{
    ek_replicate_nodes *s = &m->nodes;

    if (ek_replicate_min_move(s, aim, m->node_load, &m->locality) &&
        ek_replicate_coming(s, &m->now, &m->locality) <= ek_replicate_coming(s, &m->now, &m->real))
        ek_replicate_place_copy(s, &m->real, &m->locality);
}

/* Of what is in no more danger than m->real, and has at most so much load for a rank of a node, the
 * placement for which the fewest replicas come. */
static void choose_placement(memory *m, const ek_plan_limits *l, int64_t most)
{
    ek_replicate_nodes *s = &m->nodes;
    ek_replicate_aim aim = {.now = &m->now,
                            .need = m->need,
                            .replicas = m->replicas,
                            .weight = m->weight,
                            .most = most};

    ek_replicate_regard(s, l->replicas_min > 1 ? l->others : NULL);
    ek_replicate_risk_of(s, m->need, &m->real, &aim.risk);
    ek_replicate_min_move(s, &aim, m->node_load, &m->real);
    ek_replicate_nearest(s, &aim, m->left, m->node_load, &m->locality);
    try_near(m, &aim);
    match_nodes(m, &m->real);
    ek_replicate_place_as(s, &m->real, m->image, &m->locality);
    try_near(m, &aim);
}

/* --- from nodes to ranks ---------------------------------------------------------------------- */

/* Whether a rank's node has an expert in the next placement, which only matters where nodes are not
 * the failure domains. */
static int node_has(const memory *m, const ek_plan_limits *l, int32_t rank, int32_t expert)
{
    for (int32_t r = 0; r < l->ranks && l->domain_of != NULL; r++)
        if (ek_plan_node(l, r) == ek_plan_node(l, rank) && ek_plan_slot(&m->next, r, expert) >= 0)
            return 1;
    return 0;
}

/* Whether rank r is a better place than q for a replica: does not have the expert, is on another
 * node than those that have, has less load, held it before. */
static int better_rank(const memory *m, const ek_plan_limits *l, const ek_placement *now, int32_t r,
                       int32_t q, int32_t expert)
{
    int twice_r = ek_plan_slot(&m->next, r, expert) >= 0;
    int twice_q = ek_plan_slot(&m->next, q, expert) >= 0;
    int near_r = node_has(m, l, r, expert), near_q = node_has(m, l, q, expert);

    if (near_r != near_q)
        return near_r < near_q;
    if (twice_r != twice_q)
        return twice_r < twice_q;
    if (m->load[r] != m->load[q])
        return m->load[r] < m->load[q];
    return ek_plan_slot(now, r, expert) >= 0 && ek_plan_slot(now, q, expert) < 0;
}

static void put_on_rank(memory *m, const ek_plan_limits *l, const ek_placement *now, int32_t node,
                        int32_t expert)
{
    int32_t best = -1;

    for (int32_t r = 0; r < now->ranks; r++)
        if (m->node_of_rank[r] == node && ek_plan_free_slot(&m->next, r) >= 0 &&
            (best < 0 || better_rank(m, l, now, r, best, expert)))
            best = r;
    m->next.expert_of[ek_plan_free_slot(&m->next, best)] = expert;
    m->load[best] += m->weight[expert];
}

/* What a rank keeps stays in its slot; the rest goes to the others in order. */
static void order_slots(memory *m, const ek_placement *now, int32_t rank)
{
    int32_t first = rank * now->slots, *next = m->next.expert_of + first;

    memcpy(m->drawn, next, (size_t)now->slots * sizeof(*next));
    for (int32_t i = 0; i < now->slots; i++)
        next[i] = -1;
    for (int keep = 1; keep >= 0; keep--)
        for (int32_t i = 0; i < now->slots; i++)
            for (int32_t s = 0; s < now->slots && m->drawn[i] >= 0; s++)
                if (next[s] < 0 && (!keep || now->expert_of[first + s] == m->drawn[i])) {
                    next[s] = m->drawn[i];
                    m->drawn[i] = -1;
                }
}

/* Homes stay on their ranks where those keep a replica, in their slots if they can. */
static void find_primaries(memory *m, const ek_placement *now)
{
    for (int32_t e = 0; e < now->experts; e++) {
        int32_t was = now->primary[e], s = ek_plan_slot(&m->next, was / now->slots, e);

        if (m->next.expert_of[was] == e)
            s = was;
        for (int32_t r = 0; s < 0; r++)
            s = ek_plan_slot(&m->next, r, e);
        m->next.primary[e] = s;
    }
}

/* The next placement, as m->real has it by nodes; returns its largest load. */
static int64_t realize(memory *m, const ek_plan_limits *l, const ek_placement *now)
{
    for (int32_t i = 0; i < l->ranks * l->slots; i++)
        m->next.expert_of[i] = -1;
    memset(m->load, 0, (size_t)l->ranks * sizeof(*m->load));
    for (int32_t i = l->experts - 1; i >= 0; i--)
        for (int32_t n = 0, e = m->by_weight[i]; n < m->nodes.nodes; n++)
            for (int32_t k = m->real.count[(int64_t)e * m->nodes.nodes + n]; k > 0; k--)
                put_on_rank(m, l, now, n, e);
    for (int32_t r = 0; r < l->ranks; r++)
        order_slots(m, now, r);
    find_primaries(m, now);
    return serve_alike(m, l, &m->next, m->quota);
}

static int64_t realize_planned(memory *m, const ek_plan_limits *l, const ek_placement *now,
                               const ek_replicate_place *w)
{
    match(m, l, w);
    return realize(m, l, now);
}

/* --- deciding --------------------------------------------------------------------------------- */

static int64_t part(int64_t t, int64_t of)
{
    return (int64_t)((wide)t * ONE / of);
}

/* A replica's load in parts of all assignments: the same for counts k times as large. */
static void weigh(memory *m, const ek_plan_limits *l)
{
    int64_t sum = 0;

    for (int32_t e = 0; e < l->experts; e++)
        sum += m->total[e];
    for (int32_t e = 0; e < l->experts; e++)
        m->weight[e] = sum > 0 ? part(m->total[e], sum) / m->replicas[e] : ONE / l->experts;
    ek_replicate_ascending(l->experts, m->weight, m->by_weight);
}

/* Nodes that experts miss, of those that each is to lie on whatever its popularity. */
static int64_t missing(const memory *m, const ek_plan_limits *l, const ek_replicate_place *w)
{
    int32_t least = ek_replicate_least(l->experts, m->nodes.slots, l->replicas_min);
    int64_t lack = 0;

    least = least < m->nodes.nodes ? least : m->nodes.nodes;
    for (int32_t e = 0; e < l->experts; e++) {
        int32_t n = ek_replicate_distinct(&m->nodes, w, e);

        lack += n < least ? least - n : 0;
    }
    return lack;
}

static void place(memory *m, const ek_plan_limits *l)
{
    ek_replicate_nodes *s = &m->nodes;

    s->work = 0;
    for (int32_t e = 0; e < l->experts; e++) {
        int32_t r = m->replicas[e] < s->nodes ? m->replicas[e] : s->nodes;

        m->need[e] = r < l->replicas_min ? r : l->replicas_min > 1 ? l->replicas_min : 1;
    }
    ek_replicate_mro(s, m->order, m->replicas, m->left, &m->best);
    ek_replicate_score(s, m->need, &m->best);
    ek_replicate_repair(s, m->need, &m->best);
    ek_replicate_spread(s, m->order, m->replicas, m->left, &m->other);
    ek_replicate_score(s, m->need, &m->other);
    ek_replicate_repair(s, m->need, &m->other);
    if (ek_replicate_compare(s, &m->other, &m->best) < 0)
        ek_replicate_place_copy(s, &m->best, &m->other);
    ek_replicate_climb(s, m->need, m->weight, &m->best, m->fatal, m->node_load);
    ek_replicate_even(s, m->replicas, m->weight, &m->best, m->node_load);
    ek_replicate_even(s, m->replicas, m->weight, &m->other, m->node_load);
}

/* Whether a load falls by enough to move for. */
static int lower(int64_t from, int64_t to)
{
    return (wide)to * GAIN_OF < (wide)from * GAIN_TO;
}

static void accept(const memory *m, const ek_plan_limits *l, ek_plan *p)
{
    size_t slots = (size_t)(l->ranks * l->slots);

    ek_placement_copy(&p->placement, &m->next);
    memcpy(p->quota, m->quota, slots * sizeof(*m->quota));
}

/* The number of nodes that may fail, whichever they are. */
static int32_t survives(const memory *m, const ek_plan_limits *l, const ek_replicate_place *w)
{
    int32_t least = m->nodes.nodes;

    for (int32_t e = 0; e < l->experts; e++) {
        int32_t n = ek_replicate_distinct(&m->nodes, w, e);

        least = n < least ? n : least;
    }
    return least - 1;
}

static void explain(const memory *m, const ek_plan_limits *l, const char *decision, int64_t before,
                    int64_t offered, const ek_replicate_place *w, ek_plan *p)
{
    int64_t sum = 0;

    for (int32_t e = 0; e < l->experts; e++)
        sum += m->total[e];
    snprintf(
        p->reason, sizeof(p->reason),
        "%s: %s, largest load %lld -> %lld of mean %lld; %d to %d replicas; survives any %d of "
        "%d %s",
        decision, w == &m->other ? "spread" : "surviving most", (long long)before,
        (long long)offered, (long long)(sum / l->ranks), (int)m->replicas[m->order[0]],
        (int)m->replicas[m->order[l->experts - 1]], (int)survives(m, l, &m->real),
        (int)m->nodes.nodes, l->domain_of != NULL ? "racks" : "nodes");
}

/* The placement that survives most; the spread one where that has less load by more than 5 % and is
 * on the nodes that count.  What lies where enters into that by left over rows alone: the same
 * counts ask for the same placement again. */
static const ek_replicate_place *choose(memory *m, const ek_plan_limits *l, const ek_placement *now)
{
    int64_t best = realize_planned(m, l, now, &m->best);
    int64_t other = realize_planned(m, l, now, &m->other);

    return lower(best, other) && missing(m, l, &m->other) <= missing(m, l, &m->best) ? &m->other
                                                                                     : &m->best;
}

/* What the largest load of a node may become: as good as that of the plan, which comes to
 * `planned`, and where `before` is not as good and may stay, worth moving for. */
static int64_t allowed(int64_t load, int64_t planned, int64_t before, int may_stay)
{
    int64_t most = load * GAIN_OF / SPARE_TO;
    int64_t worth =
        (int64_t)((wide)load * before * GAIN_TO / GAIN_OF / (planned > 0 ? planned : 1));

    return !may_stay || worth >= most || worth < load ? most : worth;
}

static double at_least_one(int64_t n)
{
    return n > 0 ? (double)n : 1;
}

/* What m->next takes as long as it lasts, and to move to, as far as that is known.  Of a replica
 * gradients travel in each step, a third of what a move takes: no master, no moments. */
static double takes(memory *m, const ek_plan_limits *l, const int64_t *counts, int64_t of)
{
    ek_plan next = {.placement = m->next, .quota = m->quota};
    ek_plan_limits batch = *l; /* of the history's */

    batch.costs.compute_s_per_row /= at_least_one(of);
    batch.costs.comm_s_per_row /= at_least_one(of);
    batch.costs.replica_s = l->costs.migrate_s_per_expert / GRADIENTS / at_least_one(l->batches);
    return ek_locality_time(&m->time, &batch, counts, &next) * at_least_one(l->horizon) +
           ek_replicate_busiest(&m->nodes, &m->now, &m->real) * l->costs.migrate_s_per_expert;
}

/* Realizes a plan, or what is as good, worth moving for like the plan, and closer to what lies
 * there, whichever takes least; returns its largest load. */
static int64_t offer(memory *m, const ek_plan_limits *l, const int64_t *counts, const ek_plan *p,
                     const ek_replicate_place *w, int64_t before)
{
    const ek_placement *now = &p->placement;
    int64_t lack = missing(m, l, w), planned = realize_planned(m, l, now, w);
    int may_stay = lack >= missing(m, l, &m->now);
    int64_t load = largest(m, &m->real), settled;
    int64_t most[] = {load, allowed(load, planned, before, may_stay)};
    double least = takes(m, l, counts, p->of), s;

    ek_replicate_place_copy(&m->nodes, &m->matched, &m->real);
    ek_replicate_place_copy(&m->nodes, &m->least, &m->real);
    for (int i = 0; i < 2; i++) {
        ek_replicate_place_copy(&m->nodes, &m->real, &m->matched);
        choose_placement(m, l, most[i]);
        settled = realize(m, l, now);
        s = takes(m, l, counts, p->of);
        if (s > least || (i > 0 && s == least) || missing(m, l, &m->real) > lack ||
            lower(settled, planned) ||
            (may_stay && lower(before, settled) != lower(before, planned)))
            continue;
        least = s;
        ek_replicate_place_copy(&m->nodes, &m->least, &m->real);
    }
    ek_replicate_place_copy(&m->nodes, &m->real, &m->least);
    return realize(m, l, now);
}

/* Assignments of each source. */
static void add_tokens(memory *m, const ek_plan_limits *l, const int64_t *counts)
{
    memset(m->time.tokens, 0, (size_t)l->ranks * sizeof(*m->time.tokens));
    for (int32_t r = 0; r < l->ranks; r++)
        for (int32_t e = 0; e < l->experts; e++)
            m->time.tokens[r] += counts[(int64_t)r * l->experts + e];
}

static ek_status plan(void *memory_of, const ek_plan_limits *l, const int64_t *counts, ek_plan *p)
{
    memory *m = memory_of;
    const ek_replicate_place *w;
    const char *decision = "kept, not 5 % better";
    double unit = l->costs.compute_s_per_row + l->costs.comm_s_per_row;
    int64_t before, offered, now, then;

    ek_plan_totals(l, counts, m->total);
    add_tokens(m, l, counts);
    EK_TRY(ek_replicate_allocate(l->experts, m->nodes.slots, l->replicas_min, m->total, m->order,
                                 m->replicas));
    weigh(m, l);
    before = serve_now(m, l, p);
    read_now(m, l, &p->placement);
    place(m, l);
    w = choose(m, l, &p->placement);
    offered = offer(m, l, counts, p, w, before);
    now = missing(m, l, &m->now);
    then = missing(m, l, &m->real);
    p->before_s = p->after_s = (double)before * unit;
    if (then < now || (then == now && lower(before, offered))) {
        decision = then < now ? "moved, experts lacked nodes" : "moved";
        accept(m, l, p);
        p->after_s = (double)offered * unit;
    }
    if (p->explain)
        explain(m, l, decision, before, offered, w, p);
    return EK_OK;
}

const ek_planner ek_planner_replicate = {
    .name = "replicate",
    .what = "replicas by popularity, placed to survive failures (Lazarus, arXiv 2407.04656)",
    .reserve = reserve,
    .plan_persistent = plan};

/* What `auto` is where several nodes have to hold each expert. */
const ek_planner ek_planner_auto_persistent = {
    .name = "auto",
    .what = "replicas that last, by popularity, on --replicas-min nodes and more: as replicate",
    .reserve = reserve,
    .plan_persistent = plan};
