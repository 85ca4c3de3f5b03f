/* tensor/cuda/fill.h - functions that fill a table with the kernels of one file, by mode. */
#ifndef TENSOR_CUDA_FILL_H
#define TENSOR_CUDA_FILL_H

#include "tensor/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Each sets the entries of its file for a mode; defined by EK_CUDA_FILL. */
void ek_cuda_fill_rows(ek_kernels *k, ek_mode mode);
void ek_cuda_fill_choice(ek_kernels *k, ek_mode mode);
void ek_cuda_fill_norm(ek_kernels *k, ek_mode mode);
void ek_cuda_fill_expert(ek_kernels *k, ek_mode mode);
void ek_cuda_fill_loss(ek_kernels *k, ek_mode mode);
void ek_cuda_fill_attention(ek_kernels *k, ek_mode mode);
void ek_cuda_fill_matmul(ek_kernels *k, ek_mode mode);

#ifdef __cplusplus
}

/* Defines such a function from the template fill<R, C>. */
#define EK_CUDA_FILL(name, fill)                                                                   \
    extern "C" void name(ek_kernels *k, ek_mode mode)                                              \
    {                                                                                              \
        switch (mode) {                                                                            \
        case EK_MODE_FP64: fill<double, double>(k); break;                                         \
        case EK_MODE_FP32: fill<float, float>(k); break;                                           \
        case EK_MODE_BF16: fill<float, ek_bf16>(k); break;                                         \
        }                                                                                          \
    }
#endif

#endif
