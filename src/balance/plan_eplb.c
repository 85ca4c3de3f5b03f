/* eplb: spare slots for the experts with the largest load per replica, packed longest first.
 *
 * Source       DeepSeek's Expert Parallelism Load Balancer (EPLB, 2025), its global policy: a
 *              baseline.
 * Formula      Every slot is filled.  Each expert has one replica; each further slot goes
 *              to the expert with the largest t_e / r_e, t_e its assignments and r_e its replicas
 *              so far. Then replicas, by descending t_e / r_e, go one by one to the least loaded
 *              rank with a vacant slot.  Ties go to the smaller expert and the smaller rank; loads
 *              per replica are compared as IEEE doubles.  All replicas of an expert serve equal
 *              shares, the first ones one assignment more where the division leaves a remainder.
 * Complexity   O(ranks experts) to add up the counts, O(slots_all log(slots_all)) to plan.
 * Departures   The primary copy stays on its rank if that gets a replica, else it is the first
 *              replica.  As in the source, the cost of moves is not considered. */
#include "balance/planner.h"

#include <stdio.h>
#include <string.h>

/* An expert with key -t_e / r_e, or a rank with its load; the smaller key comes first. */
typedef struct {
    double key;
    int32_t id;
} entry;

enum { BYTES = sizeof(double), DIGITS = 256 };

typedef struct {
    int64_t *total;            /* [experts] */
    int32_t *replicas;         /* [experts] */
    int32_t (*starts)[DIGITS]; /* [BYTES] radix sort: offsets of each byte value */
    entry *order, *buffer;     /* [experts] by descending t_e / r_e; buffer of the sort */
    int64_t *served;           /* [ranks] */
    int32_t *used;             /* [ranks] slots */
    entry *open;               /* heap of the ranks with vacant slots */
    int32_t n_open;
} memory;

static void *reserve_eplb(ek_arena *a, const ek_plan_limits *l)
{
    memory *m = ek_arena_alloc(a, 1, sizeof(*m)), measured;
    memory *at = m != NULL ? m : &measured;

    at->total = ek_arena_alloc(a, l->experts, sizeof(*at->total));
    at->replicas = ek_arena_alloc(a, l->experts, sizeof(*at->replicas));
    at->order = ek_arena_alloc(a, l->experts, sizeof(*at->order));
    at->starts = ek_arena_alloc(a, BYTES, sizeof(*at->starts));
    at->buffer = ek_arena_alloc(a, l->experts, sizeof(*at->buffer));
    at->served = ek_arena_alloc(a, l->ranks, sizeof(*at->served));
    at->open = ek_arena_alloc(a, l->ranks, sizeof(*at->open));
    at->used = ek_arena_alloc(a, l->ranks, sizeof(*at->used));
    return m;
}

/* --- heaps ------------------------------------------------------------------------------------ */

/* Whether a comes before b; branch-free, because the branches are unpredictable. */
static inline int comes_before(entry a, entry b)
{
    return (a.key < b.key) | (!(a.key > b.key) & (a.id < b.id));
}

/* Replaces heap[i] by e and restores the heap: the hole sinks to a leaf, then e rises, because it
 * is usually one of the last. */
static void sift_down(entry *heap, int32_t n, int32_t i, entry e)
{
    int32_t top = i;

    for (int32_t child; (child = 2 * i + 1) < n; i = child) {
        child += child + 1 < n && comes_before(heap[child + 1], heap[child]);
        heap[i] = heap[child];
    }
    for (; i > top && comes_before(e, heap[(i - 1) / 2]); i = (i - 1) / 2)
        heap[i] = heap[(i - 1) / 2];
    heap[i] = e;
}

/* --- the plan --------------------------------------------------------------------------------- */

static void update_key(memory *m, entry *e)
{
    e->key = -(double)m->total[e->id] / m->replicas[e->id];
}

/* The byte of a key that a pass sorts by, complemented: bits of negative doubles grow as the values
 * fall. */
static int byte_of_key(double key, int pass)
{
    uint64_t bits;

    memcpy(&bits, &key, sizeof(bits));
    return (int)(~(bits >> (8 * pass)) & 0xff);
}

/* Stable radix sort of m->order by key. */
static void sort_by_key(memory *m, int32_t n)
{
    memset(m->starts, 0, BYTES * sizeof(*m->starts));
    for (int32_t i = 0; i < n; i++)
        for (int pass = 0; pass < BYTES; pass++)
            m->starts[pass][byte_of_key(m->order[i].key, pass)]++;
    for (int pass = 0; pass < BYTES; pass++) {
        int32_t *start = m->starts[pass], at = 0;
        entry *sorted = m->buffer;

        if (start[byte_of_key(m->order[0].key, pass)] == n) /* all equal in this byte */
            continue;
        for (int d = 0; d < DIGITS; d++) {
            int32_t here = start[d];

            start[d] = at;
            at += here;
        }
        for (int32_t i = 0; i < n; i++)
            sorted[start[byte_of_key(m->order[i].key, pass)]++] = m->order[i];
        m->buffer = m->order;
        m->order = sorted;
    }
}

