/* Models match those of Hugging Face transformers (tests/golden/make_models.py): logits, losses and
 * the gradient of every tensor, for every family and file layout; saved files reproduce what was
 * read. */
#include "base/json.h"
#include "ek_test.h"
#include "exec/exec.h"
#include "model/hf/config.h"
#include "model/hf/io.h"
#include "model/hf/source.h"
#include "model/hf/weights.h"
#include "model/step/pass.h"
#include "tensor/select/select.h"

#define MODELS EK_TEST_DATA "/golden/models"

enum { ROWS_MAX = 64 };

/* An open folder written by transformers. */
typedef struct {
    const char *name;
    ek_path folder;
    ek_model_spec spec;
    json_t *json;
    ek_safetensors *answers;
    const ek_safetensor *logits;
    int64_t seqs, seq;
    int32_t inputs[ROWS_MAX], targets[ROWS_MAX];
} golden;

/* The model loaded from it. */
typedef struct {
    ek_kernels *k;
    ek_model *model;
    ek_pass *pass;
    ek_exec *exec;
    ek_graph graph;
    ek_micro micro;
} runner;

/* Tolerances.  Logits relative to themselves, or, if single precision rounds a logit together with
 * the others of its row, to the largest of the row. */
typedef struct {
    double logit, logit_row, loss, gradient;
    double zero; /* a gradient's norm below this share of the total is rounding noise */
} bounds;

static const bounds fp64_bounds = {.logit = 1e-6, .loss = 1e-6, .gradient = 1e-6, .zero = 1e-13};
static const bounds fp32_bounds = {.logit_row = 1e-4, .loss = 1e-4, .gradient = 1e-4, .zero = 1e-6};

static int ok(ek_status st, const char *what)
{
    if (st < 0)
        EK_T_FAIL("%s: %s", what, ek_err_text());
    return st >= 0;
}

static double real(const ek_kernels *k, const void *p, int64_t i)
{
    return k->real == EK_F64 ? ((const double *)p)[i] : (double)((const float *)p)[i];
}

/* --- expected values -------------------------------------------------------------------------- */

/* ids [seqs][seq + 1] -> inputs, and targets shifted by one. */
static void read_ids(golden *g)
{
    const json_t *ids = json_object_get(g->json, "ids");

    g->seqs = (int64_t)json_array_size(ids);
    g->seq = (int64_t)json_array_size(json_array_get(ids, 0)) - 1;
    CHECK(g->seqs * g->seq > 0 && g->seqs * g->seq <= ROWS_MAX);
    for (int64_t i = 0; i < g->seqs * g->seq && i < ROWS_MAX; i++) {
        const json_t *row = json_array_get(ids, (size_t)(i / g->seq));
        size_t t = (size_t)(i % g->seq);

        g->inputs[i] = (int32_t)json_integer_value(json_array_get(row, t));
        g->targets[i] = (int32_t)json_integer_value(json_array_get(row, t + 1));
    }
}

static int open_golden(const char *name, golden *g)
{
    ek_path config, answers, logits;

    memset(g, 0, sizeof(*g));
    g->name = name;
    if (!ok(ek_path_set(&g->folder, "%s/%s", MODELS, name), name) ||
        !ok(ek_path_set(&config, "%s/config.json", g->folder.s), name) ||
        !ok(ek_path_set(&answers, "%s/golden.json", g->folder.s), name) ||
        !ok(ek_path_set(&logits, "%s/golden.safetensors", g->folder.s), name) ||
        !ok(ek_hf_config_read(config.s, &g->spec), name) ||
        !ok(ek_json_read(answers.s, &g->json), name) ||
        !ok(ek_safetensors_open(logits.s, &g->answers), name))
        return 0;
    read_ids(g);
    g->logits = ek_safetensors_find(g->answers, "logits");
    CHECK(g->logits != NULL && g->logits->elements == g->seqs * g->seq * g->spec.vocab);
    return g->logits != NULL;
}

static void close_golden(golden *g)
{
    json_decref(g->json);
    ek_safetensors_close(&g->answers);
}

static float logit_of(const golden *g, int64_t i)
{
    float x = NAN;

    CHECK(ek_safetensor_read(g->logits, i, 1, &x, EK_F32) == EK_OK);
    return x;
}

