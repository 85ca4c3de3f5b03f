/* replicate: persistent replicas in proportion to popularity, placed to survive node failures.
 *
 * Source       Lazarus (arXiv 2407.04656v2): allocation (eq. 1), placement by maximum rank overlap
 *              (MRO), its dispatcher's quotas, matching of planned nodes to real ones.
 * Allocation   Experts by assignments t ascending, S slots, f = limits.replicas_min:
 *                r_e = max(floor(t_e / (sum over e' >= e of t_e') * (S - sum over e' < e of r_e')),
 *                          f')
 *              with f' = min(f, floor(S / E)).  The r_e add up to S: every slot is filled.  A very
 *              popular expert can have several replicas on a node, even on a rank.
 *              A "node" in this file is a failure domain of limits.domain_of (a rack) if that is
 *              set; inside a domain the replicas of an expert go to different nodes while slots
 *              allow it.
 * Placement    1. The better of MRO and spread, repaired until every expert is on
 *                 min(f, r_e, nodes) nodes as far as the nodes' slots allow, then improved by swaps
 *                 (replicate_place.c): the fewest fatal node sets.  The repaired spread placement
 *                 is taken instead if it has more than 5 % less load and lacks no more nodes; or,
 *                 if survival is preferred (limits.prefer_survival), if it survives more together
 *                 with other layers, or as much with less load.
 *              2. Planned nodes are mapped to real ones of their size by a linear assignment
 *                 (assign.h): fewest replicas on nodes without the expert, then fewest on further
 *                 ranks of a node that has it.
 *              3. With f > 1, nodes are permuted so that the layer shares its fatal node sets with
 *                 other layers (align_replica_sets.h); this may cost moves.
 *              4. Among placements with no more risk and at most the load, or about 4 % more on a
 *                 node, one that moves less is searched (replicate_min_move.h), and taken if
 *                 horizon times its time plus its moves is less.
 *              5. Inside a node, replicas go, largest first, to the least loaded rank that does not
 *                 hold the expert.
 * Quotas       floor(t / r) per slot, the first t mod r slots one more.  Where ranks differ in
 * speed: those of the least maximum (quota_flow.h); the placement itself heeds no speeds. Model
 * Largest load of a rank, weighted by its speed (row_costs.h), * (compute_s_per_row +
 *              comm_s_per_row).  The replicas'
 *              gradient sums and the moves only decide between placements in step 4.
 * Accepted     when the largest load falls by more than 5 %, or when experts come onto f' nodes
 *              that were on fewer, or if survival is preferred and more is survived, together with
 *              other layers.  The second is a constraint and overrides any load, so only then
 *              can the plan be slower than no balancing.  Step 4 never turns an accepted plan into
 *              a rejected one.
 * Departures   MRO is a starting point only: it can put all replicas of an expert on one node.
 *              Among placements with the same risk the nodes' loads are evened out, because MRO
 *              groups unpopular experts and overloads the nodes of popular ones.  The paper matches
 *              nodes one by one.  Survival of more than f - 1 failures is traded for 5 % of load
 *              (step 1), unless it is preferred.  A placement that is kept is served by primary
 *              copies alone where that is faster.
 * Complexity   O(E^2 + nodes^2 + sum over experts of (its nodes now) (its nodes planned) + S ranks
 *              slots), plus six assignments (assign.h), the bounded work of the climb, six times
 *              that of replicate_min_move.h, and that of align_replica_sets.h. */
#include "balance/assign.h"
#include "balance/locality_replicas.h"
#include "balance/quota_flow.h"
#include "balance/replicate_min_move.h"
#include "placement/align_replica_sets.h"

#include <stdio.h>
#include <string.h>

__extension__ typedef __int128 wide;

enum { GAIN_OF = 100, GAIN_TO = 95 }; /* accept a plan with less than 95 % of the load */
enum { SPARE_TO = 96 }; /* bound for step 4: 96 % must not be accepted, whatever the rounding */
enum { GRADIENTS = 3 }; /* an expert's state, in units of its gradients */
enum { ONE = 1 << 24 }; /* fixed-point unit of replicas' loads: all assignments */

