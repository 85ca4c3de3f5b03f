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

/* Index of the first maximum if that is above 0; -1. */
static int32_t largest_of(const int64_t *x, int32_t n)
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
    int32_t at = largest_of(x->of + first, n);

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
    int32_t block = largest_of(x->most, number_blocks(ranks));

    return block < 0 ? -1 : x->at[block];
}

int64_t ek_maxima_largest(const ek_maxima *x, int32_t ranks)
{
    int32_t block = largest_of(x->most, number_blocks(ranks));

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
