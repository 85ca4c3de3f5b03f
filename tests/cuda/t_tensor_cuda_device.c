/* A device's kernel table: managed memory, and error messages of failing kernels. */
#include "base/arena.h"
#include "cuda/emulated.h"
#include "ek_test.h"
#include "tensor/kernels.h"
#include "tensor/select/select.h"

static int is_there(void)
{
    ek_kernels *k = NULL;
    int there = ek_kernels_open("cuda", 0, EK_MODE_FP32, EK_ISA_REF, 1, &k) == EK_OK;

    ek_kernels_destroy(&k);
    return there;
}

static void opens_and_closes(void)
{
    if (!is_there())
        SKIP("no CUDA device");
    for (int again = 0; again < 2; again++) {
        ek_kernels *k = NULL, *other = NULL;
        const float x[3] = {1, 2.5F, -3};
        void *memory;

        CHECK_INT(ek_kernels_open("cuda", 0, EK_MODE_BF16, EK_ISA_REF, 1, &k), EK_OK);
        CHECK_INT(ek_kernels_open("cuda", 0, EK_MODE_FP64, EK_ISA_REF, 1, &other), EK_OK);
        CHECK(k != NULL && k->memory != NULL && strcmp(k->name, "cuda bf16") == 0);
        CHECK_INT(k->memory->alloc(k->memory, 1000, 1000, "a test", &memory), EK_OK);
        memcpy(memory, x, sizeof(x));
        k->to_comp(3, 1, memory, (ek_bf16 *)memory + 100);
        CHECK_INT(ek_kernels_wait(k), EK_OK);
        CHECK(ek_bf16_to_float(((ek_bf16 *)memory)[101]) == 2.5F);
        CHECK(k->sum_squares(3, memory) == 1 + 6.25 + 9);
        k->memory->free(k->memory, memory, 1000);
        ek_kernels_destroy(&other);
        ek_kernels_destroy(&k);
    }
}

static void failing_kernels_are_named(void)
{
    float x[3] = {1, 2, 3}, y[3] = {0};
    ek_kernels *k = NULL;

    if (&emulated_backwards == NULL)
        SKIP("a GPU may well read the host's memory");
    CHECK_INT(ek_kernels_open("cuda", 0, EK_MODE_FP32, EK_ISA_REF, 1, &k), EK_OK);
    k->to_comp(3, 1, x, y); /* not the device's memory */
    k->bias_forward(3, 1, x, y, 1);
    CHECK_INT(ek_kernels_wait(k), EK_EDEVICE);
    CHECK(strstr(ek_err_message(), "CUDA: to_comp: an illegal memory access") != NULL);
    CHECK(y[0] == 0);
    ek_kernels_destroy(&k);
}

static void unknown_devices(void)
{
    ek_kernels *k = NULL;

    CHECK_INT(ek_kernels_open("gpu", 0, EK_MODE_FP32, EK_ISA_REF, 1, &k), EK_EINVAL);
    CHECK(k == NULL);
    CHECK_INT(ek_kernels_open(NULL, 0, EK_MODE_FP32, EK_ISA_REF, 1, &k), EK_OK);
    CHECK(k->memory == NULL);
    CHECK_INT(ek_kernels_wait(k), EK_OK);
    ek_kernels_destroy(&k);
}

/* Arenas in device memory. */
static void an_arena(void)
{
    ek_kernels *k = NULL;
    ek_arena a;

    if (!is_there())
        SKIP("no CUDA device");
    CHECK_INT(ek_kernels_open("cuda", 0, EK_MODE_FP32, EK_ISA_REF, 1, &k), EK_OK);
    for (int empty = 0; empty < 2; empty++) {
        ek_arena_measure_from(&a, k->memory, NULL);
        if (!empty)
            (void)ek_arena_alloc_expected(&a, 1 << 22, 100, 1);
        CHECK_INT(ek_arena_reserve(&a, "a test"), EK_OK);
        CHECK(k->memory->capacity(k->memory) > 0);
        CHECK(empty || ek_arena_alloc_expected(&a, 1 << 22, 100, 1) == a.base);
        for (int i = 0; i < 100 && !empty; i++)
            CHECK(a.base[i] == 0);
        CHECK(ek_arena_alloc(&a, 1 << 22, 1) == NULL);
        ek_arena_fini(&a);
        CHECK(a.base == NULL);
    }
    ek_kernels_destroy(&k);
}

