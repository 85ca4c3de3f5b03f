/* Limits on the number of processes and threads of this host. */
#include "supervisor/limits.h"

#include "base/memory_limit.h"
#include "base/threads.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* A worker takes about 20 MB after joining the job, and about 60 MB when it trains preset tiny. */
enum { RANKS_A_CORE = 64, THREADS_A_CORE = 64, RANK_MB = 24, THREADS_A_RANK = 4 };

/* The control group's limit on processes and threads; -1: none, or unknown. */
static int64_t group_limit(void)
{
    static const char *const files[] = {"/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids/pids.max"};
    long long limit = -1;

    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]) && limit < 0; i++) {
        FILE *f = fopen(files[i], "re");

        if (f == NULL)
            continue;
        if (fscanf(f, "%lld", &limit) != 1) /* "max" */
            limit = -1;
        fclose(f);
    }
    return limit;
}

/* The user's limit on processes and threads, which does not apply to root; -1: none. */
static int64_t user_limit(void)
{
    struct rlimit l;

    if (geteuid() == 0 || getrlimit(RLIMIT_NPROC, &l) != 0 || l.rlim_cur == RLIM_INFINITY)
        return -1;
    return (int64_t)l.rlim_cur;
}

ek_status ek_limits_check_ranks(int64_t ranks)
{
    int64_t free_bytes = ek_memory_available();
    const struct {
        int64_t most;
        const char *reason;
    } limits[] = {
        {(int64_t)ek_cores_usable() * RANKS_A_CORE, "64 processes a core"},
        {free_bytes > 0 ? free_bytes / (RANK_MB << 20) : -1, "24 MB of free memory a process"},
        {group_limit() >= 0 ? group_limit() / THREADS_A_RANK : -1,
         "the control group's limit on processes"},
        {user_limit() >= 0 ? user_limit() / THREADS_A_RANK : -1,
         "the user's limit on processes (ulimit -u)"},
    };

    for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++)
        EK_REQUIRE(limits[i].most < 0 || ranks <= limits[i].most, EK_EINVAL,
                   "%lld ranks are too many for this host: %s allows %lld; reduce --ranks, or add "
                   "hosts (--hosts)",
                   (long long)ranks, limits[i].reason, (long long)limits[i].most);
    return EK_OK;
}

ek_status ek_limits_check_threads(int64_t threads, int64_t ranks)
{
    const struct {
        int64_t most;
        const char *reason;
    } limits[] = {
        {(int64_t)ek_cores_usable() * THREADS_A_CORE, "64 threads a core"},
        {group_limit(), "the control group's limit on threads"},
        {user_limit(), "the user's limit on threads (ulimit -u)"},
    };

    for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++)
        EK_REQUIRE(limits[i].most < 0 || threads <= limits[i].most / ranks, EK_EINVAL,
                   "--threads %lld is too many for this host: %s allows %lld%s", (long long)threads,
                   limits[i].reason, (long long)(limits[i].most / ranks),
                   ranks > 1 ? " for each of its ranks" : "");
    return EK_OK;
}
