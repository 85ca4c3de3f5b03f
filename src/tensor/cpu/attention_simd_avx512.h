/* Vectors of 16 floats for the bodies attention_body.h and rope_body.h, on AVX-512.
 *
 * attention_simd_avx2.h offers the same names on AVX2.  `n` counts leading lanes, 0 to VW; lanes
 * beyond it read as zero and are not written. */
#ifndef TENSOR_CPU_ATTENTION_SIMD_AVX512_H
#define TENSOR_CPU_ATTENTION_SIMD_AVX512_H

#include "tensor/cpu/attention_exp2.h"
#include "tensor/dtype.h"

#include <immintrin.h>
#include <stdint.h>

typedef __m512 vf;

/* Lanes, and columns of the largest product tile in vectors: TILE_SUMS independent sums hide the
 * FMA latency without register spills. */
enum { VW = 16, TILE_VECS = 4, TILE_SUMS = 24 };

static inline __mmask16 v_lanes(int64_t n)
{
    return (__mmask16)((1u << n) - 1u);
}

static inline vf v_zero(void)
{
    return _mm512_setzero_ps();
}

static inline vf v_set1(float x)
{
    return _mm512_set1_ps(x);
}

static inline vf v_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

static inline vf v_load_n(const float *p, int64_t n)
{
    return _mm512_maskz_loadu_ps(v_lanes(n), p);
}

static inline void v_store(float *p, vf v)
{
    _mm512_storeu_ps(p, v);
}

static inline void v_store_n(float *p, vf v, int64_t n)
{
    _mm512_mask_storeu_ps(p, v_lanes(n), v);
}

static inline vf v_load_bf16(const ek_bf16 *p)
{
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));

    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

static inline vf v_load_bf16_n(const ek_bf16 *p, int64_t n)
{
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(v_lanes(n), p));

    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

/* Rounds as ek_bf16_from_float does. */
static inline __m256i v_to_bf16(vf v)
{
    __m512i u = _mm512_castps_si512(v);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i even = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __m512i quiet = _mm512_or_si512(u, _mm512_set1_epi32(0x400000));
    __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);

    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(even, nan, quiet), 16));
}

static inline void v_store_bf16(ek_bf16 *p, vf v)
{
    _mm256_storeu_si256((__m256i *)p, v_to_bf16(v));
}

static inline void v_store_bf16_n(ek_bf16 *p, vf v, int64_t n)
{
    _mm256_mask_storeu_epi16(p, v_lanes(n), v_to_bf16(v));
}

static inline vf v_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}

static inline vf v_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}

static inline vf v_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}

static inline vf v_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}

/* a b + c */
static inline vf v_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}

/* c - a b */
static inline vf v_fnma(vf a, vf b, vf c)
{
    return _mm512_fnmadd_ps(a, b, c);
}

/* NaN if b is NaN. */
static inline vf v_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}

static inline float v_first(vf v)
{
    return _mm512_cvtss_f32(v);
}

static inline float v_sum(vf v)
{
    return _mm512_reduce_add_ps(v);
}

/* The sums of four vectors. */
static inline void v_sum4(const vf *v, float *to)
{
    vf a = v_add(_mm512_unpacklo_ps(v[0], v[1]), _mm512_unpackhi_ps(v[0], v[1]));
    vf b = v_add(_mm512_unpacklo_ps(v[2], v[3]), _mm512_unpackhi_ps(v[2], v[3]));
    vf c = v_add(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
    __m256 d = _mm256_add_ps(_mm512_castps512_ps256(c), _mm512_extractf32x8_ps(c, 1));

    _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(d), _mm256_extractf128_ps(d, 1)));
}

static inline float v_largest(vf v)
{
    return _mm512_reduce_max_ps(v);
}

/* The first n lanes of v, the others of `rest`. */
static inline vf v_keep(vf v, vf rest, int64_t n)
{
    return _mm512_mask_mov_ps(rest, v_lanes(n), v);
}

