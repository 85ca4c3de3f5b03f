/* Attention, rope and head norms of tensor/cuda. */
#include "cuda/device.h"
#include "cuda/emulated.h"
#include "tensor/cuda/fill.h"
#include "tensor/ref/ref.h"
#include "unit/attention_subjects.h"

static void fill_fp32(ek_kernels *k)
{
    ek_cuda_fill_attention(k, EK_MODE_FP32);
    ek_cuda_fill_norm(k, EK_MODE_FP32);
}

static void fill_bf16(ek_kernels *k)
{
    ek_cuda_fill_attention(k, EK_MODE_BF16);
    ek_cuda_fill_norm(k, EK_MODE_BF16);
}

static const body bodies[] = {{"cuda fp32", EK_MODE_FP32, EK_ISA_REF, fill_fp32, fill_fp32},
                              {"cuda bf16", EK_MODE_BF16, EK_ISA_REF, fill_bf16, fill_bf16}};

static const body *body_at(int i)
{
    check_device();
    return i < 2 && device() != NULL ? &bodies[i] : NULL;
}

static int slow(void)
{
    return &emulated_backwards != NULL;
}

/* Without tensor cores, a NaN in a value does not affect gradients of queries that do not see it.
 * (On tensor cores it is multiplied with a weight of 0.) */
static void nan_of_the_future(void)
{
    ek_attention a = shape(1, 70, 1, 1, 16, 0);
    float *qkv = numbers(5, 70 * 48, 1), *d_o = numbers(6, 70 * 16, 1);

    if (body_at(0) == NULL)
        SKIP("no CUDA device");
    qkv[50 * 48 + 32 + 3] = NAN;
    for (int i = 0; body_at(i) != NULL && bodies[i].mode == EK_MODE_FP32; i++) {
        ek_kernels k = fast(body_at(i), 1);
        results r = attend(&k, body_at(i)->mode, &a, qkv, d_o);

        for (int64_t t = 0; t < 70; t++) {
            CHECK(isnan(r.o[t * 16 + 3]) == (t >= 50));
            CHECK(isnan(r.grad[t * 48]) == (t >= 50));
        }
        results_free(&r);
    }
    free_array(qkv);
    free_array(d_o);
}

/* More shapes, all of which run on tensor cores. */
static void wide_heads_on_tensor_cores(void)
{
    static const struct {
        int batch, seq, heads, kv, dim, more;
    } shapes[] = {{2, 131, 3, 1, 128, 8}, {1, 97, 4, 2, 80, 16}, {2, 65, 2, 2, 72, 0},
                  {1, 33, 1, 1, 120, 24}, {2, 67, 2, 1, 64, 40}, {3, 1, 2, 1, 96, 8}};

    if (body_at(0) == NULL)
        SKIP("no CUDA device");
    begin_repetition(1);
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        int64_t before = &emulated_multiplications == NULL ? -1 : emulated_multiplications;
        ek_attention a = shape(shapes[i].batch, shapes[i].seq, shapes[i].heads, shapes[i].kv,
                               shapes[i].dim, shapes[i].more);

        match(&a, 1, tol_fp32, tol_bf16);
        CHECK(&emulated_multiplications == NULL || emulated_multiplications > before);
    }
}

static void cached_on_tensor_cores(void)
{
    static const struct {
        int m, pos0, heads, kv, dim, more;
    } shapes[] = {{16, 0, 2, 1, 64, 8},   {17, 5, 3, 1, 128, 0},   {40, 63, 4, 2, 80, 16},
                  {100, 64, 2, 2, 64, 0}, {65, 300, 2, 1, 128, 8}, {64, 1, 1, 1, 8, 0}};

    if (body_at(0) == NULL)
        SKIP("no CUDA device");
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        int64_t before = &emulated_multiplications == NULL ? -1 : emulated_multiplications;
        ek_attention a = shape(1, 1, shapes[i].heads, shapes[i].kv, shapes[i].dim, shapes[i].more);

        match_cached(&a, shapes[i].m, shapes[i].pos0, false);
        match_cached(&a, shapes[i].m, shapes[i].pos0, true);
        CHECK(&emulated_multiplications == NULL || emulated_multiplications > before);
    }
}

/* Some of the cases above must have used tensor cores. */
static void on_tensor_cores(void)
{
    if (&emulated_multiplications == NULL)
        SKIP("they are not counted on a device");
    CHECK(emulated_multiplications > 0);
}

static const ek_case cases[] = {ATTENTION_CASES, EK_CASE(nan_of_the_future),
                                EK_CASE(wide_heads_on_tensor_cores),
                                EK_CASE(cached_on_tensor_cores), EK_CASE(on_tensor_cores)};
EK_TEST_MAIN(cases)
