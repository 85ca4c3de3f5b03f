/* evenkeel fit: what a model needs, what fits, and which speed this machine allows. */
#include "fit/fit.h"

#include "base/memory_limit.h"
#include "base/threads.h"
#include "cli/cli.h"
#include "supervisor/limits.h"

#include <inttypes.h>
#include <jansson.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { TRAIN_MODES_MAX = 24, DTYPES = 2 };

typedef struct {
    const char *model;
    int64_t memory_limit, context, batch, seq, micro_batch;
    int ranks, threads, json;
} fit_settings;

static const ek_option options[] = {
    {"model", EK_OPTION_TEXT, .unit = "MODEL", .required = 1, .field = EK_FIELD_TEXT,
     .offset = offsetof(fit_settings, model),
     .help = "preset (tiny, small, base), Hugging Face config.json or folder, checkpoint, or "
             "folder of a run; only its config is read, and a second of its files for the disk's "
             "rate"},
    {"memory-limit", EK_OPTION_SIZE, .fallback = "auto", .unit = "SIZE|auto",
     .field = EK_FIELD_SIZE, .offset = offsetof(fit_settings, memory_limit),
     .help = "most memory of a process: 8G, 512M, 1.5GiB; auto: what its cgroups allow, else what "
             "is free"},
    {"context", EK_OPTION_INT, .fallback = "512", .unit = "tokens", .allowed = "[1,10000000]",
     .field = EK_FIELD_INT64, .offset = offsetof(fit_settings, context),
     .help = "inference: tokens of a text, prompt and generated ones; at most the model's"},
    {"ranks", EK_OPTION_INT, .fallback = "1", .unit = "ranks", .allowed = "[1,1000000]",
     .field = EK_FIELD_INT, .offset = offsetof(fit_settings, ranks),
     .help = "training: data parallel ranks, over which --zero shards"},
    {"batch", EK_OPTION_INT, .fallback = "8", .unit = "sequences", .allowed = "[1,1000000]",
     .field = EK_FIELD_INT64, .offset = offsetof(fit_settings, batch),
     .help = "training: sequences per step, over all ranks"},
    {"micro-batch", EK_OPTION_INT, .shown = "the whole batch", .unit = "sequences",
     .allowed = "[1,1000000]", .field = EK_FIELD_INT64,
     .offset = offsetof(fit_settings, micro_batch),
     .help = "training: sequences at once, over all ranks"},
    {"seq", EK_OPTION_INT, .fallback = "256", .unit = "tokens", .allowed = "[1,10000000]",
     .field = EK_FIELD_INT64, .offset = offsetof(fit_settings, seq),
     .help = "training: sequence length; at most the model's"},
    {"threads", EK_OPTION_INT, .shown = "all cores", .unit = "threads", .allowed = "[1,1024]",
     .field = EK_FIELD_INT, .offset = offsetof(fit_settings, threads), .help = "compute threads"},
    {"json", EK_OPTION_FLAG, .field = EK_FIELD_INT, .offset = offsetof(fit_settings, json),
     .help = "print JSON on stdout"},
};

static const ek_option_table table = {
    .command = "fit",
    .summary = "Show which memory a model needs, what fits here, and which speed to expect.",
    .options = options,
    .n_options = sizeof(options) / sizeof(options[0])};

/* Everything that is printed. */
typedef struct {
    const fit_settings *cfg;
    const ek_model_spec *spec;
    ek_memory_limit limit;
    int64_t params[EK_FIT_CLASSES], all, active;
    ek_fit_inference inference[DTYPES];
    struct {
        ek_fit_mode mode;
        int64_t bytes;
    } training[TRAIN_MODES_MAX];
    int n_training;
    ek_fit_rates rates;
} fit_report;

static int fits(const fit_report *r, int64_t bytes)
{
    return r->limit.kind == EK_LIMIT_UNKNOWN || bytes <= r->limit.bytes;
}

static int64_t inference_bytes(const ek_fit_inference *i)
{
    return i->base + i->weights + i->session;
}

/* Speeds that the machine's rates bound, tokens/s; 0: unknown. */
typedef struct {
    double decode, prefill;
    double missed; /* bytes of experts a token that the limit leaves on disk */
    double disk;   /* decoding, if they are read from there */
} fit_speed;

/* Bytes of an expert in the model's files, or in those that this program would write. */
static double file_bytes(const ek_model_spec *s)
{
    int half = strcmp(s->torch_dtype, "bfloat16") == 0 || strcmp(s->torch_dtype, "float16") == 0;

    return (half ? 2.0 : 4.0) * 3 * (double)(s->hidden * s->ff);
}

