/* moe/routing_plan.h - which slot serves which rows of a micro-batch: turns a planner's plan into
 * the table of row counts that the dispatch uses (moe/dispatch_layout.h).
 *
 * Each expert-parallel group has its own plan, from the counts of its own tokens, over its own
 * copies of the experts; every rank makes the plans of all groups, since the dispatch needs the
 * rows of all.  None of these functions communicates: all ranks compute the same from the same gate
 * statistics.  A planner that fails is not called again: every rank sees the same failure, the
 * first rank of the stage logs it, and rows go to primaries.  A step that does not train calls no
 * planner and adds nothing to the history: rows go to primaries. */
#ifndef MOE_ROUTING_PLAN_H
#define MOE_ROUTING_PLAN_H

#include "moe/planning.h"

/* Reserves what planners need, which all `layers` of the model share.  slots: of a rank. */
void ek_routing_plan_reserve(ek_moe_planning *d, ek_arena *a, const ek_moe_config *cfg,
                             const ek_mesh *mesh, int64_t layers, int32_t experts, int32_t slots);

/* Replaces the planner by another one of cfg; the persistent placement is kept.  EK_EINVAL: p is
 * none of cfg's. */
EK_CHECKED ek_status ek_routing_plan_set_planner(ek_moe_planning *d, const ek_moe_config *cfg,
                                                 const ek_planner *p);

/* Placements of other layers that ek_routing_plan_persistent takes into account, for planners that
 * align replica sets: clears them, and adds one layer's. */
void ek_routing_plan_reset_other_layers(ek_moe *m);
void ek_routing_plan_add_other_layer(ek_moe *m, const ek_placement *p);
/* Makes a persistent placement of one expert-parallel group from the layer's history, and leaves it
 * in m->planning->persistent.  Fails with the planner's error. */
EK_CHECKED ek_status ek_routing_plan_persistent(ek_moe *m);
/* Marks the planner as failed and logs ek_err_message. */
void ek_routing_plan_give_up(ek_moe *m);

/* Fills the route of a micro-batch from the gate statistics of all ranks.  If replicas were sent
 * before the gate, route->expert_of is set already (ek_routing_plan_use_previous). */
void ek_routing_plan_make(ek_moe *m, const ek_gate_stats *gate_stats, ek_moe_route *route);

/* With a planner that uses_previous_counts or may_use_previous_counts: makes m->next_plan, for the
 * layer's next forward, from the statistics of the current one; and sets a route's expert_of and
 * `sent`, by that plan or, where replicas are better planned after the gate, without replicas. */
void ek_routing_plan_from_previous(ek_moe *m, const ek_gate_stats *gate_stats);
void ek_routing_plan_use_previous(ek_moe *m, ek_moe_route *route);
/* Whether replicas are planned so in this step: always, or by what is predicted. */
int ek_routing_plan_uses_previous(const ek_moe *m);
/* Whether they may instead be planned after the gate. */
int ek_routing_plan_compares_previous(const ek_moe *m);

/* Splits the rows left [n] by slot over parts [n_parts], whose sum is the same: each part gets a
 * proportional share of every slot, as even as whole rows allow.  Calls add(context, part, slot,
 * rows) for each share; left ends at zero. */
void ek_routing_plan_share_rows(int64_t *left, int32_t n, const int64_t *parts, int32_t n_parts,
                                void (*add)(void *context, int32_t part, int32_t slot,
                                            int64_t rows),
                                void *context);

#endif
