/* placement/subsets.h - k-subsets of 0 ... n - 1: enumeration and random draws.  Pure. */
#ifndef PLACEMENT_SUBSETS_H
#define PLACEMENT_SUBSETS_H

#include <stdint.h>

/* Advances to the next set in lexicographic order; the first one is 0 ... k - 1. */
void ek_subset_next(int32_t *set, int32_t k, int32_t n);

/* Draw `number` of this seed; all sets are equally likely. */
void ek_subset_draw(uint64_t seed, int32_t *set, int32_t k, int32_t n, int64_t number);

#endif
