/* train/balance.h - what balances the expert ranks of a run: the planner, its costs, its slots. */
#ifndef TRAIN_BALANCE_H
#define TRAIN_BALANCE_H

#include "train/run_priv.h"

/* Reads --balance, --adaptive-r and what belongs to them into the settings of the run. */
EK_CHECKED ek_status ek_run_read_balance(ek_run *r);

/* Measures what planners reckon with, where one is to be asked: as kept from an earlier run, or
 * now.  Collective. */
EK_CHECKED ek_status ek_run_calibrate(ek_run *r);

/* Adds the last step, the n-th that counts, to the summary's means. */
void ek_run_add_balance(ek_run *r, int64_t n);

/* What ranks gather, by --adaptive-r, and the slots that this takes; when the mesh is open. */
EK_CHECKED ek_status ek_run_set_slices(ek_run *r, ek_model_config *mc);

/* Completes the model's config and the trainer's, when the mesh is open. */
EK_CHECKED ek_status ek_run_set_balance(ek_run *r, ek_model_config *mc);

#endif
