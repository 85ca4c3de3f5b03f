/* train/run/copies.h - by how much further copies of experts lengthen a run's steps, and whether
 * copies pay. */
#ifndef TRAIN_RUN_COPIES_H
#define TRAIN_RUN_COPIES_H

#include "train/run/state.h"

/* Behind what copies that were left out would lengthen; in percent. */
#define EK_RUN_LOSSES_COST                                                                         \
    ", where host failures are expected to cost %.*f %% of the run without them (--host-mtbf)"

/* Rows of an expert in a micro-batch under even load. */
int64_t ek_run_expert_rows(const ek_run *r);

/* *part: by which part of itself a step is expected to get longer with so many copies of each
 * expert instead of one, and *step_s, its seconds with one, as predicted from the measured machine
 * (balance/copy_costs.h), for the stage where that is most; -1 where no machine was measured: in a
 * dry run and without a planner. After ek_run_calibrate. Collective; the same on all ranks. */
EK_CHECKED ek_status ek_run_predict_copies(const ek_run *r, int32_t copies, double *part,
                                           double *step_s);

/* Weighs copies that lengthen a step of step_s seconds by a part of it, below 0: unknown, against
 * what losses of hosts are expected to cost without them: left out only if nobody asked for them,
 * not even by --elastic.  Collective; the same on all ranks. */
EK_CHECKED ek_status ek_run_weigh_copies(const ek_run *r, double lengthen, double step_s,
                                         ek_copies_costs *out);

#endif
