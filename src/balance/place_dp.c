/* The dynamic program over subsets. */
#include "balance/place_dp.h"

enum { NEVER = -1 }; /* a subset that does not fit */

void ek_place_dp_reserve(ek_place_dp *m, ek_arena *a, int32_t items, int32_t ranks)
{
    int64_t subsets = (int64_t)1 << items;

    m->items = items;
    m->ranks = ranks;
    m->load = ek_arena_alloc(a, subsets, sizeof(*m->load));
    m->size = ek_arena_alloc(a, subsets, sizeof(*m->size));
    m->value = ek_arena_alloc(a, 2 * subsets, sizeof(*m->value));
    m->taken = ek_arena_alloc(a, ranks * subsets, sizeof(*m->taken));
}

/* Loads and sizes of all subsets, each from the one without its last item. */
static void sum_subsets(ek_place_dp *m, const int64_t *load, const int32_t *size, int32_t n)
{
    m->load[0] = 0;
    m->size[0] = 0;
    for (int32_t i = 0; i < n; i++)
        for (uint32_t s = 0, bit = 1u << i; s < bit; s++) {
            m->load[s | bit] = m->load[s] + load[i];
            m->size[s | bit] = m->size[s] + size[i];
        }
}

/* f_1: one rank takes all. */
static void one_rank(ek_place_dp *m, uint32_t subsets, int64_t cost, int32_t capacity,
                     int64_t *value)
{
    for (uint32_t s = 0; s < subsets; s++) {
        value[s] = m->size[s] <= capacity ? m->load[s] * cost : NEVER;
        m->taken[s] = (uint16_t)s;
    }
}

/* f_j of one non-empty subset, from f_{j-1} in `fewer`. */
static int64_t one_subset(const ek_place_dp *m, uint32_t s, int32_t capacity, const int64_t *fewer,
                          uint16_t *taken)
{
    uint32_t first = s & (~s + 1), others = s ^ first;
    int64_t best = NEVER;

    for (uint32_t more = others;; more = (more - 1) & others) {
        uint32_t t = first | more;
        int64_t rest = fewer[s ^ t];

        if (m->size[t] <= capacity && rest != NEVER) {
            int64_t most = rest > m->load[t] ? rest : m->load[t];

            if (best == NEVER || most < best) {
                best = most;
                *taken = (uint16_t)t;
            }
        }
        if (more == 0)
            return best;
    }
}

/* The same for a rank unlike others, which may have any subset, also an empty one. */
static int64_t one_subset_of(const ek_place_dp *m, uint32_t s, int64_t cost, int32_t capacity,
                             const int64_t *fewer, uint16_t *taken)
{
    int64_t best = NEVER;

    for (uint32_t t = s;; t = (t - 1) & s) {
        int64_t rest = fewer[s ^ t], own = m->load[t] * cost, most = rest > own ? rest : own;

        if (m->size[t] <= capacity && rest != NEVER && (best == NEVER || most < best)) {
            best = most;
            *taken = (uint16_t)t;
        }
        if (t == 0)
            return best;
    }
}

int64_t ek_place_exact(ek_place_dp *m, const int64_t *load, const int32_t *size, int32_t n,
                       int32_t ranks, const int32_t *cost, int32_t capacity, int32_t *rank_of)
{
    uint32_t subsets = 1u << n, all = subsets - 1;
    int64_t *fewer = m->value, *value = m->value + subsets, *swap, most;

    sum_subsets(m, load, size, n);
    one_rank(m, subsets, cost != NULL ? cost[0] : 1, capacity, fewer);
    for (int32_t j = 1; j < ranks; j++) {
        uint16_t *taken = m->taken + (int64_t)j * subsets;

        value[0] = 0;
        taken[0] = 0;
        /* for the last rank only the full set is needed */
        for (uint32_t s = j + 1 < ranks ? 1 : all; s <= all; s++)
            value[s] = cost != NULL ? one_subset_of(m, s, cost[j], capacity, fewer, &taken[s])
                                    : one_subset(m, s, capacity, fewer, &taken[s]);
        swap = fewer;
        fewer = value;
        value = swap;
    }
    most = fewer[all];
    if (most == NEVER)
        return NEVER;
    for (int32_t j = ranks - 1; j >= 0; j--) {
        uint32_t t = m->taken[(int64_t)j * subsets + all];

        for (int32_t i = 0; i < n; i++)
            if (t >> i & 1)
                rank_of[i] = j;
        all ^= t;
    }
    return most;
}
