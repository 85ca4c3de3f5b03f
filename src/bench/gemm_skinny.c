/* Matrix products of 1 to 8 rows, as in generation: bound by reading the weights.
 *
 * So that weights come from memory, not from a cache, every call uses the next weights of a pool as
 * large as the buffer of the copy bandwidth ceiling.  The figure counts only the bytes of the
 * packed weights, of the fastest pass over the pool. */
#include "base/arena.h"
#include "base/clock.h"
#include "bench/gemm.h"

#include <stdlib.h>

enum { POOL_BYTES = 512 << 20, POOL_WEIGHTS_MAX = 2048, ROW_CASES = 4 };

static const int64_t row_cases[ROW_CASES] = {1, 2, 4, 8};

typedef struct {
    bench_product product;
    bench_samples rates[ROW_CASES]; /* bytes/s */
    int64_t calls; /* per pass over the pool, each with product.few_groups weights */
    size_t weight_bytes;
    ek_arena arena;
    ek_group *g;
    void *x, *y, *master, *pool, *ws;
} skinny;

static void reserve_buffers(const bench *b, skinny *f)
{
    const bench_product *p = &f->product;
    const ek_kernels *k = b->k;
    int64_t rows = row_cases[ROW_CASES - 1] * p->few_groups;

    f->g = ek_arena_alloc(&f->arena, p->few_groups, sizeof(*f->g));
    f->x = ek_arena_alloc(&f->arena, rows * p->in, ek_dtype_size(k->comp));
    f->y = ek_arena_alloc(&f->arena, rows * p->out, ek_dtype_size(k->real));
    f->master = ek_arena_alloc(&f->arena, p->out * p->in, ek_dtype_size(k->real));
    f->pool = ek_arena_alloc(&f->arena, f->calls * p->few_groups, f->weight_bytes);
    f->ws = ek_arena_alloc(&f->arena,
                           (int64_t)k->linear_workspace(k, rows, p->few_groups, p->out, p->in), 1);
}

static ek_status skinny_create(const bench *b, skinny *f)
{
    const bench_product *p = &f->product;
    int64_t weights;
    size_t bytes;

    f->weight_bytes = bench_form_bytes(b->k, p, EK_PACKED_FORWARD);
    weights = POOL_BYTES / (int64_t)f->weight_bytes;
    weights = weights > POOL_WEIGHTS_MAX ? POOL_WEIGHTS_MAX : weights;
    f->calls = weights < p->few_groups ? 1 : weights / p->few_groups;
    ek_arena_measure(&f->arena);
    reserve_buffers(b, f);
    EK_TRY(ek_arena_check(&f->arena, "matrix products"));
    bytes = f->arena.used;
    EK_TRY(ek_arena_init(&f->arena, bytes, "matrix products"));
    reserve_buffers(b, f);
    EK_TRY(ek_arena_check(&f->arena, "matrix products"));
    bench_fill(b->k->comp, row_cases[ROW_CASES - 1] * p->few_groups * p->in, f->x);
    bench_fill(b->k->real, p->out * p->in, f->master);
    return bench_pack(b->k, p, EK_PACKED_FORWARD, f->master, f->calls * p->few_groups, f->pool);
}

/* Multiplies `rows` rows by every weight of the pool once. */
static ek_status walk(const bench *b, skinny *f, int64_t rows)
{
    const bench_product *p = &f->product;
    const char *w = f->pool;

    for (int64_t c = 0; c < f->calls; c++) {
        for (int64_t i = 0; i < p->few_groups; i++, w += f->weight_bytes)
            f->g[i] = (ek_group){i * rows, rows, w, NULL};
        EK_TRY(b->k->linear_forward(b->k, f->g, p->few_groups, p->out, p->in, f->x, p->in, f->y,
                                    p->out, p->forward, f->ws));
    }
    return EK_OK;
}

static ek_status measure(const bench *b, skinny *f, int row_case)
{
    double bytes = (double)(f->calls * f->product.few_groups) * (double)f->weight_bytes;
    double best = 1e30;
    int64_t start = ek_clock_ns();

    do {
        int64_t one = ek_clock_ns();
        double seconds;

        EK_TRY(walk(b, f, row_cases[row_case]));
        seconds = (double)(ek_clock_ns() - one) * 1e-9;
        best = seconds < best ? seconds : best;
    } while ((double)(ek_clock_ns() - start) * 1e-9 < b->cfg->seconds);
    bench_add(&f->rates[row_case], bytes / best);
    return EK_OK;
}

static ek_status measure_product(bench *b, skinny *f)
{
    ek_status st = EK_OK;

    EK_TRY_OUT(skinny_create(b, f));
    for (int64_t r = 0; r < b->cfg->repeats; r++)
        for (int i = 0; i < ROW_CASES; i++)
            EK_TRY_OUT(measure(b, f, i));
    EK_TRY_OUT(bench_measure_memory(b));
out:
    ek_arena_fini(&f->arena);
    return st;
}

static void put_row(bench *b, const skinny *f, int row_case, json_t *all)
{
    const bench_product *p = &f->product;
    const bench_samples *rates = &f->rates[row_case];
    bench_stat r = bench_stat_of(rates);
    double ratio = r.median / bench_copy_ceiling(b);
    char rate[BENCH_RANGE];

    bench_say(b, "  %-18s %4lld %8lld %6lld %6lld %s %6.2f\n", p->name,
              (long long)row_cases[row_case], (long long)p->few_groups, (long long)p->out,
              (long long)p->in, bench_range(rate, r, "B/s", 9), ratio);
    bench_append(b, all,
                 json_pack("{s:s, s:I, s:I, s:I, s:I, s:o, s:f}", "product", p->name, "rows",
                           (json_int_t)row_cases[row_case], "weights", (json_int_t)p->few_groups,
                           "out", (json_int_t)p->out, "in", (json_int_t)p->in, "gbs",
                           bench_stat_json(rates, 1e-9), "ratio", ratio));
}

ek_status bench_gemm_skinny(bench *b)
{
    bench_product products[BENCH_PRODUCTS_MAX];
    size_t n = bench_products(b, products);
    skinny *f = calloc(n, sizeof(*f));
    json_t *all = json_array();
    ek_status st = EK_OK;

    EK_REQUIRE_OUT(f != NULL, EK_ENOMEM, "no memory for a benchmark");
    for (size_t i = 0; i < n; i++) {
        f[i].product = products[i];
        EK_TRY_OUT(measure_product(b, &f[i]));
    }
    bench_say(b, "\n  %-18s %4s %8s %6s %6s %9s (%9s .. %9s)  of copy\n", "few rows, forward",
              "rows", "weights", "out", "in", "median", "min", "max");
    for (size_t i = 0; i < n; i++)
        for (int r = 0; r < ROW_CASES; r++)
            put_row(b, &f[i], r, all);
out:
    bench_put(b, "skinny", all);
    free(f);
    return st;
}
