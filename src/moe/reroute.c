/* Re-routing: checks, memory, and which experts are on the node of a token's rank. */
#include "moe/reroute.h"

ek_status ek_reroute_check(const ek_model_spec *spec, const ek_moe_config *cfg)
{
    if (cfg->reroute == EK_REROUTE_OFF)
        return EK_OK;
    EK_REQUIRE(spec->gate.kind != EK_GATE_EXPERT_CHOICE, EK_EINVAL,
               "--reroute: this model's gate is expert choice, which needs no re-routing");
    EK_REQUIRE(spec->gate.groups == 0, EK_EINVAL,
               "--reroute does not support gates that are limited to groups of experts");
    EK_REQUIRE(!cfg->force_balance && cfg->replay == NULL, EK_EINVAL,
               "--reroute and %s exclude each other, as the latter replaces the gate's choice",
               cfg->force_balance ? "--force-balance" : "--replay-routing");
    EK_REQUIRE(cfg->reroute_limit >= 0 && cfg->reroute_limit <= 1, EK_EINVAL,
               "--reroute-limit is %g; it must be from 0 to 1", cfg->reroute_limit);
    return EK_OK;
}

void ek_reroute_reserve(ek_moe *m, ek_arena *a)
{
    int64_t experts = m->spec->experts;

    if (m->cfg->reroute == EK_REROUTE_TOPOLOGY)
        m->gate.allowed = ek_arena_alloc(a, m->mesh->tp * experts, sizeof(*m->gate.allowed));
    if (m->cfg->reroute == EK_REROUTE_SWIPE) {
        m->gate.allowed = ek_arena_alloc(a, experts, sizeof(*m->gate.allowed));
        m->gate.taken = ek_arena_alloc(a, experts, sizeof(*m->gate.taken));
    }
}

/* Whether all shards that serve a rank's rows for an expert are on that rank's node. */
static int is_near(const ek_moe *m, int rank, int64_t expert)
{
    int server = ek_dispatch_slot(&m->x, rank, expert) / m->x.slots * m->x.shards, near = 1;

    if (m->x.ranks == 1)
        return 1;
    for (int i = 0; i < m->x.shards; i++)
        near &= ek_comm_node(m->mesh->stage, server + i) == ek_comm_node(m->mesh->stage, rank);
    return near;
}

void ek_reroute_follow(ek_moe *m)
{
    int first = m->mesh->at - m->mesh->tp_rank;
    int64_t experts = m->spec->experts;

    if (m->cfg->reroute != EK_REROUTE_TOPOLOGY || !m->w->routed)
        return;
    for (int r = 0; r < m->mesh->tp; r++)
        for (int64_t e = 0; e < experts; e++)
            m->gate.allowed[r * experts + e] = (unsigned char)is_near(m, first + r, e);
}
