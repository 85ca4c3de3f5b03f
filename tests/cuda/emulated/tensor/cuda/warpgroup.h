/* tests/cuda/emulated/tensor/cuda/warpgroup.h - replaces src/tensor/cuda/warpgroup.h.  A product is
 * computed when its thread waits for it, so that tests fail if an operand is overwritten or a sum
 * read before. */
#ifndef TENSOR_CUDA_WARPGROUP_H
#define TENSOR_CUDA_WARPGROUP_H

#include <cuda_runtime.h>

enum { EK_WARPGROUP = 128, EK_GROUP_ROWS = 64 };

struct smem_descriptor {
    const char *at;
    int stride;
};

static inline smem_descriptor descriptor_at(const void *at, int stride)
{
    return {(const char *)at, stride};
}

static inline smem_descriptor descriptor_after(smem_descriptor m, int bytes)
{
    return {m.at + bytes, m.stride};
}

void fence_async_proxy(void);

static inline void wgmma_fence(void)
{
}

void wgmma_commit(void);
void emulated_wgmma_wait(int groups);

template <int N> void wgmma_wait(void)
{
    emulated_wgmma_wait(N);
}

template <int ACROSS> void wgmma_results(float (&)[ACROSS][4])
{
}

void emulated_wgmma(float (*sum)[4], int across, smem_descriptor a, bool a_k_major,
                    smem_descriptor b, bool b_k_major);

template <bool A_K_MAJOR, bool B_K_MAJOR, int ACROSS>
void wgmma_begin(float (&sum)[ACROSS][4], smem_descriptor a, smem_descriptor b)
{
    emulated_wgmma(sum, ACROSS, a, A_K_MAJOR, b, B_K_MAJOR);
}

void *shared_of_launch(void);

#endif
