/* The ops of replicas that are planned from the previous micro-batch, and of prefetches. */
#include "moe/replica_prefetch.h"

#include "moe/replica_weights.h"
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
    return ek_moe_add(b, EK_OP_PLAN_REPLICAS, op_plan, -1,
                      ek_work_of_rows(m->x.ranks, (double)m->x.words),
                      (double)(m->x.ranks * m->x.words) * sizeof(ek_gate_stats), dep);
}

void ek_moe_build_next_prefetch(const ek_moe_builder *b, int backward, int32_t dep)
{
    ek_moe *forward = b->m->ids.next_forward, *back = b->m->ids.next_backward;

    if (!backward && forward != NULL)
        ek_moe_build_forward_prefetch(forward, b->g, b->micro, dep);
    if (!backward && b->m->ids.backward_micro >= 0)
        ek_moe_build_backward_prefetch(b->m, b->g, b->m->ids.backward_micro, dep);
    if (backward && back != NULL)
        ek_moe_build_backward_prefetch(back, b->g, b->micro, dep);
}

static ek_status op_prefetch(void *self, const ek_op *op)
{
    if (*op->state == NULL)
        ek_routing_plan_use_previous(self, ek_moe_route_of(self, op));
    return ek_replicas_fetch_forward(self, op);
}

void ek_moe_build_forward_prefetch(ek_moe *m, ek_graph *g, int32_t micro, int32_t dep)
{
    ek_moe_builder b = {.m = m, .g = g, .micro = micro};

    if (m->w->routed && ek_routing_plan_uses_previous(m) && m->ids.forward_fetch < 0)
        m->ids.forward_fetch = ek_replicas_add_prefetch(&b, op_prefetch, dep);
}

void ek_moe_build_backward_prefetch(ek_moe *m, ek_graph *g, int32_t micro, int32_t dep)
{
    ek_moe_builder b = {.m = m, .g = g, .micro = micro};

    if (m->w->routed)
        m->ids.backward_fetch = ek_replicas_build_fetch(&b, 1, dep).after;
}
