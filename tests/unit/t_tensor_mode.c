/* Which type products are made of when none is named, and names of types. */
#include "ek_test.h"
#include "tensor/kernels.h"
#include "tensor/select/select.h"

static void the_default_follows_the_instruction_set(void)
{
    CHECK(ek_mode_default(NULL, EK_ISA_REF) == EK_MODE_FP32);
    CHECK(ek_mode_default("cpu", EK_ISA_REF) == EK_MODE_FP32);
    for (int isa = EK_ISA_AVX2; isa <= EK_ISA_AMX_BF16; isa++) {
        CHECK(ek_mode_default(NULL, (ek_isa)isa) == EK_MODE_BF16);
        CHECK(ek_mode_default("cpu", (ek_isa)isa) == EK_MODE_BF16);
    }
    CHECK(ek_mode_default("cuda", EK_ISA_REF) == EK_MODE_BF16);
}

static void names_are_read_back(void)
{
    ek_mode mode;

    for (int i = EK_MODE_FP64; i <= EK_MODE_BF16; i++) {
        CHECK(ek_mode_parse(ek_mode_name((ek_mode)i), NULL, &mode) == EK_OK);
        CHECK_INT((int)mode, i);
    }
    CHECK(ek_mode_parse(NULL, NULL, &mode) == EK_OK);
    CHECK(mode == ek_mode_default(NULL, ek_cpu_isa()));
    CHECK(ek_mode_parse("fp16", NULL, &mode) == EK_EINVAL);
}

static const ek_case cases[] = {
    EK_CASE(the_default_follows_the_instruction_set),
    EK_CASE(names_are_read_back),
};
EK_TEST_MAIN(cases)
