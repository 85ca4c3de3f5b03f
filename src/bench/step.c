/* Whole training steps: `bench step`, and by op `bench kernels`.
 *
 * Both run real steps of a model with random weights on synthetic tokens, and record their ops.
 * On a device recording synchronises every op, so `step` times steps without recording and repeats
 * them with it for the breakdown.  FLOPs and bytes are those recorded on the ops of the step graph;
 * there are no formulas of their own here.  Wall time is that of whole steps: forward, backward,
 * optimizer, and packing of weights. */
#include "base/clock.h"
#include "base/threads.h"
#include "bench/bench_priv.h"
#include "model/hf/init.h"
#include "train/timing/predict.h"
#include "train/trainer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WARM_UP = 2, OPS_MAX = 2 * EK_OP_KINDS };

/* All ops of one kind in a step. */
typedef struct {
    ek_op_kind kind;
    int recompute;
    int64_t calls;       /* of the last step */
    double flops, bytes; /* of the last step */
    double now;          /* seconds in this step so far */
    double predicted;    /* seconds, of the last step; negative: not predicted */
    bench_samples seconds;
} op_row;

typedef struct {
    ek_model *model;
    ek_trainer *trainer;
    op_row *ops;
    int64_t n_ops;
    bench_samples wall;     /* of steps, seconds */
    bench_samples recorded; /* ... whose ops were recorded */
    ek_step_result last;
    int64_t resident;    /* resident bytes of model and trainer after the warm-up */
    size_t predicted;    /* by the measuring mode of their arenas */
    double start;        /* seconds from creating the model to the end of the first step */
    ek_machine *machine; /* of --machine; NULL: nothing is predicted */
    int64_t ops_a_step;
} steps;

static op_row *row_of(steps *s, const ek_event *e)
{
    for (int64_t i = 0; i < s->n_ops; i++)
        if (s->ops[i].recompute == e->recompute && s->ops[i].kind == e->kind)
            return &s->ops[i];
    if (s->n_ops == OPS_MAX)
        return NULL;
    s->ops[s->n_ops].kind = e->kind;
    s->ops[s->n_ops].recompute = e->recompute;
    return &s->ops[s->n_ops++];
}

/* Adds the prediction of an op to its row. */
static void add_predicted(const steps *s, const ek_event *e, op_row *r)
{
    ek_predict_config cfg = {.machine = s->machine, .nodes = 1};
    double seconds = s->machine != NULL ? ek_predict_op(&cfg, e) : -1;

    r->predicted = seconds < 0 || r->predicted < 0 ? -1 : r->predicted + seconds;
}

/* Sums the events of one step into its rows. */
static ek_status count_events(steps *s)
{
    int64_t n;
    const ek_event *e = ek_exec_events(ek_trainer_exec(s->trainer), &n);

    for (int64_t i = 0; i < s->n_ops; i++) {
        op_row *r = &s->ops[i];

        r->calls = 0;
        r->flops = r->bytes = r->now = r->predicted = 0;
    }
    s->ops_a_step = n;
    for (int64_t i = 0; i < n; i++) {
        op_row *r = row_of(s, &e[i]);

        EK_REQUIRE(r != NULL, EK_EINTERNAL, "more than %d kinds of ops in a step", OPS_MAX);
        r->calls++;
        r->flops += e[i].flops;
        r->bytes += e[i].bytes;
        r->now += (double)(e[i].end_ns - e[i].start_ns) * 1e-9;
        add_predicted(s, &e[i], r);
    }
    for (int64_t i = 0; i < s->n_ops; i++) {
        bench_add(&s->ops[i].seconds, s->ops[i].now);
    }
    return EK_OK;
}

