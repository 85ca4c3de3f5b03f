/* cli/limits.h - whether this machine can hold what a command asks for, before anything starts. */
#ifndef CLI_LIMITS_H
#define CLI_LIMITS_H

#include "evenkeel/err.h"

#include <stdint.h>

/* Processes of one host that a list of hosts may ask for. */
enum { CLI_HOST_RANKS_MAX = 4096 };

/* EK_EINVAL, which says how many would work, where this host cannot run so many processes: by its
 * cores (64 processes a core at most), its free memory, and the system's limits on processes. */
EK_CHECKED ek_status cli_check_ranks(int64_t ranks);

/* EK_EINVAL where each of so many processes of this host is to have so many threads, 0: their share
 * of its cores, and that is more than 64 threads a core, or the system's limits allow. */
EK_CHECKED ek_status cli_check_threads(int64_t threads, int64_t ranks);

#endif
