/* Kernels call the progress hook while they run, only on the thread that called them. */
#include "base/progress_hook.h"
#include "base/random.h"
#include "ek_test.h"
#include "tensor/cpu/cpu.h"
#include "tensor/kernels.h"
#include "tensor/select/select.h"

#include <omp.h>
#include <pthread.h>

enum { ROWS = 768, OUT = 512, IN = 512, SEQ = 256, BATCH = 3, HEADS = 4, DIM = 64, LD = 12 * DIM };

static struct {
    pthread_t thread;
    int calls, elsewhere;
} seen;

static void count(void *unused)
{
    (void)unused;
    seen.calls++;
    seen.elsewhere += !pthread_equal(seen.thread, pthread_self());
}

/* Inputs of the kernels, created once per mode; values are small and normally distributed. */
typedef struct {
    ek_kernels *k;
    void *x, *y, *w, *forward, *backward, *dw, *ws, *lse;
    ek_attention a;
} bench;

static void *alloc_checked(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 127) / 64 * 64);

    if (p == NULL)
        abort();
    memset(p, 0, (bytes + 127) / 64 * 64);
    return p;
}

static void *values(ek_dtype type, int64_t n)
{
    char *p = alloc_checked((size_t)n * ek_dtype_size(type));

    for (int64_t i = 0; i < n; i++) {
        double v = 0.1 * ek_random_normal(1, 2, (uint64_t)i);

        if (type == EK_F64)
            ((double *)(void *)p)[i] = v;
        else if (type == EK_F32)
            ((float *)(void *)p)[i] = (float)v;
        else
            ((ek_bf16 *)(void *)p)[i] = ek_bf16_from_float((float)v);
    }
    return p;
}

static void *packed(const bench *b, ek_form form)
{
    size_t bytes = b->k->packed_bytes(b->k, OUT, IN, form);
    void *p = bytes > 0 ? alloc_checked(bytes) : b->w;

    if (bytes > 0)
        CHECK(b->k->pack(b->k, OUT, IN, form, b->w, p) == EK_OK);
    return p;
}

static void setup(bench *b, ek_mode mode, ek_isa isa, int threads)
{
    size_t linear, attention;

    omp_set_num_threads(threads);
    memset(b, 0, sizeof(*b));
    CHECK(ek_kernels_create(mode, isa, threads, &b->k) == EK_OK);
    b->a = (ek_attention){.batch = BATCH,
                          .seq = SEQ,
                          .heads = HEADS,
                          .kv_heads = HEADS,
                          .head_dim = DIM,
                          .ld = LD,
                          .scale = 0.125};
    linear = b->k->linear_workspace(b->k, ROWS, 1, OUT, IN);
    attention = b->k->attention_workspace(b->k, &b->a);
    b->ws = alloc_checked(linear > attention ? linear : attention);
    b->x = values(b->k->comp, ROWS * LD);
    b->y = values(b->k->comp, ROWS * LD);
    b->w = values(b->k->real, OUT * IN);
    b->dw = alloc_checked((size_t)((OUT > ROWS ? OUT : ROWS) * IN) * 8);
    b->lse = alloc_checked((size_t)(BATCH * HEADS * SEQ) * 8);
    b->forward = packed(b, EK_PACKED_FORWARD);
    b->backward = packed(b, EK_PACKED_BACKWARD);
}

static void teardown(bench *b)
{
    if (b->forward != b->w)
        free(b->forward);
    if (b->backward != b->w)
        free(b->backward);
    free(b->x);
    free(b->y);
    free(b->w);
    free(b->dw);
    free(b->ws);
    free(b->lse);
    ek_kernels_destroy(&b->k);
}

static void forward(bench *b)
{
    ek_group g = {.rows = ROWS, .w = b->forward};

    CHECK(b->k->linear_forward(b->k, &g, 1, OUT, IN, b->x, IN, b->y, OUT, EK_OUT_COMP, b->ws) ==
          EK_OK);
}

static void backward_input(bench *b)
{
    ek_group g = {.rows = ROWS, .w = b->backward};

    CHECK(b->k->linear_backward_input(b->k, &g, 1, OUT, IN, b->x, OUT, b->y, IN, EK_OUT_COMP,
                                      b->ws) == EK_OK);
}

static void backward_weight(bench *b)
{
    ek_group g = {.rows = ROWS, .dw = b->dw};

    CHECK(b->k->linear_backward_weight(b->k, &g, 1, OUT, IN, b->x, OUT, b->y, IN, b->ws) == EK_OK);
}

static void router(bench *b)
{
    b->k->matmul_real(0, 1, ROWS, 16, IN, b->dw, IN, b->w, IN, 0, b->dw, 16);
}

static void attend(bench *b)
{
    b->k->attention_forward(&b->a, b->x, b->y, b->lse, b->ws);
}

static void attend_backward(bench *b)
{
    b->k->attention_backward(&b->a, b->x, b->y, b->lse, b->y, b->x, b->ws);
}

/* With one thread the hook is called; with a team, which may leave the caller without work, no
 * other thread calls it. */
static void check_ticks(bench *b, void (*kernel)(bench *), const char *what)
{
    seen.thread = pthread_self();
    seen.calls = 0;
    seen.elsewhere = 0;
    ek_progress_hook_set(count, NULL);
    kernel(b);
    ek_progress_hook_set(NULL, NULL);
    if (seen.calls < 1 && b->k->threads == 1)
        EK_T_FAIL("%s of %s did not call the progress hook", what, b->k->name);
    CHECK_INT(seen.elsewhere, 0);
}

static void check_kernels(ek_mode mode, ek_isa isa)
{
    bench b;

    for (int threads = 1; threads <= 2; threads++) {
        setup(&b, mode, isa, threads);
        check_ticks(&b, forward, "linear_forward");
        check_ticks(&b, backward_input, "linear_backward_input");
        check_ticks(&b, backward_weight, "linear_backward_weight");
        check_ticks(&b, router, "matmul_real");
        check_ticks(&b, attend, "attention_forward");
        check_ticks(&b, attend_backward, "attention_backward");
        teardown(&b);
    }
}

static void fast_kernels_tick(void)
{
    check_kernels(EK_MODE_FP32, ek_cpu_isa());
    check_kernels(EK_MODE_BF16, ek_cpu_isa());
}

static void reference_kernels_tick(void)
{
    check_kernels(EK_MODE_FP64, EK_ISA_REF);
}

static const ek_case cases[] = {
    EK_CASE(fast_kernels_tick),
    EK_CASE(reference_kernels_tick),
};
EK_TEST_MAIN(cases)
