/* tensor/cuda/stream.h - the stream that the calling thread's kernels run on, and what became of
 * them.  Plain C, for both languages. */
#ifndef TENSOR_CUDA_STREAM_H
#define TENSOR_CUDA_STREAM_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* As ek_kernels_enter has set it. */
void *ek_cuda_stream(void);
/* A kernel was started (error 0), or was not: the first one's name is kept for the next wait. */
void ek_cuda_started(const char *name, int error);
/* Waits for all kernels of the stream; what went wrong is kept for the next wait that tells. */
void ek_cuda_wait_here(void);
/* Room of the host's for n doubles, which kernels may write and the host reads after a wait, until
 * it is asked for again; NULL: there is none, which the next wait tells. */
double *ek_cuda_room(int n);
/* A copy in the device's memory of what the host has at `from`, up to 1 MiB, for the kernels that
 * are started until two more such copies have been asked for; NULL as above. */
const void *ek_cuda_tell(const void *from, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
