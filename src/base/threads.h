/* base/threads.h - limits and use of the machine by this process: cores, memory, stacks. */
#ifndef BASE_THREADS_H
#define BASE_THREADS_H

#include "evenkeel/err.h"

#include "base/cgroup.h"

#include <pthread.h>
#include <stdint.h>

/* Least stack of a computing thread: tiles of the kernels (up to 360 KiB) and their callers. */
enum { EK_STACK_BYTES = 768 << 10 };

/* Free bytes on the calling thread's stack; SIZE_MAX if unknown. */
size_t ek_stack_left(void);

/* EK_ENOMEM, with a remedy in the message, if that is less than EK_STACK_BYTES. */
EK_CHECKED ek_status ek_stack_check(void);

/* Starts a thread whose stack has at least EK_STACK_BYTES free.  True on success. */
int ek_thread_start(pthread_t *thread, void *(*run)(void *), void *arg);

/* Starts a detached thread with a small stack and all signals blocked, which so works whatever
 * other threads do.  A failure is ignored. */
void ek_thread_detach(void *(*run)(void *), void *arg);

/* Cores this process may keep busy: its affinity mask, limited by the CPU quota of its cgroup
 * (version 1 or 2, the tightest of it and its parents), rounded down.  At least 1. */
int ek_cores_usable(void);

/* The cgroup quota, in cores; 0: none. */
double ek_cores_quota(const ek_cgroups *cgroups);

/* Resident bytes, now and the peak so far; 0 if unknown. */
int64_t ek_rss_bytes(void);
int64_t ek_rss_peak_bytes(void);

#endif
