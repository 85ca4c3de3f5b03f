/* Reads a pool of layouts. */
#include "train/layout_pool.h"

#include "balance/planner.h"
#include "base/json.h"

#include <stdio.h>
#include <string.h>

enum { VERSION = 1, WHERE = 4200, COUNT_MAX = 1 << 30 };

static ek_status read_word(const json_t *value, const char *where, ek_choice c, int64_t *out)
{
    const char *text = json_string_value(value);

    *out = text != NULL ? ek_choice_value(c, text, strlen(text)) : -1;
    EK_REQUIRE(*out >= 0, EK_EFORMAT, "%s: key `%s` is none of off, attention and full", where,
               ek_choice_name(c));
    return EK_OK;
}

/* A choice that is missing has train's default; --micro-batch has none. */
static ek_status read_choice(const json_t *o, const char *where, ek_choice c, int64_t *out)
{
    const json_t *value = json_object_get(o, ek_choice_name(c));
    int zero = c == EK_CHOICE_ZERO;

    *out = zero || c == EK_CHOICE_RECOMPUTE ? 0 : 1;
    if (c == EK_CHOICE_RECOMPUTE)
        return value != NULL ? read_word(value, where, c, out) : EK_OK;
    return ek_json_int(o, where, ek_choice_name(c),
                       c == EK_CHOICE_MICRO_BATCH ? EK_JSON_REQUIRED : EK_JSON_OPTIONAL, !zero,
                       zero ? 3 : 1000000, out);
}

static ek_status read_policy(const json_t *o, const char *where, char *out)
{
    EK_TRY(ek_json_copy_text(o, where, "balance", EK_JSON_OPTIONAL, out, EK_LAYOUT_POLICY));
    EK_REQUIRE(out[0] == '\0' || ek_planner_find(out) != NULL, EK_EFORMAT,
               "%s: key `balance`: there is no policy %s", where, out);
    return EK_OK;
}

static ek_status read_options(const json_t *o, const char *where, ek_pool_layout *l)
{
    const char *keys[EK_CHOICES + 2] = {"balance"};

    for (int i = 0; i < EK_CHOICES; i++)
        keys[i + 1] = ek_choice_name((ek_choice)i);
    EK_TRY(ek_json_check_keys(o, where, keys));
    for (int i = 0; i < EK_CHOICES; i++)
        EK_TRY(read_choice(o, where, (ek_choice)i, &l->choice.value[i]));
    return read_policy(o, where, l->balance);
}

/* A number above 0, times `unit`. */
static ek_status read_amount(const json_t *o, const char *where, const char *key, double unit,
                             double *out)
{
    double x = 0;

    EK_TRY(ek_json_real(o, where, key, EK_JSON_REQUIRED, &x));
    EK_REQUIRE(x > 0 && x < 1e24, EK_EFORMAT, "%s: key `%s`: %g is not between 0 and 1e+24", where,
               key, x);
    *out = x * unit;
    return EK_OK;
}

static ek_status read_layout(const json_t *o, const char *where, ek_pool_layout *l)
{
    static const char *const keys[] = {"options",   "step_ms",  "tokens_per_s", "mfu",
                                       "memory_mb", "failures", "step_price",   NULL};
    json_t *options = NULL;

    EK_REQUIRE(json_is_object(o), EK_EFORMAT, "%s: expected an object, found %s", where,
               ek_json_type_name(o));
    EK_TRY(ek_json_check_keys(o, where, keys));
    EK_TRY(read_amount(o, where, "step_ms", 1e-3, &l->step_s));
    EK_TRY(read_amount(o, where, "memory_mb", 1e6, &l->memory));
    EK_TRY(ek_json_object(o, where, "options", EK_JSON_REQUIRED, &options));
    return read_options(options, where, l);
}

static ek_status read_layouts(const json_t *o, const char *file, ek_layout_pool *out)
{
    json_t *list = NULL;
    char where[WHERE];

    EK_TRY(ek_json_array(o, file, "layouts", EK_JSON_REQUIRED, &list));
    out->n = (int64_t)json_array_size(list);
    EK_REQUIRE(out->n >= 1 && out->n <= EK_LAYOUT_POOL_MAX, EK_EFORMAT,
               "%s: key `layouts`: %lld layouts are not between 1 and %d", file, (long long)out->n,
               EK_LAYOUT_POOL_MAX);
    for (int64_t i = 0; i < out->n; i++) {
        (void)snprintf(where, sizeof(where), "%s: layouts[%lld]", file, (long long)i);
        EK_TRY(read_layout(json_array_get(list, (size_t)i), where, &out->layout[i]));
    }
    return EK_OK;
}

static ek_status read_pool(const json_t *o, const char *file, ek_layout_pool *out)
{
    static const char *const keys[] = {
        "evenkeel_pool", "cluster",       "ranks",   "batch",           "seq",       "dtype",
        "params",        "active_params", "layouts", "memory_limit_mb", "objective", NULL};
    int64_t version;

    EK_REQUIRE(json_is_object(o), EK_EFORMAT, "%s: expected an object, found %s", file,
               ek_json_type_name(o));
    EK_REQUIRE(json_object_get(o, "evenkeel_pool") != NULL, EK_EFORMAT,
               "%s is no pool of layouts (key `evenkeel_pool` is missing): evenkeel search --pool "
               "writes one",
               file);
    EK_TRY(ek_json_check_keys(o, file, keys));
    EK_TRY(ek_json_int(o, file, "evenkeel_pool", EK_JSON_REQUIRED, VERSION, VERSION, &version));
    EK_TRY(ek_json_int(o, file, "ranks", EK_JSON_REQUIRED, 1, COUNT_MAX, &out->ranks));
    EK_TRY(ek_json_int(o, file, "batch", EK_JSON_REQUIRED, 1, COUNT_MAX, &out->batch));
    EK_TRY(ek_json_int(o, file, "seq", EK_JSON_REQUIRED, 1, COUNT_MAX, &out->seq));
    EK_TRY(ek_json_int(o, file, "params", EK_JSON_REQUIRED, 1, INT64_MAX, &out->params));
    return read_layouts(o, file, out);
}

static ek_status read_object(json_t *o, const char *file, ek_layout_pool *out)
{
    ek_status st = read_pool(o, file, out);

    json_decref(o);
    if (st < 0)
        memset(out, 0, sizeof(*out));
    return st;
}

ek_status ek_layout_pool_parse(const char *text, size_t bytes, const char *file,
                               ek_layout_pool *out)
{
    json_t *o = NULL;

    memset(out, 0, sizeof(*out));
    EK_TRY(ek_json_parse(text, bytes, file, &o));
    return read_object(o, file, out);
}

ek_status ek_layout_pool_read(const char *file_or_text, ek_layout_pool *out)
{
    json_t *o = NULL;

    if (file_or_text[0] == '{')
        return ek_layout_pool_parse(file_or_text, strlen(file_or_text), "the pool of layouts", out);
    memset(out, 0, sizeof(*out));
    EK_TRY(ek_json_read(file_or_text, &o));
    return read_object(o, file_or_text, out);
}

void ek_pool_layout_apply(const ek_pool_layout *l, ek_train_config *cfg)
{
    ek_layout_apply(&l->choice, cfg);
    if (l->balance[0] != '\0')
        cfg->balance = l->balance;
}
