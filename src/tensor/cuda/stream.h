/* tensor/cuda/stream.h - the stream of the process, and error records of its kernels.  Plain C, for
 * C and CUDA C++. */
#ifndef TENSOR_CUDA_STREAM_H
#define TENSOR_CUDA_STREAM_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The cudaStream_t of the process; sets the calling thread's device. */
void *ek_cuda_stream(void);
/* To be called after each launch, with its error (0: none); the name is kept for error messages.
 * Synchronises unless kernels are only enqueued. */
void ek_cuda_launched(const char *name, int error);
/* Waits for all kernels of the stream; ek_kernels_wait returns their errors. */
void ek_cuda_synchronize(void);
/* Multiprocessors of the device; whether it computes products by wgmma. */
int ek_cuda_multiprocessors(void);
int ek_cuda_has_wgmma(void);
/* A pinned host buffer of n doubles for results, written by kernels and read by the host after a
 * synchronisation; valid until the next call.  NULL: no memory (see ek_kernels_wait). */
double *ek_cuda_results(int n);
/* Copies at most 1 MiB of host data to the device, in stream order; valid for kernels launched
 * before the second next call.  NULL as above. */
const void *ek_cuda_upload(const void *from, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
