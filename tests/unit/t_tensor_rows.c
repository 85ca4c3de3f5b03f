/* The row kernels of each instruction set that this CPU has against the reference of the same
 * mode, on 1, 2 and 3 threads. */
#include "tensor/cpu/rows.h"
#include "tensor/ref/ref.h"
#include "tensor/select/select.h"
#include "unit/row_subjects.h"

#include <omp.h>

static void *alloc_array(size_t bytes)
{
    return aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
}

static void free_array(void *p)
{
    free(p);
}

static const int repetitions = 3;
static const int own_nans = 0;

static void begin_repetition(int repetition)
{
    omp_set_num_threads(repetition);
}

static void each_table(const subject *t, const shape *shapes, size_t n_shapes)
{
    static const char *const names[] = {"ref", "avx2", "avx512", "avx512 bf16"};

    if (ek_cpu_isa() == EK_ISA_REF)
        SKIP("this CPU has neither AVX2 nor AVX-512");
    for (int isa = EK_ISA_AVX2; isa <= (int)ek_cpu_isa(); isa++) {
        for (int m = EK_MODE_FP32; m <= EK_MODE_BF16; m++) {
            ek_kernels ref = {0}, fast = {0};

            if (isa > (m == EK_MODE_FP32 ? EK_ISA_AVX512 : EK_ISA_AVX512_SLOW_BF16))
                continue; /* the same row kernels */
            mode = (ek_mode)m;
            stream = 0; /* the same data whatever ran before */
            ek_kernels_ref(&ref, mode);
            ek_kernels_ref(&fast, mode);
            ek_cpu_rows_fill(&fast, mode, (ek_isa)isa);
            fast.name = names[isa];
            for (size_t i = 0; i < n_shapes; i++)
                check(t, &ref, &fast, &shapes[i]);
        }
    }
}

EK_TEST_MAIN(cases)