static ek_status steps_create(const bench *b, steps *s)
{
    ek_trainer_config cfg = {
        .batch = b->cfg->batch,
        .seq = b->cfg->seq,
        .micro_batch = b->cfg->micro_batch,
        .aux_coef = 0.01,
        .recompute = b->cfg->recompute,
        .optimizer = {.lr = 1e-4,
                      .min_lr = 1e-4,
                      .steps = 2 * b->cfg->steps + WARM_UP,
                      .decay = 0.1,
                      .beta1 = 0.9,
                      .beta2 = 0.95,
                      .eps = 1e-8,
                      .clip = 1},
    };

    s->ops = calloc(OPS_MAX, sizeof(*s->ops));
    EK_REQUIRE(s->ops != NULL, EK_ENOMEM, "no memory for the times of ops");
    if (b->cfg->machine != NULL) {
        s->machine = calloc(1, sizeof(*s->machine));
        EK_REQUIRE(s->machine != NULL, EK_ENOMEM, "no memory for predictions");
        EK_TRY(ek_machine_read(b->cfg->machine, s->machine));
    }
    s->resident = -ek_rss_bytes();
    EK_TRY(ek_model_create(&b->spec, b->k, &(ek_model_config){.trained = 1}, &s->model));
    EK_TRY(ek_trainer_measure(s->model, &cfg, &s->predicted));
    s->predicted += s->model->arena.bytes;
    EK_TRY(ek_model_init(s->model, 0));
    EK_TRY(ek_model_pack(s->model));
    return ek_trainer_create(s->model, &cfg, &s->trainer);
}

static void steps_destroy(steps *s)
{
    ek_trainer_destroy(&s->trainer);
    ek_model_destroy(&s->model);
    free(s->ops);
    free(s->machine);
}

/* New tokens for every step; targets are the inputs shifted by one. */
static void fill_batch(const bench *b, steps *s, int64_t step)
{
    int64_t n = b->cfg->batch * b->cfg->seq;
    int32_t *inputs = ek_trainer_inputs(s->trainer), *targets = ek_trainer_targets(s->trainer);

    bench_fill_tokens(b->spec.vocab, (uint64_t)step, n, inputs);
    memcpy(targets, inputs + 1, (size_t)(n - 1) * sizeof(*targets));
    targets[n - 1] = inputs[0];
}

/* Times step i; record: also records its ops. */
static ek_status time_step(bench *b, steps *s, int64_t i, int record, double *seconds)
{
    ek_exec *ex = ek_trainer_exec(s->trainer);
    int64_t start;

    fill_batch(b, s, i);
    ek_exec_record(ex, record);
    ek_exec_forget(ex);
    start = ek_clock_ns();
    EK_TRY(ek_trainer_step(s->trainer, &s->last));
    *seconds = (double)(ek_clock_ns() - start) * 1e-9;
    return record ? count_events(s) : EK_OK;
}

/* began: when the model was begun to be created. */
static ek_status run_steps(bench *b, steps *s, int by_op, int64_t began)
{
    int record = by_op || b->on_cpu;
    double seconds;
    int64_t i = 0;

    for (; i < WARM_UP; i++) {
        EK_TRY(time_step(b, s, i, 0, &seconds));
        if (i == 0)
            s->start = (double)(ek_clock_ns() - began) * 1e-9;
    }
    s->resident += ek_rss_bytes();
    for (; i < WARM_UP + b->cfg->steps; i++) {
        EK_TRY(bench_measure_ceilings(b));
        EK_TRY(time_step(b, s, i, record, &seconds));
        bench_add(&s->wall, seconds);
    }
    s->recorded = s->wall;
    if (!record)
        memset(&s->recorded, 0, sizeof(s->recorded));
    for (; !record && i < WARM_UP + 2 * b->cfg->steps; i++) {
        EK_TRY(time_step(b, s, i, 1, &seconds));
        bench_add(&s->recorded, seconds);
    }
    return bench_measure_ceilings(b);
}

