/* base/undo_log.h - how far an update in place has come, in memory that outlives its process.
 *
 * A lane (a thread's share of the numbers) goes through its numbers block by block: it copies a
 * block's old numbers to its trail, marks the block as under way, and writes the new ones.  Copies
 * of blocks take turns between two places, so that that of the block under way is whole until the
 * next one is marked, and the trail stays in the cache.
 *
 * A process that is killed ends between two instructions, and all that it had written before, and
 * nothing after, is there for whoever looks when it has ended, as for a signal handler.  So the
 * order of the program is enough, without fences of the processor. */
#ifndef BASE_UNDO_LOG_H
#define BASE_UNDO_LOG_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum {
    EK_UNDO_BLOCK = 32, /* numbers */
    EK_UNDO_ARRAYS = 4  /* that are updated together */
};

typedef struct ek_undo_log {
    _Alignas(64) _Atomic int64_t at; /* numbers of the lane up to the end of the block under way,
                                        which may be half written; 0: none was touched */
    _Alignas(64) unsigned char kept[2][EK_UNDO_ARRAYS][EK_UNDO_BLOCK * sizeof(double)];
} ek_undo_log;

/* Where the numbers of a lane begin, of n that `lanes` share: those of lane + 1 end them. */
static inline int64_t ek_undo_lane_first(int64_t n, int lanes, int lane)
{
    const int64_t blocks = (n + EK_UNDO_BLOCK - 1) / EK_UNDO_BLOCK, more = blocks % lanes;
    const int64_t first = blocks / lanes * lane + (lane < more ? lane : more);

    return first * EK_UNDO_BLOCK < n ? first * EK_UNDO_BLOCK : n;
}

/* Where the copy of an array's numbers lies, of the block after `done` numbers of the lane. */
static inline void *ek_undo_copy(ek_undo_log *t, int64_t done, int array)
{
    return t->kept[done / EK_UNDO_BLOCK % 2][array];
}

/* The copy is whole: the block that ends after `at` numbers of the lane may now be written. */
static inline void ek_undo_mark(ek_undo_log *t, int64_t at)
{
    atomic_signal_fence(memory_order_seq_cst);
    atomic_store_explicit(&t->at, at, memory_order_relaxed);
    atomic_signal_fence(memory_order_seq_cst);
}

/* Puts back the block under way, of numbers of real_bytes, and returns how many numbers of the lane
 * are done before it: there the update goes on.  arrays: where the lane's numbers begin.  May be
 * killed and called again. */
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
