/* search/bound_queue.h - layouts by their bounds, the least first; of equal ones the first layout.
 * A binary heap. */
#ifndef SEARCH_BOUND_QUEUE_H
#define SEARCH_BOUND_QUEUE_H

#include "evenkeel/err.h"

#include <stdint.h>

typedef struct {
    double bound;
    int64_t index; /* of the layout */
} ek_bound_queue_entry;

typedef struct {
    ek_bound_queue_entry *heap; /* [n] */
    int64_t n;
} ek_bound_queue;

/* An empty queue for up to `cap` layouts.  The caller closes q, also after a failure.  EK_ENOMEM.
 */
EK_CHECKED ek_status ek_bound_queue_open(ek_bound_queue *q, int64_t cap);
void ek_bound_queue_close(ek_bound_queue *q);

void ek_bound_queue_add(ek_bound_queue *q, double bound, int64_t index);

static inline int ek_bound_queue_is_empty(const ek_bound_queue *q)
{
    return q->n == 0;
}

/* The first layout of a queue that is not empty, and the bound that it was added with. */
static inline int64_t ek_bound_queue_first(const ek_bound_queue *q, double *bound)
{
    *bound = q->heap[0].bound;
    return q->heap[0].index;
}

/* Removes the first layout, and returns it. */
int64_t ek_bound_queue_take(ek_bound_queue *q);

#endif
