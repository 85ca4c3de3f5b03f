/* Settings of a run's balance. */
#include "train/balance.h"

ek_status ek_run_read_balance(ek_run *r)
{
    const ek_train_config *c = r->cfg;
    const ek_planner *p = ek_planner_find(c->balance);

    EK_REQUIRE(p != NULL, EK_EINVAL, "no balance policy %s", c->balance);
    EK_REQUIRE(c->spare_slots >= 0 && c->replicas_min >= 1, EK_EINVAL,
               "%d spare slots, replicas on %d hosts", c->spare_slots, c->replicas_min);
    r->training.moe.planner = p != &ek_planner_off ? p : NULL;
    r->training.moe.replicas_min = c->replicas_min;
    r->training.moe.plan_every = c->plan_every;
    return EK_OK;
}

ek_status ek_run_set_balance(ek_run *r, ek_model_config *mc)
{
    const ek_planner *p;

    if (r->mesh == NULL || r->mesh->ep == 1)
        r->training.moe.planner = NULL;
    p = r->training.moe.planner;
    if (p == NULL)
        return EK_OK;
    mc->spare_slots = r->cfg->spare_slots;
    mc->lasting_slots = p->fast == NULL;
    if (p->slow == NULL || r->cfg->zero == 0 || r->mesh->edp == 1)
        return EK_OK;
    EK_REQUIRE(p->fast != NULL, EK_EINVAL,
               "--balance %s moves experts with their state, and --zero %d has cut that over the "
               "%d ranks that hold the same experts; take --zero 0, more --ep, or exact",
               p->name, r->cfg->zero, r->mesh->edp);
    r->training.moe.plan_every = 0;
    return EK_OK;
}
