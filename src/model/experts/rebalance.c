/* Persistent placements: planned from the loads of the steps before, and installed. */
#include "model/experts/rebalance.h"

#include "moe/reroute.h"
#include "moe/routing_plan.h"

#include <string.h>

/* Whether a planner may migrate experts. */
static int may_migrate(const ek_rebalance *b)
{
    return ek_moe_may_place(b->cfg) && b->model->cfg.mesh->ep > 1 && b->cfg->plan_every > 0 &&
           ek_model_can_migrate(b->model);
}

static void reserve_migrations(ek_rebalance *b, ek_arena *a)
{
    ek_arena *host = ek_arena_host(a);
    ek_model *m = b->model;
    void *staging[2]; /* alternating between the layers of this stage */

    b->migrations = ek_arena_alloc(host, m->spec.layers, sizeof(*b->migrations));
    for (int i = 0; i < 2; i++)
        staging[i] = m->staging[i] != NULL ? m->staging[i] : ek_migration_reserve_staging(a, m);
    for (int32_t l = ek_model_next_moe(m, -1); l < m->spec.layers; l = ek_model_next_moe(m, l))
        ek_migration_reserve(b->migrations != NULL ? &b->migrations[l] : &(ek_migration){0}, host,
                             m, l, staging[ek_migration_buf_idx(m, l)]);
}

void ek_rebalance_reserve(ek_rebalance *b, ek_arena *a, int training)
{
    b->moved = ek_arena_alloc(ek_arena_host(a), b->model->spec.layers, sizeof(*b->moved));
    if (training && may_migrate(b))
        reserve_migrations(b, a);
}

/* Whether experts of a layer may move. */
static int is_movable(const ek_rebalance *b, int64_t l)
{
    return b->migrations != NULL && ek_model_has_layer(b->model, l) && b->moe[l].w->routed;
}

