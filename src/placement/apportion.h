/* placement/apportion.h - whole numbers in proportion to weights, by largest remainder. */
#ifndef PLACEMENT_APPORTION_H
#define PLACEMENT_APPORTION_H

#include "base/arena.h"

#include <stdint.h>

/* What it works in, for up to n weights. */
typedef struct {
    int64_t *remainder; /* [n] */
    int32_t *open;      /* [n] */
} ek_apportion_scratch;

void ek_apportion_reserve(ek_apportion_scratch *room, ek_arena *a, int64_t n);

/* Fills share [n] with numbers that sum to `total`, in proportion to weight [n], none over `most`:
 * what would be over goes to the others, in proportion as well; where these have no weight, evenly.
 * What is left of fractions goes to the largest of them, ties to the lower index.  0 <= total <=
 * n most; weights are not negative, and their sum fits.  Exact, so the same everywhere. */
void ek_apportion(const ek_apportion_scratch *room, const int64_t *weight, int32_t n, int64_t total,
                  int64_t most, int64_t *share);

#endif
