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

/* Product i has tiles first[i] to first[i + 1] - 1 of all results. */
template <class X> struct products {
    int n;
    product<X> of[EK_PRODUCTS];
    int64_t first[EK_PRODUCTS + 1];
};

static inline int64_t tiles_of(int64_t n, int side)
{
    return (n + side - 1) / side;
}

/* Numbers the tiles of down x across of all results; returns how many there are. */
template <class X> int64_t number_tiles(products<X> *all, int down, int across)
{
    all->first[0] = 0;
    for (int i = 0; i < all->n; i++)
        all->first[i + 1] =
            all->first[i] + tiles_of(all->of[i].m, down) * tiles_of(all->of[i].n, across);
    return all->first[all->n];
}

enum { EK_BAND = 16 }; /* tiles */

/* The product of a tile, and the first row and column of that tile.  Tiles are numbered by bands of
 * EK_BAND rows of tiles, down the rows of a band first, so that the blocks that run at the same
 * time read few rows of a and few columns of b. */
template <class X>
__device__ const product<X> &product_of_tile(const products<X> &all, unsigned tile, int down,
                                             int across, int64_t *i0, int64_t *j0)
{
    int e = 0;
    unsigned rows, columns, band, height;

    while (tile >= all.first[e + 1])
        e++;
    tile -= (unsigned)all.first[e];
    rows = (unsigned)((all.of[e].m + down - 1) / down);
    columns = (unsigned)((all.of[e].n + across - 1) / across);
    band = tile / (EK_BAND * columns);
    tile -= band * EK_BAND * columns;
    height = rows - band * EK_BAND < EK_BAND ? rows - band * EK_BAND : (unsigned)EK_BAND;
    *i0 = (int64_t)(band * EK_BAND + tile % height) * down;
    *j0 = (int64_t)(tile / height) * across;
    return all.of[e];
}

/* Whether the summed index of a and of b is contiguous in memory, or the other one is. */
typedef enum { EK_LAYOUT_OTHER, EK_BOTH_K_MAJOR, EK_A_K_MAJOR, EK_BOTH_MN_MAJOR } ek_product_layout;

/* Launch products of bf16 on tensor cores; 0: not supported for these (matmul_bf16.cu). */
int ek_cuda_multiply_bf16(const char *name, products<ek_bf16> *all, ek_out mode);
/* ... by mma.sync (matmul_mma.cu); by wgmma (matmul_wgmma.cu), which takes a GPU of compute
 * capability 9.0.  The layout is not EK_LAYOUT_OTHER. */
void ek_cuda_multiply_mma(const char *name, products<ek_bf16> *all, ek_product_layout layout,
                          ek_out mode);
void ek_cuda_multiply_wgmma(const char *name, products<ek_bf16> *all, ek_product_layout layout,
                            ek_out mode);

#endif
