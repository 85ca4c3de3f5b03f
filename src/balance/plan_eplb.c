/* eplb: replicas where an expert's load a replica is largest, packed longest first.
 *
 * Source: DeepSeek's Expert Parallelism Load Balancer (EPLB, 2025), its global policy: what others
 * are measured against.
 *
 * Formula: every slot is filled.  Each expert has one replica; each further slot goes to the expert
 * with the largest t_e / r_e, t_e its assignments and r_e its replicas so far.  Then replicas, by
 * falling t_e / r_e, go one by one to the rank with the least load that has room.  Among equals the
 * smaller expert and the smaller rank come first.  All replicas of an expert serve alike, the first
 * ones one assignment more where that does not divide.
 *
 * Complexity: O(slots_all log slots_all + slots_all ranks + extra experts).
 *
 * Departures: an expert that has a replica on its home's rank keeps its home there, else the home
 * is where its first replica lies.  What the move costs is not weighed, as it is not in the source.
 */
#include "balance/planner.h"

#include <stdio.h>
#include <string.h>

typedef struct {
    int64_t *total;        /* [experts] */
    int32_t *replicas;     /* [experts] */
    double *weight;        /* [experts] t_e / r_e */
    int32_t *order, *room; /* [experts], [experts] by falling weight, and room to sort */
    double *load;          /* [ranks] */
    int32_t *used;         /* [ranks] slots */
} memory;

static void *take(ek_arena *a, const ek_plan_limits *l)
{
    memory *m = ek_arena_take(a, 1, sizeof(*m)), measured;
    memory *at = m != NULL ? m : &measured;

    at->total = ek_arena_take(a, l->experts, sizeof(*at->total));
    at->replicas = ek_arena_take(a, l->experts, sizeof(*at->replicas));
    at->weight = ek_arena_take(a, l->experts, sizeof(*at->weight));
    at->order = ek_arena_take(a, l->experts, sizeof(*at->order));
    at->room = ek_arena_take(a, l->experts, sizeof(*at->room));
    at->load = ek_arena_take(a, l->ranks, sizeof(*at->load));
    at->used = ek_arena_take(a, l->ranks, sizeof(*at->used));
    return m;
}

/* How many replicas each expert has. */
static void allocate(memory *m, const ek_plan_limits *l)
{
    int32_t extra = l->ranks * l->slots - l->experts;

    for (int32_t e = 0; e < l->experts; e++) {
        m->replicas[e] = 1;
        m->weight[e] = (double)m->total[e];
    }
    while (extra-- > 0) {
        int32_t heaviest = 0;

        for (int32_t e = 1; e < l->experts; e++)
            if (m->weight[e] > m->weight[heaviest])
                heaviest = e;
        m->replicas[heaviest]++;
        m->weight[heaviest] = (double)m->total[heaviest] / m->replicas[heaviest];
    }
}

/* Merges [a, b) and [b, end) of order, both by falling weight, in room. */
static void merge(const memory *m, int32_t a, int32_t b, int32_t end)
{
    int32_t i = a, j = b;

    for (int32_t k = a; k < end; k++)
        m->room[k] = j >= end || (i < b && m->weight[m->order[i]] >= m->weight[m->order[j]])
                         ? m->order[i++]
                         : m->order[j++];
    memcpy(m->order + a, m->room + a, (size_t)(end - a) * sizeof(*m->order));
}

static void sort(memory *m, int32_t experts)
{
    for (int32_t e = 0; e < experts; e++)
        m->order[e] = e;
    for (int32_t run = 1; run < experts; run *= 2)
        for (int32_t a = 0; a + run < experts; a += 2 * run)
            merge(m, a, a + run, a + 2 * run < experts ? a + 2 * run : experts);
}

/* The rank with the least load that has room. */
static int32_t lightest(const memory *m, const ek_plan_limits *l)
{
    int32_t best = -1;

    for (int32_t r = 0; r < l->ranks; r++)
        if (m->used[r] < l->slots && (best < 0 || m->load[r] < m->load[best]))
            best = r;
    return best;
}

/* Puts all replicas of an expert; was: the rank of its home so far. */
static void put(memory *m, const ek_plan_limits *l, int32_t e, int32_t was, ek_plan *p)
{
    int64_t each = m->total[e] / m->replicas[e], longer = m->total[e] % m->replicas[e];
    int32_t home = -1;

    for (int32_t i = 0; i < m->replicas[e]; i++) {
        int32_t r = lightest(m, l), slot = r * l->slots + m->used[r]++;

        m->load[r] += m->weight[e];
        p->placement.expert_of[slot] = e;
        p->quota[slot] = each + (i < longer);
        if (home < 0 || (r == was && home / l->slots != was))
            home = slot;
    }
    p->placement.home[e] = home;
}

static int64_t most_at_home(const ek_plan_limits *l, const int64_t *total, const ek_placement *at)
{
    int64_t most = 0;

    for (int32_t r = 0; r < l->ranks; r++) {
        int64_t sum = 0;

        for (int32_t s = r * l->slots; s < (r + 1) * l->slots; s++)
            if (at->expert_of[s] >= 0 && at->home[at->expert_of[s]] == s)
                sum += total[at->expert_of[s]];
        most = sum > most ? sum : most;
    }
    return most;
}

static int64_t most_of(const ek_plan_limits *l, const ek_plan *p)
{
    int64_t most = 0;

    for (int32_t r = 0; r < l->ranks; r++) {
        int64_t sum = 0;

        for (int32_t s = r * l->slots; s < (r + 1) * l->slots; s++)
            sum += p->quota[s];
        most = sum > most ? sum : most;
    }
    return most;
}

static ek_status plan(void *mem, const ek_plan_limits *l, const int64_t *counts, ek_plan *p)
{
    memory *m = mem;
    int64_t before, after;

    ek_plan_totals(l, counts, m->total);
    before = most_at_home(l, m->total, &p->placement);
    allocate(m, l);
    sort(m, l->experts);
    memset(m->load, 0, (size_t)l->ranks * sizeof(*m->load));
    memset(m->used, 0, (size_t)l->ranks * sizeof(*m->used));
    for (int32_t i = 0; i < l->experts; i++)
        put(m, l, m->order[i], p->placement.home[m->order[i]] / l->slots, p);
    after = most_of(l, p);
    p->before_s = (double)before * (l->costs.row_s + l->costs.send_s);
    p->after_s = (double)after * (l->costs.row_s + l->costs.send_s);
    if (p->explain)
        snprintf(p->why, sizeof(p->why),
                 "%d replicas bring the busiest rank from %lld to %lld assignments",
                 (int)(l->ranks * l->slots - l->experts), (long long)before, (long long)after);
    return EK_OK;
}

const ek_planner ek_planner_eplb = {
    .name = "eplb",
    .what = "replicas of the heaviest experts, packed longest first (DeepSeek's EPLB)",
    .lasting = 1,
    .take = take,
    .plan = plan};
