/* The library in a program whose locale has a decimal comma: everything written and read has
 * decimal points, results are the same, and the program's locale is unchanged, also in callbacks.
 * Under mpiexec, its ranks train together. */
#include "decimal_comma.h"
#include "job_folder.h"

#include <ctype.h>
#include <evenkeel/balance.h>
#include <evenkeel/lm.h>
#include <evenkeel/simulate.h>
#include <evenkeel/train.h>
#include <jansson.h>

static int wants_comma; /* whether callbacks must see commas */
static int called;

/* --- running ---------------------------------------------------------------------------------- */

static void check_callback(void)
{
    CHECK_INT(has_decimal_comma(), wants_comma);
    called++;
}

static void on_start(void *context, const ek_train_info *info)
{
    (void)context, (void)info;
    check_callback();
}

static void on_step(void *context, const ek_train_progress *progress)
{
    (void)context, (void)progress;
    check_callback();
}

static void on_tokens(void *context, int64_t done, int64_t total)
{
    (void)context, (void)done, (void)total;
    check_callback();
}

static int on_stop(void *context)
{
    (void)context;
    check_callback();
    return 0;
}

static void on_phase(void *context, const char *name)
{
    (void)context, (void)name;
    check_callback();
}

static void on_evaluating(void *context, int64_t done, int64_t all)
{
    (void)context, (void)done, (void)all;
    check_callback();
}

static void on_progress(void *context, const char *what, int64_t done, int64_t all)
{
    (void)context, (void)what, (void)done, (void)all;
    check_callback();
}

static void on_layer(void *context, const ek_train_layer *layer)
{
    (void)context;
    check_callback();
    for (const char *c = layer->line; (c = strchr(c, ',')) != NULL; c++)
        CHECK(!isdigit((unsigned char)c[1])); /* commas separate words, not digits */
}

static void on_cost(void *context, const ek_train_cost *cost)
{
    (void)context, (void)cost;
    check_callback();
}

static void train(const char *out, int64_t steps, int resume)
{
    const char *data[] = {in_folder("a.txt:0.375"), in_folder("b.txt:0.625")},
               *held_out[] = {in_folder("c.txt")};
    ek_train_hooks hooks = {NULL,     on_start, on_step,  on_tokens,     on_stop,
                            on_layer, on_cost,  on_phase, on_evaluating, NULL};
    ek_train_config c = EK_TRAIN_CONFIG_INIT;
    ek_train_summary summary;
    ek_status st;

    c.model = in_folder("config.json");
    c.tokenizer = "bytes";
    c.out = in_folder(out);
    c.data = data;
    c.n_data = 2;
    c.eval_data = held_out;
    c.n_eval_data = 1;
    c.eval_every = 2;
    c.document_mask = 1;
    c.batch = 4;
    c.seq = 16;
    c.steps = steps;
    c.lr = 2.5e-3;
    c.lr_schedule = "constant";
    c.wd = 0.125;
    c.capacity_factor = 1.25;
    c.dtype = "fp32";
    c.threads = 1;
    c.save_every = 2;
    c.keep = 9;
    c.resume = resume;
    c.timeline = c.record_routing = 1;
    c.world = world;
    if (ranks > 1) {
        c.ep = ranks;
        c.balance = "exact";
        c.a2a = "linear"; /* the order of sums must not depend on measured times */
        c.pipeline_degree = 1;
        c.record_plans = 1;
    }
    called = 0;
    st = ek_train(&c, &hooks, &summary);
    if (st != EK_OK)
        EK_T_FAIL("%s", ek_err_text());
    CHECK(called >= steps && summary.end.step == steps);
}

/* --- comparing -------------------------------------------------------------------------------- */

static json_t *read_json(const char *name)
{
    json_error_t error;
    json_t *o = json_load_file(in_folder(name), 0, &error);

    if (o == NULL)
        EK_T_FAIL("%s:%d: %s", name, error.line, error.text);
    return o;
}

