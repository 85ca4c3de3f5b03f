/* The next combination, and prefixes of random permutations. */
#include "placement/subsets.h"

#include "base/random.h"

void ek_subset_next(int32_t *set, int32_t k, int32_t n)
{
    int32_t i = k - 1;

    while (i > 0 && set[i] == n - k + i)
        i--;
    set[i]++;
    for (int32_t j = i + 1; j < k; j++)
        set[j] = set[j - 1] + 1;
}

void ek_subset_draw(uint64_t seed, int32_t *set, int32_t k, int32_t n, int64_t number)
{
    uint64_t stream = ((uint64_t)k << 32) | (uint64_t)number;

    ek_random_permute_first(seed, stream, n, k, set);
}
