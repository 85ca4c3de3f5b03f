/* moe/dispatch.h - which row of the expert buffer each assignment takes, on a rank that serves its
 * own tokens.
 *
 * A stable counting sort of assignments by the slot that serves them: rows of one slot are
 * contiguous, in token order.  Integer-exact. */
#ifndef MOE_DISPATCH_H
#define MOE_DISPATCH_H

#include <stdint.h>

/* slot_of [experts] are slots from `first` on, `slots` of them.
 * ids [n, cols] (negative: none) -> row_of [n, cols] (-1: none), token_of [rows],
 * offset [slots + 1].  next [slots] is scratch.  Returns the number of rows. */
int64_t ek_dispatch_rows(const int32_t *slot_of, int32_t first, int32_t slots, int64_t n,
                         int64_t cols, const int32_t *ids, int32_t *row_of, int32_t *token_of,
                         int64_t *offset, int64_t *next);

#endif
