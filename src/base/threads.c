/* Affinity, cgroup quotas and resident memory, from the Linux kernel's files; stacks. */
#include "base/threads.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_CAP = 4096, LINE_CAP = 4352 };

/* The first line of folder/name, without its newline; 0 when it cannot be read. */
static int first_line(const char *folder, const char *name, char *line, int cap)
{
    char path[LINE_CAP];
    FILE *f;
    int ok;

    if (snprintf(path, sizeof(path), "%s/%s", folder, name) >= (int)sizeof(path))
        return 0;
    f = fopen(path, "re");
    if (f == NULL)
        return 0;
    ok = fgets(line, cap, f) != NULL;
    fclose(f);
    if (ok)
        line[strcspn(line, "\n")] = '\0';
    return ok;
}

/* CPU quota of one cgroup folder, in cores; 0: none. */
static double quota_of(const char *folder)
{
    char line[128];
    double quota, period;

    if (first_line(folder, "cpu.max", line, sizeof(line)))
        return sscanf(line, "%lf %lf", &quota, &period) == 2 && quota > 0 && period > 0
                   ? quota / period
                   : 0; /* "max 100000": no limit */
    if (!first_line(folder, "cpu.cfs_quota_us", line, sizeof(line)))
        return 0;
    quota = strtod(line, NULL);
    if (!(quota > 0) || !first_line(folder, "cpu.cfs_period_us", line, sizeof(line)))
        return 0;
    period = strtod(line, NULL);
    return period > 0 ? quota / period : 0;
}

static double tighter_quota(double a, double b)
{
    return a > 0 && (b <= 0 || a < b) ? a : b;
}

/* The tightest quota of root + path and of every folder above it down to root. */
static double quota_along(const char *root, const char *path)
{
    char folder[PATH_CAP];
    double least = 0;
    size_t base = strlen(root);

    if (snprintf(folder, sizeof(folder), "%s%s", root, path) >= (int)sizeof(folder))
        return 0;
    for (;;) {
        char *slash;

        least = tighter_quota(quota_of(folder), least);
        slash = strrchr(folder, '/');
        if (slash == NULL || (size_t)(slash - folder) < base)
            return least;
        *slash = '\0';
    }
}

/* Whether a comma-separated list of controllers holds "cpu". */
static int names_cpu(const char *list)
{
    for (const char *p = list; p != NULL; p = strchr(p, ',')) {
        p += *p == ',';
        if (strncmp(p, "cpu", 3) == 0 && (p[3] == ',' || p[3] == '\0'))
            return 1;
    }
    return 0;
}

double ek_cores_quota(const char *membership, const char *root)
{
    char line[PATH_CAP], mount[PATH_CAP];
    double least = 0;
    FILE *f = fopen(membership, "re");

    if (f == NULL)
        return 0;
    while (fgets(line, sizeof(line), f) != NULL) { /* "id:controllers:path" */
        char *list = strchr(line, ':');
        char *path = list != NULL ? strchr(list + 1, ':') : NULL;

        if (path == NULL)
            continue;
        line[strcspn(line, "\n")] = '\0';
        *path++ = '\0';
        list++;
        if (*list == '\0') { /* version 2 */
            least = tighter_quota(quota_along(root, path), least);
        } else if (names_cpu(list) &&
                   snprintf(mount, sizeof(mount), "%s/cpu", root) < (int)sizeof(mount)) {
            least = tighter_quota(quota_along(mount, path), least);
        }
    }
    fclose(f);
    return least;
}

int ek_cores_usable(void)
{
    double quota = ek_cores_quota("/proc/self/cgroup", "/sys/fs/cgroup");
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

int64_t ek_memory_available(void)
{
    return proc_bytes("/proc/meminfo", "MemAvailable") + proc_bytes("/proc/meminfo", "SwapFree");
}
