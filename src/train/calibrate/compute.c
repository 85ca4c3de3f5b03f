/* Measures matrix products of experts by number of rows, and copies.
 *
 * Numbers of rows are measured in an order in which a truncated table is useful: near the best
 * rate, one row, then points around and between; points beyond the budget are left out.
 *
 * If this rank has less than a processor per thread (a container's limit, more ranks than cores), a
 * call of milliseconds either runs at full speed or is descheduled for long, and neither is the
 * speed of training.  So with one thread CPU time is measured, and all times are divided by the
 * share of CPU time in wall time.  Several threads also wait for each other, so their wall time is
 * used.
 *
 * Every expert has its own weights, so that few rows read them from the same level of memory as in
 * training.  Large experts are measured with smaller width, and only some of many experts: rates
 * hardly depend on it, but memory and time do. */
#include "base/arena.h"
#include "base/clock.h"
#include "comm/agree.h"
#include "cost/cost.h"
#include "tensor/cpu/ceiling.h"
#include "train/calibrate/calibrate_priv.h"

#include <math.h>
#include <string.h>

enum {
    EXPERTS_MOST = 8,
    WEIGHTS_MOST = 16 << 20, /* numbers of all experts, and of one, with a large budget */
    WEIGHTS_LEAST = 256 << 10,
    WEIGHTS_A_SECOND = 32 << 20,
    ROWS_BYTES_MOST = 64 << 20,
    ROWS_MOST = 2048, /* rows of all experts together: with many rows each, few experts suffice */
    COPY_BYTES_MOST = 32 << 20,
    COPY_BYTES_LEAST = 1 << 20,
    COPY_BYTES_A_SECOND = 400 << 20,
    POINTS = 6,
    FILL = 0x3c /* a small number in every type */
};

#define COPIES_S_MOST 0.2

static const int64_t rows_of[POINTS] = {1, 4, 16, 64, 256, 1024};
static const int order[POINTS] = {3, 0, 4, 2, 5, 1};

static size_t form_bytes(const ek_expert_bench *b, int down, int form)
{
    int64_t out = down ? b->d : 2 * b->f, in = down ? b->f : b->d;
    size_t bytes = b->k->packed_bytes(b->k, out, in, (ek_form)form);

    return bytes > 0 ? bytes : (size_t)(out * in) * ek_dtype_size(b->k->real);
}

/* Memory that can be initialised in this time. */
static int64_t affordable_bytes(double seconds, int64_t a_second, int64_t least, int64_t most)
{
    double x = seconds * (double)a_second;

    return x < (double)least ? least : x > (double)most ? most : (int64_t)x;
}

int64_t ek_expert_bench_rows(const ek_expert_bench *b, int64_t wanted)
{
    int64_t wide = 2 * b->f > b->d ? 2 * b->f : b->d;

    return ek_calibrate_at_most(ek_calibrate_at_most(wanted, ROWS_MOST),
                                ROWS_BYTES_MOST / (wide * (int64_t)ek_dtype_size(b->k->comp)));
}

static void choose_sizes(const ek_calibration *c, double budget_s, ek_expert_bench *b)
{
    int64_t weights = affordable_bytes(budget_s, WEIGHTS_A_SECOND, WEIGHTS_LEAST, WEIGHTS_MOST);
    const ek_model_spec *s = c->cfg->spec;
    int64_t experts = c->m->experts;

    b->k = c->cfg->k;
    b->d = s->hidden;
    b->f = ek_calibrate_at_most(s->ff, weights / (3 * b->d));
    b->experts = ek_calibrate_at_most(ek_calibrate_at_most(experts, EXPERTS_MOST),
                                      weights / (3 * b->d * b->f));
    b->rows = ek_expert_bench_rows(b, ROWS_MOST);
    b->rows = b->rows < rows_of[order[0]] ? rows_of[order[0]] : b->rows;
}

