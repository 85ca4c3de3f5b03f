/* Vectors of 8 floats for the bodies attention_body.h and rope_body.h, on AVX2.
 *
 * attention_simd_avx512.h offers the same names on AVX-512.  `n` counts leading lanes, 0 to VW;
 * lanes beyond it read as zero and are not written. */
#ifndef TENSOR_CPU_ATTENTION_SIMD_AVX2_H
#define TENSOR_CPU_ATTENTION_SIMD_AVX2_H

#include "tensor/cpu/attention_exp2.h"
#include "tensor/dtype.h"

#include <immintrin.h>
#include <stdint.h>

typedef __m256 vf;

/* Lanes, and columns of the largest product tile in vectors: TILE_SUMS independent sums hide the
 * FMA latency without register spills. */
enum { VW = 8, TILE_VECS = 2, TILE_SUMS = 12 };

static inline __m256i v_lanes(int64_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

static inline vf v_zero(void)
{
    return _mm256_setzero_ps();
}

static inline vf v_set1(float x)
{
    return _mm256_set1_ps(x);
}

static inline vf v_load(const float *p)
{
    return _mm256_loadu_ps(p);
}

static inline vf v_load_n(const float *p, int64_t n)
{
    return _mm256_maskload_ps(p, v_lanes(n));
}

static inline void v_store(float *p, vf v)
{
    _mm256_storeu_ps(p, v);
}

static inline void v_store_n(float *p, vf v, int64_t n)
{
    _mm256_maskstore_ps(p, v_lanes(n), v);
}

static inline vf v_load_bf16(const ek_bf16 *p)
{
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));

    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

static inline vf v_load_bf16_n(const ek_bf16 *p, int64_t n)
{
    ek_bf16 all[VW] = {0};

    memcpy(all, p, (size_t)n * sizeof(*p));
    return v_load_bf16(all);
}

/* Rounds as ek_bf16_from_float does. */
static inline __m128i v_to_bf16(vf v)
{
    __m256i u = _mm256_castps_si256(v);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i even = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(even, quiet, nan), 16);

    return _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
}

static inline void v_store_bf16(ek_bf16 *p, vf v)
{
    _mm_storeu_si128((__m128i *)p, v_to_bf16(v));
}

static inline void v_store_bf16_n(ek_bf16 *p, vf v, int64_t n)
{
    ek_bf16 all[VW];

    v_store_bf16(all, v);
    memcpy(p, all, (size_t)n * sizeof(*p));
}

static inline vf v_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}

static inline vf v_sub(vf a, vf b)
{
    return _mm256_sub_ps(a, b);
}

static inline vf v_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}

static inline vf v_div(vf a, vf b)
{
    return _mm256_div_ps(a, b);
}

/* a b + c */
static inline vf v_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}

/* c - a b */
static inline vf v_fnma(vf a, vf b, vf c)
{
    return _mm256_fnmadd_ps(a, b, c);
}

/* NaN if b is NaN. */
static inline vf v_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}

static inline float v_first(vf v)
{
    return _mm256_cvtss_f32(v);
}

static inline float v_sum(vf v)
{
    __m128 h = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));

    h = _mm_add_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_add_ss(h, _mm_movehdup_ps(h)));
}

/* The sums of four vectors. */
static inline void v_sum4(const vf *v, float *to)
{
    vf a = v_add(_mm256_unpacklo_ps(v[0], v[1]), _mm256_unpackhi_ps(v[0], v[1]));
    vf b = v_add(_mm256_unpacklo_ps(v[2], v[3]), _mm256_unpackhi_ps(v[2], v[3]));
    vf c = v_add(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xee));

    _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(c), _mm256_extractf128_ps(c, 1)));
}

static inline float v_largest(vf v)
{
    __m128 h = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));

    h = _mm_max_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_max_ss(h, _mm_movehdup_ps(h)));
}

