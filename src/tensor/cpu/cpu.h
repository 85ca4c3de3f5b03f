/* tensor/cpu/cpu.h - the CPU back end of the kernel table. */
#ifndef TENSOR_CPU_CPU_H
#define TENSOR_CPU_CPU_H

#include "tensor/kernels.h"

/* Overwrites entries of a reference table of `mode` with the fastest kernels that `isa` allows;
 * other entries are kept.  fp64 and EK_ISA_REF leave the table unchanged. */
EK_CHECKED ek_status ek_kernels_cpu(ek_kernels *k, ek_mode mode, ek_isa isa);

/* Whether bf16 dot products are faster than float FMAs, on a CPU that has them: timed once per
 * process, in less than a millisecond. */
int ek_cpu_dots_pay(void);

/* Whether oneDNN has matrix units here, and its products are then faster than those of dot
 * products: timed in the same way. */
int ek_cpu_matrix_units_pay(void);

/* Releases the state set by ek_kernels_cpu. */
void ek_kernels_cpu_fini(ek_kernels *k);

#endif
