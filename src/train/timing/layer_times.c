/* Time covered by the events of each layer: sorted by start, overlaps counted once. */
#include "train/timing/layer_times.h"

#include <stdlib.h>

typedef struct {
    int32_t layer;
    int64_t start_ns, end_ns;
} span;

static int by_layer_and_start(const void *a, const void *b)
{
    const span *x = a, *y = b;

    if (x->layer != y->layer)
        return x->layer < y->layer ? -1 : 1;
    return (x->start_ns > y->start_ns) - (x->start_ns < y->start_ns);
}

ek_status ek_layer_times(const ek_event *events, int64_t n, int64_t from_ns, double *seconds)
{
    span *spans = malloc(((size_t)n + 1) * sizeof(*spans));
    int64_t used = 0, end = 0;

    EK_REQUIRE(spans != NULL, EK_ENOMEM, "no memory for the times of %lld ops", (long long)n);
    for (int64_t i = 0; i < n; i++)
        if (events[i].start_ns >= from_ns && events[i].layer >= 0 &&
            ek_op_info_of(events[i].kind)->of_expert_layer)
            spans[used++] = (span){events[i].layer, events[i].start_ns, events[i].end_ns};
    qsort(spans, (size_t)used, sizeof(*spans), by_layer_and_start);
    for (int64_t i = 0; i < used; i++) {
        const span *s = &spans[i];
        int again = i > 0 && s->layer == spans[i - 1].layer;
        int64_t start = again && end > s->start_ns ? end : s->start_ns;

        end = s->end_ns > start ? s->end_ns : start;
        seconds[s->layer] += (double)(end - start) * 1e-9;
    }
    free(spans);
    return EK_OK;
}