static void put_sizes(bench *b, const steps *s)
{
    char text[EK_COST_QUANTITY];

    bench_say(b,
              "%lld steps of %lld x %lld tokens in micro-batches of %lld, %s of the model each; "
              "busiest expert %.2f of the mean\n",
              (long long)b->cfg->steps, (long long)b->cfg->batch, (long long)b->cfg->seq,
              (long long)b->cfg->micro_batch, ek_cost_quantity(text, s->last.flops, "FLOP"),
              s->last.losses.expert_max_over_mean);
    bench_say(b, "%s from creating the model to the end of the first step\n",
              ek_cost_quantity(text, s->start, "s"));
    bench_put(b, "start_s", json_real(s->start));
    bench_put(b, "steps", json_integer(b->cfg->steps));
    bench_put(b, "batch", json_integer(b->cfg->batch));
    bench_put(b, "seq", json_integer(b->cfg->seq));
    bench_put(b, "micro_batch", json_integer(b->cfg->micro_batch));
    bench_put(b, "model_gflop_per_step", json_real(s->last.flops / 1e9));
    bench_put(b, "expert_max_over_mean", json_real(s->last.losses.expert_max_over_mean));
    bench_put(b, "step_ms", bench_stat_json(&s->wall, 1e3));
}

/* --- bench step ------------------------------------------------------------------------------ */

/* Ratios of a FLOP rate to the ceilings, and of resident memory to the prediction. */
static void put_ratios(bench *b, const steps *s, double rate)
{
    double of_bf16 = rate / bench_stat_of(&b->ceilings.bf16).median;
    double of_fp32 = rate / bench_stat_of(&b->ceilings.fp32).median;
    double of_best = rate / bench_matrix_ceiling(b);
    char text[EK_COST_QUANTITY];

    bench_say(b, "  %10.3f of the best matrix rate for %s\n", of_best,
              b->mode == EK_MODE_BF16 ? "bf16 (the larger of the next two)" : "fp32");
    bench_say(b, "  %10.3f of oneDNN bf16\n  %10.3f of oneDNN fp32\n", of_bf16, of_fp32);
    bench_say(b, "  %10s of memory for model and steps, %.3f of the prediction\n",
              ek_cost_quantity(text, (double)s->resident, "B"),
              (double)s->resident / (double)s->predicted);
    bench_put(b, "memory_mb", json_real((double)s->resident / 1e6));
    bench_put(b, "ratio", json_real(of_best));
    bench_put(b, "ratio_onednn_bf16", json_real(of_bf16));
    bench_put(b, "ratio_onednn_fp32", json_real(of_fp32));
}

static void put_rates(bench *b, const steps *s)
{
    bench_samples tokens = {0}, rate = {0};
    bench_stat t, r;
    char text[BENCH_RANGE];

    for (int64_t i = 0; i < s->wall.n; i++) {
        bench_add(&tokens, (double)s->last.tokens / s->wall.v[i]);
        bench_add(&rate, s->last.flops / s->wall.v[i]);
    }
    t = bench_stat_of(&tokens);
    r = bench_stat_of(&rate);
    bench_say(b, "median (min .. max) over steps\n");
    bench_say(b, "  %s\n", bench_tokens(text, t));
    bench_say(b, "  %s\n", bench_range(text, r, "FLOP/s", 0));
    if (b->on_cpu)
        put_ratios(b, s, r.median);
    else
        bench_say(b, "  %10s of memory predicted\n",
                  ek_cost_quantity(text, (double)s->predicted, "B"));
    bench_say(b, "\n");
    bench_put(b, "predicted_mb", json_real((double)s->predicted / 1e6));
    bench_put(b, "tokens_per_s", bench_stat_json(&tokens, 1));
    bench_put(b, "model_gflops", bench_stat_json(&rate, 1e-9));
}

typedef struct {
    const char *name;
    double median, flops; /* seconds, of one step; without repeated work */
    bench_samples seconds;
} group_row;

static int slower_group(const void *a, const void *b)
{
    double x = ((const group_row *)a)->median, y = ((const group_row *)b)->median;

    return (x < y) - (x > y);
}

enum { BETWEEN_OPS = EK_OP_GROUPS, GROUP_ROWS };

/* Sums the ops of every group step by step; what remains of a step is between ops.  Returns the
 * number of groups that have an op, which come first in rows [GROUP_ROWS]. */
