/* tensor/cuda/results.h - stores the sums of a bf16 product that a warp's lanes hold after products
 * on tensor cores. */
#ifndef TENSOR_CUDA_RESULTS_H
#define TENSOR_CUDA_RESULTS_H

#include "tensor/cuda/products.h"
#include "tensor/cuda/tiles.h"

__device__ inline void store_pair(float *to, float2 x)
{
    *(float2 *)to = x;
}

__device__ inline void store_pair(ek_bf16 *to, float2 x)
{
    *(unsigned *)to = two_bf16(x.x, x.y);
}

/* Stores (ADD: adds) two adjacent elements, `left` of which are inside.  PAIRS: both or none, in
 * one access.  One thread adds to an element once in a launch, so the order of additions is that of
 * launches. */
template <class T, bool ADD, bool PAIRS> __device__ void put_two(T *to, int left, const float *x)
{
    if constexpr (PAIRS && ADD) {
        if (left > 0)
            add_in_memory(to, {x[0], x[1]});
    } else if constexpr (PAIRS) {
        if (left > 0)
            store_pair(to, {x[0], x[1]});
    } else {
        for (int e = 0; e < 2; e++)
            if (left > e)
                store_value(to + e, ADD ? (float)to_real(to[e]) + x[e] : x[e]);
    }
}

/* The lane's rows: row y of pairs at row + 8 y ldc, of which rows x columns elements are inside. */
template <class T, bool ADD, bool PAIRS, int DOWN, int ACROSS>
__device__ void store_rows(T *row, int64_t ldc, int rows, int columns,
                           const float sum[DOWN][ACROSS][4])
{
#pragma unroll
    for (int y = 0; y < DOWN * 2; y++) {
        if (y * 8 >= rows)
            return;
#pragma unroll
        for (int x = 0; x < ACROSS; x++)
            put_two<T, ADD, PAIRS>(row + y * 8 * ldc + x * 8, columns - x * 8,
                                   &sum[y / 2][x][y % 2 * 2]);
    }
}

/* Transposes 4 x 4 words among four lanes: word k of lane q goes to word q of lane k. */
__device__ inline void transpose_words(unsigned w[4])
{
    int q = lane_of();

#pragma unroll
    for (int bit = 1; bit <= 2; bit *= 2) {
        int step = 3 - bit,
            up = (q & bit) != 0; /* words 0 and `step` are those of the lower lane */
        unsigned a = __shfl_xor_sync(ek_all_lanes, up ? w[0] : w[bit], bit);
        unsigned b = __shfl_xor_sync(ek_all_lanes, up ? w[step] : w[3], bit);

        w[0] = up ? a : w[0];
        w[step] = up ? b : w[step];
        w[bit] = up ? w[bit] : a;
        w[3] = up ? w[3] : b;
    }
}

/* As store_rows for bf16 in rows of whole chunks, from the lane's first row and the matrices' first
 * column: 16 bytes at once, for which four lanes exchange their pairs of four matrices. */
template <int DOWN, int ACROSS>
__device__ void store_chunks(ek_bf16 *row, int64_t ldc, int rows, int columns,
                             const float sum[DOWN][ACROSS][4])
{
    static_assert(ACROSS % 4 == 0, "a lane stores a chunk of one of four matrices");
#pragma unroll
    for (int y = 0; y < DOWN * 2; y++)
#pragma unroll
        for (int x = 0; x < ACROSS; x += 4) {
            int column = (x + lane_of() % 4) * EK_CHUNK;
            chunk_words of;

#pragma unroll
            for (int k = 0; k < 4; k++)
                of.w[k] = two_bf16(sum[y / 2][x + k][y % 2 * 2], sum[y / 2][x + k][y % 2 * 2 + 1]);
            transpose_words(of.w);
            if (y * 8 < rows && column < columns)
                *(chunk_words *)(row + y * 8 * ldc + column) = of;
        }
}

/* sum: the lane's elements of DOWN x ACROSS matrices of 16 x 8 (matrices_multiply), the first of
 * which is at row i, column j of the product's result. */
template <class T, bool ADD, int DOWN, int ACROSS>
__device__ void store_as(const product<ek_bf16> &p, int64_t i, int64_t j,
                         const float sum[DOWN][ACROSS][4])
{
    int rows, columns;
    T *to;

    i += lane_of() / 4;
    if constexpr (sizeof(T) == sizeof(ek_bf16))
        if (has_chunks(p.c, p.ldc) && p.n % EK_CHUNK == 0) {
            store_chunks<DOWN, ACROSS>((T *)p.c + i * p.ldc + j, p.ldc, (int)(p.m - i),
                                       (int)(p.n - j), sum);
            return;
        }
    j += lane_of() % 4 * 2;
    rows = (int)(p.m - i);
    columns = (int)(p.n - j);
    to = (T *)p.c + i * p.ldc + j;
    if ((uintptr_t)p.c % (2 * sizeof(T)) == 0 && p.ldc % 2 == 0 && p.n % 2 == 0)
        store_rows<T, ADD, true, DOWN, ACROSS>(to, p.ldc, rows, columns, sum);
    else
        store_rows<T, ADD, false, DOWN, ACROSS>(to, p.ldc, rows, columns, sum);
}

template <int DOWN, int ACROSS>
__device__ void store_sums(const product<ek_bf16> &p, int64_t i, int64_t j,
                           const float sum[DOWN][ACROSS][4], ek_out mode)
{
    switch (mode) {
    case EK_OUT_COMP: store_as<ek_bf16, false, DOWN, ACROSS>(p, i, j, sum); break;
    case EK_OUT_REAL: store_as<float, false, DOWN, ACROSS>(p, i, j, sum); break;
    case EK_OUT_ADD: store_as<float, true, DOWN, ACROSS>(p, i, j, sum); break;
    }
}

#endif
