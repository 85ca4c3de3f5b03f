/* Rows and replicas by expert rank, added to the sums of the step. */
#include "moe/routing_traffic.h"

#include "moe/serving_copies.h"

#include <math.h>
#include <string.h>

/* Counts of every expert rank in a micro-batch (ek_planning_scratch.traffic): rows computed, sent
 * and received, replicas received and sent. */
enum { ROWS_SERVED, ROWS_OUT, ROWS_IN, REPLICAS_IN, REPLICAS_OUT, KINDS };

int64_t *ek_routing_traffic_reserve(ek_arena *a, const ek_mesh *mesh)
{
    return ek_arena_alloc(a, (int64_t)KINDS * mesh->edp * mesh->ep, sizeof(int64_t));
}

void ek_routing_traffic_begin(ek_moe *m)
{
    memset(m->planning->scratch.traffic, 0,
           (size_t)KINDS * (size_t)m->w->placement.ranks * sizeof(int64_t));
}

/* Whether a slot holds a persistent copy. */
static int is_persistent(const ek_moe *m, int32_t slot)
{
    return m->w->placement.expert_of[slot] >= 0;
}

void ek_routing_traffic_count_replicas(ek_moe *m, const ek_placement *p, int ep_group, int32_t late)
{
    ek_moe_planning *d = m->planning;
    int32_t first = ep_group * p->ranks * p->slots;
    int64_t *gets = d->scratch.traffic + (int64_t)REPLICAS_IN * m->w->placement.ranks +
                    (int64_t)ep_group * p->ranks;
    int64_t *gives = gets + (REPLICAS_OUT - REPLICAS_IN) * m->w->placement.ranks;

    memset(d->scratch.total, 0, (size_t)p->experts * sizeof(*d->scratch.total));
    for (int32_t s = 0; s < p->ranks * p->slots; s++) {
        if (!ek_plan_is_replica(p, s))
            continue;
        m->stats.replicas++;
        if (is_persistent(m, first + s))
            continue;
        m->stats.ahead += late >= 0;
        gets[s / p->slots]++;
        if (d->scratch.total[p->expert_of[s]]++ == 0)
            gives[p->primary[p->expert_of[s]] / p->slots]++;
    }
    m->stats.ahead -= late >= 0 ? late : 0;
}

static double max_over_ranks(const ek_moe *m, int kind)
{
    int32_t ranks = m->w->placement.ranks;
    const int64_t *of = m->planning->scratch.traffic + (int64_t)kind * ranks;
    int64_t most = 0;

    for (int32_t r = 0; r < ranks; r++)
        most = of[r] > most ? of[r] : most;
    return (double)most;
}

/* Adds the rows that a rank's chunk sends to an expert rank, and marks their slots; returns their
 * number. */
static int64_t rows_to(const int32_t *rows, int32_t slots, unsigned char *used)
{
    int64_t n = 0;

    for (int32_t s = 0; s < slots; s++) {
        n += rows[s];
        used[s] |= rows[s] > 0;
    }
    return n;
}

/* Adds the slots that have rows in a chunk to those of their expert ranks. */
static void count_groups(ek_moe *m)
{
    const unsigned char *used = m->planning->scratch.used;

    for (int32_t at = 0; at < m->w->placement.ranks; at++)
        for (int32_t s = 0; s < m->x.slots; s++)
            m->stats.rank_groups[at] += *used++;
}

/* Counts the rows that each expert rank computes, receives from others and sends to others. */
static void count_rows(ek_moe *m, const ek_moe_route *route)
{
    const ek_dispatch_layout *x = &m->x;
    const int32_t *rows = route->row_counts;
    unsigned char *used = m->planning->scratch.used;
    int32_t ranks = m->w->placement.ranks;
    int64_t *served = m->planning->scratch.traffic, *sent = served + ROWS_OUT * ranks,
            *got = served + ROWS_IN * ranks;

    for (int chunk = 0; chunk < x->token_chunks; chunk++) {
        memset(used, 0, (size_t)x->all_slots);
        for (int source = 0; source < x->ranks; source++)
            for (int32_t at = 0; at < ranks; at++, rows += x->slots) {
                int32_t from = source / x->shards;
                int64_t n = rows_to(rows, x->slots, used + at * x->slots);

                served[at] += n;
                sent[from] += at != from ? n : 0;
                got[at] += at != from ? n : 0;
            }
        count_groups(m);
        ek_serving_copies_add(m, used, route->expert_of);
    }
}

/* Adds the assignments that the busiest rank has less than it would have in the initial placement,
 * weighted by speed. */
static void add_saved_rows(ek_moe *m)
{
    const ek_moe_planning *d = m->planning;
    double initial = 0, served = 0;

    for (int32_t r = 0; r < m->w->placement.ranks; r++) {
        double slower = d->speeds.differ ? (double)d->speeds.cost[r] / EK_ROW_COST_ONE : 1;
        int64_t rows = m->stats.primary_rows[r] - m->stats.primary_before[r];

        initial = fmax(initial, (double)rows * slower);
        served = fmax(served, (double)d->scratch.traffic[r] * slower);
    }
    m->stats.saved_rows += initial - served;
}

/* Adds the slices that ranks fetch to the sums of the step. */
static void count_slices(ek_moe *m, const ek_moe_route *route)
{
    const ek_dispatch_layout *x = &m->x;
    int64_t shards = x->shards, members = x->members;

    for (int32_t s = 0; s < x->all_slots; s++)
        if (route->expert_of[s] >= 0)
            m->stats.slices += shards * (is_persistent(m, s) ? members - 1 : members);
}

/* Adds the micro-batch to the sums of the step. */
void ek_routing_traffic_add(ek_moe *m, const ek_moe_route *route, int planned)
{
    double members = m->x.members;

    count_slices(m, route);
    count_rows(m, route);
    for (int32_t r = 0; r < m->w->placement.ranks; r++) {
        m->stats.rank_rows[r] += m->planning->scratch.traffic[r];
        m->stats.work.rows += (double)m->planning->scratch.traffic[r];
    }
    m->stats.work.busiest += max_over_ranks(m, ROWS_SERVED);
    /* A shard has 1 / members of its expert rank's rows, and `members` slices of each expert. */
    m->stats.work.link += fmax(max_over_ranks(m, ROWS_OUT), max_over_ranks(m, ROWS_IN)) / members;
    if (planned)
        m->stats.work.replicas +=
            fmax(max_over_ranks(m, REPLICAS_IN), max_over_ranks(m, REPLICAS_OUT)) * members;
    m->stats.work.replicas += (members - 1) * m->x.experts / m->mesh->ep;
    if (planned && !m->x.local)
        add_saved_rows(m);
    memcpy(m->stats.primary_before, m->stats.primary_rows,
           (size_t)m->w->placement.ranks * sizeof(*m->stats.primary_rows));
}
