/* Training runs equal those of an independent implementation in PyTorch, step by step, from the
 * same weights and tokens (tests/golden/make_reference.py): in double over 50 steps; in single
 * over the first 10, as later a nearly tied routing decision may fall differently; in bf16 near
 * the single precision run over 40. */
#include "base/json.h"
#include "data/windows.h"
#include "ek_test.h"
#include "model/hf/config.h"
#include "model/hf/source.h"
#include "tensor/select/select.h"
#include "train/trainer.h"

#define RUNS EK_TEST_DATA "/golden/reference"

enum { STEPS_MAX = 50, STEPS_FP32 = 10, STEPS_BF16 = 40 };

typedef struct {
    double loss[STEPS_MAX], aux[STEPS_MAX], grad_norm[STEPS_MAX];
    int n;
} trajectory;

/* A folder of the reference, open. */
typedef struct {
    const char *name;
    ek_path folder;
    ek_model_spec spec;
    ek_tokens *tokens;
    ek_trainer_config cfg;
    trajectory fp64, fp32, bf16;
} golden;

/* Which arithmetic computes a run. */
typedef struct {
    ek_mode mode;
    ek_isa isa;
    int threads, steps;
} how;

static int ok(ek_status st, const char *what)
{
    if (st < 0)
        EK_T_FAIL("%s: %s", what, ek_err_text());
    return st >= 0;
}

static double number(const json_t *g, const char *key)
{
    const json_t *x = json_object_get(g, key);

    CHECK(json_is_number(x));
    return json_number_value(x);
}

static void numbers(const json_t *object, const char *key, double *out, int *n)
{
    const json_t *a = json_object_get(object, key);

    CHECK(json_array_size(a) > 0 && json_array_size(a) <= STEPS_MAX);
    *n = (int)json_array_size(a);
    for (int i = 0; i < *n && i < STEPS_MAX; i++)
        out[i] = json_number_value(json_array_get(a, (size_t)i));
}

static void read_trajectory(const json_t *g, const char *type, trajectory *t)
{
    const json_t *x = json_object_get(g, type);

    numbers(x, "loss", t->loss, &t->n);
    numbers(x, "aux", t->aux, &t->n);
    numbers(x, "grad_norm", t->grad_norm, &t->n);
}

static void read_golden(const json_t *j, golden *g)
{
    g->cfg = (ek_trainer_config){.batch = (int64_t)number(j, "batch"),
                                 .seq = (int64_t)number(j, "seq"),
                                 .micro_batch = (int64_t)number(j, "micro"),
                                 .aux_coef = number(j, "aux"),
                                 .optimizer = {.lr = number(j, "lr"),
                                               .steps = STEPS_MAX,
                                               .decay = number(j, "wd"),
                                               .beta1 = 0.9,
                                               .beta2 = 0.95,
                                               .eps = 1e-8,
                                               .clip = number(j, "clip")}};
    read_trajectory(j, "float64", &g->fp64);
    read_trajectory(j, "float32", &g->fp32);
    read_trajectory(j, "bfloat16", &g->bf16);
    CHECK_INT(g->fp64.n, STEPS_MAX);
    CHECK(g->fp32.n >= STEPS_BF16 && g->bf16.n >= STEPS_BF16);
}

static int open_golden(const char *name, golden *g)
{
    ek_path config, answers, tokens;
    const char *paths[] = {tokens.s};
    ek_tokens_config tc = {.paths = paths, .n_paths = 1, .token_bytes = 2};
    json_t *j = NULL;

    memset(g, 0, sizeof(*g));
    g->name = name;
    if (!ok(ek_path_set(&g->folder, "%s/%s", RUNS, name), name) ||
        !ok(ek_path_set(&config, "%s/config.json", g->folder.s), name) ||
        !ok(ek_path_set(&answers, "%s/golden.json", g->folder.s), name) ||
        !ok(ek_path_set(&tokens, "%s/tokens.bin", g->folder.s), name) ||
        !ok(ek_hf_config_read(config.s, &g->spec), name) || !ok(ek_json_read(answers.s, &j), name))
        return 0;
    tc.vocab = g->spec.vocab;
    read_golden(j, g);
    json_decref(j);
    return ok(ek_tokens_open(&tc, &g->tokens), name);
}

static ek_status take_steps(const golden *g, ek_trainer *tr, int steps, trajectory *out)
{
    ek_windows windows;

    EK_TRY(ek_windows_init(&windows, g->tokens, g->cfg.batch, g->cfg.seq, EK_ORDER_SEQUENTIAL, 0));
    for (out->n = 0; out->n < steps; out->n++) {
        ek_step_result r;

        for (int64_t b = 0; b < g->cfg.batch; b++)
            EK_TRY(ek_windows_row(&windows, out->n, b, ek_trainer_inputs(tr) + b * g->cfg.seq,
                                  ek_trainer_targets(tr) + b * g->cfg.seq));
        EK_TRY(ek_trainer_step(tr, &r));
        out->loss[out->n] = r.losses.loss;
        out->aux[out->n] = r.losses.aux_loss;
        out->grad_norm[out->n] = r.grad_norm;
    }
    return EK_OK;
}

