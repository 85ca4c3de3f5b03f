/* tensor/cpu/dnnl_shim.c - oneDNN behind one interface for its versions 2.x and 3.x.
 *
 * Version 3 made memory descriptors opaque and replaced operation descriptors by arguments; the
 * functions md_* and *_desc below hide that. */
#include "tensor/cpu/dnnl_shim.h"

#include "tensor/dtype.h"

#include <dnnl.h>
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

void ek_dnnl_matmul_destroy(ek_dnnl_matmul **pp)
{
    ek_dnnl_matmul *p = *pp;

    if (p == NULL)
        return;
    if (p->src != NULL)
        dnnl_memory_destroy(p->src);
    if (p->weights != NULL)
        dnnl_memory_destroy(p->weights);
    if (p->dst != NULL)
        dnnl_memory_destroy(p->dst);
    if (p->primitive != NULL)
        dnnl_primitive_destroy(p->primitive);
    if (p->stream != NULL)
        dnnl_stream_destroy(p->stream);
    if (p->engine != NULL)
        dnnl_engine_destroy(p->engine);
    for (int i = 0; i < 3; i++)
        free(p->buffer[i]);
    free(p);
    *pp = NULL;
}

void ek_dnnl_version(char *text, size_t size)
{
    const dnnl_version_t *v = dnnl_version();

    snprintf(text, size, "oneDNN %d.%d.%d", v->major, v->minor, v->patch);
}
