/* cli/dry_run.h - `evenkeel train --dry-run`: the number of ranks. */
#ifndef CLI_DRY_RUN_H
#define CLI_DRY_RUN_H

#include "base/options.h"
#include "supervisor/command_job.h"

/* *ranks: number of ranks to plan; 1 if this process is part of a job already.  EK_EINVAL: not
 * given for other hosts, or too many for this host. */
EK_CHECKED ek_status cli_dry_run_ranks(const ek_options *o, const ek_command_job *job, int *ranks);

#endif
