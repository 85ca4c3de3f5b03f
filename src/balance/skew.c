/* Skewed and synthetic traces. */
#include "balance/skew.h"

#include "balance/workload.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Traces are little-endian. */
static void put_number(unsigned char *at, uint64_t x)
{
    for (int i = 0; i < 8; i++)
        at[i] = (unsigned char)(x >> (8 * i));
}

static ek_status allocate_trace(ek_trace *t)
{
    t->width = 8;
    t->own = calloc((size_t)ek_trace_numbers(t), 8);
    t->data = t->own;
    EK_REQUIRE(t->own != NULL, EK_ENOMEM, "no memory for a trace");
    return EK_OK;
}

ek_status ek_trace_skewed(const ek_trace *from, double share, int64_t iterations, ek_trace *out)
{
    int64_t n = iterations < from->iterations ? iterations : from->iterations,
            experts = from->experts;
    int64_t first = (from->iterations - n) / 2 * from->layers * from->sources * experts;

    *out = (ek_trace){
        .iterations = n, .layers = from->layers, .sources = from->sources, .experts = experts};
    EK_TRY(allocate_trace(out));
    for (int64_t i = 0; i < ek_trace_numbers(out); i += experts) {
        double sum = 0;

        for (int64_t e = 0; e < experts; e++)
            sum += (double)ek_trace_number(from, first + i + e);
        for (int64_t e = 0; e < experts; e++) {
            double mixed = share * (double)ek_trace_number(from, first + i + e) +
                           (1 - share) * sum / (double)experts;

            put_number((unsigned char *)out->own + 8 * (i + e), (uint64_t)llround(mixed));
        }
    }
    return EK_OK;
}

ek_status ek_trace_synthetic(const ek_trace_shape *shape, ek_trace *out)
{
    const ek_workload_shape s = {.iterations = shape->iterations,
                                 .layers = shape->layers,
                                 .sources = 1,
                                 .experts = (int32_t)shape->experts,
                                 .tokens = shape->tokens,
                                 .top_k = shape->top_k};
    ek_workload_maker *m = NULL;
    uint32_t *counts = calloc((size_t)shape->experts, sizeof(*counts));
    ek_status st;

    *out = (ek_trace){.iterations = shape->iterations,
                      .layers = shape->layers,
                      .sources = 1,
                      .experts = shape->experts};
    EK_REQUIRE_OUT(counts != NULL, EK_ENOMEM, "no memory for a trace");
    EK_TRY_OUT(allocate_trace(out));
    EK_TRY_OUT(ek_workload_open(ek_workload_find(shape->workload), &s, &m));
    for (int64_t row = 0; row < shape->iterations * shape->layers; row++) {
        ek_workload_counts(m, row / shape->layers, row % shape->layers, counts);
        for (int64_t e = 0; e < shape->experts; e++)
            put_number((unsigned char *)out->own + 8 * (row * shape->experts + e), counts[e]);
    }
out:
    ek_workload_close(&m);
    free(counts);
    return st;
}
