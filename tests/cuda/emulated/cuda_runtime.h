/* tests/cuda/emulated/cuda_runtime.h - emulates the subset of CUDA that our kernels use on the
 * host: blocks one after another, the threads of a block alternately, from one barrier to the next.
 *
 * Tests compile the kernels with this header in place of CUDA's, to check their results without a
 * GPU.  It cannot detect races between blocks, misaligned accesses, or slowness.  The program is
 * aborted if not all lanes reach a shuffle, or not all threads a barrier. */
#ifndef EMULATED_CUDA_RUNTIME_H
#define EMULATED_CUDA_RUNTIME_H

#include <cuda_runtime_api.h>
#include <functional>
#include <stdint.h>
#include <string.h>

#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static

struct dim3 {
    unsigned x, y, z;
};

struct alignas(8) float2 {
    float x, y;
};

/* Of the running thread. */
extern dim3 threadIdx, blockIdx, blockDim, gridDim;

/* __syncthreads. */
void emulated_barrier(void);
/* Shuffle: waits for all lanes of the warp and returns one lane's value of up to 8 bytes. */
uint64_t emulated_exchange(uint64_t mine, int lane);
/* Ballot: the same for one bit of each lane. */
unsigned emulated_ballot(int bit);

/* Runs body(argument) with `blocks` blocks of `threads` threads, in reverse order if
 * emulated_backwards. */
void emulated_run(int64_t blocks, int threads, void (*body)(void *), void *argument);
#include "cuda/emulated.h"

/* What the launch of the running kernel asks for beside the kernel's own shared memory. */
extern size_t emulated_shared_bytes;

/* Enqueues work, run in order at the next synchronisation. */
void emulated_queue(std::function<void()> work);
/* Whether an argument contains an address outside the device's memory; the kernel then fails. */
int emulated_is_foreign(const void *argument, size_t bytes);
/* Whether EK_EMULATED_FAILURE names this kernel, which then fails. */
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
