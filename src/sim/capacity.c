/* Copies a trace with counts cut, or filled up, at the capacity of experts. */
#include "sim/capacity.h"

#include <math.h>
#include <stdlib.h>

/* Of one source; most: the largest count of the layer. */
static int64_t capacity_of(const int64_t *counts, int64_t experts, double factor, int64_t most)
{
    int64_t all = 0;

    for (int64_t e = 0; e < experts; e++)
        all += counts[e];
    return factor > 0 ? (int64_t)ceil(factor * (double)all / (double)experts) : most;
}

/* counts [sources][experts] of a layer in one iteration. */
static void limit_layer(const ek_trace *t, double factor, int padded, int64_t *counts)
{
    int64_t most = 0;

    for (int64_t i = 0; i < t->sources * t->experts; i++)
        most = counts[i] > most ? counts[i] : most;
    for (int64_t s = 0; s < t->sources; s++) {
        int64_t *of = counts + s * t->experts;
        int64_t capacity = capacity_of(of, t->experts, factor, most);

        for (int64_t e = 0; e < t->experts; e++)
            of[e] = padded || of[e] > capacity ? capacity : of[e];
    }
}

ek_status ek_sim_limit_trace(const ek_trace *t, double factor, int padded, ek_trace *out)
{
    int64_t n = ek_trace_numbers(t), layer = t->sources * t->experts;
    int64_t *counts = calloc((size_t)n + 1, sizeof(*counts));

    *out = (ek_trace){.own = counts,
                      .data = (const unsigned char *)counts,
                      .width = sizeof(*counts),
                      .iterations = t->iterations,
                      .layers = t->layers,
                      .sources = t->sources,
                      .experts = t->experts};
    EK_REQUIRE(counts != NULL, EK_ENOMEM, "no memory for a trace of %lld numbers", (long long)n);
    for (int64_t i = 0; i < n; i++)
        counts[i] = ek_trace_number(t, i);
    for (int64_t i = 0; i < n; i += layer)
        limit_layer(t, fabs(factor), padded, counts + i);
    return EK_OK;
}
