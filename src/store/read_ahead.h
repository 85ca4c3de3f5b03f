/* store/read_ahead.h - batches of pieces of files, read in order, several ahead, for a team of
 * threads.
 *
 * Each thread takes a batch, uses its bytes, and gives it back, until none is left:
 *
 *   while ((st = ek_read_ahead_take(a, &i, &b)) >= 0 && i >= 0) {
 *       use(i, b);
 *       ek_read_ahead_give_back(a, b);
 *   }
 *
 * Batches are taken in order.  A buffer that is given back gets the next batch when any thread
 * takes one. */
#ifndef STORE_READ_AHEAD_H
#define STORE_READ_AHEAD_H

#include "store/file_batch.h"

typedef struct ek_read_ahead ek_read_ahead;

typedef struct {
    int64_t batches;
    int buffers; /* batches in memory at once, at least 1 */
    size_t room; /* of a buffer: of the largest batch */
    /* Adds the pieces of batch i to an empty one.  One call at a time, in order. */
    ek_status (*describe)(void *context, int64_t i, ek_file_batch *b);
    void *context;
    ek_file_reader_config reader;
} ek_read_ahead_config;

EK_CHECKED ek_status ek_read_ahead_create(const ek_read_ahead_config *config, ek_read_ahead **out);
/* No batch may be in use. */
void ek_read_ahead_destroy(ek_read_ahead **a);

/* Waits for the next batch; *i is its number, -1 if none is left, or after a failure.  The thread
 * that gets the failure has nothing to give back.  Any thread. */
EK_CHECKED ek_status ek_read_ahead_take(ek_read_ahead *a, int64_t *i, ek_file_batch **out);
void ek_read_ahead_give_back(ek_read_ahead *a, ek_file_batch *b);

ek_file_reader_bytes ek_read_ahead_bytes(ek_read_ahead *a);

#endif
