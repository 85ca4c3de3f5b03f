/* train/run/copies.h - by how much further copies of experts lengthen a run's steps. */
#ifndef TRAIN_RUN_COPIES_H
#define TRAIN_RUN_COPIES_H

#include "train/run/state.h"

/* Rows of an expert in a micro-batch under even load. */
int64_t ek_run_expert_rows(const ek_run *r);

/* *part: by which part of itself a step is expected to get longer with so many copies of each
 * expert instead of one, and *step_s, its seconds with one, as predicted from the measured machine
 * (balance/copy_costs.h), for the stage where that is most; -1 where no machine was measured: in a
 * dry run and without a planner. After ek_run_calibrate. Collective; the same on all ranks. */
EK_CHECKED ek_status ek_run_predict_copies(const ek_run *r, int32_t copies, double *part,
                                           double *step_s);

#endif
