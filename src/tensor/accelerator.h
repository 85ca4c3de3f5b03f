/* tensor/accelerator.h - the accelerator back end that a program is linked with.
 *
 * tensor/cuda is compiled where nvcc is available; a program that is not linked with it runs on the
 * CPU only. */
#ifndef TENSOR_ACCELERATOR_H
#define TENSOR_ACCELERATOR_H

#include "tensor/kernels.h"

typedef struct {
    const char *name; /* "CUDA 13.0" */
    /* Number of devices; 0 without a driver. */
    int (*count)(void);
    /* Describes a device: "NVIDIA H200, 139 GiB".  cap: bytes of text. */
    ek_status (*describe)(int device, char *text, size_t cap);
    /* Sets memory, state and all entries of a reference table that the device implements. */
    ek_status (*open)(ek_kernels *k, ek_mode mode, int device);
    /* Releases what open has set. */
    void (*close)(ek_kernels *k);
} ek_accelerator;

/* NULL: none.  Weak: overridden by the function in tensor/cuda if that is linked in. */
const ek_accelerator *ek_accelerator_linked(void);

#endif