static void same_json(const char *name)
{
    char a[256], b[256];
    json_t *x, *y;

    snprintf(a, sizeof(a), "point/%s", name);
    snprintf(b, sizeof(b), "comma/%s", name);
    x = read_json(a);
    y = read_json(b);
    json_object_del(x, "command");
    json_object_del(y, "command");
    if (x != NULL && !json_equal(x, y))
        EK_T_FAIL("%s differs with the locale", name);
    json_decref(x);
    json_decref(y);
}

static json_t *next_line(FILE *f, const char *name, char **line, size_t *room)
{
    json_error_t error;
    json_t *o;

    if (f == NULL || getline(line, room, f) <= 0)
        return NULL;
    o = json_loads(*line, 0, &error);
    if (o == NULL)
        EK_T_FAIL("%s: %s: %s", name, error.text, *line);
    return o;
}

/* All lines are JSON; both runs have n lines with equal values of these keys. */
static void same_lines(const char *name, const char *const *keys, int lines)
{
    char a[256], b[256], *line = NULL;
    size_t room = 0;
    int n = 0;
    FILE *f, *g;

    snprintf(a, sizeof(a), "point/%s", name);
    snprintf(b, sizeof(b), "comma/%s", name);
    f = fopen(in_folder(a), "r");
    g = fopen(in_folder(b), "r");
    for (;; n++) {
        json_t *x = next_line(f, a, &line, &room), *y = next_line(g, b, &line, &room);

        for (int i = 0; x != NULL && y != NULL && keys[i] != NULL; i++) {
            const json_t *p = json_object_get(x, keys[i]), *q = json_object_get(y, keys[i]);

            if (p != q && !json_equal(p, q)) /* both may be missing */
                EK_T_FAIL("%s: %s differs with the locale in line %d", name, keys[i], n + 1);
        }
        json_decref(y);
        json_decref(x);
        if (x == NULL || y == NULL)
            break;
    }
    CHECK(lines < 0 ? n > 0 : n == lines);
    free(line);
    if (f != NULL)
        fclose(f);
    if (g != NULL)
        fclose(g);
}

static void same_files(void)
{
    static const char *const metrics[] = {
        "step", "loss", "aux_loss", "grad_norm", "lr", "expert_max_over_mean", "eval_loss", NULL};
    static const char *const plans[] = {NULL}; /* only of the steps after resuming */

    same_lines("metrics.jsonl", metrics, 6);
    same_json("checkpoint/step-00000006/state.json");
    same_json("checkpoint/step-00000006/config.json");
    same_json("evaluation.json");
    json_decref(read_json("comma/run.json"));
    json_decref(read_json("comma/checkpoint/step-00000006/manifest.json"));
    json_decref(read_json("comma/timeline.json"));
    if (ranks > 1)
        same_lines("plans.jsonl", plans, -1);
}

/* --- using a model ---------------------------------------------------------------------------- */

typedef struct {
    double loss;
    char text[256];
    size_t n;
} use_result;

static int on_text(void *context, const char *text, size_t bytes)
{
    use_result *r = context;

    check_callback();
    if (r->n + bytes < sizeof(r->text)) {
        memcpy(r->text + r->n, text, bytes);
        r->n += bytes;
    }
    return 0;
}

static void use_model(const char *run, const char *export, use_result *r)
{
    const char *data[] = {in_folder("a.txt")};
    ek_lm_eval_config ec = {.size = sizeof(ec),
                            .data = data,
                            .n_data = 1,
                            .seq = 16,
                            .cache_dir = folder,
                            .stop = on_stop,
                            .progress = on_progress};
    ek_lm_generate_config gc = {
        .size = sizeof(gc), .tokens = 20, .temperature = 0.75, .top_p = 0.95, .seed = 3};
    ek_lm_eval_result e = {0};
    ek_lm *lm = NULL;

    *r = (use_result){0};
    CHECK_INT(ek_lm_open(in_folder(run), NULL, &lm), EK_OK);
    called = 0;
    CHECK_INT(ek_lm_eval(lm, &ec, &e), EK_OK);
    CHECK(called > 0);
    r->loss = e.loss;
    free(e.load);
    called = 0;
    CHECK_INT(ek_lm_generate(lm, "some ", &gc, on_text, r, NULL), EK_OK);
    CHECK(called > 0);
    ek_lm_close(&lm);
    CHECK_INT(ek_lm_export(in_folder(run), in_folder(export), NULL), EK_OK);
}

