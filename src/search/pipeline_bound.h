/* search/pipeline_bound.h - a time that the step of a layout with pipeline stages cannot be shorter
 * than, from two small replays:
 *
 *  1. the step of a single micro-batch on all stages: how long it takes to reach the last stage
 *     (the lead), and what follows its last computation there (the tail): it goes back through the
 *     other stages while these sum gradients, whose bytes delay it, then weights are updated;
 *  2. the last stage alone, with all micro-batches, as if messages of other stages were always
 *     there.  With ZeRO 0 and 1 that is a micro-batch's time, as often as there are
 *     micro-batches: the computation of one begins when that of the one before has ended.
 *
 * A step takes at least the lead, the time of 2 and the tail.
 *
 * With several virtual stages the last micro-batch comes back to a stage's others long before it
 * comes to the first one, so only sums of the first one are part of the tail; and with ZeRO 3
 * weights may still be there, so they are not gathered in 1.  In 2 weights that are gathered before
 * the first computation are there.
 *
 * Ops have the prices of search/bound_prices.h. */
#ifndef SEARCH_PIPELINE_BOUND_H
#define SEARCH_PIPELINE_BOUND_H

#include "train/even_plans.h"
#include "train/imagine.h"

/* Whether there may be such a bound: several stages, a batch of whole micro-batches, even
 * --pp-layers and --batch-shares, and no --elastic. */
int ek_has_pipeline_bound(const ek_train_config *cfg, int64_t batch);

/* cfg: with the layout's choices; plans: of this model on this cluster.  *seconds is 0 where there
 * is none after all: where the last stage computes nothing.  Errors as of ek_imagine. */
EK_CHECKED ek_status ek_pipeline_bound(const ek_imagined_world *w, const ek_train_config *cfg,
                                       ek_even_plans *plans, int64_t batch, double *seconds);

#endif
