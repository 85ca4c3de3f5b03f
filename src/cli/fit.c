/* evenkeel fit: what a model needs, what fits, and which speed this machine allows. */
#include "base/memory_limit.h"
#include "base/threads.h"
#include "cli/cli.h"
#include "fit/report_text.h"
#include "supervisor/limits.h"
#include "train/batch.h"

#include <stddef.h>
#include <stdio.h>

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
    {"offload-dir", EK_OPTION_TEXT, .shown = "the current folder", .unit = "DIR",
     .field = EK_FIELD_TEXT, .offset = offsetof(fit_settings, what.offload_dir),
     .help =
         "training: folder for experts on disk (train --offload), whose rates are measured with "
         "an unnamed file of 512 MiB for 0.6 s"},
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
    EK_TRY(ek_batch_check(cfg.what.batch, cfg.what.micro_batch));
    EK_TRY(ek_limits_check_threads(cfg.what.threads, 1));
    EK_TRY(ek_model_source_open(cfg.model, &source));
    cfg.what.threads = cfg.what.threads > 0 ? cfg.what.threads : ek_cores_usable();
    cfg.what.context = smaller(cfg.what.context, ek_model_longest(&source.spec));
    cfg.what.seq = smaller(cfg.what.seq, ek_model_longest(&source.spec));
    cfg.what.micro_batch = cfg.what.micro_batch > 0 ? cfg.what.micro_batch : cfg.what.batch;
    EK_TRY(ek_fit_report_make(&r, source.weights.s));
    if (cfg.json)
        ek_fit_write_json(&r, stdout);
    else
        ek_fit_write_table(&r, stdout);
    return EK_OK;
}

int cli_fit(int argc, char **argv)
{
    return ek_command_run(&table, argc, argv, run_fit);
}
