/* train/run/balance.h - load balancing of a run's expert ranks: planner, cost factors, expert
 * slots. */
#ifndef TRAIN_RUN_BALANCE_H
#define TRAIN_RUN_BALANCE_H

#include "train/run/state.h"

/* Reads --balance, --adaptive-r and related options into the settings of the run. */
EK_CHECKED ek_status ek_run_read_balance(ek_run *r);

/* Measures the machine costs that planners use, or reads them from the cache; does nothing without
 * a planner.  Collective. */
EK_CHECKED ek_status ek_run_calibrate(ek_run *r);

/* What planners assume, by the measured costs and the memory of replicas; does nothing without.
 * Collective. */
EK_CHECKED ek_status ek_run_set_costs(ek_run *r);

/* Adds the last step, the n-th counted one, to the means of the summary; its duration in seconds.
 */
void ek_run_add_balance(ek_run *r, int64_t n, double step_s);

/* Sets the expert slices that ranks gather (--adaptive-r) and the slots that they need; after the
 * mesh is open. */
EK_CHECKED ek_status ek_run_set_slices(ek_run *r, ek_model_config *mc);

/* How many hosts, or racks, hold each expert: replicas_min, or as many as there are, or as slots
 * suffice for; 1 without a planner that heeds it.  After the mesh is open. */
int32_t ek_run_copies(const ek_run *r);

/* Sets the slots of a rank for the planner, replicas_min and spare_slots of r. */
void ek_run_set_slots(const ek_run *r, ek_model_config *mc);
/* With a planner: experts stay where their state is: on disk, or on ranks whose partners have
 * copies of it.  These, as hosts leave and join, may be so in some starts of a run only.  Returns
 * whether another planner takes the place of one that would move them. */
int ek_run_keep_primaries(ek_run *r);

/* Completes the configs of model and trainer, after the mesh is open. */
EK_CHECKED ek_status ek_run_set_balance(ek_run *r, ek_model_config *mc);

#endif
