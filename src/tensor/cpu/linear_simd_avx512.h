/* tensor/cpu/linear_simd_avx512.h - helpers of the AVX-512 products and packing. */
#ifndef TENSOR_CPU_LINEAR_SIMD_AVX512_H
#define TENSOR_CPU_LINEAR_SIMD_AVX512_H

#include "tensor/cpu/linear.h"

#include <immintrin.h>

#define EK_INLINE static inline __attribute__((always_inline))

EK_INLINE __mmask16 ek_mask16(int64_t n)
{
    return (__mmask16)(n >= 16 ? 0xffffu : n <= 0 ? 0u : (1u << n) - 1u);
}

EK_INLINE __mmask32 ek_mask32(int64_t n)
{
    return n >= 32 ? ~(__mmask32)0 : n <= 0 ? 0 : ((__mmask32)1 << n) - 1;
}

/* As ek_bf16_from_float: to nearest, ties to even, NaN stays NaN. */
EK_INLINE __m256i ek_round_bf16(__m512 v)
{
    __m512i u = _mm512_castps_si512(v), one = _mm512_set1_epi32(1);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), one);
    __m512i r = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
    __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);

    r = _mm512_mask_or_epi32(r, nan, u, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(r, 16));
}

/* The first and the second bf16 of each pair, as floats. */
EK_INLINE __m512 ek_pair_first(__m512i pairs)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
}

EK_INLINE __m512 ek_pair_second(__m512i pairs)
{
    return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000u)));
}

/* 16 pairs of bf16 of a row from element k on, `left` elements of it existing; zero beyond. */
EK_INLINE __m512i ek_load_pairs(const void *row, int64_t k, int64_t left)
{
    return _mm512_maskz_loadu_epi16(ek_mask32(left), (const ek_bf16 *)row + k);
}

/* Transposes 16 x 16 words in registers. */
EK_INLINE void ek_transpose16(__m512i r[16])
{
    __m512i t[16];

#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
        r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
    }
}

#endif
