/* Creating and destroying kernel tables: the choice for a mode and an instruction set. */
#include "ek_test.h"
#include "tensor/kernels.h"
#include "tensor/select/select.h"

#include <omp.h>

static void reference_when_asked(void)
{
    for (int mode = EK_MODE_FP64; mode <= EK_MODE_BF16; mode++) {
        ek_kernels *k = NULL;

        CHECK_INT(ek_kernels_create((ek_mode)mode, EK_ISA_REF, 3, &k), EK_OK);
        CHECK(k != NULL && strncmp(k->name, "ref ", 4) == 0 && k->state == NULL);
        CHECK(k->threads == 3 && omp_get_max_threads() == 3);
        ek_kernels_destroy(&k);
        CHECK(k == NULL);
    }
}

/* fp64 has no other kernels, and an instruction set beyond the CPU's is lowered. */
static void best_of_this_cpu(void)
{
    ek_kernels *k = NULL, *own = NULL;

    CHECK_INT(ek_kernels_create(EK_MODE_FP64, EK_ISA_AVX512_BF16, 1, &k), EK_OK);
    CHECK(strcmp(k->name, "ref fp64") == 0);
    ek_kernels_destroy(&k);
    CHECK_INT(ek_kernels_create(EK_MODE_FP32, EK_ISA_AVX512_BF16, 1, &k), EK_OK);
    CHECK_INT(ek_kernels_create(EK_MODE_FP32, ek_cpu_isa(), 1, &own), EK_OK);
    CHECK(strcmp(k->name, own->name) == 0);
    CHECK((strncmp(k->name, "ref ", 4) == 0) == (ek_cpu_isa() == EK_ISA_REF));
    ek_kernels_destroy(&k);
    ek_kernels_destroy(&own);
    ek_kernels_destroy(&own); /* nothing to free is fine */
}

static void threads_refused(void)
{
    ek_kernels *k = (ek_kernels *)&k;

    CHECK_INT(ek_kernels_create(EK_MODE_FP32, EK_ISA_REF, 0, &k), EK_EINVAL);
    CHECK(k == NULL && strstr(ek_err_message(), "not 0") != NULL);
}

static const ek_case Cases[] = {EK_CASE(reference_when_asked), EK_CASE(best_of_this_cpu),
                                EK_CASE(threads_refused)};

EK_TEST_MAIN(Cases)
