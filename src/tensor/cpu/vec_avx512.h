/* vec_avx512.h - sixteen floats at a time with AVX-512.  vec_avx2.h has the same names.
 *
 * Loads and stores take m, the number of elements left: m >= VF moves a whole vector, less moves
 * the first m lanes.  Lanes beyond m load as 0 unless a fill is given.  Arithmetic is written
 * with the operators of the vector type; a * b + c is never contracted, so vf_fma marks a single
 * rounding. */
#ifndef TENSOR_CPU_VEC_AVX512_H
#define TENSOR_CPU_VEC_AVX512_H

#include "tensor/dtype.h"

#include <immintrin.h>
#include <stdint.h>

#define VF 16

typedef __m512 vf;    /* floats */
typedef __mmask16 vm; /* one truth value a lane */
typedef struct {
    __m512d lo, hi; /* the lanes of a vf as doubles, for long sums */
} vd;

static inline __mmask16 vm_first(int64_t m)
{
    return (__mmask16)((1u << m) - 1u);
}

static inline vf vf_set(float x)
{
    return _mm512_set1_ps(x);
}

static inline vf vf_load_fill(const float *p, int64_t m, vf fill)
{
    return m >= VF ? _mm512_loadu_ps(p) : _mm512_mask_loadu_ps(fill, vm_first(m), p);
}

static inline vf vf_load(const float *p, int64_t m)
{
    return m >= VF ? _mm512_loadu_ps(p) : _mm512_maskz_loadu_ps(vm_first(m), p);
}

/* stream: non-temporal; p is then aligned to a vector. */
static inline void vf_store(float *p, vf x, int64_t m, int stream)
{
    if (m < VF)
        _mm512_mask_storeu_ps(p, vm_first(m), x);
    else if (stream)
        _mm512_stream_ps(p, x);
    else
        _mm512_storeu_ps(p, x);
}

static inline vf vb_load(const ek_bf16 *p, int64_t m)
{
    __m256i h =
        m >= VF ? _mm256_loadu_si256((const void *)p) : _mm256_maskz_loadu_epi16(vm_first(m), p);

    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

/* Rounds as ek_bf16_from_float does: to nearest, ties to even, a NaN stays a NaN. */
static inline void vb_store(ek_bf16 *p, vf x, int64_t m, int stream)
{
    __m512i u = _mm512_castps_si512(x), top = _mm512_srli_epi32(u, 16);
    __m512i odd = _mm512_and_si512(top, _mm512_set1_epi32(1));
    __m512i r = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    __m256i h;

    r = _mm512_srli_epi32(r, 16);
    r = _mm512_mask_or_epi32(r, nan, top, _mm512_set1_epi32(0x40));
    h = _mm512_cvtepi32_epi16(r);
    if (m < VF)
        _mm256_mask_storeu_epi16(p, vm_first(m), h);
    else if (stream)
        _mm256_stream_si256((void *)p, h);
    else
        _mm256_storeu_si256((void *)p, h);
}

#if defined(__AVX512BF16__)
/* The same by the processor's instruction, which treats denormals as 0. */
static inline void vb_store_near(ek_bf16 *p, vf x, int64_t m, int stream)
{
    __m256i h = (__m256i)_mm512_cvtneps_pbh(x);

    if (m < VF)
        _mm256_mask_storeu_epi16(p, vm_first(m), h);
    else if (stream)
        _mm256_stream_si256((void *)p, h);
    else
        _mm256_storeu_si256((void *)p, h);
}
#endif

/* Orders non-temporal stores before later reads by other threads. */
static inline void vf_fence(void)
{
    _mm_sfence();
}

static inline vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}

/* If one side is a NaN, the result is b. */
static inline vf vf_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}

static inline vf vf_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}

static inline vf vf_sqrt(vf x)
{
    return _mm512_sqrt_ps(x);
}

/* 1 / x within 2 ulp, for finite x: a 14-bit estimate and one Newton step. */
static inline vf vf_recip_near(vf x)
{
    const vf r = _mm512_rcp14_ps(x);

    return _mm512_fmadd_ps(_mm512_fnmadd_ps(x, r, _mm512_set1_ps(1)), r, r);
}

/* x 2^n for whole n. */
static inline vf vf_scale2(vf x, vf n)
{
    return _mm512_scalef_ps(x, n);
}

static inline vm vf_less(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}

static inline vm vf_equal(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ);
}

static inline vm vm_and(vm a, vm b)
{
    return (vm)(a & b);
}

static inline vm vm_or(vm a, vm b)
{
    return (vm)(a | b);
}

/* yes where t, no elsewhere. */
static inline vf vf_select(vm t, vf yes, vf no)
{
    return _mm512_mask_blend_ps(t, no, yes);
}

/* 0, 1, 2, ... */
static inline vf vf_index(void)
{
    return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}

/* Sum of all lanes, always in the same order. */
static inline float vf_sum(vf x)
{
    return _mm512_reduce_add_ps(x);
}

/* Largest lane; x holds no NaN. */
static inline float vf_top(vf x)
{
    return _mm512_reduce_max_ps(x);
}

static inline vd vd_zero(void)
{
    return (vd){_mm512_setzero_pd(), _mm512_setzero_pd()};
}

static inline __m512d vf_low(vf x)
{
    return _mm512_cvtps_pd(_mm512_castps512_ps256(x));
}

static inline __m512d vf_high(vf x)
{
    return _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
}

static inline vd vd_add(vd s, vf x)
{
    return (vd){_mm512_add_pd(s.lo, vf_low(x)), _mm512_add_pd(s.hi, vf_high(x))};
}

static inline vd vd_add_square(vd s, vf x)
{
    __m512d lo = vf_low(x), hi = vf_high(x);

    return (vd){_mm512_fmadd_pd(lo, lo, s.lo), _mm512_fmadd_pd(hi, hi, s.hi)};
}

static inline double vd_sum(vd s)
{
    return _mm512_reduce_add_pd(_mm512_add_pd(s.lo, s.hi));
}

#endif
