/* tensor/cuda/launch.h - launches a kernel on the stream of the process, and records its name for
 * error messages. */
#ifndef TENSOR_CUDA_LAUNCH_H
#define TENSOR_CUDA_LAUNCH_H

#include "tensor/cuda/stream.h"

#include <cuda_runtime.h>
#include <stdint.h>

enum { EK_GRID_MAX = 1 << 20 };

/* Launches `blocks` blocks of `threads` threads; 0 blocks: nothing. */
template <class Kernel, class... Arguments>
static void launch(const char *name, Kernel kernel, int64_t blocks, int threads, Arguments... a)
{
    if (blocks > INT32_MAX)
        ek_cuda_launched(name, (int)cudaErrorInvalidConfiguration);
    if (blocks <= 0 || blocks > INT32_MAX)
        return;
    kernel<<<dim3((unsigned)blocks), dim3((unsigned)threads), 0, (cudaStream_t)ek_cuda_stream()>>>(
        a...);
    ek_cuda_launched(name, (int)cudaGetLastError());
}

/* Blocks for n elements in a grid-stride loop (threads_in_all). */
static inline int64_t blocks_for(int64_t n, int threads)
{
    int64_t blocks = (n + threads - 1) / threads;

    return blocks < EK_GRID_MAX ? blocks : (int64_t)EK_GRID_MAX;
}

#endif