/* Cross entropy of a row of the golden logits. */
static double golden_loss(const golden *g, int64_t row)
{
    int64_t at = row * g->spec.vocab;
    double sum = 0;

    for (int64_t i = 0; i < g->spec.vocab; i++)
        sum += exp((double)logit_of(g, at + i));
    return log(sum) - (double)logit_of(g, at + g->targets[row]);
}

static void for_every_model(void (*check)(const golden *g))
{
    ek_names folders = {0};
    golden g;

    if (!ok(ek_folder_entries(MODELS, &folders), MODELS))
        return;
    CHECK(folders.n >= 8);
    for (int64_t i = 0; i < folders.n; i++) {
        if (open_golden(folders.names[i], &g))
            check(&g);
        close_golden(&g);
    }
    ek_names_free(&folders);
}

/* --- running ---------------------------------------------------------------------------------- */

static int setup(runner *r, const golden *g, ek_mode mode, ek_isa isa, int training)
{
    ek_pass_config cfg = {.max_seqs = g->seqs, .max_seq = g->seq, .training = training};

    memset(r, 0, sizeof(*r));
    ek_graph_init(&r->graph);
    r->micro = ek_micro_alone(g->seqs, g->seq, 1, 0, g->inputs, g->targets);
    return ok(ek_kernels_create(mode, isa, 2, &r->k), g->name) &&
           ok(ek_model_create(&g->spec, r->k, &(ek_model_config){.trained = training}, &r->model),
              g->name) &&
           ok(ek_model_load_path(r->model, g->folder.s, NULL), g->name) &&
           ok(ek_model_pack(r->model), g->name) &&
           ok(ek_pass_create(r->model, &cfg, &r->pass), g->name) &&
           ok(ek_exec_create(NULL, &r->exec), g->name);
}

static void teardown(runner *r)
{
    ek_graph_fini(&r->graph);
    ek_exec_destroy(&r->exec);
    ek_pass_destroy(&r->pass);
    ek_model_destroy(&r->model);
    ek_kernels_destroy(&r->k);
}

/* Runs the step except its last `left_out` ops. */
static int run(runner *r, const golden *g, int32_t left_out)
{
    ek_moe_step step = {.training = r->pass->cfg.training, .top_k = g->spec.top_k};

    ek_graph_reset(&r->graph);
    if (!ok(ek_pass_begin(r->pass, &step, &r->micro, 1), g->name) ||
        !ok(ek_pass_build(r->pass, &r->graph), g->name))
        return 0;
    r->graph.n_ops -= left_out;
    return ok(ek_exec_run(r->exec, &r->graph), g->name);
}

/* --- comparing -------------------------------------------------------------------------------- */

static int within(double got, double want, double bound)
{
    return isfinite(got) && fabs(got - want) <= bound;
}

/* Logits are compared before the loss, which may overwrite them. */
static void check_logits(runner *r, const golden *g, const bounds *b)
{
    int64_t v = g->spec.vocab;

    CHECK(r->pass->backward.head.rows >= r->micro.n); /* one block holds all rows */
    if (!run(r, g, 2))
        return;
    CHECK(r->graph.ops[r->graph.n_ops].kind == EK_OP_CROSS_ENTROPY);
    CHECK(r->graph.ops[r->graph.n_ops + 1].kind == EK_OP_LOSSES);
    for (int64_t row = 0; row < r->micro.n; row++) {
        double largest = 0;

        for (int64_t i = 0; i < v; i++)
            largest = fmax(largest, fabs((double)logit_of(g, row * v + i)));
        for (int64_t i = 0; i < v; i++) {
            double got = real(r->k, r->pass->backward.head.logits, row * v + i);
            double want = (double)logit_of(g, row * v + i);

            if (within(got, want, b->logit * fabs(want) + b->logit_row * largest))
                continue;
            EK_T_FAIL("%s, %s: logit %lld of row %lld is %.9g, expected %.9g", g->name, r->k->name,
                      (long long)i, (long long)row, got, want);
            return;
        }
    }
}

/* Runs the pass. */
static void check_losses(runner *r, const golden *g, const bounds *b)
{
    double want = json_number_value(json_object_get(g->json, "loss"));
    ek_losses got;

    if (!run(r, g, 0))
        return;
    ek_pass_losses(r->pass, &got);
    if (!within(got.loss, want, b->loss * want))
        EK_T_FAIL("%s, %s: loss %.12g, expected %.12g", g->name, r->k->name, got.loss, want);
    for (int64_t row = 0; row < r->micro.n; row++) {
        double one = r->pass->backward.head.loss_rows[row];

        if (within(one, golden_loss(g, row), b->loss * want))
            continue;
        EK_T_FAIL("%s, %s: loss of row %lld is %.12g, expected %.12g", g->name, r->k->name,
                  (long long)row, one, golden_loss(g, row));
        return;
    }
}

