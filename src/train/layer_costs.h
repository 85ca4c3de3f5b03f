/* train/layer_costs.h - what a layer's parts take on the ranks of a mesh, for the planners that
 * balance them. */
#ifndef TRAIN_LAYER_COSTS_H
#define TRAIN_LAYER_COSTS_H

#include "balance/costs.h"
#include "comm/mesh.h"

/* Nodes that the ranks of a run, which share the experts out, are on. */
int32_t ek_layer_nodes(const ek_mesh *mesh);

/* Of a micro-batch of so many tokens, over all ranks of the stage, with top_k experts each.  why:
 * NULL, or gets the factors.  Collective over the stage: all get the same bits. */
EK_CHECKED ek_status ek_layer_costs(const ek_machine *m, const ek_model_spec *spec,
                                    const ek_mesh *mesh, double tokens, int64_t top_k,
                                    ek_plan_costs *out, ek_cost_reason *reason);

#endif
