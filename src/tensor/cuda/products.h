/* tensor/cuda/products.h - matrix products of several groups in one launch. */
#ifndef TENSOR_CUDA_PRODUCTS_H
#define TENSOR_CUDA_PRODUCTS_H

#include "tensor/kernels.h"

#include <cuda_runtime.h>

enum { EK_PRODUCTS = 32 }; /* products per launch, limited by the size of kernel arguments */

/* c [m, n] = a [m, k] b [k, n]; element (i, t) of a is at a[i * a_i + t * a_t], (t, j) of b at
 * b[t * b_t + j * b_j]; rows of c at stride ldc. */
template <class X> struct product {
    int64_t m, n, k;
    const X *a;
    int64_t a_i, a_t;
    const X *b;
    int64_t b_t, b_j;
    void *c;
    int64_t ldc;
};

/* Product i has blocks first[i] to first[i + 1] - 1, one per tile of its result. */
template <class X> struct products {
    int n;
    product<X> of[EK_PRODUCTS];
    int64_t first[EK_PRODUCTS + 1];
};

static inline int64_t tiles_of(int64_t n, int side)
{
    return (n + side - 1) / side;
}

/* Assigns blocks to products, for tiles of side x side; returns the number of blocks. */
template <class X> int64_t number_tiles(products<X> *all, int side)
{
    all->first[0] = 0;
    for (int i = 0; i < all->n; i++)
        all->first[i + 1] =
            all->first[i] + tiles_of(all->of[i].m, side) * tiles_of(all->of[i].n, side);
    return all->first[all->n];
}

/* The product of a block, and the first row and column of its tile.  Tiles are numbered down the
 * rows first, so that consecutive blocks read the same columns of b. */
template <class X>
__device__ const product<X> &product_of_block(const products<X> &all, int side, int64_t *i0,
                                              int64_t *j0)
{
    int e = 0;
    unsigned tile, down;

    while (blockIdx.x >= all.first[e + 1])
        e++;
    tile = blockIdx.x - (unsigned)all.first[e];
    down = (unsigned)((all.of[e].m + side - 1) / side);
    *i0 = (int64_t)(tile % down) * side;
    *j0 = (int64_t)(tile / down) * side;
    return all.of[e];
}

/* Launches the products on tensor cores (matmul_bf16.cu); 0: not supported for these. */
int ek_cuda_multiply_bf16(const char *name, products<ek_bf16> *all, ek_out mode);

#endif
