/* Minimum-cost flows at a capacity, and the search for the least capacity. */
#include "balance/quota_flow.h"

#include <string.h>

enum { UNREACHED = INT32_MAX };

void ek_quota_flow_reserve(ek_quota_flow *f, ek_arena *a, const ek_plan_limits *l)
{
    int64_t all = (int64_t)l->ranks * l->slots, nodes = (int64_t)l->experts + l->ranks;

    f->load = ek_arena_alloc(a, l->ranks, sizeof(*f->load));
    f->capacity = ek_arena_alloc(a, l->ranks, sizeof(*f->capacity));
    f->unserved = ek_arena_alloc(a, l->experts, sizeof(*f->unserved));
    f->total = ek_arena_alloc(a, l->experts, sizeof(*f->total));
    f->local = ek_arena_alloc(a, all, sizeof(*f->local));
    f->first = ek_arena_alloc(a, (int64_t)l->experts + 1, sizeof(*f->first));
    f->slots = ek_arena_alloc(a, all, sizeof(*f->slots));
    f->distance = ek_arena_alloc(a, nodes, sizeof(*f->distance));
    f->cursor = ek_arena_alloc(a, nodes, sizeof(*f->cursor));
    f->from = ek_arena_alloc(a, nodes, sizeof(*f->from));
    f->queue = ek_arena_alloc(a, nodes, sizeof(*f->queue));
    f->mark = ek_arena_alloc(a, nodes, sizeof(*f->mark));
    f->used = ek_arena_alloc(a, all, sizeof(*f->used));
}

/* --- the graph -------------------------------------------------------------------------------- */

/* Fills f->used and f->local, and counts the slots of each expert in f->first. */
static void read_slots(ek_quota_flow *f, const ek_plan_limits *l, const int64_t *counts,
                       const ek_placement *p, const unsigned char *open)
{
    int32_t *seen = f->cursor; /* [experts] the last rank that holds the expert, from 1 */

    memset(seen, 0, (size_t)l->experts * sizeof(*seen));
    memset(f->first, 0, ((size_t)l->experts + 1) * sizeof(*f->first));
    for (int32_t r = 0, s = 0; r < l->ranks; r++, counts += l->experts)
        for (int32_t i = 0; i < l->slots; i++, s++) {
            int32_t e = p->expert_of[s];

            f->used[s] = e >= 0 && seen[e] != r + 1 && (open == NULL || open[s]);
            f->local[s] = f->used[s] ? counts[e] : 0;
            if (!f->used[s])
                continue;
            seen[e] = r + 1;
            f->first[e + 1]++;
        }
}

void ek_quota_flow_start(ek_quota_flow *f, const ek_plan_limits *l, const int64_t *counts,
                         const ek_placement *p)
{
    ek_quota_flow_start_in(f, l, counts, p, NULL);
}

void ek_quota_flow_start_in(ek_quota_flow *f, const ek_plan_limits *l, const int64_t *counts,
                            const ek_placement *p, const unsigned char *open)
{
    int32_t *next = f->cursor;

    ek_plan_totals(l, counts, f->total);
    read_slots(f, l, counts, p, open);
    for (int32_t e = 0; e < l->experts; e++)
        f->first[e + 1] += f->first[e];
    memcpy(next, f->first, (size_t)l->experts * sizeof(*next));
    for (int32_t s = 0; s < l->ranks * l->slots; s++)
        if (f->used[s])
            f->slots[next[p->expert_of[s]]++] = s;
}

void ek_quota_flow_prefer(ek_quota_flow *f, const ek_plan_limits *l, const ek_placement *p,
                          const unsigned char *open)
{
    for (int32_t s = 0; s < l->ranks * l->slots; s++)
        f->local[s] = f->used[s] && open[s] ? f->total[p->expert_of[s]] : 0;
}

/* Cost of one more assignment in a slot, and of one less. */
static int32_t cost_of_more(const ek_quota_flow *f, const int64_t *quota, int32_t slot)
{
    return quota[slot] >= f->local[slot];
}

static int32_t cost_of_less(const ek_quota_flow *f, const int64_t *quota, int32_t slot)
{
    return quota[slot] > f->local[slot] ? -1 : 0;
}

/* By how many the slot's quota can rise, or fall, at that cost. */
static int64_t room_for_more(const ek_quota_flow *f, const int64_t *quota, int32_t slot)
{
    return quota[slot] < f->local[slot] ? f->local[slot] - quota[slot] : INT64_MAX;
}

static int64_t room_for_less(const ek_quota_flow *f, const int64_t *quota, int32_t slot)
{
    return quota[slot] > f->local[slot] ? quota[slot] - f->local[slot] : quota[slot];
}

/* --- a phase ---------------------------------------------------------------------------------- */

/* The nodes that wait for their arcs to be relaxed, as a ring. */
typedef struct {
    int32_t *node;
    int32_t size, begin, n;
} ring;

