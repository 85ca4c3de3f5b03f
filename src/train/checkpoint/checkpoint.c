/* Finds and reads checkpoints of a run. */
#include "train/checkpoint/checkpoint.h"

#include "base/json.h"
#include "base/log.h"
#include "comm/agree.h"
#include "model/hf/config.h"
#include "model/hf/io.h"
#include "train/output/run_file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The input of which a setting is the fingerprint; NULL: it is no fingerprint. */
static const char *fingerprint_of(const char *key)
{
    static const char *const all[][2] = {
        {EK_DATA_FINGERPRINT, "the data (--data) is"},
        {EK_TOKENIZER_FINGERPRINT, "the tokenizer (--tokenizer, or the model's) is"},
        {EK_REPLAY_FINGERPRINT, "the trace (--replay-routing) is"}};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (strcmp(key, all[i][0]) == 0)
            return all[i][1];
    return NULL;
}

/* Compares one stored setting with this run's.  is_option 0: it belongs to the model, where
 * --override does not apply. */
static ek_status same_setting(int is_option, const char *key, const json_t *saved,
                              const json_t *now)
{
    const char *file = fingerprint_of(key);
    char *a, *b;
    ek_status st = EK_OK;

    if (now == NULL || json_equal(saved, now))
        return EK_OK;
    EK_REQUIRE(file == NULL, EK_EINVAL,
               "%s not what the run in --out has trained with so far: the contents differ, and "
               "losses would; give the same files, use a new --out, or add --override",
               file);
    a = json_dumps(saved, JSON_ENCODE_ANY);
    b = json_dumps(now, JSON_ENCODE_ANY);
    st = EK_FAIL(EK_EINVAL,
                 "the run in --out was started with %s%s %s, now it is %s; give the same, %s",
                 is_option ? "--" : "a model of ", key, a != NULL ? a : "?", b != NULL ? b : "?",
                 is_option ? "use a new --out, or add --override" : "or use a new --out");
    free(a);
    free(b);
    return st;
}

/* Compares the stored model config with this run's, key by key. */
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
        EK_TRY_OUT(same_setting(0, key, value, json_object_get(now, key)));
    }
out:
    free(text);
    json_decref(saved);
    json_decref(now);
    return st;
}

/* state.json; *steps_done: the steps taken. */
static ek_status read_state(const char *folder, json_t **state, ek_path *path, int64_t *steps_done)
{
    EK_TRY(ek_path_set(path, "%s/state.json", folder));
    EK_TRY(ek_json_read(path->s, state));
    EK_TRY(
        ek_json_int(*state, path->s, "steps_done", EK_JSON_REQUIRED, 0, INT64_MAX / 2, steps_done));
    EK_REQUIRE(json_is_object(json_object_get(*state, "settings")), EK_EFORMAT,
               "%s: key `settings` is missing or not an object", path->s);
    return EK_OK;
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

    EK_TRY_OUT(read_state(folder, &state, &path, steps_done));
    saved = json_object_get(state, "settings");
    json_object_foreach((json_t *)(uintptr_t)saved, key, value)
    {
        if (settings != NULL)
            EK_TRY_OUT(same_setting(1, key, value, json_object_get(settings, key)));
    }
    EK_TRY_OUT(same_model(folder, spec));
    EK_TRY_OUT(ek_json_text(state, path.s, "products", EK_JSON_OPTIONAL, &products));
    if (strcmp(products, k->products) != 0)
        ek_log("train", EK_LOG_WARN,
               "matrix products use \"%s\" here and used \"%s\" so far: losses will be equal up to "
               "rounding, not bit for bit",
               k->products, products);
out:
    json_decref(state);
    return st;
}

/* Whether a name is a tensor file or an index. */
static int is_listed(const json_t *files, const char *part)
{
    char whole[64], index[80];

    snprintf(whole, sizeof(whole), "%s.safetensors", part);
    snprintf(index, sizeof(index), "%s.index.json", whole);
    return json_object_get(files, whole) != NULL || json_object_get(files, index) != NULL;
}

