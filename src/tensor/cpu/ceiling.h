/* tensor/cpu/ceiling.h - measured hardware ceilings of this machine, for benchmarks.
 *
 * All run on the OpenMP team of the calling thread, repeat for about `seconds`, and return the best
 * repetition, as other load can only slow a repetition down. */
#ifndef TENSOR_CPU_CEILING_H
#define TENSOR_CPU_CEILING_H

#include "tensor/kernels.h"

/* Best matrix rate of oneDNN over a few large shapes with packed weights, the larger ones if there
 * is time for them (twice `seconds`): bf16 for EK_MODE_BF16 if oneDNN supports it on this processor
 * (AVX-512), else float.  On processors with slow bf16 dot products the float rate is the higher
 * one. */
EK_CHECKED ek_status ek_gemm_ceiling(ek_mode mode, double seconds, double *flops_per_s);

/* Whether oneDNN supports products of the mode's type on this processor. */
int ek_gemm_ceiling_is_known(ek_mode mode);

/* Copy bandwidth between large arrays; bytes read and bytes written both count. */
EK_CHECKED ek_status ek_copy_bandwidth(double seconds, double *bytes_per_s);

/* The same for arrays of `bytes`, which may fit into a cache. */
EK_CHECKED ek_status ek_copy_bandwidth_of(size_t bytes, double seconds, double *bytes_per_s);

/* Read bandwidth of a large array: the bound of read-only work such as generation.  It may be well
 * below half of the copy bandwidth. */
EK_CHECKED ek_status ek_read_bandwidth(double seconds, double *bytes_per_s);

#endif
