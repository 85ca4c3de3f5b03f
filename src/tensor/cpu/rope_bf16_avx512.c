/* tensor/cpu/rope_bf16_avx512.c - rotary positions and head norms on bf16 storage, AVX-512. */
#include "tensor/cpu/attention.h"

#if defined(__x86_64__)

/* clang-format off */
#include "tensor/cpu/attention_simd_avx512.h"
#include "tensor/cpu/attention_comp_bf16.h"
#include "tensor/cpu/rope_body.h"
/* clang-format on */

void ek_rope_fill_bf16_avx512(ek_kernels *k)
{
    rope_fill(k);
}

#endif
