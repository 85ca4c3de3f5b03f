/* tensor/cpu/linear_dnnl_avx512.c - bf16 products whose tiles oneDNN computes: on CPUs with matrix
 * units (AMX) on these, elsewhere with bf16 dot products.
 *
 * A panel is what oneDNN calls OI16i64o2i: 64 columns, pairs of K, K rounded up to 32.  A strip is
 * rows as they are, with zeros behind K.  Tiles have multiples of 16 rows and of 64 columns, so
 * that the same code of oneDNN computes a row whatever the number of rows in the call. */
#include "tensor/cpu/dnnl_shim.h"
#include "tensor/cpu/linear_pack.h"
#include "tensor/cpu/linear_simd_avx512.h"

#include <string.h>

enum {
    STRIP = 64,
    PANEL = 64,
    PANELS = 4,
    ROW_UNIT = 16,
    WORD_UNIT = 16,
    WORDS_MAX = 256 /* of strip_cols: those of a step of linear_weight.c */
};

static int64_t round_up(int64_t n, int64_t unit)
{
    return ek_ceil_div(n, unit) * unit;
}

/* Words of k elements, and those with the zeros behind them. */
static int64_t words_of(int64_t k)
{
    return ek_ceil_div(k, 2);
}

static int64_t padded_words(int64_t k)
{
    return round_up(words_of(k), WORD_UNIT);
}

static void clear_tail(int64_t k, float *dst, int64_t width)
{
    int64_t words = words_of(k);

    memset(dst + words * width, 0, (size_t)((padded_words(k) - words) * width * 4));
}

static void round_rows(int64_t rows, int64_t k, const void *src, int64_t ld, void *dst,
                       int64_t width)
{
    ek_round_rows_avx512(rows, k, src, ld, dst, width);
    clear_tail(k, dst, width);
}

static void pair_rows(int64_t rows, int64_t k, const void *src, int64_t ld, void *dst,
                      int64_t width)
{
    ek_pair_rows_avx512(rows, k, src, ld, dst, width);
    clear_tail(k, dst, width);
}

static void pair_cols(int64_t k, int64_t cols, const void *src, int64_t ld, void *dst,
                      int64_t width)
{
    ek_pair_cols_avx512(k, cols, src, ld, dst, width);
    clear_tail(k, dst, width);
}

/* Rows beyond those of src are not set: nobody looks at what is computed from them. */
static void strip_rows(int64_t rows, int64_t k, const void *src, int64_t ld, void *dst,
                       int64_t width)
{
    size_t bytes = (size_t)padded_words(k) * 4, used = (size_t)k * sizeof(ek_bf16);

    (void)width;
    for (int64_t r = 0; r < rows; r++) {
        char *to = (char *)dst + (size_t)r * bytes;

        memcpy(to, (const ek_bf16 *)src + r * ld, used);
        memset(to + used, 0, bytes - used);
    }
}

/* Pairs of K first, then their transposition. */
static void strip_cols(int64_t k, int64_t cols, const void *src, int64_t ld, void *dst,
                       int64_t width)
{
    _Alignas(64) float pairs[WORDS_MAX * STRIP];
    int64_t words = padded_words(k);

    pair_cols(k, cols, src, ld, pairs, width);
    ek_f32_rows_avx512(words, width, pairs, width, dst, words);
}

/* out[rows, n] of whole tiles in plain C, for when oneDNN has no memory left. */
static void plain_product(int64_t rows, int64_t n, int64_t words, const ek_bf16 *strip,
                          const ek_bf16 *panel, float *out)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < n; j++) {
            const ek_bf16 *a = strip + r * 2 * words;
            const ek_bf16 *b = panel + (j / PANEL * words * PANEL + j % PANEL) * 2;
            float sum = 0;

            for (int64_t q = 0; q < words; q++, a += 2, b += 2 * (int64_t)PANEL) {
                sum += ek_bf16_to_float(a[0]) * ek_bf16_to_float(b[0]);
                sum += ek_bf16_to_float(a[1]) * ek_bf16_to_float(b[1]);
            }
            out[r * n + j] = sum;
        }
}

static void store_row(int64_t cols, const float *row, ek_out mode, char *c)
{
    for (int64_t j = 0; j < cols; j += 16) {
        __mmask16 m = ek_mask16(cols - j);
        __m512 v = _mm512_load_ps(row + j);

        if (mode == EK_OUT_COMP)
            _mm256_mask_storeu_epi16(c + j * 2, m, (__m256i)_mm512_cvtneps_pbh(v));
        else if (mode == EK_OUT_ADD)
            _mm512_mask_storeu_ps(c + j * 4, m,
                                  _mm512_add_ps(_mm512_maskz_loadu_ps(m, c + j * 4), v));
        else
            _mm512_mask_storeu_ps(c + j * 4, m, v);
    }
}

static void tile(int64_t rows, int64_t cols, int64_t words, const void *strip, const void *panel,
                 ek_out mode, void *c, int64_t ldc)
{
    _Alignas(64) float out[STRIP * PANELS * PANEL];
    int64_t m = round_up(rows, ROW_UNIT), n = round_up(cols, PANEL);
    int64_t bytes = ldc * (mode == EK_OUT_COMP ? 2 : 4);

    if (words == 0)
        memset(out, 0, (size_t)(rows * n) * sizeof(float));
    else if (!ek_dnnl_product(m, n, 2 * words, strip, panel, out))
        plain_product(rows, n, words, strip, panel, out);
    for (int64_t r = 0; r < rows; r++)
        store_row(cols, out + r * n, mode, (char *)c + r * bytes);
}

const ek_linear_ops *ek_linear_dnnl(void)
{
    static const ek_linear_ops ops = {
        .name = "oneDNN bf16",
        .per_word = 2,
        .packed = 2,
        .size = {STRIP, STRIP, PANEL, PANELS, WORD_UNIT},
        .comp_rows = strip_rows,
        .strip_cols = strip_cols,
        .comp_cols = pair_cols,
        .pack_rows = round_rows,
        .pack_cols = ek_round_cols_avx512,
        .turn = ek_turn_pairs,
        .pack_comp_rows = pair_rows,
        .value_rows = pair_rows,
        .tile = tile,
        .tile_packed = tile,
    };

    return &ops;
}
