/* Matrix products of bf16 on tensor cores: tiles of 128 x 128 by 8 warps of 64 x 32 each, sums in
 * float, 32 terms of the sums at a time, which are copied to shared memory two turns ahead.
 *
 * Operands may lie either way: terms of a sum side by side ("along"), as those of y = x W^T do, or
 * across.  A tile in shared memory is made of chunks of 16 bytes, in lines as they lie in memory;
 * the chunks of a line are exchanged so that eight of them from eight lines lie in different banks.
 */
#include "tensor/cuda/device.h"
#include "tensor/cuda/launch.h"
#include "tensor/cuda/products.h"
#include "tensor/cuda/tensor_core.h"

enum {
    SIDE = 128,
    DEPTH = 32,
    STAGES = 3,
    CHUNK = 8, /* numbers */
    CHUNKS = SIDE * DEPTH / CHUNK,
    WARPS_DOWN = 2,
    WARP_ROWS = SIDE / WARPS_DOWN,
    WARP_COLUMNS = SIDE / (EK_WARPS / WARPS_DOWN),
    DOWN = WARP_ROWS / 16,
    ACROSS = WARP_COLUMNS / 8
};

struct alignas(16) chunk {
    ek_bf16 x[CHUNK];
};

/* One operand: lines `first` to `end` of the result, and the terms of their sums. */
struct operand {
    const ek_bf16 *x;
    int64_t ld, first, end, terms;
};

template <bool ALONG> __device__ static int place_of(int line, int c)
{
    return ALONG ? line * (DEPTH / CHUNK) + (c ^ (line / 2 % 4))
                 : line * (SIDE / CHUNK) + (c ^ (line % 8));
}

/* Begins to copy an operand's terms t0 to t0 + DEPTH; 0 past its ends. */
template <bool ALONG> __device__ static void copy_terms(chunk *tile, const operand &o, int64_t t0)
{
    const int line_chunks = (ALONG ? DEPTH : SIDE) / CHUNK;

    for (int at = (int)threadIdx.x; at < CHUNKS; at += EK_BLOCK) {
        int line = at / line_chunks, c = at % line_chunks;
        int64_t i = o.first + (ALONG ? line : c * CHUNK), t = t0 + (ALONG ? c * CHUNK : line);
        int64_t left = ALONG ? (i < o.end ? o.terms - t : 0) : (t < o.terms ? o.end - i : 0);
        int n = left > CHUNK ? CHUNK : left > 0 ? (int)left : 0;

        copy_begin(&tile[place_of<ALONG>(line, c)],
                   n > 0 ? o.x + (ALONG ? i * o.ld + t : t * o.ld + i) : o.x,
                   n * (int)sizeof(ek_bf16));
    }
}

/* What matrices_multiply wants of a: rows i to i + 16 of the tile, terms t to t + 16. */
template <bool ALONG> __device__ static void load_a(unsigned r[4], const chunk *tile, int i, int t)
{
    int l = lane_of();

    matrices_load<!ALONG>(
        r, &tile[ALONG ? place_of<true>(i + l % 16, t / CHUNK + l / 16)
                       : place_of<false>(t + l % 8 + l / 16 * 8, i / CHUNK + l / 8 % 2)]);
}

/* And of b: columns j to j + 16, r[0] and r[1] for the first eight. */
template <bool ALONG> __device__ static void load_b(unsigned r[4], const chunk *tile, int j, int t)
{
    int l = lane_of();

    matrices_load<!ALONG>(
        r, &tile[ALONG ? place_of<true>(j + l % 8 + l / 16 * 8, t / CHUNK + l / 8 % 2)
                       : place_of<false>(t + l % 16, j / CHUNK + l / 16)]);
}

template <bool A_ALONG, bool B_ALONG>
__device__ static void multiply_terms(float sum[DOWN][ACROSS][4], const chunk *ta, const chunk *tb)
{
    int i = warp_of() % WARPS_DOWN * WARP_ROWS, j = warp_of() / WARPS_DOWN * WARP_COLUMNS;

#pragma unroll
    for (int t = 0; t < DEPTH; t += 16) {
        unsigned a[DOWN][4], b[ACROSS / 2][4];

#pragma unroll
        for (int y = 0; y < DOWN; y++)
            load_a<A_ALONG>(a[y], ta, i + y * 16, t);
#pragma unroll
        for (int x = 0; x < ACROSS / 2; x++)
            load_b<B_ALONG>(b[x], tb, j + x * 16, t);
#pragma unroll
        for (int y = 0; y < DOWN; y++)
#pragma unroll
            for (int x = 0; x < ACROSS; x++)
                matrices_multiply(sum[y][x], a[y], &b[x / 2][x % 2 * 2]);
    }
}