static void use_planner(void)
{
    ek_balance_config c = {.size = sizeof(c),
                           .policy = "auto",
                           .experts = 4,
                           .ranks = 2,
                           .spare_slots = 1,
                           .compute_s_per_row = 1e-6,
                           .comm_s_per_row = 1e-9,
                           .replica_s = 1e-7};
    int64_t counts[8] = {900, 20, 30, 40, 800, 20, 30, 40};
    ek_balance_plan_result p;
    ek_balance *b = NULL;

    CHECK_INT(ek_balance_create(&c, &b), EK_OK);
    CHECK_INT(ek_balance_plan(b, counts, &p), EK_OK);
    for (const char *at = p.reason; *at != '\0'; at++)
        if (at[0] == ',' && at > p.reason && at[-1] >= '0' && at[-1] <= '9' && at[1] >= '0' &&
            at[1] <= '9')
            EK_T_FAIL("a number with a comma: %s", p.reason);
    ek_balance_destroy(&b);
}

static void use_simulator(void)
{
    static const char settings[] =
        "{\"ranks\": 2, \"model\": \"tiny\", \"batch\": 8, \"capacity-factor\": 1.25,"
        " \"cluster\": \"{\\\"evenkeel_cluster\\\": 1, \\\"name\\\": \\\"made up\\\","
        " \\\"rank\\\": {\\\"machine\\\": {\\\"peak\\\": 8e12, \\\"memory_bytes_s\\\": 3e12,"
        " \\\"efficiency\\\": 0.5}}, \\\"levels\\\": [{\\\"name\\\": \\\"node\\\","
        " \\\"ranks\\\": 2, \\\"gbytes_s\\\": 0.45, \\\"us\\\": 3.5}]}\"}";
    char *report = NULL;
    json_error_t error;
    json_t *o;

    if (ek_simulate_json(settings, &report) != EK_OK)
        EK_T_FAIL("%s", ek_err_text());
    o = report != NULL ? json_loads(report, 0, &error) : NULL;
    CHECK(json_is_real(json_object_get(o, "step_ms")));
    json_decref(o);
    free(report);
}

/* --- cases ------------------------------------------------------------------------------------ */

static void a_decimal_comma(void)
{
    use_result point, comma;

    if (!set_decimal_comma(folder))
        SKIP("there is no locale with a decimal comma (package locales)");
    setlocale(LC_ALL, "C");
    wants_comma = 0;
    train("point", 6, 0);
    if (rank == 0)
        use_model("point", "point-hf", &point);
    wait_for_all();
    setlocale(LC_ALL, DECIMAL_COMMA);
    wants_comma = 1;
    train("comma", 4, 0);
    CHECK(has_decimal_comma());
    train("comma", 6, 1);
    CHECK(has_decimal_comma());
    if (rank > 0)
        return;
    use_model("comma", "comma-hf", &comma);
    CHECK(has_decimal_comma());
    CHECK(fabs(point.loss - comma.loss) <= 0);
    CHECK(strcmp(point.text, comma.text) == 0 && point.n > 0);
    json_decref(read_json("comma-hf/config.json"));
    use_planner();
    use_simulator();
    CHECK_INT(ek_err_raise("f", 1, "f", EK_EIO, "%.1f", 1.5), EK_EIO);
    CHECK(strcmp(ek_err_message(), "1.5") == 0);
    CHECK(has_decimal_comma());
    setlocale(LC_ALL, "C"); /* reads the output without the library */
    same_files();
}

static const ek_case cases[] = {EK_CASE(a_decimal_comma)};

int main(int argc, char **argv)
{
    int status;

    if (!open_job_folder("locale"))
        return 1;
    if (rank == 0) {
        write_file("b.txt", "another text, which comes as well\n", 60);
        write_file("c.txt", "a text that no step is taken on\n", 20);
        (void)compile_decimal_comma(folder);
    }
    wait_for_all();
    status = ek_test_main(argc, argv, cases, 1);
    close_job_folder();
    return status;
}