static void layout_bench(ek_expert_bench *b)
{
    int64_t rows = b->rows, wide = 2 * b->f > b->d ? 2 * b->f : b->d;
    size_t comp = ek_dtype_size(b->k->comp), real = ek_dtype_size(b->k->real);
    size_t up = b->k->linear_workspace(b->k, rows, b->experts, 2 * b->f, b->d);
    size_t down = b->k->linear_workspace(b->k, rows, b->experts, b->d, b->f);

    b->up = ek_arena_alloc(&b->arena, b->experts, sizeof(*b->up));
    b->down = ek_arena_alloc(&b->arena, b->experts, sizeof(*b->down));
    b->x = ek_arena_alloc(&b->arena, rows * wide, comp);
    b->out = ek_arena_alloc(&b->arena, rows * wide, comp);
    b->master = ek_arena_alloc(&b->arena, 2 * b->f * b->d, real);
    for (int i = 0; i < 2; i++) {
        for (int form = 0; form < 2; form++)
            b->packed[i][form] = ek_arena_alloc(&b->arena, b->experts, form_bytes(b, i, form));
        b->dw[i] = ek_arena_alloc(&b->arena, b->experts * (2 - i) * b->f * b->d, real);
    }
    b->ws = ek_arena_alloc(&b->arena, (int64_t)(up > down ? up : down), 1);
}

/* The first expert's form, then copies of it. */
static ek_status pack_weights(ek_expert_bench *b, int down, int form)
{
    int64_t out = down ? b->d : 2 * b->f, in = down ? b->f : b->d;
    size_t bytes = form_bytes(b, down, form);
    char *first = b->packed[down][form];

    if (b->k->packed_bytes(b->k, out, in, (ek_form)form) == 0)
        memcpy(first, b->master, bytes);
    else
        EK_TRY(b->k->pack(b->k, out, in, (ek_form)form, b->master, first));
    for (int64_t i = 1; i < b->experts; i++)
        memcpy(first + (size_t)i * bytes, first, bytes);
    return EK_OK;
}

void ek_expert_bench_measure(ek_expert_bench *b)
{
    ek_arena_measure_from(&b->arena, b->k->memory, NULL);
    layout_bench(b);
}

ek_status ek_expert_bench_open(ek_expert_bench *b)
{
    int64_t rows, wide;

    ek_expert_bench_measure(b);
    EK_TRY(ek_arena_check(&b->arena, "calibration"));
    EK_TRY(ek_arena_reserve(&b->arena, "calibration"));
    layout_bench(b);
    EK_TRY(ek_arena_check(&b->arena, "calibration"));
    rows = b->rows;
    wide = 2 * b->f > b->d ? 2 * b->f : b->d;
    memset(b->x, FILL, (size_t)(rows * wide) * ek_dtype_size(b->k->comp));
    memset(b->master, FILL, (size_t)(2 * b->f * b->d) * ek_dtype_size(b->k->real));
    for (int i = 0; i < 2; i++) /* there may be one call only, which should not fault in pages */
        memset(b->dw[i], 0,
               (size_t)(b->experts * (2 - i) * b->f * b->d) * ek_dtype_size(b->k->real));
    memset(b->out, 0, (size_t)(rows * wide) * ek_dtype_size(b->k->comp));
    for (int i = 0; i < 4; i++)
        EK_TRY(pack_weights(b, i / 2, i % 2));
    return ek_kernels_wait(b->k);
}

/* Number of experts with which a point is measured. */
static int64_t experts_of(const ek_expert_bench *b, int point)
{
    return ek_calibrate_at_most(b->rows / rows_of[point], b->experts);
}

