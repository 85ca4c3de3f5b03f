/* tensor/cuda/device.h - device functions: element types, reductions over a warp, block, column.
 *
 * As in kernels.h, R is the real type and C the compute type of a mode.  The order of every sum
 * depends only on its sizes, so atomic additions are used only where a launch adds to an element
 * once.  Blocks are one-dimensional, of whole warps, and all threads of a block must take part in a
 * reduction over it. */
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

__device__ inline void store_value(double *to, double x)
{
    *to = x;
}

__device__ inline void store_value(float *to, float x)
{
    *to = x;
}

__device__ inline void store_value(ek_bf16 *to, float x)
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

/* --- several elements at once ----------------------------------------------------------------- */

/* N consecutive elements, which are read and written 16 bytes at a time.  Kernels assign N columns
 * to a thread whether or not rows are aligned to that (ALIGNED), so that the order of their sums
 * does not depend on addresses. */
enum { EK_VEC = 4 };

template <class T, int N = EK_VEC> struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) vec {
    T x[N];
};

/* Elements of a type in 16 bytes. */
template <class T> constexpr int in_16_bytes = 16 / (int)sizeof(T);

/* Elements c to c + N - 1 of a row of d; 0 past its end. */
template <bool ALIGNED, int N = EK_VEC, class T>
__device__ inline vec<T, N> load_vec(const T *row, int64_t c, int64_t d)
{
    vec<T, N> v;

    if constexpr (ALIGNED)
        v = *(const vec<T, N> *)(row + c);
    else
        for (int e = 0; e < N; e++)
            v.x[e] = c + e < d ? row[c + e] : T(0);
    return v;
}

template <bool ALIGNED, int N = EK_VEC, class T>
__device__ inline void store_vec(T *row, int64_t c, int64_t d, const vec<T, N> &v)
{
    if constexpr (ALIGNED)
        *(vec<T, N> *)(row + c) = v;
    else
        for (int e = 0; e < N; e++)
            if (c + e < d)
                row[c + e] = v.x[e];
}

/* Whether rows of d elements at stride ld can be read as whole groups of N. */
template <int N = EK_VEC, class T> bool is_vec_aligned(const T *x, int64_t d, int64_t ld)
{
    return (uintptr_t)x % alignof(vec<T, N>) == 0 && d % N == 0 && ld % N == 0;
}

/* The same elements as another type. */
template <class C, class X, int N> __device__ inline vec<C, N> rounded(const vec<X, N> &x)
{
    vec<C, N> y;

    for (int e = 0; e < N; e++)
        store_value(&y.x[e], to_real(x.x[e]));
    return y;
}

/* --- thread indices --------------------------------------------------------------------------- */

__device__ inline int lane_of(void)
{
    return (int)(threadIdx.x % EK_WARP);
}

__device__ inline int warp_of(void)
{
    return (int)(threadIdx.x / EK_WARP);
}

