/* tests/cuda/emulated/cuda_bf16.h - conversions of bf16, see cuda_runtime.h. */
#ifndef EMULATED_CUDA_BF16_H
#define EMULATED_CUDA_BF16_H

#include "tensor/dtype.h"

struct __nv_bfloat16 {
    ek_bf16 bits;
};

static inline __nv_bfloat16 __ushort_as_bfloat16(ek_bf16 x)
{
    return {x};
}

static inline ek_bf16 __bfloat16_as_ushort(__nv_bfloat16 x)
{
    return x.bits;
}

static inline float __bfloat162float(__nv_bfloat16 x)
{
    return ek_bf16_to_float(x.bits);
}

static inline __nv_bfloat16 __float2bfloat16_rn(float x)
{
    return {ek_bf16_from_float(x)};
}

#endif
