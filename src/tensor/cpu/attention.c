/* tensor/cpu/attention.c - chooses the attention, rope and head norm kernels of a table. */
#include "tensor/cpu/attention.h"

#if defined(__x86_64__)

#include <cpuid.h>
#include <string.h>

/* AMD's cores (Zen 4 and 5) start a bf16 dot product as often as a float multiply-add, so it does
 * twice the work; Intel's start one every other cycle (they mean AMX to do this), where
 * multiply-adds on the converted blocks are twice as fast.  Chosen by maker, not by timing:
 * the choice changes bits, and the same machine has to give the same ones. */
static int dot_product_is_fast(void)
{
    unsigned int eax, name[3];

    return __get_cpuid(0, &eax, &name[0], &name[2], &name[1]) &&
           memcmp(name, "AuthenticAMD", sizeof(name)) == 0;
}

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
        if (isa == EK_ISA_AVX512_BF16 && dot_product_is_fast())
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
