/* The stable counting sort by slot: count, prefix sum, place. */
#include "moe/dispatch.h"

#include <string.h>

int64_t ek_dispatch_rows(const int32_t *slot_of, int32_t first, int32_t slots, int64_t n,
                         int64_t cols, const int32_t *ids, int32_t *row_of, int32_t *token_of,
                         int64_t *offset, int64_t *next)
{
    memset(offset, 0, (size_t)(slots + 1) * sizeof(*offset));
    for (int64_t i = 0; i < n * cols; i++)
        if (ids[i] >= 0)
            offset[slot_of[ids[i]] - first + 1]++;
    for (int32_t s = 0; s < slots; s++)
        offset[s + 1] += offset[s];
    memcpy(next, offset, (size_t)slots * sizeof(*next));
    for (int64_t t = 0; t < n; t++) {
        for (int64_t j = 0; j < cols; j++) {
            int32_t e = ids[t * cols + j];
            int64_t row = e >= 0 ? next[slot_of[e] - first]++ : -1;

            row_of[t * cols + j] = (int32_t)row;
            if (row >= 0)
                token_of[row] = (int32_t)t;
        }
    }
    return offset[slots];
}
