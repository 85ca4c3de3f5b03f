/* The table of settings; reads, writes and compares settings by it. */
#include "train/settings.h"

#include "evenkeel/version.h"

#include "base/json.h"
#include "base/option_value.h"
#include "data/sources.h"
#include "store/checkpoint.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef enum {
    TYPE_INT,     /* int */
    TYPE_INT64,   /* int64_t */
    TYPE_UINT64,  /* uint64_t */
    TYPE_REAL,    /* double */
    TYPE_SECONDS, /* int64_t, as text with a unit; 0: it is left to the row before, which is 0 else
                   */
    TYPE_FLAG,    /* int, true or false */
    TYPE_WORD,    /* int, written as text: a number, or "auto" for 0 where the row allows that */
    TYPE_TEXT,    /* const char * */
    TYPE_PATH,    /* const char *, written as an absolute path if the file exists */
    TYPE_PATHS    /* const char *const *, followed by its int64_t count */
} setting_type;

/* How a row behaves. */
enum {
    LOSSES = 1,    /* affects losses: a resumed run keeps it */
    OMIT_0 = 2,    /* 0, false, or an empty list, means the default, and is left out */
    OMIT_LESS = 4, /* likewise numbers below 0 */
    AUTO_0 = 8,    /* 0 is written "auto" */
    BYTES = 16     /* a path, but for the word "bytes", which never names a file */
};

typedef struct {
    const char *name;
    setting_type type;
    size_t offset;
    int flags;
} setting;

#define FIELD(member) offsetof(ek_train_config, member)

/* Paths do not affect losses, contents do: the model's config, and fingerprints of data, tokenizer
 * and trace, are compared with those of the checkpoint (train/checkpoint.c). */
static const setting settings[] = {
    {"model", TYPE_PATH, FIELD(model), 0},
    {"init", TYPE_PATH, FIELD(init), 0},
    {"tokenizer", TYPE_PATH, FIELD(tokenizer), BYTES},
    {"data", TYPE_PATHS, FIELD(data), 0},
    {"text-field", TYPE_TEXT, FIELD(text_field), LOSSES},
    {"token-bytes", TYPE_WORD, FIELD(token_bytes), LOSSES},
    {"document-mask", TYPE_FLAG, FIELD(document_mask), LOSSES | OMIT_0},
    {"batch", TYPE_INT64, FIELD(batch), LOSSES | OMIT_0},
    {"seq", TYPE_INT64, FIELD(seq), LOSSES | OMIT_0},
    {"micro-batch", TYPE_INT64, FIELD(micro_batch), LOSSES | OMIT_0},
    {"steps", TYPE_INT64, FIELD(steps), OMIT_0},
    {"data-order", TYPE_TEXT, FIELD(data_order), LOSSES},
    {"seed", TYPE_UINT64, FIELD(seed), LOSSES},
    {"lr", TYPE_REAL, FIELD(lr), LOSSES},
    {"min-lr", TYPE_REAL, FIELD(min_lr), LOSSES | OMIT_LESS},
    {"lr-schedule", TYPE_TEXT, FIELD(lr_schedule), LOSSES},
    {"warmup", TYPE_INT64, FIELD(warmup), LOSSES | OMIT_LESS},
    {"wd", TYPE_REAL, FIELD(wd), LOSSES},
    {"beta1", TYPE_REAL, FIELD(beta1), LOSSES},
    {"beta2", TYPE_REAL, FIELD(beta2), LOSSES},
    {"eps", TYPE_REAL, FIELD(eps), LOSSES},
    {"clip", TYPE_REAL, FIELD(clip), LOSSES},
    {"aux-coef", TYPE_REAL, FIELD(aux_coef), LOSSES},
    {"z-coef", TYPE_REAL, FIELD(z_coef), LOSSES},
    {"capacity-factor", TYPE_REAL, FIELD(capacity_factor), LOSSES},
    {"top-k", TYPE_INT64, FIELD(top_k), LOSSES | OMIT_0},
    {"top-k-schedule", TYPE_TEXT, FIELD(top_k_schedule), LOSSES},
    {"capacity-schedule", TYPE_TEXT, FIELD(capacity_schedule), LOSSES},
    {"recompute", TYPE_TEXT, FIELD(recompute), 0},
    {"dtype", TYPE_TEXT, FIELD(dtype), LOSSES},
    {"device", TYPE_TEXT, FIELD(device), 0},
    {"save-every", TYPE_INT64, FIELD(save_every), 0},
    {"save-every", TYPE_SECONDS, FIELD(save_seconds), 0}, /* if it is a time */
    {"keep", TYPE_INT64, FIELD(keep), 0},
    {"timeline", TYPE_FLAG, FIELD(timeline), 0},
    {"timeline-from", TYPE_INT64, FIELD(timeline_from), OMIT_LESS},
    {"timeline-steps", TYPE_INT64, FIELD(timeline_steps), 0},
    {"record-routing", TYPE_FLAG, FIELD(record_routing), 0},
    {"record-plans", TYPE_FLAG, FIELD(record_plans), 0},
    {"elastic", TYPE_FLAG, FIELD(elastic), 0},
    {"pp", TYPE_INT, FIELD(pp), 0},
    {"tp", TYPE_INT, FIELD(tp), 0},
    {"ep", TYPE_INT, FIELD(ep), 0},
    {"etp", TYPE_INT, FIELD(etp), 0},
    {"adaptive-r", TYPE_TEXT, FIELD(adaptive_r), 0},
    {"zero", TYPE_WORD, FIELD(zero), 0},
    {"embed-columns", TYPE_FLAG, FIELD(embed_columns), 0},
    {"pp-chunks", TYPE_INT, FIELD(chunks), 0},
    {"pipeline-degree", TYPE_WORD, FIELD(pipeline_degree), AUTO_0},
    {"smart-groups", TYPE_INT, FIELD(smart_group), 0},
    {"a2a", TYPE_TEXT, FIELD(a2a), 0},
    {"force-balance", TYPE_FLAG, FIELD(force_balance), LOSSES},
    {"balance", TYPE_TEXT, FIELD(balance), 0},
    {"spare-slots", TYPE_INT, FIELD(spare_slots), 0},
    {"plan-every", TYPE_INT64, FIELD(plan_every), 0},
    {"recalibrate", TYPE_FLAG, FIELD(recalibrate), 0},
    {"replicas-min", TYPE_INT, FIELD(replicas_min), 0},
    {"replay-routing", TYPE_PATH, FIELD(replay_routing), LOSSES},
    {"reroute", TYPE_TEXT, FIELD(reroute), LOSSES},
    {"reroute-limit", TYPE_REAL, FIELD(reroute_limit), LOSSES},
    {"watchdog", TYPE_REAL, FIELD(watchdog), 0},
    {"eval-data", TYPE_PATHS, FIELD(eval_data), OMIT_0},
    {"eval-every", TYPE_INT64, FIELD(eval_every), OMIT_0},
    {"eval-tokens", TYPE_INT64, FIELD(eval_tokens), 0},
    {"patience", TYPE_INT64, FIELD(patience), OMIT_0},
};

