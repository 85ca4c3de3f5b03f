/* tensor/cpu/attention_dot_avx512.c - attention on bf16 by dot products of pairs, AVX512_BF16.
 *
 * A packed element is a pair of bf16, neighbours in the direction that the product sums over;
 * scores are rounded to bf16 before they are multiplied.  The processor's bf16 instructions treat
 * denormals as 0.  Used if the CPU's bf16 dot product has
 * the throughput of a float FMA (see attention.c). */
#include "tensor/cpu/attention.h"

#if defined(__x86_64__)

/* clang-format off */
#include "tensor/cpu/attention_simd_avx512.h"
/* clang-format on */

typedef ek_bf16 comp;
enum { PAIR = 2 };

static inline vf comp_load(const comp *p)
{
    return v_load_bf16(p);
}

static inline vf comp_load_n(const comp *p, int64_t n)
{
    return v_load_bf16_n(p, n);
}

static inline void comp_store(comp *p, vf v)
{
    _mm256_storeu_si256((__m256i *)p, (__m256i)_mm512_cvtneps_pbh(v));
}

static inline void comp_store_n(comp *p, vf v, int64_t n)
{
    _mm256_mask_storeu_epi16(p, v_lanes(n), (__m256i)_mm512_cvtneps_pbh(v));
}

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

/* 32 columns, of which `left` are there; zeros beyond. */
static inline __m512i columns(const comp *x, int64_t left)
{
    if (left >= 2 * VW)
        return _mm512_loadu_si512(x);
    return _mm512_maskz_loadu_epi16(left > 0 ? (__mmask32)((1u << left) - 1u) : 0, x);
}

/* n rows of d to [n][wide / 2] pairs of columns, zeros from d to wide. */
static void pack_rows(const comp *x, int64_t ld, int64_t n, int64_t d, int64_t wide, float *to)
{
    for (int64_t r = 0; r < n; r++) {
        for (int64_t c = 0; c < wide; c += 2 * VW)
            _mm512_storeu_si512(to + (r * wide + c) / 2, columns(x + r * ld + c, d - c));
    }
}

/* n rows of d to [(n + 1) / 2][wide] pairs of rows; zeros beyond n and d. */
static void pack_over_rows(const comp *x, int64_t ld, int64_t n, int64_t d, int64_t wide, float *to)
{
    const __m512i mix_low =
        _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6,
                         37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i mix_high = _mm512_add_epi16(mix_low, _mm512_set1_epi16(VW));

    for (int64_t r = 0; r < n; r += 2) {
        for (int64_t c = 0; c < wide; c += 2 * VW) {
            const comp *even = x + r * ld + c;
            __m512i a = columns(even, d - c);
            __m512i b = columns(r + 1 < n ? even + ld : even, r + 1 < n ? d - c : 0);
            float *out = to + r / 2 * wide + c;

            _mm512_storeu_si512(out, _mm512_permutex2var_epi16(a, mix_low, b));
            _mm512_storeu_si512(out + VW, _mm512_permutex2var_epi16(a, mix_high, b));
        }
    }
}

/* Two vectors of neighbouring columns of a row of scores, as the left side of a product over
 * columns. */
static inline void pack_columns(float *to, const vf *x)
{
    _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(x[1], x[0]));
}

/* The same columns of two neighbouring rows, as the left side of a product over rows. */
static inline void pack_row_pair(float *to, const vf *x)
{
    const __m512i mix = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                         8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    __m512i pair = (__m512i)_mm512_cvtne2ps_pbh(x[1], x[0]);

    _mm512_storeu_si512(to, _mm512_permutexvar_epi16(mix, pair));
}

/* clang-format off */
#include "tensor/cpu/attention_body.h"
#include "tensor/cpu/attention_backward_body.h"
#include "tensor/cpu/attention_cached_body.h"
/* clang-format on */

void ek_attention_fill_dot_avx512(ek_kernels *k)
{
    attention_fill(k);
}

#endif
