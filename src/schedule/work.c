/* What the work of an op amounts to, and its hash. */
#include "schedule/work.h"

#include <string.h>

ek_product ek_product_of(double rows, double out, double in, int32_t passes)
{
    return (ek_product){rows, 1, (int32_t)out, (int32_t)in, passes};
}

ek_work ek_work_of_product(ek_product a)
{
    return (ek_work){.kind = EK_WORK_PRODUCTS, .products = {.n = 1, .product = {a}}};
}

ek_work ek_work_of_products(ek_product a, ek_product b)
{
    return (ek_work){.kind = EK_WORK_PRODUCTS, .products = {.n = 2, .product = {a, b}}};
}

ek_work ek_work_of_attention(const ek_attention_work *a)
{
    return (ek_work){.kind = EK_WORK_ATTENTION, .attention = *a};
}

ek_work ek_work_of_rows(double rows, double width)
{
    return (ek_work){.kind = EK_WORK_ROWS, .rows = {rows, (int32_t)width, 0}};
}

static double product_flops(const ek_product_work *w)
{
    double flops = 0;

    for (int32_t i = 0; i < w->n; i++) {
        const ek_product *p = &w->product[i];

        for (int pass = EK_PRODUCT_FORWARD; pass <= EK_PRODUCT_WEIGHT; pass *= 2)
            flops += p->passes & pass ? 2 * p->rows * p->out * p->in : 0;
    }
    return flops;
}

/* Scores and their products with values; backward the gradients of all four. */
static double attention_flops(const ek_attention_work *w)
{
    return (w->backward ? 8.0 : 4.0) * w->heads * w->head_dim * w->pairs;
}

double ek_work_flops(const ek_work *w)
{
    switch (w->kind) {
    case EK_WORK_PRODUCTS: return product_flops(&w->products);
    case EK_WORK_ATTENTION: return attention_flops(&w->attention);
    default: return 0;
    }
}

static double net_bytes(const ek_net_work *w)
{
    double others = (double)(w->group.n - 1) / (double)w->group.n;

    switch (w->collective) {
    case EK_COLLECTIVE_ALL_REDUCE: return 2 * w->bytes * others;
    case EK_COLLECTIVE_ALL_GATHER:
    case EK_COLLECTIVE_REDUCE_SCATTER: return w->bytes * others;
    default: return w->bytes;
    }
}

double ek_work_net_bytes(const ek_work *w)
{
    return w->kind == EK_WORK_NET ? net_bytes(&w->net) : 0;
}

uint64_t ek_digest_add(uint64_t digest, const void *data, size_t bytes)
{
    uint64_t word = 0;

    memcpy(&word, data, bytes);
    digest = (digest ^ word) * 0x9e3779b97f4a7c15u;
    return digest ^ digest >> 29;
}

static uint64_t add_numbers(uint64_t digest, const int64_t *numbers, size_t n)
{
    for (size_t i = 0; i < n; i++)
        digest = ek_digest_add(digest, &numbers[i], sizeof(numbers[i]));
    return digest;
}

static uint64_t add_sizes(uint64_t digest, const double *sizes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        digest = ek_digest_add(digest, &sizes[i], sizeof(sizes[i]));
    return digest;
}

static uint64_t add_net(uint64_t digest, const ek_net_work *w)
{
    int64_t numbers[] = {(int64_t)w->collective,
                         w->group.stride,
                         w->group.n,
                         w->span,
                         w->peer,
                         w->after,
                         w->element};

    digest = add_numbers(digest, numbers, sizeof(numbers) / sizeof(numbers[0]));
    return add_sizes(digest, &w->bytes, 1);
}

static uint64_t add_products(uint64_t digest, const ek_product_work *w)
{
    for (int32_t i = 0; i < w->n; i++) {
        const ek_product *p = &w->product[i];

        digest = add_sizes(digest, (double[]){p->rows, p->groups}, 2);
        digest = add_numbers(digest, (int64_t[]){p->out, p->in, p->passes}, 3);
    }
    return digest;
}

static uint64_t add_attention(uint64_t digest, const ek_attention_work *w)
{
    digest = add_numbers(digest, (int64_t[]){w->heads, w->kv_heads, w->head_dim, w->backward}, 4);
    return add_sizes(digest, (double[]){w->queries, w->pairs, w->cached}, 3);
}

uint64_t ek_work_digest(uint64_t digest, const ek_work *w)
{
    digest = add_numbers(digest, (int64_t[]){(int64_t)w->kind}, 1);
    switch (w->kind) {
    case EK_WORK_NONE:
    case EK_WORK_DISK: break;
    case EK_WORK_NET: digest = add_net(digest, &w->net); break;
    case EK_WORK_PRODUCTS: digest = add_products(digest, &w->products); break;
    case EK_WORK_ATTENTION: digest = add_attention(digest, &w->attention); break;
    case EK_WORK_ROWS:
        digest = add_sizes(digest, (double[]){w->rows.rows, w->rows.width, w->rows.kernels}, 3);
        break;
    }
    return digest;
}

const char *ek_collective_name(ek_collective collective)
{
    static const char *const names[EK_COLLECTIVES] = {
        [EK_COLLECTIVE_ALL_REDUCE] = "all-reduce",
        [EK_COLLECTIVE_ALL_GATHER] = "all-gather",
        [EK_COLLECTIVE_REDUCE_SCATTER] = "reduce-scatter",
        [EK_COLLECTIVE_A2A_LINEAR] = "all-to-all",
        [EK_COLLECTIVE_A2A_PAIRWISE] = "pairwise all-to-all",
        [EK_COLLECTIVE_A2A_2DH] = "2dh all-to-all",
        [EK_COLLECTIVE_SEND] = "send",
        [EK_COLLECTIVE_RECEIVE] = "receive",
        [EK_COLLECTIVE_MULTICASTS] = "multicasts",
        [EK_COLLECTIVE_MULTIREDUCES] = "multireduces",
        [EK_COLLECTIVE_TRANSFERS] = "transfers",
        [EK_COLLECTIVE_PARTNERS] = "copies to partners",
    };

    return names[collective];
}
