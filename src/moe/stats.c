/* Sums of a MoE layer over a step. */
#include "moe/stats.h"

#include <math.h>
#include <string.h>

void ek_moe_stats_reserve(ek_moe_stats *s, ek_arena *a, int64_t experts, int32_t ranks)
{
    s->load = ek_arena_alloc(a, experts, sizeof(*s->load));
    s->rank_rows = ek_arena_alloc(a, ranks, sizeof(*s->rank_rows));
    s->rank_groups = ek_arena_alloc(a, ranks, sizeof(*s->rank_groups));
    s->primary_rows = ek_arena_alloc(a, ranks, sizeof(*s->primary_rows));
    s->primary_before = ek_arena_alloc(a, ranks, sizeof(*s->primary_before));
}

void ek_moe_stats_clear(ek_moe_stats *s, int64_t experts, int32_t ranks)
{
    *s = (ek_moe_stats){.load = s->load,
                        .rank_rows = s->rank_rows,
                        .rank_groups = s->rank_groups,
                        .primary_rows = s->primary_rows,
                        .primary_before = s->primary_before};
    memset(s->load, 0, (size_t)experts * sizeof(*s->load));
    memset(s->rank_rows, 0, (size_t)ranks * sizeof(*s->rank_rows));
    memset(s->rank_groups, 0, (size_t)ranks * sizeof(*s->rank_groups));
    memset(s->primary_rows, 0, (size_t)ranks * sizeof(*s->primary_rows));
    memset(s->primary_before, 0, (size_t)ranks * sizeof(*s->primary_before));
}

static ek_rank_balance balance_of(const ek_dispatch_layout *x, const int64_t *rows)
{
    int ranks = x->ranks / x->shards;
    int64_t total = 0, most = 0;
    double mean, squares = 0;

    for (int r = 0; r < ranks; r++) {
        total += rows[r];
        most = rows[r] > most ? rows[r] : most;
    }
    if (total == 0)
        return (ek_rank_balance){1, 0};
    mean = (double)total / ranks;
    for (int r = 0; r < ranks; r++)
        squares += ((double)rows[r] - mean) * ((double)rows[r] - mean);
    return (ek_rank_balance){(double)most * ranks / (double)total, sqrt(squares / ranks) / mean};
}

ek_rank_balance ek_moe_rank_balance(const ek_moe_stats *s, const ek_dispatch_layout *x)
{
    return balance_of(x, x->ranks / x->ep_groups > 1 ? s->rank_rows : s->primary_rows);
}

ek_rank_balance ek_moe_primary_balance(const ek_moe_stats *s, const ek_dispatch_layout *x)
{
    return balance_of(x, s->primary_rows);
}

double ek_moe_rb(double before, double after)
{
    return before > 0 ? before / after : 1;
}
