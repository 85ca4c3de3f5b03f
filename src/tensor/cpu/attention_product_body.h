/* Products of packed blocks of attention.  A body file: each instance first defines vectors
 * (attention_simd_*.h), the storage type `comp`, and how blocks are packed and multiplied
 * (attention_fma.h, or the bf16 dot products of attention_dot_avx512.c).
 *
 * A packed element is 4 bytes: one float, or PAIR = 2 neighbours in bf16 along the direction that
 * the product sums over.  Products are c [rows][cols] += sum over k of a(row, k) b [k][cols]; a
 * is read element by element at any strides, so scores need no transposition. */
#include "base/progress_hook.h"
#include "tensor/kernels.h"

#include <float.h>
#include <math.h>
#include <omp.h>
#include <string.h>

/* BLOCK: queries of a block, and keys of a packed block.  STEP: keys of a step of the online
 * softmax.  Sums over 128 queries and 256 keys load and store their results less often. */
enum { BLOCK = 128, STEP = 2 * BLOCK, TILE_ROWS = 6, TILE_ROWS_NARROW = 8 };

/* The causal shape of a product: key column c is visible to query row r if c <= r + diagonal. */
typedef enum {
    CAUSAL_COLUMNS, /* rows are queries, columns keys */
    CAUSAL_END,     /* rows are queries, the sum runs over keys */
    CAUSAL_BEGIN    /* rows are keys, the sum runs over queries */
} causal;

typedef struct {
    const float *a; /* element (row, k) at row * a_row + k * a_k */
    int64_t a_row, a_k;
    const float *b; /* [k][ldb] */
    int64_t ldb;
    float *c; /* [row][ldc] */
    int64_t ldc;
    int add;           /* accumulate into c; else c is set */
    const float *keep; /* [row] factors of the old c, or NULL; only with add */
    causal shape;
    int64_t diagonal;
} product;

static inline int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t divide_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* One tile in registers: rows and vecs are constants after inlining. */
static inline __attribute__((always_inline)) void
tile(const product *p, int64_t r, int64_t v, int64_t k0, int64_t k1, const int rows, const int vecs)
{
    const float *a = p->a + r * p->a_row + k0 * p->a_k, *b = p->b + v * VW + k0 * p->ldb;
    float *c = p->c + r * p->ldc + v * VW;
    int64_t a_row = p->a_row, a_k = p->a_k, ldb = p->ldb, ldc = p->ldc;
    vf sum[TILE_ROWS_NARROW][TILE_VECS];

#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 4
        for (int j = 0; j < vecs; j++)
            sum[i][j] = v_zero();
    }
    for (int64_t k = k0; k < k1; k++, a += a_k, b += ldb) {
        vf right[TILE_VECS];

#pragma GCC unroll 4
        for (int j = 0; j < vecs; j++)
            right[j] = v_load(b + j * VW);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            vf left = element_set1(a + i * a_row);

#pragma GCC unroll 4
            for (int j = 0; j < vecs; j++)
                sum[i][j] = multiply_add(sum[i][j], left, right[j]);
        }
    }
    if (p->add) {
        const float *keep = p->keep == NULL ? NULL : p->keep + r;

#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            vf factor = keep == NULL ? v_set1(1.0f) : v_set1(keep[i]);

#pragma GCC unroll 4
            for (int j = 0; j < vecs; j++)
                sum[i][j] = v_fma(v_load(c + i * ldc + j * VW), factor, sum[i][j]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 4
        for (int j = 0; j < vecs; j++)
            v_store(c + i * ldc + j * VW, sum[i][j]);
    }
}

/* Computes a tile of `vecs` vectors that divides `left` rows evenly; returns its rows. */
static inline __attribute__((always_inline)) int64_t tile_rows(const product *p, int64_t r,
                                                               int64_t v, int64_t k0, int64_t k1,
                                                               int64_t left, const int vecs)
{
    int most = vecs < TILE_VECS ? TILE_ROWS_NARROW : TILE_ROWS;
    int64_t even = divide_up(left, divide_up(left, most));

    if (vecs < TILE_VECS && even == 8) {
        tile(p, r, v, k0, k1, 8, vecs);
        return 8;
    }
    if (even >= 6) {
        tile(p, r, v, k0, k1, 6, vecs);
        return 6;
    }
    if (even == 5) {
        tile(p, r, v, k0, k1, 5, vecs);
        return 5;
    }
    if (even == 4) {
        tile(p, r, v, k0, k1, 4, vecs);
        return 4;
    }
    if (even >= 2) {
        tile(p, r, v, k0, k1, 2, vecs);
        return 2;
    }
    tile(p, r, v, k0, k1, 1, vecs);
    return 1;
}

static int64_t tile_any(const product *p, int64_t r, int64_t v, int64_t k0, int64_t k1,
                        int64_t left, int64_t vecs)
{
    if (vecs == TILE_VECS)
        return tile_rows(p, r, v, k0, k1, left, TILE_VECS);
    if (TILE_VECS > 3 && vecs == 3)
        return tile_rows(p, r, v, k0, k1, left, 3);
    if (TILE_VECS > 2 && vecs == 2)
        return tile_rows(p, r, v, k0, k1, left, 2);
    return tile_rows(p, r, v, k0, k1, left, 1);
}

/* The visible part of c [rows][vecs * VW], summed over `depth` elements. */
static void multiply(const product *p, int64_t rows, int64_t vecs, int64_t depth)
{
    for (int64_t v = 0, step; v < vecs; v += step) {
        step = divide_up(vecs - v, divide_up(vecs - v, TILE_VECS));
        for (int64_t r = 0; r < rows;) {
            int64_t visible = r + TILE_ROWS_NARROW + p->diagonal; /* columns, to the last row */
            int64_t n = step, k0 = 0, k1 = depth;

            if (visible <= 0) {
                r++;
                continue;
            }
            if (p->shape == CAUSAL_COLUMNS)
                n = least(step, divide_up(visible, VW) - v);
            if (p->shape == CAUSAL_END)
                k1 = least(depth, divide_up(visible, PAIR));
            if (p->shape == CAUSAL_BEGIN && r > p->diagonal)
                k0 = least(depth, (r - p->diagonal) / PAIR);
            r += n > 0 ? tile_any(p, r, v, k0, k1, rows - r, n) : 1;
        }
        ek_progress();
    }
}
