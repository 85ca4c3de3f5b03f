/* tests/cuda/emulated/tensor/cuda/launch.h - replaces src/tensor/cuda/launch.h: kernels run on the
 * host, at the next synchronisation. */
#ifndef TENSOR_CUDA_LAUNCH_H
#define TENSOR_CUDA_LAUNCH_H

#include "tensor/cuda/stream.h"

#include <cuda_runtime.h>

enum { EK_GRID_MAX = 4 }; /* so that threads take several elements */

/* Whether an argument holds an address of memory that the device lacks.  Padding of a struct is
 * left over from earlier calls, and may be half of an address. */
template <class Argument> static int is_foreign(Argument a)
{
#if __has_builtin(__builtin_clear_padding)
    __builtin_clear_padding(&a);
#endif
    return emulated_is_foreign(&a, sizeof(a));
}

template <class Kernel, class... Arguments>
static void launch_with(size_t shared, const char *name, Kernel kernel, int64_t blocks, int threads,
                        Arguments... a)
{
    int foreign = blocks > 0 ? (0 + ... + is_foreign(a)) : 0;

    if (!foreign)
        emulated_queue([=] {
            auto call = [&] { kernel(a...); };

            emulated_shared_bytes = shared;
            if (!emulated_is_to_fail(name))
                emulated_run(
                    blocks, threads, [](void *f) { (*(decltype(call) *)f)(); }, (void *)&call);
        });
    ek_cuda_launched(name, (int)cudaGetLastError());
}

template <class Kernel, class... Arguments>
static void launch(const char *name, Kernel kernel, int64_t blocks, int threads, Arguments... a)
{
    launch_with(0, name, kernel, blocks, threads, a...);
}

static inline int64_t blocks_for(int64_t n, int threads)
{
    int64_t blocks = (n + threads - 1) / threads;

    return blocks < EK_GRID_MAX ? blocks : (int64_t)EK_GRID_MAX;
}

#endif
