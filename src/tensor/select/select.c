/* Creates kernel tables: reference kernels first, then the faster ones of the CPU or device. */
#include "tensor/select/select.h"

#include "base/threads.h"
#include "tensor/accelerator.h"
#include "tensor/cpu/cpu.h"
#include "tensor/ref/ref.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

static const char *const Name[][EK_ISA_AMX_BF16 + 1] = {
    [EK_MODE_FP32] = {[EK_ISA_AVX2] = "cpu fp32 avx2",
                      [EK_ISA_AVX512] = "cpu fp32 avx512",
                      [EK_ISA_AVX512_SLOW_BF16] = "cpu fp32 avx512",
                      [EK_ISA_AVX512_BF16] = "cpu fp32 avx512",
                      [EK_ISA_AMX_BF16] = "cpu fp32 avx512"},
    [EK_MODE_BF16] = {[EK_ISA_AVX2] = "cpu bf16 avx2",
                      [EK_ISA_AVX512] = "cpu bf16 avx512",
                      [EK_ISA_AVX512_SLOW_BF16] = "cpu bf16 avx512_bf16",
                      [EK_ISA_AVX512_BF16] = "cpu bf16 avx512_bf16",
                      [EK_ISA_AMX_BF16] = "cpu bf16 amx_bf16"},
};

static int is_cpu(const char *device)
{
    return device == NULL || strcmp(device, "cpu") == 0;
}

ek_isa ek_cpu_isa(void)
{
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return EK_ISA_REF;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq"))
        return EK_ISA_AVX2;
    if (!__builtin_cpu_supports("avx512bf16"))
        return EK_ISA_AVX512;
    if (ek_cpu_matrix_units_pay())
        return EK_ISA_AMX_BF16;
    return ek_cpu_dots_pay() ? EK_ISA_AVX512_BF16 : EK_ISA_AVX512_SLOW_BF16;
#else
    return EK_ISA_REF;
#endif
}

/* The stack of OpenMP threads is set by the system or OMP_STACKSIZE.  The calling thread may have
 * used a quarter of EK_STACK_BYTES already. */
static ek_status check_stacks(const ek_kernels *k)
{
    size_t least = SIZE_MAX;

#pragma omp parallel num_threads(k->threads) reduction(min : least)
    least = ek_stack_left();
    EK_REQUIRE(
        least >= EK_STACK_BYTES / 4 * 3, EK_ENOMEM,
        "a compute thread has %zu KiB of stack, but %d KiB are needed: raise the limit (ulimit "
        "-s) or OMP_STACKSIZE",
        least >> 10, EK_STACK_BYTES >> 10);
    return EK_OK;
}

/* A table of reference kernels. */
static ek_status create_reference(ek_mode mode, int threads, ek_kernels **out)
{
    ek_kernels *k = NULL;
    ek_status st;

    *out = NULL;
    EK_REQUIRE(threads > 0, EK_EINVAL, "kernels need at least 1 thread, not %d", threads);
    k = calloc(1, sizeof(*k));
    EK_REQUIRE(k != NULL, EK_ENOMEM, "cannot allocate %zu bytes for the kernel table", sizeof(*k));
    k->threads = threads;
    ek_kernels_enter(k);
    ek_kernels_ref(k, mode);
    st = check_stacks(k);
    if (st < 0) {
        free(k);
        return st;
    }
    *out = k;
    return EK_OK;
}

ek_status ek_kernels_create(ek_mode mode, ek_isa isa, int threads, ek_kernels **out)
{
    ek_status st = EK_OK;
    ek_kernels *k = NULL;

    *out = NULL;
    EK_TRY(create_reference(mode, threads, &k));
    if (isa > ek_cpu_isa())
        isa = ek_cpu_isa();
    if (isa > EK_ISA_REF && mode != EK_MODE_FP64) {
        k->name = Name[mode][isa];
        EK_TRY_OUT(ek_kernels_cpu(k, mode, isa));
    }
    *out = k;
    k = NULL;
out:
    ek_kernels_destroy(&k);
    return st;
}

__attribute__((weak)) const ek_accelerator *ek_accelerator_linked(void)
{
    return NULL;
}

ek_status ek_kernels_open(const char *device, int which, ek_mode mode, ek_isa isa, int threads,
                          ek_kernels **out)
{
    const ek_accelerator *a = ek_accelerator_linked();
    ek_kernels *k = NULL;
    ek_status st = EK_OK;
    int n;

    *out = NULL;
    if (is_cpu(device))
        return ek_kernels_create(mode, isa, threads, out);
    EK_REQUIRE(strcmp(device, "cuda") == 0, EK_EINVAL,
               "unknown device %s: the devices are cpu and cuda", device);
    EK_REQUIRE(
        a != NULL, EK_EINVAL,
        "--device cuda: this evenkeel was built without CUDA; build it where nvcc is installed");
    n = a->count();
    EK_REQUIRE(n > 0, EK_EINVAL, "--device cuda: there is no CUDA device, or no driver for it");
    EK_TRY(create_reference(mode, threads, &k));
    EK_TRY_OUT(a->open(k, mode, which % n));
    k->wide = 1;
    *out = k;
    k = NULL;
out:
    ek_kernels_destroy(&k);
    return st;
}

void ek_kernels_destroy(ek_kernels **k)
{
    if (*k == NULL)
        return;
    if ((*k)->memory != NULL)
        ek_accelerator_linked()->close(*k);
    else if ((*k)->state != NULL)
        ek_kernels_cpu_fini(*k);
    free(*k);
    *k = NULL;
}

ek_mode ek_mode_default(const char *device, ek_isa isa)
{
    return !is_cpu(device) || isa >= EK_ISA_AVX2 ? EK_MODE_BF16 : EK_MODE_FP32;
}

ek_status ek_mode_parse(const char *dtype, const char *device, ek_mode *out)
{
    if (dtype == NULL) {
        *out = ek_mode_default(device, ek_cpu_isa());
        return EK_OK;
    }
    for (int i = EK_MODE_FP64; i <= EK_MODE_BF16; i++) {
        if (strcmp(dtype, ek_mode_name((ek_mode)i)) == 0) {
            *out = (ek_mode)i;
            return EK_OK;
        }
    }
    return EK_FAIL(EK_EINVAL, "unknown dtype %s: the types are bf16, fp32 and fp64", dtype);
}
