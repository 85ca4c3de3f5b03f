/* Measures what network ops take from products on the same core.
 *
 * A rank without a core to spare serves the network from inside its kernels (base/progress_hook.h),
 * which costs time for each op in flight, even if nothing arrives, and for each byte.
 *
 * Polling  all ranks but the last make products while a sum is in flight that the last one has not
 *          begun: how much longer than alone, as a share.
 * Bytes    all ranks make products while an all-to-all of one class of links is in flight, until it
 *          has ended: how much longer than as many products with polling.
 *
 * CPU time, as of products (compute.c). */
#include "base/arena.h"
#include "base/progress_hook.h"
#include "base/sort.h"
#include "base/threads.h"
#include "comm/agree.h"
#include "train/calibrate/calibrate_priv.h"

#include <math.h>
#include <string.h>

enum {
    ROWS = 128,
    OUT_MOST = 1024,
    OUT_LEAST = 32,
    REPEATS = 9,
    PRODUCTS = 8, /* of a timing */
    BUFFER_MOST = 8 << 20,
    FILL = 0x3c /* a small number in every type */
};

/* Of a product, many times the interval of ek_progress. */
#define PRODUCT_S_MOST 2e-3
#define FLIGHT_S       0.03 /* of an all-to-all: as long as a step's */
#define FLIGHT_S_MOST  1.0  /* of products beside one; then it is waited for */

typedef struct {
    ek_calibration *c;
    const ek_kernels *k;
    int64_t in, out;
    ek_arena arena;
    ek_group *group;
    void *x, *y, *master, *packed, *ws;
    int64_t *rows;              /* [ranks][ranks] bytes */
    unsigned char *send, *recv; /* [BUFFER_MOST] */
    ek_coll *op;
    ek_status served;
    ek_cpu_share share;
} probe;

static size_t packed_bytes(const probe *p)
{
    size_t bytes = p->k->packed_bytes(p->k, p->out, p->in, EK_PACKED_FORWARD);

    return bytes > 0 ? bytes : (size_t)(p->out * p->in) * ek_dtype_size(p->k->real);
}

static void lay_out(probe *p)
{
    size_t comp = ek_dtype_size(p->k->comp), ranks = (size_t)p->c->ranks;

    p->group = ek_arena_alloc(&p->arena, 1, sizeof(*p->group));
    p->x = ek_arena_alloc(&p->arena, ROWS * p->in, comp);
    p->y = ek_arena_alloc(&p->arena, ROWS * p->out, comp);
    p->master = ek_arena_alloc(&p->arena, p->out * p->in, ek_dtype_size(p->k->real));
    p->packed = ek_arena_alloc(&p->arena, 1, packed_bytes(p));
    p->ws = ek_arena_alloc(&p->arena, 1, p->k->linear_workspace(p->k, ROWS, 1, p->out, p->in));
    p->rows = ek_arena_alloc(&p->arena, (int64_t)(ranks * ranks), sizeof(*p->rows));
    p->send = ek_arena_alloc(&p->arena, BUFFER_MOST, 1);
    p->recv = ek_arena_alloc(&p->arena, BUFFER_MOST, 1);
}

/* A product of rows of the model that does not take long. */
static void choose_product(probe *p)
{
    const ek_model_spec *s = p->c->cfg->spec;
    double flops = PRODUCT_S_MOST * ek_cost_rate_at(&p->c->m->rate[EK_COST_FORWARD], ROWS);
    double out = fmin(flops / (2.0 * ROWS * (double)s->hidden), OUT_MOST);

    p->in = s->hidden;
    p->out = (int64_t)fmin(fmax(out, OUT_LEAST), 2.0 * (double)s->ff);
}

