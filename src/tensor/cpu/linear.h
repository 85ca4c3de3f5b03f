/* tensor/cpu/linear.h - matrix products of the CPU back end: packed layouts.
 *
 * A product C[M, N] = A[M, K] B[K, N] runs over 32-bit words along K: one float, or a pair of
 * bf16 that are adjacent in K.  Both factors are packed into strips and panels, which a register
 * tile reads sequentially:
 *
 *   strip  EK_STRIP rows of A:     [words of K][16]  (the last two of 16 are padding)
 *   panel  EK_PANEL columns of B:  [words of K][32]
 *
 * oneDNN has other sizes, and strips [rows][words of K] (ek_linear_sizes, linear_dnnl_avx512.c).
 *
 * Weights are stored as panels, or as rows (values), of which panels are made in cache, one after
 * the other, for as many strips as fit beside them.  Every sum runs along K in one fixed order, for
 * any number of threads and for any other rows in the call. */
#ifndef TENSOR_CPU_LINEAR_H
#define TENSOR_CPU_LINEAR_H

#include "tensor/kernels.h"

enum {
    EK_STRIP = 14,       /* rows of a register tile: 14 x 2 accumulators of 16 floats */
    EK_STRIP_WIDTH = 16, /* words of a strip per word of K: one cache line */
    EK_PANEL = 32,
    EK_FEW_ROWS = 8 /* so many read weights at the speed of memory */
};

/* Sizes of strips and panels. */
typedef struct {
    int strip;       /* rows of a strip */
    int strip_width; /* words of a strip per word of K */
    int panel;       /* columns of a panel */
    int panels;      /* consecutive panels that a call of a tile function may have */
    int unit;        /* words of K are rounded up to a multiple of this, with zeros */
} ek_linear_sizes;

/* Packing and tile functions of one instruction set.  Sources have row stride ld, in elements.
 *
 * bf16 weights are always packed as pairs.  For products in float, strips hold floats, with one
 * more row if K is odd, and the tile splits pairs as it loads them: two operations for 28 FMAs,
 * cheaper than twice the bytes. */
typedef struct {
    const char *name;
    int per_word; /* elements of K in a word of a strip: 2 for pairs of bf16, else 1 */
    int packed;   /* elements of K in a word of a packed weight */
    ek_linear_sizes size;

    /* A strip: dst[words][width], word i of each from row i of src [rows, k]; zero beyond rows and
     * k. */
    void (*comp_rows)(int64_t rows, int64_t k, const void *src, int64_t ld, void *dst,
                      int64_t width);
    /* The same from columns of src [k, cols]. */
    void (*strip_cols)(int64_t k, int64_t cols, const void *src, int64_t ld, void *dst,
                       int64_t width);
    /* A panel: dst[words][width], word j of each from column j of src [k, cols]; zero beyond. */
    void (*comp_cols)(int64_t k, int64_t cols, const void *src, int64_t ld, void *dst,
                      int64_t width);
    /* The same from float, into words of a packed weight. */
    void (*pack_rows)(int64_t rows, int64_t k, const void *src, int64_t ld, void *dst,
                      int64_t width);
    void (*pack_cols)(int64_t k, int64_t cols, const void *src, int64_t ld, void *dst,
                      int64_t width);
    /* The same as pack_rows, from bf16; NULL: compute is in float. */
    void (*pack_comp_rows)(int64_t rows, int64_t k, const void *src, int64_t ld, void *dst,
                           int64_t width);
    /* A square of a packed weight, transposed: `rows` rows of [words of rows][ld], of which k
     * columns, to [words of k][width]; zero beyond rows. */
    void (*turn)(int64_t rows, int64_t k, const void *src, int64_t ld, void *dst, int64_t width);
    /* The same panel from C [rows, k], to be read at once. */
    void (*value_rows)(int64_t rows, int64_t k, const void *src, int64_t ld, void *dst,
                       int64_t width);
    /* float c[rows, cols] from a strip and a panel, both of `words` words of the strip's type. */
    void (*tile)(int64_t rows, int64_t cols, int64_t words, const void *strip, const void *panel,
                 ek_out mode, void *c, int64_t ldc);
    /* The same with a panel of a packed weight; c is C for EK_OUT_COMP. */
    void (*tile_packed)(int64_t rows, int64_t cols, int64_t words, const void *strip,
                        const void *panel, ek_out mode, void *c, int64_t ldc);
    /* tile_packed that also fetches `bytes` from `next` on into cache, for later; NULL: none. */
    void (*tile_ahead)(int64_t rows, int64_t cols, int64_t words, const void *strip,
                       const void *panel, ek_out mode, void *c, int64_t ldc, const void *next,
                       int64_t bytes);
    /* tile_packed for up to EK_FEW_ROWS rows and w C [cols, k], without a panel; NULL: not faster.
     */
    void (*tile_values)(int64_t rows, int64_t cols, int64_t k, const void *strip, const void *w,
                        ek_out mode, void *c, int64_t ldc);
} ek_linear_ops;

/* linear_avx512.c, linear_bf16_avx512.c, linear_dnnl_avx512.c, linear_avx2.c; static. */
const ek_linear_ops *ek_linear_avx512(ek_mode mode);
const ek_linear_ops *ek_linear_avx512_bf16(void);
const ek_linear_ops *ek_linear_dnnl(void);
const ek_linear_ops *ek_linear_avx2(ek_mode mode);

/* linear_weight.c: linear_backward_weight of ek_kernels, and the bytes of its workspace. */
size_t ek_linear_weight_workspace(const ek_linear_ops *ops, int threads);
ek_status ek_linear_weight(const ek_kernels *k, const ek_group *g, int64_t n_groups, int64_t out,
                           int64_t in, const void *dy, int64_t lddy, const void *x, int64_t ldx,
                           void *ws);

/* linear_real.c: ek_kernels.matmul_real in float. */
void ek_matmul_real_avx512(int ta, int tb, int64_t m, int64_t n, int64_t kk, const void *a,
                           int64_t lda, const void *b, int64_t ldb, int add, void *c, int64_t ldc);
void ek_matmul_real_avx2(int ta, int tb, int64_t m, int64_t n, int64_t kk, const void *a,
                         int64_t lda, const void *b, int64_t ldb, int add, void *c, int64_t ldc);

/* linear.c: fills a table with matrix products based on `ops`.  linear_choose.c: the best ops for a
 * CPU; NULL: only the reference. */
void ek_linear_fill(ek_kernels *k, const ek_linear_ops *ops);
const ek_linear_ops *ek_linear_choose(ek_mode mode, ek_isa isa);

/* The smaller of two. */
static inline int64_t ek_at_most(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* a / b, rounded up; a >= 0, b > 0. */
static inline int64_t ek_ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Words of a packed weight, and of the corresponding strip, for k elements. */
static inline int64_t ek_packed_words(const ek_linear_ops *ops, int64_t k)
{
    return ek_ceil_div(ek_ceil_div(k, ops->packed), ops->size.unit) * ops->size.unit;
}

static inline int64_t ek_strip_words(const ek_linear_ops *ops, int64_t k)
{
    return ek_packed_words(ops, k) * (ops->packed / ops->per_word);
}

#endif
