/* Replicas planned one micro-batch ahead (Pro-Prophet's schedule): loads of a layer are much the
 * same from one micro-batch to the next.
 *
 *   Plan    while a layer's rows return, from the counts that have just been served: what its slots
 *           hold in its next forward, of this step or the next.  "Next" is in the order of the
 *           layer's forwards on its stage, which all of its ranks share: no matter how many
 *           micro-batches are in flight
 *   Trans   the weights of the next routed layer's replicas start then, as the slots' memory, which
 *           all layers share, has been read: under what is left of the exchange, the combine, the
 *           attention and the gate.  A first layer of a piece starts them at its own beginning, and
 *           so does each one where weights come layer by layer (--zero 3)
 *
 * At the gate the placement is there; counts decide who serves how much, no longer who has what.  A
 * replica may be left without rows; it is a member of its expert's messages all the same. */
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
