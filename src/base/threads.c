/* Affinity, cgroup quotas and resident memory, from the Linux kernel's files; stacks. */
#include "base/threads.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* CPU quota of one cgroup folder, in cores; 0: none. */
static double quota_of(const char *folder)
{
    char line[128];
    double quota, period;

    if (ek_cgroup_line(folder, "cpu.max", line, sizeof(line)))
        return sscanf(line, "%lf %lf", &quota, &period) == 2 && quota > 0 && period > 0
                   ? quota / period
                   : 0; /* "max 100000": no limit */
    if (!ek_cgroup_line(folder, "cpu.cfs_quota_us", line, sizeof(line)))
        return 0;
    quota = strtod(line, NULL);
    if (!(quota > 0) || !ek_cgroup_line(folder, "cpu.cfs_period_us", line, sizeof(line)))
        return 0;
    period = strtod(line, NULL);
    return period > 0 ? quota / period : 0;
}

static double tighter_quota(double a, double b)
{
    return a > 0 && (b <= 0 || a < b) ? a : b;
}

static void take_quota(void *context, const char *folder)
{
    double *least = context;

    *least = tighter_quota(quota_of(folder), *least);
}

double ek_cores_quota(const ek_cgroups *cgroups)
{
    double least = 0;

    ek_cgroup_visit(cgroups, "cpu", take_quota, &least);
    return least;
}

int ek_cores_usable(void)
{
    double quota = ek_cores_quota(&ek_cgroups_system);
    int cores = 1;
    cpu_set_t mask;

    if (sched_getaffinity(0, sizeof(mask), &mask) == 0) {
        cores = CPU_COUNT(&mask);
    } else { /* more cores than a cpu_set_t holds */
        long online = sysconf(_SC_NPROCESSORS_ONLN);

        cores = online > 1 ? (int)online : 1;
    }
    if (quota > 0 && quota < cores)
        cores = (int)quota;
    return cores > 1 ? cores : 1;
}

/* --- stacks ----------------------------------------------------------------------------------- */

size_t ek_stack_left(void)
{
    pthread_attr_t attr;
    void *lowest = NULL;
    size_t size = 0;
    char here;

    if (pthread_getattr_np(pthread_self(), &attr) != 0)
        return SIZE_MAX;
    pthread_attr_getstack(&attr, &lowest, &size);
    pthread_attr_destroy(&attr);
    return (uintptr_t)&here > (uintptr_t)lowest ? (uintptr_t)&here - (uintptr_t)lowest : 0;
}

ek_status ek_stack_check(void)
{
    size_t left = ek_stack_left();

    EK_REQUIRE(left >= EK_STACK_BYTES, EK_ENOMEM,
               "the stack of this thread has %zu KiB left, but %d KiB are needed: raise the limit "
               "(ulimit -s), or start the thread with a larger stack",
               left >> 10, EK_STACK_BYTES >> 10);
    return EK_OK;
}

int ek_thread_start(pthread_t *thread, void *(*run)(void *), void *arg)
{
    pthread_attr_t attr;
    const size_t least = EK_STACK_BYTES / 3 * 4; /* the C library uses part of the stack */
    size_t size = 0;
    int ok;

    if (pthread_attr_init(&attr) != 0)
        return 0;
    ok = pthread_attr_getstacksize(&attr, &size) == 0 &&
         (size >= least || pthread_attr_setstacksize(&attr, least) == 0) &&
         pthread_create(thread, &attr, run, arg) == 0;
    pthread_attr_destroy(&attr);
    return ok;
}

/* --- memory ----------------------------------------------------------------------------------- */

/* A "Name:   123 kB" line of a file in /proc, in bytes. */
static int64_t proc_bytes(const char *file, const char *name)
{
    char line[256];
    long long kib = 0;
    size_t n = strlen(name);
    FILE *f = fopen(file, "re");

    if (f == NULL)
        return 0;
    while (fgets(line, sizeof(line), f) != NULL)
        if (strncmp(line, name, n) == 0 && line[n] == ':') {
            kib = strtoll(line + n + 1, NULL, 10);
            break;
        }
    fclose(f);
    return (int64_t)kib * 1024;
}

int64_t ek_rss_bytes(void)
{
    return proc_bytes("/proc/self/status", "VmRSS");
}

int64_t ek_rss_peak_bytes(void)
{
    return proc_bytes("/proc/self/status", "VmHWM");
}

void ek_thread_detach(void *(*run)(void *), void *arg)
{
    enum { STACK_BYTES = 256 << 10 };
    pthread_attr_t how;
    pthread_t thread;
    sigset_t all, before;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_init(&how);
    pthread_attr_setstacksize(&how, STACK_BYTES);
    pthread_attr_setdetachstate(&how, PTHREAD_CREATE_DETACHED);
    (void)pthread_create(&thread, &how, run, arg);
    pthread_attr_destroy(&how);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}
