/* tensor/cuda/device.h - what kernels share: element types, sums over a warp, a block, a column.
 *
 * As in kernels.h R is the real type and C the compute type of a mode.  Every sum has an order
 * that only its sizes fix, so no kernel adds with atomics.  Blocks are one-dimensional, of whole
 * warps, and all threads of a block come to each sum over it. */
#ifndef TENSOR_CUDA_DEVICE_H
#define TENSOR_CUDA_DEVICE_H

#include "tensor/kernels.h"

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <math.h>

enum { EK_WARP = 32, EK_BLOCK = 256, EK_WARPS = EK_BLOCK / EK_WARP };

static const unsigned ek_all_lanes = 0xffffffffu;

/* --- element types ---------------------------------------------------------------------------- */

__device__ inline double to_real(double x)
{
    return x;
}

__device__ inline float to_real(float x)
{
    return x;
}

__device__ inline float to_real(ek_bf16 x)
{
    return __bfloat162float(__ushort_as_bfloat16(x));
}

__device__ inline void put(double *to, double x)
{
    *to = x;
}

__device__ inline void put(float *to, float x)
{
    *to = x;
}

__device__ inline void put(ek_bf16 *to, float x)
{
    *to = __bfloat16_as_ushort(__float2bfloat16_rn(x));
}

__device__ inline float real_exp(float x)
{
    return expf(x);
}

__device__ inline double real_exp(double x)
{
    return exp(x);
}

__device__ inline float real_log(float x)
{
    return logf(x);
}

__device__ inline double real_log(double x)
{
    return log(x);
}

__device__ inline float real_sqrt(float x)
{
    return sqrtf(x);
}

__device__ inline double real_sqrt(double x)
{
    return sqrt(x);
}

/* --- where a thread is ------------------------------------------------------------------------ */

__device__ inline int lane_of(void)
{
    return (int)(threadIdx.x % EK_WARP);
}

__device__ inline int warp_of(void)
{
    return (int)(threadIdx.x / EK_WARP);
}

/* Of all threads of the grid, and how many these are: the first element and the step of a loop. */
__device__ inline int64_t thread_of_all(void)
{
    return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

__device__ inline int64_t threads_in_all(void)
{
    return (int64_t)gridDim.x * blockDim.x;
}

/* --- sums and maxima: every thread gets the result -------------------------------------------- */

struct adds {
    template <class R> __device__ R operator()(R x, R y) const
    {
        return x + y;
    }
};

struct larger {
    template <class R> __device__ R operator()(R x, R y) const
    {
        return y > x ? y : x;
    }
};

template <class R, class Two> __device__ R warp_fold(R x, Two two)
{
    for (int o = EK_WARP / 2; o > 0; o /= 2)
        x = two(x, __shfl_xor_sync(ek_all_lanes, x, o));
    return x;
}

/* room: of the block, one for each warp; free again once all have come to the next barrier. */
template <class R, class Two> __device__ R block_fold(R x, R *room, Two two)
{
    R all;

    x = warp_fold(x, two);
    __syncthreads();
    if (lane_of() == 0)
        room[warp_of()] = x;
    __syncthreads();
    all = room[0];
    for (int w = 1; w < (int)(blockDim.x / EK_WARP); w++)
        all = two(all, room[w]);
    return all;
}

template <class R> __device__ R warp_sum(R x)
{
    return warp_fold(x, adds());
}

template <class R> __device__ R warp_max(R x)
{
    return warp_fold(x, larger());
}

template <class R> __device__ R block_sum(R x, R *room)
{
    return block_fold(x, room, adds());
}

template <class R> __device__ R block_max(R x, R *room)
{
    return block_fold(x, room, larger());
}

/* --- sums over rows ----------------------------------------------------------------------------
 * A block of EK_BLOCK threads adds EK_WARP columns: to[c] += sum over i < n of f(i, c), each warp
 * every EK_WARPS'th row.  Grid: blocks_of_columns(d). */
template <class R, class F> __device__ void sum_columns(int64_t n, int64_t d, F f, R *to)
{
    __shared__ R part[EK_WARPS][EK_WARP];
    int64_t c = (int64_t)blockIdx.x * EK_WARP + lane_of();
    R sum = 0;

    for (int64_t i = warp_of(); i < n && c < d; i += EK_WARPS)
        sum += f(i, c);
    part[warp_of()][lane_of()] = sum;
    __syncthreads();
    if (warp_of() > 0 || c >= d)
        return;
    for (int w = 1; w < EK_WARPS; w++)
        sum += part[w][lane_of()];
    to[c] += sum;
}

static inline int64_t blocks_of_columns(int64_t d)
{
    return (d + EK_WARP - 1) / EK_WARP;
}

#endif
