/* tests/cuda/emulated.h - for the tests of kernels that run on the host, see
 * emulated/cuda_runtime.h. */
#ifndef CUDA_EMULATED_H
#define CUDA_EMULATED_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The last block and the last thread of each barrier come first: what does not depend on their
 * order has the same bits. */
extern int emulated_backwards __attribute__((weak)); /* where they are not emulated: none */
/* Products of 16 x 8 x 16 that tensor cores have made. */
extern int64_t emulated_multiplications __attribute__((weak));

#ifdef __cplusplus
}
#endif

#endif