static void enter_node(ek_quota_flow *f, ring *q, int32_t node, int32_t distance, int32_t slot)
{
    if (distance >= f->distance[node])
        return;
    f->distance[node] = distance;
    f->from[node] = slot;
    if (f->mark[node])
        return;
    f->mark[node] = 1;
    q->node[(q->begin + q->n++) % q->size] = node;
}

static void relax_expert(ek_quota_flow *f, const ek_plan_limits *l, const int64_t *quota, ring *q,
                         int32_t e)
{
    for (int32_t i = f->first[e]; i < f->first[e + 1]; i++) {
        int32_t s = f->slots[i];

        enter_node(f, q, l->experts + s / l->slots, f->distance[e] + cost_of_more(f, quota, s), s);
    }
}

static void relax_rank(ek_quota_flow *f, const ek_plan_limits *l, const ek_placement *p,
                       const int64_t *quota, ring *q, int32_t r)
{
    for (int32_t s = r * l->slots; s < (r + 1) * l->slots; s++)
        if (f->used[s] && quota[s] > 0)
            enter_node(f, q, p->expert_of[s],
                       f->distance[l->experts + r] + cost_of_less(f, quota, s), s);
}

/* Distances from the experts that are not served in full (Bellman and Ford).  Returns that of the
 * nearest rank below the capacity; UNREACHED: none is reached. */
static int32_t find_distances(ek_quota_flow *f, const ek_plan_limits *l, const ek_placement *p,
                              const int64_t *quota)
{
    int32_t nodes = l->experts + l->ranks, nearest = UNREACHED;
    ring q = {.node = f->queue, .size = nodes};

    memset(f->mark, 0, (size_t)nodes);
    for (int32_t v = 0; v < nodes; v++)
        f->distance[v] = UNREACHED;
    for (int32_t e = 0; e < l->experts; e++)
        if (f->unserved[e] > 0)
            enter_node(f, &q, e, 0, -1);
    while (q.n > 0) {
        int32_t v = q.node[q.begin];

        q.begin = (q.begin + 1) % q.size;
        q.n--;
        f->mark[v] = 0;
        if (v < l->experts)
            relax_expert(f, l, quota, &q, v);
        else
            relax_rank(f, l, p, quota, &q, v - l->experts);
    }
    for (int32_t r = 0; r < l->ranks; r++)
        if (f->load[r] < f->capacity[r] && f->distance[l->experts + r] < nearest)
            nearest = f->distance[l->experts + r];
    return nearest;
}

/* The next node, not tried yet, by an arc of a shortest path; -1: none. */
static int32_t next_of_expert(ek_quota_flow *f, const ek_plan_limits *l, const int64_t *quota,
                              int32_t e)
{
    for (; f->cursor[e] < f->first[e + 1]; f->cursor[e]++) {
        int32_t s = f->slots[f->cursor[e]], v = l->experts + s / l->slots;

        if (!f->mark[v] && f->distance[v] == f->distance[e] + cost_of_more(f, quota, s)) {
            f->from[v] = s;
            return v;
        }
    }
    return -1;
}

static int32_t next_of_rank(ek_quota_flow *f, const ek_plan_limits *l, const ek_placement *p,
                            const int64_t *quota, int32_t r)
{
    int32_t v = l->experts + r;

    for (; f->cursor[v] < (r + 1) * l->slots; f->cursor[v]++) {
        int32_t s = f->cursor[v], e = p->expert_of[s];

        if (f->used[s] && quota[s] > 0 && !f->mark[e] &&
            f->distance[e] == f->distance[v] + cost_of_less(f, quota, s)) {
            f->from[e] = s;
            return e;
        }
    }
    return -1;
}

/* The node before one on the path. */
static int32_t node_before(const ek_quota_flow *f, const ek_plan_limits *l, const ek_placement *p,
                           int32_t node)
{
    int32_t s = f->from[node];

    return node < l->experts ? l->experts + s / l->slots : p->expert_of[s];
}

/* Depth-first search of a shortest path from an expert to a rank below the capacity at distance
 * `nearest`; returns that rank, or -1. */
static int32_t find_path(ek_quota_flow *f, const ek_plan_limits *l, const ek_placement *p,
                         const int64_t *quota, int32_t nearest, int32_t expert)
{
    int32_t v = expert, next;

    f->mark[v] = 1;
    for (;;) {
        if (v >= l->experts && f->distance[v] == nearest &&
            f->load[v - l->experts] < f->capacity[v - l->experts])
            return v - l->experts;
        next = v < l->experts ? next_of_expert(f, l, quota, v)
                              : next_of_rank(f, l, p, quota, v - l->experts);
        if (next < 0 && v == expert)
            return -1;
        if (next >= 0)
            f->mark[next] = 1;
        v = next >= 0 ? next : node_before(f, l, p, v);
    }
}