/* Trains from the folder's weights. */
static ek_status train(const golden *g, how h, trajectory *out)
{
    ek_kernels *k = NULL;
    ek_model *m = NULL;
    ek_trainer *tr = NULL;
    ek_status st = EK_OK;

    memset(out, 0, sizeof(*out));
    EK_TRY_OUT(ek_kernels_create(h.mode, h.isa, h.threads, &k));
    EK_TRY_OUT(ek_model_create(&g->spec, k, &(ek_model_config){.trained = 1}, &m));
    EK_TRY_OUT(ek_model_load_path(m, g->folder.s, NULL));
    EK_TRY_OUT(ek_model_pack(m));
    EK_TRY_OUT(ek_trainer_create(m, &g->cfg, &tr));
    EK_TRY_OUT(take_steps(g, tr, h.steps, out));
out:
    ek_trainer_destroy(&tr);
    ek_model_destroy(&m);
    ek_kernels_destroy(&k);
    return st;
}

/* Relative deviation; infinite where a value is not finite. */
static double apart(double got, double want)
{
    double d = fabs(got - want) / fmax(fabs(want), 1e-300);

    return isfinite(d) ? d : (double)INFINITY;
}

/* Reports the first step that parts, and the worst one. */
static void near(const golden *g, how h, const char *what, const double *got, const double *want,
                 double bound)
{
    int first = -1, worst = 0;

    for (int i = 0; i < h.steps; i++) {
        if (first < 0 && !(apart(got[i], want[i]) <= bound))
            first = i;
        if (apart(got[i], want[i]) > apart(got[worst], want[worst]))
            worst = i;
    }
    if (first >= 0)
        EK_T_FAIL("%s, mode %d, isa %d, %d threads: %s parts at step %d: %.17g, expected %.17g "
                  "(%.2g apart, allowed %.2g); worst at step %d: %.2g",
                  g->name, (int)h.mode, (int)h.isa, h.threads, what, first, got[first], want[first],
                  apart(got[first], want[first]), bound, worst, apart(got[worst], want[worst]));
}

static void near_all(const golden *g, how h, const trajectory *want, double loss, double grad_norm)
{
    trajectory got;

    if (!ok(train(g, h, &got), g->name))
        return;
    near(g, h, "loss", got.loss, want->loss, loss);
    near(g, h, "balance loss", got.aux, want->aux, loss);
    near(g, h, "gradient norm", got.grad_norm, want->grad_norm, grad_norm);
}

static void for_every_run(void (*check)(const golden *g))
{
    ek_names folders = {0};
    golden g;

    if (!ok(ek_folder_entries(RUNS, &folders), RUNS))
        return;
    CHECK(folders.n >= 5);
    for (int64_t i = 0; i < folders.n; i++) {
        if (open_golden(folders.names[i], &g))
            check(&g);
        ek_tokens_close(&g.tokens);
    }
    ek_names_free(&folders);
}

static void check_double(const golden *g)
{
    for (int threads = 1; threads <= 2; threads++)
        near_all(g, (how){EK_MODE_FP64, EK_ISA_REF, threads, STEPS_MAX}, &g->fp64, 1e-9, 1e-7);
}

static void check_single(const golden *g)
{
    for (ek_isa isa = EK_ISA_REF; isa <= ek_cpu_isa(); isa++)
        near_all(g, (how){EK_MODE_FP32, isa, 2, STEPS_FP32}, &g->fp32, 5e-6, 1e-3);
}

static void check_bf16(const golden *g)
{
    for (ek_isa isa = EK_ISA_REF; isa <= ek_cpu_isa(); isa++) {
        trajectory got;
        double sum = 0, theirs = 0, worst = 0;
        int at = 0;

        if (!ok(train(g, (how){EK_MODE_BF16, isa, 2, STEPS_BF16}, &got), g->name))
            return;
        for (int i = 0; i < STEPS_BF16; i++) {
            double d = fabs(got.loss[i] - g->fp32.loss[i]);

            sum += d;
            theirs += fabs(g->bf16.loss[i] - g->fp32.loss[i]);
            at = d > worst ? i : at;
            worst = d > worst ? d : worst;
        }
        if (!(sum / STEPS_BF16 <= 1e-2) || !(worst <= 5e-2))
            EK_T_FAIL("%s, isa %d: the bf16 loss is %.2g from the fp32 loss on average (reference "
                      "%.2g, allowed 0.01), %.2g at worst (step %d: %.9g, fp32 %.9g; allowed 0.05)",
                      g->name, (int)isa, sum / STEPS_BF16, theirs / STEPS_BF16, worst, at,
                      got.loss[at], g->fp32.loss[at]);
    }
}

static void check_same_bits(const golden *g)
{
    static const ek_mode modes[] = {EK_MODE_FP64, EK_MODE_FP32, EK_MODE_BF16};

    for (int i = 0; i < 3; i++) {
        how h = {modes[i], ek_cpu_isa(), 2, STEPS_FP32};
        trajectory a, b;

        if (!ok(train(g, h, &a), g->name) || !ok(train(g, h, &b), g->name))
            return;
        if (memcmp(&a, &b, sizeof(a)) != 0)
            EK_T_FAIL("%s, mode %d: the same run twice is not the same", g->name, (int)modes[i]);
    }
}

static void fp64_fifty_steps(void)
{
    for_every_run(check_double);
}

static void fp32_ten_steps(void)
{
    for_every_run(check_single);
}

static void bf16_forty_steps(void)
{
    for_every_run(check_bf16);
}

static void same_run_same_bits(void)
{
    for_every_run(check_same_bits);
}

static const ek_case cases[] = {
    EK_CASE(fp64_fifty_steps),
    EK_CASE(fp32_ten_steps),
    EK_CASE(bf16_forty_steps),
    EK_CASE(same_run_same_bits),
};
EK_TEST_MAIN(cases)
