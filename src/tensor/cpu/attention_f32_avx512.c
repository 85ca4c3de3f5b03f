/* tensor/cpu/attention_f32_avx512.c - attention on float storage by float FMAs, AVX-512. */
#include "tensor/cpu/attention.h"

#if defined(__x86_64__)

/* clang-format off */
#include "tensor/cpu/attention_simd_avx512.h"
#include "tensor/cpu/attention_comp_f32.h"
#include "tensor/cpu/attention_fma.h"
#include "tensor/cpu/attention_body.h"
#include "tensor/cpu/attention_backward_body.h"
#include "tensor/cpu/attention_cached_body.h"
/* clang-format on */

void ek_attention_fill_f32_avx512(ek_kernels *k)
{
    attention_fill(k);
}

#endif