/* The first n lanes of v, the others of `rest`. */
static inline vf v_keep(vf v, vf rest, int64_t n)
{
    return _mm256_blendv_ps(rest, v, _mm256_castsi256_ps(v_lanes(n)));
}

/* v in lanes from .. to - 1, 0 elsewhere; both may be outside 0 .. VW. */
static inline vf v_between(vf v, int64_t from, int64_t to)
{
    __m256i first = v_lanes(from < 0 ? 0 : from), last = v_lanes(to < VW ? to : VW);

    return _mm256_and_ps(_mm256_castsi256_ps(_mm256_andnot_si256(first, last)), v);
}

/* now where it exceeds old by more than slack, else old, also for a NaN. */
static inline vf v_raise(vf old, vf now, vf slack)
{
    return _mm256_blendv_ps(old, now, _mm256_cmp_ps(now, v_add(old, slack), _CMP_GT_OQ));
}

/* True if any lane differs. */
static inline int v_differ(vf a, vf b)
{
    return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_NEQ_UQ)) != 0;
}

/* 2^x within 2e-7 of it; 1 for 0, and 0 below -150.  x = n + r with r in [0, 1) and a minimax
 * polynomial in r; 2^n in two factors, which together reach the denormal numbers. */
static inline vf v_exp2(vf x)
{
    vf n, r, p;
    __m256i i, half;

    x = _mm256_max_ps(_mm256_set1_ps(-151.0f), _mm256_min_ps(_mm256_set1_ps(128.0f), x));
    n = _mm256_floor_ps(x);
    r = v_sub(x, n);
    p = v_fma(v_set1(Exp2_5), r, v_set1(Exp2_4));
    p = v_fma(p, r, v_set1(Exp2_3));
    p = v_fma(p, r, v_set1(Exp2_2));
    p = v_fma(p, r, v_set1(Exp2_1));
    p = v_fma(p, r, v_set1(1.0f));
    i = _mm256_cvtps_epi32(n);
    half = _mm256_srai_epi32(i, 1);
    i = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(i, half), _mm256_set1_epi32(127)), 23);
    half = _mm256_slli_epi32(_mm256_add_epi32(half, _mm256_set1_epi32(127)), 23);
    return v_mul(v_mul(p, _mm256_castsi256_ps(half)), _mm256_castsi256_ps(i));
}

/* The m in [0.75, 1.5) of x = 2^*exponent m, for normal x > 0. */
static inline vf v_split(vf x, vf *exponent)
{
    __m256i base = _mm256_set1_epi32(0x3f400000), bits = _mm256_castps_si256(x);
    __m256i e = _mm256_srai_epi32(_mm256_sub_epi32(bits, base), 23);

    *exponent = _mm256_cvtepi32_ps(e);
    return _mm256_castsi256_ps(_mm256_sub_epi32(bits, _mm256_slli_epi32(e, 23)));
}

/* to [c][r] = from [r][c] for VW x VW elements of 4 bytes; row strides in elements. */
static inline void v_transpose(const float *from, int64_t ldf, float *to, int64_t ldt)
{
    vf a[VW], b[VW];

#pragma GCC unroll 8
    for (int i = 0; i < VW; i++)
        a[i] = v_load(from + i * ldf);
#pragma GCC unroll 4
    for (int i = 0; i < VW; i += 2) {
        b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < VW; i += 4) { /* a[i + j] has columns j and 4 + j of four rows */
        a[i] = _mm256_shuffle_ps(b[i], b[i + 2], 0x44);
        a[i + 1] = _mm256_shuffle_ps(b[i], b[i + 2], 0xee);
        a[i + 2] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0x44);
        a[i + 3] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        v_store(to + j * ldt, _mm256_permute2f128_ps(a[j], a[4 + j], 0x20));
        v_store(to + (4 + j) * ldt, _mm256_permute2f128_ps(a[j], a[4 + j], 0x31));
    }
}

#endif