static double gradient_norm(runner *r, const ek_hf_tensor *t)
{
    ek_span a;
    double sum = 0;

    CHECK(ek_model_span(r->model, t, &a));
    for (int64_t i = 0; i < a.rows; i++)
        for (int64_t j = 0; j < a.cols; j++) {
            double g = real(r->k, a.w->g, a.first + i * a.ld + j);

            sum += g * g;
        }
    return sqrt(sum);
}

/* Gradients of a training pass that has run once. */
static void check_gradients(runner *r, const golden *g, const bounds *b)
{
    const json_t *norms = json_object_get(g->json, "grad_norm");
    double total = json_number_value(json_object_get(g->json, "total_grad_norm"));
    int64_t count = ek_hf_count(&g->spec);

    CHECK_INT((int64_t)json_object_size(norms), count);
    for (int64_t i = 0; i < count; i++) {
        ek_hf_tensor t;
        double got, want;

        ek_hf_tensor_at(&g->spec, i, &t);
        CHECK(json_object_get(norms, t.name) != NULL);
        want = json_number_value(json_object_get(norms, t.name));
        got = gradient_norm(r, &t);
        if (!within(got, want, b->gradient * want + (want < b->zero * total ? b->zero * total : 0)))
            EK_T_FAIL("%s, %s: norm of the gradient of %s is %.12g, expected %.12g", g->name,
                      r->k->name, t.name, got, want);
    }
}

static void check_mode(const golden *g, ek_mode mode, ek_isa isa, const bounds *b)
{
    for (int training = 0; training <= 1; training++) {
        runner r;

        if (setup(&r, g, mode, isa, training)) {
            if (!training)
                check_logits(&r, g, b);
            check_losses(&r, g, b);
            if (training)
                check_gradients(&r, g, b);
        }
        teardown(&r);
    }
}

static void check_double(const golden *g)
{
    check_mode(g, EK_MODE_FP64, EK_ISA_REF, &fp64_bounds);
}

static void check_single(const golden *g)
{
    for (ek_isa isa = EK_ISA_REF; isa <= ek_cpu_isa(); isa++)
        check_mode(g, EK_MODE_FP32, isa, &fp32_bounds);
}

/* In bf16 routing may differ here and there, so only the mean is compared. */
static void check_bf16(const golden *g)
{
    double want = json_number_value(json_object_get(g->json, "loss"));

    for (ek_isa isa = EK_ISA_REF; isa <= ek_cpu_isa(); isa++) {
        runner r;
        ek_losses got;

        if (setup(&r, g, EK_MODE_BF16, isa, 1) && run(&r, g, 0)) {
            ek_pass_losses(r.pass, &got);
            if (!within(got.loss, want, 5e-2))
                EK_T_FAIL("%s, %s: loss %.9g, expected %.9g", g->name, r.k->name, got.loss, want);
        }
        teardown(&r);
    }
}

/* --- saving ----------------------------------------------------------------------------------- */

static int64_t elements(const ek_hf_tensor *t)
{
    return t->shape[0] * (t->dims > 1 ? t->shape[1] : 1);
}

/* The elements of a tensor in a folder of either layout, as stored; NULL: not found. The caller
 * frees them. */
static char *bytes_of(const ek_model_spec *spec, const ek_safetensors *st, const ek_hf_tensor *t,
                      ek_dtype *dtype)
{
    const ek_safetensor *s = ek_safetensors_find(st, t->name);
    ek_hf_source other = {.first = 0};
    char *bytes;

    if (s == NULL && ek_hf_alternative(spec, t, &other))
        s = ek_safetensors_find(st, other.name);
    if (s == NULL)
        return NULL;
    *dtype = s->dtype;
    bytes = malloc((size_t)elements(t) * ek_dtype_size(s->dtype));
    CHECK(bytes != NULL &&
          ek_safetensor_read(s, other.first, elements(t), bytes, s->dtype) == EK_OK);
    return bytes;
}

