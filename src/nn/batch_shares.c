/* Ranges of sequences in proportion to weights. */
#include "nn/batch_shares.h"

#include "comm/mesh.h"

void ek_shares_sum(const int64_t *weights, int ranks, int64_t *sums)
{
    sums[0] = 0;
    for (int r = 0; r < ranks; r++)
        sums[r + 1] = sums[r] + weights[r];
}

int64_t ek_shares_first(const int64_t *sums, int ranks, int64_t n, int rank)
{
    if (sums == NULL)
        return ek_range_first(n, ranks, rank);
    return (n * sums[rank] + sums[ranks] / 2) / sums[ranks];
}

int64_t ek_shares_first_token(const int64_t *sums, int ranks, int tp, int64_t n, int64_t seq,
                              int rank)
{
    int dp_rank = rank / tp;

    if (dp_rank == ranks)
        return n * seq;
    return ek_shares_first(sums, ranks, n, dp_rank) * seq +
           ek_range_first(ek_shares_length(sums, ranks, n, dp_rank) * seq, tp, rank % tp);
}

int64_t ek_shares_length(const int64_t *sums, int ranks, int64_t n, int rank)
{
    return ek_shares_first(sums, ranks, n, rank + 1) - ek_shares_first(sums, ranks, n, rank);
}

int64_t ek_shares_longest(const int64_t *sums, int ranks, int64_t n)
{
    int64_t most = 0;

    if (sums == NULL)
        return ek_range_length(n, ranks, 0);
    for (int r = 0; r < ranks; r++)
        most = sums[r + 1] - sums[r] > most ? sums[r + 1] - sums[r] : most;
    return (n * most + sums[ranks] - 1) / sums[ranks]; /* rounded ranges are at most that long */
}

void ek_shares_limit(int64_t *weights, int ranks, double most)
{
    for (int lowered = 1; lowered > 0;) {
        int64_t sum = 0, limit;

        lowered = 0;
        for (int r = 0; r < ranks; r++)
            sum += weights[r];
        limit = (int64_t)(most * (double)sum / ranks);
        for (int r = 0; r < ranks; r++)
            if (weights[r] > limit && limit > 0) {
                weights[r] = limit;
                lowered = 1;
            }
    }
}
