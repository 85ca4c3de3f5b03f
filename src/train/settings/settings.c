/* Writes and compares settings by the table of options. */
#include "train/settings/settings.h"

#include "evenkeel/version.h"

#include "base/json.h"
#include "base/option_field.h"
#include "data/sources.h"
#include "store/checkpoint.h"
#include "train/output/run_file.h"
#include "train/settings/options.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Whether run.json has the value of a row. */
static int is_kept(const ek_option *row)
{
    return row->field != EK_FIELD_NONE && !(row->flags & EK_SETTING_NOT_KEPT);
}

/* --- writing ---------------------------------------------------------------------------------- */

/* An absolute path, or the text unchanged if there is no such file (a preset). */
static json_t *write_path(const char *path)
{
    ek_path whole;

    if (ek_file_kind_of(path) == EK_FILE_NONE || ek_path_absolute(path, &whole) < 0)
        return json_string_nocheck(path);
    return json_string_nocheck(whole.s);
}

/* An element of --data: a path, possibly with a weight. */
static json_t *write_source(const char *text)
{
    ek_path path, whole, weighted;
    const char *weight;

    if (ek_source_path(text, &path, &weight) < 0 || weight == NULL ||
        ek_file_kind_of(path.s) == EK_FILE_NONE || ek_path_absolute(path.s, &whole) < 0)
        return write_path(text);
    if (ek_path_set(&weighted, "%s:%s", whole.s, weight) < 0)
        return NULL;
    return json_string_nocheck(weighted.s);
}

static json_t *write_sources(const json_t *list)
{
    json_t *out = json_array();

    for (size_t i = 0; i < json_array_size(list) && out != NULL; i++)
        if (json_array_append_new(out, write_source(json_string_value(json_array_get(list, i)))) !=
            0) {
            json_decref(out);
            out = NULL;
        }
    return out;
}

/* The absolute path or paths. */
static json_t *write_paths(const ek_option *row, const json_t *value)
{
    const char *text = json_string_value(value);

    if (text == NULL)
        return write_sources(value);
    return (row->flags & EK_SETTING_BYTES) && strcmp(text, "bytes") == 0 ? json_string(text)
                                                                         : write_path(text);
}

/* Whether the value means "default". */
static int is_omitted(const ek_option *row, const json_t *value)
{
    double x = json_is_array(value)  ? (double)json_array_size(value)
               : json_is_true(value) ? 1
                                     : json_number_value(value);

    return ((row->flags & EK_SETTING_OMIT_0) && fabs(x) <= 0) ||
           ((row->flags & EK_SETTING_OMIT_LESS) && x < 0);
}

/* A new value; NULL: it is left out. */
static json_t *write_setting(const ek_option *row, const ek_train_config *cfg)
{
    json_t *value = ek_option_field_get(row, cfg), *paths;

    if (value == NULL || is_omitted(row, value)) {
        json_decref(value);
        return NULL;
    }
    if (!(row->flags & EK_SETTING_PATH))
        return value;
    paths = write_paths(row, value);
    json_decref(value);
    return paths;
}

ek_status ek_train_settings_write(const ek_train_config *cfg, json_t **out)
{
    json_t *all = json_object();
    ek_status st = EK_OK;

    EK_REQUIRE(all != NULL, EK_ENOMEM, "no memory for the settings");
    for (size_t i = 0; i < ek_train_options.n_options; i++) {
        const ek_option *row = &ek_train_options.options[i];
        json_t *value = is_kept(row) ? write_setting(row, cfg) : NULL;

        EK_REQUIRE_OUT(value == NULL || json_object_set_new(all, row->name, value) == 0, EK_ENOMEM,
                       "no memory for the settings");
    }
    *out = all;
    all = NULL;
out:
    json_decref(all);
    return st;
}

/* --- comparing -------------------------------------------------------------------------------- */

static const ek_option *find_setting(const char *name)
{
    for (size_t i = 0; i < ek_train_options.n_options; i++)
        if (strcmp(ek_train_options.options[i].name, name) == 0)
            return is_kept(&ek_train_options.options[i]) ? &ek_train_options.options[i] : NULL;
    return NULL;
}

static int decides_losses(const char *name)
{
    const ek_option *row = find_setting(name);

    return row != NULL && (row->flags & EK_SETTING_LOSSES);
}

/* Whether a setting that is not stored had its default; else an older version lacked it. */
static int may_be_left_out(const char *name)
{
    const ek_option *row = find_setting(name);

    return row != NULL && ((row->field == EK_FIELD_TEXT && (row->flags & EK_SETTING_PATH)) ||
                           (row->flags & (EK_SETTING_OMIT_0 | EK_SETTING_OMIT_LESS)));
}

static char *dump_short(const json_t *value)
{
    json_t *escaped = ek_json_escaped(value);
    char *text = json_dumps(escaped, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));

    json_decref(escaped);
    return text;
}

/* Appends ", --name VALUE (it was VALUE)". */
static void add_change(char *text, size_t cap, const char *name, const json_t *was,
                       const json_t *is)
{
    char *a = was != NULL ? dump_short(was) : NULL, *b = is != NULL ? dump_short(is) : NULL;
    size_t n = strlen(text);

    snprintf(text + n, cap - n, "%s--%s %s (it was %s)", n > 0 ? ", " : "", name,
             b != NULL ? b : "as by default", a != NULL ? a : "as by default");
    free(a);
    free(b);
}

ek_status ek_train_settings_compare(const json_t *stored, const json_t *now, int override,
                                    char *changes, size_t cap)
{
    enum { REFUSED_CAP = 700 };
    char refused[REFUSED_CAP] = "";
    const char *name;
    json_t *all = json_copy((json_t *)(uintptr_t)now), *value;

    changes[0] = '\0';
    EK_REQUIRE(all != NULL && json_object_update_missing(all, (json_t *)(uintptr_t)stored) == 0,
               EK_ENOMEM, "no memory for the settings");
    json_object_foreach(all, name, value)
    {
        const json_t *was = json_object_get(stored, name), *is = json_object_get(now, name);

        if (was != NULL ? is != NULL && json_equal(was, is) : !may_be_left_out(name))
            continue;
        if (decides_losses(name) && !override)
            add_change(refused, sizeof(refused), name, was, is);
        else
            add_change(changes, cap, name, was, is);
    }
    json_decref(all);
    EK_REQUIRE(refused[0] == '\0', EK_EINVAL,
               "--resume uses the settings in " EK_RUN_FILE
               "; these options would change the losses: "
               "%s; drop them, use a new --out, or add --override",
               refused);
    return EK_OK;
}
