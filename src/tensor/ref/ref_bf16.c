/* The reference kernels of mode bf16: bf16 values, arithmetic in float. */
#include "tensor/ref/ref.h"

#define R       float
#define C       ek_bf16
#define R_EXP   expf
#define R_LOG   logf
#define R_SQRT  sqrtf
#define TO_R(c) ek_bf16_to_float(c)
#define TO_C(r) ek_bf16_from_float(r)
#define R_TYPE  EK_F32
#define C_TYPE  EK_BF16
#define MODE    "bf16"
#define NAME(x) x##_bf16

#include "tensor/ref/body.h"