/* Every tensor of the model is in both, with the same bytes. */
static void same_tensors(const golden *g, const ek_safetensors *a, const ek_safetensors *b)
{
    for (int64_t i = 0; i < ek_hf_count(&g->spec); i++) {
        ek_hf_tensor t;
        ek_dtype type_a = EK_F64, type_b = EK_F64;
        char *x, *y;

        ek_hf_tensor_at(&g->spec, i, &t);
        x = bytes_of(&g->spec, a, &t, &type_a);
        y = bytes_of(&g->spec, b, &t, &type_b);
        if (x == NULL || y == NULL || type_a != type_b ||
            memcmp(x, y, (size_t)elements(&t) * ek_dtype_size(type_a)) != 0)
            EK_T_FAIL("%s: %s is not what it was", g->name, t.name);
        free(x);
        free(y);
    }
}

static void same_masters(const golden *g, const ek_model *a, const ek_model *b)
{
    for (int64_t i = 0; i < a->n_params; i++) {
        const ek_weight *x = a->params[i].w, *y = b->params[i].w;

        if (memcmp(x->p, y->p, (size_t)ek_weight_elements(x) * ek_dtype_size(a->k->real)) != 0)
            EK_T_FAIL("%s: weight %lld is not what it was", g->name, (long long)i);
    }
}

/* Saves a loaded model as `dtype`, which holds its numbers exactly, and loads that. */
static ek_status save_and_load(const golden *g, const ek_kernels *k, ek_dtype dtype,
                               const char *path)
{
    ek_model *a = NULL, *b = NULL;
    ek_owned_tensors owned = {0};
    ek_safetensors *before = NULL, *after = NULL;
    ek_status st = EK_OK;

    EK_TRY_OUT(ek_model_create(&g->spec, k, &(ek_model_config){.trained = 1}, &a));
    EK_TRY_OUT(ek_model_create(&g->spec, k, &(ek_model_config){.trained = 1}, &b));
    EK_TRY_OUT(ek_model_load_path(a, g->folder.s, NULL));
    EK_TRY_OUT(ek_model_list_owned(a, EK_ARRAYS_MASTER, &owned));
    EK_TRY_OUT(ek_owned_tensors_write(&owned, dtype, NULL, path, EK_WRITE_REPLACE, NULL, NULL));
    EK_TRY_OUT(ek_model_load_path(b, path, NULL));
    same_masters(g, a, b);
    EK_TRY_OUT(ek_safetensors_open(g->folder.s, &before));
    EK_TRY_OUT(ek_safetensors_open(path, &after));
    CHECK_INT(ek_safetensors_count(after), ek_hf_count(&g->spec));
    if (ek_safetensors_get(before, 0)->dtype == dtype)
        same_tensors(g, before, after);
out:
    ek_owned_tensors_free(&owned);
    ek_safetensors_close(&before);
    ek_safetensors_close(&after);
    ek_model_destroy(&a);
    ek_model_destroy(&b);
    return st;
}

static void check_saving(const golden *g)
{
    static const ek_mode modes[] = {EK_MODE_FP64, EK_MODE_FP32, EK_MODE_BF16};
    char folder[] = "/tmp/ek_golden_XXXXXX";
    int half = strcmp(g->spec.torch_dtype, "bfloat16") == 0;
    ek_path path;

    CHECK(mkdtemp(folder) != NULL);
    if (!ok(ek_path_set(&path, "%s/model.safetensors", folder), g->name))
        return;
    for (int i = 0; i < 3; i++) {
        ek_kernels *k = NULL;

        if (ok(ek_kernels_create(modes[i], EK_ISA_REF, 1, &k), g->name)) {
            ok(save_and_load(g, k, EK_F32, path.s), g->name);
            if (half)
                ok(save_and_load(g, k, EK_BF16, path.s), g->name);
        }
        ek_kernels_destroy(&k);
    }
    CHECK(ek_folder_remove(&ek_io_system, folder) == EK_OK);
}

static void fp64(void)
{
    for_every_model(check_double);
}

static void fp32(void)
{
    for_every_model(check_single);
}

static void bf16(void)
{
    for_every_model(check_bf16);
}

static void saved_is_what_was_read(void)
{
    for_every_model(check_saving);
}

static const ek_case cases[] = {
    EK_CASE(fp64),
    EK_CASE(fp32),
    EK_CASE(bf16),
    EK_CASE(saved_is_what_was_read),
};
EK_TEST_MAIN(cases)
