/* After its first feed, a session and a sampler allocate nothing: the calls of the C library's
 * allocator by this project's code are counted while tokens are fed and drawn. */
#include "ek_test.h"
#include "infer/sampler.h"
#include "infer/session.h"
#include "model/hf/init.h"
#include "tensor/cpu/dnnl_shim.h"
#include "tensor/select/select.h"

#include <stdatomic.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__GLIBC__)
#define SANITIZED 1
#endif

#ifndef SANITIZED
enum { THREADS = 2 };

static atomic_int counted;

/* glibc's own entry points, behind the names that everybody calls. */
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *p, size_t bytes);
void *malloc(size_t bytes);
void *calloc(size_t n, size_t bytes);
void *realloc(void *p, size_t bytes);

void *malloc(size_t bytes)
{
    atomic_fetch_add(&counted, 1);
    return __libc_malloc(bytes);
}

void *calloc(size_t n, size_t bytes)
{
    atomic_fetch_add(&counted, 1);
    return __libc_calloc(n, bytes);
}

void *realloc(void *p, size_t bytes)
{
    atomic_fetch_add(&counted, 1);
    return __libc_realloc(p, bytes);
}

/* A thread allocates for oneDNN in its first product, which need not be in the first feed: a busy
 * machine may have given that feed's products to the other thread. */
static void multiply_in_each_thread(void)
{
#pragma omp parallel num_threads(THREADS)
    {
        _Alignas(64) ek_bf16 a[16 * 32] = {0}, b[32 * 64] = {0};
        _Alignas(64) float out[16 * 64];

        (void)ek_dnnl_product(16, 64, 32, a, b, out);
    }
}
#endif

static void generation(ek_mode mode)
{
#ifdef SANITIZED
    (void)mode;
    SKIP("the allocator belongs to a sanitizer");
#else
    enum { PROMPT = 11, TOKENS = 20 };
    ek_session_config cfg = {.capacity = PROMPT + TOKENS, .block = 4};
    ek_sampler_config how = {.temperature = 1, .top_p = 0.9, .top_k = 40, .seed = 1};
    int32_t ids[PROMPT] = {5, 9, 2, 7}, id;
    ek_model_spec spec;
    ek_kernels *k = NULL;
    ek_model *m = NULL;
    ek_session *s = NULL;
    ek_sampler *sampler = NULL;
    int before;

    CHECK(ek_model_preset("tiny", &spec) == EK_OK);
    spec.hidden = 32;
    spec.ff = 16;
    spec.head_dim = 8;
    CHECK(ek_kernels_create(mode, ek_cpu_isa(), THREADS, &k) == EK_OK);
    CHECK(ek_model_create(&spec, k, &(ek_model_config){.trained = 0}, &m) == EK_OK);
    CHECK(ek_model_init(m, 3) == EK_OK);
    CHECK(ek_model_pack(m) == EK_OK);
    multiply_in_each_thread();
    before = atomic_load(&counted);
    CHECK(ek_session_create(m, &cfg, &s) == EK_OK);
    CHECK(ek_sampler_create(&how, spec.vocab, &sampler) == EK_OK);
    CHECK(atomic_load(&counted) > before); /* the counter counts */
    CHECK(ek_session_feed(s, ids, 1) == EK_OK);
    ek_session_reset(s);

    before = atomic_load(&counted);
    CHECK(ek_session_feed(s, ids, PROMPT) == EK_OK);
    for (int i = 0; i < TOKENS; i++) {
        CHECK(ek_sampler_next(sampler, k->real, ek_session_logits(s), ek_session_position(s),
                              &id) == EK_OK);
        CHECK(ek_session_feed(s, &id, 1) == EK_OK);
    }
    CHECK_INT(atomic_load(&counted) - before, 0);
    ek_sampler_destroy(&sampler);
    ek_session_destroy(&s);
    ek_model_destroy(&m);
    ek_kernels_destroy(&k);
#endif
}

static void fp64(void)
{
    generation(EK_MODE_FP64);
}

static void fp32(void)
{
    generation(EK_MODE_FP32);
}

static void bf16(void)
{
    generation(EK_MODE_BF16);
}

static const ek_case cases[] = {EK_CASE(fp64), EK_CASE(fp32), EK_CASE(bf16)};
EK_TEST_MAIN(cases)
