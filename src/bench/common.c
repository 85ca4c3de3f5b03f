/* Shared by the benchmarks: samples, ceilings, data, and output as text or JSON. */
#include "base/clock.h"
#include "base/count_text.h"
#include "base/log.h"
#include "base/random.h"
#include "base/sort.h"
#include "base/threads.h"
#include "bench/bench_priv.h"
#include "tensor/cpu/ceiling.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

void bench_add(bench_samples *s, double x)
{
    if (s->n < (int64_t)(sizeof(s->v) / sizeof(s->v[0])))
        s->v[s->n++] = x;
}

bench_stat bench_stat_of(const bench_samples *s)
{
    bench_samples sorted = *s;
    int64_t n = s->n;

    if (n == 0)
        return (bench_stat){0, 0, 0};
    ek_sort_reals(sorted.v, n);
    return (bench_stat){0.5 * (sorted.v[(n - 1) / 2] + sorted.v[n / 2]), sorted.v[0],
                        sorted.v[n - 1]};
}

const char *bench_range(char *text, bench_stat s, const char *unit, int width)
{
    char median[EK_COST_QUANTITY], min[EK_COST_QUANTITY], max[EK_COST_QUANTITY];

    snprintf(text, BENCH_RANGE, "%*s (%*s .. %*s)", width, ek_cost_quantity(median, s.median, unit),
             width, ek_cost_quantity(min, s.min, unit), width, ek_cost_quantity(max, s.max, unit));
    return text;
}

const char *bench_tokens(char *text, bench_stat per_s)
{
    char median[16], min[16], max[16];

    snprintf(text, BENCH_RANGE, "%s tokens/s (%s .. %s)",
             ek_number_text(median, sizeof(median), per_s.median),
             ek_number_text(min, sizeof(min), per_s.min),
             ek_number_text(max, sizeof(max), per_s.max));
    return text;
}

ek_status bench_measure_memory(bench *b)
{
    double copy, only_read;

    EK_TRY(ek_copy_bandwidth(b->cfg->seconds, &copy));
    EK_TRY(ek_read_bandwidth(b->cfg->seconds, &only_read));
    bench_add(&b->ceilings.copy, copy);
    bench_add(&b->ceilings.read, only_read);
    return EK_OK;
}

ek_status bench_measure_ceilings(bench *b)
{
    double bf16, fp32;

    if (!b->on_cpu)
        return EK_OK;
    EK_TRY(ek_gemm_ceiling(EK_MODE_BF16, b->cfg->seconds, &bf16));
    EK_TRY(ek_gemm_ceiling(EK_MODE_FP32, b->cfg->seconds, &fp32));
    bench_add(&b->ceilings.bf16, bf16);
    bench_add(&b->ceilings.fp32, fp32);
    return bench_measure_memory(b);
}

double bench_matrix_ceiling(const bench *b)
{
    double fp32 = bench_stat_of(&b->ceilings.fp32).median;

    return b->mode == EK_MODE_BF16 ? fmax(fp32, bench_stat_of(&b->ceilings.bf16).median) : fp32;
}

double bench_copy_ceiling(const bench *b)
{
    return bench_stat_of(&b->ceilings.copy).median;
}

void bench_print_ceilings(bench *b)
{
    const struct {
        const char *text, *key, *unit;
        const bench_samples *samples;
    } rows[] = {
        {"oneDNN bf16 products", "onednn_bf16_gflops", "FLOP/s", &b->ceilings.bf16},
        {"oneDNN fp32 products", "onednn_fp32_gflops", "FLOP/s", &b->ceilings.fp32},
        {"copy, read and written", "copy_gbs", "B/s", &b->ceilings.copy},
        {"memory read alone", "read_gbs", "B/s", &b->ceilings.read},
    };
    json_t *all = json_object();

    bench_say(b, "\nceilings, measured in turn with the above: median (min .. max)\n");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char range[BENCH_RANGE];

        bench_say(b, "  %-24s %s, %lld times\n", rows[i].text,
                  bench_range(range, bench_stat_of(rows[i].samples), rows[i].unit, 12),
                  (long long)rows[i].samples->n);
        if (json_object_set_new(all, rows[i].key, bench_stat_json(rows[i].samples, 1e-9)) != 0)
            b->lost = 1;
    }
    if (!ek_gemm_ceiling_is_known(EK_MODE_BF16))
        bench_say(b, "  oneDNN has no bf16 products for this CPU: those figures are of fp32\n");
    bench_put(b, "ceilings", all);
}

ek_status bench_set_nodes(const bench *b)
{
    int *node;

    if (b->cfg->ranks_a_node == 0 || b->job->ranks == 1)
        return EK_OK;
    node = calloc((size_t)b->job->ranks, sizeof(*node));
    EK_REQUIRE(node != NULL, EK_ENOMEM, "no memory for %d ranks", b->job->ranks);
    for (int r = 0; r < b->job->ranks; r++)
        node[r] = r / b->cfg->ranks_a_node;
    ek_comm_set_nodes(b->job->world, node);
    free(node);
    return EK_OK;
}

