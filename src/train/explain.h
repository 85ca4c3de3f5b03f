/* train/explain.h - what a run says of itself at its end, where its machine was measured: the place
 * of every MoE layer on the DDL-Roofline (balance/roofline.h), and, with a timeline, what ops were
 * predicted to take against what they took (cost/compare.h).
 *
 * All is of the steps of this process but the first, like the summary's means; with a timeline, of
 * those of them that it has. */
#ifndef TRAIN_EXPLAIN_H
#define TRAIN_EXPLAIN_H

#include "train/run_priv.h"

/* Adds the last step to its layers. */
void ek_run_add_layers(ek_run *r);

/* Tells the hooks of rank 0, logs the comparison and warns once if times part.  Collective. */
EK_CHECKED ek_status ek_run_explain(ek_run *r);

#endif
