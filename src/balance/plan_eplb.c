/* eplb: replicas where an expert's load a replica is largest, packed longest first.
 *
 * Source: DeepSeek's Expert Parallelism Load Balancer (EPLB, 2025), its global policy: what others
 * are measured against.
 *
 * Formula: every slot is filled.  Each expert has one replica; each further slot goes to the expert
 * with the largest t_e / r_e, t_e its assignments and r_e its replicas so far.  Then replicas, by
 * falling t_e / r_e, go one by one to the rank with the least load that has room.  Among equals the
 * smaller expert and the smaller rank come first; loads a replica are compared as IEEE doubles.
 * All replicas of an expert serve alike, the first ones one assignment more where that does not
 * divide.
 *
 * Complexity: O(ranks experts) to add up the counts, O(slots_all log(slots_all)) to plan.
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
    int64_t *served;       /* [ranks] */
    int32_t *used;         /* [ranks] slots */
    int32_t *open, n_open; /* heap of the ranks that have room */
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
    at->served = ek_arena_take(a, l->ranks, sizeof(*at->served));
    at->load = ek_arena_take(a, l->ranks, sizeof(*at->load));
    at->open = ek_arena_take(a, l->ranks, sizeof(*at->open));
    at->used = ek_arena_take(a, l->ranks, sizeof(*at->used));
    return m;
}

/* --- heaps ------------------------------------------------------------------------------------ */

/* Whether a comes before b. */
typedef int (*order_fn)(const memory *m, int32_t a, int32_t b);

static int heavier_expert(const memory *m, int32_t a, int32_t b)
{
    return m->weight[a] > m->weight[b] || (m->weight[a] >= m->weight[b] && a < b);
}

static int lighter_rank(const memory *m, int32_t a, int32_t b)
{
    return m->load[a] < m->load[b] || (m->load[a] <= m->load[b] && a < b);
}

/* Lets entry i sink to where it belongs. */
static void sink(const memory *m, int32_t *heap, int32_t n, int32_t i, order_fn before)
{
    for (;;) {
        int32_t child = 2 * i + 1, entry = heap[i];

        if (child >= n)
            return;
        if (child + 1 < n && before(m, heap[child + 1], heap[child]))
            child++;
        if (!before(m, heap[child], entry))
            return;
        heap[i] = heap[child];
        heap[child] = entry;
        i = child;
    }
}

static void fill(const memory *m, int32_t *heap, int32_t n, order_fn before)
{
    for (int32_t i = 0; i < n; i++)
        heap[i] = i;
    for (int32_t i = n / 2; i-- > 0;)
        sink(m, heap, n, i, before);
}

/* --- the plan --------------------------------------------------------------------------------- */

/* How many replicas each expert has. */
static void allocate(memory *m, const ek_plan_limits *l)
{
    int32_t extra = l->ranks * l->slots - l->experts;

    for (int32_t e = 0; e < l->experts; e++) {
        m->replicas[e] = 1;
        m->weight[e] = (double)m->total[e];
    }
    fill(m, m->room, l->experts, heavier_expert);
    while (extra-- > 0) {
        int32_t e = m->room[0];

        m->replicas[e]++;
        m->weight[e] = (double)m->total[e] / m->replicas[e];
        sink(m, m->room, l->experts, 0, heavier_expert);
    }
}

/* Merges [a, b) and [b, end) of order, both by falling weight, in room. */
static void merge(const memory *m, int32_t a, int32_t b, int32_t end)
{
    int32_t i = a, j = b, k = a;

    while (i < b && j < end) {
        int first = m->weight[m->order[i]] >= m->weight[m->order[j]];

        m->room[k++] = m->order[first ? i : j];
        i += first;
        j += !first;
    }
    memcpy(m->room + k, m->order + i, (size_t)(b - i) * sizeof(*m->order));
    k += b - i; /* what is left of [b, end) stays where it is */
    memcpy(m->order + a, m->room + a, (size_t)(k - a) * sizeof(*m->order));
}

static void sort(memory *m, int32_t experts)
{
    for (int32_t e = 0; e < experts; e++)
        m->order[e] = e;
    for (int32_t run = 1; run < experts; run *= 2)
        for (int32_t a = 0; a + run < experts; a += 2 * run)
            merge(m, a, a + run, a + 2 * run < experts ? a + 2 * run : experts);
}

/* A slot of the rank with the least load that has room, which gets `weight`. */
static int32_t take_slot(memory *m, const ek_plan_limits *l, double weight)
{
    int32_t r = m->open[0], slot = r * l->slots + m->used[r]++;

    m->load[r] += weight;
    if (m->used[r] == l->slots)
        m->open[0] = m->open[--m->n_open];
    sink(m, m->open, m->n_open, 0, lighter_rank);
    return slot;
}

/* Puts all replicas of an expert; was: the rank of its home so far. */
static void put(memory *m, const ek_plan_limits *l, int32_t e, int32_t was, ek_plan *p)
{
    int32_t n = m->replicas[e], home = -1;
    int64_t each = n > 1 ? m->total[e] / n : m->total[e], longer = m->total[e] - each * n;

    for (int32_t i = 0; i < n; i++) {
        int32_t slot = take_slot(m, l, m->weight[e]);

        p->placement.expert_of[slot] = e;
        p->quota[slot] = each + (i < longer);
        if (home < 0 || (slot / l->slots == was && home / l->slots != was))
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
    m->n_open = l->ranks;
    fill(m, m->open, m->n_open, lighter_rank);
    for (int32_t i = 0; i < l->experts; i++)
        put(m, l, m->order[i], p->placement.home[m->order[i]] / l->slots, p);
    after = ek_plan_loads(l, p, m->served);
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
    .take = take,
    .slow = plan};
