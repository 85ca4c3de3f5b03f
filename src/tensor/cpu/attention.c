/* tensor/cpu/attention.c - chooses the attention, rope and head norm kernels of a table. */
#include "tensor/cpu/attention.h"

#if defined(__x86_64__)

void ek_cpu_attention_fill(ek_kernels *k, ek_mode mode, ek_isa isa)
{
    if (mode == EK_MODE_FP64 || isa < EK_ISA_AVX2)
        return;
    if (mode == EK_MODE_FP32 && isa == EK_ISA_AVX2) {
        ek_attention_fill_f32_avx2(k);
        ek_rope_fill_f32_avx2(k);
    } else if (mode == EK_MODE_FP32) {
        ek_attention_fill_f32_avx512(k);
        ek_rope_fill_f32_avx512(k);
    } else if (isa == EK_ISA_AVX2) {
        ek_attention_fill_bf16_avx2(k);
        ek_rope_fill_bf16_avx2(k);
    } else {
        if (isa >= EK_ISA_AVX512_BF16)
            ek_attention_fill_dot_avx512(k);
        else
            ek_attention_fill_bf16_avx512(k);
        ek_rope_fill_bf16_avx512(k);
    }
}

#else

void ek_cpu_attention_fill(ek_kernels *k, ek_mode mode, ek_isa isa)
{
    (void)k;
    (void)mode;
    (void)isa;
}

#endif
