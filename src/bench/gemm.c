/* Matrix products through the kernel table, at the shapes of a model's training step.
 *
 * Each product in three directions: forward, input gradient, weight gradient.  Products of the
 * experts are one grouped call, with even rows and with rows proportional to 1, 1/2, 1/3, ... FLOPs
 * of a call: 2 * rows * out * in.  A measurement repeats the call for --seconds and keeps the
 * fastest, as the ceilings do. */
#include "bench/gemm.h"

#include "base/arena.h"
#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

enum { HEAD_LOGITS_BYTES = 16 << 20, HEAD_ROWS_MIN = 64, DIRECTIONS = 3, SPLITS = 2 };

static const char *const direction_names[DIRECTIONS] = {"forward", "backward input",
                                                        "backward weight"};
static const char *const split_names[SPLITS] = {"even", "Zipf"};

typedef struct {
    bench_product products[BENCH_PRODUCTS_MAX];
    size_t n_products;
    bench_samples rates[BENCH_PRODUCTS_MAX][SPLITS][DIRECTIONS]; /* FLOP/s */
    ek_arena arena;
    ek_group *g;
    void *x, *dy;      /* C [rows, in], [rows, out] */
    void *y;           /* [rows, out] or [rows, in] */
    void *master;      /* R [out, in] */
    void *packed, *dw; /* of all groups; dw R */
    void *ws;
} gemm;

size_t bench_products(const bench *b, bench_product *products)
{
    const ek_model_spec *s = &b->spec;
    int64_t n = b->cfg->micro_batch * b->cfg->seq, d = s->hidden, q = s->heads * s->head_dim;
    int64_t head = HEAD_LOGITS_BYTES / (s->vocab * (int64_t)sizeof(float)), e = s->experts;
    const bench_product all[] = {
        {"query, key, value", q + 2 * s->kv_heads * s->head_dim, d, 1, n, 1, EK_OUT_COMP,
         EK_OUT_REAL},
        {"attention out", d, q, 1, n, 1, EK_OUT_ADD, EK_OUT_COMP},
        {"expert up", 2 * s->ff, d, e, n * s->top_k, s->top_k, EK_OUT_COMP, EK_OUT_COMP},
        {"expert down", d, s->ff, e, n * s->top_k, s->top_k, EK_OUT_COMP, EK_OUT_COMP},
        /* the loss head is computed in blocks of rows */
        {"head", s->vocab, d, 1,
         head < HEAD_ROWS_MIN ? HEAD_ROWS_MIN
         : head < n           ? head
                              : n,
         1, EK_OUT_REAL, EK_OUT_REAL},
        {"shared expert up", 2 * s->shared_ff, d, 1, n, 1, EK_OUT_COMP, EK_OUT_ADD},
        {"shared expert down", d, s->shared_ff, 1, n, 1, EK_OUT_ADD, EK_OUT_COMP},
    };
    size_t count = sizeof(all) / sizeof(all[0]) - (s->shared_ff > 0 ? 0 : 2);

    memcpy(products, all, count * sizeof(all[0]));
    return count;
}

size_t bench_form_bytes(const ek_kernels *k, const bench_product *p, ek_form form)
{
    size_t bytes = k->packed_bytes(k, p->out, p->in, form);

    return bytes > 0 ? bytes : (size_t)(p->out * p->in) * ek_dtype_size(k->real);
}

