/* vec.h - vectors of floats for the instruction set that this file is compiled for, with the
 * exponential and logistic functions on them. */
#ifndef TENSOR_CPU_VEC_H
#define TENSOR_CPU_VEC_H

#if defined(__AVX512F__)
#include "tensor/cpu/vec_avx512.h"
#else
#include "tensor/cpu/vec_avx2.h"
#endif

/* exp within 2 ulp: x = n ln 2 + r with n the nearest whole number (adding and taking away
 * 1.5 * 2^23 rounds to it), exp(r) by the polynomial 1 + r + r^2 q(r) of least relative error
 * (2^-28) on |r| <= ln(2) / 2.  ln 2 is split so that n times its first part is exact.  -inf
 * gives 0, overflow inf, NaN gives NaN (vf_min and vf_max then return their second argument). */
static inline vf vf_exp(vf x)
{
    const vf log2e = vf_set(0x1.715476p+0f), big = vf_set(0x1.8p23f);
    const vf ln2_high = vf_set(0x1.62e4p-1f), ln2_low = vf_set(0x1.7f7d1cp-20f);
    vf n, r, p;

    x = vf_max(vf_set(-105.0f), vf_min(vf_set(89.0f), x));
    n = vf_fma(x, log2e, big) - big;
    r = vf_fma(n, -ln2_high, x);
    r = vf_fma(n, -ln2_low, r);
    p = vf_set(0.0013814539f);
    p = vf_fma(p, r, vf_set(0.008368745f));
    p = vf_fma(p, r, vf_set(0.04166839f));
    p = vf_fma(p, r, vf_set(0.16666521f));
    p = vf_fma(p, r, vf_set(0.49999994f));
    p = vf_fma(p, r, vf_set(1.0f));
    p = vf_fma(p, r, vf_set(1.0f));
    return vf_scale2(p, n);
}

/* 1 / (1 + exp(-x)). */
static inline vf vf_sigmoid(vf x)
{
    const vf one = vf_set(1.0f);

    return one / (one + vf_exp(-x));
}

/* The same within 2^-18, in fewer instructions, for results that are rounded to bf16:
 * exp(-x) = 2^(n - r) with n the nearest whole number and 2^-r by a polynomial of least relative
 * error on |r| <= 1/2.  Where the exponential
 * would overflow (x < -87) the result stays 2^-126 in place of 0. */
static inline vf vf_sigmoid_near(vf x)
{
    const vf log2e = vf_set(0x1.715476p+0f), big = vf_set(0x1.8p23f);
    vf n, r, p;

    x = vf_max(vf_set(-87.0f), vf_min(vf_set(87.0f), x));
    n = vf_fma(x, -log2e, big) - big;
    r = vf_fma(x, log2e, n);
    p = vf_set(0.0095701f);
    p = vf_fma(p, r, vf_set(-0.05591786f));
    p = vf_fma(p, r, vf_set(0.24024745f));
    p = vf_fma(p, r, vf_set(-0.69312181f));
    p = vf_fma(p, r, vf_set(0.99999926f));
    return vf_recip_near(vf_set(1.0f) + vf_scale2(p, n));
}

#endif
