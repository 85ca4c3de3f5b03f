/* A binary heap of layouts. */
#include "search/bound_queue.h"

#include <stdlib.h>

ek_status ek_bound_queue_open(ek_bound_queue *q, int64_t cap)
{
    *q = (ek_bound_queue){.heap = calloc((size_t)cap + 1, sizeof(*q->heap))};
    EK_REQUIRE(q->heap != NULL, EK_ENOMEM, "no memory for %lld layouts", (long long)cap);
    return EK_OK;
}

void ek_bound_queue_close(ek_bound_queue *q)
{
    free(q->heap);
    *q = (ek_bound_queue){0};
}

static int comes_before(const ek_bound_queue_entry *a, const ek_bound_queue_entry *b)
{
    if (a->bound < b->bound || a->bound > b->bound)
        return a->bound < b->bound;
    return a->index < b->index;
}

void ek_bound_queue_add(ek_bound_queue *q, double bound, int64_t index)
{
    ek_bound_queue_entry e = {bound, index};
    int64_t i = q->n++;

    for (; i > 0 && comes_before(&e, &q->heap[(i - 1) / 2]); i = (i - 1) / 2)
        q->heap[i] = q->heap[(i - 1) / 2];
    q->heap[i] = e;
}

int64_t ek_bound_queue_take(ek_bound_queue *q)
{
    int64_t first = q->heap[0].index, i = 0;
    ek_bound_queue_entry last = q->heap[--q->n];

    for (int64_t child; (child = 2 * i + 1) < q->n; i = child) {
        child += child + 1 < q->n && comes_before(&q->heap[child + 1], &q->heap[child]);
        if (!comes_before(&q->heap[child], &last))
            break;
        q->heap[i] = q->heap[child];
    }
    q->heap[i] = last;
    return first;
}