/* Two numbers side by side, of which the second may be past the end of its row. */
__device__ static void put_two(void *c, int64_t at, const float sum[2], int both, ek_out mode)
{
    for (int x = 0; x < 1 + both; x++)
        switch (mode) {
        case EK_OUT_COMP: put((ek_bf16 *)c + at + x, sum[x]); break;
        case EK_OUT_REAL: ((float *)c)[at + x] = sum[x]; break;
        case EK_OUT_ADD: ((float *)c)[at + x] += sum[x]; break;
        }
}

__device__ static void put_sums(const product<ek_bf16> &p, int64_t i0, int64_t j0,
                                const float sum[DOWN][ACROSS][4], ek_out mode)
{
    int64_t i = i0 + warp_of() % WARPS_DOWN * WARP_ROWS + lane_of() / 4;
    int64_t j = j0 + warp_of() / WARPS_DOWN * WARP_COLUMNS + lane_of() % 4 * 2;

#pragma unroll
    for (int y = 0; y < DOWN * 2; y++)
#pragma unroll
        for (int x = 0; x < ACROSS; x++)
            if (i + y * 8 < p.m && j + x * 8 < p.n)
                put_two(p.c, (i + y * 8) * p.ldc + j + x * 8, &sum[y / 2][x][y % 2 * 2],
                        j + x * 8 + 1 < p.n, mode);
}

template <bool A_ALONG, bool B_ALONG>
__global__ void __launch_bounds__(EK_BLOCK, 2)
    multiply_bf16(const __grid_constant__ products<ek_bf16> all, ek_out mode)
{
    __shared__ chunk ta[STAGES][CHUNKS], tb[STAGES][CHUNKS];
    int64_t i0, j0;
    const product<ek_bf16> &p = product_of_block(all, SIDE, &i0, &j0);
    const operand a = {p.a, A_ALONG ? p.a_i : p.a_t, i0, p.m, p.k};
    const operand b = {p.b, B_ALONG ? p.b_j : p.b_t, j0, p.n, p.k};
    const int64_t turns = (p.k + DEPTH - 1) / DEPTH;
    float sum[DOWN][ACROSS][4] = {};

    for (int64_t ahead = 0; ahead < STAGES - 1; ahead++) {
        copy_terms<A_ALONG>(ta[ahead], a, ahead * DEPTH);
        copy_terms<B_ALONG>(tb[ahead], b, ahead * DEPTH);
        copy_group();
    }
    for (int64_t turn = 0; turn < turns; turn++) {
        int64_t ahead = turn + STAGES - 1;

        copy_wait<STAGES - 2>(); /* this turn's are there, */
        __syncthreads(); /* all threads', and nobody reads those of the last turn any more */
        if (ahead < turns) {
            copy_terms<A_ALONG>(ta[ahead % STAGES], a, ahead * DEPTH);
            copy_terms<B_ALONG>(tb[ahead % STAGES], b, ahead * DEPTH);
        }
        copy_group();
        multiply_terms<A_ALONG, B_ALONG>(sum, ta[turn % STAGES], tb[turn % STAGES]);
    }
    copy_wait<0>();
    put_sums(p, i0, j0, sum, mode);
}

/* --- which way ------------------------------------------------------------------------------- */

static int is_aligned(const ek_bf16 *x, int64_t ld)
{
    return (uintptr_t)x % sizeof(chunk) == 0 && ld % CHUNK == 0;
}

/* Whether all of them lie in one of the ways that there are kernels for. */
static int lie(const products<ek_bf16> *all, bool a_along, bool b_along)
{
    for (int i = 0; i < all->n; i++) {
        const product<ek_bf16> &p = all->of[i];

        if ((a_along ? p.a_t : p.a_i) != 1 || (b_along ? p.b_t : p.b_j) != 1 ||
            !is_aligned(p.a, a_along ? p.a_i : p.a_t) || !is_aligned(p.b, b_along ? p.b_j : p.b_t))
            return 0;
    }
    return 1;
}

int ek_cuda_multiply_bf16(const char *name, products<ek_bf16> *all, ek_out mode)
{
    int64_t blocks = number_tiles(all, SIDE);

    if (lie(all, true, true))
        launch(name, multiply_bf16<true, true>, blocks, EK_BLOCK, *all, mode);
    else if (lie(all, true, false))
        launch(name, multiply_bf16<true, false>, blocks, EK_BLOCK, *all, mode);
    else if (lie(all, false, false))
        launch(name, multiply_bf16<false, false>, blocks, EK_BLOCK, *all, mode);
    else
        return 0;
    return 1;
}