static size_t sum_groups(const steps *s, group_row *rows)
{
    size_t n = 0;

    for (int g = 0; g < GROUP_ROWS; g++)
        rows[g].name = g == BETWEEN_OPS ? "between ops" : ek_op_group_name((ek_op_group)g);
    rows[BETWEEN_OPS].seconds = s->recorded;
    for (int64_t i = 0; i < s->n_ops; i++) {
        const op_row *op = &s->ops[i];
        group_row *g = &rows[ek_op_info_of(op->kind)->group];

        g->flops += op->recompute ? 0 : op->flops;
        g->seconds.n = s->recorded.n;
        for (int64_t j = 0; j < s->recorded.n; j++) {
            g->seconds.v[j] += op->seconds.v[j];
            rows[BETWEEN_OPS].seconds.v[j] -= op->seconds.v[j];
        }
    }
    for (int g = 0; g < GROUP_ROWS; g++)
        if (rows[g].seconds.n > 0) {
            rows[n] = rows[g];
            rows[n].median = bench_stat_of(&rows[n].seconds).median;
            n++;
        }
    qsort(rows, n, sizeof(*rows), slower_group);
    return n;
}

static ek_status put_groups(bench *b, const steps *s)
{
    group_row *rows = calloc(GROUP_ROWS, sizeof(*rows));
    size_t n;
    json_t *all = json_array();
    char time[EK_COST_QUANTITY], of[EK_COST_QUANTITY];

    EK_REQUIRE(rows != NULL, EK_ENOMEM, "no memory for the times of groups");
    n = sum_groups(s, rows);
    if (!b->on_cpu) {
        bench_say(b, "  as many steps again with every op synchronised: %s\n",
                  ek_cost_quantity(time, bench_stat_of(&s->recorded).median, "s"));
        bench_put(b, "recorded_step_ms", bench_stat_json(&s->recorded, 1e3));
    }
    bench_say(b, "  %-24s %9s %8s %13s\n", "where the time goes", "of a step", "share", "rate");
    for (size_t i = 0; i < n; i++) {
        double share = rows[i].median / bench_stat_of(&s->recorded).median;
        double rate = rows[i].median > 0 ? rows[i].flops / rows[i].median : 0;

        bench_say(b, "  %-24s %9s %6.1f %% %13s\n", rows[i].name,
                  ek_cost_quantity(time, rows[i].median, "s"), 100 * share,
                  rate > 0 ? ek_cost_quantity(of, rate, "FLOP/s") : "");
        bench_append(b, all,
                     json_pack("{s:s, s:o, s:f, s:f}", "name", rows[i].name, "ms",
                               bench_stat_json(&rows[i].seconds, 1e3), "share", share, "gflops",
                               rate / 1e9));
    }
    bench_put(b, "groups", all);
    free(rows);
    return EK_OK;
}

/* Compares the medians over steps with the predictions of --machine, by op, and the predicted step,
 * all ops and what the executor takes for each, with the measured one. */
static ek_status put_predicted(bench *b, const steps *s)
{
    ek_compare *c = s->machine != NULL ? calloc(1, sizeof(*c)) : NULL;
    double predicted = 0, measured = bench_stat_of(&s->recorded).median;
    char text[2][EK_COST_QUANTITY];

    EK_REQUIRE(s->machine == NULL || c != NULL, EK_ENOMEM, "no memory for predictions");
    if (c == NULL)
        return EK_OK;
    ek_compare_begin(c);
    for (int64_t i = 0; i < s->n_ops; i++) {
        const op_row *r = &s->ops[i];

        ek_compare_add_sum(c, (int)r->kind, ek_op_name(r->kind), r->calls, r->predicted,
                           bench_stat_of(&r->seconds).median);
        predicted += fmax(r->predicted, 0);
    }
    predicted += (double)s->ops_a_step * s->machine->op_s;
    ek_compare_sort(c);
    bench_put_compared(b, c);
    bench_say(b, "a step: %s predicted, %s measured, measured/predicted %.3f\n",
              ek_cost_quantity(text[0], predicted, "s"), ek_cost_quantity(text[1], measured, "s"),
              measured / predicted);
    bench_put(b, "predicted_step_ms", json_real(predicted * 1e3));
    free(c);
    return EK_OK;
}

