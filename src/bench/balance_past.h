/* bench/balance_past.h - the persistent placements that training would have after past loads,
 * without training. */
#ifndef BENCH_BALANCE_PAST_H
#define BENCH_BALANCE_PAST_H

#include "balance/planner.h"
#include "balance/trace.h"
#include "spec/model.h"

typedef struct {
    const ek_model_spec *spec;
    const ek_plan_limits *limits; /* horizon: micro-batches in plan_every steps */
    const ek_trace *trace;        /* iteration i: the loads of step i */
    int64_t steps, plan_every;    /* past steps, of at most as many as the trace has; at least 1 */
    int64_t tokens;               /* of an expert rank in a micro-batch */
} bench_past;

/* Places the experts of all layers as a planner with plan_persistent would before step `steps`:
 * after the first step and then every plan_every steps, from the loads of the steps before.  plans
 * [layers]: in: the placement of the first step; out: with `reason`, of the last plan.  *moved:
 * experts that ranks received in these steps, over all layers.  All ranks get the same. */
EK_CHECKED ek_status bench_place_by_past(const bench_past *past, const ek_planner *planner,
                                         ek_plan *plans, int64_t *moved);

#endif
