/* vec_avx2.h - eight floats at a time with AVX2 and FMA.  vec_avx512.h documents the same
 * names. */
#ifndef TENSOR_CPU_VEC_AVX2_H
#define TENSOR_CPU_VEC_AVX2_H

#include "tensor/dtype.h"

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define VF 8

typedef __m256 vf;
typedef __m256 vm; /* all bits of a lane set: true */
typedef struct {
    __m256d lo, hi;
} vd;

static inline __m256i vm_first(int64_t m)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)m), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

static inline vf vf_set(float x)
{
    return _mm256_set1_ps(x);
}

static inline vf vf_load_fill(const float *p, int64_t m, vf fill)
{
    __m256i first;

    if (m >= VF)
        return _mm256_loadu_ps(p);
    first = vm_first(m);
    return _mm256_blendv_ps(fill, _mm256_maskload_ps(p, first), _mm256_castsi256_ps(first));
}

static inline vf vf_load(const float *p, int64_t m)
{
    return m >= VF ? _mm256_loadu_ps(p) : _mm256_maskload_ps(p, vm_first(m));
}

static inline void vf_store(float *p, vf x, int64_t m, int stream)
{
    if (m < VF)
        _mm256_maskstore_ps(p, vm_first(m), x);
    else if (stream)
        _mm256_stream_ps(p, x);
    else
        _mm256_storeu_ps(p, x);
}

static inline vf vb_load(const ek_bf16 *p, int64_t m)
{
    __m128i h = _mm_setzero_si128();

    if (m >= VF)
        h = _mm_loadu_si128((const void *)p);
    else
        memcpy(&h, p, (size_t)m * sizeof(*p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

static inline void vb_store(ek_bf16 *p, vf x, int64_t m, int stream)
{
    __m256i u = _mm256_castps_si256(x), top = _mm256_srli_epi32(u, 16);
    __m256i odd = _mm256_and_si256(top, _mm256_set1_epi32(1));
    __m256i r = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    __m256i quiet = _mm256_or_si256(top, _mm256_set1_epi32(0x40));
    __m128i h;

    r = _mm256_blendv_epi8(_mm256_srli_epi32(r, 16), quiet, nan);
    h = _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1));
    if (m < VF)
        memcpy(p, &h, (size_t)m * sizeof(*p));
    else if (stream)
        _mm_stream_si128((void *)p, h);
    else
        _mm_storeu_si128((void *)p, h);
}

static inline void vf_fence(void)
{
    _mm_sfence();
}

static inline vf vf_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}

static inline vf vf_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}

static inline vf vf_min(vf a, vf b)
{
    return _mm256_min_ps(a, b);
}

static inline vf vf_sqrt(vf x)
{
    return _mm256_sqrt_ps(x);
}

/* A plain division: with eight lanes it is as fast. */
static inline vf vf_recip_near(vf x)
{
    return _mm256_set1_ps(1) / x;
}

/* In two halves, because 2^n alone may overflow or underflow where x 2^n does not. */
static inline vf vf_scale2(vf x, vf n)
{
    __m256i i = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(i, 1);
    __m256i bias = _mm256_set1_epi32(127), rest = _mm256_sub_epi32(i, half);
    __m256i a = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
    __m256i b = _mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23);

    return x * _mm256_castsi256_ps(a) * _mm256_castsi256_ps(b);
}

static inline vm vf_less(vf a, vf b)
{
    return _mm256_cmp_ps(a, b, _CMP_LT_OQ);
}

static inline vm vf_equal(vf a, vf b)
{
    return _mm256_cmp_ps(a, b, _CMP_EQ_OQ);
}

static inline vm vm_and(vm a, vm b)
{
    return _mm256_and_ps(a, b);
}

static inline vm vm_or(vm a, vm b)
{
    return _mm256_or_ps(a, b);
}

static inline vf vf_select(vm t, vf yes, vf no)
{
    return _mm256_blendv_ps(no, yes, t);
}

static inline vf vf_index(void)
{
    return _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7);
}

static inline float vf_sum(vf x)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));

    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

static inline float vf_top(vf x)
{
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));

    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

static inline vd vd_zero(void)
{
    return (vd){_mm256_setzero_pd(), _mm256_setzero_pd()};
}

static inline __m256d vf_low(vf x)
{
    return _mm256_cvtps_pd(_mm256_castps256_ps128(x));
}

static inline __m256d vf_high(vf x)
{
    return _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
}

static inline vd vd_add(vd s, vf x)
{
    return (vd){_mm256_add_pd(s.lo, vf_low(x)), _mm256_add_pd(s.hi, vf_high(x))};
}

static inline vd vd_add_square(vd s, vf x)
{
    __m256d lo = vf_low(x), hi = vf_high(x);

    return (vd){_mm256_fmadd_pd(lo, lo, s.lo), _mm256_fmadd_pd(hi, hi, s.hi)};
}

static inline double vd_sum(vd s)
{
    double lane[4];

    _mm256_storeu_pd(lane, _mm256_add_pd(s.lo, s.hi));
    return (lane[0] + lane[2]) + (lane[1] + lane[3]);
}

#endif
