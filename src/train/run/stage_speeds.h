/* train/run/stage_speeds.h - the speeds of pipeline stages, from those of their ranks.
 *
 * A stage is as fast as its slowest rank.  Relative to the median stage (of the faster half, where
 * their number is even) a stage differs if the median of its rounds is more than a factor of 9 / 8
 * away from 1, and each of them more than 17 / 16, on the same side; otherwise it counts as 1.  So
 * noise on equal machines moves no layers. */
#ifndef TRAIN_RUN_STAGE_SPEEDS_H
#define TRAIN_RUN_STAGE_SPEEDS_H

#include "train/calibrate/speed.h"

/* speed [EK_SPEED_ROUNDS][ranks] of each rank, above 0, in any unit; ranks of a stage are adjacent.
 * stage [stages] := the median of a stage's rounds, in that unit; relative [stages].  Returns
 * whether any stage differs.  The same numbers give the same bits. */
int ek_stage_speeds(const double *speed, int ranks, int stages, double *stage, double *relative);

#endif
