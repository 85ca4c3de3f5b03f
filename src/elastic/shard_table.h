/* elastic/shard_table.h - which tensor slices the state of a rank holds and where, and the plan of
 * copies from earlier ranks to new ones.
 *
 * A shard is a slice of a tensor (store/tensor_slices.h) with its masters and both moments, in
 * three arrays of the same shape.  The shard table lies in the segment with them, so that a reader
 * needs to know nothing of the layout of the ranks that wrote it.
 *
 * ek_shard_copy_plan is pure: ranks with the same tables get the same plan.  Slices of one tensor
 * in the survivors are equal or disjoint, as one layout made them; equal slices on several ranks
 * are replicas, and their ranks share the sending. */
#ifndef ELASTIC_SHARD_TABLE_H
#define ELASTIC_SHARD_TABLE_H

#include "store/tensor_slices.h"

#include <stdatomic.h>

enum { EK_STATE_ARRAYS = 3 }; /* masters, first and second moments */

typedef struct {
    _Atomic int32_t tensor; /* its index, the same on all ranks; -1: the shard is empty or partly
                               written */
    int32_t unused;
    ek_tensor_slice slice;
    int64_t ld;                  /* row stride, in numbers */
    int64_t at[EK_STATE_ARRAYS]; /* byte offset in the body of the first number */
} ek_state_shard;

/* A shard table in memory. */
typedef struct {
    ek_state_shard *shard;
    int64_t n;
} ek_shard_table;

size_t ek_shard_table_bytes(int64_t n);
/* create: writes a table of n empty shards to memory [ek_shard_table_bytes(n)].  open: uses the
 * table in memory; numbers have real_bytes.  Both borrow memory.  EK_ECORRUPT: there is no table,
 * or a shard lies outside of the body of body_bytes. */
void ek_shard_table_create(void *memory, int64_t n, ek_shard_table *out);
EK_CHECKED ek_status ek_shard_table_open(void *memory, size_t bytes, size_t body_bytes,
                                         int real_bytes, ek_shard_table *out);

/* --- copy plan -------------------------------------------------------------------------------- */

/* A survivor, or a rank that wants state. */
typedef struct {
    ek_shard_table shards;
    int32_t host; /* index of its host */
    int32_t rank; /* the rank that sends the survivor's state; the rank that wants it */
} ek_shard_owner;

/* Copies a slice from one shard to another. */
typedef struct {
    int32_t from, to;             /* indices of survivors; of wants */
    int64_t from_shard, to_shard; /* indices in their tables */
    ek_tensor_slice slice;        /* of the tensor */
} ek_state_copy;

/* Lists the copies that fill the shards of wants [n_wants] from survivors [n_survivors]: from a
 * survivor on the same host where one has the slice, else from the one whose rank sends least so
 * far.  In the order of wants and their shards.  *missing: a tensor that survivors hold only in
 * part; -1: all is there.  The caller frees *copies.  EK_ENOMEM. */
EK_CHECKED ek_status ek_shard_copy_plan(const ek_shard_owner *survivors, int32_t n_survivors,
                                        const ek_shard_owner *wants, int32_t n_wants,
                                        ek_state_copy **copies, int64_t *n, int32_t *missing);

/* Byte offset in the body of the first number of a slice within shard p, in one of its arrays. */
int64_t ek_shard_at(const ek_state_shard *p, int array, const ek_tensor_slice *slice,
                    int real_bytes);

#endif
