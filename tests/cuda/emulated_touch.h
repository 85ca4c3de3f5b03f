/* tests/cuda/emulated_touch.h - counts kernels, waits, and what the host uses of the device's
 * memory, if EK_EMULATED_TOUCHES asks for it (emulated_touch.cpp). */
#ifndef CUDA_EMULATED_TOUCH_H
#define CUDA_EMULATED_TOUCH_H

#include <stddef.h>

/* A stretch of memory that a device has: whole pages. */
struct emulated_stretch {
    char *at;
    size_t bytes;
    int host; /* the host's, which it may use at any time */
};

typedef const emulated_stretch *(*emulated_stretches)(int *n);

/* From now on; `stretches` gives those that there are. */
void emulated_touch_begin(emulated_stretches stretches);
/* The stream was waited for. */
void emulated_touch_waited(void);
/* Before a kernel (device) and after it. */
void emulated_touch_allow(int device);

#endif