/* v in lanes from .. to - 1, 0 elsewhere; both may be outside 0 .. VW. */
static inline vf v_between(vf v, int64_t from, int64_t to)
{
    __mmask16 first = v_lanes(from < 0 ? 0 : from > VW ? VW : from);
    __mmask16 last = v_lanes(to < 0 ? 0 : to > VW ? VW : to);

    return _mm512_maskz_mov_ps((__mmask16)(last & ~first), v);
}

/* now where it exceeds old by more than slack, else old, also for a NaN. */
static inline vf v_raise(vf old, vf now, vf slack)
{
    return _mm512_mask_mov_ps(old, _mm512_cmp_ps_mask(now, v_add(old, slack), _CMP_GT_OQ), now);
}

/* True if any lane differs. */
static inline int v_differ(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_NEQ_UQ) != 0;
}

/* 2^x within 2e-7 of it; 1 for 0, and 0 for -inf.  x = n + r with r in [0, 1) and a minimax
 * polynomial in r. */
static inline vf v_exp2(vf x)
{
    vf r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    vf p = v_fma(v_set1(Exp2_5), r, v_set1(Exp2_4));

    p = v_fma(p, r, v_set1(Exp2_3));
    p = v_fma(p, r, v_set1(Exp2_2));
    p = v_fma(p, r, v_set1(Exp2_1));
    p = v_fma(p, r, v_set1(1.0f));
    return _mm512_scalef_ps(p, x); /* p 2^floor(x) */
}

/* The m in [0.75, 1.5) of x = 2^*exponent m, for normal x > 0. */
static inline vf v_split(vf x, vf *exponent)
{
    __m512i base = _mm512_set1_epi32(0x3f400000), bits = _mm512_castps_si512(x);
    __m512i e = _mm512_srai_epi32(_mm512_sub_epi32(bits, base), 23);

    *exponent = _mm512_cvtepi32_ps(e);
    return _mm512_castsi512_ps(_mm512_sub_epi32(bits, _mm512_slli_epi32(e, 23)));
}

/* to [c][r] = from [r][c] for VW x VW elements of 4 bytes; row strides in elements. */
static inline void v_transpose(const float *from, int64_t ldf, float *to, int64_t ldt)
{
    vf a[VW], b[VW];

#pragma GCC unroll 16
    for (int i = 0; i < VW; i++)
        a[i] = v_load(from + i * ldf);
#pragma GCC unroll 8
    for (int i = 0; i < VW; i += 2) { /* pairs of rows: b[i] has columns 0, 1 of each quarter */
        b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < VW; i += 4) { /* fours of rows: a[i + j] has column j of each quarter */
        a[i] = _mm512_shuffle_ps(b[i], b[i + 2], 0x44);
        a[i + 1] = _mm512_shuffle_ps(b[i], b[i + 2], 0xee);
        a[i + 2] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0x44);
        a[i + 3] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) { /* columns j, 4 + j, 8 + j, 12 + j */
        vf even0 = _mm512_shuffle_f32x4(a[j], a[4 + j], 0x88);
        vf odd0 = _mm512_shuffle_f32x4(a[j], a[4 + j], 0xdd);
        vf even1 = _mm512_shuffle_f32x4(a[8 + j], a[12 + j], 0x88);
        vf odd1 = _mm512_shuffle_f32x4(a[8 + j], a[12 + j], 0xdd);

        v_store(to + j * ldt, _mm512_shuffle_f32x4(even0, even1, 0x88));
        v_store(to + (4 + j) * ldt, _mm512_shuffle_f32x4(odd0, odd1, 0x88));
        v_store(to + (8 + j) * ldt, _mm512_shuffle_f32x4(even0, even1, 0xdd));
        v_store(to + (12 + j) * ldt, _mm512_shuffle_f32x4(odd0, odd1, 0xdd));
    }
}

#endif
