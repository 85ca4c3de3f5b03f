/* bench/gemm.h - the matrix products of a model and their sizes. */
#ifndef BENCH_GEMM_H
#define BENCH_GEMM_H

#include "bench/bench_priv.h"

enum { BENCH_PRODUCTS_MAX = 8 };

/* y = x W^T with W [out, in], for each of `groups` weights. */
typedef struct {
    const char *name;
    int64_t out, in;
    int64_t groups;           /* 1, or the experts */
    int64_t rows;             /* of all groups, in a training step */
    int64_t few_groups;       /* used by one token */
    ek_out forward, backward; /* how the model stores results */
} bench_product;

/* The products of b->spec; returns their number. */
size_t bench_products(const bench *b, bench_product *products);

/* Bytes of a packed weight. */
size_t bench_form_bytes(const ek_kernels *k, const bench_product *p, ek_form form);
/* Packs `count` consecutive copies of `master`. */
EK_CHECKED ek_status bench_pack(const ek_kernels *k, const bench_product *p, ek_form form,
                                const void *master, int64_t count, void *packed);

#endif
