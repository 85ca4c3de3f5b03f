/* tests/cuda/emulated/tensor/cuda/warpgroup.h - replaces src/tensor/cuda/warpgroup.h.  A product is
 * computed when its thread waits for it, so that tests fail if an operand is overwritten or a sum
 * read before. */
#ifndef TENSOR_CUDA_WARPGROUP_H
#define TENSOR_CUDA_WARPGROUP_H

#include <cuda_runtime.h>

enum { EK_WARPGROUP = 128, EK_GROUP_ROWS = 64 };

struct matrix_in_shared {
    const char *at;
    int apart;
};

static inline matrix_in_shared matrix_at(const void *at, int apart)
{
    return {(const char *)at, apart};
}

static inline matrix_in_shared matrix_after(matrix_in_shared m, int bytes)
{
    return {m.at + bytes, m.apart};
}

void copies_to_products(void);

static inline void products_begin(void)
{
}

void products_group(void);
void emulated_products_wait(int groups);

template <int N> void products_wait(void)
{
    emulated_products_wait(N);
}

void emulated_products_add(float (*sum)[4], int across, matrix_in_shared a, bool a_along,
                           matrix_in_shared b, bool b_along);

template <bool A_ALONG, bool B_ALONG, int ACROSS>
void products_add(float (&sum)[ACROSS][4], matrix_in_shared a, matrix_in_shared b)
{
    emulated_products_add(sum, ACROSS, a, A_ALONG, b, B_ALONG);
}

void *shared_of_launch(void);

#endif
