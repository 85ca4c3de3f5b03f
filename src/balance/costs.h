/* balance/costs.h - what planners reckon with, from the costs that a machine was measured to have.
 */
#ifndef BALANCE_COSTS_H
#define BALANCE_COSTS_H

#include "balance/planner.h"
#include "cost/cost.h"
#include "spec/model.h"

/* Whose layer is planned. */
typedef struct {
    const ek_model_spec *spec;
    int32_t experts; /* of a layer; 0: the model's */
    int32_t ranks, nodes;
    double rows; /* assignments of a rank's tokens in a layer of a micro-batch, on average: rates
                    depend on it.  0: so many that rates are at their best */
} ek_plan_setting;

/* Fills *out:
 *
 *   compute_s_per_row          18 hidden ff FLOPs at the rate of the rows that an expert has when
 * all is even, and the copies of a row on the serving rank comm_s_per_row         four all-to-alls,
 * over the rows that leave their rank when all is even replica_s      two hops with the weights,
 * for forward and backward products, and one with the gradients, between nodes where there are
 * several exposed_s       one with the weights: the others go on under other work (measured, where
 * links were slow: 0.36 of replica_s) replica_bytes  3 hidden ff numbers twice as products read
 * them, and once as gradients are held migrate_s_per_expert, state_bytes   a hop with the same
 * numbers as master weights and two moments
 *
 * why: NULL, or gets the factors.  EK_EINVAL: several ranks, and the machine's links were never
 * measured. */
EK_CHECKED ek_status ek_plan_costs_of(const ek_machine *m, const ek_plan_setting *s,
                                      ek_plan_costs *out, ek_cost_reason *reason);

#endif
