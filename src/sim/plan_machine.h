/* sim/plan_machine.h - the machine of a cluster as a group of ranks measures it in training: costs
 * of plans (balance/costs.h) and of copies (balance/copy_costs.h) come from it. */
#ifndef SIM_PLAN_MACHINE_H
#define SIM_PLAN_MACHINE_H

#include "sim/cluster.h"

/* The cluster's machine with the run's dtype ("bf16", "fp32", "fp64"), which says how many bytes
 * rows, weights and gradients have, and the links that a group of `ranks` consecutive ranks on
 * `nodes` nodes uses: those inside a node, and the slowest between nodes. */
void ek_plan_machine(const ek_cluster *c, const char *dtype, int32_t ranks, int32_t nodes,
                     ek_machine *out);

#endif