enum { N_SETTINGS = sizeof(settings) / sizeof(settings[0]) };

/* The length of a list follows it. */
typedef struct {
    const char *const *items;
    int64_t n;
} path_list;

_Static_assert(offsetof(ek_train_config, n_data) ==
                       offsetof(ek_train_config, data) + offsetof(path_list, n) &&
                   offsetof(ek_train_config, n_eval_data) ==
                       offsetof(ek_train_config, eval_data) + offsetof(path_list, n),
               "a list is followed by its length");

/* --- reading ---------------------------------------------------------------------------------- */

static ek_status read_list(const json_t *value, path_list *out)
{
    size_t n = json_array_size(value);
    const char **items = calloc(n + 1, sizeof(*items));

    EK_REQUIRE(items != NULL, EK_ENOMEM, "no memory for %zu paths", n);
    for (size_t i = 0; i < n; i++)
        items[i] = json_string_value(json_array_get(value, i));
    free((void *)(uintptr_t)out->items);
    *out = (path_list){items, (int64_t)n};
    return EK_OK;
}

static ek_status read_setting(const setting *s, const json_t *value, void *field)
{
    const char *text = json_string_value(value);

    switch (s->type) {
    case TYPE_INT: *(int *)field = (int)json_integer_value(value); break;
    case TYPE_INT64: *(int64_t *)field = json_integer_value(value); break;
    case TYPE_UINT64: *(uint64_t *)field = ek_json_uint_value(value); break;
    case TYPE_REAL: *(double *)field = json_number_value(value); break;
    case TYPE_SECONDS:
        if (text == NULL || !ek_option_seconds(text, field))
            *(int64_t *)field = 0;
        break;
    case TYPE_FLAG: *(int *)field = json_is_true(value); break;
    case TYPE_WORD: *(int *)field = text != NULL ? atoi(text) : 0; break; /* "auto": 0 */
    case TYPE_TEXT:
    case TYPE_PATH: *(const char **)field = text; break;
    case TYPE_PATHS: return read_list(value, field);
    }
    return EK_OK;
}

