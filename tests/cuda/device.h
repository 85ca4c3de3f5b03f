/* tests/cuda/device.h - the device under test: a GPU, or its emulation on the host (see
 * emulated/cuda_runtime.h).  A test includes this once; without a device its cases are skipped. */
#ifndef CUDA_DEVICE_H
#define CUDA_DEVICE_H

#include "cuda/emulated.h"
#include "ek_test.h"
#include "tensor/kernels.h"
#include "tensor/select/select.h"

static ek_kernels *opened;

/* Opened on first use; NULL: no device. */
static ek_kernels *device(void)
{
    static int tried;

    if (!tried)
        (void)!ek_kernels_open("cuda", 0, EK_MODE_FP32, EK_ISA_REF, 1, &opened);
    tried = 1;
    return opened;
}

enum { SIZE_ROOM = 256 }; /* in front of an array: its size, and alignment */

/* Device memory; host memory if there is no device. */
static void *alloc_array(size_t bytes)
{
    void *p = NULL;

    if (device() == NULL)
        return malloc(bytes + 1);
    bytes += SIZE_ROOM + 1;
    if (device()->memory->alloc(device()->memory, bytes, bytes, "a test", &p) != EK_OK)
        return NULL;
    memcpy(p, &bytes, sizeof(bytes));
    return (char *)p + SIZE_ROOM;
}

static void free_array(void *p)
{
    char *whole = p != NULL && device() != NULL ? (char *)p - SIZE_ROOM : NULL;
    size_t bytes;

    if (whole == NULL) {
        free(p);
        return;
    }
    memcpy(&bytes, whole, sizeof(bytes));
    device()->memory->free(device()->memory, whole, bytes);
}

/* Repetition 2 runs emulated blocks and threads in reverse order. */
static void begin_repetition(int repetition)
{
    if (&emulated_backwards != NULL)
        emulated_backwards = repetition == 2;
}

/* Fails if any kernel so far has failed. */
static void check_device(void)
{
    if (device() != NULL && ek_kernels_wait(device()) < 0)
        EK_T_FAIL("%s", ek_err_message());
}

#endif
