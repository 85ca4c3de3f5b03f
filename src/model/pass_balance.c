/* The slow half of balance: between steps, placements of experts that last, from the loads of the
 * steps before. */
#include "model/pass.h"
#include "moe/deal.h"
#include "moe/reroute.h"

#include <string.h>

static int is_balanced(const ek_pass *p, int64_t l)
{
    const ek_moe *m = &p->moe[l];

    return ek_model_has_layer(p->model, l) && m->w->routed && m->history.counts != NULL &&
           !m->dealer->failed;
}

/* Replicas in a layer's placement. */
static int32_t count_replicas(const ek_moe *m)
{
    const ek_placement *p = &m->w->placement;
    int32_t all = m->dealer->limits.ranks * p->slots, n = 0;

    for (int32_t s = 0; s < all; s++)
        n += ek_plan_is_replica(p, s);
    return n;
}

static void place_layer(ek_pass *p, int64_t l)
{
    ek_moe *m = &p->moe[l];
    const ek_plan *plan = &m->dealer->lasting;

    if (ek_deal_slow(m) < 0 ||
        ek_migrate_to(&p->migrations[l], &plan->placement, plan->quota, m->lasting_quota) < 0) {
        ek_deal_give_up(m);
        return;
    }
    p->moved[l] = p->migrations[l].experts_moved;
    m->lasting = count_replicas(m);
    ek_exchange_follow(&m->x, &m->w->placement);
    ek_reroute_follow(m);
}

void ek_pass_rebalance(ek_pass *p)
{
    const ek_moe_config *c = &p->cfg.moe;
    int64_t after = p->steps_seen++;

    memset(p->moved, 0, (size_t)p->model->spec.layers * sizeof(*p->moved));
    if (p->migrations == NULL || c->plan_every == 0 || after == 0 ||
        (after != 1 && after % c->plan_every != 0))
        return;
    for (int64_t l = 0; l < p->model->spec.layers; l++)
        if (is_balanced(p, l))
            place_layer(p, l);
}
