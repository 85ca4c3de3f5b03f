/* cli/dry_run.h - `evenkeel train --dry-run`: plans a run with ranks as threads. */
#ifndef CLI_DRY_RUN_H
#define CLI_DRY_RUN_H

#include "evenkeel/train.h"

#include "base/options.h"
#include "cli/cli.h"
#include "supervisor/command_job.h"

/* *ranks: number of ranks to plan; 1 if this process is part of a job already.  EK_EINVAL: not
 * given for other hosts, or too many for this host. */
EK_CHECKED ek_status cli_dry_run_ranks(const ek_options *o, const ek_command_job *job, int *ranks);

/* Runs ek_train() with cfg->dry_run, each rank as a thread of this process.  hooks and *out are
 * those of rank 0.  If ranks fail, returns the failure of the first that detected an error
 * itself. */
EK_CHECKED ek_status cli_dry_run(const ek_train_config *cfg, const ek_train_hooks *hooks, int ranks,
                                 ek_train_summary *out);

/* Prints the plan on stdout, as text or JSON. */
void cli_dry_run_print(const ek_train_summary *s, const ek_train_config *cfg, int json);

#endif
