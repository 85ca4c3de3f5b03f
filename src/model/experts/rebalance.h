/* model/experts/rebalance.h - persistent placements: when they are due, and installing them.
 *
 *   ek_rebalance_step          before a step: decides; the tables of the layers describe the new
 *                              placements from here on
 *   ek_rebalance_build_start   first in the step's graph: starts to send expert state
 *   ek_rebalance_build_layer   before the forward of a layer, and before its weights are gathered
 *                              (ZeRO 3): installs what has arrived
 *
 * All ranks of a stage decide alike, from the same loads.  Functions that change a placement are
 * collective. */
#ifndef MODEL_EXPERTS_REBALANCE_H
#define MODEL_EXPERTS_REBALANCE_H

#include "model/experts/migrate.h"

typedef struct {
    ek_model *model;
    const ek_moe_config *cfg;
    ek_moe *moe; /* [layers] */
    ek_moe_planning *planning;
    ek_migration *migrations; /* [layers]; NULL: experts never migrate */
    int64_t *moved; /* [layers]: experts of an expert-parallel group that moved before this step */
    int64_t steps_seen, steps_before; /* by this pass; by the passes that it continues */
    int placed;                       /* a persistent placement has been installed in these steps */
    int recalled; /* the loads of those passes are known (train/tune/warm_state.h) */
} ek_rebalance;

/* Reserves the tables, and staging for received state, from `a`; model, cfg and moe are set. */
void ek_rebalance_reserve(ek_rebalance *b, ek_arena *a, int training);

/* Before a step: installs persistent placements, if the planner makes any and plan_every says so.
 */
void ek_rebalance_step(ek_rebalance *b);

/* The pass continues others: of `steps` steps, which had installed placements or not; whose loads
 * are known or not. */
void ek_rebalance_continue(ek_rebalance *b, int64_t steps, int placed);
void ek_rebalance_set_recalled(ek_rebalance *b, int recalled);

/* Between steps: changes to another planner of the config; the current persistent placement stays.
 * EK_EINVAL: it makes transient replicas, whose slots require as many experts on each rank as block
 * order gives (ek_rebalance_place fails likewise); or it has state in all slots, unlike the
 * config's first planner, and slices are to be gathered. */
EK_CHECKED ek_status ek_rebalance_set_planner(ek_rebalance *b, const ek_planner *planner);
/* Stops calling the planner.  Returns its name; NULL if there is none or it has been stopped. */
const char *ek_rebalance_stop_planner(ek_rebalance *b);

/* Install persistent placements between steps: by the planner, whatever plan_every says; or
 * of_layer [layers], of one expert-parallel group, whose quotas give the shares of replicas
 * (EK_EINVAL: a rank has too few slots with state; layers before it have been changed).  State
 * moves in the next graph: a step's, or that of ek_rebalance_build_all. */
void ek_rebalance_now(ek_rebalance *b);
/* For graphs that are not executed: the same by the planner, as if state had moved already.  All
 * layers get the placement of the first, as without loads they are alike. */
void ek_rebalance_assume_planned(ek_rebalance *b);
EK_CHECKED ek_status ek_rebalance_place(ek_rebalance *b, const ek_plan *of_layer);
/* Before weights are filled in: sets the placement of a layer, and the shares of replicas in
 * proportion to quota [ep * slots].  EK_EINVAL as above. */
EK_CHECKED ek_status ek_rebalance_assume(ek_rebalance *b, int64_t l, const ek_placement *to,
                                         const int64_t *quota);

/* Copies the current persistent placement and quotas of a layer into a plan, whose limits must be
 * those of the planner. */
void ek_rebalance_placement(const ek_rebalance *b, int64_t l, ek_plan *out);
/* Experts of an expert-parallel group that moved before this step, over all layers. */
int64_t ek_rebalance_moved(const ek_rebalance *b);

/* Append the ops of the migrations.  start: of the first two layers with experts.  layer: what has
 * to be done before layer l, whose staging buffer the layer after the next uses; returns the op
 * that the layer's ops depend on, dep if there is nothing to do.  all: nothing else, to a graph
 * that the caller has reset. */
void ek_rebalance_build_start(ek_rebalance *b, ek_graph *g);
int32_t ek_rebalance_build_layer(ek_rebalance *b, ek_graph *g, int32_t l, int32_t dep);
EK_CHECKED ek_status ek_rebalance_build_all(ek_rebalance *b, ek_graph *g);

#endif
