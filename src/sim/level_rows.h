/* sim/level_rows.h - what ranks of a group send each other, by direction and level of a cluster:
 * rows of all-to-alls, replicas of experts.
 *
 * A plan gives some ranks more rows than they send, and keeps rows and replicas inside a node where
 * it can: so links of a level carry other shares than if all was spread evenly. */
#ifndef SIM_LEVEL_ROWS_H
#define SIM_LEVEL_ROWS_H

#include "sim/cluster.h"

/* Of a rank, by the level that rows pass, over those of an even spread; 0 where that has none. */
typedef struct {
    double sent[EK_CLUSTER_LEVELS], got[EK_CLUSTER_LEVELS];
} ek_level_rows;

/* rows [ep, ep]: from rank to rank of the group that begins at rank 0, whose ranks are etp ranks of
 * the world apart.  each: rows for each other rank in an even spread.  out, back [ep]: of the rows,
 * and of as many that come back. */
void ek_level_rows_of(const ek_cluster *c, int32_t ep, int32_t etp, const int64_t *rows,
                      double each, ek_level_rows *out, ek_level_rows *back);

#endif
