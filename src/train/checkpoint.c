/* Saving and loading a run's state, file by file. */
#include "train/checkpoint.h"

#include "base/json.h"
#include "base/log.h"
#include "model/hf_config.h"
#include "model/hf_io.h"
#include "model/source.h"
#include "store/checkpoint.h"

#include <stdlib.h>
#include <string.h>

static ek_status save_tensors(ek_checkpoint *c, ek_model *m, ek_part part, const char *name)
{
    ek_dtype dtype = m->k->real;
    ek_file_sum sum;
    ek_path path;

    EK_TRY(ek_path_set(&path, "%s/%s", ek_checkpoint_folder(c), name));
    EK_TRY(ek_model_save(m, part, dtype, NULL, path.s, EK_WRITE_DIRECT, &sum));
    return ek_checkpoint_add(c, name, &sum);
}

static ek_status save_state(ek_checkpoint *c, const ek_model *m, const json_t *settings,
                            int64_t steps_done)
{
    json_t *state = json_pack("{s:I, s:s, s:O}", "steps_done", (json_int_t)steps_done, "products",
                              m->k->products, "settings", (json_t *)settings);
    char *text = state != NULL ? json_dumps(state, JSON_INDENT(2) | JSON_SORT_KEYS) : NULL;
    ek_status st;

    json_decref(state);
    EK_REQUIRE(text != NULL, EK_ENOMEM, "no memory for state.json");
    st = ek_checkpoint_write(c, "state.json", text, strlen(text));
    free(text);
    return st;
}

static ek_status save_config(ek_checkpoint *c, const ek_model *m)
{
    char *text = NULL;
    ek_status st;

    EK_TRY(ek_hf_config_text(&m->spec, &text));
    st = ek_checkpoint_write(c, "config.json", text, strlen(text));
    free(text);
    return st;
}

ek_status ek_train_save(ek_model *m, const ek_tokenizer *tokenizer, const json_t *settings,
                        int64_t steps_done, int64_t keep, const char *out_dir)
{
    ek_checkpoint *c = NULL;
    ek_status st = EK_OK;

    EK_TRY_OUT(ek_checkpoint_begin(NULL, out_dir, steps_done, &c));
    EK_TRY_OUT(save_config(c, m));
    EK_TRY_OUT(save_state(c, m, settings, steps_done));
    if (tokenizer != NULL) {
        size_t bytes;
        const char *text = ek_tokenizer_json(tokenizer, &bytes);

        EK_TRY_OUT(ek_checkpoint_write(c, "tokenizer.json", text, bytes));
    }
    EK_TRY_OUT(save_tensors(c, m, EK_PART_MASTER, "model.safetensors"));
    EK_TRY_OUT(save_tensors(c, m, EK_PART_MOMENTS, "optimizer.safetensors"));
    EK_TRY_OUT(ek_checkpoint_commit(&c));
    EK_TRY_OUT(ek_checkpoint_prune(NULL, out_dir, keep));
out:
    ek_checkpoint_abort(&c);
    return st;
}

/* Compares one setting of the run that was saved with this run's.  before: what stands before the
 * key where a user writes it. */
static ek_status same_setting(const char *before, const char *key, const json_t *saved,
                              const json_t *now)
{
    char *a, *b;
    ek_status st = EK_OK;

    if (now == NULL || json_equal(saved, now))
        return EK_OK;
    a = json_dumps(saved, JSON_ENCODE_ANY);
    b = json_dumps(now, JSON_ENCODE_ANY);
    st = EK_FAIL(EK_EINVAL,
                 "--resume: the run was started with %s%s %s, now it is %s; give the same, or "
                 "start anew without --resume",
                 before, key, a != NULL ? a : "?", b != NULL ? b : "?");
    free(a);
    free(b);
    return st;
}

/* Compares the config that was saved with the model of this run, key by key. */
static ek_status same_model(const char *folder, const ek_model_spec *spec)
{
    json_t *saved = NULL, *now = NULL;
    char *text = NULL;
    const char *key;
    json_t *value;
    ek_path path;
    ek_status st;

    EK_TRY_OUT(ek_path_set(&path, "%s/config.json", folder));
    EK_TRY_OUT(ek_json_read(path.s, &saved));
    EK_TRY_OUT(ek_hf_config_text(spec, &text));
    EK_TRY_OUT(ek_json_parse(text, strlen(text), "the model's config", &now));
    json_object_foreach(saved, key, value)
    {
        EK_TRY_OUT(same_setting("a model of ", key, value, json_object_get(now, key)));
    }
out:
    free(text);
    json_decref(saved);
    json_decref(now);
    return st;
}

ek_status ek_train_state(const char *folder, const json_t *settings, const ek_kernels *k,
                         const ek_model_spec *spec, int64_t *steps_done)
{
    json_t *state = NULL;
    const json_t *saved;
    const char *key, *products = k->products;
    json_t *value;
    ek_path path;
    ek_status st = EK_OK;

    EK_TRY(ek_path_set(&path, "%s/state.json", folder));
    EK_TRY(ek_json_read(path.s, &state));
    EK_TRY_OUT(
        ek_json_int(state, path.s, "steps_done", EK_JSON_REQUIRED, 0, INT64_MAX / 2, steps_done));
    saved = json_object_get(state, "settings");
    EK_REQUIRE_OUT(json_is_object(saved), EK_EFORMAT, "%s: key `settings` is missing", path.s);
    json_object_foreach((json_t *)(uintptr_t)saved, key, value)
    {
        EK_TRY_OUT(same_setting("--", key, value, json_object_get(settings, key)));
    }
    EK_TRY_OUT(same_model(folder, spec));
    EK_TRY_OUT(ek_json_text(state, path.s, "products", EK_JSON_OPTIONAL, &products));
    if (strcmp(products, k->products) != 0)
        ek_log("train", EK_LOG_WARN,
               "matrix products are made of \"%s\" here, of \"%s\" so far: losses go on equal up "
               "to rounding, not bit for bit",
               k->products, products);
out:
    json_decref(state);
    return st;
}

ek_status ek_train_load(ek_model *m, const char *folder)
{
    ek_safetensors *st = NULL;
    ek_status status;
    ek_path path;

    EK_TRY(ek_path_set(&path, "%s/model.safetensors", folder));
    EK_TRY(ek_model_load_path(m, path.s));
    EK_TRY(ek_path_set(&path, "%s/optimizer.safetensors", folder));
    EK_TRY(ek_safetensors_open(path.s, &st));
    status = ek_model_load(m, st, EK_PART_MOMENTS);
    ek_safetensors_close(&st);
    return status;
}
