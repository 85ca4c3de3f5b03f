/* tensor/cpu/linear_avx2.c - products in float with AVX2, for fp32 and for bf16.
 *
 * A strip is multiplied with a panel in sub-tiles of 6 x 16 results (12 registers).  Results go to
 * a small buffer, from which they are stored, added or rounded, so that edges need no masks. */
#include "tensor/cpu/linear.h"
#include "tensor/cpu/linear_pack.h"

#include <immintrin.h>

enum { ROWS = 6, COLS = 16 };

/* One word of K. */
static inline __attribute__((always_inline)) void word(const int rows, const float *a, __m256 b0,
                                                       __m256 b1, __m256 acc[ROWS][2])
{
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++) {
        __m256 w = _mm256_broadcast_ss(a + i);

        acc[i][0] = _mm256_fmadd_ps(w, b0, acc[i][0]);
        acc[i][1] = _mm256_fmadd_ps(w, b1, acc[i][1]);
    }
}

/* The first and the second bf16 of each pair, as floats. */
static inline __m256 pair_first(__m256i pairs)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
}

static inline __m256 pair_second(__m256i pairs)
{
    return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32((int)0xffff0000u)));
}

/* out[rows][COLS] = strip rows (from `a`) times 16 columns (from `b`: floats or pairs). */
static inline __attribute__((always_inline)) void
subtile_rows(const int rows, int64_t words, const float *a, const float *b, int pairs, float *out)
{
    __m256 acc[ROWS][2];

#pragma GCC unroll 6
    for (int i = 0; i < rows; i++) {
        acc[i][0] = _mm256_setzero_ps();
        acc[i][1] = _mm256_setzero_ps();
    }
    for (int64_t q = 0; pairs && q < words; q += 2, a += 2 * EK_STRIP_WIDTH, b += EK_PANEL) {
        __m256i p0 = _mm256_load_si256((const void *)b);
        __m256i p1 = _mm256_load_si256((const void *)(b + 8));

        word(rows, a, pair_first(p0), pair_first(p1), acc);
        word(rows, a + EK_STRIP_WIDTH, pair_second(p0), pair_second(p1), acc);
    }
    for (int64_t q = 0; !pairs && q < words; q++, a += EK_STRIP_WIDTH, b += EK_PANEL)
        word(rows, a, _mm256_load_ps(b), _mm256_load_ps(b + 8), acc);
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++) {
        _mm256_storeu_ps(out + i * COLS, acc[i][0]);
        _mm256_storeu_ps(out + i * COLS + 8, acc[i][1]);
    }
}

static inline __attribute__((always_inline)) void
subtile(int64_t rows, int64_t words, const float *a, const float *b, int pairs, float *out)
{
    switch (rows) {
    case 1: subtile_rows(1, words, a, b, pairs, out); break;
    case 2: subtile_rows(2, words, a, b, pairs, out); break;
    case 3: subtile_rows(3, words, a, b, pairs, out); break;
    case 4: subtile_rows(4, words, a, b, pairs, out); break;
    case 5: subtile_rows(5, words, a, b, pairs, out); break;
    default: subtile_rows(ROWS, words, a, b, pairs, out);
    }
}

static void store_real(int64_t rows, int64_t cols, const float *v, int add, float *c, int64_t ldc)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++)
            c[i * ldc + j] = v[i * COLS + j] + (add ? c[i * ldc + j] : 0);
}

static void store_bf16(int64_t rows, int64_t cols, const float *v, ek_bf16 *c, int64_t ldc)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++)
            c[i * ldc + j] = ek_bf16_from_float(v[i * COLS + j]);
}

static inline __attribute__((always_inline)) void tile_any(int64_t rows, int64_t cols,
                                                           int64_t words, const float *strip,
                                                           const float *panel, int pairs, int bf16,
                                                           int add, void *c, int64_t ldc)
{
    float v[ROWS * COLS];

    for (int64_t j = 0; j < cols; j += COLS) {
        int64_t width = cols - j < COLS ? cols - j : COLS;

        for (int64_t i = 0, n; i < rows; i += n) {
            n = rows - i < ROWS ? rows - i : rows - i < 2 * ROWS ? (rows - i + 1) / 2 : 5;
            subtile(n, words, strip + i, panel + j, pairs, v);
            if (bf16)
                store_bf16(n, width, v, (ek_bf16 *)c + i * ldc + j, ldc);
            else
                store_real(n, width, v, add, (float *)c + i * ldc + j, ldc);
        }
    }
}

static void tile_floats(int64_t rows, int64_t cols, int64_t words, const void *strip,
                        const void *panel, ek_out mode, void *c, int64_t ldc)
{
    tile_any(rows, cols, words, strip, panel, 0, 0, mode == EK_OUT_ADD, c, ldc);
}

static void tile_pairs(int64_t rows, int64_t cols, int64_t words, const void *strip,
                       const void *panel, ek_out mode, void *c, int64_t ldc)
{
    tile_any(rows, cols, words, strip, panel, 1, mode == EK_OUT_COMP, mode == EK_OUT_ADD, c, ldc);
}

const ek_linear_ops *ek_linear_avx2(ek_mode mode)
{
    static const ek_linear_ops f32 = {
        .name = "avx2 float",
        .per_word = 1,
        .packed = 1,
        .size = {EK_STRIP, EK_STRIP_WIDTH, EK_PANEL, 1, 1},
        .comp_rows = ek_f32_rows,
        .strip_cols = ek_f32_cols,
        .comp_cols = ek_f32_cols,
        .pack_rows = ek_f32_rows,
        .pack_cols = ek_f32_cols,
        .turn = ek_f32_rows,
        .value_rows = ek_f32_rows,
        .tile = tile_floats,
        .tile_packed = tile_floats,
    };
    static const ek_linear_ops bf16 = {
        .name = "avx2 float from bf16",
        .per_word = 1,
        .packed = 2,
        .size = {EK_STRIP, EK_STRIP_WIDTH, EK_PANEL, 1, 1},
        .comp_rows = ek_wide_rows,
        .strip_cols = ek_wide_cols,
        .comp_cols = ek_wide_cols,
        .pack_rows = ek_round_rows,
        .pack_cols = ek_round_cols,
        .turn = ek_turn_pairs,
        .pack_comp_rows = ek_pair_rows_avx2,
        .value_rows = ek_pair_rows_avx2,
        .tile = tile_floats,
        .tile_packed = tile_pairs,
    };

    return mode == EK_MODE_BF16 ? &bf16 : &f32;
}
