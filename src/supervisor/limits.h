/* supervisor/limits.h - checks that this host can run the requested processes and threads. */
#ifndef SUPERVISOR_LIMITS_H
#define SUPERVISOR_LIMITS_H

#include "evenkeel/err.h"

#include <stdint.h>

/* Maximum slots of one host in a host file. */
enum { EK_HOST_RANKS_MAX = 4096 };

/* EK_EINVAL, naming the limit, if this host cannot run `ranks` processes: 64 per core, 24 MB of
 * free memory each, and the system's limits on processes. */
EK_CHECKED ek_status ek_limits_check_ranks(int64_t ranks);

/* EK_EINVAL if `ranks` processes with `threads` threads each (0: their share of the cores) exceed
 * 64 threads per core or the system's limits. */
EK_CHECKED ek_status ek_limits_check_threads(int64_t threads, int64_t ranks);

#endif