/* Requires that the manifest lists the file. */
static ek_status check_listed(const char *folder, const json_t *files)
{
    static const char suffix[] = ".safetensors";
    ek_names names = {0};
    ek_status st = EK_OK;

    EK_TRY(ek_folder_entries(folder, &names));
    for (int64_t i = 0; i < names.n && st == EK_OK; i++) {
        const char *name = names.names[i];
        size_t n = strlen(name), end = sizeof(suffix) - 1;
        int needed = strcmp(name, "config.json") == 0 || strcmp(name, "state.json") == 0 ||
                     strcmp(name, EK_RUN_FILE) == 0 || strcmp(name, "tokenizer.json") == 0 ||
                     (n > end && strcmp(name + n - end, suffix) == 0);

        if (needed && json_object_get(files, name) == NULL)
            st = EK_FAIL(EK_ECORRUPT, "%s/%s is not listed in the manifest", folder, name);
    }
    ek_names_free(&names);
    return st;
}

/* Checks that all files needed to resume exist. */
static ek_status check_needed(const char *folder, const json_t *files)
{
    EK_TRY(check_listed(folder, files));
    EK_REQUIRE(json_object_get(files, "config.json") != NULL &&
                   json_object_get(files, "state.json") != NULL && is_listed(files, "model") &&
                   is_listed(files, "optimizer"),
               EK_ECORRUPT, "%s: the manifest lists no %s: the checkpoint is not whole", folder,
               json_object_get(files, "config.json") == NULL  ? "config.json"
               : json_object_get(files, "state.json") == NULL ? "state.json"
               : !is_listed(files, "model")                   ? "model.safetensors"
                                                              : "optimizer.safetensors");
    return EK_OK;
}

ek_status ek_train_check(const char *folder, const json_t *files, int64_t step)
{
    json_t *state = NULL, *settings = NULL;
    ek_tokenizer *tokenizer = NULL;
    int64_t steps_done = 0;
    ek_path path;
    ek_status st;

    EK_TRY_OUT(check_needed(folder, files));
    EK_TRY_OUT(read_state(folder, &state, &path, &steps_done));
    EK_REQUIRE_OUT(steps_done == step, EK_ECORRUPT,
                   "%s: it has taken %" PRId64 " steps, and the manifest is of step %" PRId64,
                   path.s, steps_done, step);
    if (json_object_get(files, EK_RUN_FILE) != NULL) {
        EK_TRY_OUT(ek_path_set(&path, "%s/" EK_RUN_FILE, folder));
        EK_TRY_OUT(ek_run_file_read(path.s, &settings));
    }
    if (json_object_get(files, "tokenizer.json") != NULL) {
        EK_TRY_OUT(ek_path_set(&path, "%s/tokenizer.json", folder));
        EK_TRY_OUT(ek_tokenizer_open(path.s, &tokenizer));
    }
out:
    ek_tokenizer_destroy(&tokenizer);
    json_decref(settings);
    json_decref(state);
    return st;
}

static ek_status load_part(ek_model *m, const char *folder, const char *name, ek_weight_arrays part,
                           const ek_file_reader_config *how)
{
    ek_load_options options = {0};
    ek_slice_set *files = NULL;
    ek_status st;

    if (how != NULL)
        options.files = *how;
    EK_TRY(ek_slice_set_open_in(folder, name, &files));
    st = ek_model_load(m, files, part, &options);
    ek_slice_set_close(&files);
    return st;
}

static ek_status load_parts(ek_model *m, const char *folder, const ek_file_reader_config *how)
{
    EK_TRY(load_part(m, folder, "model", EK_ARRAYS_MASTER, how));
    return load_part(m, folder, "optimizer", EK_ARRAYS_MOMENTS, how);
}

ek_status ek_train_load(ek_model *m, const char *folder, const ek_file_reader_config *files)
{
    return ek_agree(m->cfg.mesh->world, "read the checkpoint", load_parts(m, folder, files));
}

ek_status ek_train_latest(const ek_mesh *mesh, const char *dir, ek_checkpoint_check check,
                          int needed, ek_checkpoint_found *out)
{
    ek_status st = mesh->rank == 0 ? ek_checkpoint_latest(dir, check, out) : EK_OK;
    ek_coll *op = NULL;

    if (st == EK_ENOENT && !needed) {
        *out = (ek_checkpoint_found){0};
        st = EK_OK;
    }
    EK_TRY(ek_agree(mesh->world, "find a checkpoint", st));
    if (mesh->size == 1)
        return EK_OK;
    EK_TRY(ek_comm_broadcast(mesh->world, out, (int64_t)sizeof(*out), 0, &op));
    return ek_coll_wait(&op);
}
