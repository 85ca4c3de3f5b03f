/* Matrix products of bf16 on tensor cores: tiles of 128 x 128 by 8 warps of 64 x 32 each, sums in
 * float over stages of 32 terms, which are copied to shared memory two stages ahead.  In memory the
 * summed index of an operand may be contiguous (ALONG), as in y = x W^T, or strided (across). */
#include "tensor/cuda/launch.h"
#include "tensor/cuda/products.h"
#include "tensor/cuda/tiles.h"

enum {
    SIDE = 128,
    DEPTH = 32,
    STAGES = 3,
    CHUNKS = SIDE * DEPTH / EK_CHUNK,
    COPIES = CHUNKS / EK_BLOCK,
    WARPS_DOWN = 2,
    WARP_ROWS = SIDE / WARPS_DOWN,
    WARP_COLUMNS = SIDE / (EK_WARPS / WARPS_DOWN),
    DOWN = WARP_ROWS / 16,
    ACROSS = WARP_COLUMNS / 8
};

/* Chunks of a line of an operand's tile. */
template <bool ALONG> constexpr int operand_chunks = (ALONG ? DEPTH : SIDE) / EK_CHUNK;

/* The chunks of an operand that a thread copies: COPIES of each tile, EK_BLOCK chunks apart. */
struct feed {
    const ek_bf16 *x;    /* its first chunk of the next tile */
    int64_t apart, step; /* elements between its chunks, and to the next tile */
    int lines, elements; /* left of the operand, from its first line and chunk on */
    int index;           /* of its first chunk in a tile */
};

/* For rows (of a) or columns (of b) first to end - 1. */
template <bool ALONG>
__device__ static feed feed_of(const ek_bf16 *x, int64_t ld, int64_t first, int64_t end, int terms)
{
    int line = (int)threadIdx.x / operand_chunks<ALONG>,
        c = (int)threadIdx.x % operand_chunks<ALONG>;
    int left = (int)(end - first);

    return {x + (ALONG ? (first + line) * ld : line * ld + first) + c * EK_CHUNK,
            EK_BLOCK / operand_chunks<ALONG> * ld,
            ALONG ? (int64_t)DEPTH : DEPTH * ld,
            (ALONG ? left : terms) - line,
            (ALONG ? terms : left) - c * EK_CHUNK,
            chunk_index<operand_chunks<ALONG>>(line, c)};
}

/* Starts to copy the next tile; zeros past the ends and past the last term. */
template <bool ALONG> __device__ static void copy_next(chunk *tile, feed *f)
{
    const int apart = EK_BLOCK / operand_chunks<ALONG>;
    int n = f->elements < 0 ? 0 : f->elements < EK_CHUNK ? f->elements : (int)EK_CHUNK;

#pragma unroll
    for (int e = 0; e < COPIES; e++)
        copy_begin(&tile[f->index + e * EK_BLOCK], f->x + e * f->apart,
                   e * apart < f->lines ? n * (int)sizeof(ek_bf16) : 0);
    f->x += f->step;
    (ALONG ? f->elements : f->lines) -= DEPTH;
}

/* Operand a of matrices_multiply: rows i to i + 15 of the tile, terms t to t + 15. */
template <bool ALONG> __device__ static void load_a(unsigned r[4], const chunk *tile, int i, int t)
{
    if (ALONG)
        load_by_lines<operand_chunks<ALONG>, false>(r, tile, i, t);
    else
        load_by_halves<operand_chunks<ALONG>, true>(r, tile, t, i);
}

