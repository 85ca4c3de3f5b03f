/* search/pool.h - the layouts that no other beats in both time and memory, and those that a run may
 * choose from. */
#ifndef SEARCH_POOL_H
#define SEARCH_POOL_H

#include "search/found.h"

/* Indices of layouts, by the time of their steps. */
typedef struct {
    const ek_search_layout *layouts;
    const int64_t *order; /* [n] */
    int64_t n;
} ek_search_by_time;

/* Those simulated by one engine that need less memory than all of it before them: to list, which
 * has room for all and may be the order.  Returns how many. */
int64_t ek_search_list_unbeaten(const ek_search_by_time *of, int by_flow, int64_t *list);

/* Those of the pool [n_pool], and the best of each corner if its step is not much longer than the
 * shortest; where they are too many, the pool goes first.  To list, which has room for all.
 * Returns how many. */
int64_t ek_search_list_for_runs(const ek_search_by_time *of, const int64_t *pool, int64_t n_pool,
                                ek_search_corners corners, double shortest, int64_t *list);

#endif
