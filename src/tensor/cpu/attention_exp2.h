/* tensor/cpu/attention_exp2.h - coefficients of 2^r on [0, 1), for attention_simd_*.h.
 *
 * 2^r = 1 + Exp2_1 r + .. + Exp2_5 r^5, minimax in the relative error (8e-8; 1.8e-7 with
 * rounding), with the constant 1 so that 2^0 is exact. */
#ifndef TENSOR_CPU_ATTENTION_EXP2_H
#define TENSOR_CPU_ATTENTION_EXP2_H

static const float Exp2_1 = 0.6931512951850891f, Exp2_2 = 0.24016444385051727f,
                   Exp2_3 = 0.05579991266131401f, Exp2_4 = 0.009017030708491802f,
                   Exp2_5 = 0.0018671300495043397f;

#endif
