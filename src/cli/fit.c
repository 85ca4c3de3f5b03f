/* evenkeel fit: what a model needs, what fits, and which speed this machine allows. */
#include "base/memory_limit.h"
#include "base/threads.h"
#include "cli/cli.h"
#include "fit/report.h"
#include "supervisor/limits.h"

#include <inttypes.h>
#include <jansson.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    const char *model;
    int json;
    ek_fit_request what;
} fit_settings;

static const ek_option options[] = {
    {"model", EK_OPTION_TEXT, .unit = "MODEL", .required = 1, .field = EK_FIELD_TEXT,
     .offset = offsetof(fit_settings, model),
     .help = "preset (tiny, small, base), Hugging Face config.json or folder, checkpoint, or "
             "folder of a run; only its config is read, and a second of its files for the disk's "
             "rate"},
    {"memory-limit", EK_OPTION_SIZE, .fallback = "auto", .unit = "SIZE|auto",
     .field = EK_FIELD_SIZE, .offset = offsetof(fit_settings, what.memory_limit),
     .help = "most memory of a process: 8G, 512M, 1.5GiB; auto: what its cgroups allow, else what "
             "is free"},
    {"context", EK_OPTION_INT, .fallback = "512", .unit = "tokens", .allowed = "[1,10000000]",
     .field = EK_FIELD_INT64, .offset = offsetof(fit_settings, what.context),
     .help = "inference: tokens of a text, prompt and generated ones; at most the model's"},
    {"ranks", EK_OPTION_INT, .fallback = "1", .unit = "ranks", .allowed = "[1,1000000]",
     .field = EK_FIELD_INT, .offset = offsetof(fit_settings, what.ranks),
     .help = "training: data parallel ranks, over which --zero shards"},
    {"batch", EK_OPTION_INT, .fallback = "8", .unit = "sequences", .allowed = "[1,1000000]",
     .field = EK_FIELD_INT64, .offset = offsetof(fit_settings, what.batch),
     .help = "training: sequences per step, over all ranks"},
    {"micro-batch", EK_OPTION_INT, .shown = "the whole batch", .unit = "sequences",
     .allowed = "[1,1000000]", .field = EK_FIELD_INT64,
     .offset = offsetof(fit_settings, what.micro_batch),
     .help = "training: sequences at once, over all ranks"},
    {"seq", EK_OPTION_INT, .fallback = "256", .unit = "tokens", .allowed = "[1,10000000]",
     .field = EK_FIELD_INT64, .offset = offsetof(fit_settings, what.seq),
     .help = "training: sequence length; at most the model's"},
    {"threads", EK_OPTION_INT, .shown = "all cores", .unit = "threads", .allowed = "[1,1024]",
     .field = EK_FIELD_INT, .offset = offsetof(fit_settings, what.threads),
     .help = "compute threads"},
    {"json", EK_OPTION_FLAG, .field = EK_FIELD_INT, .offset = offsetof(fit_settings, json),
     .help = "print JSON on stdout"},
};

static const ek_option_table table = {
    .command = "fit",
    .summary = "Show which memory a model needs, what fits here, and which speed to expect.",
    .options = options,
    .n_options = sizeof(options) / sizeof(options[0])};

/* --- JSON ------------------------------------------------------------------------------------- */

static json_t *inference_json(const ek_fit_report *r, const ek_fit_inference *i)
{
    ek_fit_speed s = ek_fit_speed_of(r, i);

    return json_pack("{s:s, s:s, s:f, s:b, s:f, s:f, s:I, s:f, s:I, s:f, s:f, s:f, s:f, s:f}",
                     "mode", "inference", "dtype", i->dtype, "memory_mb",
                     (double)ek_fit_inference_bytes(i) / 1e6, "fits",
                     ek_fit_fits(r, ek_fit_inference_bytes(i)), "weights_mb",
                     (double)i->weights / 1e6, "session_mb", (double)i->session / 1e6,
                     "kv_bytes_per_token", (json_int_t)i->bytes_a_token, "disk_mb",
                     ek_fit_fits(r, ek_fit_inference_bytes(i))
                         ? 0.0
                         : (double)(ek_fit_inference_bytes(i) - r->limit.bytes) / 1e6,
                     "expert_slots", (json_int_t)i->slots, "bytes_per_token", i->active,
                     "missed_bytes_per_token", s.missed, "tokens_per_s", s.decode,
                     "prefill_tokens_per_s", s.prefill, "disk_tokens_per_s", s.disk);
}

