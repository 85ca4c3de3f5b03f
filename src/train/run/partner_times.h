/* train/run/partner_times.h - what a step takes longer by copies of all that other ranks keep,
 * measured with a part of their messages and of their update. */
#ifndef TRAIN_RUN_PARTNER_TIMES_H
#define TRAIN_RUN_PARTNER_TIMES_H

#include "train/run/state.h"

/* *seconds: of a step, of the rank that takes longest, as all messages are sent at once and nothing
 * hides them; after the copies are laid out.  Takes some tens of milliseconds, and 16 MiB of a rank
 * for the time, more with more than three copies.  Collective; the same on all ranks. */
EK_CHECKED ek_status ek_run_time_copies(const ek_run *r, double *seconds);

#endif
