/* base/sort.h - sorts numbers, for medians and other quantiles. */
#ifndef BASE_SORT_H
#define BASE_SORT_H

#include <stdint.h>

/* Ascending. */
void ek_sort_reals(double *x, int64_t n);

#endif
