/* The reference table of a mode. */
#include "tensor/ref/ref.h"

void ek_kernels_ref(ek_kernels *k, ek_mode mode)
{
    switch (mode) {
    case EK_MODE_FP64: ek_kernels_ref_fp64(k); break;
    case EK_MODE_FP32: ek_kernels_ref_fp32(k); break;
    case EK_MODE_BF16: ek_kernels_ref_bf16(k); break;
    }
}
