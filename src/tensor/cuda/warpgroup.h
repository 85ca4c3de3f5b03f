/* tensor/cuda/warpgroup.h - products on tensor cores by a warpgroup, four warps whose threads are
 * consecutive (wgmma, compute capability 9.0): operands are read from shared memory, and computed
 * while the threads go on.
 *
 * Operands lie in blocks of lines of 128 bytes, 64 elements, whose chunks of 16 bytes are swizzled:
 * chunk c of line l is at c ^ l % 8 (chunk_index<8>).  Blocks begin at multiples of 1024 bytes. */
#ifndef TENSOR_CUDA_WARPGROUP_H
#define TENSOR_CUDA_WARPGROUP_H

#include <cuda_runtime.h>
#include <stdint.h>

#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define EK_WGMMA(...) __trap() /* compiled for another GPU, where it is not launched */
#else
#define EK_WGMMA(...) asm volatile(__VA_ARGS__)
#endif

enum { EK_WARPGROUP = 128, EK_GROUP_ROWS = 64 };

/* An operand in shared memory, in the form of the instruction: address, distance of blocks and of
 * eights of lines. */
struct smem_descriptor {
    uint64_t bits;
};

/* at: the block's first line; stride: bytes from a block to the next (operands whose summed index
 * runs across lines; 64 rows or columns each). */
__device__ inline smem_descriptor descriptor_at(const void *at, int stride)
{
    const uint64_t swizzled = (uint64_t)1 << 62, eight_lines = 1024;
    uint64_t address = (uint64_t)__cvta_generic_to_shared(at);

    return {address >> 4 | (uint64_t)(stride >> 4) << 16 | eight_lines >> 4 << 32 | swizzled};
}

__device__ inline smem_descriptor descriptor_after(smem_descriptor m, int bytes)
{
    return {m.bits + (uint64_t)(bytes >> 4)};
}

/* Makes what this thread's copies wrote visible to products; to be followed by a barrier. */
__device__ inline void fence_async_proxy(void)
{
    EK_WGMMA("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Before the first product after other uses of its sums. */
__device__ inline void wgmma_fence(void)
{
    EK_WGMMA("wgmma.fence.sync.aligned;" ::: "memory");
}

/* Ends a group of products. */
__device__ inline void wgmma_commit(void)
{
    EK_WGMMA("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Waits until at most N of the newest groups are being computed. */
template <int N> __device__ inline void wgmma_wait(void)
{
    EK_WGMMA("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* After a wait: sums are not read before it. */
template <int ACROSS> __device__ void wgmma_results(float (&sum)[ACROSS][4])
{
#pragma unroll
    for (int x = 0; x < ACROSS; x++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            asm volatile("" : "+f"(sum[x][e])::"memory");
}

#define EK_SUM(x)     "+f"(sum[x][0]), "+f"(sum[x][1]), "+f"(sum[x][2]), "+f"(sum[x][3])
#define EK_SUMS_4(x)  EK_SUM(x), EK_SUM(x + 1), EK_SUM(x + 2), EK_SUM(x + 3)
#define EK_SUMS_16(x) EK_SUMS_4(x), EK_SUMS_4(x + 4), EK_SUMS_4(x + 8), EK_SUMS_4(x + 12)
#define EK_TEXT_64                                                                                 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "   \
    "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, "   \
    "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, "   \
    "%56, %57, %58, %59, %60, %61, %62, %63"
#define EK_TEXT_128                                                                                \
    EK_TEXT_64                                                                                     \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, " \
    "%82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, "   \
    "%100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, "   \
    "%115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

/* sum [64, WIDTH] += a [64, 16] b [16, WIDTH], WIDTH 128 or 256, begun only: see wgmma_wait. The
 * lane's elements are as for matrices_multiply, warp w with rows 16 w to 16 w + 15.  Operands whose
 * summed index runs along lines have a line per row (column), else a line per term. */
template <bool A_K_MAJOR, bool B_K_MAJOR>
__device__ inline void wgmma_begin(float (&sum)[16][4], smem_descriptor a, smem_descriptor b)
{
    EK_WGMMA("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" EK_TEXT_64
             "}, %64, %65, 1, 1, 1, %66, %67;"
             : EK_SUMS_16(0)
             : "l"(a.bits), "l"(b.bits), "n"(!A_K_MAJOR), "n"(!B_K_MAJOR));
}

template <bool A_K_MAJOR, bool B_K_MAJOR>
__device__ inline void wgmma_begin(float (&sum)[32][4], smem_descriptor a, smem_descriptor b)
{
    EK_WGMMA("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" EK_TEXT_128
             "}, %128, %129, 1, 1, 1, %130, %131;"
             : EK_SUMS_16(0), EK_SUMS_16(16)
             : "l"(a.bits), "l"(b.bits), "n"(!A_K_MAJOR), "n"(!B_K_MAJOR));
}

#undef EK_WGMMA
#undef EK_SUM
#undef EK_SUMS_4
#undef EK_SUMS_16
#undef EK_TEXT_64
#undef EK_TEXT_128

/* The block's shared memory whose size the launch says, at a multiple of 1024 bytes if 1024 more
 * than needed were asked for. */
__device__ inline void *shared_of_launch(void)
{
    extern __shared__ char ek_shared[];
    unsigned at = (unsigned)__cvta_generic_to_shared(ek_shared);

    return ek_shared + (1024 - at % 1024) % 1024;
}

#endif
