/* Maxima of blocks of ranks. */
#include "balance/maxima.h"

enum { BLOCK = 32 };

static int32_t number_blocks(int32_t ranks)
{
    return (ranks + BLOCK - 1) / BLOCK;
}

void ek_maxima_reserve(ek_maxima *x, ek_arena *a, int32_t ranks)
{
    x->of = ek_arena_alloc(a, ranks, sizeof(*x->of));
    x->most = ek_arena_alloc(a, number_blocks(ranks), sizeof(*x->most));
    x->at = ek_arena_alloc(a, number_blocks(ranks), sizeof(*x->at));
}

int32_t ek_first_largest(const int64_t *x, int32_t n)
{
    int64_t most = 0;
    int32_t at = -1;

#pragma GCC unroll 4
    for (int32_t i = 0; i < n; i++) {
        at = x[i] > most ? i : at;
        most = x[i] > most ? x[i] : most;
    }
    return at;
}

static void find_block_maximum(ek_maxima *x, int32_t ranks, int32_t block)
{
    int32_t first = block * BLOCK, n = ranks - first < BLOCK ? ranks - first : BLOCK;
    int32_t at = ek_first_largest(x->of + first, n);

    x->at[block] = at < 0 ? -1 : first + at;
    x->most[block] = at < 0 ? 0 : x->of[first + at];
}

void ek_maxima_find(ek_maxima *x, int32_t ranks)
{
    for (int32_t i = 0; i < number_blocks(ranks); i++)
        find_block_maximum(x, ranks, i);
}

int32_t ek_maxima_first(const ek_maxima *x, int32_t ranks)
{
    int32_t block = ek_first_largest(x->most, number_blocks(ranks));

    return block < 0 ? -1 : x->at[block];
}

static int is_in(const uint64_t *set, int32_t rank)
{
    return (int)(set[rank / 64] >> rank % 64 & 1);
}

static int32_t first_in_block_outside(const ek_maxima *x, int32_t ranks, int32_t block,
                                      const uint64_t *except)
{
    int32_t end = (block + 1) * BLOCK < ranks ? (block + 1) * BLOCK : ranks, best = -1;
    int64_t most = 0;

    for (int32_t r = block * BLOCK; r < end; r++) {
        int64_t n = is_in(except, r) ? 0 : x->of[r];

        best = n > most ? r : best;
        most = n > most ? n : most;
    }
    return best;
}

int32_t ek_maxima_first_outside(const ek_maxima *x, int32_t ranks, const uint64_t *except)
{
    int32_t best = -1;
    int64_t most = 0;

    for (int32_t block = 0; block < number_blocks(ranks); block++) {
        int32_t rank;

        if (x->most[block] <= most)
            continue;
        rank = is_in(except, x->at[block]) ? first_in_block_outside(x, ranks, block, except)
                                           : x->at[block];
        if (rank >= 0 && x->of[rank] > most) {
            best = rank;
            most = x->of[rank];
        }
    }
    return best;
}

int64_t ek_maxima_largest(const ek_maxima *x, int32_t ranks)
{
    int32_t block = ek_first_largest(x->most, number_blocks(ranks));

    return block < 0 ? 0 : x->most[block];
}

void ek_maxima_change(ek_maxima *x, int32_t ranks, int32_t rank, int64_t n)
{
    int32_t block = rank / BLOCK;

    if (n == x->of[rank])
        return;
    x->of[rank] = n;
    if (rank == x->at[block] || n == x->most[block]) {
        find_block_maximum(x, ranks, block);
    } else if (n > x->most[block]) {
        x->most[block] = n;
        x->at[block] = rank;
    }
}
