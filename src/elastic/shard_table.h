/* elastic/shard_table.h - what lies where in the state of a rank, and who gives what to whom when
 * ranks go on from what others have left.
 *
 * A part is a box of a tensor (store/tensor_slices.h): masters and both moments of it, in three
 * arrays of the same shape.  The table of parts lies in the segment with them, so that whoever
 * finds the segment can read it without knowing the layout of the ranks that made it.
 *
 * ek_shard_copy_plan is pure, and the same for all who have the same tables.  Boxes of one tensor
 * are the same or do not overlap, as one layout made them all; the same box with several ranks is a
 * replica, and the ranks that have it give it away in turns. */
#ifndef ELASTIC_SHARD_TABLE_H
#define ELASTIC_SHARD_TABLE_H

#include "store/tensor_slices.h"

#include <stdatomic.h>

enum { EK_STATE_ARRAYS = 3 }; /* masters, first and second moments */

typedef struct {
    _Atomic int32_t tensor; /* a number that all ranks give it; -1: nothing whole lies here */
    int32_t unused;
    ek_tensor_slice slice;
    int64_t ld;                  /* numbers from row to row */
    int64_t at[EK_STATE_ARRAYS]; /* bytes from the start of the segment's body: first numbers */
} ek_shard;

/* A table of parts in memory. */
typedef struct {
    ek_shard *shard;
    int64_t n;
} ek_shard_table;

size_t ek_shard_table_bytes(int64_t n);
/* Makes a table of n empty parts; finds the one that is there.  EK_ECORRUPT: it is none, or one of
 * its parts lies outside of a body of body_bytes, with numbers of real_bytes. */
void ek_shard_table_create(void *memory, int64_t n, ek_shard_table *out);
EK_CHECKED ek_status ek_shard_table_open(void *memory, size_t bytes, size_t body_bytes,
                                         int real_bytes, ek_shard_table *out);

/* --- who gives what to whom --------------------------------------------------------------------
 */

/* What is left, or what is wanted. */
typedef struct {
    ek_shard_table shards;
    int32_t host; /* a number that hosts have */
    int32_t rank; /* who sends what is left; who wants it */
} ek_shard_owner;

/* A box that goes from one part to another. */
typedef struct {
    int32_t from, to;             /* holders: of what is left, of what is wanted */
    int64_t from_shard, to_shard; /* of these */
    ek_tensor_slice slice;        /* of the tensor */
} ek_state_copy;

/* Lists how what `wants` want comes from what `left` hold: from the own host where it is there,
 * else from the rank that has least to send so far.  In the order of wants and of their parts.
 * *missing: a tensor of which something is not left; -1: all is there.  The caller frees *copies.
 */
EK_CHECKED ek_status ek_shard_copy_plan(const ek_shard_owner *left, int32_t n_left,
                                        const ek_shard_owner *wants, int32_t n_wants,
                                        ek_state_copy **copies, int64_t *n, int32_t *missing);

/* The first number of a copy's box in a part, of one of its arrays: bytes from the body's start. */
int64_t ek_shard_at(const ek_shard *p, int array, const ek_tensor_slice *slice, int real_bytes);

#endif
