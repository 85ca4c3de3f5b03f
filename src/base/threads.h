/* base/threads.h - what this process may use and does use of the machine: cores and memory. */
#ifndef BASE_THREADS_H
#define BASE_THREADS_H

#include <stdint.h>

/* Cores this process may keep busy: its affinity mask, cut by the CPU quota of its cgroup
 * (version 1 or 2, the tightest of it and its parents), rounded down.  At least 1. */
int ek_cores_usable(void);

/* The quota alone, in cores; 0: none.  `membership` is a file like /proc/self/cgroup, `root` the
 * folder where cgroups are mounted. */
double ek_cores_quota(const char *membership, const char *root);

/* Bytes of memory that are resident now, and at most so far; 0 where the system does not say. */
int64_t ek_rss_bytes(void);
int64_t ek_rss_peak_bytes(void);

/* Bytes of memory that the system could still give, swap included; 0 where it does not say. */
int64_t ek_memory_available(void);

#endif
