/* sim/level_ranks.h - which ranks of a group meet at each level of a cluster, and which links carry
 * what passes a level.
 *
 * Ranks of a group are equidistant, so those below one switch are a range of its indices. */
#ifndef SIM_LEVEL_RANKS_H
#define SIM_LEVEL_RANKS_H

#include "base/ranks.h"
#include "sim/cluster.h"

/* Indices [first, end) of ranks of a group. */
typedef struct {
    int32_t first, end;
} ek_rank_range;

static inline int32_t ek_rank_range_length(ek_rank_range s)
{
    return s.end > s.first ? s.end - s.first : 0;
}

static inline ek_rank_range ek_rank_range_common(ek_rank_range a, ek_rank_range b)
{
    return (ek_rank_range){a.first > b.first ? a.first : b.first, a.end < b.end ? a.end : b.end};
}

/* The ranks of a group in [at * ranks, (at + 1) * ranks) of the world. */
ek_rank_range ek_rank_range_of_switch(ek_ranks g, int64_t at, int64_t ranks);

/* The ranks of a group below the switch of a level that a rank of the world is below.  What no
 * level holds together is below the last. */
ek_rank_range ek_rank_range_below(const ek_cluster *c, ek_ranks g, int level, int64_t rank);

/* Whether a level connects ranks of one node. */
static inline int ek_level_is_inside_node(const ek_cluster *c, int level)
{
    return c->level[level].ranks <= ek_cluster_node_ranks(c) && ek_cluster_node_ranks(c) > 1;
}

/* What a rank's link to each level carries, of what passes each level: links inside a node carry
 * all that passes this and higher levels of the node, links of the network likewise. */
void ek_level_carried(const ek_cluster *c, const double *passed, double *carried);

#endif
