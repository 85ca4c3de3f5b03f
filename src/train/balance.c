/* Settings of a run's balance. */
#include "train/balance.h"

ek_status ek_run_read_balance(ek_run *r)
{
    const ek_train_config *c = r->cfg;
    const ek_planner *p = ek_planner_find(c->balance);

    EK_REQUIRE(p != NULL, EK_EINVAL, "no balance policy %s", c->balance);
    EK_REQUIRE(p->slow == NULL, EK_EINVAL,
               "--balance %s moves experts for good, which training does not do yet", c->balance);
    EK_REQUIRE(c->spare_slots >= 0 && c->replicas_min >= 1, EK_EINVAL,
               "%d spare slots, replicas on %d hosts", c->spare_slots, c->replicas_min);
    r->training.moe.planner = p != &ek_planner_off ? p : NULL;
    r->training.moe.replicas_min = c->replicas_min;
    return EK_OK;
}

void ek_run_set_balance(ek_run *r, ek_model_config *mc)
{
    if (r->mesh == NULL || r->mesh->ep == 1)
        r->training.moe.planner = NULL;
    if (r->training.moe.planner != NULL)
        mc->spare_slots = r->cfg->spare_slots;
}