static ek_status open_probe(probe *p)
{
    choose_product(p);
    ek_arena_measure_from(&p->arena, p->k->memory, NULL);
    lay_out(p);
    EK_TRY(ek_arena_check(&p->arena, "calibration"));
    EK_TRY(ek_arena_reserve(&p->arena, "calibration"));
    lay_out(p);
    EK_TRY(ek_arena_check(&p->arena, "calibration"));
    memset(p->x, FILL, (size_t)(ROWS * p->in) * ek_dtype_size(p->k->comp));
    memset(p->master, FILL, (size_t)(p->out * p->in) * ek_dtype_size(p->k->real));
    memset(p->send, 1, BUFFER_MOST);
    memset(p->recv, 1, BUFFER_MOST);
    if (p->k->packed_bytes(p->k, p->out, p->in, EK_PACKED_FORWARD) == 0)
        memcpy(p->packed, p->master, packed_bytes(p));
    else
        EK_TRY(p->k->pack(p->k, p->out, p->in, EK_PACKED_FORWARD, p->master, p->packed));
    *p->group = (ek_group){0, ROWS, p->packed, NULL};
    return EK_OK;
}

static ek_status make_product(const probe *p)
{
    return p->k->linear_forward(p->k, p->group, 1, p->out, p->in, p->x, p->in, p->y, p->out,
                                EK_OUT_COMP, p->ws);
}

/* The hook. */
static void serve(void *context)
{
    probe *p = context;

    if (p->op != NULL && p->served == EK_PENDING)
        p->served = ek_coll_test(&p->op);
}

/* Seconds of the processor for n products, which serve the op in flight. */
static ek_status time_products(probe *p, int n, double *seconds)
{
    ek_stopwatch w = ek_stopwatch_start();
    ek_status st = EK_OK;

    ek_progress_hook_set(serve, p);
    for (int i = 0; i < n && st == EK_OK; i++)
        st = make_product(p);
    ek_progress_hook_set(NULL, NULL);
    *seconds = ek_stopwatch_stop(&w, p->k->threads, &p->share);
    return st;
}

/* Waits for the op in flight, after products that ended with st. */
static ek_status wait_served(probe *p, ek_status st)
{
    if (p->served == EK_PENDING)
        p->served = ek_coll_wait(&p->op);
    return st < 0 ? st : p->served;
}

/* Seconds for as many products while a sum is in flight that the last rank begins after them. */
static ek_status time_polling(probe *p, double *seconds)
{
    int last = p->c->rank == p->c->ranks - 1;
    double x = 0;
    ek_status st = EK_OK;

    EK_TRY(ek_comm_barrier(p->c->world));
    if (last)
        st = time_products(p, 2 * PRODUCTS, seconds);
    EK_TRY(ek_comm_all_reduce(p->c->world, &x, 1, EK_MAX_F64, &p->op));
    p->served = EK_PENDING;
    if (!last)
        st = time_products(p, PRODUCTS, seconds);
    else
        *seconds /= 2;
    return wait_served(p, st);
}

/* Seconds for products during an all-to-all, and how many they were. */
static ek_status time_bytes(probe *p, double *seconds, int *products)
{
    ek_stopwatch w;
    ek_status st = EK_OK;

    EK_TRY(ek_comm_barrier(p->c->world));
    w = ek_stopwatch_start();
    EK_TRY(ek_comm_all_to_all(p->c->world, EK_A2A_LINEAR, p->rows, 1, p->send, p->recv, &p->op));
    *seconds = ek_stopwatch_stop(&w, p->k->threads, &p->share);
    p->served = EK_PENDING;
    for (*products = 0; st == EK_OK && p->served == EK_PENDING && *seconds < FLIGHT_S_MOST;
         ++*products) {
        double product = 0;

        st = time_products(p, 1, &product);
        *seconds += product;
    }
    return wait_served(p, st);
}

