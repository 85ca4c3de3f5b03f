/* tensor/cpu/dnnl_shim.c - oneDNN behind one interface for its versions 2.x and 3.x.
 *
 * Version 3 made memory descriptors opaque and replaced operation descriptors by arguments; the
 * functions md_* and *_desc below hide that. */
#include "tensor/cpu/dnnl_shim.h"

#include "tensor/dtype.h"

#include <dnnl.h>
#include <omp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t md_owned;
typedef const_dnnl_memory_desc_t md_view;
#else
typedef dnnl_memory_desc_t md_owned;
typedef const dnnl_memory_desc_t *md_view;
#endif

struct ek_dnnl_matmul {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_t primitive;
    dnnl_memory_t src, weights, dst;
    void *buffer[3]; /* src, weights, dst */
};

#define DNNL_TRY_OUT(call)                                                                         \
    do {                                                                                           \
        dnnl_status_t dnnl_st_ = (call);                                                           \
        EK_REQUIRE_OUT(dnnl_st_ == dnnl_success,                                                   \
                       dnnl_st_ == dnnl_out_of_memory ? EK_ENOMEM : EK_EUNSUPPORTED,               \
                       "oneDNN: %s failed with status %d", #call, (int)dnnl_st_);                  \
    } while (0)

#if DNNL_VERSION_MAJOR >= 3

static dnnl_status_t md_init(md_owned *md, int64_t rows, int64_t cols, dnnl_data_type_t type,
                             dnnl_format_tag_t tag)
{
    dnnl_dims_t dims = {rows, cols};

    return dnnl_memory_desc_create_with_tag(md, 2, dims, type, tag);
}

static void md_fini(md_owned *md)
{
    if (*md != NULL)
        dnnl_memory_desc_destroy(*md);
}

static md_view md_of(const md_owned *md)
{
    return *md;
}

static dnnl_status_t matmul_desc(dnnl_primitive_desc_t *pd, dnnl_engine_t engine, md_view src,
                                 md_view weights, md_view dst)
{
    return dnnl_matmul_primitive_desc_create(pd, engine, src, weights, NULL, dst, NULL);
}

static dnnl_status_t inner_product_desc(dnnl_primitive_desc_t *pd, dnnl_engine_t engine,
                                        md_view src, md_view weights, md_view dst)
{
    return dnnl_inner_product_forward_primitive_desc_create(pd, engine, dnnl_forward_inference, src,
                                                            weights, NULL, dst, NULL);
}

#else

static dnnl_status_t md_init(md_owned *md, int64_t rows, int64_t cols, dnnl_data_type_t type,
                             dnnl_format_tag_t tag)
{
    dnnl_dims_t dims = {rows, cols};

    return dnnl_memory_desc_init_by_tag(md, 2, dims, type, tag);
}

static void md_fini(md_owned *md)
{
    (void)md;
}

static md_view md_of(const md_owned *md)
{
    return md;
}

static dnnl_status_t matmul_desc(dnnl_primitive_desc_t *pd, dnnl_engine_t engine, md_view src,
                                 md_view weights, md_view dst)
{
    dnnl_matmul_desc_t desc;
    dnnl_status_t st = dnnl_matmul_desc_init(&desc, src, weights, NULL, dst);

    return st != dnnl_success ? st : dnnl_primitive_desc_create(pd, &desc, NULL, engine, NULL);
}

static dnnl_status_t inner_product_desc(dnnl_primitive_desc_t *pd, dnnl_engine_t engine,
                                        md_view src, md_view weights, md_view dst)
{
    dnnl_inner_product_desc_t desc;
    dnnl_status_t st = dnnl_inner_product_forward_desc_init(&desc, dnnl_forward_inference, src,
                                                            weights, NULL, dst);

    return st != dnnl_success ? st : dnnl_primitive_desc_create(pd, &desc, NULL, engine, NULL);
}

#endif

/* A buffer for `md` with all elements 1/64, and oneDNN's memory object of it. */
static ek_status buffer_create(ek_dnnl_matmul *p, md_view md, dnnl_data_type_t type, int i,
                               dnnl_memory_t *memory)
{
    size_t bytes = (dnnl_memory_desc_get_size(md) + 63) / 64 * 64;
    dnnl_status_t st;

    p->buffer[i] = aligned_alloc(64, bytes);
    EK_REQUIRE(p->buffer[i] != NULL, EK_ENOMEM, "no memory for a matrix of %zu bytes", bytes);
    if (type == dnnl_bf16)
        for (size_t j = 0; j < bytes / 2; j++)
            ((ek_bf16 *)p->buffer[i])[j] = 0x3c80;
    else
        for (size_t j = 0; j < bytes / 4; j++)
            ((float *)p->buffer[i])[j] = 0.015625f;
    st = dnnl_memory_create(memory, md, p->engine, p->buffer[i]);
    EK_REQUIRE(st == dnnl_success, EK_EUNSUPPORTED,
               "oneDNN: creating a matrix failed with status %d", (int)st);
    return EK_OK;
}

ek_status ek_dnnl_matmul_create(ek_mode mode, int64_t m, int64_t n, int64_t k, ek_dnnl_matmul **out)
{
    dnnl_data_type_t type = mode == EK_MODE_BF16 ? dnnl_bf16 : dnnl_f32;
    md_owned src = {0}, weights = {0}, dst = {0};
    dnnl_primitive_desc_t pd = NULL;
    ek_dnnl_matmul *p = calloc(1, sizeof(*p));
    ek_status st = EK_OK;

    EK_REQUIRE_OUT(p != NULL, EK_ENOMEM, "no memory for a matrix product");
    DNNL_TRY_OUT(dnnl_engine_create(&p->engine, dnnl_cpu, 0));
    DNNL_TRY_OUT(dnnl_stream_create(&p->stream, p->engine, dnnl_stream_default_flags));
    DNNL_TRY_OUT(md_init(&src, m, k, type, dnnl_ab));
    DNNL_TRY_OUT(md_init(&weights, k, n, type, dnnl_format_tag_any));
    DNNL_TRY_OUT(md_init(&dst, m, n, type, dnnl_ab));
    DNNL_TRY_OUT(matmul_desc(&pd, p->engine, md_of(&src), md_of(&weights), md_of(&dst)));
    DNNL_TRY_OUT(dnnl_primitive_create(&p->primitive, pd));
    EK_TRY_OUT(buffer_create(p, md_of(&src), type, 0, &p->src));
    EK_TRY_OUT(buffer_create(p, dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0), type, 1,
                             &p->weights));
    EK_TRY_OUT(buffer_create(p, md_of(&dst), type, 2, &p->dst));
    *out = p;
    p = NULL;
out:
    if (pd != NULL)
        dnnl_primitive_desc_destroy(pd);
    md_fini(&src);
    md_fini(&weights);
    md_fini(&dst);
    ek_dnnl_matmul_destroy(&p);
    return st;
}

