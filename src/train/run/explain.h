/* train/run/explain.h - performance report at the end of a run with measured machine costs: every
 * MoE layer on the DDL-Roofline (balance/roofline.h), and, with a timeline, predicted against
 * measured times of ops (cost/compare.h).
 *
 * Covers the steps of this process but the first, like the summary's means; with a timeline, those
 * of them that it contains. */
#ifndef TRAIN_RUN_EXPLAIN_H
#define TRAIN_RUN_EXPLAIN_H

#include "train/run/state.h"

/* Adds the last step to the work of its layers. */
void ek_run_add_layers(ek_run *r);

/* Calls the hooks of rank 0, logs the comparison and warns once if predictions are far off.
 * Collective. */
EK_CHECKED ek_status ek_run_explain(ek_run *r);

#endif
