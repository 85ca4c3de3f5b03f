/* tests/cuda/emulated.h - controls the emulation of CUDA on the host (emulated/cuda_runtime.h). */
#ifndef CUDA_EMULATED_H
#define CUDA_EMULATED_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Runs blocks and threads in reverse order: results must have the same bits. */
extern int emulated_backwards __attribute__((weak)); /* undefined on a GPU */
/* Number of emulated 16 x 8 x 16 products of tensor cores. */
extern int64_t emulated_multiplications __attribute__((weak));

#ifdef __cplusplus
}
#endif

#endif
