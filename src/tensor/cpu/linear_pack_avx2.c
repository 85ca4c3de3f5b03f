/* tensor/cpu/linear_pack_avx2.c - strips and panels of bf16 with AVX2.
 *
 * Transpositions go through 8 x 8 words in registers. */
#include "tensor/cpu/linear.h"
#include "tensor/cpu/linear_pack.h"

#include <immintrin.h>
#include <string.h>

enum { WORDS = 8 };

/* Transposes 8 x 8 words in registers. */
static inline __attribute__((always_inline)) void transpose8(__m256i r[WORDS])
{
    __m256i t[WORDS];

#pragma GCC unroll 4
    for (int i = 0; i < WORDS; i += 2) {
        t[i] = _mm256_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_epi32(r[i], r[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < WORDS; i += 4) {
        r[i] = _mm256_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm256_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm256_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm256_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        t[i] = _mm256_permute2x128_si256(r[i], r[i + 4], 0x20);
        t[i + 4] = _mm256_permute2x128_si256(r[i], r[i + 4], 0x31);
    }
    memcpy(r, t, sizeof(t));
}

/* 8 pairs of a row from element k on, `left` elements of it existing; zero beyond. */
static inline __m256i load_pairs(const ek_bf16 *row, int64_t k, int64_t left)
{
    ek_bf16 some[2 * WORDS] = {0};

    if (left >= 2 * WORDS)
        return _mm256_loadu_si256((const void *)(row + k));
    memcpy(some, row + k, (size_t)left * sizeof(*some));
    return _mm256_loadu_si256((const void *)some);
}

/* The next 8 rows are fetched ahead, as they are in memory, and the hardware does not follow so
 * many. */
void ek_pair_rows_avx2(int64_t rows, int64_t k, const void *src, int64_t ld, void *dst,
                       int64_t width)
{
    int64_t words = ek_ceil_div(k, 2);
    float *to = dst;

    for (int64_t r0 = 0; r0 < width; r0 += WORDS) {
        for (int64_t q = 0; q < words; q += WORDS) {
            const ek_bf16 *row = (const ek_bf16 *)src + r0 * ld;
            int64_t n = ek_at_most(words - q, WORDS);
            __m256i r[WORDS];

            for (int64_t i = 0; i < WORDS; i++, row += ld) {
                r[i] = r0 + i < rows ? load_pairs(row, 2 * q, k - 2 * q) : _mm256_setzero_si256();
                _mm_prefetch(row + WORDS * ld + 2 * q, _MM_HINT_T1);
            }
            transpose8(r);
            for (int64_t i = 0; i < n; i++)
                _mm256_store_si256((void *)(to + (q + i) * width + r0), r[i]);
        }
    }
}