void ek_expert_bench_set_groups(const ek_expert_bench *b, ek_cost_product p, int64_t rows,
                                int64_t experts)
{
    int form = p == EK_COST_FORWARD ? EK_PACKED_FORWARD : EK_PACKED_BACKWARD;
    size_t real = ek_dtype_size(b->k->real);

    for (int64_t e = 0; e < experts; e++) {
        for (int i = 0; i < 2; i++) {
            size_t weight = (size_t)e * form_bytes(b, i, form);
            size_t gradient = (size_t)(e * (2 - i) * b->f * b->d) * real;

            (i == 0 ? b->up : b->down)[e] = (ek_group){
                e * rows, rows, (char *)b->packed[i][form] + weight, (char *)b->dw[i] + gradient};
        }
    }
}

ek_status ek_expert_bench_call(const ek_expert_bench *b, ek_cost_product p, int64_t n)
{
    const ek_kernels *k = b->k;
    int64_t d = b->d, f = b->f, f2 = 2 * b->f;

    switch (p) {
    case EK_COST_FORWARD:
        EK_TRY(k->linear_forward(k, b->up, n, f2, d, b->x, d, b->out, f2, EK_OUT_COMP, b->ws));
        return k->linear_forward(k, b->down, n, d, f, b->x, f, b->out, d, EK_OUT_COMP, b->ws);
    case EK_COST_BACKWARD_INPUT:
        EK_TRY(
            k->linear_backward_input(k, b->down, n, d, f, b->x, d, b->out, f, EK_OUT_COMP, b->ws));
        return k->linear_backward_input(k, b->up, n, f2, d, b->x, f2, b->out, d, EK_OUT_COMP,
                                        b->ws);
    default:
        EK_TRY(k->linear_backward_weight(k, b->down, n, d, f, b->x, d, b->x, f, b->ws));
        return k->linear_backward_weight(k, b->up, n, f2, d, b->x, f2, b->x, d, b->ws);
    }
}

/* This rank's measurements: seconds of each product, by point; missing where time ran out. */
typedef struct {
    double seconds[EK_COST_PRODUCTS][POINTS], missing[POINTS];
    ek_repeats repeats[EK_COST_PRODUCTS][POINTS];
    ek_cpu_share share;
} times;

static double share_of(const times *t)
{
    return ek_cpu_share_of(&t->share);
}

static ek_status time_call(ek_expert_bench *b, ek_cost_product p, int point, times *t,
                           double *seconds)
{
    ek_stopwatch watch;

    ek_expert_bench_set_groups(b, p, rows_of[point], experts_of(b, point));
    watch = ek_stopwatch_start();
    EK_TRY(ek_expert_bench_call(b, p, experts_of(b, point)));
    *seconds = ek_stopwatch_stop(&watch, b->k->threads, &t->share);
    return EK_OK;
}

/* Makes every call once, as a warm-up; leaves out points that would take too long. */
static ek_status warm_up(ek_expert_bench *b, int64_t start, double budget, times *t)
{
    double base = 0; /* seconds of all products of the first point, warmed up */

    for (int i = 0; i < POINTS; i++) {
        int point = order[i];
        double rows = (double)(rows_of[point] * experts_of(b, point));
        double longer = rows / (double)(rows_of[order[0]] * experts_of(b, order[0]));

        t->missing[point] = i > 0 && (rows_of[point] > b->rows ||
                                      ek_calibrate_since(start) +
                                              2 * base / share_of(t) * (longer > 1 ? longer : 1) >
                                          budget);
        for (int p = 0; p < EK_COST_PRODUCTS && t->missing[point] == 0; p++) {
            double seconds;

            EK_TRY(time_call(b, (ek_cost_product)p, point, t, &t->seconds[p][point]));
            if (i > 0 || ek_calibrate_since(start) + t->seconds[p][point] / share_of(t) > budget)
                continue;
            EK_TRY(time_call(b, (ek_cost_product)p, point, t, &seconds));
            ek_repeats_add(&t->repeats[p][point], seconds);
            t->seconds[p][point] = seconds;
            base += seconds;
        }
    }
    return EK_OK;
}

