/* The row kernels of tensor/cuda against the reference. */
#include "cuda/device.h"
#include "tensor/cuda/fill.h"
#include "tensor/ref/ref.h"
#include "unit/row_subjects.h"

enum { MOST_ROWS = 200, MOST_ELEMENTS = 4096 }; /* a block per row is slow in emulation */

static const int repetitions = 2;
static const int own_nans = 1;

static void each_table(const subject *t, const shape *shapes, size_t n_shapes)
{
    if (device() == NULL)
        SKIP("no CUDA device");
    for (int m = EK_MODE_FP64; m <= EK_MODE_BF16; m++) {
        ek_kernels ref = {0}, cuda = {0};

        mode = (ek_mode)m;
        stream = 0;
        ek_kernels_ref(&ref, mode);
        cuda = ref;
        ek_cuda_fill_rows(&cuda, mode);
        ek_cuda_fill_choice(&cuda, mode);
        ek_cuda_fill_norm(&cuda, mode);
        ek_cuda_fill_expert(&cuda, mode);
        ek_cuda_fill_loss(&cuda, mode);
        cuda.name = "cuda";
        for (size_t i = 0; i < n_shapes; i++)
            if (shapes[i].n <= MOST_ROWS || shapes[i].n * shapes[i].d <= MOST_ELEMENTS ||
                &emulated_backwards == NULL)
                check(t, &ref, &cuda, &shapes[i]);
        check_device();
    }
}

EK_TEST_MAIN(cases)
