/* tensor/cuda/results.h - stores the sums of a bf16 product that a warp's lanes hold after products
 * on tensor cores. */
#ifndef TENSOR_CUDA_RESULTS_H
#define TENSOR_CUDA_RESULTS_H

#include "tensor/cuda/products.h"
#include "tensor/cuda/tiles.h"

__device__ inline float2 load_pair(const float *from)
{
    return *(const float2 *)from;
}

__device__ inline float2 load_pair(const ek_bf16 *)
{
    return {0, 0}; /* EK_OUT_ADD is for float only */
}

__device__ inline void store_pair(float *to, float2 x)
{
    *(float2 *)to = x;
}

__device__ inline void store_pair(ek_bf16 *to, float2 x)
{
    *(unsigned *)to = two_bf16(x.x, x.y);
}

/* Two adjacent elements, `left` of which are inside.  PAIRS: both or none, in one access. */
template <class T, bool PAIRS> __device__ float2 load_two(const T *from, int left)
{
    if (PAIRS)
        return left > 0 ? load_pair(from) : float2{0, 0};
    return {left > 0 ? (float)to_real(from[0]) : 0, left > 1 ? (float)to_real(from[1]) : 0};
}

template <class T, bool PAIRS> __device__ void store_two(T *to, int left, float2 x)
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

/* Stores PART pairs of a row, 8 columns apart, elements `at` and at + 1 of each sum: all loads
 * (ADD) before all stores. */
template <class T, bool ADD, bool PAIRS, int PART>
__device__ void store_part(T *to, int columns, const float (*sum)[4], int at)
{
    float2 was[PART];

#pragma unroll
    for (int x = 0; x < PART; x++)
        was[x] = ADD ? load_two<T, PAIRS>(to + x * 8, columns - x * 8) : float2{0, 0};
#pragma unroll
    for (int x = 0; x < PART; x++)
        store_two<T, PAIRS>(to + x * 8, columns - x * 8,
                            {was[x].x + sum[x][at], was[x].y + sum[x][at + 1]});
}

/* The lane's rows: row y of pairs at row + 8 y ldc, of which rows x columns elements are inside. */
template <class T, bool ADD, bool PAIRS, int DOWN, int ACROSS>
__device__ void store_rows(T *row, int64_t ldc, int rows, int columns,
                           const float sum[DOWN][ACROSS][4])
{
    const int part = ACROSS < 8 ? ACROSS : 8;

#pragma unroll
    for (int y = 0; y < DOWN * 2; y++) {
        if (y * 8 >= rows)
            return;
#pragma unroll
        for (int x = 0; x < ACROSS; x += part)
            store_part<T, ADD, PAIRS, part>(row + y * 8 * ldc + x * 8, columns - x * 8,
                                            &sum[y / 2][x], y % 2 * 2);
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
