/* balance/copy_costs.h - by how much a training step gets longer if each expert has several
 * persistent copies, in closed form.
 *
 *   sums_s     messages of a node's link, one after the other, each a hop between nodes with the
 *              gradients of an expert (3 hidden ff elements):
 *                  ranks a node x layers x ceil(experts / ranks) x (copies - 1) x (1 + split)
 *   window_s   backward products of a layer in a step's last micro-batch, under which the sums of
 *              the layer after it are sent, as far as they overlap
 *   exposed_s  t + (layers - 1) max(0, t - window_s),  t = sums_s / layers: sums of a layer start
 *              when its backward ends, and those of the first layer have nothing to run under
 *   update_s   AdamW and packing of the further copies: 8 elements read or written for each, and
 *              where products have another type one of each type for each of two packed forms; at
 *              the rates of the machine's kernels, or that of copies
 *   added_s    exposed_s + update_s
 *
 * Assumes      Copies of an expert on different nodes, and primary and further copies spread evenly
 *              over ranks; gradients summed once a step; links of nodes with the same rate both
 *              ways, and no other traffic beside the sums.  Gradients of transient replicas, moves
 *              of experts and rows that copies keep on their node are the planner's, which weighs
 *              them by itself, and attention under which sums could be hidden is not counted. */
#ifndef BALANCE_COPY_COSTS_H
#define BALANCE_COPY_COSTS_H

#include "balance/costs.h"

typedef struct {
    ek_plan_setting layer; /* a MoE layer, its expert-parallel group and rows */
    int32_t layers;        /* MoE layers of a rank: of its pipeline stage */
    int32_t batches;       /* micro-batches of a step */
    int32_t copies;        /* of each expert, 1 or more */
    double split;          /* share of further copies that serve rows, whose gradients are summed, 0
                              to 1; the others receive the sum only */
    double overlap;        /* share of these products under which messages move: 1, less where the
                              processors that compute also move them */
} ek_copy_setting;

typedef struct {
    double bytes; /* gradients that a rank sends in a step, on average */
    double sums_s, window_s, exposed_s, update_s, added_s;
    double step_s; /* all MoE layers of a step with one copy, under even load: rows, their
                      all-to-alls, and the update of the experts.  A step takes longer, as it has
                      attention and a head: added_s / step_s is more than what it gets longer by */
} ek_copy_costs;

/* Fills *out.  reason: NULL, or receives the factors.  EK_EINVAL: a setting out of its range, or
 * several ranks on a machine whose links were not measured. */
EK_CHECKED ek_status ek_copy_costs_of(const ek_machine *m, const ek_copy_setting *s,
                                      ek_copy_costs *out, ek_cost_reason *reason);

#endif
