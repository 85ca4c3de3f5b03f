/* moe/dispatch.h - which row of the expert buffer each assignment takes.
 *
 * A stable counting sort of assignments by the slot that serves them: rows of one slot are
 * contiguous, in token order.  Integer-exact and the same on every rank. */
#ifndef MOE_DISPATCH_H
#define MOE_DISPATCH_H

#include "balance/placement.h"

#include <stdint.h>

/* ids [n, cols] (-1: none) -> row_of [n, cols] (-1: none), token_of [rows], offset [slots + 1]
 * over the slots of rank 0.  next [slots] is scratch.  Returns the number of rows. */
int64_t ek_dispatch_rows(const ek_placement *p, int64_t n, int64_t cols, const int32_t *ids,
                         int32_t *row_of, int32_t *token_of, int64_t *offset, int64_t *next);

#endif
