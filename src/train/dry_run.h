/* train/dry_run.h - plans a run of several ranks in one process (`evenkeel train --dry-run`). */
#ifndef TRAIN_DRY_RUN_H
#define TRAIN_DRY_RUN_H

#include "evenkeel/train.h"

/* Runs ek_train() with cfg->dry_run, each rank as a thread of this process.  host_of [ranks]: the
 * hosts that the ranks will be on, as numbers; NULL: this one.  hooks and *out are those of rank 0.
 * If ranks fail, returns the failure of the first that detected an error itself. */
EK_CHECKED ek_status ek_train_dry_run(const ek_train_config *cfg, const ek_train_hooks *hooks,
                                      int ranks, const int *host_of, ek_train_summary *out);

#endif