/* Experts are taken to be routed to evenly: the worst case for those that stay in memory. */
static fit_speed speed_of(const fit_report *r, const ek_fit_inference *i)
{
    double a_token = (double)i->experts / (double)r->spec->experts * (double)r->spec->top_k;
    double kept = i->experts > 0 ? (double)i->slots / (double)i->experts : 1;
    double flops = strcmp(i->dtype, "bf16") == 0 && r->rates.bf16 > r->rates.fp32 ? r->rates.bf16
                                                                                  : r->rates.fp32;
    fit_speed s = {.decode = r->rates.memory_read / i->active,
                   .prefill = flops / (2 * (double)r->active),
                   .missed = a_token * (1 - kept) * file_bytes(r->spec)};

    if (r->rates.disk_read > 0 && s.missed > 0 && i->slots > 0)
        s.disk = 1 / (1 / s.decode + s.missed / r->rates.disk_read);
    return s;
}

static ek_status measure_training(fit_report *r)
{
    static const ek_mode modes[DTYPES] = {EK_MODE_BF16, EK_MODE_FP32};
    static const char *const recompute[] = {"off", "attention", "full"};
    const fit_settings *c = r->cfg;

    for (int d = 0; d < DTYPES; d++)
        for (int i = 0; i < 3; i++)
            for (int zero = 0; zero <= (c->ranks > 1 ? 3 : 0); zero++) {
                ek_fit_mode *m = &r->training[r->n_training].mode;

                *m = (ek_fit_mode){modes[d], recompute[i], zero,          c->ranks,
                                   c->batch, c->seq,       c->micro_batch};
                EK_TRY(ek_fit_training_of(r->spec, m, c->threads,
                                          &r->training[r->n_training++].bytes));
            }
    return EK_OK;
}

static ek_status measure_all(fit_report *r, const char *weights)
{
    const ek_model_spec *s = r->spec;
    const fit_settings *c = r->cfg;

    ek_fit_count(s, r->params);
    for (int i = 0; i < EK_FIT_CLASSES; i++)
        r->all += r->params[i];
    r->active = r->all - r->params[EK_FIT_EXPERTS] / s->experts * (s->experts - s->top_k);
    r->active -= s->tie_embeddings ? 0 : r->params[EK_FIT_EMBEDDING]; /* a row is looked up */
    EK_TRY(ek_fit_inference_of(s, EK_MODE_BF16, c->threads, c->context, c->memory_limit,
                               &r->inference[0]));
    EK_TRY(ek_fit_inference_of(s, EK_MODE_FP32, c->threads, c->context, c->memory_limit,
                               &r->inference[1]));
    EK_TRY(measure_training(r));
    r->limit = ek_memory_limit_find(c->memory_limit);
    return ek_fit_measure_rates(weights, &r->rates);
}

/* --- JSON ------------------------------------------------------------------------------------- */

static json_t *inference_json(const fit_report *r, const ek_fit_inference *i)
{
    fit_speed s = speed_of(r, i);

    return json_pack(
        "{s:s, s:s, s:f, s:b, s:f, s:f, s:I, s:f, s:I, s:f, s:f, s:f, s:f, s:f}", "mode",
        "inference", "dtype", i->dtype, "memory_mb", (double)inference_bytes(i) / 1e6, "fits",
        fits(r, inference_bytes(i)), "weights_mb", (double)i->weights / 1e6, "session_mb",
        (double)i->session / 1e6, "kv_bytes_per_token", (json_int_t)i->bytes_a_token, "disk_mb",
        fits(r, inference_bytes(i)) ? 0.0 : (double)(inference_bytes(i) - r->limit.bytes) / 1e6,
        "expert_slots", (json_int_t)i->slots, "bytes_per_token", i->active,
        "missed_bytes_per_token", s.missed, "tokens_per_s", s.decode, "prefill_tokens_per_s",
        s.prefill, "disk_tokens_per_s", s.disk);
}

static json_t *training_json(const fit_report *r, int i)
{
    const ek_fit_mode *m = &r->training[i].mode;

    return json_pack("{s:s, s:s, s:s, s:i, s:i, s:f, s:b}", "mode", "training", "dtype",
                     ek_mode_name(m->mode), "recompute", m->recompute, "zero", m->zero, "ranks",
                     m->ranks, "memory_mb", (double)r->training[i].bytes / 1e6, "fits",
                     fits(r, r->training[i].bytes));
}

static void print_json(const fit_report *r)
{
    char source[EK_LIMIT_TEXT];
    json_t *params = json_object(), *modes = json_array(), *all;

    for (int i = 0; i < EK_FIT_CLASSES; i++)
        json_object_set_new(params, ek_fit_class_names[i], json_integer(r->params[i]));
    for (int i = 0; i < DTYPES; i++)
        json_array_append_new(modes, inference_json(r, &r->inference[i]));
    for (int i = 0; i < r->n_training; i++)
        json_array_append_new(modes, training_json(r, i));
    all = json_pack("{s:I, s:I, s:o, s:f, s:s, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:o}", "params",
                    (json_int_t)r->all, "active_params", (json_int_t)r->active, "params_of", params,
                    "limit_mb", (double)r->limit.bytes / 1e6, "limit_source",
                    ek_memory_limit_source(&r->limit, source), "context",
                    (json_int_t)r->cfg->context, "batch", (json_int_t)r->cfg->batch, "seq",
                    (json_int_t)r->cfg->seq, "memory_read_gbs", r->rates.memory_read / 1e9,
                    "bf16_gflops", r->rates.bf16 / 1e9, "fp32_gflops", r->rates.fp32 / 1e9,
                    "disk_read_gbs", r->rates.disk_read / 1e9, "modes", modes);
    json_dumpf(all, stdout, 0);
    fputc('\n', stdout);
    json_decref(all);
}