/* Index in the grid, and threads of the grid: first element and step of a grid-stride loop. */
__device__ inline int64_t thread_of_all(void)
{
    return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

__device__ inline int64_t threads_in_all(void)
{
    return (int64_t)gridDim.x * blockDim.x;
}

/* The groups of N elements that a thread handles of rows of d: EACH, EK_BLOCK apart.  Rows
 * may be narrower or wider than a block.  Grid: blocks_of_groups. */
template <int N, int EACH> struct groups_of_thread {
    int64_t first;
    unsigned in_row, at;

    __device__ explicit groups_of_thread(int64_t d)
    {
        int64_t begin = (int64_t)blockIdx.x * (EK_BLOCK * EACH);

        in_row = (unsigned)((d + N - 1) / N);
        first = begin / in_row;
        at = (unsigned)(begin - first * in_row) + threadIdx.x;
    }

    __device__ int64_t row(int e) const
    {
        return first + (at + (unsigned)e * EK_BLOCK) / in_row;
    }

    __device__ int64_t column(int e) const
    {
        return (int64_t)((at + (unsigned)e * EK_BLOCK) % in_row) * N;
    }
};

template <int N, int EACH> int64_t blocks_of_groups(int64_t n, int64_t d)
{
    return (n * ((d + N - 1) / N) + EK_BLOCK * EACH - 1) / (EK_BLOCK * EACH);
}

/* --- reductions: every thread gets the result ------------------------------------------------- */

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

/* scratch: shared, one element per warp; reusable after the next barrier. */
template <class R, class Two> __device__ R block_fold(R x, R *scratch, Two two)
{
    R all;

    x = warp_fold(x, two);
    __syncthreads();
    if (lane_of() == 0)
        scratch[warp_of()] = x;
    __syncthreads();
    all = scratch[0];
    for (int w = 1; w < (int)(blockDim.x / EK_WARP); w++)
        all = two(all, scratch[w]);
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

template <class R> __device__ R block_sum(R x, R *scratch)
{
    return block_fold(x, scratch, adds());
}

template <class R> __device__ R block_max(R x, R *scratch)
{
    return block_fold(x, scratch, larger());
}

/* --- sums over rows --------------------------------------------------------------------------- */

/* A block of EK_BLOCK threads adds EK_WARP columns: to[c] += sum over i < n of f(i, c), each warp
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

/* The same with scratch, for many rows: blocks each sum the rows of one of `parts` parts, over
 * STRIP_COLUMNS columns, and sum_columns adds the parts. */
enum { STRIP_COLUMNS = EK_WARP * EK_VEC, STRIP_BLOCKS = 1024, STRIP_PARTS = 256 };

static inline int64_t strips_of(int64_t d)
{
    return (d + STRIP_COLUMNS - 1) / STRIP_COLUMNS;
}

static inline int64_t parts_of_rows(int64_t n, int64_t d)
{
    int64_t most = d > 0 ? STRIP_BLOCKS / strips_of(d) : 1, parts = (n + EK_WARPS - 1) / EK_WARPS;

    most = most < STRIP_PARTS ? most : (int64_t)STRIP_PARTS;
    parts = parts < most ? parts : most;
    return parts > 1 ? parts : 1;
}

/* Elements of scratch for any n, and for all widths up to d. */
static inline int64_t scratch_of_parts(int64_t d)
{
    int64_t most = (int64_t)STRIP_BLOCKS * STRIP_COLUMNS;

    return d > most ? d : most;
}

/* part [parts, d] = sums of f.at<ALIGNED>(i, c), the terms of columns c to c + EK_VEC - 1 in row
 * i, over the rows of each part.  Grid: strips_of(d) * parts. */
template <bool ALIGNED, class R, class F>
__device__ void sum_strip(int64_t n, int64_t d, int64_t parts, F f, R *part)
{
    __shared__ vec<R> of_warp[EK_WARPS][EK_WARP];
    int64_t p = blockIdx.x % parts, per = (n + parts - 1) / parts;
    int64_t c0 = blockIdx.x / parts * STRIP_COLUMNS, c = c0 + lane_of() * EK_VEC;
    int64_t end = (p + 1) * per < n ? (p + 1) * per : n;
    vec<R> sum = {};

#pragma unroll 4
    for (int64_t i = p * per + warp_of(); i < end; i += EK_WARPS) {
        vec<R> term = c < d ? f.template at<ALIGNED>(i, c) : vec<R>{};

        for (int e = 0; e < EK_VEC; e++)
            sum.x[e] += term.x[e];
    }
    of_warp[warp_of()][lane_of()] = sum;
    __syncthreads();
    for (int t = (int)threadIdx.x; t < STRIP_COLUMNS && c0 + t < d; t += EK_BLOCK) {
        R all = 0;

        for (int w = 0; w < EK_WARPS; w++)
            all += of_warp[w][t / EK_VEC].x[t % EK_VEC];
        part[p * d + c0 + t] = all;
    }
}

/* An element of a matrix as a term of a sum. */
template <class C> struct element {
    const C *x;
    int64_t ld;

    __device__ auto operator()(int64_t i, int64_t c) const
    {
        return to_real(x[i * ld + c]);
    }
};

#endif
