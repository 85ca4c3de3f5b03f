/* Persistent placements: between steps, planned from the loads of the steps before. */
#include "model/pass.h"
#include "moe/reroute.h"
#include "moe/routing_plan.h"

#include <string.h>

/* Whether experts of a layer may move. */
static int is_movable(const ek_pass *p, int64_t l)
{
    return p->migrations != NULL && ek_model_has_layer(p->model, l) && p->moe[l].w->routed;
}

static int is_balanced(const ek_pass *p, int64_t l)
{
    const ek_moe_planning *d = p->moe[l].planning;

    return is_movable(p, l) && d->planner->plan_persistent != NULL && !d->failed;
}

/* Replicas in the first `slots` slots of a placement. */
static int32_t count_replicas(const ek_placement *p, int32_t slots)
{
    int32_t n = 0;

    for (int32_t s = 0; s < slots; s++)
        n += ek_plan_is_replica(p, s);
    return n;
}

/* Transient replicas use the spare slots, so every rank must have as many experts with state as
 * block order gives. */
static ek_status check_slots(const ek_pass *p, const ek_planner *planner, const ek_placement *at)
{
    const ek_mesh *mesh = p->model->cfg.mesh;

    for (int32_t r = 0; r < mesh->ep && planner->plan_transient != NULL; r++) {
        int32_t n = 0, share = (int32_t)ek_range_length(at->experts, mesh->ep, r);

        for (int32_t s = r * at->slots; s < (r + 1) * at->slots; s++)
            n += at->expert_of[s] >= 0;
        EK_REQUIRE(n == share, EK_EINVAL,
                   "planner %s makes transient replicas, which need %d experts placed on "
                   "expert rank %d; there are %d",
                   planner->name, (int)share, (int)r, (int)n);
    }
    return EK_OK;
}

/* Switches dispatch and re-routing to the layer's new placement. */
static void switch_placement(ek_pass *p, int64_t l)
{
    ek_moe *m = &p->moe[l];
    int32_t slots = m->planning->limits.ranks * m->w->placement.slots;

    p->stats.moved[l] = p->migrations[l].experts_moved;
    m->persistent = count_replicas(&m->w->placement, slots);
    ek_dispatch_layout_follow_placement(&m->x, &m->w->placement);
    ek_reroute_follow(m);
}

static ek_status adopt_placement(ek_pass *p, int64_t l, const ek_placement *to,
                                 const int64_t *quota)
{
    ek_moe *m = &p->moe[l];

    EK_TRY(check_slots(p, m->planning->planner, to));
    EK_TRY(ek_migrate_to(&p->migrations[l], to, quota, m->persistent_quota));
    switch_placement(p, l);
    return EK_OK;
}

ek_status ek_pass_assume(ek_pass *p, int64_t l, const ek_placement *to, const int64_t *quota)
{
    ek_moe *m = &p->moe[l];

    EK_REQUIRE(is_movable(p, l), EK_EINVAL, "the experts of layer %d cannot migrate", (int)l);
    EK_TRY(check_slots(p, m->planning->planner, to));
    EK_TRY(ek_migrate_assume(&p->migrations[l], to, quota, m->persistent_quota));
    switch_placement(p, l);
    return EK_OK;
}

static void plan_layer(ek_pass *p, int64_t l)
{
    ek_moe *m = &p->moe[l];
    const ek_plan *plan = &m->planning->persistent;

    ek_routing_plan_reset_other_layers(m);
    for (int64_t o = 0; o < p->model->spec.layers; o++)
        if (o != l && is_movable(p, o))
            ek_routing_plan_add_other_layer(m, &p->moe[o].w->placement);
    if (ek_routing_plan_persistent(m) < 0 ||
        adopt_placement(p, l, &plan->placement, plan->quota) < 0)
        ek_routing_plan_give_up(m);
}

static void reset_moved(ek_pass *p)
{
    memset(p->stats.moved, 0, (size_t)p->model->spec.layers * sizeof(*p->stats.moved));
}

ek_status ek_pass_set_planner(ek_pass *p, const ek_planner *planner)
{
    EK_REQUIRE(p->cfg.moe.planner != NULL && p->model->cfg.mesh->ep > 1, EK_EINVAL,
               "this run has no planner: it needs --balance and --ep of 2 or more");
    EK_REQUIRE(planner->plan_transient != NULL ||
                   (p->cfg.moe.gather == 0 && p->cfg.moe.gather_most == 0),
               EK_EINVAL, "planner %s makes no transient replicas, which gathering slices needs",
               planner->name);
    for (int64_t l = 0; l < p->model->spec.layers; l++)
        if (is_movable(p, l))
            EK_TRY(check_slots(p, planner, &p->moe[l].w->placement));
    return ek_routing_plan_set_planner(&p->scratch.planning, &p->cfg.moe, planner);
}

const char *ek_pass_stop_planner(ek_pass *p)
{
    ek_moe_planning *d = &p->scratch.planning;

    if (d->planner == NULL || d->failed)
        return NULL;
    d->failed = 1;
    return d->planner->name;
}

void ek_pass_continue(ek_pass *p, int64_t steps, int placed)
{
    p->placing.steps_before = steps;
    p->placing.placed = placed;
}

void ek_pass_set_recalled(ek_pass *p, int recalled)
{
    p->placing.recalled = recalled;
}

void ek_pass_place_anew(ek_pass *p)
{
    reset_moved(p);
    for (int64_t l = 0; l < p->model->spec.layers; l++)
        if (is_balanced(p, l))
            plan_layer(p, l);
}

ek_status ek_pass_place(ek_pass *p, const ek_plan *of_layer)
{
    EK_REQUIRE(p->migrations != NULL, EK_EINVAL, "this run cannot migrate experts");
    reset_moved(p);
    for (int64_t l = 0; l < p->model->spec.layers; l++)
        if (is_movable(p, l))
            EK_TRY(adopt_placement(p, l, &of_layer[l].placement, of_layer[l].quota));
    return EK_OK;
}

void ek_pass_placed(const ek_pass *p, int64_t l, ek_plan *out)
{
    const ek_moe *m = &p->moe[l];
    ek_placement now =
        m->w->placement; /* its first expert-parallel group; all have the same placement */

    now.ranks = m->planning->limits.ranks;
    ek_placement_copy(&out->placement, &now);
    for (int32_t s = 0; s < now.ranks * now.slots; s++)
        out->quota[s] = m->persistent_quota != NULL ? m->persistent_quota[s] : 0;
}

void ek_pass_rebalance(ek_pass *p)
{
    const ek_moe_config *c = &p->cfg.moe;
    int64_t after = p->placing.steps_seen++;
    int known = after > 0 || p->placing.recalled, first = known && !p->placing.placed;

    reset_moved(p);
    if (c->plan_every == 0 || !known ||
        (!first && (after + p->placing.steps_before) % c->plan_every != 0))
        return;
    p->placing.placed = 1;
    ek_pass_place_anew(p);
}