/* Bytes to each rank of the class; returns those that the caller sends. */
static double set_bytes(const probe *p, ek_link link)
{
    const ek_calibration *c = p->c;
    const ek_cost_table *t = &c->m->link[link].message;
    double of_byte = t->y[t->n - 1] / t->x[t->n - 1];
    int64_t each = (int64_t)fmax(fmin(FLIGHT_S / of_byte, BUFFER_MOST) / c->ranks, 1), sent = 0;

    for (int i = 0; i < c->ranks; i++)
        for (int j = 0; j < c->ranks; j++) {
            int near = ek_calibrate_node(c, i) == ek_calibrate_node(c, j);
            int64_t bytes = i != j && near == (link == EK_LINK_NODE) ? each : 0;

            p->rows[i * c->ranks + j] = bytes;
            sent += i == c->rank ? bytes : 0;
        }
    return (double)sent;
}

static double median(double *x)
{
    ek_sort_reals(x, REPEATS);
    return x[REPEATS / 2];
}

/* All ranks learn the most of any. */
static ek_status agree_on(probe *p, ek_status st, double *cost)
{
    EK_TRY(ek_agree(p->c->world, "measure messages beside products", st));
    *cost = fmax(*cost, 0);
    EK_TRY(ek_calibrate_largest(p->c, cost, 1));
    *cost = ek_cost_round(*cost);
    return EK_OK;
}

static ek_status measure_polling(probe *p)
{
    double share[REPEATS], *most = &p->c->m->polling;
    ek_status st = EK_OK;

    for (int i = 0; i < REPEATS; i++) {
        double alone = 0, beside = 0;

        EK_TRY_OUT(time_products(p, PRODUCTS, &alone));
        EK_TRY_OUT(time_polling(p, &beside));
        share[i] = beside / alone - 1;
    }
    *most = median(share);
out:
    return agree_on(p, st, most);
}

static ek_status measure_bytes(probe *p, ek_link link)
{
    double longer[REPEATS], sent = set_bytes(p, link),
                            *most = &p->c->m->link[link].seconds_a_byte_beside;
    ek_status st = EK_OK;

    for (int i = 0; i < REPEATS; i++) {
        double before = 0, beside = 0, after = 0;
        int n = 0;

        EK_TRY_OUT(time_products(p, PRODUCTS, &before));
        EK_TRY_OUT(time_bytes(p, &beside, &n));
        EK_TRY_OUT(time_products(p, PRODUCTS, &after));
        longer[i] = beside - n * (before + after) / (2 * PRODUCTS) * (1 + p->c->m->polling);
    }
    *most = sent > 0 ? median(longer) / sent / p->c->busy_share : 0;
out:
    return agree_on(p, st, most);
}

/* Whether ranks serve the network from inside kernels, as in training; the same on all. */
static ek_status serve_inside(const ek_calibration *c, int *inside)
{
    double spare;
    int here = 0;

    for (int r = 0; r < c->ranks; r++)
        here += ek_calibrate_node(c, r) == ek_calibrate_node(c, c->rank);
    spare = c->cfg->k->memory != NULL || here * c->cfg->k->threads < ek_cores_usable();
    EK_TRY(ek_calibrate_largest(c, &spare, 1));
    *inside = spare == 0;
    return EK_OK;
}

ek_status ek_calibrate_progress(ek_calibration *c)
{
    probe p = {.c = c, .k = c->cfg->k};
    double warm;
    int inside = 0;
    ek_status st;

    if (c->ranks == 1)
        return EK_OK;
    EK_TRY(serve_inside(c, &inside));
    if (!inside)
        return EK_OK;
    EK_TRY_OUT(ek_agree(c->world, "measure messages beside products", open_probe(&p)));
    EK_TRY_OUT(time_products(&p, PRODUCTS, &warm));
    EK_TRY_OUT(measure_polling(&p));
    for (int k = 0; k < EK_LINKS; k++)
        if (c->m->link[k].message.n > 0)
            EK_TRY_OUT(measure_bytes(&p, (ek_link)k));
out:
    ek_arena_fini(&p.arena);
    return st;
}