typedef struct {
    ek_replicate_nodes nodes;
    ek_replicate_place now, best, other;
    ek_replicate_place real, nearest, matched, least; /* by real nodes: see choose_placement,
                                                          make_offer */
    int32_t *node_of_rank;                            /* [ranks] */
    int32_t *image;                                   /* [nodes] real node of a planned one */
    int32_t *with;                                    /* [nodes] those that hold an expert */
    ek_assign assign;                                 /* for `nodes` rows */
    ek_locality time;
    ek_quota_flow flow;    /* where ranks differ */
    const int64_t *counts; /* [ranks][experts] that are planned for */
    ek_set_alignment align;
    int64_t *cost; /* [nodes][nodes] of mapping a planned to a real node */
    int32_t *order, *replicas, *left, *need, *by_weight; /* [experts] */
    int64_t *total, *weight, *key;                       /* [experts] */
    int64_t *fatal, *node_load, *load;                   /* [most + 1], [nodes], [ranks] */
    int64_t load_of_best;                                /* of m->best, on its busiest rank */
    int32_t *drawn;                                      /* [ranks * slots] */
    ek_placement next;
    int64_t *quota; /* [ranks * slots] */
} memory;

/* --- memory ----------------------------------------------------------------------------------- */

static void reserve_arrays(memory *m, ek_arena *a, const ek_plan_limits *l)
{
    int32_t nodes = ek_plan_number_domains(l, NULL), slots = l->ranks * l->slots;
    int32_t **of_expert[] = {&m->order, &m->replicas, &m->left, &m->need, &m->by_weight};

    ek_replicate_nodes_reserve(&m->nodes, a, nodes, l->experts, slots);
    ek_replicate_place_reserve(&m->now, a, &m->nodes);
    ek_replicate_place_reserve(&m->best, a, &m->nodes);
    ek_replicate_place_reserve(&m->other, a, &m->nodes);
    ek_replicate_place_reserve(&m->real, a, &m->nodes);
    ek_replicate_place_reserve(&m->nearest, a, &m->nodes);
    ek_replicate_place_reserve(&m->matched, a, &m->nodes);
    ek_replicate_place_reserve(&m->least, a, &m->nodes);
    m->node_of_rank = ek_arena_alloc(a, l->ranks, sizeof(*m->node_of_rank));
    m->image = ek_arena_alloc(a, nodes, sizeof(*m->image));
    m->with = ek_arena_alloc(a, nodes, sizeof(*m->with));
    ek_assign_reserve(&m->assign, a, nodes);
    ek_align_reserve(&m->align, a, nodes, l->experts);
    ek_locality_reserve(&m->time, a, l);
    ek_quota_flow_reserve(&m->flow, a, l);
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

/* The failure sets depend on the nodes only; they are laid out here once. */
static void *reserve_replicate(ek_arena *a, const ek_plan_limits *l)
{
    memory m = {0}, *kept = ek_arena_alloc(a, 1, sizeof(m));

    reserve_arrays(&m, a, l);
    if (kept == NULL || a->overflow)
        return NULL;
    ek_plan_number_domains(l, m.node_of_rank);
    for (int32_t r = 0; r < l->ranks; r++) {
        m.nodes.ranks[m.node_of_rank[r]]++;
        m.nodes.node_slots[m.node_of_rank[r]] += l->slots;
    }
    ek_replicate_nodes_ready(&m.nodes);
    *kept = m;
    return kept;
}

/* --- serving ---------------------------------------------------------------------------------- */

/* Equal quotas for all replicas of an expert; returns the largest weighted load. */
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
    (void)ek_plan_loads(l, &p, m->load);
    return ek_row_costs_largest(l, m->load);
}

/* Quotas for a placement: equal shares, or where ranks differ those of the least maximum; returns
 * the largest weighted load. */