static json_t *training_json(const ek_fit_report *r, int i)
{
    const ek_fit_mode *m = &r->training[i].mode;

    return json_pack("{s:s, s:s, s:s, s:i, s:i, s:f, s:b}", "mode", "training", "dtype",
                     ek_mode_name(m->mode), "recompute", m->recompute, "zero", m->zero, "ranks",
                     m->ranks, "memory_mb", (double)r->training[i].bytes / 1e6, "fits",
                     ek_fit_fits(r, r->training[i].bytes));
}

static void print_json(const ek_fit_report *r)
{
    char source[EK_LIMIT_TEXT];
    json_t *params = json_object(), *modes = json_array(), *all;

    for (int i = 0; i < EK_FIT_CLASSES; i++)
        json_object_set_new(params, ek_fit_class_names[i], json_integer(r->params[i]));
    for (int i = 0; i < EK_FIT_DTYPES; i++)
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

static void print_model(const ek_fit_report *r)
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

static void print_inference(const ek_fit_report *r, const ek_fit_inference *i)
{
    char a[16], b[16], c[16], d[16];
    ek_fit_speed s = ek_fit_speed_of(r, i);
    int all = ek_fit_fits(r, ek_fit_inference_bytes(i));

    printf("%s  %8sB  %-4s weights %sB, session %sB (%sB a token of context)\n", i->dtype,
           cli_count(a, sizeof(a), (double)ek_fit_inference_bytes(i)), all ? "fits" : "no",
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

static void print_table(const ek_fit_report *r)
{
    char a[16];

    print_model(r);
    printf("\ninference, %" PRId64 " tokens of context\n", r->cfg->context);
    for (int i = 0; i < EK_FIT_DTYPES; i++)
        print_inference(r, &r->inference[i]);
    printf("\ntraining, %" PRId64 " sequences of %" PRId64 " tokens a step, %" PRId64
           " at once, %d rank%s: memory of a rank\n",
           r->cfg->batch, r->cfg->seq, r->cfg->micro_batch, r->cfg->ranks,
           r->cfg->ranks > 1 ? "s" : "");
    for (int i = 0; i < r->n_training; i++) {
        const ek_fit_mode *m = &r->training[i].mode;

        printf("%s  %8sB  %-4s --recompute %s", ek_mode_name(m->mode),
               cli_count(a, sizeof(a), (double)r->training[i].bytes),
               ek_fit_fits(r, r->training[i].bytes) ? "fits" : "no", m->recompute);
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
    ek_fit_report r = {.cfg = &cfg.what, .spec = &source.spec};

    EK_TRY(ek_options_store(o, &cfg));
    EK_TRY(ek_limits_check_threads(cfg.what.threads, 1));
    EK_TRY(ek_model_source_open(cfg.model, &source));
    cfg.what.threads = cfg.what.threads > 0 ? cfg.what.threads : ek_cores_usable();
    cfg.what.context = smaller(cfg.what.context, ek_model_longest(&source.spec));
    cfg.what.seq = smaller(cfg.what.seq, ek_model_longest(&source.spec));
    cfg.what.micro_batch =
        cfg.what.micro_batch > 0 ? smaller(cfg.what.micro_batch, cfg.what.batch) : cfg.what.batch;
    EK_TRY(ek_fit_report_make(&r, source.weights.s));
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
