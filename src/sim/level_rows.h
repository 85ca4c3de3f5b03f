/* sim/level_rows.h - what ranks of a group send each other, by direction and level of a cluster:
 * rows of all-to-alls, replicas of experts.
 *
 * A plan gives some ranks more rows than they send, and keeps rows and replicas inside a node where
 * it can: so links of a level carry other shares than if all was spread evenly. */
#ifndef SIM_LEVEL_ROWS_H
#define SIM_LEVEL_ROWS_H

#include "sim/level_ranks.h"

/* Of a rank, by the level that rows pass, over those of an even spread; 0 where that has none. */
typedef struct {
    double sent[EK_CLUSTER_LEVELS], got[EK_CLUSTER_LEVELS];
} ek_level_rows;

/* The ep expert ranks of the group that begins at rank 0, each of etp ranks of the world. */
typedef struct {
    const ek_cluster *cluster;
    int32_t ep, etp;
    int32_t shards; /* ranks of each expert rank that what is sent goes to, also of the sender's:
                       etp, or 1: the one with the sender's shard alone */
    double each;    /* sent to each of them in an even spread */
} ek_level_group;

/* rows [ep, ep]: from expert rank to expert rank.  out, back [ep]: of the rows of the first rank of
 * each, and of as many that come back. */
void ek_level_rows_of(const ek_level_group *g, const int64_t *rows, ek_level_rows *out,
                      ek_level_rows *back);

/* How long the links that each rank [ep] passes carry these rows, or as many that come back, over
 * how long the slowest carry an even spread: the busier direction of the busiest level.  Ranks of
 * the group that share a link (`shared_by`) all wait until it has carried the rows of all.
 * scratch [ep]. */
void ek_level_wires_of(const ek_level_group *g, const int64_t *rows, ek_level_rows *scratch,
                       double *wires);

#endif
