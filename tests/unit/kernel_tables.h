/* kernel_tables.h - which kernel tables of this CPU differ, for tests that take each. */
#ifndef KERNEL_TABLES_H
#define KERNEL_TABLES_H

#include "tensor/select/select.h"

/* Whether a mode has the same kernels with the next instruction set that this CPU has. */
static inline int has_same_next(ek_mode mode, int isa)
{
    if (isa >= (int)ek_cpu_isa())
        return 0;
    return mode == EK_MODE_FP64 || (mode == EK_MODE_FP32 && isa >= EK_ISA_AVX512);
}

#endif
