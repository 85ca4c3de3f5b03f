/* Sums of a MoE layer over a step. */
#include "moe/stats.h"

#include <string.h>

void ek_moe_stats_reserve(ek_moe_stats *s, ek_arena *a, int64_t experts, int32_t ranks)
{
    s->load = ek_arena_alloc(a, experts, sizeof(*s->load));
    s->rank_rows = ek_arena_alloc(a, ranks, sizeof(*s->rank_rows));
    s->primary_rows = ek_arena_alloc(a, ranks, sizeof(*s->primary_rows));
}

void ek_moe_stats_clear(ek_moe_stats *s, int64_t experts, int32_t ranks)
{
    *s =
        (ek_moe_stats){.load = s->load, .rank_rows = s->rank_rows, .primary_rows = s->primary_rows};
    memset(s->load, 0, (size_t)experts * sizeof(*s->load));
    memset(s->rank_rows, 0, (size_t)ranks * sizeof(*s->rank_rows));
    memset(s->primary_rows, 0, (size_t)ranks * sizeof(*s->primary_rows));
}

static double max_over_mean(const ek_dispatch_layout *x, const int64_t *rows)
{
    int ranks = x->ranks / x->shards;
    int64_t total = 0, most = 0;

    for (int r = 0; r < ranks; r++) {
        total += rows[r];
        most = rows[r] > most ? rows[r] : most;
    }
    return total > 0 ? (double)most * ranks / (double)total : 1;
}

double ek_moe_rank_max_over_mean(const ek_moe_stats *s, const ek_dispatch_layout *x)
{
    return max_over_mean(x, x->ranks / x->ep_groups > 1 ? s->rank_rows : s->primary_rows);
}

double ek_moe_primary_max_over_mean(const ek_moe_stats *s, const ek_dispatch_layout *x)
{
    return max_over_mean(x, s->primary_rows);
}