static int64_t serve_replicas(memory *m, const ek_plan_limits *l, const ek_placement *at,
                              int64_t *quota)
{
    if (l->row_cost == NULL)
        return serve_alike(m, l, at, quota);
    ek_quota_flow_start(&m->flow, l, m->counts, at);
    return ek_quota_flow_least(&m->flow, l, at, quota);
}

/* Quotas for the present placement: of all replicas or of primary copies only, whichever has the
 * smaller largest load, which is returned. */
static int64_t serve_now(memory *m, const ek_plan_limits *l, ek_plan *p)
{
    int64_t all = serve_replicas(m, l, &p->placement, p->quota), primaries;

    ek_plan_primaries_only(l, m->total, p);
    (void)ek_plan_loads(l, p, m->load);
    primaries = ek_row_costs_largest(l, m->load);
    return primaries <= all ? primaries : serve_replicas(m, l, &p->placement, p->quota);
}

/* --- from planned nodes to real ones ---------------------------------------------------------- */

/* The present placement, by nodes: m->now. */
static void read_now(memory *m, const ek_plan_limits *l, const ek_placement *p)
{
    ek_replicate_place_clear(&m->nodes, &m->now);
    for (int32_t s = 0; s < l->ranks * l->slots; s++)
        if (p->expert_of[s] >= 0)
            ek_replicate_put(&m->nodes, &m->now, m->node_of_rank[s / l->slots], p->expert_of[s]);
}

/* Permutes m->image so that the layer shares its fatal node sets with other layers, if replicas_min
 * is more than 1. */
static void align_nodes(memory *m, const ek_plan_limits *l, const ek_replicate_place *w)
{
    int32_t words = ek_replicate_words(&m->nodes);

    if (l->others == NULL || l->others->n == 0 || l->replicas_min <= 1)
        return;
    ek_align_clear(&m->align);
    for (int32_t e = 0; e < l->experts; e++)
        ek_align_add(&m->align, w->mask + (int64_t)e * words);
    ek_align_replica_sets(&m->align, l->others, m->nodes.node_slots, m->image);
}

/* Cost of `count` replicas of an expert on a node that has `has` of them: those that come over a
 * link, one per rank if it has none, before those that its ranks copy from each other. */
static int64_t cost_of(const ek_replicate_nodes *s, int32_t ranks, int32_t count, int32_t has)
{
    int32_t come = has > 0 ? 0 : count < ranks ? count : ranks;
    int32_t copied = count > has + come ? count - has - come : 0;

    return (int64_t)come * (s->slots + 1) + copied;
}

/* Cost of a planned node's replicas on a node of its size that holds none of its experts. */
static int64_t cost_without(const memory *m, const ek_replicate_place *w, int32_t planned)
{
    const ek_replicate_nodes *s = &m->nodes;
    int64_t sum = 0;

    for (int32_t i = s->first[planned]; i < s->first[planned + 1]; i++) {
        int32_t e = w->at[i], j = s->first[planned];

        while (w->at[j] != e)
            j++;
        if (e >= 0 && i == j)
            sum += cost_of(s, s->ranks[planned], ek_replicate_count(s, w, planned, e), 0);
    }
    return sum;
}

/* Subtracts what is saved where real nodes hold an expert of planned nodes. */
static void subtract_saved(memory *m, const ek_replicate_place *w, int32_t e)
{
    const ek_replicate_nodes *s = &m->nodes;
    int32_t n = ek_replicate_nodes_with(s, &m->now, e, m->with);

    for (int32_t p = 0; p < s->nodes; p++) {
        int32_t count = ek_replicate_count(s, w, p, e);
        int64_t without = cost_of(s, s->ranks[p], count, 0);

        for (int32_t i = 0; i < n && count > 0; i++)
            if (s->node_slots[m->with[i]] == s->node_slots[p])
                m->cost[(int64_t)p * s->nodes + m->with[i]] -=
                    without -
                    cost_of(s, s->ranks[p], count, ek_replicate_count(s, &m->now, m->with[i], e));
    }
}

