/* tensor/cuda/launch.h - launches a kernel on the stream of the process, and records its name for
 * error messages. */
#ifndef TENSOR_CUDA_LAUNCH_H
#define TENSOR_CUDA_LAUNCH_H

#include "tensor/cuda/stream.h"

#include <cuda_runtime.h>
#include <stdint.h>

enum { EK_GRID_MAX = 1 << 20, EK_SHARED = 48 << 10 /* bytes that need no attribute */ };

/* Launches `blocks` blocks of `threads` threads, each block with `shared` bytes of shared memory
 * besides the kernel's own; 0 blocks: nothing. */
template <class Kernel, class... Arguments>
static void launch_with(size_t shared, const char *name, Kernel kernel, int64_t blocks, int threads,
                        Arguments... a)
{
    cudaError_t e = cudaSuccess;

    if (blocks <= 0)
        return;
    if (blocks > INT32_MAX)
        e = cudaErrorInvalidConfiguration;
    if (e == cudaSuccess && shared > EK_SHARED)
        e = cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 (int)shared);
    if (e == cudaSuccess) {
        kernel<<<dim3((unsigned)blocks), dim3((unsigned)threads), shared,
                 (cudaStream_t)ek_cuda_stream()>>>(a...);
        e = cudaGetLastError();
    }
    ek_cuda_launched(name, (int)e);
}

template <class Kernel, class... Arguments>
static void launch(const char *name, Kernel kernel, int64_t blocks, int threads, Arguments... a)
{
    launch_with(0, name, kernel, blocks, threads, a...);
}

/* Blocks for n elements in a grid-stride loop (threads_in_all). */
static inline int64_t blocks_for(int64_t n, int threads)
{
    int64_t blocks = (n + threads - 1) / threads;

    return blocks < EK_GRID_MAX ? blocks : (int64_t)EK_GRID_MAX;
}

#endif
