/* tests/cuda/emulated.h - controls the emulation of CUDA on the host (emulated/cuda_runtime.h). */
#ifndef CUDA_EMULATED_H
#define CUDA_EMULATED_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Runs blocks and threads in reverse order: results must have the same bits. */
extern int emulated_backwards __attribute__((weak)); /* undefined on a GPU */
/* Properties of the device, to be set before it is opened. */
extern int emulated_multiprocessors __attribute__((weak));
extern int emulated_capability __attribute__((weak)); /* its major version */
/* Numbers of emulated products of tensor cores: 16 x 8 x 16 by a warp; by a warpgroup (counted for
 * the first of a block) 64 x 128 x 16 [0] and 64 x 256 x 16 [1]. */
extern int64_t emulated_multiplications __attribute__((weak));
extern int64_t emulated_warpgroup_products[2] __attribute__((weak));
/* Bytes that were asked to move to the host [0] and to the device [1]. */
extern int64_t emulated_moved[2] __attribute__((weak));

#ifdef __cplusplus
}
#endif

#endif
