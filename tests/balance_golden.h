/* balance_golden.h - recorded counts for which planners have golden values: golden_counts.npy in
 * the folder of EK_TRACES, which is not part of the repository. */
#ifndef BALANCE_GOLDEN_H
#define BALANCE_GOLDEN_H

#include "balance/trace.h"
#include "ek_test.h"

enum { GOLDEN_RANKS = 16, GOLDEN_EXPERTS = 32 };

static const char golden_missing[] = "EK_TRACES names no folder with golden_counts.npy";

/* A trace of that folder; 0: there is none. */
static inline int golden_open(const char *name, ek_trace *t)
{
    const char *folder = getenv("EK_TRACES");
    ek_path path;

    if (folder == NULL || ek_path_set(&path, "%s/%s", folder, name) < 0 ||
        ek_file_kind_of(path.s) != EK_FILE_REGULAR)
        return 0;
    CHECK(ek_trace_open(path.s, t) == EK_OK);
    return 1;
}

/* counts [16][32] of case `nth`; 0: they are not there. */
static inline int golden_counts(int nth, int64_t *counts)
{
    ek_trace t;

    if (!golden_open("golden_counts.npy", &t))
        return 0;
    for (int r = 0; r < GOLDEN_RANKS;
         r++) /* cases stand where iterations would, ranks for layers */
        ek_trace_counts(&t, nth, r, 1, counts + (int64_t)r * GOLDEN_EXPERTS);
    ek_trace_close(&t);
    return 1;
}

#endif
