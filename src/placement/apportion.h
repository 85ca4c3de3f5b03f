/* placement/apportion.h - integers in proportion to weights, by largest remainder. */
#ifndef PLACEMENT_APPORTION_H
#define PLACEMENT_APPORTION_H

#include "base/arena.h"

#include <stdint.h>

/* Scratch memory for up to n weights. */
typedef struct {
    int64_t *remainder; /* [n] */
    int32_t *open;      /* [n] */
} ek_apportion_scratch;

void ek_apportion_reserve(ek_apportion_scratch *scratch, ek_arena *a, int64_t n);

/* Fills share [n] with integers that add up to `total`, in proportion to weight [n], none above
 * `most`.  What `most` cuts off is redistributed to the others in proportion to their weights, or
 * evenly where none of them has any.  Units left by rounding down go to the largest remainders,
 * ties to the lower index.  Requires 0 <= total <= n * most, weights >= 0, and a sum of weights
 * that fits.  Exact integer arithmetic: the same result on every machine. */
void ek_apportion(const ek_apportion_scratch *scratch, const int64_t *weight, int32_t n,
                  int64_t total, int64_t most, int64_t *share);

#endif
