/* balance/place_dp.h - few items onto equal ranks, exactly.
 *
 *   f_j(S) = min over T in S of max(f_{j-1}(S \ T), load(T)),  size(T) <= capacity
 *
 * f_j(S) is the smallest largest load with which j ranks hold the items of S.  An item is an expert
 * (size 1), or a group of experts that stay together (size: how many).  Ranks need not be full, and
 * may be empty.  As ranks are alike, T is always taken to hold the first item of S: every packing
 * is met once, in about 3^items / 2 steps a rank instead of 4^items. */
#ifndef BALANCE_PLACE_DP_H
#define BALANCE_PLACE_DP_H

#include "base/arena.h"

enum { EK_PLACE_ITEMS = 12 }; /* at most; 3^12 is about half a million */

typedef struct {
    int32_t items, ranks; /* what there is room for */
    int64_t *load;        /* [2^items] of each subset */
    int32_t *size;        /* [2^items] */
    int64_t *value;       /* [2][2^items]: f_j and f_{j-1} */
    uint16_t *taken;      /* [ranks][2^items]: T of f_j(S) */
} ek_place_dp;

/* Room for `items` (at most EK_PLACE_ITEMS) on `ranks`. */
void ek_place_dp_reserve(ek_place_dp *m, ek_arena *a, int32_t items, int32_t ranks);

/* Packs n items: rank_of [n].  Returns the largest load of a rank; -1: they do not fit.  Of equal
 * packings always the same one. */
int64_t ek_place_exact(ek_place_dp *m, const int64_t *load, const int32_t *size, int32_t n,
                       int32_t ranks, int32_t capacity, int32_t *rank_of);

#endif