/* Maps planned nodes to real ones of their size with the fewest incoming replicas: m->image. */
static void map_nodes(memory *m, const ek_replicate_place *w)
{
    const ek_replicate_nodes *s = &m->nodes;
    const int64_t never = (int64_t)(s->slots + 1) * (s->slots + 1); /* exceeds any sum of
                                                                       possible costs */

    for (int32_t p = 0; p < s->nodes; p++) {
        int64_t without = cost_without(m, w, p);

        for (int32_t n = 0; n < s->nodes; n++)
            m->cost[(int64_t)p * s->nodes + n] =
                s->node_slots[n] == s->node_slots[p] ? without : never;
    }
    for (int32_t e = 0; e < s->experts; e++)
        subtract_saved(m, w, e);
    ek_assign_rows(&m->assign, s->nodes, m->cost, m->image);
}

/* Maps a plan to real nodes: m->real. */
static void map_to_real_nodes(memory *m, const ek_plan_limits *l, const ek_replicate_place *w)
{
    map_nodes(m, w);
    align_nodes(m, l, w);
    ek_replicate_place_as(&m->nodes, w, m->image, &m->real);
}

/* --- fewer moves ---------------------------------------------------------------------------- */

/* The largest load of a node, per rank of the node. */
static int64_t largest_node_load(const memory *m, const ek_replicate_place *w)
{
    int64_t most = 0;

    ek_replicate_loads(&m->nodes, m->weight, w, m->node_load);
    for (int32_t n = 0; n < m->nodes.nodes; n++) {
        int64_t load = (m->node_load[n] + m->nodes.ranks[n] - 1) / m->nodes.ranks[n];

        most = load > most ? load : most;
    }
    return most;
}

/* Replaces m->real by the placement searched from m->nearest, if that reaches the aim with no more
 * incoming replicas. */
static void try_nearest(memory *m, const ek_replicate_aim *aim)
{
    ek_replicate_nodes *s = &m->nodes;

    if (ek_replicate_min_move(s, aim, m->node_load, &m->nearest) &&
        ek_replicate_coming(s, &m->now, &m->nearest) <= ek_replicate_coming(s, &m->now, &m->real))
        ek_replicate_place_copy(s, &m->real, &m->nearest);
}

/* Searches placements with no more risk than m->real and at most `most` load per rank of a node,
 * for the fewest incoming replicas: m->real. */
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
    ek_replicate_nearest(s, &aim, m->left, m->node_load, &m->nearest);
    try_nearest(m, &aim);
    map_nodes(m, &m->real);
    ek_replicate_place_as(s, &m->real, m->image, &m->nearest);
    try_nearest(m, &aim);
}

/* --- from nodes to ranks ---------------------------------------------------------------------- */

/* Whether a rank's node holds an expert in m->next; relevant only where nodes are not the failure
 * domains. */
static int node_has(const memory *m, const ek_plan_limits *l, int32_t rank, int32_t expert)
{
    for (int32_t r = 0; r < l->ranks && l->domain_of != NULL; r++)
        if (ek_plan_node(l, r) == ek_plan_node(l, rank) && ek_plan_slot(&m->next, r, expert) >= 0)
            return 1;
    return 0;
}

/* Whether rank r is better than q for a replica: its node lacks the expert, it lacks it itself, it
 * has less load, it held the expert before. */
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

