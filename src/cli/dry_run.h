/* cli/dry_run.h - `evenkeel train --dry-run`: the number of ranks, their hosts, and the default of
 * --elastic. */
#ifndef CLI_DRY_RUN_H
#define CLI_DRY_RUN_H

#include "evenkeel/train.h"

#include "base/options.h"
#include "supervisor/command_job.h"

/* *ranks: number of ranks to plan; 1 if this process is part of a job already.  cfg->elastic
 * becomes EK_ELASTIC_BY_DEFAULT where the run would be.  *host_of, *rack_of: as of
 * ek_host_list_places; NULL: without --hosts.  EK_EINVAL: ranks are not given for other hosts, or
 * too many for this host. */
EK_CHECKED ek_status cli_dry_run_ranks(const ek_options *o, const ek_command_job *job,
                                       ek_train_config *cfg, int *ranks, int **host_of,
                                       int **rack_of);

#endif
