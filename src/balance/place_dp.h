/* balance/place_dp.h - exact packing of few items onto ranks.
 *
 *   f_j(S) = min over T in S of max(f_{j-1}(S \ T), cost_j load(T)),  size(T) <= capacity
 *
 * f_j(S) is the least largest load with which j ranks hold the items of S.  An item is an expert
 * (size 1), or a group of experts that stay together (size: their number).  Ranks may be partly
 * filled or empty.  Where ranks are equal, T always includes the first item of S, so every packing
 * is visited once: about 3^items / 2 steps per rank instead of 4^items; otherwise 3^items. */
#ifndef BALANCE_PLACE_DP_H
#define BALANCE_PLACE_DP_H

#include "base/arena.h"

enum { EK_PLACE_ITEMS = 12 }; /* maximum; 3^12 is about half a million */

typedef struct {
    int32_t items, ranks; /* maximum numbers */
    int64_t *load;        /* [2^items] of each subset */
    int32_t *size;        /* [2^items] */
    int64_t *value;       /* [2][2^items]: f_j and f_{j-1} */
    uint16_t *taken;      /* [ranks][2^items]: T of f_j(S) */
} ek_place_dp;

/* Reserves memory for `items` (at most EK_PLACE_ITEMS) on `ranks`. */
void ek_place_dp_reserve(ek_place_dp *m, ek_arena *a, int32_t items, int32_t ranks);

/* Packs n items of load [n] and size [n]: rank_of [n].  cost [ranks]: what a unit of load costs on
 * each rank; NULL: 1.  Returns the largest cost of a rank; -1: they do not fit.  Deterministic
 * among equal packings. */
int64_t ek_place_exact(ek_place_dp *m, const int64_t *load, const int32_t *size, int32_t n,
                       int32_t ranks, const int32_t *cost, int32_t capacity, int32_t *rank_of);

#endif
