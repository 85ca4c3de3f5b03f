/* tensor/cpu/ceiling.h - what this machine can reach, measured: the yardsticks of benchmarks.
 *
 * All run on the OpenMP team of the calling thread, repeat for about `seconds`, and give the
 * best repetition, since anything else on the machine only makes one slower. */
#ifndef TENSOR_CPU_CEILING_H
#define TENSOR_CPU_CEILING_H

#include "tensor/kernels.h"

/* Best matrix rate of oneDNN over a few large shapes with packed weights: bf16 for EK_MODE_BF16,
 * float else, also where oneDNN has no bf16 products for this processor (those without AVX-512).
 * On processors with slow bf16 dot products the float rate is the higher one. */
EK_CHECKED ek_status ek_gemm_ceiling(ek_mode mode, double seconds, double *flops_per_s);

/* Whether oneDNN has products of that type for this processor. */
int ek_gemm_ceiling_is_known(ek_mode mode);

/* Copy from one large array to another; bytes read and bytes written both count. */
EK_CHECKED ek_status ek_copy_bandwidth(double seconds, double *bytes_per_s);

/* The same over arrays of so many bytes, which a cache may hold. */
EK_CHECKED ek_status ek_copy_bandwidth_of(size_t bytes, double seconds, double *bytes_per_s);

/* Reading a large array, nothing written: what bounds work that only reads, such as generation.
 * It may be well below half of the copy figure's bytes read and written together. */
EK_CHECKED ek_status ek_read_bandwidth(double seconds, double *bytes_per_s);

#endif
