/* Measures every kernel of a training step: products by the shapes of a model's weights and by
 * pass, attention, and kernels of rows.
 *
 * A probe is a kernel of some sizes at one point (rows a group, tokens a sequence, bytes).  Their
 * order is one in which a truncated list is useful: a point near the middle of every kernel, then
 * points around it.  passes.c says how often each is timed.
 *
 * Calls of less than a millisecond are repeated at once, after one that is not timed: operands that
 * fit into a cache are there, as those of an op are that the op before it wrote.  Larger ones do
 * not fit, and the probes in between see to that.
 *
 * Large weights are measured with fewer rows of the matrix, as rates hardly depend on them; the
 * machine file has the sizes that were measured. */
#include "base/arena.h"
#include "base/clock.h"
#include "comm/agree.h"
#include "cost/cost.h"
#include "exec/exec.h"
#include "train/calibrate/calibrate_priv.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    SHAPES_MAX = 12,
    PROBES_MAX = 320,
    POINTS = 5,
    GROUPS_MAX = 8,
    WEIGHT_MOST = 4 << 20,   /* numbers of a weight */
    WEIGHTS_MOST = 16 << 20, /* ... of all groups of a product together */
    ROWS_MOST = 4096,        /* of all groups of a product together */
    TOKENS_LEAST = 2048,     /* of all sequences of a call */
    BUFFER_MOST = 32 << 20,
    BUFFER_LEAST = 1 << 20,
    BUFFER_A_SECOND = 16 << 20,
    CALLS_MOST = 1000,
    WEIGHTS_LEAST = 8 << 20, /* bytes, or few small ones stay in the cache of a core */
    FILL_BYTES = 1 << 12
};

#define SHORT_S   1e-3 /* a call that is repeated at once, */
#define BATCH_S   5e-4 /* for so long */
#define OP_S_MOST 0.05

/* Of a product with several groups. */
#define FLOPS_MOST 1e10

static const int64_t rows_at[POINTS] = {2, 16, 128, 512, 2048};
static const int64_t tokens_at[POINTS] = {64, 256, 1024, 4096, 16384};
static const int64_t bytes_at[POINTS] = {1 << 14, 1 << 18, 1 << 21, 1 << 23, 1 << 25};
/* Flat kernels also see what is larger than a cache. */
static const int64_t flat_bytes_at[POINTS] = {1 << 16, 1 << 20, 1 << 23, 1 << 26, 1 << 28};

/* A weight, and how its products are called. */
typedef struct {
    int64_t out, in, groups;
    ek_out forward, input; /* how results are stored */
    int real;              /* 1: of R, by matmul_real */
} shape;

typedef struct {
    ek_cost_kernel kernel;
    int32_t size[EK_KERNEL_SIZES];
    const shape *of; /* of products */
    double x, work;  /* of the table, and FLOPs or bytes of a call */
    int64_t n;       /* rows a group, tokens, rows */
    double seconds, missing;
} probe;

typedef struct {
    int n;
    shape of[SHAPES_MAX];
} shape_list;

typedef struct {
    ek_calibration *c;
    const ek_kernels *k;
    ek_probe_operands o;
    shape_list shapes;
    probe *probes;   /* [n_probes] */
    ek_timed *timed; /* of each */
    int n_probes;
    ek_arena arena;
    size_t ws_bytes;
    int64_t packed_bytes, gradient_bytes; /* of all groups of the largest product */
    void *packed, *gradient;
    int64_t packed_at, gradient_at;
    int64_t start;      /* of the first call */
    double budget;      /* from then on */
    ek_cpu_share share; /* of timed calls, */
    ek_cpu_share whole; /* and of all that is done from the first to the last */
} bench;