static int is_balanced(const ek_rebalance *b, int64_t l)
{
    const ek_moe_planning *d = b->moe[l].planning;

    return is_movable(b, l) && d->planner->plan_persistent != NULL && !d->failed;
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
 * block order gives; unless some slots are for transient replicas alone. */
static ek_status check_slots(const ek_rebalance *b, const ek_planner *planner,
                             const ek_placement *at)
{
    const ek_mesh *mesh = b->model->cfg.mesh;

    for (int32_t r = 0; r < mesh->ep && !ek_planner_fills_slots(planner); r++) {
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
static void switch_placement(ek_rebalance *b, int64_t l)
{
    ek_moe *m = &b->moe[l];
    int32_t slots = m->planning->limits.ranks * m->w->placement.slots;

    b->moved[l] = b->migrations[l].experts_moved;
    m->persistent = count_replicas(&m->w->placement, slots);
    ek_dispatch_layout_follow_placement(&m->x, &m->w->placement);
    ek_reroute_follow(m);
}

static ek_status adopt_placement(ek_rebalance *b, int64_t l, const ek_placement *to,
                                 const int64_t *quota)
{
    ek_moe *m = &b->moe[l];

    EK_TRY(check_slots(b, m->planning->planner, to));
    EK_TRY(ek_migrate_to(&b->migrations[l], to, quota, m->persistent_quota));
    switch_placement(b, l);
    return EK_OK;
}

ek_status ek_rebalance_assume(ek_rebalance *b, int64_t l, const ek_placement *to,
                              const int64_t *quota)
{
    ek_moe *m = &b->moe[l];

    EK_REQUIRE(is_movable(b, l), EK_EINVAL, "the experts of layer %d cannot migrate", (int)l);
    EK_TRY(check_slots(b, m->planning->planner, to));
    EK_TRY(ek_migrate_assume(&b->migrations[l], to, quota, m->persistent_quota));
    switch_placement(b, l);
    return EK_OK;
}

/* Plans the placement of a layer, and adopts it, or (executed 0) assumes that it was adopted. */
static void plan_layer(ek_rebalance *b, int64_t l, int executed)
{
    ek_moe *m = &b->moe[l];
    const ek_plan *plan = &m->planning->persistent;

    ek_routing_plan_reset_other_layers(m);
    for (int64_t o = 0; o < b->model->spec.layers; o++)
        if (o != l && is_movable(b, o))
            ek_routing_plan_add_other_layer(m, &b->moe[o].w->placement);
    if (ek_routing_plan_persistent(m) < 0 ||
        (executed ? adopt_placement : ek_rebalance_assume)(b, l, &plan->placement, plan->quota) < 0)
        ek_routing_plan_give_up(m);
}

static void reset_moved(ek_rebalance *b)
{
    memset(b->moved, 0, (size_t)b->model->spec.layers * sizeof(*b->moved));
}

ek_status ek_rebalance_set_planner(ek_rebalance *b, const ek_planner *planner)
{
    EK_REQUIRE(b->cfg->planner != NULL && b->model->cfg.mesh->ep > 1, EK_EINVAL,
               "this run has no planner: it needs --balance and --ep of 2 or more");
    EK_REQUIRE(!ek_planner_fills_slots(planner) || ek_planner_fills_slots(b->cfg->planner) ||
                   (b->cfg->gather == 0 && b->cfg->gather_most == 0),
               EK_EINVAL,
               "planner %s puts experts with state into all slots, and memory for gathered slices "
               "is for planners that do not",
               planner->name);
    for (int64_t l = 0; l < b->model->spec.layers; l++)
        if (is_movable(b, l))
            EK_TRY(check_slots(b, planner, &b->moe[l].w->placement));
    return ek_routing_plan_set_planner(b->planning, b->cfg, planner);
}

const char *ek_rebalance_stop_planner(ek_rebalance *b)
{
    ek_moe_planning *d = b->planning;

    if (d->planner == NULL || d->failed)
        return NULL;
    d->failed = 1;
    return d->planner->name;
}

void ek_rebalance_continue(ek_rebalance *b, int64_t steps, int placed)
{
    b->steps_before = steps;
    b->placed = placed;
}

void ek_rebalance_set_recalled(ek_rebalance *b, int recalled)
{
    b->recalled = recalled;
}

void ek_rebalance_now(ek_rebalance *b)
{
    reset_moved(b);
    for (int64_t l = 0; l < b->model->spec.layers; l++)
        if (is_balanced(b, l))
            plan_layer(b, l, 1);
}

void ek_rebalance_assume_planned(ek_rebalance *b)
{
    const ek_plan *plan = NULL; /* of the first layer */

    for (int64_t l = 0; l < b->model->spec.layers; l++) {
        const ek_moe_planning *d = b->moe[l].planning;

        if (!is_balanced(b, l))
            continue;
        if (plan == NULL || d->planner->custom != NULL) /* which may plan by layer */
            plan_layer(b, l, 0);
        else if (ek_rebalance_assume(b, l, &plan->placement, plan->quota) < 0)
            ek_routing_plan_give_up(&b->moe[l]);
        plan = &d->persistent;
    }
}

ek_status ek_rebalance_place(ek_rebalance *b, const ek_plan *of_layer)
{
    EK_REQUIRE(b->migrations != NULL, EK_EINVAL, "this run cannot migrate experts");
    reset_moved(b);
    for (int64_t l = 0; l < b->model->spec.layers; l++)
        if (is_movable(b, l))
            EK_TRY(adopt_placement(b, l, &of_layer[l].placement, of_layer[l].quota));
    return EK_OK;
}

void ek_rebalance_placement(const ek_rebalance *b, int64_t l, ek_plan *out)
{
    const ek_moe *m = &b->moe[l];
    ek_placement now =
        m->w->placement; /* its first expert-parallel group; all have the same placement */

    now.ranks = m->planning->limits.ranks;
    ek_placement_copy(&out->placement, &now);
    for (int32_t s = 0; s < now.ranks * now.slots; s++)
        out->quota[s] = m->persistent_quota != NULL ? m->persistent_quota[s] : 0;
}

void ek_rebalance_step(ek_rebalance *b)
{
    const ek_moe_config *c = b->cfg;
    int64_t after = b->steps_seen++;
    int known = after > 0 || b->recalled, first = known && !b->placed;

    reset_moved(b);
    if (c->plan_every == 0 || !known || (!first && (after + b->steps_before) % c->plan_every != 0))
        return;
    b->placed = 1;
    ek_rebalance_now(b);
}

int64_t ek_rebalance_moved(const ek_rebalance *b)
{
    int64_t n = 0;

    for (int64_t l = 0; l < b->model->spec.layers; l++)
        n += b->moved[l];
    return n;
}

/* --- ops -------------------------------------------------------------------------------------- */

/* Starts the migration to the layer with experts after l, once dep is done. */
static void start_moves(ek_rebalance *b, ek_graph *g, int32_t l, int32_t dep)
{
    int32_t next = ek_model_next_moe(b->model, l);

    if (b->migrations != NULL && next < (int32_t)b->model->spec.layers)
        ek_migrate_build_start(&b->migrations[next], g, dep);
}

void ek_rebalance_build_start(ek_rebalance *b, ek_graph *g)
{
    start_moves(b, g, -1, -1);
    start_moves(b, g, ek_model_next_moe(b->model, -1), -1);
}

int32_t ek_rebalance_build_layer(ek_rebalance *b, ek_graph *g, int32_t l, int32_t dep)
{
    if (b->migrations == NULL || b->model->spec.dense[l])
        return dep;
    dep = ek_migrate_build_end(&b->migrations[l], g, dep);
    start_moves(b, g, ek_model_next_moe(b->model, l), dep);
    return dep;
}

ek_status ek_rebalance_build_all(ek_rebalance *b, ek_graph *g)
{
    int32_t layers = (int32_t)b->model->spec.layers, dep = -1;

    for (int32_t l = -1; b->migrations != NULL && (l = ek_model_next_moe(b->model, l)) < layers;) {
        ek_migrate_build_start(&b->migrations[l], g, dep);
        dep = ek_migrate_build_end(&b->migrations[l], g, dep);
    }
    return ek_graph_check(g);
}
