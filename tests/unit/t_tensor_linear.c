/* The CPU's matrix products, for every ek_linear_ops that this CPU can run. */
#include "tensor/cpu/cpu.h"
#include "tensor/cpu/linear.h"
#include "tensor/ref/ref.h"
#include "tensor/select/select.h"
#include "unit/linear_subjects.h"

static void *alloc_array(size_t bytes)
{
    return aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
}

static void free_array(void *p)
{
    free(p);
}

/* Nothing to change: the number of threads is part of a table. */
static void begin_repetition(int repetition)
{
    (void)repetition;
}

static void fill_fp32_avx2(ek_kernels *k)
{
    ek_linear_fill(k, ek_linear_avx2(EK_MODE_FP32));
}

static void fill_bf16_avx2(ek_kernels *k)
{
    ek_linear_fill(k, ek_linear_avx2(EK_MODE_BF16));
}

static void fill_fp32_avx512(ek_kernels *k)
{
    ek_linear_fill(k, ek_linear_avx512(EK_MODE_FP32));
}

static void fill_bf16_avx512(ek_kernels *k)
{
    ek_linear_fill(k, ek_linear_avx512(EK_MODE_BF16));
}

static void fill_bf16_avx512_bf16(ek_kernels *k)
{
    ek_linear_fill(k, ek_linear_avx512_bf16());
}

static void fp32_avx2(void)
{
    if (ek_cpu_isa() < EK_ISA_AVX2)
        SKIP("no AVX2");
    products_check(fill_fp32_avx2, EK_MODE_FP32);
}

static void bf16_avx2(void)
{
    if (ek_cpu_isa() < EK_ISA_AVX2)
        SKIP("no AVX2");
    products_check(fill_bf16_avx2, EK_MODE_BF16);
}

static void fp32_avx512(void)
{
    if (ek_cpu_isa() < EK_ISA_AVX512)
        SKIP("no AVX-512");
    products_check(fill_fp32_avx512, EK_MODE_FP32);
}

static void bf16_avx512(void)
{
    if (ek_cpu_isa() < EK_ISA_AVX512)
        SKIP("no AVX-512");
    products_check(fill_bf16_avx512, EK_MODE_BF16);
}

static void bf16_avx512_bf16(void)
{
    if (ek_cpu_isa() < EK_ISA_AVX512_SLOW_BF16)
        SKIP("no bf16 dot products");
    products_check(fill_bf16_avx512_bf16, EK_MODE_BF16);
}

/* The table's forward and backward against the reference table of the same mode. */
static void tables_agree(void)
{
    static const int64_t rows[] = {9, 0, 30};
    static const ek_mode modes[] = {EK_MODE_FP32, EK_MODE_BF16};

    for (int i = 0; i < 2; i++) {
        ek_kernels ref, cpu;
        float *want, *got;
        call a, b;

        memset(&ref, 0, sizeof(ref));
        ek_kernels_ref(&ref, modes[i]);
        ref.threads = 1;
        cpu = ref;
        CHECK_INT(ek_kernels_cpu(&cpu, modes[i], ek_cpu_isa()), EK_OK);
        call_init(&a, &ref, modes[i], 50, 35, rows, 3);
        call_init(&b, &cpu, modes[i], 50, 35, rows, 3);
        for (int f = 0; f < FORMS; f++) {
            want = product_run(&a, &ref, (ek_form)f, EK_OUT_REAL);
            got = product_run(&b, &cpu, (ek_form)f, EK_OUT_REAL);
            CHECK_NMSE(got, want, (size_t)(a.rows * stride_of(f == 0 ? 50 : 35)), 1e-11);
            free_array(want);
            free_array(got);
        }
        want = weight_run(&a, &ref);
        got = weight_run(&b, &cpu);
        CHECK_NMSE(got, want, (size_t)3 * 50 * 35, 1e-11);
        free_array(want);
        free_array(got);
        call_fini(&a);
        call_fini(&b);
        ek_kernels_cpu_fini(&cpu);
    }
}

static void matmul_real(void)
{
    if (ek_cpu_isa() < EK_ISA_AVX2)
        SKIP("no AVX2");
    matmul_checks(ek_matmul_real_avx2);
    if (ek_cpu_isa() >= EK_ISA_AVX512)
        matmul_checks(ek_matmul_real_avx512);
}

static const ek_case cases[] = {
    EK_CASE(fp32_avx2),        EK_CASE(bf16_avx2),    EK_CASE(fp32_avx512), EK_CASE(bf16_avx512),
    EK_CASE(bf16_avx512_bf16), EK_CASE(tables_agree), EK_CASE(matmul_real),
};

EK_TEST_MAIN(cases)
