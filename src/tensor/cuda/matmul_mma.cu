/* Matrix products of bf16 by mma.sync, for any GPU with bf16 tensor cores: tiles of 128 x 128 by 8
 * warps of 64 x 32 each, sums in float over stages of 32 terms, which are copied to shared memory
 * two stages ahead. */
#include "tensor/cuda/feed.h"
#include "tensor/cuda/launch.h"
#include "tensor/cuda/results.h"

enum {
    SIDE = 128,
    DEPTH = 32,
    STAGES = 3,
    CHUNKS = SIDE * DEPTH / EK_CHUNK,
    WARPS_DOWN = 2,
    WARP_ROWS = SIDE / WARPS_DOWN,
    WARP_COLUMNS = SIDE / (EK_WARPS / WARPS_DOWN),
    DOWN = WARP_ROWS / 16,
    ACROSS = WARP_COLUMNS / 8
};

/* Chunks of a line of an operand's tile. */
template <bool K_MAJOR> constexpr int operand_chunks = operand<K_MAJOR, SIDE, DEPTH>::CHUNKS;

template <bool K_MAJOR>
__device__ static feed side_of(const ek_bf16 *x, int64_t ld, int64_t first, int64_t end, int terms)
{
    using shape = operand<K_MAJOR, SIDE, DEPTH>;

    return feed_of<K_MAJOR, SIDE, DEPTH>(
        x, ld, first, end, terms,
        chunk_index<shape::CHUNKS>(shape::line(), shape::chunk_of_line()));
}

/* Operand a of matrices_multiply: rows i to i + 15 of the tile, terms t to t + 15. */
template <bool K_MAJOR>
__device__ static void load_a(unsigned r[4], const chunk *tile, int i, int t)
{
    if (K_MAJOR)
        load_by_lines<operand_chunks<K_MAJOR>, false>(r, tile, i, t);
    else
        load_by_halves<operand_chunks<K_MAJOR>, true>(r, tile, t, i);
}

/* Two operands b: columns j to j + 15, r[0] and r[1] for the first eight. */
template <bool K_MAJOR>
__device__ static void load_b(unsigned r[4], const chunk *tile, int j, int t)
{
    if (K_MAJOR)
        load_by_halves<operand_chunks<K_MAJOR>, false>(r, tile, j, t);
    else
        load_by_lines<operand_chunks<K_MAJOR>, true>(r, tile, t, j);
}

template <bool A_K_MAJOR, bool B_K_MAJOR>
__device__ static void multiply_terms(float sum[DOWN][ACROSS][4], const chunk *ta, const chunk *tb)
{
    int i = warp_of() % WARPS_DOWN * WARP_ROWS, j = warp_of() / WARPS_DOWN * WARP_COLUMNS;

#pragma unroll
    for (int t = 0; t < DEPTH; t += 16) {
        unsigned a[DOWN][4], b[ACROSS / 2][4];

#pragma unroll
        for (int y = 0; y < DOWN; y++)
            load_a<A_K_MAJOR>(a[y], ta, i + y * 16, t);
#pragma unroll
        for (int x = 0; x < ACROSS / 2; x++)
            load_b<B_K_MAJOR>(b[x], tb, j + x * 16, t);
#pragma unroll
        for (int y = 0; y < DOWN; y++)
#pragma unroll
            for (int x = 0; x < ACROSS; x++)
                matrices_multiply(sum[y][x], a[y], &b[x / 2][x % 2 * 2]);
    }
}

/* --- the kernel ------------------------------------------------------------------------------- */

template <bool A_K_MAJOR, bool B_K_MAJOR>
__global__ void __launch_bounds__(EK_BLOCK, 2)
    multiply_mma(const __grid_constant__ products<ek_bf16> all, ek_out mode)
{
    __shared__ chunk ta[STAGES][CHUNKS], tb[STAGES][CHUNKS];
    int64_t i0, j0;
    const product<ek_bf16> &p = product_of_tile(all, blockIdx.x, SIDE, SIDE, &i0, &j0);
    feed a = side_of<A_K_MAJOR>(p.a, A_K_MAJOR ? p.a_i : p.a_t, i0, p.m, (int)p.k);
    feed b = side_of<B_K_MAJOR>(p.b, B_K_MAJOR ? p.b_j : p.b_t, j0, p.n, (int)p.k);
    int steps = (int)((p.k + DEPTH - 1) / DEPTH), now = 0, next = STAGES - 1;
    float sum[DOWN][ACROSS][4] = {};

#pragma unroll
    for (int stage = 0; stage < STAGES - 1; stage++) {
        copy_next<A_K_MAJOR, SIDE, DEPTH, EK_BLOCK>(ta[stage], &a);
        copy_next<B_K_MAJOR, SIDE, DEPTH, EK_BLOCK>(tb[stage], &b);
        copy_group();
    }
#pragma unroll 1
    for (int step_no = 0; step_no < steps; step_no++) {
        copy_wait<STAGES - 2>();
        __syncthreads(); /* stage `now` is loaded by all threads, stage `next` is free */
        copy_next<A_K_MAJOR, SIDE, DEPTH, EK_BLOCK>(ta[next], &a);
        copy_next<B_K_MAJOR, SIDE, DEPTH, EK_BLOCK>(tb[next], &b);
        copy_group();
        multiply_terms<A_K_MAJOR, B_K_MAJOR>(sum, ta[now], tb[now]);
        next = now;
        now = now + 1 < STAGES ? now + 1 : 0;
    }
    copy_wait<0>();
    store_sums<DOWN, ACROSS>(p, i0 + warp_of() % WARPS_DOWN * WARP_ROWS,
                             j0 + warp_of() / WARPS_DOWN * WARP_COLUMNS, sum, mode);
}

/* --- launch ----------------------------------------------------------------------------------- */

void ek_cuda_multiply_mma(const char *name, products<ek_bf16> *all, ek_product_layout layout,
                          ek_out mode)
{
    int64_t blocks = number_tiles(all, SIDE, SIDE);

    if (layout == EK_BOTH_K_MAJOR)
        launch(name, multiply_mma<true, true>, blocks, EK_BLOCK, *all, mode);
    else if (layout == EK_A_K_MAJOR)
        launch(name, multiply_mma<true, false>, blocks, EK_BLOCK, *all, mode);
    else
        launch(name, multiply_mma<false, false>, blocks, EK_BLOCK, *all, mode);
}