ek_status ek_dnnl_matmul_run(ek_dnnl_matmul *p)
{
    dnnl_exec_arg_t args[] = {
        {DNNL_ARG_SRC, p->src},
        {DNNL_ARG_WEIGHTS, p->weights},
        {DNNL_ARG_DST, p->dst},
    };
    ek_status st = EK_OK;

    DNNL_TRY_OUT(dnnl_primitive_execute(p->primitive, p->stream, 3, args));
    DNNL_TRY_OUT(dnnl_stream_wait(p->stream));
out:
    return st;
}

/* Each may be NULL. */
static void destroy_product(dnnl_primitive_t primitive, const dnnl_memory_t memories[3])
{
    for (int i = 0; i < 3; i++)
        if (memories[i] != NULL)
            dnnl_memory_destroy(memories[i]);
    if (primitive != NULL)
        dnnl_primitive_destroy(primitive);
}

void ek_dnnl_matmul_destroy(ek_dnnl_matmul **pp)
{
    ek_dnnl_matmul *p = *pp;

    if (p == NULL)
        return;
    destroy_product(p->primitive, (dnnl_memory_t[]){p->src, p->weights, p->dst});
    if (p->stream != NULL)
        dnnl_stream_destroy(p->stream);
    if (p->engine != NULL)
        dnnl_engine_destroy(p->engine);
    for (int i = 0; i < 3; i++)
        free(p->buffer[i]);
    free(p);
    *pp = NULL;
}

/* --- products of one thread ------------------------------------------------------------------- */

enum {
    ROW_UNIT = 16,
    COL_UNIT = 64,
    SHAPES = EK_DNNL_ROWS / ROW_UNIT * (EK_DNNL_COLS / COL_UNIT), /* of one k */
    KEPT = 64                                                     /* different k */
};

/* A product of one shape; primitive NULL: not made yet. */
typedef struct {
    dnnl_primitive_t primitive;
    dnnl_memory_t src, weights, dst;
    int failed; /* oneDNN cannot do it */
} shape;

/* The shapes of one k; 0: none yet. */
typedef struct {
    int64_t k;
    shape of[SHAPES];
} shapes;

/* A thread's. */
typedef struct {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    shapes kept[KEPT];
    int next; /* the oldest, once all are used */
} products;

static pthread_key_t products_key;
static int has_products_key;

static void shape_fini(shape *p)
{
    destroy_product(p->primitive, (dnnl_memory_t[]){p->src, p->weights, p->dst});
    *p = (shape){0};
}

static void shapes_fini(shapes *s)
{
    for (int i = 0; i < SHAPES; i++)
        shape_fini(&s->of[i]);
    s->k = 0;
}

static void products_destroy(void *arg)
{
    products *t = arg;

    for (int i = 0; i < KEPT; i++)
        shapes_fini(&t->kept[i]);
    if (t->stream != NULL)
        dnnl_stream_destroy(t->stream);
    if (t->engine != NULL)
        dnnl_engine_destroy(t->engine);
    free(t);
}

static void make_products_key(void)
{
    has_products_key = pthread_key_create(&products_key, products_destroy) == 0;
}

