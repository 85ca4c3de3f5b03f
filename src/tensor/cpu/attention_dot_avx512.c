/* tensor/cpu/attention_dot_avx512.c - attention on bf16 by dot products of pairs, AVX512_BF16.
 *
 * A packed element is a pair of bf16, neighbours in the direction that the product sums over;
 * scores are rounded to bf16 before they are multiplied.  Used if the CPU's bf16 dot product has
 * the throughput of a float FMA (see attention.c). */
#include "tensor/cpu/attention.h"

#if defined(__x86_64__)

/* clang-format off */
#include "tensor/cpu/attention_simd_avx512.h"
#include "tensor/cpu/attention_comp_bf16.h"
/* clang-format on */

enum { PAIR = 2 };

static inline vf element_set1(const float *a)
{
    int pair;

    memcpy(&pair, a, sizeof(pair));
    return _mm512_castsi512_ps(_mm512_set1_epi32(pair));
}

/* c + a.x b.x + a.y b.y for pairs (x, y). */
static inline vf multiply_add(vf c, vf a, vf b)
{
    return _mm512_dpbf16_ps(c, (__m512bh)_mm512_castps_si512(a), (__m512bh)_mm512_castps_si512(b));
}

/* n rows of d to [n][wide / 2] pairs of columns, zeros from d to wide. */
static void pack_rows(const comp *x, int64_t ld, int64_t n, int64_t d, int64_t wide, float *to)
{
    unsigned char *row = (unsigned char *)to;
    size_t bytes = (size_t)d * sizeof(comp), all = (size_t)wide * sizeof(comp);

    for (int64_t r = 0; r < n; r++, row += all) {
        memcpy(row, x + r * ld, bytes);
        memset(row + bytes, 0, all - bytes);
    }
}

static inline __m512i columns(const comp *x, int64_t left)
{
    return left <= 0
               ? _mm512_setzero_si512()
               : _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(v_lanes(left < VW ? left : VW), x));
}

/* n rows of d to [(n + 1) / 2][wide] pairs of rows; zeros beyond n and d. */
static void pack_over_rows(const comp *x, int64_t ld, int64_t n, int64_t d, int64_t wide, float *to)
{
    for (int64_t r = 0; r < n; r += 2) {
        const comp *even = x + r * ld, *odd = even + ld;

        for (int64_t c = 0; c < wide; c += VW) {
            __m512i low = columns(even + c, d - c);
            __m512i high = r + 1 < n ? columns(odd + c, d - c) : _mm512_setzero_si512();

            _mm512_storeu_si512(to + r / 2 * wide + c,
                                _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
        }
    }
}

enum { SCORES = 64 }; /* columns of a block of scores: BLOCK of attention_body.h */

/* Scores s [n][SCORES] as the left side of a product over keys: pairs of columns. */
static inline const float *narrow_over_keys(const float *s, int64_t n, float *to)
{
    for (int64_t i = 0; i < n * SCORES; i += 2 * VW)
        _mm512_storeu_si512(to + i / 2,
                            (__m512i)_mm512_cvtne2ps_pbh(v_load(s + i + VW), v_load(s + i)));
    return to;
}

/* The same for a product over queries: pairs of rows. */
static inline const float *narrow_over_queries(const float *s, int64_t n, float *to)
{
    const __m512i mix = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                         8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);

    for (int64_t r = 0; r < n; r += 2) {
        for (int64_t c = 0; c < SCORES; c += VW) {
            const float *x = s + r * SCORES + c;
            vf odd = r + 1 < n ? v_load(x + SCORES) : v_zero();
            __m512i pair = (__m512i)_mm512_cvtne2ps_pbh(odd, v_load(x));

            _mm512_storeu_si512(to + r / 2 * SCORES + c, _mm512_permutexvar_epi16(mix, pair));
        }
    }
    return to;
}

/* clang-format off */
#include "tensor/cpu/attention_body.h"
#include "tensor/cpu/attention_cached_body.h"
/* clang-format on */

_Static_assert((int)SCORES == (int)BLOCK, "blocks of scores are BLOCK wide");

void ek_attention_fill_dot_avx512(ek_kernels *k)
{
    attention_fill(k);
}

#endif
