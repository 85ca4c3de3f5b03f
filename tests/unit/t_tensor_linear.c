/* The CPU's matrix products, for every ek_linear_ops that this CPU can run. */
#include "tensor/cpu/cpu.h"
#include "tensor/cpu/linear.h"
#include "tensor/ref/ref.h"
#include "tensor/select/select.h"
#include "unit/linear_subjects.h"

#include <sys/wait.h>
#include <unistd.h>

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

static void fill_bf16_dnnl(ek_kernels *k)
{
    ek_linear_fill(k, ek_linear_dnnl());
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

/* What CPUs with matrix units use, on any that oneDNN has bf16 products for. */
static void bf16_dnnl(void)
{
    if (ek_cpu_isa() < EK_ISA_AVX512_SLOW_BF16)
        SKIP("no bf16 dot products");
    products_check(fill_bf16_dnnl, EK_MODE_BF16);
}

/* Where oneDNN has no bf16 products, plain loops compute them: in a process that forbids them to it
 * before anything asks for them. */
static void bf16_dnnl_without_instructions(void)
{
    pid_t child = fork();
    int status = 1;

    if (child == 0) {
        setenv("DNNL_MAX_CPU_ISA", "AVX512_CORE", 1);
        bf16_dnnl();
        _exit(ek_t.failed > 0 ? 1 : ek_t.skipped > 0 ? 77 : 0);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        SKIP("no bf16 dot products");
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* A row is the same, bit for bit, whatever the number of rows in the call. */
static void rows_alone(fill_fn *fill, ek_form form)
{
    enum { OUT = 130, IN = 75, MOST = 66 };
    int64_t cols = form == EK_PACKED_FORWARD ? OUT : IN, ld = stride_of(cols), most = MOST;
    ek_kernels k;
    float *want;
    call all;

    memset(&k, 0, sizeof(k));
    ek_kernels_ref(&k, EK_MODE_BF16);
    k.threads = 1;
    fill(&k);
    call_init(&all, &k, EK_MODE_BF16, OUT, IN, &most, 1);
    want = product_run(&all, &k, form, EK_OUT_REAL);
    for (int64_t n = 1; n < MOST; n++) {
        float *got;
        call some;

        call_init(&some, &k, EK_MODE_BF16, OUT, IN, &n, 1);
        got = product_run(&some, &k, form, EK_OUT_REAL);
        for (int64_t r = 0; r < n; r++)
            if (memcmp(got + (some.g[0].row + r) * ld, want + (all.g[0].row + r) * ld,
                       (size_t)cols * sizeof(float)) != 0)
                EK_T_FAIL("row %lld of %lld differs", (long long)r, (long long)n);
        free_array(got);
        call_fini(&some);
    }
    free_array(want);
    call_fini(&all);
}

static void rows_do_not_depend_on_others(void)
{
    if (ek_cpu_isa() < EK_ISA_AVX512_SLOW_BF16)
        SKIP("no bf16 dot products");
    for (int form = 0; form < FORMS; form++) {
        rows_alone(fill_bf16_avx512_bf16, (ek_form)form);
        rows_alone(fill_bf16_dnnl, (ek_form)form);
    }
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

static void repack_as_packed(fill_fn *fill, ek_mode mode, int64_t out, int64_t in)
{
    const int64_t rows = 1;
    size_t bytes;
    ek_kernels k;
    void *made;
    call c;

    memset(&k, 0, sizeof(k));
    ek_kernels_ref(&k, mode);
    k.threads = 2;
    fill(&k);
    bytes = k.packed_bytes(&k, out, in, EK_PACKED_BACKWARD);
    made = alloc_checked(bytes);
    call_init(&c, &k, mode, out, in, &rows, 1);
    CHECK_INT(k.repack(&k, out, in, c.packed[0][EK_PACKED_FORWARD], made), EK_OK);
    if (memcmp(made, c.packed[0][EK_PACKED_BACKWARD], bytes) != 0)
        EK_T_FAIL("%s: %lld x %lld", k.products, (long long)out, (long long)in);
    free_array(made);
    call_fini(&c);
}

static void repack_each(fill_fn *fill, ek_mode mode)
{
    static const int64_t sizes[][2] = {{1, 1},   {32, 32}, {33, 65}, {50, 35},
                                       {64, 96}, {7, 130}, {130, 7}, {63, 31}};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        repack_as_packed(fill, mode, sizes[i][0], sizes[i][1]);
}

/* Of every subject: the form for backward from that for forward, as from the master. */
static void forms_from_each_other(void)
{
    if (ek_cpu_isa() < EK_ISA_AVX2)
        SKIP("no AVX2");
    repack_each(fill_fp32_avx2, EK_MODE_FP32);
    repack_each(fill_bf16_avx2, EK_MODE_BF16);
    if (ek_cpu_isa() >= EK_ISA_AVX512) {
        repack_each(fill_fp32_avx512, EK_MODE_FP32);
        repack_each(fill_bf16_avx512, EK_MODE_BF16);
    }
    if (ek_cpu_isa() >= EK_ISA_AVX512_SLOW_BF16) {
        repack_each(fill_bf16_avx512_bf16, EK_MODE_BF16);
        repack_each(fill_bf16_dnnl, EK_MODE_BF16);
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
    EK_CASE(bf16_dnnl_without_instructions), /* first: see there */
    EK_CASE(fp32_avx2),
    EK_CASE(bf16_avx2),
    EK_CASE(fp32_avx512),
    EK_CASE(bf16_avx512),
    EK_CASE(bf16_avx512_bf16),
    EK_CASE(bf16_dnnl),
    EK_CASE(tables_agree),
    EK_CASE(forms_from_each_other),
    EK_CASE(matmul_real),
    EK_CASE(rows_do_not_depend_on_others),
};

EK_TEST_MAIN(cases)