/* --- bench kernels --------------------------------------------------------------------------- */

static int slower_op(const void *a, const void *b)
{
    double x = bench_stat_of(&((const op_row *)a)->seconds).median;
    double y = bench_stat_of(&((const op_row *)b)->seconds).median;

    return (x < y) - (x > y);
}

/* Ratio of an op to the ceiling that bounds it: matrix rate or copy bandwidth. */
static void put_ratio(bench *b, const op_row *r, double seconds, json_t *row)
{
    double arithmetic = r->flops / bench_matrix_ceiling(b),
           memory = r->bytes / bench_copy_ceiling(b);
    const char *bound = arithmetic > memory ? "matrix" : "copy";
    double ratio = fmax(arithmetic, memory) / seconds;

    bench_say(b, "  %5.2f %s", ratio, bound);
    if (json_object_update_new(row, json_pack("{s:f, s:s}", "ratio", ratio, "bound", bound)) != 0)
        b->lost = 1;
}

static void put_op(bench *b, const op_row *r, double wall, json_t *all)
{
    bench_stat t = bench_stat_of(&r->seconds);
    double share = t.median / wall, gflops = r->flops / t.median / 1e9,
           gbs = r->bytes / t.median / 1e9;
    char time[BENCH_RANGE], rate[2][EK_COST_QUANTITY];
    json_t *row =
        json_pack("{s:s, s:b, s:I, s:o, s:f, s:f, s:f}", "name", ek_op_name(r->kind), "recompute",
                  r->recompute, "calls", (json_int_t)r->calls, "ms",
                  bench_stat_json(&r->seconds, 1e3), "share", share, "gflops", gflops, "gbs", gbs);

    bench_say(b, "  %-23s%c %5lld %s %5.1f %% %12s %9s", ek_op_name(r->kind),
              r->recompute ? '*' : ' ', (long long)r->calls, bench_range(time, t, "s", 7),
              100 * share, r->flops > 0 ? ek_cost_quantity(rate[0], gflops * 1e9, "FLOP/s") : "",
              ek_cost_quantity(rate[1], gbs * 1e9, "B/s"));
    if (b->on_cpu)
        put_ratio(b, r, t.median, row);
    bench_say(b, "\n");
    bench_append(b, all, row);
}

static void put_ops(bench *b, steps *s)
{
    json_t *all = json_array();

    qsort(s->ops, (size_t)s->n_ops, sizeof(*s->ops), slower_op);
    bench_say(b, "  %-24s %5s %7s (%7s .. %7s) %7s %12s %9s  %s\n", "op", "calls", "a step", "min",
              "max", "share", "computes", "moves", b->on_cpu ? "of its ceiling" : "");
    for (int64_t i = 0; i < s->n_ops; i++)
        put_op(b, &s->ops[i], bench_stat_of(&s->wall).median, all);
    bench_say(b, "  * repeats work of the forward pass: no FLOPs of the model\n");
    bench_put(b, "ops", all);
}

static ek_status measure(bench *b, int by_op)
{
    steps *s = calloc(1, sizeof(*s));
    int64_t began = ek_clock_ns();
    ek_status st = EK_OK;

    EK_REQUIRE(s != NULL, EK_ENOMEM, "no memory for a benchmark");
    EK_TRY_OUT(steps_create(b, s));
    EK_TRY_OUT(run_steps(b, s, by_op, began));
    put_sizes(b, s);
    if (by_op) {
        put_ops(b, s);
    } else {
        put_rates(b, s);
        EK_TRY_OUT(put_groups(b, s));
        EK_TRY_OUT(put_predicted(b, s));
    }
out:
    steps_destroy(s);
    free(s);
    return st;
}

ek_status bench_kernels(bench *b)
{
    return measure(b, 1);
}

ek_status bench_step(bench *b)
{
    return measure(b, 0);
}