/* More managed memory than the device has would be paged by every kernel.  What is not expected to
 * be used does not count. */
static void reserves_what_the_device_has_at_most(void)
{
    ek_kernels *k = NULL;
    const ek_memory *m;
    void *memory = NULL, *more = NULL;
    size_t all;

    if (!is_there())
        SKIP("no CUDA device");
    CHECK_INT(ek_kernels_open("cuda", 0, EK_MODE_FP32, EK_ISA_REF, 1, &k), EK_OK);
    m = k->memory;
    all = m->capacity(m);
    CHECK_INT(m->alloc(m, all + 1, all + 1, "a test", &memory), EK_ENOMEM);
    CHECK(strstr(ek_err_message(), "B for a test") != NULL);
    CHECK_INT(m->alloc(m, 100000, 1000, "a test", &memory), EK_OK);
    CHECK(m->capacity(m) == all);
    CHECK_INT(m->alloc(m, all - 999, all - 999, "a test", &more), EK_ENOMEM);
    CHECK_INT(m->alloc(m, 2000, 2000, "a test", &more), EK_OK);
    m->free(m, more, 2000);
    m->free(m, memory, 1000);
    CHECK_INT(m->alloc(m, 100, all, "a test", &memory), EK_OK); /* nothing is counted any more */
    m->free(m, memory, all);
    ek_kernels_destroy(&k);
}

static void cleared_memory_is_zero_and_moved_memory_keeps_its_values(void)
{
    enum { N = 100000 };
    ek_kernels *k = NULL;
    const ek_memory *m;
    void *memory = NULL;
    float *x;

    if (!is_there())
        SKIP("no CUDA device");
    CHECK_INT(ek_kernels_open("cuda", 0, EK_MODE_FP32, EK_ISA_REF, 1, &k), EK_OK);
    m = k->memory;
    if (emulated_moved != NULL)
        memset(emulated_moved, 0, sizeof(emulated_moved));
    CHECK_INT(m->alloc(m, N * sizeof(*x), N * sizeof(*x), "a test", &memory), EK_OK);
    x = memory;
    m->move(m, x, N * sizeof(*x), EK_USED_BY_HOST);
    for (int i = 0; i < N; i++)
        x[i] = 1;
    m->move(m, x, N * sizeof(*x), EK_USED_BY_ACCELERATOR);
    CHECK(k->sum_squares(N, x) == N);
    m->clear(m, x + 10, (N - 20) * sizeof(*x));
    CHECK_INT(ek_kernels_wait(k), EK_OK);
    CHECK(x[9] == 1 && x[10] == 0 && x[N - 11] == 0 && x[N - 10] == 1);
    CHECK(k->sum_squares(N, x) == 20);
    if (emulated_moved != NULL)
        CHECK(emulated_moved[0] == N * sizeof(*x) &&
              emulated_moved[1] == (2 * N - 20) * sizeof(*x));
    m->free(m, memory, N * sizeof(*x));
    ek_kernels_destroy(&k);
}

static void memory_that_is_not_the_devices_cannot_be_cleared(void)
{
    float x[3] = {1, 2, 3};
    ek_kernels *k = NULL;

    if (&emulated_backwards == NULL)
        SKIP("a GPU may well write the host's memory");
    CHECK_INT(ek_kernels_open("cuda", 0, EK_MODE_FP32, EK_ISA_REF, 1, &k), EK_OK);
    k->memory->clear(k->memory, x, sizeof(x));
    CHECK_INT(ek_kernels_wait(k), EK_EDEVICE);
    CHECK(strstr(ek_err_message(), "CUDA: clearing memory: ") != NULL);
    CHECK(x[0] == 1);
    ek_kernels_destroy(&k);
}

static const ek_case cases[] = {EK_CASE(opens_and_closes),
                                EK_CASE(failing_kernels_are_named),
                                EK_CASE(unknown_devices),
                                EK_CASE(an_arena),
                                EK_CASE(reserves_what_the_device_has_at_most),
                                EK_CASE(cleared_memory_is_zero_and_moved_memory_keeps_its_values),
                                EK_CASE(memory_that_is_not_the_devices_cannot_be_cleared)};
EK_TEST_MAIN(cases)
