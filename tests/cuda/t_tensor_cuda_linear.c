/* The matrix products of tensor/cuda: plain, and of bf16 on tensor cores. */
#include "cuda/device.h"
#include "cuda/emulated.h"
#include "tensor/cuda/fill.h"
#include "tensor/ref/ref.h"
#include "unit/linear_subjects.h"

static void fill_fp32(ek_kernels *k)
{
    ek_cuda_fill_rows(k, EK_MODE_FP32);
    ek_cuda_fill_matmul(k, EK_MODE_FP32);
}

static void fill_bf16(ek_kernels *k)
{
    ek_cuda_fill_rows(k, EK_MODE_BF16);
    ek_cuda_fill_matmul(k, EK_MODE_BF16);
}

static void fp32(void)
{
    if (device() == NULL)
        SKIP("no CUDA device");
    products_check(fill_fp32, EK_MODE_FP32);
    check_device();
}

static void bf16(void)
{
    if (device() == NULL)
        SKIP("no CUDA device");
    products_check(fill_bf16, EK_MODE_BF16);
    check_device();
}

/* On an emulated device of this compute capability and size; says whether there is one. */
static int open_emulated(int capability, int multiprocessors)
{
    if (&emulated_capability == NULL)
        return 0;
    (void)device();
    ek_kernels_destroy(&opened);
    emulated_capability = capability;
    emulated_multiprocessors = multiprocessors;
    return ek_kernels_open("cuda", 0, EK_MODE_FP32, EK_ISA_REF, 1, &opened) == EK_OK;
}

static void clear_counts(void)
{
    emulated_multiplications = emulated_warpgroup_products[0] = emulated_warpgroup_products[1] = 0;
}

static void bf16_by_warps(void)
{
    if (!open_emulated(8, 1))
        SKIP("the device decides which kernel it is");
    clear_counts();
    bf16();
    CHECK(emulated_multiplications > 0 && emulated_warpgroup_products[0] == 0 &&
          emulated_warpgroup_products[1] == 0);
}

/* In wide tiles, and in narrow ones where these would leave multiprocessors idle. */
static void bf16_by_warpgroups(void)
{
    for (int narrow = 0; narrow < 2; narrow++) {
        if (!open_emulated(9, narrow ? 1000 : 1))
            SKIP("the device decides which kernel it is");
        clear_counts();
        bf16();
        CHECK(emulated_multiplications == 0 && emulated_warpgroup_products[!narrow] > 0 &&
              emulated_warpgroup_products[narrow] == 0);
    }
}

static void matmul_real(void)
{
    ek_kernels k = {0};

    if (device() == NULL)
        SKIP("no CUDA device");
    fill_fp32(&k);
    for (int repetition = 1; repetition <= 2; repetition++) {
        begin_repetition(repetition);
        matmul_checks(k.matmul_real);
    }
    begin_repetition(1);
    check_device();
}

static const ek_case cases[] = {EK_CASE(fp32), EK_CASE(bf16), EK_CASE(bf16_by_warps),
                                EK_CASE(bf16_by_warpgroups), EK_CASE(matmul_real)};
EK_TEST_MAIN(cases)
