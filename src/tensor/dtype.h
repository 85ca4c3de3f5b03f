/* tensor/dtype.h - element types, and conversions between bf16 and float. */
#ifndef TENSOR_DTYPE_H
#define TENSOR_DTYPE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef enum { EK_F64, EK_F32, EK_BF16, EK_F16 } ek_dtype;

typedef uint16_t ek_bf16; /* the upper 16 bits of a float */

/* Bytes of an element. */
static inline size_t ek_dtype_size(ek_dtype t)
{
    return t == EK_F64 ? 8 : t == EK_F32 ? 4 : 2;
}

/* Exact. */
static inline float ek_bf16_to_float(ek_bf16 b)
{
    uint32_t u = (uint32_t)b << 16;
    float f;

    memcpy(&f, &u, sizeof(f));
    return f;
}

/* Round to nearest, ties to even; a NaN stays a NaN. */
static inline ek_bf16 ek_bf16_from_float(float f)
{
    uint32_t u;

    memcpy(&u, &f, sizeof(u));
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (ek_bf16)(u >> 16 | 0x40u);
    return (ek_bf16)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

#endif