ek_status ek_train_settings_read(const json_t *from, ek_train_config *cfg)
{
    for (int i = 0; i < N_SETTINGS; i++) {
        const json_t *value = json_object_get(from, settings[i].name);

        if (value != NULL)
            EK_TRY(read_setting(&settings[i], value, (char *)cfg + settings[i].offset));
    }
    return EK_OK;
}

void ek_train_settings_release(ek_train_config *cfg)
{
    for (int i = 0; i < N_SETTINGS; i++)
        if (settings[i].type == TYPE_PATHS) {
            path_list *list = (path_list *)(void *)((char *)cfg + settings[i].offset);

            free((void *)(uintptr_t)list->items);
            *list = (path_list){NULL, 0};
        }
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

static json_t *write_list(const path_list *list)
{
    json_t *out = json_array();

    for (int64_t i = 0; i < list->n && out != NULL; i++)
        if (json_array_append_new(out, write_source(list->items[i])) != 0) {
            json_decref(out);
            out = NULL;
        }
    return out;
}

static json_t *write_word(const setting *s, int x)
{
    return x == 0 && (s->flags & AUTO_0) ? json_string("auto") : json_sprintf("%d", x);
}

/* In the largest unit that fits; NULL for 0. */
static json_t *write_seconds(int64_t s)
{
    int64_t unit = s % 3600 == 0 ? 3600 : s % 60 == 0 ? 60 : 1;

    if (s == 0)
        return NULL;
    return json_sprintf("%lld%c", (long long)(s / unit),
                        unit == 3600 ? 'h'
                        : unit == 60 ? 'm'
                                     : 's');
}

/* A new value; NULL: it is left out. */
static json_t *write_setting(const setting *s, const void *field)
{
    const char *text;
    double x = 0;
    json_t *value = NULL;

    switch (s->type) {
    case TYPE_INT: value = json_integer(*(const int *)field); break;
    case TYPE_INT64: value = json_integer(*(const int64_t *)field); break;
    case TYPE_UINT64: value = ek_json_uint(*(const uint64_t *)field); break;
    case TYPE_REAL: value = json_real(*(const double *)field); break;
    case TYPE_SECONDS: return write_seconds(*(const int64_t *)field);
    case TYPE_FLAG:
        return *(const int *)field || !(s->flags & OMIT_0) ? json_boolean(*(const int *)field)
                                                           : NULL;
    case TYPE_WORD: return write_word(s, *(const int *)field);
    case TYPE_TEXT:
        text = *(const char *const *)field;
        return text ? json_string_nocheck(text) : NULL;
    case TYPE_PATH:
        text = *(const char *const *)field;
        if (text != NULL && (s->flags & BYTES) && strcmp(text, "bytes") == 0)
            return json_string(text);
        return text ? write_path(text) : NULL;
    case TYPE_PATHS:
        return ((const path_list *)field)->n > 0 || !(s->flags & OMIT_0) ? write_list(field) : NULL;
    }
    x = json_number_value(value);
    if (((s->flags & OMIT_0) && fabs(x) <= 0) || ((s->flags & OMIT_LESS) && x < 0)) {
        json_decref(value);
        return NULL;
    }
    return value;
}

ek_status ek_train_settings_write(const ek_train_config *cfg, json_t **out)
{
    json_t *all = json_object();
    ek_status st = EK_OK;

    EK_REQUIRE(all != NULL, EK_ENOMEM, "no memory for the settings");
    for (int i = 0; i < N_SETTINGS; i++) {
        json_t *value = write_setting(&settings[i], (const char *)cfg + settings[i].offset);

        EK_REQUIRE_OUT(value == NULL || json_object_set_new(all, settings[i].name, value) == 0,
                       EK_ENOMEM, "no memory for the settings");
    }
    *out = all;
    all = NULL;
out:
    json_decref(all);
    return st;
}

/* --- comparing -------------------------------------------------------------------------------- */

static const setting *find_setting(const char *name)
{
    for (int i = 0; i < N_SETTINGS; i++)
        if (strcmp(settings[i].name, name) == 0)
            return &settings[i];
    return NULL;
}

static int decides_losses(const char *name)
{
    const setting *s = find_setting(name);

    return s != NULL && (s->flags & LOSSES);
}

/* Whether a setting that is not stored had its default; else an older version lacked it. */
static int may_be_left_out(const char *name)
{
    const setting *s = find_setting(name);

    return s != NULL && (s->type == TYPE_PATH || (s->flags & (OMIT_0 | OMIT_LESS)));
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

/* --- run.json --------------------------------------------------------------------------------- */

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