ek_status bench_pack(const ek_kernels *k, const bench_product *p, ek_form form, const void *master,
                     int64_t count, void *packed)
{
    size_t bytes = bench_form_bytes(k, p, form);
    int reads_master = k->packed_bytes(k, p->out, p->in, form) == 0;

    for (int64_t i = 0; i < count; i++) {
        char *at = (char *)packed + (size_t)i * bytes;

        if (reads_master)
            memcpy(at, master, bytes);
        else
            EK_TRY(k->pack(k, p->out, p->in, form, master, at));
    }
    return EK_OK;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Allocates memory for the largest product. */
static void reserve_buffers(const bench *b, gemm *m)
{
    const ek_kernels *k = b->k;
    int64_t x = 0, y = 0, weight = 0, packed = 0, dw = 0, groups = 1, ws = 0;
    size_t real = ek_dtype_size(k->real), comp = ek_dtype_size(k->comp);

    for (size_t i = 0; i < m->n_products; i++) {
        const bench_product *p = &m->products[i];

        x = larger(x, p->rows * p->in);
        y = larger(y, p->rows * p->out);
        weight = larger(weight, p->out * p->in);
        dw = larger(dw, p->groups * p->out * p->in);
        for (int form = EK_PACKED_FORWARD; form <= EK_PACKED_BACKWARD; form++)
            packed = larger(packed, p->groups * (int64_t)bench_form_bytes(k, p, (ek_form)form));
        groups = larger(groups, p->groups);
        ws = larger(ws, (int64_t)k->linear_workspace(k, p->rows, p->groups, p->out, p->in));
    }
    m->g = ek_arena_alloc(&m->arena, groups, sizeof(*m->g));
    m->x = ek_arena_alloc(&m->arena, x, comp);
    m->dy = ek_arena_alloc(&m->arena, y, comp);
    m->y = ek_arena_alloc(&m->arena, larger(x, y), real);
    m->master = ek_arena_alloc(&m->arena, weight, real);
    m->packed = ek_arena_alloc(&m->arena, packed, 1);
    m->dw = ek_arena_alloc(&m->arena, dw, real);
    m->ws = ek_arena_alloc(&m->arena, ws, 1);
    if (m->arena.base == NULL)
        return;
    bench_fill(k->comp, x, m->x);
    bench_fill(k->comp, y, m->dy);
    bench_fill(k->real, weight, m->master);
}

static ek_status gemm_create(const bench *b, gemm *m)
{
    size_t bytes;

    m->n_products = bench_products(b, m->products);
    ek_arena_measure(&m->arena);
    reserve_buffers(b, m);
    EK_TRY(ek_arena_check(&m->arena, "matrix products"));
    bytes = m->arena.used;
    EK_TRY(ek_arena_init(&m->arena, bytes, "matrix products"));
    reserve_buffers(b, m);
    return ek_arena_check(&m->arena, "matrix products");
}

/* Sets rows per group, even or proportional to 1 / (group + 1), and weights. */
static void split_rows(const bench *b, gemm *m, const bench_product *p, int zipf, ek_form form)
{
    size_t weight = bench_form_bytes(b->k, p, form), real = ek_dtype_size(b->k->real);
    double sum = 0, before = 0;
    int64_t row = 0;

    for (int64_t i = 0; i < p->groups; i++)
        sum += zipf ? 1.0 / (double)(i + 1) : 1.0;
    for (int64_t i = 0; i < p->groups; i++) {
        int64_t end;

        before += zipf ? 1.0 / (double)(i + 1) : 1.0;
        end = i + 1 == p->groups ? p->rows : (int64_t)((double)p->rows * before / sum);
        m->g[i] = (ek_group){row, end - row, (char *)m->packed + (size_t)i * weight,
                             (char *)m->dw + (size_t)(i * p->out * p->in) * real};
        row = end;
    }
}

static ek_status call(const bench *b, const gemm *m, const bench_product *p, int direction)
{
    const ek_kernels *k = b->k;

    if (direction == 0)
        return k->linear_forward(k, m->g, p->groups, p->out, p->in, m->x, p->in, m->y, p->out,
                                 p->forward, m->ws);
    if (direction == 1)
        return k->linear_backward_input(k, m->g, p->groups, p->out, p->in, m->dy, p->out, m->y,
                                        p->in, p->backward, m->ws);
    return k->linear_backward_weight(k, m->g, p->groups, p->out, p->in, m->dy, p->out, m->x, p->in,
                                     m->ws);
}

/* Rate of the fastest call within --seconds, after a warm-up call. */
static ek_status measure(const bench *b, const gemm *m, const bench_product *p, int direction,
                         bench_samples *rates)
{
    double flops = 2.0 * (double)p->rows * (double)p->out * (double)p->in, best = 1e30;
    int64_t start;

    EK_TRY(call(b, m, p, direction));
    start = ek_clock_ns();
    do {
        int64_t one = ek_clock_ns();
        double seconds;

        EK_TRY(call(b, m, p, direction));
        seconds = (double)(ek_clock_ns() - one) * 1e-9;
        best = seconds < best ? seconds : best;
    } while ((double)(ek_clock_ns() - start) * 1e-9 < b->cfg->seconds);
    bench_add(rates, flops / best);
    return EK_OK;
}

static ek_status measure_product(const bench *b, gemm *m, size_t i)
{
    const bench_product *p = &m->products[i];

    for (int direction = 0; direction < DIRECTIONS; direction++) {
        ek_form form = direction == 1 ? EK_PACKED_BACKWARD : EK_PACKED_FORWARD;

        EK_TRY(bench_pack(b->k, p, form, m->master, p->groups, m->packed));
        for (int split = 0; split < (p->groups > 1 ? SPLITS : 1); split++) {
            split_rows(b, m, p, split, form);
            EK_TRY(measure(b, m, p, direction, &m->rates[i][split][direction]));
        }
    }
    return EK_OK;
}

static void put_row(bench *b, const gemm *m, size_t i, int split, int direction, json_t *all)
{
    const bench_product *p = &m->products[i];
    const bench_samples *rates = &m->rates[i][split][direction];
    const char *rows = p->groups > 1 ? split_names[split] : "all";
    bench_stat r = bench_stat_of(rates);
    double bf16 = r.median / bench_stat_of(&b->ceilings.bf16).median,
           fp32 = r.median / bench_stat_of(&b->ceilings.fp32).median;
    double ratio = r.median / bench_matrix_ceiling(b);
    char rate[BENCH_RANGE];

    bench_say(b, "  %-18s %-15s %6lld %-4s %6lld %6lld %s %6.2f %6.2f\n", p->name,
              direction_names[direction], (long long)p->rows, rows, (long long)p->out,
              (long long)p->in, bench_range(rate, r, "FLOP/s", 12), bf16, fp32);
    bench_append(b, all,
                 json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:o, s:f, s:f, s:f}", "product",
                           p->name, "direction", direction_names[direction], "split", rows,
                           "groups", (json_int_t)p->groups, "rows", (json_int_t)p->rows, "out",
                           (json_int_t)p->out, "in", (json_int_t)p->in, "gflops",
                           bench_stat_json(rates, 1e-9), "ratio", ratio, "ratio_onednn_bf16", bf16,
                           "ratio_onednn_fp32", fp32));
}

