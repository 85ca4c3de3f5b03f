/* Limits of memory: made-up trees of cgroups of both versions, free memory, what was given. */
#include "base/memory_limit.h"
#include "base/threads.h"
#include "root_files.h"

#include <sys/stat.h>

static char root[] = "/tmp/ek_limit_XXXXXX";

static void write_root_file(const char *name, const char *text)
{
    write_file_under(root, name, text);
}

static ek_memory_limit limit_for(const char *membership, int64_t given)
{
    char path[256], meminfo[256];

    write_root_file("membership", membership);
    snprintf(path, sizeof(path), "%s/membership", root);
    snprintf(meminfo, sizeof(meminfo), "%s/meminfo", root);
    return ek_memory_limit_find_in(given, &(ek_cgroups){path, root}, meminfo);
}

static void check(const ek_memory_limit *limit, ek_memory_limit_kind kind, int64_t left,
                  const char *folder)
{
    CHECK_INT(limit->kind, kind);
    CHECK_INT(limit->left, left);
    if (strstr(limit->folder, folder) == NULL)
        EK_T_FAIL("the limit is of \"%s\", expected \"%s\"", limit->folder, folder);
}

static void version_2(void)
{
    ek_memory_limit limit;

    write_root_file("meminfo", "MemTotal: 9000 kB\nMemAvailable:   8000 kB\nSwapFree: 77 kB\n");
    limit = limit_for("0::/a/b\n", 0);
    check(&limit, EK_LIMIT_FREE, 8000 * 1024, "");
    write_root_file("a/b/memory.max", "max\n");
    write_root_file("a/memory.max", "4000000\n"); /* a parent binds its children */
    limit = limit_for("0::/a/b\n", 0);
    check(&limit, EK_LIMIT_CGROUP, 4000000, "/a");
    CHECK_INT(limit.of_group, 4000000);
    write_root_file("a/memory.current", "1500000\n"); /* others use a part; file pages do not */
    write_root_file("a/memory.stat", "anon 7\ninactive_file 300000\nactive_file 200000\n"
                                     "inactive_file_x 9\n");
    limit = limit_for("0::/a/b\n", 0);
    check(&limit, EK_LIMIT_CGROUP, 4000000 - 1500000 + 500000, "/a");
    write_root_file("a/b/memory.max", "2000000\n");
    limit = limit_for("0::/a/b\n", 0);
    check(&limit, EK_LIMIT_CGROUP, 2000000, "/a/b");
    write_root_file("a/b/memory.current", "3000000\n"); /* lowered below its use */
    limit = limit_for("0::/a/b\n", 0);
    check(&limit, EK_LIMIT_CGROUP, 0, "/a/b");
    limit = limit_for("0::/elsewhere\n", 0);
    check(&limit, EK_LIMIT_FREE, 8000 * 1024, "");
    limit = limit_for("0::/a/b/not/visible\n", 0); /* the path is the host's */
    check(&limit, EK_LIMIT_CGROUP, 0, "/a/b");
}

static void version_1(void)
{
    ek_memory_limit limit;

    write_root_file("memory/x/memory.limit_in_bytes", "9223372036854771712\n");
    limit = limit_for("4:memory:/x\n", 0);
    check(&limit, EK_LIMIT_FREE, 8000 * 1024, "");
    write_root_file("memory/x/memory.limit_in_bytes", "6000000\n");
    write_root_file("memory/x/memory.usage_in_bytes", "1000000\n");
    write_root_file("memory/x/memory.stat", "cache 1\ninactive_file 5\ntotal_inactive_file 40000\n"
                                            "total_active_file 2000\n");
    limit = limit_for("5:cpu:/y\n4:memory:/x\n", 0);
    check(&limit, EK_LIMIT_CGROUP, 6000000 - 1000000 + 42000, "memory/x");
    limit = limit_for("4:memory_x:/x\n", 0);
    check(&limit, EK_LIMIT_FREE, 8000 * 1024, "");
}

static void what_is_said(void)
{
    char text[EK_LIMIT_TEXT];
    ek_memory_limit limit = limit_for("4:memory:/x\n", 0);

    CHECK(strncmp(ek_memory_limit_describe(&limit, text), "5.04 MB are available (the cgroup /tmp/",
                  39) == 0);
    CHECK(strstr(text, "memory/x, limited to 6.00 MB)") != NULL);
    CHECK_INT(limit.bytes - limit.left, (limit.bytes - limit.left) / 4096 * 4096);
    CHECK(limit.bytes > limit.left); /* this process holds something already */
    limit = limit_for("4:memory:/x\n", 8000000000);
    CHECK_INT(limit.kind, EK_LIMIT_GIVEN);
    CHECK_INT(limit.bytes, 8000000000);
    CHECK(limit.left < 8000000000 && limit.left > 7000000000);
    CHECK(strcmp(ek_memory_limit_describe(&limit, text), "8.00 GB are allowed (--memory-limit)") ==
          0);
    limit = limit_for("nonsense\n", 0);
    CHECK(strcmp(ek_memory_limit_source(&limit, text), "free memory") == 0);
    limit = ek_memory_limit_find_in(0, &(ek_cgroups){"/nonexistent", root}, "/nonexistent");
    check(&limit, EK_LIMIT_UNKNOWN, 0, "");
    CHECK_INT(limit.bytes, 0);
}

static void this_process(void)
{
    ek_memory_limit limit = ek_memory_limit_find(0);

    if (access("/proc/meminfo", R_OK) != 0)
        SKIP("needs /proc");
    CHECK(limit.kind == EK_LIMIT_CGROUP || limit.kind == EK_LIMIT_FREE);
    CHECK(limit.left > 0 && limit.bytes > limit.left);
    CHECK(ek_memory_available() > limit.left / 2); /* others may take or release some */
}

static void cases_in_order(void)
{
    char command[64];

    CHECK(mkdtemp(root) != NULL);
    version_2();
    version_1();
    what_is_said();
    snprintf(command, sizeof(command), "rm -r %s", root);
    CHECK_INT(system(command), 0);
}

/* clang-format off */
static const ek_case cases[] = {
    EK_CASE(cases_in_order),
    EK_CASE(this_process),
};
/* clang-format on */
EK_TEST_MAIN(cases)
