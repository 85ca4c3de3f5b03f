/* run.json: its text, where it is, and its settings. */
#include "train/output/run_file.h"

#include "evenkeel/version.h"

#include "base/json.h"
#include "store/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static json_t *write_command(const ek_train_config *cfg)
{
    json_t *command = json_array();

    for (int64_t i = 0; i < cfg->n_command; i++)
        json_array_append_new(command, ek_json_text_of(cfg->command[i]));
    return command;
}

/* With 15 digits, unless a number needs 17. */
static char *dump_exactly(const json_t *o)
{
    char *text = json_dumps(o, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
    json_t *back = text != NULL ? json_loads(text, 0, NULL) : NULL;

    if (text != NULL && !json_equal(o, back)) {
        free(text);
        text = json_dumps(o, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    }
    json_decref(back);
    return text;
}

ek_status ek_run_file_text(const ek_train_config *cfg, const json_t *values, char **out)
{
    char folder[4096];
    json_t *where = getcwd(folder, sizeof(folder)) != NULL ? ek_json_text_of(folder) : NULL;
    json_t *o = json_pack("{s:s, s:i, s:s, s:o, s:o*, s:o}", "format", "evenkeel-run", "version", 1,
                          "evenkeel", EK_VERSION, "command", write_command(cfg), "directory", where,
                          "settings", ek_json_escaped(values));
    char *text = o != NULL ? dump_exactly(o) : NULL;

    json_decref(o);
    EK_REQUIRE(text != NULL, EK_ENOMEM, "no memory for " EK_RUN_FILE);
    *out = text;
    return EK_OK;
}

ek_status ek_run_file_find(const char *out, ek_path *path)
{
    ek_path checkpoint;

    EK_TRY(ek_path_set(path, "%s/" EK_RUN_FILE, out));
    if (ek_file_kind_of(path->s) != EK_FILE_NONE)
        return EK_OK;
    path->s[0] = '\0';
    if (ek_file_kind_of(out) != EK_FILE_FOLDER || ek_checkpoint_newest(out, &checkpoint) < 0)
        return EK_OK;
    EK_TRY(ek_path_set(path, "%s/" EK_RUN_FILE, checkpoint.s));
    if (ek_file_kind_of(path->s) == EK_FILE_NONE)
        path->s[0] = '\0';
    return EK_OK;
}

ek_status ek_run_file_read(const char *path, json_t **values)
{
    const char *format = "";
    int64_t version = 0;
    json_t *root = NULL;
    ek_status st = EK_OK;

    EK_TRY(ek_json_read(path, &root));
    EK_TRY_OUT(ek_json_text(root, path, "format", EK_JSON_REQUIRED, &format));
    EK_TRY_OUT(ek_json_int(root, path, "version", EK_JSON_REQUIRED, 1, INT64_MAX / 2, &version));
    EK_REQUIRE_OUT(strcmp(format, "evenkeel-run") == 0 && version == 1, EK_EFORMAT,
                   "%s: this evenkeel reads format evenkeel-run, version 1, and not %s, version "
                   "%lld",
                   path, format, (long long)version);
    EK_REQUIRE_OUT(json_is_object(json_object_get(root, "settings")), EK_EFORMAT,
                   "%s: key `settings` is missing", path);
    *values = ek_json_unescaped(json_object_get(root, "settings"));
    EK_REQUIRE_OUT(*values != NULL, EK_ENOMEM, "no memory for the settings of %s", path);
out:
    json_decref(root);
    return st;
}
