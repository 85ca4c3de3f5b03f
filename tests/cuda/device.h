/* tests/cuda/device.h - the device that kernels are tested on: a GPU, or the host in its place (see
 * emulated/cuda_runtime.h).  A test includes this once; without a device its cases are skipped. */
#ifndef CUDA_DEVICE_H
#define CUDA_DEVICE_H

#include "cuda/emulated.h"
#include "ek_test.h"
#include "tensor/kernels.h"

/* Opened at the first use; NULL: there is none. */
static ek_kernels *device(void)
{
    static ek_kernels *k;
    static int tried;

    if (!tried)
        (void)!ek_kernels_open("cuda", 0, EK_MODE_FP32, EK_ISA_REF, 1, &k);
    tried = 1;
    return k;
}

/* Of the device; of the host where there is none. */
static void *take(size_t bytes)
{
    void *p = NULL;

    if (device() == NULL)
        return malloc(bytes + 1);
    return device()->memory->alloc(device()->memory, bytes + 1, "a test", &p) == EK_OK ? p : NULL;
}

static void give(void *p)
{
    if (device() == NULL)
        free(p);
    else
        device()->memory->free(device()->memory, p, 0);
}

/* The second time threads run backwards, where they are emulated. */
static void take_turn(int turn)
{
    if (&emulated_backwards != NULL)
        emulated_backwards = turn == 2;
}

/* Whether all kernels so far have done well. */
static void check_device(void)
{
    if (device() != NULL && ek_kernels_wait(device()) < 0)
        EK_T_FAIL("%s", ek_err_message());
}

#endif