/* The same by insertion, for a nearly sorted order. */
static void sort_nearly_sorted(memory *m, int32_t n)
{
    for (int32_t i = 1; i < n; i++) {
        entry e = m->order[i];
        int32_t to = i;

        for (; to > 0 && comes_before(e, m->order[to - 1]); to--)
            m->order[to] = m->order[to - 1];
        m->order[to] = e;
    }
}

/* Fills m->replicas and m->order. */
static void allocate_replicas(memory *m, const ek_plan_limits *l)
{
    int32_t extra = l->ranks * l->slots - l->experts;

    for (int32_t e = 0; e < l->experts; e++) {
        m->replicas[e] = 1;
        m->order[e] = (entry){.id = e};
        update_key(m, &m->order[e]);
    }
    sort_by_key(m, l->experts);
    memcpy(m->buffer, m->order, (size_t)l->experts * sizeof(*m->buffer)); /* sorted, so a heap */
    while (extra-- > 0) {
        entry e = m->buffer[0];

        m->replicas[e.id]++;
        update_key(m, &e);
        sift_down(m->buffer, l->experts, 0, e);
    }
    for (int32_t i = 0; i < l->experts; i++)
        update_key(m, &m->order[i]);
    sort_nearly_sorted(m, l->experts);
}

/* Takes a slot of the least loaded rank with vacant slots and adds `weight` to its load. */
static int32_t take_slot(memory *m, const ek_plan_limits *l, double weight)
{
    entry r = m->open[0];
    int32_t slot = r.id * l->slots + m->used[r.id]++;

    r.key += weight;
    if (m->used[r.id] == l->slots)
        r = m->open[--m->n_open];
    sift_down(m->open, m->n_open, 0, r);
    return slot;
}

/* Places all replicas of an expert; was: its present primary rank. */
static void place_replicas(memory *m, const ek_plan_limits *l, entry x, int32_t was, ek_plan *p)
{
    int32_t e = x.id, n = m->replicas[e], primary = -1;
    int64_t each = n > 1 ? m->total[e] / n : m->total[e], longer = m->total[e] - each * n;

    for (int32_t i = 0; i < n; i++) {
        int32_t slot = take_slot(m, l, -x.key);

        p->placement.expert_of[slot] = e;
        p->quota[slot] = each + (i < longer);
        if (primary < 0 || (slot / l->slots == was && primary / l->slots != was))
            primary = slot;
    }
    p->placement.primary[e] = primary;
}

static int64_t most_at_primary(const ek_plan_limits *l, const int64_t *total,
                               const ek_placement *at)
{
    int64_t most = 0;

    for (int32_t r = 0; r < l->ranks; r++) {
        int64_t sum = 0;

        for (int32_t s = r * l->slots; s < (r + 1) * l->slots; s++)
            if (at->expert_of[s] >= 0 && at->primary[at->expert_of[s]] == s)
                sum += total[at->expert_of[s]];
        most = sum > most ? sum : most;
    }
    return most;
}

static ek_status plan_eplb(void *mem, const ek_plan_limits *l, const int64_t *counts, ek_plan *p)
{
    memory *m = mem;
    int64_t most, after;

    ek_plan_totals(l, counts, m->total);
    most = most_at_primary(l, m->total, &p->placement);
    allocate_replicas(m, l);
    memset(m->used, 0, (size_t)l->ranks * sizeof(*m->used));
    for (int32_t r = 0; r < l->ranks; r++) /* equal keys, ascending ids: a heap */
        m->open[r] = (entry){0, r};
    m->n_open = l->ranks;
    for (int32_t i = 0; i < l->experts; i++)
        place_replicas(m, l, m->order[i], p->placement.primary[m->order[i].id] / l->slots, p);
    after = ek_plan_loads(l, p, m->served);
    p->before_s = (double)most * (l->costs.compute_s_per_row + l->costs.comm_s_per_row);
    p->after_s = (double)after * (l->costs.compute_s_per_row + l->costs.comm_s_per_row);
    if (p->explain)
        snprintf(p->reason, sizeof(p->reason),
                 "%d replicas bring the busiest rank from %lld to %lld assignments",
                 (int)(l->ranks * l->slots - l->experts), (long long)most, (long long)after);
    return EK_OK;
}

const ek_planner ek_planner_eplb = {
    .name = "eplb",
    .what = "replicas of the heaviest experts, packed longest first (DeepSeek's EPLB)",
    .reserve = reserve_eplb,
    .plan_persistent = plan_eplb};
