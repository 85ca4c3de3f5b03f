/* train/timing/layer_costs.h - cost factors of a MoE layer on the ranks of a mesh, for the
 * planners. */
#ifndef TRAIN_TIMING_LAYER_COSTS_H
#define TRAIN_TIMING_LAYER_COSTS_H

#include "balance/costs.h"
#include "comm/mesh.h"

/* Number of nodes of an expert-parallel group. */
int32_t ek_layer_nodes(const ek_mesh *mesh);

/* For a micro-batch of `tokens` tokens, over all ranks of the stage, with top_k experts each.
 * sends_twice: ek_plan_setting.  reason: NULL, or receives the factors.  Collective over the stage:
 * all get the same bits. */
EK_CHECKED ek_status ek_layer_costs(const ek_machine *m, const ek_model_spec *spec,
                                    const ek_mesh *mesh, double tokens, int64_t top_k,
                                    int sends_twice, ek_plan_costs *out, ek_cost_reason *reason);

/* How many rows take as long as the fixed part of an expert's products, from the times for one row
 * and for many.  Collective over the stage. */
EK_CHECKED ek_status ek_layer_group_rows(const ek_machine *m, const ek_model_spec *spec,
                                         const ek_mesh *mesh, int64_t *rows);

#endif
