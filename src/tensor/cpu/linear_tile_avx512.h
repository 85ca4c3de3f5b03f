/* tensor/cpu/linear_tile_avx512.h - the register tile shared by the AVX-512 products.
 *
 * 14 x 32 results stay in 28 registers while a strip and a panel are read once.  Per word of K:
 * two loads of B, fourteen broadcasts of A, 28 multiply-adds.  Two of these run per cycle, so
 * L1 bandwidth is more than sufficient, and L2 has 14 cycles for three cache lines.
 *
 * The including file defines ek_tile_words (all multiply-adds; `pairs`: the panel holds pairs
 * where the strip holds floats) and ek_tile_store_comp (one row of 32 results as C). */
#ifndef TENSOR_CPU_LINEAR_TILE_AVX512_H
#define TENSOR_CPU_LINEAR_TILE_AVX512_H

#include "tensor/cpu/linear_simd_avx512.h"

/* What a tile fetches into L2 for later, `step` bytes a word of K, two lines at most.  wanted is a
 * constant. */
typedef struct {
    int wanted;
    int64_t step;
    const char *at;
} ek_tile_next;

EK_INLINE void ek_tile_words(const int rows, int64_t words, const float *a, const float *b,
                             int pairs, ek_tile_next *next, __m512 acc[EK_STRIP][2]);
EK_INLINE void ek_tile_store_comp(__m512 lo, __m512 hi, int64_t cols, void *c);

/* EK_TILE_PARTS: parts of K.  EK_TILE_AHEAD: prefetch distance into L1 in words of K, the latency
 * of L2.  With at most EK_TILE_FEW rows panels are read at memory speed, so they are also
 * prefetched into L2, EK_TILE_FAR words ahead. */
enum { EK_TILE_PARTS = 4, EK_TILE_AHEAD = 16, EK_TILE_FEW = 8, EK_TILE_FAR = 96 };

EK_INLINE void ek_tile_fetch(const int rows, const float *a, const float *b, ek_tile_next *next)
{
    if (next->wanted) {
        _mm_prefetch(next->at, _MM_HINT_T1);
        _mm_prefetch(next->at + 64, _MM_HINT_T1);
        next->at += next->step;
    }
    _mm_prefetch(a + EK_TILE_AHEAD * EK_STRIP_WIDTH, _MM_HINT_T0);
    _mm_prefetch(b + EK_TILE_AHEAD * EK_PANEL, _MM_HINT_T0);
    _mm_prefetch(b + EK_TILE_AHEAD * EK_PANEL + 16, _MM_HINT_T0);
    if (rows <= EK_TILE_FEW) {
        _mm_prefetch(b + EK_TILE_FAR * EK_PANEL, _MM_HINT_T1);
        _mm_prefetch(b + EK_TILE_FAR * EK_PANEL + 16, _MM_HINT_T1);
    }
}

EK_INLINE void ek_tile_store(__m512 lo, __m512 hi, int64_t cols, ek_out mode, char *c)
{
    __mmask16 m0 = ek_mask16(cols), m1 = ek_mask16(cols - 16);
    float *f = (float *)c;

    if (mode == EK_OUT_COMP) {
        ek_tile_store_comp(lo, hi, cols, c);
        return;
    }
    if (mode == EK_OUT_ADD) {
        lo = _mm512_add_ps(lo, _mm512_maskz_loadu_ps(m0, f));
        hi = _mm512_add_ps(hi, _mm512_maskz_loadu_ps(m1, f + 16));
    }
    _mm512_mask_storeu_ps(f, m0, lo);
    _mm512_mask_storeu_ps(f + 16, m1, hi);
}

/* ldc in bytes.  `rows` is a constant at each call, so the accumulators are registers.  Lines of c
 * are prefetched a few at a time between parts of K: all at once, at the end, they would delay the
 * loads of the next tile. */
EK_INLINE void ek_tile_rows(const int rows, int64_t cols, int64_t words, const float *a,
                            const float *b, int pairs, ek_out mode, ek_tile_next next, char *c,
                            int64_t ldc)
{
    int64_t part = ek_ceil_div(words, 2 * EK_TILE_PARTS) * 2;
    __m512 acc[EK_STRIP][2];

#pragma GCC unroll 14
    for (int i = 0; i < rows; i++) {
        acc[i][0] = _mm512_setzero_ps();
        acc[i][1] = _mm512_setzero_ps();
    }
    for (int64_t q = 0, s = 0; q < words; q += part, s++) {
        int64_t n = words - q < part ? words - q : part;

        for (int64_t i = s; i < rows; i += EK_TILE_PARTS) {
            _mm_prefetch(c + i * ldc, _MM_HINT_T0);
            _mm_prefetch(c + i * ldc + 64, _MM_HINT_T0);
        }
        ek_tile_words(rows, n, a + q * EK_STRIP_WIDTH, b + q * (pairs ? EK_PANEL / 2 : EK_PANEL),
                      pairs, &next, acc);
    }
#pragma GCC unroll 14
    for (int i = 0; i < rows; i++)
        ek_tile_store(acc[i][0], acc[i][1], cols, mode, c + i * ldc);
}

/* Nothing, and `bytes` from `at` on during `words` words of K. */
EK_INLINE ek_tile_next ek_tile_fetches_nothing(void)
{
    return (ek_tile_next){0, 0, NULL};
}

EK_INLINE ek_tile_next ek_tile_fetches(const void *at, int64_t bytes, int64_t words)
{
    return (ek_tile_next){1, bytes / (words > 0 ? words : 1), at};
}

#define EK_TILE_CASE(n)                                                                            \
    case n: ek_tile_rows(n, cols, words, strip, panel, pairs, mode, next, c, ldc); break

EK_INLINE void ek_tile_any(int64_t rows, int64_t cols, int64_t words, const void *strip,
                           const void *panel, int pairs, ek_out mode, ek_tile_next next, void *c,
                           int64_t ldc)
{
    switch (rows) {
        EK_TILE_CASE(1);
        EK_TILE_CASE(2);
        EK_TILE_CASE(3);
        EK_TILE_CASE(4);
        EK_TILE_CASE(5);
        EK_TILE_CASE(6);
        EK_TILE_CASE(7);
        EK_TILE_CASE(8);
        EK_TILE_CASE(9);
        EK_TILE_CASE(10);
        EK_TILE_CASE(11);
        EK_TILE_CASE(12);
        EK_TILE_CASE(13);
    default: ek_tile_rows(EK_STRIP, cols, words, strip, panel, pairs, mode, next, c, ldc);
    }
}

#endif
