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

/* An expert by its negated t_e / r_e, or a rank by its load: what is smaller comes first. */
typedef struct {
    double key;
    int32_t id;
} entry;

enum { BYTES = sizeof(double), DIGITS = 256 };

typedef struct {
    int64_t *total;            /* [experts] */
    int32_t *replicas;         /* [experts] */
    int32_t (*starts)[DIGITS]; /* [BYTES] of a sort: where a byte's values go */
    entry *order, *room;       /* [experts] by falling t_e / r_e, and room to sort */
    int64_t *served;           /* [ranks] */
    int32_t *used;             /* [ranks] slots */
    entry *open;               /* heap of the ranks that have room */
    int32_t n_open;
} memory;

static void *reserve(ek_arena *a, const ek_plan_limits *l)
{
    memory *m = ek_arena_alloc(a, 1, sizeof(*m)), measured;
    memory *at = m != NULL ? m : &measured;

    at->total = ek_arena_alloc(a, l->experts, sizeof(*at->total));
    at->replicas = ek_arena_alloc(a, l->experts, sizeof(*at->replicas));
    at->order = ek_arena_alloc(a, l->experts, sizeof(*at->order));
    at->starts = ek_arena_alloc(a, BYTES, sizeof(*at->starts));
    at->room = ek_arena_alloc(a, l->experts, sizeof(*at->room));
    at->served = ek_arena_alloc(a, l->ranks, sizeof(*at->served));
    at->open = ek_arena_alloc(a, l->ranks, sizeof(*at->open));
    at->used = ek_arena_alloc(a, l->ranks, sizeof(*at->used));
    return m;
}

/* --- heaps ------------------------------------------------------------------------------------ */

/* Whether a comes before b; without branches, as none of them could be foretold. */
static inline int before(entry a, entry b)
{
    return (a.key < b.key) | (!(a.key > b.key) & (a.id < b.id));
}

/* Puts an entry where heap[i] is or below.  The hole goes down to a leaf first, and the entry up
 * from there: it is mostly one of the last. */
static void sink(entry *heap, int32_t n, int32_t i, entry e)
{
    int32_t top = i;

    for (int32_t child; (child = 2 * i + 1) < n; i = child) {
        child += child + 1 < n && before(heap[child + 1], heap[child]);
        heap[i] = heap[child];
    }
    for (; i > top && before(e, heap[(i - 1) / 2]); i = (i - 1) / 2)
        heap[i] = heap[(i - 1) / 2];
    heap[i] = e;
}

/* --- the plan --------------------------------------------------------------------------------- */

static void share(memory *m, entry *e)
{
    e->key = -(double)m->total[e->id] / m->replicas[e->id];
}

/* The byte of a key that a pass sorts by, largest first: bits of negative doubles grow as these
 * fall. */
static int digit(double key, int pass)
{
    uint64_t bits;

    memcpy(&bits, &key, sizeof(bits));
    return (int)(~(bits >> (8 * pass)) & 0xff);
}

/* order by its keys, by one byte after the other (radix sort); equals stay in order. */
static void sort(memory *m, int32_t n)
{
    memset(m->starts, 0, BYTES * sizeof(*m->starts));
    for (int32_t i = 0; i < n; i++)
        for (int pass = 0; pass < BYTES; pass++)
            m->starts[pass][digit(m->order[i].key, pass)]++;
    for (int pass = 0; pass < BYTES; pass++) {
        int32_t *start = m->starts[pass], at = 0;
        entry *sorted = m->room;

        if (start[digit(m->order[0].key, pass)] == n) /* all alike */
            continue;
        for (int d = 0; d < DIGITS; d++) {
            int32_t here = start[d];

            start[d] = at;
            at += here;
        }
        for (int32_t i = 0; i < n; i++)
            sorted[start[digit(m->order[i].key, pass)]++] = m->order[i];
        m->room = m->order;
        m->order = sorted;
    }
}

/* The same where few are out of order. */
static void sort_again(memory *m, int32_t n)
{
    for (int32_t i = 1; i < n; i++) {
        entry e = m->order[i];
        int32_t to = i;

        for (; to > 0 && before(e, m->order[to - 1]); to--)
            m->order[to] = m->order[to - 1];
        m->order[to] = e;
    }
}

/* How many replicas each expert has, and m->order. */
static void allocate(memory *m, const ek_plan_limits *l)
{
    int32_t extra = l->ranks * l->slots - l->experts;

    for (int32_t e = 0; e < l->experts; e++) {
        m->replicas[e] = 1;
        m->order[e] = (entry){.id = e};
        share(m, &m->order[e]);
    }
    sort(m, l->experts);
    memcpy(m->room, m->order, (size_t)l->experts * sizeof(*m->room)); /* in order: a heap */
    while (extra-- > 0) {
        entry e = m->room[0];

        m->replicas[e.id]++;
        share(m, &e);
        sink(m->room, l->experts, 0, e);
    }
    for (int32_t i = 0; i < l->experts; i++)
        share(m, &m->order[i]);
    sort_again(m, l->experts);
}

/* A slot of the rank with the least load that has room, which gets `weight`. */
static int32_t take_act_slot(memory *m, const ek_plan_limits *l, double weight)
{
    entry r = m->open[0];
    int32_t slot = r.id * l->slots + m->used[r.id]++;

    r.key += weight;
    if (m->used[r.id] == l->slots)
        r = m->open[--m->n_open];
    sink(m->open, m->n_open, 0, r);
    return slot;
}

/* Puts all replicas of an expert; was: the rank of its home so far. */
static void put(memory *m, const ek_plan_limits *l, entry x, int32_t was, ek_plan *p)
{
    int32_t e = x.id, n = m->replicas[e], primary = -1;
    int64_t each = n > 1 ? m->total[e] / n : m->total[e], longer = m->total[e] - each * n;

    for (int32_t i = 0; i < n; i++) {
        int32_t slot = take_act_slot(m, l, -x.key);

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

static ek_status plan(void *mem, const ek_plan_limits *l, const int64_t *counts, ek_plan *p)
{
    memory *m = mem;
    int64_t most, after;

    ek_plan_totals(l, counts, m->total);
    most = most_at_primary(l, m->total, &p->placement);
    allocate(m, l);
    memset(m->used, 0, (size_t)l->ranks * sizeof(*m->used));
    for (int32_t r = 0; r < l->ranks; r++) /* a heap as it is */
        m->open[r] = (entry){0, r};
    m->n_open = l->ranks;
    for (int32_t i = 0; i < l->experts; i++)
        put(m, l, m->order[i], p->placement.primary[m->order[i].id] / l->slots, p);
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
    .reserve = reserve,
    .plan_persistent = plan};
