/* The reference kernels of mode fp64: everything in double. */
#include "tensor/ref/ref.h"

#define R       double
#define C       double
#define R_EXP   exp
#define R_LOG   log
#define R_SQRT  sqrt
#define TO_R(c) (c)
#define TO_C(r) (r)
#define R_TYPE  EK_F64
#define C_TYPE  EK_F64
#define MODE    "fp64"
#define NAME(x) x##_fp64

#include "tensor/ref/body.h"
