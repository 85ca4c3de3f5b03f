/* tensor/cpu/linear_pack_avx512.c - strips and panels with AVX-512.
 *
 * Transpositions go through 16 x 16 words in registers; columns are interleaved row by row. */
#include "tensor/cpu/linear_pack.h"
#include "tensor/cpu/linear_simd_avx512.h"

/* 16 words of one row from element k on, `left` elements of it existing. */
typedef __m512i (*load_words)(const void *row, int64_t k, int64_t left);

/* Where rows are, and what is read next.  From memory the 16 rows after those that are read are
 * fetched ahead, as the hardware does not follow so many. */
typedef enum {
    IN_CACHE,
    ONCE, /* in memory; dst is not read soon, and is written past the caches, which saves reading
             it first: a third of the traffic */
    AHEAD /* in memory, dense, and so are the rows after these, which are next */
} source_place;

/* dst[words][width] from rows of src; see ek_linear_ops.  bytes: of one row of src. */
EK_INLINE void rows_avx512(load_words load, int64_t per_word, int64_t words, int64_t rows,
                           int64_t k, const char *src, int64_t bytes, float *dst, int64_t width,
                           const source_place place)
{
    for (int64_t r0 = 0; r0 < width; r0 += 16) {
        for (int64_t q = 0; q < words; q += 16) {
            __m512i r[16];
            int64_t n = words - q < 16 ? words - q : 16;

            for (int64_t i = 0; i < 16; i++) {
                r[i] = r0 + i < rows ? load(src + (r0 + i) * bytes, q * per_word, k - q * per_word)
                                     : _mm512_setzero_si512();
                if (place == ONCE && r0 + 16 + i < rows)
                    _mm_prefetch(src + (r0 + 16 + i) * bytes + q * 4, _MM_HINT_T1);
                if (place == AHEAD)
                    _mm_prefetch(src + (r0 + 16) * bytes + 64 * (q + i), _MM_HINT_T1);
            }
            ek_transpose16(r);
            for (int64_t i = 0; i < n; i++) {
                float *to = dst + (q + i) * width + r0;

                if (place == ONCE)
                    _mm512_stream_si512((void *)to, r[i]);
                else
                    _mm512_store_si512(to, r[i]);
            }
        }
    }
    if (place == ONCE)
        _mm_sfence();
}

/* dst[words][width] from columns of src. */
EK_INLINE void cols_avx512(load_words load, int64_t words, int64_t k, int64_t cols, const char *src,
                           int64_t bytes, char *dst, int64_t width)
{
    for (int64_t q = 0; q < words; q++, src += bytes)
        for (int64_t j = 0; j < width; j += 16, dst += 64)
            _mm512_store_si512(dst, q < k ? load(src, j, cols - j) : _mm512_setzero_si512());
}

/* 16 bf16 of a row from element k on. */
typedef __m256i (*load_halves)(const void *row, int64_t k, int64_t left);

/* dst[pairs][width] from columns of src. */
EK_INLINE void pair_cols_avx512(load_halves load, int64_t k, int64_t cols, const char *src,
                                int64_t bytes, char *dst, int64_t width)
{
    for (int64_t q = 0; q < k; q += 2, src += 2 * bytes) {
        for (int64_t j = 0; j < width; j += 16, dst += 64) {
            __m512i first = _mm512_cvtepu16_epi32(load(src, j, cols - j)), second;

            second = q + 1 < k ? _mm512_cvtepu16_epi32(load(src + bytes, j, cols - j))
                               : _mm512_setzero_si512();
            _mm512_store_si512(dst, _mm512_or_si512(first, _mm512_slli_epi32(second, 16)));
        }
    }
}

EK_INLINE __m512i load_f32(const void *row, int64_t k, int64_t left)
{
    return _mm512_maskz_loadu_epi32(ek_mask16(left), (const float *)row + k);
}

EK_INLINE __m256i load_bf16(const void *row, int64_t k, int64_t left)
{
    return _mm256_maskz_loadu_epi16(ek_mask16(left), (const ek_bf16 *)row + k);
}

EK_INLINE __m512i load_wide(const void *row, int64_t k, int64_t left)
{
    return _mm512_slli_epi32(_mm512_cvtepu16_epi32(load_bf16(row, k, left)), 16);
}

EK_INLINE __m256i load_round_half(const void *row, int64_t k, int64_t left)
{
    return ek_round_bf16(_mm512_castsi512_ps(load_f32(row, k, left)));
}

EK_INLINE __m512i load_round(const void *row, int64_t k, int64_t left)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(load_round_half(row, k, left)),
                              load_round_half(row, k + 16, left - 16), 1);
}

void ek_f32_rows_avx512(int64_t rows, int64_t k, const void *src, int64_t ld, void *dst,
                        int64_t width)
{
    rows_avx512(load_f32, 1, k, rows, k, src, ld * 4, dst, width, IN_CACHE);
}

void ek_wide_rows_avx512(int64_t rows, int64_t k, const void *src, int64_t ld, void *dst,
                         int64_t width)
{
    rows_avx512(load_wide, 1, k + (k & 1), rows, k, src, ld * 2, dst, width, IN_CACHE);
}

void ek_pair_rows_avx512(int64_t rows, int64_t k, const void *src, int64_t ld, void *dst,
                         int64_t width)
{
    rows_avx512(ek_load_pairs, 2, ek_ceil_div(k, 2), rows, k, src, ld * 2, dst, width, IN_CACHE);
}

void ek_pair_rows_once_avx512(int64_t rows, int64_t k, const void *src, int64_t ld, void *dst,
                              int64_t width)
{
    rows_avx512(ek_load_pairs, 2, ek_ceil_div(k, 2), rows, k, src, ld * 2, dst, width, ONCE);
}

void ek_pair_rows_ahead_avx512(int64_t rows, int64_t k, const void *src, int64_t ld, void *dst,
                               int64_t width)
{
    rows_avx512(ek_load_pairs, 2, ek_ceil_div(k, 2), rows, k, src, ld * 2, dst, width, AHEAD);
}

void ek_round_rows_avx512(int64_t rows, int64_t k, const void *src, int64_t ld, void *dst,
                          int64_t width)
{
    rows_avx512(load_round, 2, ek_ceil_div(k, 2), rows, k, src, ld * 4, dst, width, IN_CACHE);
}

void ek_f32_cols_avx512(int64_t k, int64_t cols, const void *src, int64_t ld, void *dst,
                        int64_t width)
{
    cols_avx512(load_f32, k, k, cols, src, ld * 4, dst, width);
}

void ek_wide_cols_avx512(int64_t k, int64_t cols, const void *src, int64_t ld, void *dst,
                         int64_t width)
{
    cols_avx512(load_wide, k + (k & 1), k, cols, src, ld * 2, dst, width);
}

void ek_pair_cols_avx512(int64_t k, int64_t cols, const void *src, int64_t ld, void *dst,
                         int64_t width)
{
    pair_cols_avx512(load_bf16, k, cols, src, ld * 2, dst, width);
}

void ek_round_cols_avx512(int64_t k, int64_t cols, const void *src, int64_t ld, void *dst,
                          int64_t width)
{
    pair_cols_avx512(load_round_half, k, cols, src, ld * 4, dst, width);
}
