/* moe/replica_prefetch.h - replicas planned from the previous micro-batch (Pro-Prophet's schedule),
 * as the loads of a layer change little from one micro-batch to the next.
 *
 *   Plan    during a layer's combine all-to-all, from the counts just served: what its slots hold
 *           in its next forward, in this step or the next.  "Next" is the order of the layer's
 *           forwards on its stage, the same on all of its ranks, however many micro-batches are in
 *           flight
 *   Trans   the fetch of the next routed layer's replicas, in forward and in backward.  With two
 *           sets of memory it starts when rows have arrived, as the links are idle while experts
 *           are multiplied (FEC and BEC in the paper), and continues under attention (FNEC, BNEC).
 *           With one set it starts when the products have read it.  The first layer of a virtual
 *           stage starts its fetch at its own beginning, as does every layer with --zero 3, where
 *           weights are gathered layer by layer.  In backward the first one is the stage's last
 *           layer, whose weights are sent under its own forward, where its backward is next
 *
 * At the gate the placement is fixed; the counts decide only how many rows each copy serves.  A
 * replica without rows still takes part in its expert's multicast and reduction.
 *
 * Planners with may_use_previous_counts (`auto`) do the same as long as, by what was predicted for
 * recent micro-batches, a layer takes less with such replicas than with those that are planned
 * after the gate and waited for; else they are planned after the gate. */
#ifndef MOE_REPLICA_PREFETCH_H
#define MOE_REPLICA_PREFETCH_H

#include "moe/build.h"

/* After the forward products (dep), during the combine all-to-all: the plan for the layer's next
 * forward. */
int32_t ek_moe_build_plan_from_previous(const ek_moe_builder *b, int32_t dep);

/* The prefetch of the replicas of m->ids.next_forward, or next_backward, if there is one, or of the
 * layer itself for m->ids.backward_micro.  dep: as for the following. */
void ek_moe_build_next_prefetch(const ek_moe_builder *b, int backward, int32_t dep);

/* Appends the prefetch of the replicas' weights for this layer's backward.  dep: an op by which the
 * last products that read the layer's set of memory are done.  No other products may use the set
 * before this layer's backward, and the packed weights that are sent must exist when dep is done.
 */
void ek_moe_build_backward_prefetch(ek_moe *m, ek_graph *g, int32_t micro, int32_t dep);

/* With a planner that uses_previous_counts or may_use_previous_counts, appends the prefetch of the
 * replicas' weights for this layer's next forward, unless one is pending; else appends nothing.
 * dep: an op by which the products that read the layer's set of memory are done and the packed
 * weights that are sent exist. */
void ek_moe_build_forward_prefetch(ek_moe *m, ek_graph *g, int32_t micro, int32_t dep);

#endif
