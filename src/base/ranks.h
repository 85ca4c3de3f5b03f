/* base/ranks.h - ranks of a world at equal distances, as those of all groups of a layout are. */
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

#endif
