/* tensor/ref/ref.h - the reference kernels, and their three instantiations. */
#ifndef TENSOR_REF_REF_H
#define TENSOR_REF_REF_H

#include "tensor/kernels.h"

/* Fills a table with the reference kernels of a mode. */
void ek_kernels_ref(ek_kernels *k, ek_mode mode);

/* Each sets every entry of `k` except `threads`. */
void ek_kernels_ref_fp64(ek_kernels *k);
void ek_kernels_ref_fp32(ek_kernels *k);
void ek_kernels_ref_bf16(ek_kernels *k);

#endif
