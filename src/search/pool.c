/* Lists what no other layout beats, and what runs may choose from. */
#include "search/pool.h"

#include "train/layout_pool.h"

#include <math.h>

/* Steps of layouts in a pool for runs, over the shortest, unless they need least memory. */
#define NEAR_BEST 1.5

int64_t ek_search_list_unbeaten(const ek_search_by_time *of, int by_flow, int64_t *list)
{
    double least = INFINITY;
    int64_t n_list = 0;

    for (int64_t i = 0; i < of->n; i++) {
        const ek_search_layout *l = &of->layouts[of->order[i]];

        if (l->by_flow == by_flow && l->memory < least) {
            least = l->memory;
            list[n_list++] = of->order[i];
        }
    }
    return n_list;
}

static int is_one_of(const int64_t *list, int64_t n, int64_t index)
{
    while (n > 0 && list[n - 1] != index)
        n--;
    return n > 0;
}

static int is_best_of_corner(ek_search_corners corners, int64_t index)
{
    for (int i = 0; i < corners.n; i++)
        if (corners.list[i].best == index)
            return 1;
    return 0;
}

int64_t ek_search_list_for_runs(const ek_search_by_time *of, const int64_t *pool, int64_t n_pool,
                                ek_search_corners corners, double shortest, int64_t *list)
{
    int64_t others = EK_LAYOUT_POOL_MAX - n_pool, n = 0;

    for (int64_t i = 0; i < of->n && n < EK_LAYOUT_POOL_MAX; i++) {
        int64_t at = of->order[i];

        if (is_one_of(pool, n_pool, at) ||
            (is_best_of_corner(corners, at) && of->layouts[at].step_s <= NEAR_BEST * shortest &&
             others-- > 0))
            list[n++] = at;
    }
    return n;
}
