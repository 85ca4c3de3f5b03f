/* Passes of a model's matrix products, in rounds. */
#include "train/calibrate/speed.h"

#include "base/arena.h"
#include "base/clock.h"
#include "comm/agree.h"

#include <string.h>

enum {
    PRODUCTS = 5,
    EXPERTS_MOST = 4,
    WEIGHTS_MOST = 256 << 10, /* numbers of a matrix, and of those of experts together */
    ROWS_MOST = 256,
    FILL = 0x3c /* a small number in every type */
};

#define ROUND_S 0.2
#define PASS_S  4e-3 /* seconds of a pass on the fastest rank, at least */

/* Products with the weights of one matrix, or of some experts. */
typedef struct {
    int64_t out, in, groups;
    int64_t part, of; /* rows of a group: this part of a micro-batch's */
    ek_group *group;  /* [groups] */
    void *master, *packed[2], *dw;
} product;

typedef struct {
    const ek_kernels *k;
    product p[PRODUCTS];
    int n;
    int64_t rows;  /* of a micro-batch, now */
    int64_t most;  /* and at most */
    int64_t width; /* of the widest input or output */
    ek_arena arena;
    void *x, *y; /* [rows of all groups, width] */
    void *ws;
} bench;

static int64_t at_least_one(int64_t x)
{
    return x > 1 ? x : 1;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* --- sizes ------------------------------------------------------------------------------------ */

/* groups: of experts, each with the part of all rows. */
static void add_product(bench *b, int64_t out, int64_t in, int64_t groups, int64_t part, int64_t of)
{
    product *p = &b->p[b->n];

    if (out < 1 || in < 1)
        return;
    *p = (product){
        .out = smaller(out, at_least_one(WEIGHTS_MOST / in)), .in = in, .part = part, .of = of};
    p->groups = smaller(groups, at_least_one(WEIGHTS_MOST / (p->out * in)));
    b->width = p->out > b->width ? p->out : b->width;
    b->width = in > b->width ? in : b->width;
    b->n++;
}

static void choose_products(bench *b, const ek_speed_config *cfg)
{
    const ek_model_spec *s = cfg->spec;
    int routed = ek_model_moe_layers(s) > 0;
    int64_t ff = routed ? s->ff : s->dense_ff, experts = routed ? s->experts : 1;
    int64_t groups = smaller(experts, EXPERTS_MOST), top_k = routed ? cfg->top_k : 1;

    b->k = cfg->k;
    b->rows = 1;
    b->most = smaller(at_least_one(cfg->rows), ROWS_MOST);
    add_product(b, (s->heads + 2 * s->kv_heads) * s->head_dim, s->hidden, 1, 1, 1);
    add_product(b, s->hidden, s->heads * s->head_dim, 1, 1, 1);
    add_product(b, 2 * ff, s->hidden, groups, top_k, experts);
    add_product(b, s->hidden, ff, groups, top_k, experts);
    add_product(b, s->vocab, s->hidden, 1, 1, 1);
}

static int64_t group_rows(const product *p, int64_t rows)
{
    return at_least_one(rows * p->part / p->of);
}

static size_t form_bytes(const ek_kernels *k, const product *p, int form)
{
    size_t bytes = k->packed_bytes(k, p->out, p->in, (ek_form)form);

    return bytes > 0 ? bytes : (size_t)(p->out * p->in) * ek_dtype_size(k->real);
}

/* --- memory ----------------------------------------------------------------------------------- */

static void layout_product(bench *b, product *p)
{
    size_t real = ek_dtype_size(b->k->real);

    p->group = ek_arena_alloc(&b->arena, p->groups, sizeof(*p->group));
    p->master = ek_arena_alloc(&b->arena, p->out * p->in, real);
    p->dw = ek_arena_alloc(&b->arena, p->groups * p->out * p->in, real);
    for (int form = 0; form < 2; form++)
        p->packed[form] = ek_arena_alloc(&b->arena, p->groups, form_bytes(b->k, p, form));
}

static void layout_bench(bench *b)
{
    int64_t rows = 0;
    size_t ws = 0;

    for (int i = 0; i < b->n; i++) {
        const product *p = &b->p[i];
        int64_t all = p->groups * group_rows(p, b->most);
        size_t bytes = b->k->linear_workspace(b->k, all, p->groups, p->out, p->in);

        rows = all > rows ? all : rows;
        ws = bytes > ws ? bytes : ws;
        layout_product(b, &b->p[i]);
    }
    b->x = ek_arena_alloc(&b->arena, rows * b->width, ek_dtype_size(b->k->comp));
    b->y = ek_arena_alloc(&b->arena, rows * b->width, ek_dtype_size(b->k->comp));
    b->ws = ek_arena_alloc(&b->arena, (int64_t)ws, 1);
    if (b->x != NULL)
        memset(b->x, FILL, (size_t)(rows * b->width) * ek_dtype_size(b->k->comp));
}

/* The weights of all groups, which are alike. */
static ek_status fill_weights(const bench *b, const product *p)
{
    const ek_kernels *k = b->k;

    memset(p->master, FILL, (size_t)(p->out * p->in) * ek_dtype_size(k->real));
    for (int form = 0; form < 2; form++) {
        size_t bytes = form_bytes(k, p, form);
        char *first = p->packed[form];

        if (k->packed_bytes(k, p->out, p->in, (ek_form)form) == 0)
            memcpy(first, p->master, bytes);
        else
            EK_TRY(k->pack(k, p->out, p->in, (ek_form)form, p->master, first));
        for (int64_t i = 1; i < p->groups; i++)
            memcpy(first + (size_t)i * bytes, first, bytes);
    }
    return EK_OK;
}

static ek_status open_bench(bench *b, const ek_speed_config *cfg)
{
    choose_products(b, cfg);
    ek_arena_measure_from(&b->arena, b->k->memory, NULL);
    layout_bench(b);
    EK_TRY(ek_arena_check(&b->arena, "speeds"));
    EK_TRY(ek_arena_reserve(&b->arena, "speeds"));
    layout_bench(b);
    EK_TRY(ek_arena_check(&b->arena, "speeds"));
    for (int i = 0; i < b->n; i++)
        EK_TRY(fill_weights(b, &b->p[i]));
    return ek_kernels_wait(b->k);
}

/* --- passes ----------------------------------------------------------------------------------- */

static void set_groups(const bench *b, const product *p, int form)
{
    int64_t rows = group_rows(p, b->rows);
    size_t bytes = form_bytes(b->k, p, form);
    size_t gradient = (size_t)(p->out * p->in) * ek_dtype_size(b->k->real);

    for (int64_t i = 0; i < p->groups; i++)
        p->group[i] = (ek_group){i * rows, rows, (char *)p->packed[form] + (size_t)i * bytes,
                                 (char *)p->dw + (size_t)i * gradient};
}

static ek_status multiply(const bench *b, const product *p)
{
    const ek_kernels *k = b->k;

    set_groups(b, p, EK_PACKED_FORWARD);
    EK_TRY(k->linear_forward(k, p->group, p->groups, p->out, p->in, b->x, p->in, b->y, p->out,
                             EK_OUT_COMP, b->ws));
    set_groups(b, p, EK_PACKED_BACKWARD);
    EK_TRY(k->linear_backward_input(k, p->group, p->groups, p->out, p->in, b->x, p->out, b->y,
                                    p->in, EK_OUT_COMP, b->ws));
    return k->linear_backward_weight(k, p->group, p->groups, p->out, p->in, b->x, p->out, b->x,
                                     p->in, b->ws);
}

static ek_status make_pass(const bench *b)
{
    for (int i = 0; i < b->n; i++)
        EK_TRY(multiply(b, &b->p[i]));
    return ek_kernels_wait(b->k);
}

static double pass_flops(const bench *b)
{
    double sum = 0;

    for (int i = 0; i < b->n; i++) {
        const product *p = &b->p[i];
        double rows = (double)(p->groups * group_rows(p, b->rows));

        sum += 3 * 2 * rows * (double)p->out * (double)p->in;
    }
    return sum;
}

static double seconds_since(int64_t start)
{
    return (double)(ek_clock_ns() - start) * 1e-9;
}

/* Doubles the rows until a pass takes long enough to be timed.  The first pass is a warm-up. */
static ek_status grow_rows(bench *b)
{
    double seconds = 0;

    EK_TRY(make_pass(b));
    for (;;) {
        int64_t start = ek_clock_ns();

        EK_TRY(make_pass(b));
        seconds = seconds_since(start);
        if (seconds >= PASS_S || b->rows >= b->most)
            return EK_OK;
        b->rows = smaller(2 * b->rows, b->most);
    }
}

/* Passes for so many seconds, at least one. */
static ek_status make_round(const bench *b, double round_s, double *speed)
{
    int64_t start = ek_clock_ns();
    double passes = 0, seconds = 0;

    while (seconds < round_s || passes == 0) {
        EK_TRY(make_pass(b));
        passes++;
        seconds = seconds_since(start);
    }
    *speed = passes * pass_flops(b) / (seconds > 1e-9 ? seconds : 1e-9);
    return EK_OK;
}

/* All ranks take the rows of the fastest one, on which a pass of as many takes long enough. */
static ek_status agree_on_rows(ek_comm *world, bench *b)
{
    double rows = (double)-b->rows;

    EK_TRY(ek_minimum(world, &rows));
    b->rows = (int64_t)-rows;
    return EK_OK;
}

static ek_status measure_rounds(const ek_speed_config *cfg, const bench *b, double *speed)
{
    int rank = cfg->world != NULL ? ek_comm_rank(cfg->world) : 0;
    int ranks = cfg->world != NULL ? ek_comm_size(cfg->world) : 1;

    for (int i = 0; i < EK_SPEED_ROUNDS; i++) {
        double *all = speed + (int64_t)i * ranks;

        if (cfg->world != NULL)
            EK_TRY(ek_comm_barrier(cfg->world));
        EK_TRY(ek_agree(cfg->world, "measure speeds",
                        make_round(b, cfg->round_s > 0 ? cfg->round_s : ROUND_S, &all[rank])));
        EK_TRY(ek_gather(cfg->world, all, sizeof(*all)));
    }
    return EK_OK;
}

ek_status ek_measure_speeds(const ek_speed_config *cfg, double *speed)
{
    bench b = {0};
    ek_status st;

    ek_kernels_enter(cfg->k);
    st = open_bench(&b, cfg);
    if (st == EK_OK)
        st = grow_rows(&b);
    EK_TRY_OUT(ek_agree(cfg->world, "measure speeds", st));
    EK_TRY_OUT(agree_on_rows(cfg->world, &b));
    EK_TRY_OUT(measure_rounds(cfg, &b, speed));
out:
    ek_arena_fini(&b.arena);
    return st;
}
