/* train/dry_run.h - plans a run of several ranks in one process (`evenkeel train --dry-run`). */
#ifndef TRAIN_DRY_RUN_H
#define TRAIN_DRY_RUN_H

#include "evenkeel/train.h"

/* Runs ek_train() with cfg->dry_run, each rank as a thread of this process.  hooks and *out are
 * those of rank 0.  If ranks fail, returns the failure of the first that detected an error
 * itself. */
EK_CHECKED ek_status ek_train_dry_run(const ek_train_config *cfg, const ek_train_hooks *hooks,
                                      int ranks, ek_train_summary *out);

#endif
