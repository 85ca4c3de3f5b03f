/* The time model, and plans with at most n replicas per link for rising n. */
#include "balance/replica_search.h"

#include <math.h>
#include <string.h>

void ek_replica_search_reserve(ek_replica_search *m, ek_arena *a, const ek_plan_limits *l)
{
    ek_alias_reserve(&m->alias, a, l);
    m->kept = ek_arena_alloc(a, (int64_t)l->ranks * l->slots, sizeof(*m->kept));
}

void ek_replica_search_set(ek_replica_search *m, const ek_plan_limits *l, int64_t busiest,
                           int64_t of)
{
    m->costs = l->costs;
    if (!(m->costs.compute_s_per_row + m->costs.comm_s_per_row > 0)) {
        m->costs.compute_s_per_row = 1;
        m->costs.replica_s = 0;
    }
    m->costs.compute_s_per_row /= (double)ek_row_cost_unit(l);
    m->cheapest = ek_row_cost_least(l);
    m->of = of > 0 ? (double)of : 1;
    m->busiest = busiest;
}

double ek_replica_search_time(const ek_replica_search *m, int64_t most, int32_t links)
{
    int64_t rows = most / m->cheapest, sent = rows > m->busiest ? rows : m->busiest;

    return ((double)most * m->costs.compute_s_per_row + (double)sent * m->costs.comm_s_per_row) /
               m->of +
           (links > 0 ? links * m->costs.replica_s : 0);
}

/* The largest weighted load for which the time is below `s` with `links` replicas per link; -1:
 * none. */
static int64_t load_for(const ek_replica_search *m, double s, int32_t links)
{
    double left = (s - links * m->costs.replica_s) * m->of;
    double cheapest = (double)m->cheapest;
    double load = left / (m->costs.compute_s_per_row + m->costs.comm_s_per_row / cheapest);

    if (load < (double)m->busiest * cheapest) { /* D determines the communication time */
        left -= (double)m->busiest * m->costs.comm_s_per_row;
        load = m->costs.compute_s_per_row > 0 ? left / m->costs.compute_s_per_row
               : left > 0                     ? (double)m->busiest * cheapest
                                              : -1;
    }
    return load < 0 ? -1 : load < 0x1p62 ? (int64_t)load : (int64_t)1 << 62;
}

int64_t ek_replica_search_level(const ek_replica_search *m, const ek_plan_limits *l)
{
    int64_t sum = 0;

    for (int32_t e = 0; e < l->experts; e++)
        sum += m->alias.total[e];
    return ek_row_costs_level(l, NULL, sum);
}

/* Searches moves with at most `links` replicas per link, for targets from `floor` upwards, and
 * keeps them if they lower the time.  Returns whether all ranks stay at or below `limit`. */
static int try_links(ek_replica_search *m, const ek_plan_limits *l, int64_t floor, int32_t links,
                     int64_t limit, ek_replica_outcome *best)
{
    int found = ek_alias_search(&m->alias, l, floor, links, limit);
    ek_replica_outcome now = {.most = m->alias.least, .n = m->alias.n_best};

    now.links = ek_alias_busiest_link(&m->alias, l);
    now.s = ek_replica_search_time(m, now.most, now.links);
    if (now.s < best->s) {
        *best = now;
        memcpy(m->kept, m->alias.best, (size_t)now.n * sizeof(*m->kept));
    }
    return found;
}

ek_replica_outcome ek_replica_search_run(ek_replica_search *m, const ek_plan_limits *l,
                                         int64_t most, double below)
{
    ek_replica_outcome best = {.s = ek_replica_search_time(m, most, 0), .most = most};
    int64_t floor = ek_replica_search_level(m, l), limit = INT64_MAX;
    double two = ek_replica_search_time(m, floor, 2), wanted = fmin(best.s, below);
    int one = ek_replica_search_time(m, ek_alias_bound_of_one(&m->alias, l), 1) <
              below; /* n = 1 may suffice */
    int32_t links;

    if (!(ek_replica_search_time(m, floor, 1) < wanted))
        return best;
    /* If n = 1 gets as low as the mean load would with n = 2, larger n cannot win. */
    if (m->costs.replica_s > 0 &&
        ((one && try_links(m, l, floor, 1, load_for(m, fmin(two, wanted), 1), &best)) ||
         two >= wanted))
        return best;
    if (below < best.s)
        limit = load_for(m, below, 1);
    if (!try_links(m, l, floor, INT32_MAX, limit, &best))
        return best;
    links = ek_alias_busiest_link(&m->alias, l);
    floor = m->alias.least; /* fewer replicas are not expected to reach a lower load */
    for (int32_t n = one ? 1 : 2;
         n < links && ek_replica_search_time(m, floor, n) < fmin(best.s, below); n++)
        (void)try_links(m, l, floor, n, load_for(m, fmin(best.s, below), n), &best);
    return best;
}
