/* Ranges of a group's indices below switches, and sums over levels. */
#include "sim/level_ranks.h"

ek_rank_range ek_rank_range_of_switch(ek_ranks g, int64_t at, int64_t ranks)
{
    int64_t stride = g.stride > 0 ? g.stride : 1;
    int64_t from = at * ranks - g.first, to = from + ranks;

    from = from > 0 ? (from + stride - 1) / stride : 0;
    to = to > 0 ? (to + stride - 1) / stride : 0;
    from = from < g.n ? from : g.n;
    to = to < g.n ? to : g.n;
    return (ek_rank_range){(int32_t)from, (int32_t)to};
}

ek_rank_range ek_rank_range_below(const ek_cluster *c, ek_ranks g, int level, int64_t rank)
{
    int64_t ranks = c->level[level].ranks;

    if (level + 1 == c->n_levels)
        return (ek_rank_range){0, g.n};
    return ek_rank_range_of_switch(g, rank / ranks, ranks);
}

void ek_level_carried(const ek_cluster *c, const double *passed, double *carried)
{
    double sum = 0;

    for (int l = c->n_levels - 1; l >= 0; l--) {
        if (l + 1 < c->n_levels &&
            ek_level_is_inside_node(c, l) != ek_level_is_inside_node(c, l + 1))
            sum = 0;
        sum += passed[l];
        carried[l] = sum;
    }
}
