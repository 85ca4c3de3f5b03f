/* From speeds of expert ranks to the limits of planners. */
#include "moe/planning_speeds.h"

void ek_planning_speeds_reserve(ek_moe_planning *d, ek_arena *a, const ek_moe_config *cfg,
                                const ek_mesh *mesh)
{
    d->compute_s_per_row = cfg->costs.compute_s_per_row;
    d->speeds = (ek_rank_speeds){0};
    if (!cfg->follow_speeds || mesh->ep < 2)
        return;
    ek_rank_speeds_reserve(&d->speeds, a, mesh->edp * mesh->ep);
    d->speeds.group_rows = cfg->group_rows;
    d->mean_cost = ek_arena_alloc(a, mesh->ep, sizeof(*d->mean_cost));
}

/* Persistent placements are common to all groups. */
static void set_mean_costs(ek_moe_planning *d)
{
    int32_t ranks = d->limits.ranks, groups = d->speeds.ranks / ranks;

    for (int32_t r = 0; r < ranks; r++) {
        int32_t sum = 0;

        for (int32_t g = 0; g < groups; g++)
            sum += d->speeds.cost[g * ranks + r];
        d->mean_cost[r] = (sum + groups / 2) / groups;
    }
}

int ek_planning_speeds_add(ek_moe_planning *d, const double *seconds, const double *rows,
                           const double *groups)
{
    if (!ek_rank_speeds_add(&d->speeds, seconds, rows, groups))
        return 0;
    set_mean_costs(d);
    d->limits.row_cost = d->speeds.differ ? d->speeds.cost : NULL;
    d->limits.costs.compute_s_per_row = d->compute_s_per_row;
    if (d->speeds.differ && d->compute_s_per_row > 0)
        d->limits.costs.compute_s_per_row = d->speeds.median_row_s;
    return 1;
}
