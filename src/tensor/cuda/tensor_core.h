/* tensor/cuda/tensor_core.h - PTX instructions without a CUDA C++ intrinsic: asynchronous copies to
 * shared memory, and matrix products by a warp. */
#ifndef TENSOR_CUDA_TENSOR_CORE_H
#define TENSOR_CUDA_TENSOR_CORE_H

#include <cuda_runtime.h>

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "bf16 tensor cores need compute capability 8.0 or higher: set EK_CUDA_ARCHITECTURES"
#endif

/* Starts to copy `bytes` <= 16 bytes to shared memory and to set the other 16 - bytes to 0, without
 * reading them.  Both addresses are multiples of 16. */
__device__ inline void copy_begin(void *shared, const void *from, int bytes)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(
                     (unsigned)__cvta_generic_to_shared(shared)),
                 "l"(__cvta_generic_to_global(from)), "r"(bytes)
                 : "memory");
}

/* Adds to two adjacent elements, without waiting for their values where the GPU can.  There
 * subnormal values count as 0 (PTX, red). */
__device__ inline void add_in_memory(float *to, float2 x)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900 &&                                              \
    __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1201
    asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(to)),
                 "f"(x.x), "f"(x.y)
                 : "memory");
#else
    float2 was = *(const float2 *)to;

    *(float2 *)to = {was.x + x.x, was.y + x.y};
#endif
}

/* Commits this thread's copies since the last commit as a group. */
__device__ inline void copy_group(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most N of this thread's newest groups are in flight. */
template <int N> __device__ inline void copy_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* Loads four matrices of 8 x 8 elements of 2 bytes with rows of 16 bytes in shared memory: lane l
 * passes the address of row l % 8 of matrix l / 8, and receives elements 2 (l % 4) and 2 (l % 4) +
 * 1 of row l / 4 of each matrix; transposed: of column l / 4. */
template <bool TRANSPOSED> __device__ inline void matrices_load(unsigned r[4], const void *row)
{
    unsigned at = (unsigned)__cvta_generic_to_shared(row);

    if (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(at)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(at)
                     : "memory");
}

/* c [16, 8] += a [16, 16] b [16, 8], a and b of bf16.  Lane l holds elements 2 (l % 4) and
 * 2 (l % 4) + 1 of rows l / 4 (c[0], c[1]) and l / 4 + 8 (c[2], c[3]) of c; of a the four 8 x 8
 * quarters (row 0, k 0), (8, 0), (0, 8), (8, 8), and of b transposed its two halves, in the layout
 * of matrices_load. */
__device__ inline void matrices_multiply(float c[4], const unsigned a[4], const unsigned b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* 2^x in one instruction, to a few ulp; results below 2^-126 are 0. */
__device__ inline float exp2_fast(float x)
{
    float y;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#endif
