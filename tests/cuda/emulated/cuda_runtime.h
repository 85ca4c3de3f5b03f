/* tests/cuda/emulated/cuda_runtime.h - as much of CUDA as our kernels use, on the host: blocks one
 * after another, the threads of a block by turns, from one barrier to the next.
 *
 * It stands in front of the real headers where kernels are compiled for tests, so that what they
 * compute is known to be right where there is no GPU.  What only a GPU shows it cannot tell: races
 * between blocks, misaligned accesses, speed.  Lanes that do not come to a shuffle, or threads that
 * do not come to a barrier, end the program. */
#ifndef EMULATED_CUDA_RUNTIME_H
#define EMULATED_CUDA_RUNTIME_H

#include <cuda_runtime_api.h>
#include <functional>
#include <stdint.h>
#include <string.h>

#define __global__
#define __device__
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static

struct dim3 {
    unsigned x, y, z;
};

struct alignas(8) float2 {
    float x, y;
};

/* Of the thread whose turn it is. */
extern dim3 threadIdx, blockIdx, blockDim, gridDim;

/* Waits for the others of the block. */
void emulated_barrier(void);
/* Waits for the others of the warp and gets what one of them has brought: up to 8 bytes. */
uint64_t emulated_exchange(uint64_t mine, int lane);
/* The same of a bit of each. */
unsigned emulated_ballot(int bit);

/* Runs body(argument) by `blocks` blocks of `threads` threads.  Backwards: the last block and the
 * last thread first. */
void emulated_run(int64_t blocks, int threads, void (*body)(void *), void *argument);
#include "cuda/emulated.h"

/* Does it when the stream is waited for, after what was queued before. */
void emulated_queue(std::function<void()> work);
/* Whether an argument has an address that is not of the device's memory, while one is in use; then
 * the kernel fails. */
int emulated_is_foreign(const void *argument, size_t bytes);
/* Whether it is the kernel that EK_EMULATED_FAILURE names, which fails. */
int emulated_is_to_fail(const char *kernel);

static inline void __syncthreads(void)
{
    emulated_barrier();
}

template <class T> T emulated_take(T x, int lane)
{
    uint64_t bits = 0;

    static_assert(sizeof(x) <= sizeof(bits), "");
    memcpy(&bits, &x, sizeof(x));
    bits = emulated_exchange(bits, lane);
    memcpy(&x, &bits, sizeof(x));
    return x;
}

template <class T> T __shfl_sync(unsigned, T x, int lane)
{
    return emulated_take(x, lane);
}

template <class T> T __shfl_xor_sync(unsigned, T x, int mask)
{
    return emulated_take(x, (int)(threadIdx.x % 32) ^ mask);
}

static inline unsigned __ballot_sync(unsigned, int bit)
{
    return emulated_ballot(bit);
}

static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}

static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}

#endif