static void place_on_rank(memory *m, const ek_plan_limits *l, const ek_placement *now, int32_t node,
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

/* Kept replicas keep their slots; new ones fill the others in order. */
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

/* Primary copies stay on their rank if it keeps a replica, and in their slot if possible. */
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

/* Fills m->next and m->quota from m->real; returns the largest load of a rank. */
static int64_t realize_nodes(memory *m, const ek_plan_limits *l, const ek_placement *now)
{
    for (int32_t i = 0; i < l->ranks * l->slots; i++)
        m->next.expert_of[i] = -1;
    memset(m->load, 0, (size_t)l->ranks * sizeof(*m->load));
    for (int32_t i = l->experts - 1; i >= 0; i--)
        for (int32_t n = 0, e = m->by_weight[i]; n < m->nodes.nodes; n++)
            for (int32_t k = m->real.count[(int64_t)e * m->nodes.nodes + n]; k > 0; k--)
                place_on_rank(m, l, now, n, e);
    for (int32_t r = 0; r < l->ranks; r++)
        order_slots(m, now, r);
    find_primaries(m, now);
    return serve_replicas(m, l, &m->next, m->quota);
}

static int64_t realize_planned(memory *m, const ek_plan_limits *l, const ek_placement *now,
                               const ek_replicate_place *w)
{
    map_to_real_nodes(m, l, w);
    return realize_nodes(m, l, now);
}

/* --- deciding --------------------------------------------------------------------------------- */

static int64_t fraction_of(int64_t t, int64_t of)
{
    return (int64_t)((wide)t * ONE / of);
}

/* Load of a replica as a fraction of all assignments: invariant when all counts are multiplied. */
static void weigh_replicas(memory *m, const ek_plan_limits *l)
{
    int64_t sum = 0;

    for (int32_t e = 0; e < l->experts; e++)
        sum += m->total[e];
    for (int32_t e = 0; e < l->experts; e++)
        m->weight[e] = sum > 0 ? fraction_of(m->total[e], sum) / m->replicas[e] : ONE / l->experts;
    ek_replicate_ascending(l->experts, m->weight, m->by_weight);
}

/* Number of nodes missing to f' nodes per expert, over all experts. */
static int64_t missing_nodes(const memory *m, const ek_plan_limits *l, const ek_replicate_place *w)
{
    int32_t least = ek_replicate_least(l->experts, m->nodes.slots, l->replicas_min);
    int64_t lack = 0;

    least = least < m->nodes.nodes ? least : m->nodes.nodes;
    for (int32_t e = 0; e < l->experts; e++) {
        int32_t n = w->distinct[e];

        lack += n < least ? least - n : 0;
    }
    return lack;
}

static void plan_nodes(memory *m, const ek_plan_limits *l)
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
}

/* Whether a load falls by enough to accept a plan. */
static int is_much_lower(int64_t from, int64_t to)
{
    return (wide)to * GAIN_OF < (wide)from * GAIN_TO;
}

static void accept_plan(const memory *m, const ek_plan_limits *l, ek_plan *p)
{
    size_t slots = (size_t)(l->ranks * l->slots);

    ek_placement_copy(&p->placement, &m->next);
    memcpy(p->quota, m->quota, slots * sizeof(*m->quota));
}

/* The number of nodes that can fail, whichever they are. */
static int32_t survived_failures(const memory *m, const ek_plan_limits *l,
                                 const ek_replicate_place *w)
{
    int32_t least = m->nodes.nodes;

    for (int32_t e = 0; e < l->experts; e++) {
        int32_t n = w->distinct[e];

        least = n < least ? n : least;
    }
    return least - 1;
}

/* The load and the probability of the placement with the fewest fatal sets, where another was
 * taken. */
static void explain_survival(const memory *m, const ek_plan_limits *l, ek_plan *p)
{
    size_t n = strlen(p->reason);
    int32_t k = 1;

    while (k < m->nodes.most && m->best.fatal[k] == 0)
        k++;
    snprintf(p->reason + n, sizeof(p->reason) - n, "; for survival %lld, any %d with %.2f",
             ek_row_costs_shown(l, m->load_of_best), (int)k,
             1 - (double)m->best.fatal[k] / (double)m->nodes.sets[k]);
}

