/* tests/cuda/emulated/tensor/cuda/tensor_core.h - replaces src/tensor/cuda/tensor_core.h.  The
 * target of an asynchronous copy is NaN until the copy is done, in copy_wait; products are computed
 * from the registers of the warp's lanes. */
#ifndef TENSOR_CUDA_TENSOR_CORE_H
#define TENSOR_CUDA_TENSOR_CORE_H

#include <cuda_runtime.h>

void copy_begin(void *shared, const void *from, int bytes);
void copy_group(void);

static inline void add_in_memory(float *to, float2 x)
{
    to[0] += x.x;
    to[1] += x.y;
}

void emulated_copy_wait(int groups);

template <int N> void copy_wait(void)
{
    emulated_copy_wait(N);
}

void emulated_matrices_load(unsigned r[4], const void *row, int transposed);

template <bool TRANSPOSED> void matrices_load(unsigned r[4], const void *row)
{
    emulated_matrices_load(r, row, TRANSPOSED);
}

void matrices_multiply(float c[4], const unsigned a[4], const unsigned b[2]);
float exp2_fast(float x);

#endif
