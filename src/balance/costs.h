/* balance/costs.h - the planners' cost factors from a measured machine. */
#ifndef BALANCE_COSTS_H
#define BALANCE_COSTS_H

#include "balance/planner.h"
#include "cost/cost.h"
#include "spec/model.h"

/* The layer and the ranks that the costs are for. */
typedef struct {
    const ek_model_spec *spec;
    int32_t experts; /* per layer; 0: as in spec */
    int32_t ranks, nodes;
    double rows; /* assignments per rank, layer and micro-batch, on average; product rates depend
                    on it; 0: enough for the best rates */
    int sends_twice; /* a replica's weights are sent for forward, and again for backward */
} ek_plan_setting;

/* Fills *out:
 *
 *   compute_s_per_row     18 hidden ff FLOPs at the rate for the rows that an expert has under even
 *                         load, and the copies of a row on the serving rank
 *   comm_s_per_row        what twice the rows of even load add to four all-to-alls, per row that
 *                         leaves its rank; at most their time per row
 *   exchange_s            the rest of their time under even load, such as latency
 *   replica_s             a hop with the weights, with sends_twice two of them, and one with the
 *                         gradients; the mean over the ranks that it may go to, of the node and of
 *                         others
 *   exposed_s             one hop with the weights; other work overlaps the rest (measured on slow
 *                         links, with sends_twice: 0.36 of replica_s is exposed)
 *   gradient_s            one hop with the gradients between nodes, as often as a node has ranks;
 *                         inside of the node, if there is only one
 *   replica_bytes         3 hidden ff elements, as often in the products' type, and once in the
 *                         gradients' type
 *   migrate_s_per_expert, state_bytes
 *                         one hop with master weights and two moments of that size
 *
 * reason: NULL, or receives the factors, one line each.  EK_EINVAL: a setting below its minimum, or
 * several ranks on a machine whose links were not measured. */
EK_CHECKED ek_status ek_plan_costs_of(const ek_machine *m, const ek_plan_setting *s,
                                      ek_plan_costs *out, ek_cost_reason *reason);

#endif