void bench_fill(ek_dtype type, int64_t n, void *x)
{
    enum { PERIOD = 4093 }; /* prime, so that rows differ */

    for (int64_t i = 0; i < n; i++) {
        double v = ((double)(i % PERIOD) + 0.5) / PERIOD - 0.5;

        if (type == EK_F64)
            ((double *)x)[i] = v;
        else if (type == EK_F32)
            ((float *)x)[i] = (float)v;
        else
            ((ek_bf16 *)x)[i] = ek_bf16_from_float((float)v);
    }
}

void bench_fill_tokens(int64_t vocab, uint64_t stream, int64_t n, int32_t *ids)
{
    for (int64_t i = 0; i < n; i++) {
        double u = ek_random_uniform(0, stream, (uint64_t)i);

        ids[i] = (int32_t)(exp(u * log((double)vocab + 1)) - 1);
        if (ids[i] >= vocab)
            ids[i] = (int32_t)(vocab - 1);
    }
}

void bench_say(const bench *b, const char *format, ...)
{
    va_list args;

    if (!b->text)
        return;
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    fflush(stdout);
}

void bench_put(bench *b, const char *key, json_t *value)
{
    if (json_object_set_new(b->json, key, value) != 0)
        b->lost = 1;
}

void bench_append(bench *b, json_t *array, json_t *row)
{
    if (json_array_append_new(array, row) != 0)
        b->lost = 1;
}

json_t *bench_stat_json(const bench_samples *s, double scale)
{
    bench_stat t = bench_stat_of(s);

    return json_pack("{s:f, s:f, s:f, s:I}", "median", t.median * scale, "min", t.min * scale,
                     "max", t.max * scale, "n", (json_int_t)s->n);
}

/* --- ranks ------------------------------------------------------------------------------------ */

ek_status bench_open_mesh(const bench *b, bench_mesh *m)
{
    m->ranks = b->job->ranks;
    m->mesh = &ek_mesh_one;
    m->nodes = 1;
    EK_TRY(ek_mesh_check(&b->cfg->sizes, m->ranks));
    if (m->ranks == 1)
        return EK_OK;
    EK_TRY(ek_mesh_open(b->job->world, &b->cfg->sizes, &m->opened));
    m->mesh = m->opened;
    for (int r = 0; r < m->ranks; r++)
        if (ek_comm_node(b->job->world, r) >= m->nodes)
            m->nodes = ek_comm_node(b->job->world, r) + 1;
    return EK_OK;
}

void bench_close_mesh(bench_mesh *m)
{
    ek_mesh_close(&m->opened);
}

int bench_inline_async(const bench *b)
{
    const ek_comm *world = b->job->ranks > 1 ? b->job->world : NULL;

    return ek_comm_ranks_here(world) * b->k->threads >= ek_cores_usable();
}

ek_status bench_agree(const bench *b, double *x, int64_t n, ek_reduce how)
{
    ek_coll *op;

    if (b->job->world == NULL)
        return EK_OK;
    EK_TRY(ek_comm_all_reduce(b->job->world, x, n, how, &op));
    EK_TRY(ek_coll_wait(&op));
    return EK_OK;
}

/* Maximum of x over all ranks.  Waiting ranks sleep, to leave the cores to the others. */
static ek_status largest_of_ranks(const bench *b, double *x)
{
    const struct timespec nap = {.tv_nsec = 200000};
    ek_coll *op;
    ek_status st;

    EK_TRY(ek_comm_all_reduce(b->job->world, x, 1, EK_MAX_F64, &op));
    while ((st = ek_coll_test(&op)) == EK_PENDING)
        nanosleep(&nap, NULL);
    EK_TRY(st);
    return EK_OK;
}

ek_status bench_time_calls(const bench *b, ek_status (*call)(const void *context),
                           const void *context, double *seconds)
{
    enum { TIMES_MAX = 10000 };
    double times = 1;

    *seconds = 0;
    for (int round = 0; round < 2; round++) { /* the first determines the number of calls */
        int64_t start;

        if (round == 1)
            times = fmin(fmax(b->cfg->seconds / *seconds, 1), TIMES_MAX);
        EK_TRY(largest_of_ranks(b, &times));
        EK_TRY(ek_comm_barrier(b->job->world));
        start = ek_clock_ns();
        for (int i = 0; i < (int)times; i++)
            EK_TRY(call(context));
        *seconds = (double)(ek_clock_ns() - start) * 1e-9 / (double)(int)times;
        EK_TRY(largest_of_ranks(b, seconds));
    }
    return EK_OK;
}

static void show_log(void *context, ek_log_level level, const char *component, const char *message)
{
    FILE *messages = context;

    (void)component;
    fprintf(messages, "evenkeel bench: %s: %s\n", ek_log_level_name(level), message);
}

void bench_show_warnings(const bench *b)
{
    if (b->job->rank == 0)
        ek_log_set_sink(show_log, b->job->messages, EK_LOG_WARN);
}
