/* The MoE layer as ops of a step graph: the order of its parts. */
#include "moe/moe.h"

#include "moe/build.h"
#include "moe/replica_prefetch.h"
#include "moe/replica_weights.h"
#include "moe/reroute.h"
#include "moe/router.h"
#include "moe/serving_copies.h"
#include "moe/token_dispatcher.h"

void ek_moe_begin_graph(ek_moe *m)
{
    m->ids.gradients = m->ids.reduce = m->ids.backward_fetch = m->ids.forward_fetch = -1;
    m->ids.next_forward = m->ids.next_backward = NULL;
    m->ids.backward_micro = -1;
    ek_replicas_begin_graph(m);
}

void ek_moe_begin_step(ek_moe *m)
{
    ek_serving_copies_clear(m);
    ek_moe_stats_clear(&m->stats, m->spec->experts, m->w->placement.ranks);
    m->mlp.micro = m->step->micro;
    m->mlp.act_slot_of = m->act_slot_of;
    ek_moe_begin_graph(m);
    ek_dispatch_layout_set_degree(&m->x, m->step->traffic.degree);
    ek_dispatch_layout_set_gather(&m->x, ek_moe_gather(m->cfg, m->step));
    ek_dispatch_layout_follow_placement(&m->x, &m->w->placement);
    ek_reroute_follow(m);
}

static int32_t build_routed_forward(const ek_moe_builder *b, int32_t dep)
{
    int32_t counts_op;

    if (!b->recompute) /* unless it was appended earlier */
        ek_moe_build_forward_prefetch(b->m, b->g, b->micro, dep);
    dep = ek_moe_build_router(b, &counts_op, dep);
    if (ek_moe_is_distributed(b->m))
        return ek_moe_build_dispatch(b, ek_moe_build_layout(b, counts_op));
    dep = ek_moe_build_dispatch(b, dep);
    return counts_op < 0 ? dep : ek_moe_build_layout(b, counts_op);
}

int32_t ek_moe_build_forward(ek_moe *m, ek_graph *g, int32_t micro, int64_t tokens, int recompute,
                             int32_t dep)
{
    ek_moe_builder b = ek_moe_builder_of(m, g, micro, tokens, recompute);
    ek_mlp_start shared = ek_mlp_start_forward(&m->mlp, g, micro, recompute, dep);

    dep = shared.after;
    if (m->w->routed)
        dep = build_routed_forward(&b, dep);
    if (m->w->mlp.present)
        dep = ek_mlp_build_forward(&m->mlp, g, micro, recompute, &shared, dep);
    return dep;
}

int32_t ek_moe_build_backward(ek_moe *m, ek_graph *g, int32_t micro, int64_t tokens, int32_t dep)
{
    ek_moe_builder b = ek_moe_builder_of(m, g, micro, tokens, 0);
    ek_mlp_start shared = ek_mlp_start_backward(&m->mlp, g, micro, dep);

    dep = shared.after;
    if (m->w->routed)
        dep = ek_moe_build_router_backward(&b, ek_moe_build_dispatch_backward(&b, dep));
    if (m->w->mlp.present)
        dep = ek_mlp_build_backward(&m->mlp, g, micro, &shared, dep);
    return dep;
}
