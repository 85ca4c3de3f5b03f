/* tensor/cpu/linear_avx512.c - products in float with AVX-512.
 *
 * For fp32, and for bf16 on CPUs whose bf16 dot products are missing or slow: bf16 is converted to
 * float when strips and panels are read or packed, which is exact, and results are rounded when
 * they are stored. */
#include "tensor/cpu/linear_pack.h"
#include "tensor/cpu/linear_values_avx512.h"

/* One word of K. */
EK_INLINE void word(const int rows, const float *a, __m512 b0, __m512 b1, __m512 acc[EK_STRIP][2])
{
#pragma GCC unroll 14
    for (int i = 0; i < rows; i++) {
        __m512 w = _mm512_set1_ps(a[i]);

        acc[i][0] = _mm512_fmadd_ps(w, b0, acc[i][0]);
        acc[i][1] = _mm512_fmadd_ps(w, b1, acc[i][1]);
    }
}

EK_INLINE void words_of_pairs(const int rows, int64_t words, const float *a, const float *b,
                              ek_tile_next *next, __m512 acc[EK_STRIP][2])
{
    for (int64_t q = 0; q < words; q += 2) {
        __m512i p0 = _mm512_load_si512(b), p1 = _mm512_load_si512(b + 16);

        ek_tile_fetch(rows, a, b, next);
        word(rows, a, ek_pair_first(p0), ek_pair_first(p1), acc);
        word(rows, a + EK_STRIP_WIDTH, ek_pair_second(p0), ek_pair_second(p1), acc);
        a += 2 * EK_STRIP_WIDTH;
        b += EK_PANEL;
    }
}

EK_INLINE void ek_tile_words(const int rows, int64_t words, const float *a, const float *b,
                             int pairs, ek_tile_next *next, __m512 acc[EK_STRIP][2])
{
    if (pairs) {
        words_of_pairs(rows, words, a, b, next, acc);
        return;
    }
    for (int64_t q = 0; q < words; q++) {
        ek_tile_fetch(rows, a, b, next);
        word(rows, a, _mm512_load_ps(b), _mm512_load_ps(b + 16), acc);
        a += EK_STRIP_WIDTH;
        b += EK_PANEL;
    }
}

EK_INLINE void ek_tile_store_comp(__m512 lo, __m512 hi, int64_t cols, void *c)
{
    ek_bf16 *b = c;

    _mm256_mask_storeu_epi16(b, ek_mask16(cols), ek_round_bf16(lo));
    _mm256_mask_storeu_epi16(b + 16, ek_mask16(cols - 16), ek_round_bf16(hi));
}

EK_INLINE void ek_values_pair(const int rows, const float *strip, int64_t pair, __m512i columns,
                              __m512 acc[EK_FEW_ROWS])
{
    const float *first = strip + 2 * pair * EK_STRIP_WIDTH, *second = first + EK_STRIP_WIDTH;

#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
        acc[i] = _mm512_fmadd_ps(_mm512_set1_ps(first[i]), ek_pair_first(columns), acc[i]);
        acc[i] = _mm512_fmadd_ps(_mm512_set1_ps(second[i]), ek_pair_second(columns), acc[i]);
    }
}

static void tile_values(int64_t rows, int64_t cols, int64_t k, const void *strip, const void *w,
                        ek_out mode, void *c, int64_t ldc)
{
    ek_values_any(rows, cols, k, strip, w, mode, c, ldc);
}

static void tile_floats(int64_t rows, int64_t cols, int64_t words, const void *strip,
                        const void *panel, ek_out mode, void *c, int64_t ldc)
{
    ek_tile_any(rows, cols, words, strip, panel, 0, mode == EK_OUT_COMP ? EK_OUT_REAL : mode,
                ek_tile_fetches_nothing(), c, ldc * 4);
}

static void tile_pairs(int64_t rows, int64_t cols, int64_t words, const void *strip,
                       const void *panel, ek_out mode, void *c, int64_t ldc)
{
    ek_tile_any(rows, cols, words, strip, panel, 1, mode, ek_tile_fetches_nothing(), c,
                ldc * (mode == EK_OUT_COMP ? 2 : 4));
}

/* A word of pairs is two of the strip. */
static void tile_ahead(int64_t rows, int64_t cols, int64_t words, const void *strip,
                       const void *panel, ek_out mode, void *c, int64_t ldc, const void *next,
                       int64_t bytes)
{
    ek_tile_any(rows, cols, words, strip, panel, 1, mode, ek_tile_fetches(next, bytes, words / 2),
                c, ldc * (mode == EK_OUT_COMP ? 2 : 4));
}

const ek_linear_ops *ek_linear_avx512(ek_mode mode)
{
    static const ek_linear_ops f32 = {
        .name = "avx512 float",
        .per_word = 1,
        .packed = 1,
        .size = {EK_STRIP, EK_STRIP_WIDTH, EK_PANEL, 1, 1},
        .comp_rows = ek_f32_rows_avx512,
        .strip_cols = ek_f32_cols_avx512,
        .comp_cols = ek_f32_cols_avx512,
        .pack_rows = ek_f32_rows_avx512,
        .pack_cols = ek_f32_cols_avx512,
        .turn = ek_f32_rows_avx512,
        .value_rows = ek_f32_rows_avx512,
        .tile = tile_floats,
        .tile_packed = tile_floats,
    };
    static const ek_linear_ops bf16 = {
        .name = "avx512 float from bf16",
        .per_word = 1,
        .packed = 2,
        .size = {EK_STRIP, EK_STRIP_WIDTH, EK_PANEL, 1, 1},
        .comp_rows = ek_wide_rows_avx512,
        .strip_cols = ek_wide_cols_avx512,
        .comp_cols = ek_wide_cols_avx512,
        .pack_rows = ek_round_rows_avx512,
        .pack_cols = ek_round_cols_avx512,
        .turn = ek_turn_pairs,
        .pack_comp_rows = ek_pair_rows_once_avx512,
        .value_rows = ek_pair_rows_ahead_avx512,
        .tile = tile_floats,
        .tile_packed = tile_pairs,
        .tile_ahead = tile_ahead,
        .tile_values = tile_values,
    };

    return mode == EK_MODE_BF16 ? &bf16 : &f32;
}
