/* Writes all counts of a workload as a routing trace. */
#include "balance/trace.h"
#include "balance/workload.h"

#include <stdlib.h>

static ek_status write_numbers(ek_workload_maker *m, const ek_workload_shape *s, ek_file_out *f)
{
    size_t n = (size_t)s->sources * (size_t)s->experts;
    uint32_t *counts = calloc(n, sizeof(*counts));
    ek_status st = EK_OK;

    EK_REQUIRE(counts != NULL, EK_ENOMEM, "no memory for the counts of a layer");
    for (int64_t i = 0; i < s->iterations; i++)
        for (int64_t l = 0; l < s->layers; l++) {
            ek_workload_counts(m, i, l, counts);
            EK_TRY_OUT(ek_file_out_write(f, counts, n * sizeof(*counts)));
        }
out:
    free(counts);
    return st;
}

ek_status ek_workload_write(ek_workload_maker *m, const ek_workload_shape *s, const char *path)
{
    const int64_t axes[] = {s->iterations, s->layers, s->sources, s->experts};
    ek_file_out f;
    ek_status st;

    EK_TRY(ek_trace_out_open(path, axes, &f));
    EK_TRY_OUT(write_numbers(m, s, &f));
    EK_TRY_OUT(ek_file_out_close(&f));
out:
    if (st < 0)
        ek_file_out_discard(&f);
    return st;
}
