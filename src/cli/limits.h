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

#endif
