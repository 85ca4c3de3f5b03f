/* exact: perfect balance after the gate, from the counts of the micro-batch itself.
 *
 * Source       UltraEP (arXiv 2606.04101), LLEP (arXiv 2601.17111) and MicroMoE (arXiv 2511.16947):
 *              transient replicas in spare slots, one expert's assignments split over its slots.
 *              The construction is Walker's alias method on ranks (alias_balance.h).
 * Formula      The smallest target load, weighted by what an assignment costs on a rank
 *              (row_costs.h), for which the construction leaves no rank above it, by bisection from
 *              the level that the ranks could reach if experts were divisible; small experts can
 *              leave gaps open.  Replicas that lower no maximum are dropped.
 * Complexity   O(ranks experts) to add up the counts, plus at most EK_ALIAS_SEARCH + 1 targets
 *              (alias_balance.c).
 *
 * Primary copies stay.  Balance comes first, then the fewest replicas; the cost of a replica is not
 * considered. */
#include "balance/alias_balance.h"

#include <stdio.h>

static void *reserve_exact(ek_arena *a, const ek_plan_limits *l)
{
    ek_alias *m = ek_arena_alloc(a, 1, sizeof(*m)), measured;

    ek_alias_reserve(m != NULL ? m : &measured, a, l);
    return m;
}

static ek_status plan_exact(void *mem, const ek_plan_limits *l, const int64_t *counts, ek_plan *p)
{
    ek_alias *m = mem;
    int64_t sum = 0, before, level;

    ek_plan_totals(l, counts, m->total);
    before = ek_alias_start(m, l, &p->placement);
    ek_plan_primaries_only(l, m->total, p);
    for (int32_t e = 0; e < l->experts; e++)
        sum += m->total[e];
    level = ek_row_costs_level(l, NULL, sum);
    (void)ek_alias_search(m, l, level, INT32_MAX, INT64_MAX);
    ek_alias_apply(m->best, m->n_best, p);
    p->before_s = ek_row_costs_seconds(l, before);
    p->after_s = ek_row_costs_seconds(l, m->least) + (m->n_best > 0 ? l->costs.replica_s : 0);
    if (p->explain)
        snprintf(p->reason, sizeof(p->reason),
                 "%d replica%s the busiest rank from %lld to %lld assignments%s, %.4f of the mean",
                 (int)m->n_best, m->n_best == 1 ? " brings" : "s bring",
                 ek_row_costs_shown(l, before), ek_row_costs_shown(l, m->least),
                 ek_row_costs_note(l),
                 sum > 0 ? (double)m->least / ek_row_costs_mean(l, sum) : 1.0);
    return EK_OK;
}

const ek_planner ek_planner_exact = {
    .name = "exact",
    .what = "replicas from this micro-batch's counts, assignments split (UltraEP and others)",
    .reserve = reserve_exact,
    .plan_transient = plan_exact};