/* The calling thread's; NULL: no memory. */
static products *own_products(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    products *t;

    pthread_once(&once, make_products_key);
    t = has_products_key ? pthread_getspecific(products_key) : NULL;
    if (t != NULL || !has_products_key)
        return t;
    t = calloc(1, sizeof(*t));
    if (t == NULL)
        return NULL;
    if (dnnl_engine_create(&t->engine, dnnl_cpu, 0) != dnnl_success ||
        dnnl_stream_create(&t->stream, t->engine, dnnl_stream_default_flags) != dnnl_success ||
        pthread_setspecific(products_key, t) != 0) {
        products_destroy(t);
        return NULL;
    }
    return t;
}

/* Whether a primitive is one of oneDNN's fast ones. */
static int is_fast(dnnl_primitive_desc_t pd)
{
    const char *name = NULL;

    return dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, (void *)&name) ==
               dnnl_success &&
           name != NULL && strstr(name, "brg") != NULL;
}

/* Makes a shape with weights in this layout.  Without blocks of 16 pairs (AMX) they have 8, which
 * is the same bytes where k is a multiple of 32. */
static int make_shape(const products *t, shape *p, int64_t m, int64_t n, int64_t k,
                      dnnl_format_tag_t tag)
{
    md_owned src = {0}, weights = {0}, dst = {0};
    dnnl_primitive_desc_t pd = NULL;
    int ok =
        md_init(&src, m, k, dnnl_bf16, dnnl_ab) == dnnl_success &&
        md_init(&weights, n, k, dnnl_bf16, tag) == dnnl_success &&
        md_init(&dst, m, n, dnnl_f32, dnnl_ab) == dnnl_success &&
        inner_product_desc(&pd, t->engine, md_of(&src), md_of(&weights), md_of(&dst)) ==
            dnnl_success &&
        is_fast(pd) && dnnl_primitive_create(&p->primitive, pd) == dnnl_success &&
        dnnl_memory_create(&p->src, md_of(&src), t->engine, DNNL_MEMORY_NONE) == dnnl_success &&
        dnnl_memory_create(&p->weights, md_of(&weights), t->engine, DNNL_MEMORY_NONE) ==
            dnnl_success &&
        dnnl_memory_create(&p->dst, md_of(&dst), t->engine, DNNL_MEMORY_NONE) == dnnl_success;

    if (!ok)
        shape_fini(p);
    p->failed = !ok;
    if (pd != NULL)
        dnnl_primitive_desc_destroy(pd);
    md_fini(&src);
    md_fini(&weights);
    md_fini(&dst);
    return ok;
}

static shapes *find_shapes(products *t, int64_t k)
{
    shapes *s;

    for (int i = 0; i < KEPT && t->kept[i].k != 0; i++)
        if (t->kept[i].k == k)
            return &t->kept[i];
    s = &t->kept[t->next];
    t->next = (t->next + 1) % KEPT;
    shapes_fini(s);
    s->k = k;
    return s;
}

/* The shape, made on first use for one thread; NULL: not possible. */
static shape *find_shape(products *t, int64_t m, int64_t n, int64_t k)
{
    int threads = omp_get_max_threads();
    shapes *s = find_shapes(t, k);
    shape *p = &s->of[(m / ROW_UNIT - 1) * (EK_DNNL_COLS / COL_UNIT) + n / COL_UNIT - 1];
    if (p->primitive == NULL && !p->failed) {
        omp_set_num_threads(1);
        (void)(make_shape(t, p, m, n, k, dnnl_OI16i64o2i) ||
               make_shape(t, p, m, n, k, dnnl_OI8i64o2i));
        omp_set_num_threads(threads);
    }
    return p->failed ? NULL : p;
}

int ek_dnnl_product(int64_t m, int64_t n, int64_t k, const void *a, const void *b, float *out)
{
    products *t = own_products();
    shape *p = t != NULL ? find_shape(t, m, n, k) : NULL;

    if (p == NULL || dnnl_memory_set_data_handle(p->src, (void *)(uintptr_t)a) != dnnl_success ||
        dnnl_memory_set_data_handle(p->weights, (void *)(uintptr_t)b) != dnnl_success ||
        dnnl_memory_set_data_handle(p->dst, out) != dnnl_success)
        return 0;
    return dnnl_primitive_execute(p->primitive, t->stream, 3,
                                  (dnnl_exec_arg_t[]){{DNNL_ARG_SRC, p->src},
                                                      {DNNL_ARG_WEIGHTS, p->weights},
                                                      {DNNL_ARG_DST, p->dst}}) == dnnl_success &&
           dnnl_stream_wait(t->stream) == dnnl_success;
}

int ek_dnnl_has_matrix_units(void)
{
    return ((int)dnnl_get_effective_cpu_isa() & (int)dnnl_cpu_isa_avx512_core_amx) ==
           (int)dnnl_cpu_isa_avx512_core_amx;
}

void ek_dnnl_version(char *text, size_t size)
{
    const dnnl_version_t *v = dnnl_version();

    snprintf(text, size, "oneDNN %d.%d.%d", v->major, v->minor, v->patch);
}
