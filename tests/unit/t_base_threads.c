/* Cores, cgroup quotas (made-up trees of both versions), resident memory, stacks, and the log. */
#include "base/log.h"
#include "base/threads.h"
#include "root_files.h"

#include <sched.h>
#include <sys/stat.h>

static char root[] = "/tmp/ek_threads_XXXXXX";

static void write_root_file(const char *name, const char *text)
{
    write_file_under(root, name, text);
}

static double quota_for(const char *membership)
{
    char path[256];

    write_root_file("membership", membership);
    snprintf(path, sizeof(path), "%s/membership", root);
    return ek_cores_quota(&(ek_cgroups){path, root});
}

static void quotas(void)
{
    char command[64];

    CHECK(mkdtemp(root) != NULL);
    CHECK(quota_for("0::/\n") == 0);
    write_root_file("a/b/cpu.max", "150000 100000\n");
    write_root_file("a/cpu.max", "max 100000\n");
    CHECK(quota_for("0::/a/b\n") == 1.5);
    CHECK(quota_for("0::/a\n") == 0);
    write_root_file("cpu.max", "400000 100000\n");
    CHECK(quota_for("0::/a/b\n") == 1.5);
    CHECK(quota_for("0::/\n") == 4);
    CHECK(quota_for("0::/a/b/no/such/folder\n") == 1.5);
    write_root_file("a/cpu.max", "2500 5000\n"); /* a parent binds its children */
    CHECK(quota_for("0::/a/b\n") == 0.5);
    write_root_file("cpu/x/cpu.cfs_quota_us", "-1\n");
    write_root_file("cpu/x/cpu.cfs_period_us", "100000\n");
    CHECK(quota_for("3:cpu,cpuacct:/x\n") == 0);
    write_root_file("cpu/x/cpu.cfs_quota_us", "300000\n");
    CHECK(quota_for("3:cpu,cpuacct:/x\n") == 3);
    CHECK(quota_for("3:cpuacct,cpu:/x\n") == 3);
    CHECK(quota_for("3:cpuset:/x\n2:cpuacct:/x\n") == 0);
    CHECK(quota_for("3:cpu:/x\n0::/a/b\n") == 0.5);
    CHECK(quota_for("nonsense\n:\n") == 0);
    CHECK(ek_cores_quota(&(ek_cgroups){"/nonexistent", root}) == 0);
    snprintf(command, sizeof(command), "rm -r %s", root);
    CHECK_INT(system(command), 0);
}

static void affinity(void)
{
    cpu_set_t old, one;
    int all = ek_cores_usable();

    CHECK_INT(sched_getaffinity(0, sizeof(old), &old), 0);
    CHECK(all >= 1 && all <= CPU_COUNT(&old));
    CPU_ZERO(&one);
    for (size_t i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &old)) {
            CPU_SET(i, &one);
            break;
        }
    CHECK_INT(sched_setaffinity(0, sizeof(one), &one), 0);
    CHECK_INT(ek_cores_usable(), 1);
    CHECK_INT(sched_setaffinity(0, sizeof(old), &old), 0);
    CHECK_INT(ek_cores_usable(), all);
}

static void resident(void)
{
    enum { BYTES = 64 << 20 };
    int64_t before = ek_rss_bytes(), peak;
    char *block = malloc(BYTES);

    CHECK(block != NULL);
    if (block == NULL)
        return;
    if (access("/proc/self/status", R_OK) != 0) {
        free(block);
        CHECK_INT(before, 0);
        SKIP("needs /proc");
    }
    CHECK(before > 0);
    memset(block, 1, BYTES);
    CHECK(block[BYTES / 2] == 1);
    peak = ek_rss_peak_bytes();
    CHECK(ek_rss_bytes() - before > BYTES * 3ll / 4);
    CHECK(peak - before > BYTES * 3ll / 4);
    free(block);
    CHECK(ek_rss_peak_bytes() >= peak - (1 << 20));
}

static char logged[256];

static void keep_message(void *context, ek_log_level level, const char *component,
                         const char *message)
{
    ++*(int *)context;
    snprintf(logged, sizeof(logged), "%s %s %s", ek_log_level_name(level), component, message);
}

static void logging(void)
{
    int calls = 0, before, again;

    ek_log("test", EK_LOG_ERROR, "without a sink");
    CHECK(!ek_log_is_enabled(EK_LOG_ERROR));
    ek_log_set_sink(keep_message, &calls, EK_LOG_INFO);
    CHECK(ek_log_is_enabled(EK_LOG_INFO) && !ek_log_is_enabled(EK_LOG_DEBUG));
    ek_log("store", EK_LOG_WARN, "step %d took %.1f ms", 3, 2.5);
    CHECK(strcmp(logged, "warning store step 3 took 2.5 ms") == 0);
    ek_log("store", EK_LOG_DEBUG, "too fine");
    CHECK_INT(calls, 1);
    before = ek_log_limit(EK_LOG_ERROR);
    CHECK(ek_log_is_enabled(EK_LOG_ERROR) && !ek_log_is_enabled(EK_LOG_WARN));
    again = ek_log_limit(EK_LOG_TRACE); /* not more than now */
    CHECK(!ek_log_is_enabled(EK_LOG_WARN));
    ek_log_unlimit(again);
    ek_log_unlimit(before);
    CHECK(ek_log_is_enabled(EK_LOG_INFO) && !ek_log_is_enabled(EK_LOG_DEBUG));
    ek_log_set_sink(NULL, NULL, EK_LOG_TRACE);
    ek_log("store", EK_LOG_ERROR, "gone");
    CHECK(!ek_log_is_enabled(EK_LOG_ERROR));
    CHECK_INT(calls, 1);
}

static void *check_stack(void *refused)
{
    int *out = refused;

    *out = ek_stack_check() == EK_ENOMEM && strstr(ek_err_message(), "ulimit -s") != NULL;
    return NULL;
}

/* ek_stack_check fails in a thread with a small stack, and not in threads of ek_thread_start. */
static void stacks(void)
{
    pthread_attr_t small, usual;
    pthread_t thread;
    int refused = 0;

    CHECK_INT(ek_stack_check(), EK_OK);
    CHECK_INT(pthread_getattr_default_np(&usual), 0);
    CHECK_INT(pthread_attr_init(&small), 0);
    CHECK_INT(pthread_attr_setstacksize(&small, 256 << 10), 0);
    CHECK_INT(pthread_create(&thread, &small, check_stack, &refused), 0);
    pthread_join(thread, NULL);
    CHECK(refused);
    CHECK_INT(pthread_setattr_default_np(&small), 0);
    CHECK(ek_thread_start(&thread, check_stack, &refused));
    pthread_join(thread, NULL);
    CHECK(!refused);
    CHECK_INT(pthread_setattr_default_np(&usual), 0);
    pthread_attr_destroy(&small);
    pthread_attr_destroy(&usual);
}

static const ek_case cases[] = {EK_CASE(stacks), EK_CASE(quotas), EK_CASE(affinity),
                                EK_CASE(resident), EK_CASE(logging)};
EK_TEST_MAIN(cases)
