/* The reference kernels of mode fp32: everything in float. */
#include "tensor/ref/ref.h"

#define R       float
#define C       float
#define R_EXP   expf
#define R_LOG   logf
#define R_SQRT  sqrtf
#define TO_R(c) (c)
#define TO_C(r) (r)
#define R_TYPE  EK_F32
#define C_TYPE  EK_F32
#define MODE    "fp32"
#define NAME(x) x##_fp32

#include "tensor/ref/body.h"