static void explain_plan(const memory *m, const ek_plan_limits *l, const char *decision,
                         int64_t before, int64_t offered, const ek_replicate_place *w, ek_plan *p)
{
    int64_t sum = 0;

    for (int32_t e = 0; e < l->experts; e++)
        sum += m->total[e];
    snprintf(p->reason, sizeof(p->reason),
             "%s: %s, largest load %lld -> %lld%s, mean %lld; %d to %d replicas; survives any %d "
             "of %d %s",
             decision, w == &m->other ? "spread placement" : "fewest fatal sets",
             ek_row_costs_shown(l, before), ek_row_costs_shown(l, offered), ek_row_costs_note(l),
             (long long)(ek_row_costs_mean(l, sum) / (double)ek_row_cost_unit(l)),
             (int)m->replicas[m->order[0]], (int)m->replicas[m->order[l->experts - 1]],
             (int)survived_failures(m, l, &m->real), (int)m->nodes.nodes,
             l->domain_of != NULL ? "racks" : "nodes");
    if (w == &m->other && l->replicas_min > 1)
        explain_survival(m, l, p);
}

/* Negative: a placement, by real nodes, survives more than another together with the other layers.
 */
static int compare_survival(memory *m, ek_replicate_place *a, ek_replicate_place *b)
{
    ek_replicate_risk x, y;

    ek_replicate_risk_of(&m->nodes, m->need, a, &x);
    ek_replicate_risk_of(&m->nodes, m->need, b, &y);
    if (x.lack != y.lack)
        return x.lack < y.lack ? -1 : 1;
    for (int32_t k = 1; k <= m->nodes.most; k++)
        if (x.joint[k] != y.joint[k])
            return x.joint[k] < y.joint[k] ? -1 : 1;
    return 0;
}

/* Whether a placement can exist that has more than 5 % less load. */
static int is_far_from_even(const memory *m, const ek_plan_limits *l, int64_t load)
{
    int64_t sum = 0;

    for (int32_t e = 0; e < l->experts; e++)
        sum += m->total[e];
    return is_much_lower(load, ek_row_costs_level(l, NULL, sum));
}

/* If survival is preferred: of the placement with the fewest fatal node sets and the spread one,
 * the one that survives more together with the other layers.  If speed is: the first one, unless
 * the other has more than 5 % less load and lacks no more nodes.  The present placement only
 * affects rounding remainders, so the same counts give the same choice again.  Realizes the choice
 * and sets *load to its largest load. */
static const ek_replicate_place *choose_plan(memory *m, const ek_plan_limits *l,
                                             const ek_placement *now, int64_t *load)
{
    int64_t best = realize_planned(m, l, now, &m->best), other;
    int sign, takes_other;

    m->load_of_best = *load = best;
    if (!l->prefer_survival && !is_far_from_even(m, l, best))
        return &m->best;
    ek_replicate_even(&m->nodes, m->replicas, m->weight, &m->other, m->node_load);
    ek_replicate_place_copy(&m->nodes, &m->matched, &m->real);
    other = realize_planned(m, l, now, &m->other);
    if (l->prefer_survival) {
        ek_replicate_regard(&m->nodes, l->replicas_min > 1 ? l->others : NULL);
        sign = compare_survival(m, &m->real, &m->matched);
        takes_other = sign < 0 || (sign == 0 && other < best);
    } else
        takes_other = is_much_lower(best, other) &&
                      missing_nodes(m, l, &m->other) <= missing_nodes(m, l, &m->best);
    *load = takes_other ? other : realize_planned(m, l, now, &m->best);
    return takes_other ? &m->other : &m->best;
}

/* The largest load of a node allowed in step 4: about 4 % above `load`; and where the plan is
 * accepted for its load alone, at most what keeps it accepted. */
static int64_t allowed_load(int64_t load, int64_t planned, int64_t before, int may_stay)
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

/* Predicted time of m->next over the horizon, plus the moves.  A persistent replica sends its
 * gradients once a step: a third of what a move sends, without master weights and moments. */