static int64_t at_most(int64_t x, int64_t most)
{
    return x < 1 || most < 1 ? 1 : x < most ? x : most;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* --- which shapes and points ------------------------------------------------------------------ */

static void add_shape(shape_list *all, shape s)
{
    s.out = at_most(s.out, WEIGHT_MOST / s.in);
    s.groups = at_most(s.groups, WEIGHTS_MOST / (s.out * s.in));
    for (int i = 0; i < all->n; i++)
        if (all->of[i].out == s.out && all->of[i].in == s.in)
            return;
    if (all->n < SHAPES_MAX)
        all->of[all->n++] = s;
}

/* The two weights of a SwiGLU network; of experts, groups of them. */
static void add_network(shape_list *all, int64_t d, int64_t ff, int64_t groups)
{
    ek_out out = groups > 1 ? EK_OUT_COMP : EK_OUT_ADD;

    if (ff == 0)
        return;
    add_shape(all, (shape){2 * ff, d, groups, EK_OUT_COMP, out, 0});
    add_shape(all, (shape){d, ff, groups, out, EK_OUT_COMP, 0});
}

static void add_router(shape_list *all, const ek_model_spec *s)
{
    int64_t in = s->router_dim > 0 ? s->router_dim : s->hidden;

    add_shape(all, (shape){s->experts, in, 1, EK_OUT_REAL, EK_OUT_REAL, 1});
    if (s->router_dim > 0)
        add_shape(all, (shape){s->router_dim, s->hidden, 1, EK_OUT_REAL, EK_OUT_REAL, 1});
}

static void list_shapes(const ek_calibration *c, shape_list *all)
{
    const ek_model_spec *s = c->cfg->spec;
    int64_t d = s->hidden, q = s->heads * s->head_dim;
    int64_t routed = ek_model_moe_layers(s);

    if (routed > 0)
        add_network(all, d, s->ff, at_most(c->experts, GROUPS_MAX));
    add_shape(all, (shape){q + 2 * s->kv_heads * s->head_dim, d, 1, EK_OUT_COMP, EK_OUT_REAL, 0});
    add_shape(all, (shape){d, q, 1, EK_OUT_ADD, EK_OUT_COMP, 0});
    add_network(all, d, s->shared_ff, 1);
    if (routed < s->layers)
        add_network(all, d, s->dense_ff, 1);
    add_shape(all, (shape){s->vocab, d, 1, EK_OUT_REAL, EK_OUT_REAL, 0});
    if (routed > 0)
        add_router(all, s);
}

/* The order of the points 0 to POINTS - 1. */
static int turn_of(int point)
{
    static const int turns[POINTS] = {4, 2, 1, 0, 3};

    return turns[point];
}

static void add_probe(bench *b, int turn, probe p)
{
    const probe *last = b->n_probes > 0 ? &b->probes[b->n_probes - 1] : NULL;

    if (last != NULL && last->kernel == p.kernel && last->x >= p.x &&
        memcmp(last->size, p.size, sizeof(p.size)) == 0)
        return; /* the limits make it the point before */
    if (b->n_probes == PROBES_MAX)
        return;
    p.missing = 1;
    b->timed[b->n_probes].turn = turn;
    b->probes[b->n_probes++] = p;
}

/* Number of groups with which a point is measured. */
static int64_t groups_at(const shape *s, int64_t rows)
{
    int64_t most = (int64_t)(FLOPS_MOST / (2 * (double)(s->out * s->in)));

    return at_most((most < ROWS_MOST ? most : ROWS_MOST) / rows, s->groups);
}

static int64_t bytes_of_rows(const bench *b, const shape *s, int64_t rows)
{
    return groups_at(s, rows) * rows * larger(s->out, s->in) * (int64_t)ek_dtype_size(b->k->real);
}

static void list_products(bench *b, const shape *s)
{
    static const ek_cost_kernel passes[] = {EK_KERNEL_PRODUCT, EK_KERNEL_PRODUCT_INPUT,
                                            EK_KERNEL_PRODUCT_WEIGHT};

    for (int p = 0; p < 3; p++)
        for (int i = 0; i < POINTS && bytes_of_rows(b, s, rows_at[i]) <= b->o.buffer_bytes; i++) {
            double rows = (double)(groups_at(s, rows_at[i]) * rows_at[i]);

            add_probe(b, turn_of(i),
                      (probe){.kernel = passes[p],
                              .size = {(int32_t)s->out, (int32_t)s->in},
                              .of = s,
                              .x = (double)rows_at[i],
                              .work = 2 * rows * (double)(s->out * s->in),
                              .n = rows_at[i]});
        }
}

static int64_t width_of_heads(const ek_model_spec *s)
{
    return (s->heads + 2 * s->kv_heads) * s->head_dim;
}

static ek_attention attention_of(const bench *b, int64_t tokens)
{
    const ek_model_spec *s = b->o.spec;

    return (ek_attention){.batch = larger(TOKENS_LEAST / tokens, 1),
                          .seq = tokens,
                          .heads = s->heads,
                          .kv_heads = s->kv_heads,
                          .head_dim = s->head_dim,
                          .ld = width_of_heads(s),
                          .scale = 1 / sqrt((double)s->head_dim)};
}

static void list_attention(bench *b, ek_cost_kernel kernel)
{
    const ek_model_spec *s = b->o.spec;
    double of_pair = (kernel == EK_KERNEL_ATTENTION ? 4.0 : 8.0) * (double)(s->heads * s->head_dim);
    int64_t row = width_of_heads(s) * (int64_t)ek_dtype_size(b->k->comp);

    for (int i = 0; i < POINTS; i++) {
        ek_attention a = attention_of(b, tokens_at[i]);
        double pairs = (double)a.batch * (double)a.seq * (double)(a.seq + 1) / 2;

        if (a.batch * a.seq * row > b->o.buffer_bytes || tokens_at[i] > ek_model_longest(s))
            break;
        add_probe(b,
                  i == 1   ? 0
                  : i == 0 ? 2
                           : i,
                  (probe){.kernel = kernel,
                          .size = {(int32_t)s->heads, (int32_t)s->kv_heads, (int32_t)s->head_dim},
                          .x = (double)tokens_at[i],
                          .work = of_pair * pairs,
                          .n = tokens_at[i]});
    }
}

static void list_rows(bench *b, ek_cost_kernel kernel)
{
    double row = ek_probe_row_bytes(&b->o, kernel);
    int flat = ek_probe_is_flat(kernel);

    for (int i = 0; i < POINTS; i++) {
        double bytes = (double)(flat ? flat_bytes_at : bytes_at)[i];
        int64_t n = larger((int64_t)(bytes / row), 1);

        n = flat ? n : at_most(n, EK_PROBE_ROWS);
        if (ek_probe_rows_need(&b->o, kernel, n) > b->o.buffer_bytes)
            break;
        add_probe(b, turn_of(i),
                  (probe){.kernel = kernel, .x = row * (double)n, .work = row * (double)n, .n = n});
    }
}

static void list_probes(bench *b)
{
    b->n_probes = 0;
    for (int k = EK_KERNEL_NORM; k < EK_COST_KERNELS; k++) /* the quickest first */
        list_rows(b, (ek_cost_kernel)k);
    list_attention(b, EK_KERNEL_ATTENTION);
    list_attention(b, EK_KERNEL_ATTENTION_BACKWARD);
    for (int i = 0; i < b->shapes.n; i++)
        list_products(b, &b->shapes.of[i]);
}

/* --- memory ----------------------------------------------------------------------------------- */

static size_t form_bytes(const bench *b, const shape *s, ek_form form)
{
    size_t bytes = s->real ? 0 : b->k->packed_bytes(b->k, s->out, s->in, form);

    return bytes > 0 ? bytes : (size_t)(s->out * s->in) * ek_dtype_size(b->k->real);
}

static void raise_size(size_t *size, size_t bytes)
{
    *size = bytes > *size ? bytes : *size;
}

static void measure_sizes(bench *b)
{
    b->ws_bytes = ek_probe_rows_workspace(b->k, b->o.spec);
    b->packed_bytes = b->gradient_bytes = at_most(b->o.buffer_bytes, WEIGHTS_LEAST);
    for (int i = 0; i < b->shapes.n; i++) {
        const shape *s = &b->shapes.of[i];

        for (int form = 0; form < 2; form++)
            b->packed_bytes =
                larger(b->packed_bytes, s->groups * (int64_t)form_bytes(b, s, (ek_form)form));
        b->gradient_bytes = larger(b->gradient_bytes,
                                   s->groups * s->out * s->in * (int64_t)ek_dtype_size(b->k->real));
        raise_size(&b->ws_bytes, b->k->linear_workspace(b->k, ROWS_MOST, s->groups, s->out, s->in));
    }
    for (int i = 0; i < POINTS; i++) {
        ek_attention a = attention_of(b, tokens_at[i]);

        raise_size(&b->ws_bytes, b->k->attention_workspace(b->k, &a));
    }
}

static void layout_bench(bench *b)
{
    ek_probe_operands *o = &b->o;
    int64_t rows = EK_PROBE_ROWS * o->spec->top_k, wide = larger(rows, o->spec->hidden);
    char *all = ek_arena_alloc(&b->arena, EK_PROBE_BUFFERS * o->buffer_bytes, 1);

    for (int i = 0; i < EK_PROBE_BUFFERS; i++)
        o->buffer[i] = all != NULL ? all + i * o->buffer_bytes : NULL;
    o->index = ek_arena_alloc(&b->arena, rows, sizeof(*o->index));
    o->ids = ek_arena_alloc(&b->arena, rows, sizeof(*o->ids));
    for (int i = 0; i < 3; i++)
        o->column[i] = ek_arena_alloc(&b->arena, wide, ek_dtype_size(b->k->real));
    o->ws = ek_arena_alloc(&b->arena, (int64_t)b->ws_bytes, 1);
    b->packed = ek_arena_alloc(&b->arena, b->packed_bytes, 1);
    b->gradient = ek_arena_alloc(&b->arena, b->gradient_bytes, 1);
}

/* Small numbers of both signs in every type: each 16 bits are a bf16 number. */
static void fill_numbers(void *to, int64_t bytes)
{
    uint16_t pattern[FILL_BYTES / 2];
    uint64_t state = 1;

    for (int i = 0; i < FILL_BYTES / 2; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        pattern[i] = (uint16_t)(0x3c00 | (state >> 40 & 0xff) | (state >> 33 & 0x8000));
    }
    for (int64_t at = 0; at < bytes; at += FILL_BYTES)
        memcpy((char *)to + at, pattern,
               (size_t)(bytes - at < FILL_BYTES ? bytes - at : FILL_BYTES));
}

static ek_status bench_open(ek_calibration *c, double budget_s, bench *b)
{
    double bytes = budget_s * c->busy_share * BUFFER_A_SECOND;

    b->c = c;
    b->k = b->o.k = c->cfg->k;
    b->o.spec = c->cfg->spec;
    b->o.buffer_bytes = bytes > BUFFER_MOST    ? BUFFER_MOST
                        : bytes < BUFFER_LEAST ? BUFFER_LEAST
                                               : (int64_t)bytes / EK_ARENA_ALIGN * EK_ARENA_ALIGN;
    b->probes = calloc(PROBES_MAX, sizeof(*b->probes));
    b->timed = calloc(PROBES_MAX, sizeof(*b->timed));
    EK_REQUIRE(b->probes != NULL && b->timed != NULL, EK_ENOMEM, "no memory for measurements");
    list_shapes(c, &b->shapes);
    list_probes(b);
    measure_sizes(b);
    ek_arena_measure_from(&b->arena, b->k->memory, NULL);
    layout_bench(b);
    EK_TRY(ek_arena_check(&b->arena, "calibration"));
    EK_TRY(ek_arena_reserve(&b->arena, "calibration"));
    layout_bench(b);
    EK_TRY(ek_arena_check(&b->arena, "calibration"));
    fill_numbers(b->o.buffer[0], EK_PROBE_BUFFERS * b->o.buffer_bytes);
    fill_numbers(b->packed, b->packed_bytes);
    memset(b->gradient, 0, (size_t)b->gradient_bytes);
    for (int i = 0; i < 3; i++)
        fill_numbers(b->o.column[i], larger(EK_PROBE_ROWS * b->o.spec->top_k, b->o.spec->hidden) *
                                         (int64_t)ek_dtype_size(b->k->real));
    return EK_OK;
}

static void bench_close(bench *b)
{
    ek_arena_fini(&b->arena);
    free(b->probes);
    free(b->timed);
}

/* --- calls ------------------------------------------------------------------------------------ */

/* A place for `need` of `bytes` bytes, another at every call while they suffice. */
static int64_t next_place(int64_t *at, int64_t need, int64_t bytes)
{
    need = (need + EK_ARENA_ALIGN - 1) / EK_ARENA_ALIGN * EK_ARENA_ALIGN;
    *at = *at + 2 * need <= bytes ? *at + need : 0;
    return *at;
}

/* x R [n, in] or dy R [n, out] was just written; what is stored for backward, or was, is cold. */
static void call_router(const bench *b, const probe *p)
{
    const shape *s = p->of;
    const ek_kernels *k = b->k;
    void *x = b->o.buffer[0], *dx = b->o.buffer[1], *kept = b->o.cold[1], *w = b->packed;

    if (p->kernel == EK_KERNEL_PRODUCT)
        k->matmul_real(0, 1, p->n, s->out, s->in, x, s->in, w, s->in, 0, kept, s->out);
    else if (p->kernel == EK_KERNEL_PRODUCT_INPUT)
        k->matmul_real(0, 0, p->n, s->in, s->out, x, s->out, w, s->in, 1, dx, s->in);
    else
        k->matmul_real(1, 0, s->out, s->in, p->n, x, s->out, kept, s->in, 1, b->gradient, s->in);
}

/* Weights and their gradients of all groups, at another place at every call. */
static void set_groups(bench *b, const probe *p, ek_group *g, int64_t n)
{
    ek_form form = p->kernel == EK_KERNEL_PRODUCT ? EK_PACKED_FORWARD : EK_PACKED_BACKWARD;
    int64_t packed = (int64_t)form_bytes(b, p->of, form);
    int64_t dw = p->of->out * p->of->in * (int64_t)ek_dtype_size(b->k->real);
    char *w = (char *)b->packed + next_place(&b->packed_at, n * packed, b->packed_bytes);
    char *to = (char *)b->gradient + next_place(&b->gradient_at, n * dw, b->gradient_bytes);

    for (int64_t i = 0; i < n; i++)
        g[i] = (ek_group){i * p->n, p->n, w + i * packed, to + i * dw};
}

static ek_status call_product(bench *b, const probe *p)
{
    const shape *s = p->of;
    const ek_kernels *k = b->k;
    void *x = b->o.buffer[0], *kept;
    int64_t n = groups_at(s, p->n);
    ek_group g[GROUPS_MAX];

    ek_probe_move_on(&b->o, bytes_of_rows(b, s, p->n));
    kept = b->o.cold[1];
    if (s->real) {
        call_router(b, p);
        return EK_OK;
    }
    set_groups(b, p, g, n);
    if (p->kernel == EK_KERNEL_PRODUCT)
        return k->linear_forward(k, g, n, s->out, s->in, x, s->in, kept, s->out, s->forward,
                                 b->o.ws);
    if (p->kernel == EK_KERNEL_PRODUCT_INPUT)
        return k->linear_backward_input(k, g, n, s->out, s->in, x, s->out, b->o.buffer[1], s->in,
                                        s->input, b->o.ws);
    return k->linear_backward_weight(k, g, n, s->out, s->in, x, s->out, kept, s->in, b->o.ws);
}

/* Forward reads what was just rotated, and stores outputs and sums of exponentials; backward reads
 * all that was stored. */
static void call_attention(bench *b, const probe *p)
{
    ek_attention a = attention_of(b, p->n);
    const ek_probe_operands *o = &b->o;
    int64_t width = a.ld * (int64_t)ek_dtype_size(b->k->comp);
    int64_t sums = a.heads * (int64_t)ek_dtype_size(b->k->real);

    ek_probe_move_on(&b->o, a.batch * a.seq * larger(width, sums));
    if (p->kernel == EK_KERNEL_ATTENTION)
        b->k->attention_forward(&a, o->buffer[0], o->cold[1], o->cold[3], o->ws);
    else
        b->k->attention_backward(&a, o->cold[0], o->cold[1], o->cold[3], o->buffer[1], o->buffer[2],
                                 o->ws);
}

static ek_status call_probe(bench *b, const probe *p)
{
    switch (p->kernel) {
    case EK_KERNEL_PRODUCT:
    case EK_KERNEL_PRODUCT_INPUT:
    case EK_KERNEL_PRODUCT_WEIGHT: return call_product(b, p);
    case EK_KERNEL_ATTENTION:
    case EK_KERNEL_ATTENTION_BACKWARD: call_attention(b, p); return EK_OK;
    default: return ek_probe_call_rows(&b->o, p->kernel, p->n);
    }
}

/* --- measuring -------------------------------------------------------------------------------- */

static double seconds_since(int64_t start)
{
    return (double)(ek_clock_ns() - start) * 1e-9;
}

/* About how long a call will take, by the tables of planners. */
static double expected_seconds(const bench *b, const probe *p)
{
    const ek_machine *m = b->c->m;

    if (p->kernel <= EK_KERNEL_ATTENTION_BACKWARD)
        return 2 * p->work / ek_cost_rate_at(&m->rate[EK_COST_FORWARD], p->x);
    return 2 * p->work / m->copy;
}

static ek_status time_probe(void *self, int i)
{
    bench *b = self;
    probe *p = &b->probes[i];
    ek_times *times = &b->timed[i].times;
    double expected = times->n > 0 ? p->seconds : expected_seconds(b, p);
    int calls = 1;
    ek_stopwatch watch;

    ek_probe_set_index(&b->o, p->kernel, p->n);
    if (expected < SHORT_S)
        EK_TRY(call_probe(b, p));
    if (expected < BATCH_S)
        calls = expected > 0 && BATCH_S / expected < CALLS_MOST ? (int)(BATCH_S / expected) + 1
                                                                : CALLS_MOST;
    watch = ek_stopwatch_start();
    for (int c = 0; c < calls; c++)
        EK_TRY(call_probe(b, p));
    EK_TRY(ek_kernels_wait(b->k));
    ek_times_add(times, ek_stopwatch_stop(&watch, b->k->threads, &b->share) / calls);
    p->seconds = ek_times_mean(times);
    p->missing = 0;
    return EK_OK;
}

static int has_time_for(void *self, int i, double part)
{
    const bench *b = self;
    const probe *p = &b->probes[i];
    double seconds =
        b->timed[i].times.n > 0 ? fmax(p->seconds, BATCH_S) : 2 * expected_seconds(b, p) + BATCH_S;

    return seconds_since(b->start) + seconds / ek_cpu_share_of(&b->share) <= part * b->budget;
}

static ek_status measure_probes(bench *b)
{
    ek_passes p = {b->timed, b->n_probes, POINTS,      !isfinite(b->budget),
                   b,        time_probe,  has_time_for};
    ek_stopwatch watch = ek_stopwatch_start();

    EK_TRY(ek_calibrate_passes(&p));
    (void)ek_stopwatch_stop(&watch, b->k->threads, &b->whole);
    return EK_OK;
}

/* --- the executor ----------------------------------------------------------------------------- */

static ek_status op_nothing(void *self, const ek_op *op)
{
    (void)self;
    (void)op;
    return EK_OK;
}

/* Seconds that the executor takes for an op, from a chain of ops that do nothing. */
static ek_status measure_op(double *seconds)
{
    enum { OPS = 1000, RUNS = 8 };
    ek_exec *ex = NULL;
    ek_graph g;
    ek_repeats r = {0};
    ek_status st = EK_OK;
    int64_t first = ek_clock_ns();

    ek_graph_init(&g);
    for (int i = 0; i < OPS; i++) {
        ek_op op = {.kind = EK_OP_LOSSES,
                    .run = op_nothing,
                    .lane = EK_LANE_COMPUTE,
                    .layer = -1,
                    .micro = -1,
                    .part = -1};

        ek_graph_after(&g, &op, i - 1);
    }
    EK_TRY_OUT(ek_graph_check(&g));
    EK_TRY_OUT(ek_exec_create(NULL, &ex));
    for (int i = 0; i < RUNS && (i < 2 || seconds_since(first) < OP_S_MOST); i++) {
        int64_t start = ek_clock_ns();

        EK_TRY_OUT(ek_exec_run(ex, &g));
        ek_repeats_add(&r, seconds_since(start) / OPS);
    }
    *seconds = r.next;
out:
    ek_exec_destroy(&ex);
    ek_graph_fini(&g);
    return st;
}

/* --- results ---------------------------------------------------------------------------------- */

static int same_entry(const ek_kernel_cost *k, const probe *p)
{
    return k->kernel == p->kernel && memcmp(k->size, p->size, sizeof(k->size)) == 0;
}

/* Appends a point; probes of one kernel and sizes are consecutive, by ascending x. */
static void add_point(ek_kernel_costs *c, const probe *p)
{
    ek_kernel_cost *k;

    if (c->n == 0 || !same_entry(&c->cost[c->n - 1], p)) {
        if (c->n == EK_KERNEL_COSTS_MAX)
            return;
        k = &c->cost[c->n++];
        k->kernel = p->kernel;
        memcpy(k->size, p->size, sizeof(k->size));
    }
    k = &c->cost[c->n - 1];
    k->rate.x[k->rate.n] = p->x;
    k->rate.y[k->rate.n++] = ek_cost_round(p->work / fmax(p->seconds, 1e-9));
}

static ek_status sum_over_ranks(const ek_calibration *c, double *x, int64_t n)
{
    ek_coll *op;

    if (c->ranks == 1)
        return EK_OK;
    EK_TRY(ek_comm_all_reduce(c->world, x, n, EK_SUM_F64, &op));
    return ek_coll_wait(&op);
}

/* How much longer than in the mean of the ranks probes take on the slowest one, over all probes.
 * mean [n_probes] of the logarithms of seconds; *factor: a logarithm, too. */
static ek_status find_slowest(const bench *b, const double *mean, double *factor)
{
    double sum = 0;
    int n = 0;

    for (int i = 0; i < b->n_probes; i++)
        if (b->probes[i].missing == 0) {
            sum += log(b->probes[i].seconds) - mean[i];
            n++;
        }
    *factor = n > 0 ? sum / n : 0;
    return ek_calibrate_largest(b->c, factor, 1);
}

/* Keeps the probes that every rank has timed.  seconds: the geometric mean of the ranks, as a probe
 * is timed few times and which rank is slowest is chance, times how much slower the slowest rank is
 * in the mean of all probes. */
static ek_status agree_on_seconds(bench *b)
{
    double missing[PROBES_MAX], mean[PROBES_MAX], factor, share = ek_cpu_share_of(&b->whole);

    for (int i = 0; i < b->n_probes; i++) {
        probe *p = &b->probes[i];

        missing[i] = p->missing;
        p->seconds = fmax(p->seconds / share, 1e-9);
        mean[i] = log(p->seconds) / b->c->ranks;
    }
    EK_TRY(ek_calibrate_largest(b->c, missing, b->n_probes));
    EK_TRY(sum_over_ranks(b->c, mean, b->n_probes));
    for (int i = 0; i < b->n_probes; i++)
        b->probes[i].missing = missing[i];
    EK_TRY(find_slowest(b, mean, &factor));
    for (int i = 0; i < b->n_probes; i++)
        b->probes[i].seconds = exp(mean[i] + factor);
    return EK_OK;
}

/* Collective. */
static ek_status agree_on_kernels(bench *b, double op_s)
{
    ek_machine *m = b->c->m;

    op_s /= ek_cpu_share_of(&b->whole);
    EK_TRY(ek_calibrate_largest(b->c, &op_s, 1));
    EK_TRY(agree_on_seconds(b));
    for (int i = 0; i < b->n_probes; i++)
        if (b->probes[i].missing == 0)
            add_point(&m->kernels, &b->probes[i]);
    for (int32_t i = 0; i < m->kernels.n; i++)
        ek_cost_smooth_rates(&m->kernels.cost[i].rate);
    m->op_s = ek_cost_round(op_s);
    return EK_OK;
}

ek_status ek_calibrate_kernels(ek_calibration *c, double budget_s)
{
    bench b = {0};
    int64_t opens = ek_clock_ns();
    double op_s = 0;
    ek_status st;

    st = bench_open(c, budget_s, &b);
    /* and none measures while another writes its operands */
    EK_TRY_OUT(ek_agree(c->ranks > 1 ? c->world : NULL, "measure kernels", st));
    b.start = ek_clock_ns();
    b.budget = c->cfg->kernels_once ? INFINITY : budget_s - OP_S_MOST - seconds_since(opens);
    EK_TRY_OUT(measure_probes(&b));
    EK_TRY_OUT(measure_op(&op_s));
out:
    st = ek_agree(c->ranks > 1 ? c->world : NULL, "measure kernels", st);
    if (st == EK_OK)
        st = agree_on_kernels(&b, op_s);
    bench_close(&b);
    return st;
}

/* Whether a shape is one of the model's. */
static int is_listed(const shape_list *all, const int32_t *size)
{
    for (int i = 0; i < all->n; i++)
        if (all->of[i].out == size[0] && all->of[i].in == size[1])
            return 1;
    return 0;
}

int ek_calibrate_has_kernels(const ek_calibration *c, const ek_machine *m)
{
    shape_list all = {0};

    list_shapes(c, &all);
    for (int32_t i = 0; i < m->kernels.n; i++)
        if (m->kernels.cost[i].kernel == EK_KERNEL_PRODUCT &&
            !is_listed(&all, m->kernels.cost[i].size))
            return 0;
    return m->op_s > 0;
}
