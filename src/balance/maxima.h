/* balance/maxima.h - numbers of ranks, of which the first largest one is found in O(B + ranks / B)
 * after a change: the maxima of blocks of B = 32 ranks are kept. */
#ifndef BALANCE_MAXIMA_H
#define BALANCE_MAXIMA_H

#include "base/arena.h"

#include <stdint.h>

typedef struct {
    int64_t *of;   /* [ranks] not negative */
    int64_t *most; /* [blocks] the largest, 0 if none is above 0 */
    int32_t *at;   /* [blocks] the first rank that has it; -1: none */
} ek_maxima;

/* Index of the first largest of n numbers if that is above 0; -1. */
int32_t ek_first_largest(const int64_t *x, int32_t n);

void ek_maxima_reserve(ek_maxima *x, ek_arena *a, int32_t ranks);
/* To be called after x->of was filled in. */
void ek_maxima_find(ek_maxima *x, int32_t ranks);
/* The first rank with the largest number, if that is above 0; -1. */
int32_t ek_maxima_first(const ek_maxima *x, int32_t ranks);
/* Likewise, of the ranks whose bit in except [(ranks + 63) / 64] is 0. */
int32_t ek_maxima_first_outside(const ek_maxima *x, int32_t ranks, const uint64_t *except);
/* The largest number. */
int64_t ek_maxima_largest(const ek_maxima *x, int32_t ranks);
/* Changes the number of one rank. */
void ek_maxima_change(ek_maxima *x, int32_t ranks, int32_t rank, int64_t n);

#endif
