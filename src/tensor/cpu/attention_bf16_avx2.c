/* tensor/cpu/attention_bf16_avx2.c - attention on bf16 storage by float multiply-adds, AVX2. */
#include "tensor/cpu/attention.h"

#if defined(__x86_64__)

/* clang-format off */
#include "tensor/cpu/attention_simd_avx2.h"
#include "tensor/cpu/attention_comp_bf16.h"
#include "tensor/cpu/attention_fma.h"
#include "tensor/cpu/attention_body.h"
#include "tensor/cpu/attention_backward_body.h"
#include "tensor/cpu/attention_cached_body.h"
/* clang-format on */

void ek_attention_fill_bf16_avx2(ek_kernels *k)
{
    attention_fill(k);
}

#endif