/* Serves as many of an expert's assignments as the path to a rank takes.  Its nodes may be tried
 * again. */
static void push_path(ek_quota_flow *f, const ek_plan_limits *l, const ek_placement *p,
                      int32_t expert, int32_t rank, int64_t *quota)
{
    int64_t n = f->unserved[expert], room_of_rank = f->capacity[rank] - f->load[rank];

    n = room_of_rank < n ? room_of_rank : n;
    for (int32_t v = l->experts + rank; v != expert; v = node_before(f, l, p, v)) {
        int64_t room = v < l->experts ? room_for_less(f, quota, f->from[v])
                                      : room_for_more(f, quota, f->from[v]);

        n = room < n ? room : n;
    }
    for (int32_t v = l->experts + rank; v != expert; v = node_before(f, l, p, v)) {
        quota[f->from[v]] += v < l->experts ? -n : n;
        f->mark[v] = 0;
    }
    f->mark[expert] = 0;
    f->load[rank] += n;
    f->unserved[expert] -= n;
}

/* Serves assignments along shortest paths, as many as are found; returns whether any was. */
static int push_shortest(ek_quota_flow *f, const ek_plan_limits *l, const ek_placement *p,
                         int64_t *quota)
{
    int32_t nearest = find_distances(f, l, p, quota), rank;

    if (nearest == UNREACHED)
        return 0;
    memset(f->mark, 0, (size_t)l->experts + (size_t)l->ranks);
    memcpy(f->cursor, f->first, (size_t)l->experts * sizeof(*f->cursor));
    for (int32_t r = 0; r < l->ranks; r++)
        f->cursor[l->experts + r] = r * l->slots;
    for (int32_t e = 0; e < l->experts; e++)
        while (f->unserved[e] > 0 && f->distance[e] == 0 && !f->mark[e] &&
               (rank = find_path(f, l, p, quota, nearest, e)) >= 0)
            push_path(f, l, p, e, rank, quota);
    return 1;
}

/* --- weighted loads
 * ------------------------------------------------------------------------------- */

/* What costs nothing: each slot serves its own rank's, as far as the capacity allows. */
static void serve_local(ek_quota_flow *f, const ek_plan_limits *l, const ek_placement *p,
                        int64_t *quota)
{
    memcpy(f->unserved, f->total, (size_t)l->experts * sizeof(*f->unserved));
    for (int32_t r = 0, s = 0; r < l->ranks; r++) {
        f->load[r] = 0;
        for (int32_t i = 0; i < l->slots; i++, s++) {
            int64_t left = f->capacity[r] - f->load[r];

            quota[s] = f->local[s] < left ? f->local[s] : left;
            if (quota[s] > 0 && quota[s] > f->unserved[p->expert_of[s]])
                quota[s] = f->unserved[p->expert_of[s]];
            f->load[r] += quota[s];
            if (quota[s] > 0)
                f->unserved[p->expert_of[s]] -= quota[s];
        }
    }
}

static int64_t sum_of(const int64_t *x, int32_t n)
{
    int64_t sum = 0;

    for (int32_t i = 0; i < n; i++)
        sum += x[i];
    return sum;
}

int64_t ek_quota_flow_within(ek_quota_flow *f, const ek_plan_limits *l, const ek_placement *p,
                             int64_t weighted, int64_t *quota)
{
    ek_row_costs_capacities(l, weighted, f->capacity);
    serve_local(f, l, p, quota);
    while (push_shortest(f, l, p, quota))
        ;
    return sum_of(f->unserved, l->experts);
}

/* What the ranks reached by experts that are not served in full must have at least, one of them. */
static int64_t bound_by_cut(ek_quota_flow *f, const ek_plan_limits *l)
{
    int64_t assignments = 0;

    for (int32_t e = 0; e < l->experts; e++)
        assignments += f->distance[e] < UNREACHED ? f->total[e] : 0;
    for (int32_t r = 0; r < l->ranks; r++)
        f->mark[r] = f->distance[l->experts + r] < UNREACHED;
    return ek_row_costs_level(l, f->mark, assignments);
}

int64_t ek_quota_flow_level(const ek_quota_flow *f, const ek_plan_limits *l)
{
    return ek_row_costs_level(l, NULL, sum_of(f->total, l->experts));
}

int64_t ek_quota_flow_least(ek_quota_flow *f, const ek_plan_limits *l, const ek_placement *p,
                            int64_t *quota)
{
    int64_t weighted = ek_quota_flow_level(f, l);

    while (ek_quota_flow_within(f, l, p, weighted, quota) > 0)
        weighted = bound_by_cut(f, l);
    return weighted;
}

int ek_quota_flow_is_short(const ek_quota_flow *f, int32_t expert)
{
    return f->distance[expert] < UNREACHED;
}
