/* base/memory_limit.h - how much memory this process may hold, page cache of its own included.
 *
 * The limit is what the user gave, or ("auto") the smallest of what the cgroups of this process
 * allow and what the system has free.  File pages that the kernel can drop count as free. */
#ifndef BASE_MEMORY_LIMIT_H
#define BASE_MEMORY_LIMIT_H

#include "base/cgroup.h"

#include <stdint.h>

typedef enum {
    EK_LIMIT_UNKNOWN, /* the system does not say */
    EK_LIMIT_GIVEN,   /* --memory-limit: of this process alone */
    EK_LIMIT_CGROUP,  /* of all processes of a cgroup together */
    EK_LIMIT_FREE     /* what is free, for all processes */
} ek_memory_limit_kind;

enum { EK_LIMIT_TEXT = 512 };

typedef struct {
    ek_memory_limit_kind kind;
    int64_t bytes;    /* most resident bytes of this process; 0: unknown */
    int64_t left;     /* of them, those that it does not hold yet; negative: it holds more */
    int64_t of_group; /* EK_LIMIT_CGROUP: the cgroup's own limit */
    char folder[EK_LIMIT_TEXT]; /* EK_LIMIT_CGROUP: the cgroup */
} ek_memory_limit;

/* given: bytes; 0: auto. */
ek_memory_limit ek_memory_limit_find(int64_t given);

/* The same with cgroups, and a file like /proc/meminfo, of one's own. */
ek_memory_limit ek_memory_limit_find_in(int64_t given, const ek_cgroups *cgroups,
                                        const char *meminfo);

/* Bytes that all processes here may still take, by cgroups and free memory; 0: unknown. */
int64_t ek_memory_available(void);

/* What `more` bytes beyond those held now count against the number that ek_memory_limit_describe
 * names. */
int64_t ek_memory_limit_count(const ek_memory_limit *limit, int64_t more);

/* For a message, what the limit is and where it comes from: "8.6 GB are allowed (--memory-limit)",
 * "23.1 GB are available".  text: of EK_LIMIT_TEXT bytes; returns it. */
const char *ek_memory_limit_describe(const ek_memory_limit *limit, char *text);

/* The source alone: "--memory-limit", "the cgroup FOLDER", "free memory", "unknown". */
const char *ek_memory_limit_source(const ek_memory_limit *limit, char *text);

#endif
