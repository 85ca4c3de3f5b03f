/* tests/cuda/emulated_touch.h - counts kernels, synchronisations and host accesses to device
 * memory, if EK_EMULATED_TOUCHES is set (emulated_touch.cpp). */
#ifndef CUDA_EMULATED_TOUCH_H
#define CUDA_EMULATED_TOUCH_H

#include <stddef.h>

/* An allocation of device or pinned memory: whole pages. */
struct emulated_allocation {
    char *at;
    size_t bytes;
    int host; /* pinned host memory: not recorded */
};

typedef const emulated_allocation *(*emulated_allocations)(int *n);

/* Starts recording; `allocations` returns the current allocations. */
void emulated_touch_begin(emulated_allocations allocations);
/* Counts a synchronisation. */
void emulated_touch_waited(void);
/* Unprotects all pages before a kernel (device = 1), protects them after it (0). */
void emulated_touch_allow(int device);

#endif
