/* tensor/cuda/tensor_core.h - instructions that CUDA's C++ has no words for (PTX ISA): copies to
 * shared memory that go on in the background, and products of small matrices by a warp. */
#ifndef TENSOR_CUDA_TENSOR_CORE_H
#define TENSOR_CUDA_TENSOR_CORE_H

#include <cuda_runtime.h>

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "tensor cores of bf16 begin with compute capability 8.0: EK_CUDA_ARCHITECTURES"
#endif

/* Begins to copy 16 bytes to shared memory, of which the last 16 - bytes become 0 and are not read.
 * Both addresses are multiples of 16. */
__device__ inline void copy_begin(void *shared, const void *from, int bytes)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(
                     (unsigned)__cvta_generic_to_shared(shared)),
                 "l"(__cvta_generic_to_global(from)), "r"(bytes)
                 : "memory");
}

/* Ends a group of copies: of all that this thread has begun since the last one. */
__device__ inline void copy_group(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most N of this thread's newest groups are under way. */
template <int N> __device__ inline void copy_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* Four matrices of 8 x 8 numbers of 2 bytes, whose rows lie in shared memory, 16 bytes each: lane l
 * gives the address of row l % 8 of matrix l / 8, and gets of each matrix the numbers 2 (l % 4) and
 * the next of row l / 4; transposed: of column l / 4. */
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

/* c [16, 8] += a [16, 16] b [16, 8], a and b of bf16.  A lane l has of c the numbers 2 (l % 4) and
 * the next of rows l / 4 (c[0], c[1]) and l / 4 + 8 (c[2], c[3]); of a the four 8 x 8 quarters
 * (rows 0, terms 0), (8, 0), (0, 8), (8, 8) and of b transposed its halves as matrices_load gives
 * them. */
__device__ inline void matrices_multiply(float c[4], const unsigned a[4], const unsigned b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* 2^x in one instruction, to some units of the last place; what is below 2^-126 is 0. */
__device__ inline float exp2_fast(float x)
{
    float y;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#endif
