/* The reference table of a mode, and the kernels without element types. */
#include "tensor/ref/ref.h"

#include <string.h>

enum { SMALL_BYTES = 1 << 16, CHUNK_BYTES = 1 << 16 };

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
    for (int64_t i = 0; i < bytes; i += CHUNK_BYTES)
        memset((char *)x + i, 0, (size_t)(bytes - i < CHUNK_BYTES ? bytes - i : CHUNK_BYTES));
}

static void count_choices(int64_t n, int64_t experts, const int32_t *ids, int64_t *counts)
{
    memset(counts, 0, (size_t)(2 * experts) * sizeof(*counts));
    for (int64_t i = 0; i < n; i++)
        if (ids[i] != -1)
            counts[ids[i] >= 0 ? ids[i] : experts - 2 - ids[i]]++;
}

/* Counts, prefix sums, then rows: offset[s + 1] is first the count of slot s, then its next row,
 * and finally its end. */
static int64_t sort_choices(const ek_sorting *by, int64_t n, int64_t k, const int32_t *ids,
                            int32_t *row_of, int32_t *token_of, int64_t *offset)
{
    int64_t rows = 0;

    memset(offset, 0, (size_t)(by->slots + 1) * sizeof(*offset));
    for (int64_t i = 0; i < n * k; i++)
        if (ids[i] >= 0)
            offset[by->slot_of[ids[i]] - by->first + 1]++;
    for (int32_t s = 0; s < by->slots; s++) {
        int64_t count = offset[s + 1];

        offset[s + 1] = rows;
        rows += count;
    }
    for (int64_t i = 0; i < n * k; i++) {
        row_of[i] = ids[i] >= 0 ? (int32_t)offset[by->slot_of[ids[i]] - by->first + 1]++ : -1;
        if (row_of[i] >= 0)
            token_of[row_of[i]] = (int32_t)(i / k);
    }
    return rows;
}

static void sum_squares_each(const ek_kernels *k, int64_t count, const int64_t *n,
                             const void *const *g, double *sums)
{
    for (int64_t i = 0; i < count; i++)
        sums[i] = k->sum_squares(n[i], g[i]);
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
    k->count_choices = count_choices;
    k->sort_choices = sort_choices;
    k->sum_squares_each = sum_squares_each;
}