/* Two operands b: columns j to j + 15, r[0] and r[1] for the first eight. */
template <bool ALONG> __device__ static void load_b(unsigned r[4], const chunk *tile, int j, int t)
{
    if (ALONG)
        load_by_halves<operand_chunks<ALONG>, false>(r, tile, j, t);
    else
        load_by_lines<operand_chunks<ALONG>, true>(r, tile, t, j);
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

/* --- results ---------------------------------------------------------------------------------- */

__device__ static float2 load_pair(const float *from)
{
    return *(const float2 *)from;
}

__device__ static float2 load_pair(const ek_bf16 *)
{
    return {0, 0}; /* EK_OUT_ADD is for float only */
}

__device__ static void store_pair(float *to, float2 x)
{
    *(float2 *)to = x;
}

__device__ static void store_pair(ek_bf16 *to, float2 x)
{
    *(unsigned *)to = two_bf16(x.x, x.y);
}

/* Two adjacent elements, `left` of which are inside.  PAIRS: both or none, in one access. */
template <class T, bool PAIRS> __device__ static float2 load_two(const T *from, int left)
{
    if (PAIRS)
        return left > 0 ? load_pair(from) : float2{0, 0};
    return {left > 0 ? (float)to_real(from[0]) : 0, left > 1 ? (float)to_real(from[1]) : 0};
}

template <class T, bool PAIRS> __device__ static void store_two(T *to, int left, float2 x)
{
    if (PAIRS) {
        if (left > 0)
            store_pair(to, x);
        return;
    }
    if (left > 0)
        store_value(to, x.x);
    if (left > 1)
        store_value(to + 1, x.y);
}

/* Stores a lane's sums, of which rows x columns are inside: one row at a time, all loads (ADD)
 * before all stores. */
template <class T, bool ADD, bool PAIRS>
__device__ static void store_rows(T *row, int64_t ldc, int rows, int columns,
                                  const float sum[DOWN][ACROSS][4])
{
#pragma unroll
    for (int y = 0; y < DOWN * 2; y++) {
        T *to = row + y * 8 * ldc;
        float2 was[ACROSS];

        if (y * 8 >= rows)
            return;
#pragma unroll
        for (int x = 0; x < ACROSS; x++)
            was[x] = ADD ? load_two<T, PAIRS>(to + x * 8, columns - x * 8) : float2{0, 0};
#pragma unroll
        for (int x = 0; x < ACROSS; x++) {
            const float *mine = &sum[y / 2][x][y % 2 * 2];

            store_two<T, PAIRS>(to + x * 8, columns - x * 8,
                                {was[x].x + mine[0], was[x].y + mine[1]});
        }
    }
}

template <class T, bool ADD>
__device__ static void store_sums(const product<ek_bf16> &p, int64_t i0, int64_t j0,
                                  const float sum[DOWN][ACROSS][4])
{
    int i = warp_of() % WARPS_DOWN * WARP_ROWS + lane_of() / 4;
    int j = warp_of() / WARPS_DOWN * WARP_COLUMNS + lane_of() % 4 * 2;
    int rows = (int)(p.m - i0) - i, columns = (int)(p.n - j0) - j;
    T *to = (T *)p.c + (i0 + i) * p.ldc + j0 + j;

    if ((uintptr_t)p.c % (2 * sizeof(T)) == 0 && p.ldc % 2 == 0 && p.n % 2 == 0)
        store_rows<T, ADD, true>(to, p.ldc, rows, columns, sum);
    else
        store_rows<T, ADD, false>(to, p.ldc, rows, columns, sum);
}

/* --- the kernel ------------------------------------------------------------------------------- */

template <bool A_ALONG, bool B_ALONG>
__global__ void __launch_bounds__(EK_BLOCK, 2)
    multiply_bf16(const __grid_constant__ products<ek_bf16> all, ek_out mode)
{
    __shared__ chunk ta[STAGES][CHUNKS], tb[STAGES][CHUNKS];
    int64_t i0, j0;
    const product<ek_bf16> &p = product_of_block(all, SIDE, &i0, &j0);
    feed a = feed_of<A_ALONG>(p.a, A_ALONG ? p.a_i : p.a_t, i0, p.m, (int)p.k);
    feed b = feed_of<B_ALONG>(p.b, B_ALONG ? p.b_j : p.b_t, j0, p.n, (int)p.k);
    int steps = (int)((p.k + DEPTH - 1) / DEPTH), now = 0, next = STAGES - 1;
    float sum[DOWN][ACROSS][4] = {};

#pragma unroll
    for (int stage = 0; stage < STAGES - 1; stage++) {
        copy_next<A_ALONG>(ta[stage], &a);
        copy_next<B_ALONG>(tb[stage], &b);
        copy_group();
    }
#pragma unroll 1
    for (int step_no = 0; step_no < steps; step_no++) {
        copy_wait<STAGES - 2>();
        __syncthreads(); /* stage `now` is loaded by all threads, stage `next` is free */
        copy_next<A_ALONG>(ta[next], &a);
        copy_next<B_ALONG>(tb[next], &b);
        copy_group();
        multiply_terms<A_ALONG, B_ALONG>(sum, ta[now], tb[now]);
        next = now;
        now = now + 1 < STAGES ? now + 1 : 0;
    }
    copy_wait<0>();
    switch (mode) {
    case EK_OUT_COMP: store_sums<ek_bf16, false>(p, i0, j0, sum); break;
    case EK_OUT_REAL: store_sums<float, false>(p, i0, j0, sum); break;
    case EK_OUT_ADD: store_sums<float, true>(p, i0, j0, sum); break;
    }
}

/* --- launch ----------------------------------------------------------------------------------- */

/* Whether all products have the given operand layouts, aligned rows, and sizes within int. */
static int have_layout(const products<ek_bf16> *all, bool a_along, bool b_along)
{
    for (int i = 0; i < all->n; i++) {
        const product<ek_bf16> &p = all->of[i];

        if (p.m > INT32_MAX - SIDE || p.n > INT32_MAX - SIDE || p.k > INT32_MAX - SIDE)
            return 0;
        if ((a_along ? p.a_t : p.a_i) != 1 || (b_along ? p.b_t : p.b_j) != 1 ||
            !has_chunks(p.a, a_along ? p.a_i : p.a_t) || !has_chunks(p.b, b_along ? p.b_j : p.b_t))
            return 0;
    }
    return 1;
}

int ek_cuda_multiply_bf16(const char *name, products<ek_bf16> *all, ek_out mode)
{
    int64_t blocks = number_tiles(all, SIDE);

    if (have_layout(all, true, true))
        launch(name, multiply_bf16<true, true>, blocks, EK_BLOCK, *all, mode);
    else if (have_layout(all, true, false))
        launch(name, multiply_bf16<true, false>, blocks, EK_BLOCK, *all, mode);
    else if (have_layout(all, false, false))
        launch(name, multiply_bf16<false, false>, blocks, EK_BLOCK, *all, mode);
    else
        return 0;
    return 1;
}
