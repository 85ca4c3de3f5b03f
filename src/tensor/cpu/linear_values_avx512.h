/* tensor/cpu/linear_values_avx512.h - products of few rows with bf16 weights that are not packed.
 *
 * 16 rows of a weight become 16 columns of a panel in registers, 16 pairs of K at a time, and are
 * multiplied at once: 64 shuffles for 1 KiB, which is faster than memory delivers it.  Sums run
 * along K as in the register tile, so they have the same bits.
 *
 * The including file defines, beside what linear_tile_avx512.h wants, ek_values_pair: the
 * multiply-adds of one pair of K of 16 columns, from word `pair` of a strip on. */
#ifndef TENSOR_CPU_LINEAR_VALUES_AVX512_H
#define TENSOR_CPU_LINEAR_VALUES_AVX512_H

#include "tensor/cpu/linear_tile_avx512.h"

enum { EK_VALUES_COLS = 16, EK_VALUES_PAIRS = 16 };

EK_INLINE void ek_values_pair(const int rows, const float *strip, int64_t pair, __m512i columns,
                              __m512 acc[EK_FEW_ROWS]);

/* Columns [0, cols) of 16 at most, all of K.  Each block of the next 16 is fetched meanwhile. */
EK_INLINE void ek_values_columns(const int rows, int64_t cols, int64_t k, const float *strip,
                                 const char *w, __m512 acc[EK_FEW_ROWS])
{
    int64_t bytes = k * (int64_t)sizeof(ek_bf16), pairs = ek_ceil_div(k, 2);

    for (int64_t q = 0; q < pairs; q += EK_VALUES_PAIRS) {
        __m512i r[EK_VALUES_COLS];

#pragma GCC unroll 16
        for (int64_t j = 0; j < EK_VALUES_COLS; j++) {
            r[j] =
                j < cols ? ek_load_pairs(w + j * bytes, 2 * q, k - 2 * q) : _mm512_setzero_si512();
            _mm_prefetch(w + EK_VALUES_COLS * (bytes + 4 * q) + 64 * j, _MM_HINT_T1);
        }
        ek_transpose16(r);
#pragma GCC unroll 16
        for (int64_t i = 0; i < EK_VALUES_PAIRS; i++)
            if (q + i < pairs)
                ek_values_pair(rows, strip, q + i, r[i], acc);
    }
}

/* ldc in bytes; `rows` is a constant at each call. */
EK_INLINE void ek_values_rows(const int rows, int64_t cols, int64_t k, const float *strip,
                              const char *w, ek_out mode, char *c, int64_t ldc)
{
    int64_t size = mode == EK_OUT_COMP ? 2 : 4;

    for (int64_t j = 0; j < cols; j += EK_VALUES_COLS) {
        int64_t n = ek_at_most(cols - j, EK_VALUES_COLS);
        __m512 acc[EK_FEW_ROWS];

#pragma GCC unroll 8
        for (int i = 0; i < rows; i++)
            acc[i] = _mm512_setzero_ps();
        ek_values_columns(rows, n, k, strip, w + j * k * (int64_t)sizeof(ek_bf16), acc);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++)
            ek_tile_store(acc[i], _mm512_setzero_ps(), n, mode, c + i * ldc + j * size);
    }
}

EK_INLINE void ek_values_any(int64_t rows, int64_t cols, int64_t k, const void *strip,
                             const void *w, ek_out mode, void *c, int64_t ldc)
{
    int64_t bytes = ldc * (mode == EK_OUT_COMP ? 2 : 4);

    switch (rows) {
    case 1: ek_values_rows(1, cols, k, strip, w, mode, c, bytes); break;
    case 2: ek_values_rows(2, cols, k, strip, w, mode, c, bytes); break;
    case 3: ek_values_rows(3, cols, k, strip, w, mode, c, bytes); break;
    case 4: ek_values_rows(4, cols, k, strip, w, mode, c, bytes); break;
    case 5: ek_values_rows(5, cols, k, strip, w, mode, c, bytes); break;
    case 6: ek_values_rows(6, cols, k, strip, w, mode, c, bytes); break;
    case 7: ek_values_rows(7, cols, k, strip, w, mode, c, bytes); break;
    default: ek_values_rows(EK_FEW_ROWS, cols, k, strip, w, mode, c, bytes);
    }
}

#endif
