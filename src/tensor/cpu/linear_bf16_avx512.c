/* tensor/cpu/linear_bf16_avx512.c - bf16 products with the bf16 dot product of AVX-512.
 *
 * A word is a pair of bf16 that are adjacent in K; one instruction multiplies 16 pairs by 16 pairs
 * and adds both products to 16 floats.  If K is odd, the last pairs end with a zero. */
#include "tensor/cpu/linear_pack.h"
#include "tensor/cpu/linear_values_avx512.h"

EK_INLINE void ek_tile_words(const int rows, int64_t words, const float *a, const float *b,
                             int pairs, ek_tile_next *next, __m512 acc[EK_STRIP][2])
{
    (void)pairs;
    for (int64_t q = 0; q < words; q++) {
        __m512bh b0 = (__m512bh)_mm512_load_ps(b), b1 = (__m512bh)_mm512_load_ps(b + 16);

        ek_tile_fetch(rows, a, b, next);
#pragma GCC unroll 14
        for (int i = 0; i < rows; i++) {
            __m512bh w = (__m512bh)_mm512_set1_ps(a[i]);

            acc[i][0] = _mm512_dpbf16_ps(acc[i][0], w, b0);
            acc[i][1] = _mm512_dpbf16_ps(acc[i][1], w, b1);
        }
        a += EK_STRIP_WIDTH;
        b += EK_PANEL;
    }
}

EK_INLINE void ek_tile_store_comp(__m512 lo, __m512 hi, int64_t cols, void *c)
{
    _mm512_mask_storeu_epi16(c, ek_mask32(cols), (__m512i)_mm512_cvtne2ps_pbh(hi, lo));
}

EK_INLINE void ek_values_pair(const int rows, const float *strip, int64_t pair, __m512i columns,
                              __m512 acc[EK_FEW_ROWS])
{
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
        acc[i] = _mm512_dpbf16_ps(
            acc[i], (__m512bh)_mm512_set1_ps(strip[pair * EK_STRIP_WIDTH + i]), (__m512bh)columns);
}

static void tile_values(int64_t rows, int64_t cols, int64_t k, const void *strip, const void *w,
                        ek_out mode, void *c, int64_t ldc)
{
    ek_values_any(rows, cols, k, strip, w, mode, c, ldc);
}

static void tile(int64_t rows, int64_t cols, int64_t words, const void *strip, const void *panel,
                 ek_out mode, void *c, int64_t ldc)
{
    ek_tile_any(rows, cols, words, strip, panel, 0, mode, ek_tile_fetches_nothing(), c,
                ldc * (mode == EK_OUT_COMP ? 2 : 4));
}

static void tile_ahead(int64_t rows, int64_t cols, int64_t words, const void *strip,
                       const void *panel, ek_out mode, void *c, int64_t ldc, const void *next,
                       int64_t bytes)
{
    ek_tile_any(rows, cols, words, strip, panel, 0, mode, ek_tile_fetches(next, bytes, words), c,
                ldc * (mode == EK_OUT_COMP ? 2 : 4));
}

const ek_linear_ops *ek_linear_avx512_bf16(void)
{
    static const ek_linear_ops ops = {
        .name = "avx512 bf16 dot products",
        .per_word = 2,
        .packed = 2,
        .size = {EK_STRIP, EK_STRIP_WIDTH, EK_PANEL, 1, 1},
        .comp_rows = ek_pair_rows_avx512,
        .strip_cols = ek_pair_cols_avx512,
        .comp_cols = ek_pair_cols_avx512,
        .pack_rows = ek_round_rows_avx512,
        .pack_cols = ek_round_cols_avx512,
        .turn = ek_turn_pairs,
        .pack_comp_rows = ek_pair_rows_once_avx512,
        .value_rows = ek_pair_rows_ahead_avx512,
        .tile = tile,
        .tile_packed = tile,
        .tile_ahead = tile_ahead,
        .tile_values = tile_values,
    };

    return &ops;
}
