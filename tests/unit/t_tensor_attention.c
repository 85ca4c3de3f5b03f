/* Attention, rope and head norms of each instruction set of this CPU, on one and two threads. */
#include "tensor/cpu/attention.h"
#include "tensor/select/select.h"
#include "unit/attention_subjects.h"

#include <omp.h>

#if defined(__x86_64__)
static const body bodies[] = {
    {"f32 avx2", EK_MODE_FP32, EK_ISA_AVX2, ek_attention_fill_f32_avx2, ek_rope_fill_f32_avx2},
    {"f32 avx512", EK_MODE_FP32, EK_ISA_AVX512, ek_attention_fill_f32_avx512,
     ek_rope_fill_f32_avx512},
    {"bf16 avx2", EK_MODE_BF16, EK_ISA_AVX2, ek_attention_fill_bf16_avx2, ek_rope_fill_bf16_avx2},
    {"bf16 avx512", EK_MODE_BF16, EK_ISA_AVX512, ek_attention_fill_bf16_avx512,
     ek_rope_fill_bf16_avx512},
    {"bf16 dot avx512", EK_MODE_BF16, EK_ISA_AVX512_SLOW_BF16, ek_attention_fill_dot_avx512,
     ek_rope_fill_bf16_avx512},
};
enum { N_BODIES = sizeof(bodies) / sizeof(bodies[0]) };
#else
static const body bodies[1];
enum { N_BODIES = 0 };
#endif

static const body *body_at(int i)
{
    return i < N_BODIES && ek_cpu_isa() >= bodies[i].isa ? &bodies[i] : NULL;
}

static void *alloc_array(size_t bytes)
{
    return aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
}

static void free_array(void *p)
{
    free(p);
}

static void begin_repetition(int threads)
{
    omp_set_num_threads(threads);
}

/* With sanitizers a part of the shapes; the other build has them all. */
static int slow(void)
{
    return EK_T_SLOW;
}

/* --- the choice ------------------------------------------------------------------------------- */

static void fill_chooses_by_mode_and_isa(void)
{
    ek_kernels exact = reference(EK_MODE_FP64, 1), k = exact;

    ek_cpu_attention_fill(&k, EK_MODE_FP64, ek_cpu_isa());
    CHECK(memcmp(&k, &exact, sizeof(k)) == 0);
    exact = reference(EK_MODE_BF16, 1);
    k = exact;
    ek_cpu_attention_fill(&k, EK_MODE_BF16, EK_ISA_REF);
    CHECK(memcmp(&k, &exact, sizeof(k)) == 0);
    if (body_at(0) == NULL)
        return;
    for (int mode = EK_MODE_FP32; mode <= EK_MODE_BF16; mode++) {
        k = reference((ek_mode)mode, 1);
        ek_cpu_attention_fill(&k, (ek_mode)mode, EK_ISA_AVX2);
        for (int i = 0; i < N_BODIES; i++) {
            ek_kernels want;

            if (bodies[i].isa != EK_ISA_AVX2 || (int)bodies[i].mode != mode)
                continue;
            want = fast(&bodies[i], 1);
            CHECK(k.attention_forward == want.attention_forward);
            CHECK(k.attention_backward == want.attention_backward);
            CHECK(k.attention_cached == want.attention_cached);
            CHECK(k.attention_workspace == want.attention_workspace);
            CHECK(k.rope == want.rope && k.headnorm_forward == want.headnorm_forward);
            CHECK(k.headnorm_backward == want.headnorm_backward);
        }
    }
}

static const ek_case cases[] = {ATTENTION_CASES, EK_CASE(fill_chooses_by_mode_and_isa)};

EK_TEST_MAIN(cases)
