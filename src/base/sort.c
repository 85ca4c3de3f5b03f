/* Sorts numbers by qsort. */
#include "base/sort.h"

#include <stdlib.h>

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

void ek_sort_reals(double *x, int64_t n)
{
    qsort(x, (size_t)n, sizeof(*x), compare);
}
