/* tensor/ref/ref.h - the three instantiations of the reference kernels. */
#ifndef TENSOR_REF_REF_H
#define TENSOR_REF_REF_H

#include "tensor/kernels.h"

/* Each sets every entry of `k` except `threads`. */
void ek_kernels_ref_fp64(ek_kernels *k);
void ek_kernels_ref_fp32(ek_kernels *k);
void ek_kernels_ref_bf16(ek_kernels *k);

#endif
