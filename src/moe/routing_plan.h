/* moe/routing_plan.h - which slot serves which rows of a micro-batch: a planner's answer, made into
 * the table that the exchange follows (moe/dispatch_layout.h).
 *
 * Each run of `ep` expert ranks plans for itself, from the counts of its own tokens, over its own
 * copies of the experts; every rank makes the plans of all runs, for the exchange needs the rows
 * of all.  A planner that fails is left out from then on: every rank sees the same failure, says
 * so, and goes on with experts at home.  A step that does not train asks no planner and adds
 * nothing to what they go by: rows go to the experts' homes. */
#ifndef MOE_ROUTING_PLAN_H
#define MOE_ROUTING_PLAN_H

#include "moe/moe.h"

/* Scratch of a layer's planning, which all `layers` of the model share. */
void ek_routing_plan_reserve(ek_moe_planning *d, ek_arena *a, const ek_moe_config *cfg,
                             const ek_mesh *mesh, int64_t layers, int32_t experts, int32_t slots);

/* Asks another planner from now on, one of cfg; what the one before has placed for good stays. */
EK_CHECKED ek_status ek_routing_plan_set_planner(ek_moe_planning *d, const ek_moe_config *cfg,
                                                 const ek_planner *p);

/* Where the experts of other layers are, before ek_routing_plan_persistent: of none, and of one
 * more. */
void ek_routing_plan_reset_other_layers(ek_moe *m);
void ek_routing_plan_add_other_layer(ek_moe *m, const ek_placement *p);
/* Makes a lasting placement of one run of ranks from the layer's history: m->dealer->lasting. */
EK_CHECKED ek_status ek_routing_plan_persistent(ek_moe *m);
/* The planner is asked no more: says why (ek_err_message). */
void ek_routing_plan_give_up(ek_moe *m);

/* Plans for a micro-batch from the tallies of all ranks, and fills its route; with a planner that
 * is asked ahead, what slots hold is there already, and the rest follows it. */
void ek_routing_plan_make(ek_moe *m, const ek_gate_stats *gate_stats, ek_moe_route *route);

/* With a planner that is asked ahead: what slots hold in the layer's next forward, from the tallies
 * of the one that has just been; and that into a route. */
void ek_routing_plan_from_previous(ek_moe *m, const ek_gate_stats *gate_stats);
void ek_routing_plan_use_previous(ek_moe *m, ek_moe_route *route);
int ek_routing_plan_uses_previous(const ek_moe *m);

/* Deals rows out: n slots have `left` [n] of them to serve, whose sum is that of the counts of all
 * parts; parts [n_parts] of a source's rows get each their share of every slot, as even as whole
 * rows allow.  put(context, part, slot, rows) is told. left ends at zero. */
void ek_routing_plan_share_rows(int64_t *left, int32_t n, const int64_t *parts, int32_t n_parts,
                                void (*put)(void *context, int32_t part, int32_t slot,
                                            int64_t rows),
                                void *context);

#endif
