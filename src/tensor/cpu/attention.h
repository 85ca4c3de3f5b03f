/* tensor/cpu/attention.h - fast attention, rotary positions and head norms for x86 CPUs.
 *
 * Causal attention in blocks with an online softmax (Dao et al., FlashAttention, 2022): no
 * seq x seq matrix exists in memory.  One body (attention_body.h and what it names) is compiled for
 * AVX2, for AVX-512 and for AVX-512 with bf16 dot products; rope_body.h likewise. */
#ifndef TENSOR_CPU_ATTENTION_H
#define TENSOR_CPU_ATTENTION_H

#include "tensor/kernels.h"

/* Overwrites the entries attention_*, rope and headnorm_* of a table of `mode` with the best that
 * `isa` allows.  fp64 and EK_ISA_REF leave the table unchanged.  bf16 dot products are used at
 * EK_ISA_AVX512_BF16. */
void ek_cpu_attention_fill(ek_kernels *k, ek_mode mode, ek_isa isa);

/* One per compiled body, called only by ek_cpu_attention_fill. */
void ek_attention_fill_f32_avx2(ek_kernels *k);
void ek_attention_fill_f32_avx512(ek_kernels *k);
void ek_attention_fill_bf16_avx2(ek_kernels *k);
void ek_attention_fill_bf16_avx512(ek_kernels *k);
void ek_attention_fill_dot_avx512(ek_kernels *k);
void ek_rope_fill_f32_avx2(ek_kernels *k);
void ek_rope_fill_f32_avx512(ek_kernels *k);
void ek_rope_fill_bf16_avx2(ek_kernels *k);
void ek_rope_fill_bf16_avx512(ek_kernels *k);

#endif
