/* tests/cuda/emulated.h - for the tests of kernels that run on the host, see
 * emulated/cuda_runtime.h. */
#ifndef CUDA_EMULATED_H
#define CUDA_EMULATED_H

#ifdef __cplusplus
extern "C" {
#endif

/* The last block and the last thread of each barrier come first: what does not depend on their
 * order has the same bits. */
extern int emulated_backwards __attribute__((weak)); /* where they are not emulated: none */

#ifdef __cplusplus
}
#endif

#endif
