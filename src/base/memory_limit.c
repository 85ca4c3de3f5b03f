/* Limits of cgroups (version 1 and 2) and free memory, from the Linux kernel's files. */
#include "base/memory_limit.h"

#include "base/count_text.h"
#include "base/threads.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_CAP = 256, PATH_CAP = 4352 };

/* Version 1 says "no limit" with a number near 2^63. */
static const int64_t no_limit = INT64_C(1) << 60;

/* Names of a cgroup version's files, and of its counters of file pages that can be dropped. */
typedef struct {
    const char *limit, *usage, *file_pages[2];
} group_files;

static const group_files versions[] = {
    {"memory.max", "memory.current", {"inactive_file", "active_file"}},
    {"memory.limit_in_bytes",
     "memory.usage_in_bytes",
     {"total_inactive_file", "total_active_file"}},
};

/* The bytes in a line of a file of a folder; -1: none, or "max". */
static int64_t bytes_in(const char *folder, const char *name)
{
    char line[LINE_CAP], *end;
    long long x;

    if (!ek_cgroup_line(folder, name, line, sizeof(line)))
        return -1;
    x = strtoll(line, &end, 10);
    return end != line && x >= 0 ? x : -1;
}

/* Bytes of file pages charged to a cgroup. */
static int64_t file_bytes(const char *folder, const group_files *names)
{
    char path[PATH_CAP], line[LINE_CAP];
    int64_t sum = 0;
    FILE *f;

    if (snprintf(path, sizeof(path), "%s/memory.stat", folder) >= (int)sizeof(path))
        return 0;
    f = fopen(path, "re");
    if (f == NULL)
        return 0;
    while (fgets(line, sizeof(line), f) != NULL)
        for (int i = 0; i < 2; i++) {
            size_t n = strlen(names->file_pages[i]);

            if (strncmp(line, names->file_pages[i], n) == 0 && line[n] == ' ')
                sum += strtoll(line + n, NULL, 10);
        }
    fclose(f);
    return sum;
}

/* Lowers *limit to what a cgroup leaves. */
static void take_group(void *context, const char *folder)
{
    ek_memory_limit *limit = context;

    for (size_t i = 0; i < sizeof(versions) / sizeof(versions[0]); i++) {
        int64_t most = bytes_in(folder, versions[i].limit), used, left;

        if (most < 0 || most >= no_limit)
            continue;
        used = bytes_in(folder, versions[i].usage);
        left = most - (used > 0 ? used : 0) + file_bytes(folder, &versions[i]);
        left = left < most ? left : most;
        if (limit->kind == EK_LIMIT_UNKNOWN || left < limit->left) {
            limit->kind = EK_LIMIT_CGROUP;
            limit->left = left > 0 ? left : 0;
            limit->of_group = most;
            snprintf(limit->folder, sizeof(limit->folder), "%s", folder);
        }
    }
}

/* The "MemAvailable:   123 kB" of /proc/meminfo, in bytes; 0: unknown. */
static int64_t available(const char *meminfo)
{
    static const char name[] = "MemAvailable:";
    char line[LINE_CAP];
    int64_t kib = 0;
    FILE *f = fopen(meminfo, "re");

    if (f == NULL)
        return 0;
    while (fgets(line, sizeof(line), f) != NULL)
        if (strncmp(line, name, sizeof(name) - 1) == 0)
            kib = strtoll(line + sizeof(name) - 1, NULL, 10);
    fclose(f);
    return kib * 1024;
}

ek_memory_limit ek_memory_limit_find_in(int64_t given, const ek_cgroups *cgroups,
                                        const char *meminfo)
{
    int64_t resident = ek_rss_bytes(), free_bytes;
    ek_memory_limit limit = {.kind = EK_LIMIT_UNKNOWN};

    if (given > 0)
        return (ek_memory_limit){.kind = EK_LIMIT_GIVEN, .bytes = given, .left = given - resident};
    ek_cgroup_visit(cgroups, "memory", take_group, &limit);
    free_bytes = available(meminfo);
    if (free_bytes > 0 && (limit.kind == EK_LIMIT_UNKNOWN || free_bytes < limit.left))
        limit = (ek_memory_limit){.kind = EK_LIMIT_FREE, .left = free_bytes};
    if (limit.kind != EK_LIMIT_UNKNOWN)
        limit.bytes = limit.left + resident;
    return limit;
}

ek_memory_limit ek_memory_limit_find(int64_t given)
{
    return ek_memory_limit_find_in(given, &ek_cgroups_system, "/proc/meminfo");
}

int64_t ek_memory_available(void)
{
    return ek_memory_limit_find(0).left;
}

int64_t ek_memory_limit_count(const ek_memory_limit *limit, int64_t more)
{
    return limit->kind == EK_LIMIT_GIVEN ? limit->bytes - limit->left + more : more;
}

const char *ek_memory_limit_source(const ek_memory_limit *limit, char *text)
{
    char bytes[32];

    switch (limit->kind) {
    case EK_LIMIT_UNKNOWN: snprintf(text, EK_LIMIT_TEXT, "unknown"); break;
    case EK_LIMIT_GIVEN: snprintf(text, EK_LIMIT_TEXT, "--memory-limit"); break;
    case EK_LIMIT_CGROUP:
        snprintf(text, EK_LIMIT_TEXT, "the cgroup %.400s, limited to %s", limit->folder,
                 ek_bytes_text(bytes, sizeof(bytes), (double)limit->of_group));
        break;
    case EK_LIMIT_FREE: snprintf(text, EK_LIMIT_TEXT, "free memory"); break;
    }
    return text;
}

const char *ek_memory_limit_describe(const ek_memory_limit *limit, char *text)
{
    int given = limit->kind == EK_LIMIT_GIVEN;
    char source[EK_LIMIT_TEXT], bytes[32];
    int64_t left = given ? limit->bytes : limit->left; /* below 0: more was promised */

    ek_bytes_text(bytes, sizeof(bytes), left > 0 ? (double)left : 0);
    if (given)
        snprintf(text, EK_LIMIT_TEXT, "%s are allowed (--memory-limit)", bytes);
    else if (limit->kind == EK_LIMIT_CGROUP)
        snprintf(text, EK_LIMIT_TEXT, "%s are available (%.450s)", bytes,
                 ek_memory_limit_source(limit, source));
    else
        snprintf(text, EK_LIMIT_TEXT, "%s are available", bytes);
    return text;
}
