/* What follows from the settings of MoE layers. */
#include "moe/config.h"

#include "moe/dispatch_layout.h"

const ek_planner *ek_moe_planner_at(const ek_moe_config *c, int i)
{
    if (i == 0 || c->others == NULL)
        return i == 0 ? c->planner : NULL;
    return c->others[i - 1];
}

int ek_moe_may_place(const ek_moe_config *c)
{
    for (int i = 0; ek_moe_planner_at(c, i) != NULL; i++)
        if (ek_moe_planner_at(c, i)->plan_persistent != NULL)
            return 1;
    return 0;
}

int ek_moe_may_plan_transient(const ek_moe_config *c)
{
    for (int i = 0; ek_moe_planner_at(c, i) != NULL; i++)
        if (ek_moe_planner_at(c, i)->plan_transient != NULL)
            return 1;
    return 0;
}

int ek_moe_may_use_previous(const ek_moe_config *c)
{
    for (int i = 0; ek_moe_planner_at(c, i) != NULL; i++)
        if (ek_moe_planner_at(c, i)->uses_previous_counts ||
            ek_moe_planner_at(c, i)->may_use_previous_counts)
            return 1;
    return 0;
}

int32_t ek_moe_transient_slots(const ek_moe_config *c, const ek_model_spec *spec,
                               const ek_mesh *mesh, int32_t spare_slots)
{
    const ek_planner *p = c->planner;
    int32_t experts = (int32_t)spec->experts;
    ek_plan_limits l = {.experts = experts,
                        .ranks = mesh->ep,
                        .slots = (experts + mesh->ep - 1) / mesh->ep + spare_slots,
                        .replicas_min = c->replicas_min,
                        .keep_all_slots = c->keep_all_slots};

    return p != NULL && p->plan_transient != NULL && ek_planner_fills_slots(p)
               ? ek_planner_transient_slots(p, &l)
               : -1;
}

int ek_moe_cols(const ek_model_spec *spec)
{
    return (int)(spec->gate.kind == EK_GATE_EXPERT_CHOICE ? spec->experts : spec->top_k);
}

int ek_moe_max_members(const ek_moe_config *c, const ek_mesh *mesh)
{
    int most = c->gather_most > c->gather ? c->gather_most : c->gather;

    if (c->gather == EK_GATHER_ALL || c->gather_most == EK_GATHER_ALL)
        return mesh->etp;
    return most > 1 ? most : 1;
}

int ek_moe_traffic_r(const ek_moe_traffic *t, int etp)
{
    return t->gather == EK_GATHER_ALL ? 0 : etp / (t->gather > 1 ? t->gather : 1);
}

int ek_moe_replica_sets(const ek_moe_config *c)
{
    return c->gather != 0 || c->gather_most != 0 || c->replica_sets == 0 ? 1 : c->replica_sets;
}

int ek_moe_can_gather(const ek_moe_config *c, const ek_mesh *mesh, int gather)
{
    if (gather == EK_GATHER_ALL)
        return c->gather == EK_GATHER_ALL || c->gather_most == EK_GATHER_ALL;
    return gather >= 0 && gather <= ek_moe_max_members(c, mesh) &&
           mesh->etp % (gather > 1 ? gather : 1) == 0;
}

ek_status ek_moe_check_limits(const ek_model_spec *spec, const ek_mesh *mesh,
                              const ek_moe_limits *limits)
{
    int64_t per_token = (int64_t)ek_moe_cols(spec) * mesh->etp, rows;

    EK_REQUIRE(limits->tokens <= limits->total &&
                   !__builtin_mul_overflow(limits->total, per_token, &rows) && rows < INT32_MAX,
               EK_EOVERFLOW,
               "a micro-batch of %lld tokens, with up to %lld rows each, is too large: at most "
               "%d rows",
               (long long)limits->total, (long long)per_token, INT32_MAX - 1);
    return EK_OK;
}
