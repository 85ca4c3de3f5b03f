/* cli/dry_run.h - `evenkeel train --dry-run`: ranks as threads, and what is said of the plan. */
#ifndef CLI_DRY_RUN_H
#define CLI_DRY_RUN_H

#include "evenkeel/train.h"

#include "base/options.h"
#include "cli/job.h"

/* How many ranks the options ask for, where they are not those of a job that this process is in
 * already.  EK_EINVAL: it does not follow from them, or they are too many for this host. */
EK_CHECKED ek_status cli_dry_run_ranks(const ek_options *o, const cli_job *job, int *ranks);

/* ek_train with cfg->dry_run, each rank a thread of this process; *out is rank 0's, and so are the
 * hooks.  Of several that fail the first that found something is told. */
EK_CHECKED ek_status cli_dry_run(const ek_train_config *cfg, const ek_train_hooks *hooks, int ranks,
                                 ek_train_summary *out);

/* On stdout, in words or as JSON. */
void cli_dry_run_print(const ek_train_summary *s, const ek_train_config *cfg, int json);

#endif
