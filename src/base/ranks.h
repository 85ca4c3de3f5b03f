/* base/ranks.h - ranks of a world at equal distances, as those of all groups of a layout are; and
 * equal ranges of elements, as ranks have them. */
#ifndef BASE_RANKS_H
#define BASE_RANKS_H

#include <stdint.h>

/* Ranks first, first + stride, ..., n of them; the i-th is rank i of the group. */
typedef struct {
    int32_t first, stride, n;
} ek_ranks;

/* The rank in the world of the group's rank i. */
static inline int32_t ek_ranks_at(ek_ranks r, int32_t i)
{
    return r.first + i * r.stride;
}

/* How many of first, first + stride, first + 2 stride, ... are below n. */
static inline int64_t ek_ranks_below(int64_t n, int64_t first, int64_t stride)
{
    return n > first ? (n - first - 1) / stride + 1 : 0;
}

/* n elements divided into `parts` contiguous ranges, the first n % parts one element longer: range
 * `part` is [ek_range_first(n, parts, part), ek_range_first(n, parts, part + 1)). */
static inline int64_t ek_range_first(int64_t n, int parts, int part)
{
    int64_t each = n / parts, longer = n % parts;

    return part * each + (part < longer ? part : longer);
}

/* Elements of that range. */
static inline int64_t ek_range_length(int64_t n, int parts, int part)
{
    return n / parts + (part < n % parts);
}

/* The group of `rank` when ranks 0, 1, ... are divided into groups of n with this stride, side by
 * side: every group of a layout is one of these. */
static inline ek_ranks ek_ranks_around(int32_t rank, int32_t stride, int32_t n)
{
    int32_t block = stride * n;

    return (ek_ranks){rank / block * block + rank % stride, stride, n};
}

#endif
