/* Replicas planned from the previous micro-batch (Pro-Prophet's schedule), as the loads of a layer
 * change little from one micro-batch to the next.
 *
 *   Plan    during a layer's combine all-to-all, from the counts just served: what its slots hold
 *           in its next forward, in this step or the next.  "Next" is the order of the layer's
 *           forwards on its stage, the same on all of its ranks, however many micro-batches are in
 *           flight
 *   Trans   then the fetch of the next routed layer's replicas starts, since the replica memory,
 *           which all layers share, has been read.  It overlaps with the rest of the all-to-all,
 *           unpermute, attention and the gate.  The first layer of a virtual stage starts its fetch
 *           at its own beginning, as does every layer with --zero 3, where weights are gathered
 *           layer by layer
 *
 * At the gate the placement is fixed; the counts decide only how many rows each copy serves.  A
 * replica without rows still takes part in its expert's multicast and reduction. */
#include "moe/moe_priv.h"
#include "moe/routing_plan.h"

static ek_status op_plan(void *self, const ek_op *op)
{
    ek_moe *m = self;

    ek_routing_plan_from_previous(m, ek_moe_activations_of(m, op)->gate_stats);
    return EK_OK;
}

int32_t ek_moe_build_plan_from_previous(const ek_moe_builder *b, int32_t dep)
{
    ek_moe *m = b->m;

    if (!ek_routing_plan_uses_previous(m))
        return dep;
    dep = ek_moe_add(b, EK_OP_PLAN_REPLICAS, op_plan, -1, 0,
                     (double)(m->x.ranks * m->x.words) * sizeof(ek_gate_stats), dep);
    if (m->next_moe != NULL)
        ek_moe_build_forward_prefetch(m->next_moe, b->g, b->micro, dep);
    return dep;
}
