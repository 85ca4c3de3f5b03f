/* train/run/shares.h - how data-parallel ranks share a batch (--batch-shares). */
#ifndef TRAIN_RUN_SHARES_H
#define TRAIN_RUN_SHARES_H

#include "train/run/state.h"

/* Reads --batch-shares into the options of the run, after its layout.  EK_EINVAL: it does not fit
 * the layout.  Local. */
EK_CHECKED ek_status ek_run_read_shares(ek_run *r);

#endif