static double total_time(memory *m, const ek_plan_limits *l, const int64_t *counts, int64_t of)
{
    ek_plan next = {.placement = m->next, .quota = m->quota};
    ek_plan_limits batch = *l; /* of one micro-batch of the history */

    batch.costs.compute_s_per_row /= at_least_one(of);
    batch.costs.comm_s_per_row /= at_least_one(of);
    batch.costs.replica_s = l->costs.migrate_s_per_expert / GRADIENTS / at_least_one(l->batches);
    return ek_locality_time(&m->time, &batch, counts, &next) * at_least_one(l->horizon) +
           ek_replicate_busiest(&m->nodes, &m->now, &m->real) * l->costs.migrate_s_per_expert;
}

/* Realizes the chosen plan, which is in m->real and has the largest load `planned`, or a placement
 * of step 4 that is as good and as acceptable, whichever takes least: m->next.  Returns its largest
 * load. */
static int64_t make_offer(memory *m, const ek_plan_limits *l, const int64_t *counts,
                          const ek_plan *p, int64_t planned, int64_t before)
{
    const ek_placement *now = &p->placement;
    int64_t lack = missing_nodes(m, l, &m->real);
    int may_stay = lack >= missing_nodes(m, l, &m->now);
    int64_t load = largest_node_load(m, &m->real), offered_load;
    int64_t most[] = {load, allowed_load(load, planned, before, may_stay)};
    double least = total_time(m, l, counts, p->of), s;

    ek_replicate_place_copy(&m->nodes, &m->matched, &m->real);
    ek_replicate_place_copy(&m->nodes, &m->least, &m->real);
    for (int i = 0; i < 2; i++) {
        ek_replicate_place_copy(&m->nodes, &m->real, &m->matched);
        choose_placement(m, l, most[i]);
        offered_load = realize_nodes(m, l, now);
        s = total_time(m, l, counts, p->of);
        if (s > least || (i > 0 && s == least) || missing_nodes(m, l, &m->real) > lack ||
            is_much_lower(offered_load, planned) ||
            (may_stay && is_much_lower(before, offered_load) != is_much_lower(before, planned)))
            continue;
        least = s;
        ek_replicate_place_copy(&m->nodes, &m->least, &m->real);
    }
    ek_replicate_place_copy(&m->nodes, &m->real, &m->least);
    return realize_nodes(m, l, now);
}

static ek_status plan_replicate(void *memory_of, const ek_plan_limits *l, const int64_t *counts,
                                ek_plan *p)
{
    memory *m = memory_of;
    const ek_replicate_place *w;
    const char *decision = "kept, less than 5 % better";
    int64_t before, planned, offered, now, then;
    int survives_more;

    m->counts = counts;
    ek_plan_totals(l, counts, m->total);
    ek_plan_sources(l, counts, m->time.tokens);
    EK_TRY(ek_replicate_allocate(l->experts, m->nodes.slots, l->replicas_min, m->total, m->order,
                                 m->replicas));
    weigh_replicas(m, l);
    before = serve_now(m, l, p);
    read_now(m, l, &p->placement);
    plan_nodes(m, l);
    w = choose_plan(m, l, &p->placement, &planned);
    offered = make_offer(m, l, counts, p, planned, before);
    now = missing_nodes(m, l, &m->now);
    then = missing_nodes(m, l, &m->real);
    p->before_s = p->after_s = ek_row_costs_seconds(l, before);
    survives_more = l->prefer_survival && compare_survival(m, &m->real, &m->now) < 0;
    if (then < now || (then == now && (survives_more || is_much_lower(before, offered)))) {
        decision = then < now ? "moved, experts were on too few nodes" : "moved";
        accept_plan(m, l, p);
        p->after_s = ek_row_costs_seconds(l, offered);
    }
    if (p->explain)
        explain_plan(m, l, decision, before, offered, w, p);
    return EK_OK;
}

const ek_planner ek_planner_replicate = {
    .name = "replicate",
    .what = "replicas by popularity, placed to survive failures (Lazarus, arXiv 2407.04656)",
    .reserve = reserve_replicate,
    .plan_persistent = plan_replicate,
    .enforces_replicas_min = 1};
