/* segment_fixture.h - a run number for a test, and its shared memory. */
#ifndef SEGMENT_FIXTURE_H
#define SEGMENT_FIXTURE_H

#include "ek_test.h"
#include "elastic/segment_priv.h"

/* Unique: from the process id and a name that differs from test to test. */
static inline uint64_t run_of_test(const char *name)
{
    char out[64];

    snprintf(out, sizeof(out), "/segments/%s/%d", name, (int)getpid());
    return ek_run_id(out);
}

static inline int64_t count(uint64_t run)
{
    ek_segment_id *ids = NULL;
    int64_t n = -1;

    CHECK_INT(ek_segment_list(run, &ids, &n), EK_OK);
    free(ids);
    return n;
}

/* The path of a segment's folder, or of a file in it. */
static inline void path_in(const ek_segment_id *id, const char *file, char path[EK_SEGMENT_PATH])
{
    char folder[EK_SEGMENT_FOLDER];

    CHECK_INT(ek_segment_folder_find(id, folder), EK_OK);
    snprintf(path, EK_SEGMENT_PATH, "%s/%s", folder, file);
}

#endif