static void put(bench *b, const gemm *m)
{
    json_t *all = json_array();

    bench_say(b, "%112s\n", "of oneDNN");
    bench_say(b, "  %-18s %-15s %6s %-4s %6s %6s %12s (%12s .. %12s) %6s %6s\n", "product", "",
              "rows", "", "out", "in", "median", "min", "max", "bf16", "fp32");
    for (size_t i = 0; i < m->n_products; i++)
        for (int split = 0; split < (m->products[i].groups > 1 ? SPLITS : 1); split++)
            for (int direction = 0; direction < DIRECTIONS; direction++)
                put_row(b, m, i, split, direction, all);
    bench_put(b, "repeats", json_integer(b->cfg->repeats));
    bench_put(b, "products", all);
}

ek_status bench_gemm(bench *b)
{
    gemm *m = calloc(1, sizeof(*m));
    ek_status st = EK_OK;

    EK_REQUIRE(m != NULL, EK_ENOMEM, "no memory for a benchmark");
    EK_TRY_OUT(gemm_create(b, m));
    for (int64_t r = 0; r < b->cfg->repeats; r++) {
        EK_TRY_OUT(bench_measure_ceilings(b));
        for (size_t i = 0; i < m->n_products; i++)
            EK_TRY_OUT(measure_product(b, m, i));
    }
    EK_TRY_OUT(bench_measure_ceilings(b));
    put(b, m);
    ek_arena_fini(&m->arena);
    EK_TRY_OUT(bench_gemm_skinny(b));
out:
    ek_arena_fini(&m->arena);
    free(m);
    return st;
}