/* Repeats each measurement that does not agree yet, if time allows; *calls: how many. */
static ek_status repeat_unsettled(ek_expert_bench *b, int64_t start, double budget, times *t,
                                  int *calls)
{
    *calls = 0;
    for (int i = 0; i < POINTS; i++) {
        for (int p = 0; p < EK_COST_PRODUCTS && t->missing[order[i]] == 0; p++) {
            ek_repeats *r = &t->repeats[p][order[i]];
            double *best = &t->seconds[p][order[i]], seconds;

            if (ek_repeats_agree(r) || ek_calibrate_since(start) + *best / share_of(t) > budget)
                continue;
            EK_TRY(time_call(b, (ek_cost_product)p, order[i], t, &seconds));
            ek_repeats_add(r, seconds);
            *best = r->best;
            ++*calls;
        }
    }
    return EK_OK;
}

static ek_status measure_all(ek_expert_bench *b, int64_t start, double budget, times *t)
{
    int calls = 1;

    EK_TRY(warm_up(b, start, 0.8 * budget, t));
    while (calls > 0)
        EK_TRY(repeat_unsettled(b, start, budget, t, &calls));
    return EK_OK;
}

/* Keeps the points that every rank has measured, with the slowest rank's time.  Collective. */
static ek_status agree_on_rates(ek_calibration *c, const ek_expert_bench *b, times *t)
{
    for (int i = 0; i < EK_COST_PRODUCTS * POINTS; i++)
        t->seconds[i / POINTS][i % POINTS] /= share_of(t);
    EK_TRY(ek_calibrate_largest(c, &t->seconds[0][0], EK_COST_PRODUCTS * POINTS));
    EK_TRY(ek_calibrate_largest(c, t->missing, POINTS));
    for (int p = 0; p < EK_COST_PRODUCTS; p++) {
        ek_cost_table *rate = &c->m->rate[p];

        for (int i = 0; i < POINTS; i++) {
            double flops = (double)(rows_of[i] * experts_of(b, i)) * ek_cost_row_flops(b->d, b->f);

            if (t->missing[i] > 0)
                continue;
            rate->x[rate->n] = (double)rows_of[i];
            rate->y[rate->n++] = ek_cost_round(flops / fmax(t->seconds[p][i], 1e-9));
        }
        ek_cost_smooth_rates(rate);
    }
    c->m->hidden = b->d;
    c->m->ff = b->f;
    c->m->experts = b->experts;
    return EK_OK;
}

/* share: this rank's share of CPU time. */
static ek_status measure_copies(ek_calibration *c, double seconds, double share)
{
    double slowest, rate = 1;
    int64_t bytes =
        affordable_bytes(seconds, COPY_BYTES_A_SECOND, COPY_BYTES_LEAST, COPY_BYTES_MOST);
    ek_status st = ek_copy_bandwidth_of((size_t)bytes, seconds / 2, &rate); /* half to get them */

    EK_TRY(ek_agree(c->ranks > 1 ? c->world : NULL, "measure copies", st));
    slowest = -rate * share;
    EK_TRY(ek_calibrate_largest(c, &slowest, 1));
    c->m->copy = ek_cost_round(-slowest);
    return EK_OK;
}

ek_status ek_calibrate_compute(ek_calibration *c, double budget_s)
{
    int64_t start = ek_clock_ns();
    double copies_s = fmin(0.1 * budget_s, COPIES_S_MOST);
    ek_expert_bench b = {0};
    times t = {0};
    ek_status st;

    choose_sizes(c, budget_s, &b);
    st = ek_expert_bench_open(&b);
    if (st == EK_OK)
        st = measure_all(&b, start, budget_s - copies_s, &t);
    ek_arena_fini(&b.arena);
    EK_TRY(ek_agree(c->ranks > 1 ? c->world : NULL, "measure products", st));
    EK_TRY(agree_on_rates(c, &b, &t));
    return measure_copies(c, copies_s, share_of(&t));
}
