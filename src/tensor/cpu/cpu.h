/* tensor/cpu/cpu.h - the CPU back end of the kernel table. */
#ifndef TENSOR_CPU_CPU_H
#define TENSOR_CPU_CPU_H

#include "tensor/kernels.h"

/* Overwrites the entries of a reference table of `mode` by the fastest that `isa` allows; those
 * without a faster form stay.  fp64 and EK_ISA_REF leave the table as it is. */
EK_CHECKED ek_status ek_kernels_cpu(ek_kernels *k, ek_mode mode, ek_isa isa);

/* Whether bf16 dot products are faster than float ones, on a CPU that has them: timed once in a
 * process, for less than a millisecond. */
int ek_cpu_dots_pay(void);

/* Gives back what ek_kernels_cpu took. */
void ek_kernels_cpu_fini(ek_kernels *k);

#endif
