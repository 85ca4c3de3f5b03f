/* The reference table of a mode, and the kernels that need no type. */
#include "tensor/ref/ref.h"

#include <string.h>

enum { SMALL_BYTES = 1 << 16, PIECE = 1 << 16 };

static void copy_rows(int64_t n, int64_t bytes, const void *src, int64_t lds, void *dst,
                      int64_t ldd)
{
#pragma omp parallel for schedule(static) if (n * bytes > SMALL_BYTES)
    for (int64_t i = 0; i < n; i++)
        memcpy((char *)dst + i * ldd, (const char *)src + i * lds, (size_t)bytes);
}

static void clear(int64_t bytes, void *x)
{
#pragma omp parallel for schedule(static) if (bytes > SMALL_BYTES)
    for (int64_t i = 0; i < bytes; i += PIECE)
        memset((char *)x + i, 0, (size_t)(bytes - i < PIECE ? bytes - i : PIECE));
}

void ek_kernels_ref(ek_kernels *k, ek_mode mode)
{
    switch (mode) {
    case EK_MODE_FP64: ek_kernels_ref_fp64(k); break;
    case EK_MODE_FP32: ek_kernels_ref_fp32(k); break;
    case EK_MODE_BF16: ek_kernels_ref_bf16(k); break;
    }
    k->copy_rows = copy_rows;
    k->clear = clear;
}
