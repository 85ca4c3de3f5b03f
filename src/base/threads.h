/* base/threads.h - what this process may use and does use of the machine: cores, memory, stack. */
#ifndef BASE_THREADS_H
#define BASE_THREADS_H

#include "evenkeel/err.h"

#include <pthread.h>
#include <stdint.h>

/* Least stack of a thread that computes: tiles of the kernels (up to 360 KiB) and what calls them.
 */
enum { EK_STACK_BYTES = 768 << 10 };

/* Bytes of stack that the calling thread has left. */
size_t ek_stack_left(void);

/* EK_ENOMEM, with what to do, where that is less than EK_STACK_BYTES. */
EK_CHECKED ek_status ek_stack_check(void);

/* Starts a thread with the default stack, or one of EK_STACK_BYTES where that is less.  True on
 * success.
 */
int ek_thread_start(pthread_t *thread, void *(*run)(void *), void *arg);

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
