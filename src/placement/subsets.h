/* placement/subsets.h - sets of k numbers below n: all of them in turn,
 * or some at random.  Pure. */
#ifndef PLACEMENT_SUBSETS_H
#define PLACEMENT_SUBSETS_H

#include <stdint.h>

/* The set after this one, in lexicographic order; the first one is 0 to k - 1. */
void ek_subset_next(int32_t *set, int32_t k, int32_t n);

/* Any set, all being equally likely: the number-th of those that this seed draws. */
void ek_subset_draw(uint64_t seed, int32_t *set, int32_t k, int32_t n, int64_t number);

#endif
