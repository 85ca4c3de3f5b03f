/* train/failure_parts.h - which nodes hold the parts of a simulated run's model: of experts by the
 * policy's persistent placement, as training makes it; of other weights by the layout. */
#ifndef TRAIN_FAILURE_PARTS_H
#define TRAIN_FAILURE_PARTS_H

#include "balance/trace.h"
#include "sim/cluster.h"
#include "sim/graphs.h"

/* Collects the replica sets of all parts of a layout by node, in an arena that the caller frees,
 * also after a failure.  g: say which layers a stage has.  trace: its sums are the loads, spread
 * over the model's layers (sim/loads.h); NULL: even ones.  EK_ENOMEM, or a failure of the planner.
 */
EK_CHECKED ek_status ek_failure_parts(const ek_sim_layout *l, const ek_sim_graphs *g,
                                      const ek_cluster *c, const ek_trace *trace, ek_arena *a,
                                      ek_replica_sets *out);

#endif
