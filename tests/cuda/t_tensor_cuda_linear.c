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
    CHECK(&emulated_multiplications == NULL || emulated_multiplications > 0);
}

static void matmul_real(void)
{
    ek_kernels k = {0};

    if (device() == NULL)
        SKIP("no CUDA device");
    fill_fp32(&k);
    matmul_checks(k.matmul_real);
    check_device();
}

static const ek_case cases[] = {EK_CASE(fp32), EK_CASE(bf16), EK_CASE(matmul_real)};
EK_TEST_MAIN(cases)
