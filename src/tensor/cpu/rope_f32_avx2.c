/* tensor/cpu/rope_f32_avx2.c - rotary positions and head norms on float storage, AVX2. */
#include "tensor/cpu/attention.h"

#if defined(__x86_64__)

/* clang-format off */
#include "tensor/cpu/attention_simd_avx2.h"
#include "tensor/cpu/attention_comp_f32.h"
#include "tensor/cpu/rope_body.h"
/* clang-format on */

void ek_rope_fill_f32_avx2(ek_kernels *k)
{
    rope_fill(k);
}

#endif
