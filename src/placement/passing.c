/* Marks the ranks that send experts of their own, and lists the others before them. */
#include "placement/passing.h"

#include <string.h>

void ek_passing_order(const int32_t *expert_of, const int32_t *primary, int32_t ranks,
                      int32_t slots, int32_t first, int32_t *order)
{
    int32_t *gives = order + ranks, n = 0;

    memset(gives, 0, (size_t)ranks * sizeof(*gives));
    for (int32_t s = 0; s < ranks * slots; s++) {
        int32_t e = expert_of[s], from = e < 0 ? s / slots : (primary[e] - first) / slots;

        if (from != s / slots)
            gives[from] = 1;
    }
    for (int32_t last = 0; last < 2; last++)
        for (int32_t rank = 0; rank < ranks; rank++)
            if (gives[rank] == last)
                order[n++] = rank;
}
