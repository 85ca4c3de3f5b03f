/* prophet: transient replicas where they pay, chosen greedily.
 *
 * Source       Pro-Prophet (arXiv 2411.10003v2): light placement section 4.A, model 4.B, Algorithm
 *              1.  Weights go out to replicas and gradients come back to the primary copy, which
 *              keeps the optimizer state; a rank with a replica computes its own assignments, all
 *              others go to the primary rank.
 * Formula      T' = comm_s_per_row max R + compute_s_per_row max H + replica_s C / D
 *              D ranks; R assignments that a rank receives from others, H those it computes, C the
 *              copies of replicated experts, primary copies included: s (D - n) for the paper's s
 *              experts sent to all but n.  No overlap is counted (its section 5).
 * Complexity   With E experts on D ranks: O(D E) for the loads, O(D sqrt(D)) for each expert tried,
 *              at most E of them, and O(D) for each replica.
 *
 * ek_prophet_select is Algorithm 1 as printed.  The planner departs from it:
 *  - It places single experts, not all experts of a device as one, and includes ranks one by one
 *    instead of all but n: a uniform n > 1 loses, and few ranks have most of an expert's rows.
 *  - The algorithm sends to all ranks and relies on the best prefix to drop what did not pay.  Here
 *    a rank is included if T' falls, if its rows cost more to send than the replica, or if the
 *    heaviest rank gains more than the copy costs and stays at least as heavy as the included one.
 *    The third rule is for ranks of nearly equal load: none of them alone lowers a maximum, so the
 *    first two rules would stop at once.
 *  - The best prefix is one of inclusions, not of experts.  Then replicas without which T' is no
 *    worse are dropped, last ones first: many only led to later, better ones.
 *  - alpha is 1/2: 1 stops too early when ranks are included one by one, and T' rejects the excess.
 *  - Slots are finite.  Present replicas are dropped first, since replicas are sent anew every
 *    step; if the new placement is not better than the one with them, it stays.
 *  - Where ranks differ in speed, H is weighted by what assignments cost there (row_costs.h).
 *  - limits.replicas_min is ignored: transient replicas do not survive a failure. */
#include "balance/plan_prophet.h"

#include "balance/row_costs.h"
#include "cost/cost.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static const double alpha_of_plans = 0.5;

