/* tensor/select/select.h - chooses the kernels of this processor: reference kernels first,
 * overridden by those of the CPU (tensor/cpu) or of the accelerator that is linked in
 * (tensor/accelerator.h). */
#ifndef TENSOR_SELECT_SELECT_H
#define TENSOR_SELECT_SELECT_H

#include "tensor/kernels.h"

/* "bf16", "fp32", "fp64"; NULL: ek_mode_default() of this CPU.  device: see ek_kernels_open.
 * EK_EINVAL for other names. */
EK_CHECKED ek_status ek_mode_parse(const char *dtype, const char *device, ek_mode *out);

/* bf16 with AVX2 and more, also where its products are computed in float (weights and activations
 * take half the memory), and on other devices; else fp32.  By instruction set and never by timing,
 * as the type is part of the run. */
ek_mode ek_mode_default(const char *device, ek_isa isa);

/* The best instruction set of this CPU; constant within a process.  Ranks that exchange packed
 * weights must all use the lowest one among them. */
ek_isa ek_cpu_isa(void);

/* A table for `mode` on at most `isa` (EK_ISA_REF: reference kernels only) and `threads` OpenMP
 * threads; ek_kernels_destroy frees *out.  fp64 always uses the reference.  Sets the calling
 * thread's OpenMP team size. */
EK_CHECKED ek_status ek_kernels_create(ek_mode mode, ek_isa isa, int threads, ek_kernels **out);
/* The same on a device: NULL or "cpu", or "cuda": CUDA device `which` modulo their number.
 * EK_EINVAL: no such device, or a build without CUDA. */
EK_CHECKED ek_status ek_kernels_open(const char *device, int which, ek_mode mode, ek_isa isa,
                                     int threads, ek_kernels **out);
/* Frees a table and the state of its back end, and sets *k to NULL. */
void ek_kernels_destroy(ek_kernels **k);

#endif