/* --- a table ---------------------------------------------------------------------------------- */

static void print_model(const fit_report *r)
{
    char a[16], b[16], source[EK_LIMIT_TEXT];

    printf("model       %s parameters, %s of them multiplied for a token\n",
           cli_count(a, sizeof(a), (double)r->all), cli_count(b, sizeof(b), (double)r->active));
    printf("            ");
    for (int i = 0, shown = 0; i < EK_FIT_CLASSES; i++)
        if (r->params[i] > 0)
            printf("%s%s %s", shown++ > 0 ? ", " : "", ek_fit_class_names[i],
                   cli_count(a, sizeof(a), (double)r->params[i]));
    printf("\nlimit       %sB (%s)\n", cli_count(a, sizeof(a), (double)r->limit.bytes),
           ek_memory_limit_source(&r->limit, source));
    printf("measured    memory is read at %.1f GB/s, products: %.0f GFLOP/s in bf16, %.0f in fp32",
           r->rates.memory_read / 1e9, r->rates.bf16 / 1e9, r->rates.fp32 / 1e9);
    if (r->rates.disk_read > 0)
        printf("; the disk is read at %.2f GB/s", r->rates.disk_read / 1e9);
    printf("\n");
}

static void print_inference(const fit_report *r, const ek_fit_inference *i)
{
    char a[16], b[16], c[16], d[16];
    fit_speed s = speed_of(r, i);
    int all = fits(r, inference_bytes(i));

    printf("%s  %8sB  %-4s weights %sB, session %sB (%sB a token of context)\n", i->dtype,
           cli_count(a, sizeof(a), (double)inference_bytes(i)), all ? "fits" : "no",
           cli_count(b, sizeof(b), (double)i->weights), cli_count(c, sizeof(c), (double)i->session),
           cli_count(d, sizeof(d), (double)i->bytes_a_token));
    printf("      decoding at most %.1f tokens/s: a token reads %sB from memory\n", s.decode,
           cli_count(a, sizeof(a), i->active));
    printf("      a prompt at most %.0f tokens/s: 2 FLOPs for each parameter multiplied\n",
           s.prefill);
    if (!all && i->slots > 0) {
        printf("      with %" PRId64 " of %" PRId64
               " experts in memory it fits: a token misses %sB",
               i->slots, i->experts, cli_count(a, sizeof(a), s.missed));
        if (s.disk > 0)
            printf(", at most %.2f tokens/s from disk", s.disk);
        printf("\n");
    }
}

static void print_table(const fit_report *r)
{
    char a[16];

    print_model(r);
    printf("\ninference, %" PRId64 " tokens of context\n", r->cfg->context);
    for (int i = 0; i < DTYPES; i++)
        print_inference(r, &r->inference[i]);
    printf("\ntraining, %" PRId64 " sequences of %" PRId64 " tokens a step, %" PRId64
           " at once, %d rank%s: memory of a rank\n",
           r->cfg->batch, r->cfg->seq, r->cfg->micro_batch, r->cfg->ranks,
           r->cfg->ranks > 1 ? "s" : "");
    for (int i = 0; i < r->n_training; i++) {
        const ek_fit_mode *m = &r->training[i].mode;

        printf("%s  %8sB  %-4s --recompute %s", ek_mode_name(m->mode),
               cli_count(a, sizeof(a), (double)r->training[i].bytes),
               fits(r, r->training[i].bytes) ? "fits" : "no", m->recompute);
        if (m->ranks > 1)
            printf(" --zero %d", m->zero);
        printf("\n");
    }
}

/* --- the command ------------------------------------------------------------------------------ */

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static ek_status run_fit(const ek_options *o)
{
    ek_model_source source;
    fit_settings cfg = {0};
    fit_report r = {.cfg = &cfg, .spec = &source.spec};

    EK_TRY(ek_options_store(o, &cfg));
    EK_TRY(ek_limits_check_threads(cfg.threads, 1));
    EK_TRY(ek_model_source_open(cfg.model, &source));
    cfg.threads = cfg.threads > 0 ? cfg.threads : ek_cores_usable();
    cfg.context = smaller(cfg.context, ek_model_longest(&source.spec));
    cfg.seq = smaller(cfg.seq, ek_model_longest(&source.spec));
    cfg.micro_batch = cfg.micro_batch > 0 ? smaller(cfg.micro_batch, cfg.batch) : cfg.batch;
    EK_TRY(measure_all(&r, source.weights.s));
    if (cfg.json)
        print_json(&r);
    else
        print_table(&r);
    return EK_OK;
}

int cli_fit(int argc, char **argv)
{
    return ek_command_run(&table, argc, argv, run_fit);
}
