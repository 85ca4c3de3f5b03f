/* evenkeel check: verifies a checkpoint and describes it. */
#include "base/count_text.h"
#include "base/json.h"
#include "cli/cli.h"
#include "model/hf/config.h"
#include "model/hf/io.h"
#include "store/checkpoint.h"
#include "train/checkpoint/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const ek_option options[] = {
    {"checkpoint", EK_OPTION_TEXT, .unit = "DIR", .required = 1,
     .help = "checkpoint, or folder of a run or its checkpoint/, of which the newest checkpoint is "
             "checked"},
    {"json", EK_OPTION_FLAG, .help = "print JSON on stdout"},
};

static const ek_option_table table = {
    .command = "check",
    .summary = "Verify a checkpoint: presence, sizes and checksums of its files, and that they "
               "hold every element of weights and moments exactly once.",
    .options = options,
    .n_options = sizeof(options) / sizeof(options[0])};

/* Contents of the checkpoint; JSON values are borrowed from manifest and config. */
typedef struct {
    ek_path path;
    json_t *manifest, *config;
    int64_t step, bytes, weights, moments, params;
    const char *model, *dtype; /* dtype: static string */
    json_t *files, *layout;    /* layout: NULL for one rank */
    ek_model_spec spec;
} report;

/* Checks that the tensors of one file set (weights or moments) are complete.  *n: their number;
 * *dtype: element type of the first. */
static ek_status check_part(report *r, const char *name, ek_weight_arrays part, int64_t *n,
                            const char **dtype)
{
    static const char *const words[] = {
        [EK_F64] = "fp64", [EK_F32] = "fp32", [EK_BF16] = "bf16", [EK_F16] = "fp16"};
    ek_slice_set *files = NULL;
    ek_status st;

    EK_TRY(ek_slice_set_open_in(r->path.s, name, &files));
    st = ek_hf_check(&r->spec, files, part);
    if (st == EK_OK) {
        *n = ek_slice_set_count(files);
        *dtype = words[ek_slice_set_get(files, 0)->slices[0].t->dtype];
    }
    ek_slice_set_close(&files);
    return st;
}

static ek_status check(const char *dir, report *r)
{
    const char *name, *dtype;
    json_t *file;
    ek_path path;

    EK_TRY(ek_checkpoint_newest(dir, &r->path));
    EK_TRY(ek_checkpoint_verify(r->path.s));
    EK_TRY(ek_path_set(&path, "%s/manifest.json", r->path.s));
    EK_TRY(ek_json_read_as(EK_JSON_TENSORS, path.s, &r->manifest));
    EK_TRY(ek_json_int(r->manifest, path.s, "step", EK_JSON_REQUIRED, 0, INT64_MAX, &r->step));
    r->files = json_object_get(r->manifest, "files");
    r->layout = json_object_get(r->manifest, "layout");
    EK_TRY(ek_train_check(r->path.s, r->files, r->step));
    json_object_foreach(r->files, name, file) r->bytes +=
        json_integer_value(json_object_get(file, "bytes"));
    EK_TRY(ek_path_set(&path, "%s/config.json", r->path.s));
    EK_TRY(ek_hf_config_read(path.s, &r->spec));
    EK_TRY(ek_json_read(path.s, &r->config));
    EK_TRY(ek_json_text(r->config, path.s, "model_type", EK_JSON_REQUIRED, &r->model));
    EK_TRY(check_part(r, "model", EK_ARRAYS_MASTER, &r->weights, &r->dtype));
    EK_TRY(check_part(r, "optimizer", EK_ARRAYS_MOMENTS, &r->moments, &dtype));
    for (int64_t i = 0; i < ek_hf_count(&r->spec); i++) {
        ek_hf_tensor t;

        ek_hf_tensor_at(&r->spec, i, &t);
        r->params += t.shape[0] * (t.dims > 1 ? t.shape[1] : 1);
    }
    return EK_OK;
}

static ek_status print_json(const report *r)
{
    json_t *one = json_pack("{s:i}", "ranks", 1);
    json_t *root =
        json_pack("{s:o, s:I, s:s, s:I, s:s, s:O, s:I, s:I, s:I, s:O}", "checkpoint",
                  ek_json_text_of(r->path.s), "step", (json_int_t)r->step, "model", r->model,
                  "params", (json_int_t)r->params, "dtype", r->dtype, "layout",
                  r->layout != NULL ? r->layout : one, "weights", (json_int_t)r->weights, "moments",
                  (json_int_t)r->moments, "bytes", (json_int_t)r->bytes, "files", r->files);
    char *text = root != NULL ? json_dumps(root, 0) : NULL;

    json_decref(one);
    json_decref(root);
    EK_REQUIRE(text != NULL, EK_ENOMEM, "no memory for the report on %s", r->path.s);
    puts(text);
    free(text);
    return EK_OK;
}

static void print_text(const report *r)
{
    const ek_model_spec *s = &r->spec;
    const char *key;
    char params[16], bytes[16];
    json_t *value;
    cli_text shown;

    printf("%s\n", cli_shown(&shown, r->path.s));
    printf("  step        %lld\n", (long long)r->step);
    printf("  model       %s, %s parameters, %lld layers, %lld experts\n",
           cli_shown(&shown, r->model), ek_count_text(params, sizeof(params), (double)r->params),
           (long long)s->layers, (long long)s->experts);
    printf("  written by  ");
    if (r->layout == NULL)
        printf("1 rank");
    else
        printf("%lld ranks:", (long long)json_integer_value(json_object_get(r->layout, "ranks")));
    json_object_foreach(r->layout, key, value) if (strcmp(key, "ranks") != 0)
        printf(" %s %lld", cli_shown(&shown, key), (long long)json_integer_value(value));
    printf("\n  tensors     %lld weights in %s, %lld moments; complete\n", (long long)r->weights,
           r->dtype, (long long)r->moments);
    printf("  files       %zu, %sB, sizes and checksums verified\n", json_object_size(r->files),
           ek_count_text(bytes, sizeof(bytes), (double)r->bytes));
}

static ek_status run_check(const ek_options *o)
{
    report *r = calloc(1, sizeof(*r));
    ek_status st;

    EK_REQUIRE(r != NULL, EK_ENOMEM, "no memory for a report");
    st = check(ek_options_text(o, "checkpoint"), r);
    if (st == EK_OK && ek_options_flag(o, "json"))
        st = print_json(r);
    else if (st == EK_OK)
        print_text(r);
    json_decref(r->manifest);
    json_decref(r->config);
    free(r);
    return st;
}

int cli_check(int argc, char **argv)
{
    return ek_command_run(&table, argc, argv, run_check);
}
