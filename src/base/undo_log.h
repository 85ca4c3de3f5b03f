/* base/undo_log.h - undo log of an update in place, in memory that outlives its process.
 *
 * Each lane (a thread's share of the elements) updates its elements block by block: it copies the
 * block's old values to its undo log, marks the block as in progress, and writes the new values.
 * Copies alternate between two buffers, so that the copy of the block in progress stays intact
 * until the next block is marked, and the log stays in the cache.
 *
 * A killed process stops between two instructions: a later reader sees all of its earlier stores
 * and none of the later ones, as a signal handler does.  Program order therefore suffices, and no
 * processor fences are needed. */
#ifndef BASE_UNDO_LOG_H
#define BASE_UNDO_LOG_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum {
    EK_UNDO_BLOCK = 32, /* elements */
    EK_UNDO_ARRAYS = 4  /* arrays that are updated together */
};

typedef struct ek_undo_log {
    _Alignas(64) _Atomic int64_t at; /* elements of the lane up to the end of the block in progress,
                                        which may be partly written; 0: no block was started */
    _Alignas(64) unsigned char kept[2][EK_UNDO_ARRAYS][EK_UNDO_BLOCK * sizeof(double)];
} ek_undo_log;

/* First of the n elements that belongs to a lane of `lanes`; its end is the first of lane + 1. */
static inline int64_t ek_undo_lane_first(int64_t n, int lanes, int lane)
{
    const int64_t blocks = (n + EK_UNDO_BLOCK - 1) / EK_UNDO_BLOCK, more = blocks % lanes;
    const int64_t first = blocks / lanes * lane + (lane < more ? lane : more);

    return first * EK_UNDO_BLOCK < n ? first * EK_UNDO_BLOCK : n;
}

/* The copy of one array's values, of the block after `done` elements of the lane. */
static inline void *ek_undo_copy(ek_undo_log *t, int64_t done, int array)
{
    return t->kept[done / EK_UNDO_BLOCK % 2][array];
}

/* Marks the copy as complete: the block that ends after `at` elements may now be written. */
static inline void ek_undo_mark(ek_undo_log *t, int64_t at)
{
    atomic_signal_fence(memory_order_seq_cst);
    atomic_store_explicit(&t->at, at, memory_order_relaxed);
    atomic_signal_fence(memory_order_seq_cst);
}

/* Restores the block in progress and returns the number of the lane's elements updated before it,
 * where the update continues.  real_bytes: size of an element; arrays: the lane's first element of
 * each array.  Idempotent: may be killed and called again. */
static inline int64_t ek_undo_restore(ek_undo_log *t, size_t real_bytes,
                                      void *const arrays[EK_UNDO_ARRAYS])
{
    const int64_t at = atomic_load_explicit(&t->at, memory_order_acquire);
    const int64_t done = at > 0 ? (at - 1) / EK_UNDO_BLOCK * EK_UNDO_BLOCK : 0;

    for (int j = 0; j < EK_UNDO_ARRAYS; j++)
        memcpy((unsigned char *)arrays[j] + (size_t)done * real_bytes, ek_undo_copy(t, done, j),
               (size_t)(at - done) * real_bytes);
    return done;
}

#endif