static int64_t larger_of(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* --- loads ------------------------------------------------------------------------------------ */

void ek_prophet_loads_reserve(ek_prophet_loads *o, ek_arena *a, int32_t ranks)
{
    o->ranks = ranks;
    o->row_cost = NULL;
    o->copies = 0;
    o->served = ek_arena_alloc(a, ranks, sizeof(*o->served));
    o->received = ek_arena_alloc(a, ranks, sizeof(*o->received));
    o->key = ek_arena_alloc(a, ranks, sizeof(*o->key));
    o->order = ek_arena_alloc(a, ranks, sizeof(*o->order));
}

static void loads_clear(ek_prophet_loads *o)
{
    memset(o->served, 0, (size_t)o->ranks * sizeof(*o->served));
    memset(o->received, 0, (size_t)o->ranks * sizeof(*o->received));
    o->copies = 0;
}

/* k assignments of a source are computed on a primary rank. */
static void assign_to_primary(ek_prophet_loads *o, int32_t source, int32_t primary, int64_t k)
{
    o->served[primary] += k;
    o->received[primary] += source != primary ? k : 0;
}

/* k assignments move from the primary rank to the source, another rank. */
static void keep_on_source(ek_prophet_loads *o, int32_t source, int32_t primary, int64_t k)
{
    o->served[primary] -= k;
    o->received[primary] -= k;
    o->served[source] += k;
}

/* The maximum of x without one rank (-1: of all). */
static int64_t max_without(const int64_t *x, int32_t ranks, int32_t without)
{
    int64_t m = 0;

    for (int32_t r = 0; r < ranks; r++)
        if (r != without)
            m = larger_of(m, x[r]);
    return m;
}

/* Weighted load of a rank with other assignments than it has now. */
static int64_t weighted(const ek_prophet_loads *o, int32_t rank, int64_t assignments)
{
    return o->row_cost != NULL ? assignments * o->row_cost[rank] : assignments;
}

/* The largest weighted load without one rank (-1: of all). */
static int64_t most_weighted_without(const ek_prophet_loads *o, int32_t without)
{
    int64_t most = 0;

    if (o->row_cost == NULL)
        return max_without(o->served, o->ranks, without);
    for (int32_t r = 0; r < o->ranks; r++)
        if (r != without)
            most = larger_of(most, weighted(o, r, o->served[r]));
    return most;
}

static int32_t heaviest_rank(const ek_prophet_loads *o)
{
    int32_t at = 0;

    for (int32_t r = 1; r < o->ranks; r++)
        if (weighted(o, r, o->served[r]) > weighted(o, at, o->served[at]))
            at = r;
    return at;
}

/* Equation 7 of the paper. */
static bool is_balanced(const ek_prophet_loads *o, double alpha)
{
    int64_t least = weighted(o, 0, o->served[0]), all = 0;
    int32_t at = heaviest_rank(o);

    for (int32_t r = 0; r < o->ranks; r++) {
        int64_t load = weighted(o, r, o->served[r]);

        least = load < least ? load : least;
        all += load;
    }
    return (double)(weighted(o, at, o->served[at]) - least) <
           alpha * (double)all / (double)o->ranks;
}

/* served: the largest weighted load. */
static double time_of(const ek_plan_costs *c, const ek_prophet_loads *o, int64_t received,
                      int64_t served, int64_t copies)
{
    double a_row =
        o->row_cost != NULL ? c->compute_s_per_row / EK_ROW_COST_ONE : c->compute_s_per_row;

    return c->comm_s_per_row * (double)received + a_row * (double)served +
           c->replica_s * (double)copies / (double)o->ranks;
}

static double loads_time(const ek_plan_costs *c, const ek_prophet_loads *o)
{
    return time_of(c, o, max_without(o->received, o->ranks, -1), most_weighted_without(o, -1),
                   o->copies);
}

/* Sorts ranks by ascending key, equal keys by number.  Shell sort: qsort may allocate. */
static void sort_ranks(ek_prophet_loads *o)
{
    const int64_t *key = o->key;
    int32_t *at = o->order, gap = 1;

    for (int32_t r = 0; r < o->ranks; r++)
        at[r] = r;
    while (gap < o->ranks / 3)
        gap = 3 * gap + 1;
    for (; gap > 0; gap /= 3)
        for (int32_t i = gap; i < o->ranks; i++) {
            int32_t r = at[i], j = i;

            for (; j >= gap; j -= gap) {
                int32_t q = at[j - gap];

                if (key[q] < key[r] || (key[q] == key[r] && q < r))
                    break;
                at[j] = q;
            }
            at[j] = r;
        }
}

/* --- Algorithm 1 ------------------------------------------------------------------------------ */

static bool is_selected(const ek_prophet_selection *s, int32_t n, int32_t expert)
{
    for (int32_t i = 0; i < n; i++)
        if (s->expert[i] == expert)
            return true;
    return false;
}

/* Sends the n-th selected expert to all devices except the excluded. */
static void send_expert(const ek_prophet_case *c, ek_prophet_loads *o, ek_prophet_selection *s,
                        int32_t n, int32_t expert)
{
    s->expert[n] = expert;
    for (int32_t r = 0; r < c->devices; r++)
        o->key[r] = c->counts[(int64_t)r * c->devices + expert];
    o->key[expert] = INT64_MAX; /* its primary device holds it */
    sort_ranks(o);
    for (int32_t i = 0; i < c->devices - 1; i++) {
        int32_t r = o->order[i];

        if (i < c->excluded)
            s->without[(int64_t)n * c->excluded + i] = r;
        else
            keep_on_source(o, r, expert, o->key[r]);
    }
    o->copies += c->devices - c->excluded;
}

void ek_prophet_select(const ek_prophet_case *c, ek_prophet_loads *o, ek_prophet_selection *s)
{
    loads_clear(o);
    for (int32_t r = 0; r < c->devices; r++)
        for (int32_t e = 0; e < c->devices; e++)
            assign_to_primary(o, r, e, c->counts[(int64_t)r * c->devices + e]);
    s->before_s = s->after_s = loads_time(&c->costs, o);
    s->selected = 0;
    for (int32_t n = 0; !is_balanced(o, c->alpha); n++) {
        int32_t expert = heaviest_rank(o);
        double t;

        if (is_selected(s, n, expert))
            break;
        send_expert(c, o, s, n, expert);
        t = loads_time(&c->costs, o);
        if (t < s->after_s) {
            s->after_s = t;
            s->selected = n + 1;
        }
    }
}

/* --- the planner ------------------------------------------------------------------------------ */

typedef struct {
    ek_prophet_loads loads;
    int64_t *total;         /* [experts] */
    int32_t *replicas;      /* [experts] */
    bool *tried;            /* [experts] */
    int32_t *vacant;        /* [ranks] vacant slots */
    int32_t *expert, *rank; /* [ranks * slots] replicas in order of inclusion: expert, rank */
    int32_t included, kept; /* number of inclusions; number in the best prefix */
    double best;            /* T' of the best prefix */
} memory;

static void *reserve_prophet(ek_arena *a, const ek_plan_limits *l)
{
    memory *m = ek_arena_alloc(a, 1, sizeof(*m)), in = {0};
    int64_t slots = (int64_t)l->ranks * l->slots;

    ek_prophet_loads_reserve(&in.loads, a, l->ranks);
    in.total = ek_arena_alloc(a, l->experts, sizeof(*in.total));
    in.replicas = ek_arena_alloc(a, l->experts, sizeof(*in.replicas));
    in.tried = ek_arena_alloc(a, l->experts, sizeof(*in.tried));
    in.vacant = ek_arena_alloc(a, l->ranks, sizeof(*in.vacant));
    in.expert = ek_arena_alloc(a, slots, sizeof(*in.expert));
    in.rank = ek_arena_alloc(a, slots, sizeof(*in.rank));
    if (m != NULL)
        *m = in;
    return m;
}

static int32_t primary_rank(const ek_placement *p, int32_t expert)
{
    return p->primary[expert] / p->slots;
}

/* The expert of which a slot holds a replica; -1: none, a primary copy, or a second copy on the
 * same rank. */
static int32_t replica_at(const ek_placement *p, int32_t slot)
{
    int32_t e = p->expert_of[slot], r = slot / p->slots;

    return e >= 0 && r != primary_rank(p, e) && ek_plan_slot(p, r, e) == slot ? e : -1;
}

/* The first replica also adds the primary copy to C. */
static int32_t next_copies(const memory *m, int32_t expert)
{
    return m->replicas[expert] == 0 ? 2 : 1;
}

/* Adds a replica on a rank with k assignments for the expert. */
static void add_replica(memory *m, int32_t expert, int32_t rank, int32_t primary, int64_t k)
{
    keep_on_source(&m->loads, rank, primary, k);
    m->loads.copies += next_copies(m, expert);
    m->replicas[expert]++;
}

static void drop_replica(memory *m, int32_t expert, int32_t rank, int32_t primary, int64_t k)
{
    keep_on_source(&m->loads, rank, primary, -k);
    m->replicas[expert]--;
    m->loads.copies -= next_copies(m, expert);
}

/* Loads and vacant slots with primary copies only. */
static void primaries_alone(memory *m, const ek_plan_limits *l, const int64_t *counts,
                            const ek_placement *p)
{
    loads_clear(&m->loads);
    memset(m->replicas, 0, (size_t)l->experts * sizeof(*m->replicas));
    for (int32_t r = 0; r < l->ranks; r++, counts += l->experts) {
        m->vacant[r] = l->slots;
        for (int32_t e = 0; e < l->experts; e++)
            assign_to_primary(&m->loads, r, primary_rank(p, e), counts[e]);
    }
    for (int32_t e = 0; e < l->experts; e++)
        m->vacant[primary_rank(p, e)]--;
}

/* Adds the effect of a placement's replicas. */
static void add_replicas(memory *m, const ek_plan_limits *l, const int64_t *counts,
                         const ek_placement *p)
{
    for (int32_t s = 0; s < l->ranks * l->slots; s++) {
        int32_t e = replica_at(p, s), r = s / l->slots;

        if (e >= 0)
            add_replica(m, e, r, primary_rank(p, e), counts[(int64_t)r * l->experts + e]);
    }
}

/* The heaviest primary expert of a rank that is untried and has assignments; -1. */
static int32_t heaviest_expert(const memory *m, const ek_placement *p, int32_t rank)
{
    int32_t at = -1;
    int64_t load = 0;

    for (int32_t s = rank * p->slots; s < (rank + 1) * p->slots; s++) {
        int32_t e = p->expert_of[s];

        if (e < 0 || p->primary[e] != s || m->tried[e])
            continue;
        if (m->total[e] > load || (m->total[e] == load && at > e)) {
            load = m->total[e];
            at = e;
        }
    }
    return at;
}

static void include_rank(memory *m, int32_t expert, int32_t rank, int32_t primary, int64_t k,
                         double t)
{
    add_replica(m, expert, rank, primary, k);
    m->vacant[rank]--;
    m->expert[m->included] = expert;
    m->rank[m->included++] = rank;
    if (t < m->best) {
        m->best = t;
        m->kept = m->included;
    }
}

/* Includes the ranks that are worth it for an expert, in order of falling assignments. */
static void try_expert(memory *m, const ek_plan_limits *l, const int64_t *counts, int32_t expert,
                       int32_t primary)
{
    const ek_plan_costs *c = &l->costs;
    ek_prophet_loads *o = &m->loads;
    int64_t others_receive = max_without(o->received, l->ranks, primary);
    int64_t others_serve = most_weighted_without(o, primary);
    double now = loads_time(c, o);

    for (int32_t r = 0; r < l->ranks; r++)
        o->key[r] = r != primary ? -counts[(int64_t)r * l->experts + expert] : 0;
    sort_ranks(o);
    for (int32_t i = 0; i < l->ranks && o->key[o->order[i]] < 0; i++) {
        int32_t r = o->order[i], copies = next_copies(m, expert);
        int64_t k = -o->key[r], here = weighted(o, r, o->served[r] + k);
        int64_t there = weighted(o, primary, o->served[primary] - k);
        double t = time_of(c, o, larger_of(others_receive, o->received[primary] - k),
                           larger_of(others_serve, larger_of(here, there)), o->copies + copies);
        double gain = (double)k * (c->comm_s_per_row + c->compute_s_per_row);
        bool relief = here <= there && gain > time_of(c, o, 0, 0, copies);

        if (m->vacant[r] == 0 ||
            !(t < now || (double)k * c->comm_s_per_row > c->replica_s || relief))
            continue;
        include_rank(m, expert, r, primary, k, t);
        others_serve = larger_of(others_serve, here);
        now = t;
    }
}

/* Selects replicas, starting from primary copies only. */
static void select_replicas(memory *m, const ek_plan_limits *l, const int64_t *counts,
                            const ek_placement *p)
{
    memset(m->tried, 0, (size_t)l->experts * sizeof(*m->tried));
    m->included = m->kept = 0;
    m->best = loads_time(&l->costs, &m->loads);
    while (!is_balanced(&m->loads, alpha_of_plans)) {
        int32_t primary = heaviest_rank(&m->loads), expert = heaviest_expert(m, p, primary);

        if (expert < 0)
            break;
        m->tried[expert] = true;
        try_expert(m, l, counts, expert, primary);
    }
}

/* Keeps the best prefix without the replicas that it does not need. */
static void prune_replicas(memory *m, const ek_plan_limits *l, const int64_t *counts,
                           const ek_placement *p)
{
    for (int32_t i = m->included - 1; i >= 0; i--) {
        int32_t e = m->expert[i], r = m->rank[i], primary = primary_rank(p, e);
        int64_t k = counts[(int64_t)r * l->experts + e];
        double t;

        drop_replica(m, e, r, primary, k);
        if (i >= m->kept)
            continue;
        t = loads_time(&l->costs, &m->loads);
        if (t > m->best) {
            add_replica(m, e, r, primary, k);
            continue;
        }
        m->best = t;
        m->expert[i] = m->expert[--m->kept];
        m->rank[i] = m->rank[m->kept];
    }
}

/* Replaces a placement's replicas by the selected ones. */
static void apply_replicas(const memory *m, ek_placement *p)
{
    for (int32_t s = 0; s < p->ranks * p->slots; s++)
        if (p->expert_of[s] >= 0 && p->primary[p->expert_of[s]] != s)
            p->expert_of[s] = -1;
    for (int32_t i = 0; i < m->kept; i++)
        p->expert_of[ek_plan_free_slot(p, m->rank[i])] = m->expert[i];
}

/* Quotas: replicas serve their own rank's assignments, primary copies the rest. */
static void set_quotas(const memory *m, const ek_plan_limits *l, const int64_t *counts, ek_plan *p)
{
    ek_plan_primaries_only(l, m->total, p);
    for (int32_t s = 0; s < l->ranks * l->slots; s++) {
        int32_t e = replica_at(&p->placement, s);

        if (e < 0)
            continue;
        p->quota[s] = counts[(int64_t)(s / l->slots) * l->experts + e];
        p->quota[p->placement.primary[e]] -= p->quota[s];
    }
}

static void explain_prophet(memory *m, const ek_plan_limits *l, int64_t before, bool better,
                            ek_plan *p)
{
    char a[EK_COST_QUANTITY], b[EK_COST_QUANTITY];
    int64_t after;

    (void)ek_plan_loads(l, p, m->loads.served);
    after = ek_row_costs_largest(l, m->loads.served);
    if (better)
        snprintf(p->reason, sizeof(p->reason),
                 "%d replica%s (%d tried): heaviest rank %lld -> %lld assignments%s, %s -> %s",
                 (int)m->kept, m->kept == 1 ? "" : "s", (int)m->included,
                 ek_row_costs_shown(l, before), ek_row_costs_shown(l, after), ek_row_costs_note(l),
                 ek_cost_quantity(a, p->before_s, "s"), ek_cost_quantity(b, p->after_s, "s"));
    else
        snprintf(p->reason, sizeof(p->reason),
                 "unchanged (%d replicas tried): heaviest rank %lld assignments%s, %s; best found "
                 "%s",
                 (int)m->included, ek_row_costs_shown(l, before), ek_row_costs_note(l),
                 ek_cost_quantity(a, p->before_s, "s"), ek_cost_quantity(b, m->best, "s"));
}

static ek_status plan_prophet(void *mem, const ek_plan_limits *l, const int64_t *counts, ek_plan *p)
{
    memory *m = mem;
    int64_t before;
    bool better;

    m->loads.row_cost = l->row_cost;
    ek_plan_totals(l, counts, m->total);
    primaries_alone(m, l, counts, &p->placement);
    add_replicas(m, l, counts, &p->placement);
    p->before_s = loads_time(&l->costs, &m->loads);
    before = most_weighted_without(&m->loads, -1);

    primaries_alone(m, l, counts, &p->placement);
    select_replicas(m, l, counts, &p->placement);
    prune_replicas(m, l, counts, &p->placement);
    better = m->best < p->before_s;
    p->after_s = better ? m->best : p->before_s;
    if (better)
        apply_replicas(m, &p->placement);
    set_quotas(m, l, counts, p);
    if (p->explain)
        explain_prophet(m, l, before, better, p);
    return EK_OK;
}

const ek_planner ek_planner_prophet = {
    .name = "prophet",
    .what = "transient replicas where they pay, planned a micro-batch ahead (Pro-Prophet, arXiv "
            "2411.10003)",
    .reserve = reserve_prophet,
    .plan_transient = plan_prophet,
    .uses_previous_counts = 1};
