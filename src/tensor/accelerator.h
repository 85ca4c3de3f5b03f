/* tensor/accelerator.h - the accelerator that a program is linked with.
 *
 * tensor/cuda is compiled where there is a compiler for it; a program takes its objects, or runs on
 * the CPU alone. */
#ifndef TENSOR_ACCELERATOR_H
#define TENSOR_ACCELERATOR_H

#include "tensor/kernels.h"

typedef struct {
    const char *name; /* "CUDA 13.0" */
    /* Devices that are there; 0 where there is no driver. */
    int (*count)(void);
    /* A device in words: "NVIDIA H200, 139 GiB". */
    ek_status (*describe)(int device, char *text, size_t room);
    /* Sets every entry of a reference table of `mode` that this device has, its memory and state.
     */
    ek_status (*open)(ek_kernels *k, ek_mode mode, int device);
    void (*close)(ek_kernels *k);
} ek_accelerator;

/* NULL: none.  Replaced by the function of that name in tensor/cuda where it is linked in. */
const ek_accelerator *ek_accelerator_linked(void);

#endif
