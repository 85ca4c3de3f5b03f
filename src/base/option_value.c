/* Texts and JSON values -> checked option values. */
#include "base/option_value.h"

#include "base/json.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum {
    TEXT_CAP = 256,
    SHOWN_MAX = 80, /* characters of a wrong value shown in a message */
    SIZE_DIGITS_MAX = 32
};

/* An interval of the table: "[1,)", "(0,1]"; a missing bound is infinite. */
typedef struct {
    double lo, hi;
    int lo_open, hi_open;
} interval;

static interval read_interval(const char *allowed)
{
    interval r = {-HUGE_VAL, HUGE_VAL, 0, 0};
    char *end;
    const char *comma = allowed != NULL ? strchr(allowed, ',') : NULL;

    if (comma == NULL)
        return r;
    r.lo_open = allowed[0] == '(';
    r.hi_open = comma[strcspn(comma, ")]")] == ')';
    r.lo = strtod(allowed + 1, &end);
    if (end == allowed + 1)
        r.lo = -HUGE_VAL;
    r.hi = strtod(comma + 1, &end);
    if (end == comma + 1)
        r.hi = HUGE_VAL;
    return r;
}

static int is_in_interval(const char *allowed, double x)
{
    interval r = read_interval(allowed);

    return (r.lo_open ? x > r.lo : x >= r.lo) && (r.hi_open ? x < r.hi : x <= r.hi);
}

/* Whether a row that takes an interval takes the word auto, too. */
static int allows_auto(const ek_option *row)
{
    return row->unit != NULL && ek_option_choice_index(row->unit, "auto") >= 0;
}

static const char *type_text(const ek_option *row)
{
    switch (row->type) {
    case EK_OPTION_FLAG: return "true or false";
    case EK_OPTION_INT: return "an integer";
    case EK_OPTION_UINT: return "an integer from 0 to 18446744073709551615";
    case EK_OPTION_EVERY:
        return allows_auto(row) ? "auto, a time (90s, 10m, 2h) or an integer"
                                : "a time (90s, 10m, 2h) or an integer";
    case EK_OPTION_SIZE: return "a size (8G, 512M, 1.5GiB) or auto";
    case EK_OPTION_REAL: return "a finite number";
    case EK_OPTION_TEXT: return "a text that is not empty";
    case EK_OPTION_CHOICE: return "one of";
    case EK_OPTION_LIST: return "one or more texts, none empty";
    }
    return "";
}

void ek_option_describe(const ek_option *row, char *text, size_t cap)
{
    interval r = read_interval(row->allowed);
    const char *above = r.lo_open ? "above" : "of at least", *below = r.hi_open ? "below" : "up to";
    size_t used;

    if (row->type == EK_OPTION_CHOICE) {
        used = (size_t)snprintf(text, cap, "one of ");
        for (const char *p = row->allowed; *p != '\0' && used + 3 < cap; p++) {
            text[used++] = *p == '|' ? ',' : *p;
            if (*p == '|')
                text[used++] = ' ';
        }
        text[used] = '\0';
    } else if (isinf(r.lo) && isinf(r.hi)) {
        snprintf(text, cap, "%s", type_text(row));
    } else if (isinf(r.hi)) {
        snprintf(text, cap, "%s %s %.15g", type_text(row), above, r.lo);
    } else if (isinf(r.lo)) {
        snprintf(text, cap, "%s %s %.15g", type_text(row), below, r.hi);
    } else if (!r.lo_open && !r.hi_open) {
        snprintf(text, cap, "%s from %.15g to %.15g", type_text(row), r.lo, r.hi);
    } else {
        snprintf(text, cap, "%s %s %.15g and %s %.15g", type_text(row), above, r.lo, below, r.hi);
    }
}

int ek_option_choice_index(const char *allowed, const char *word)
{
    size_t n = strlen(word);
    int index = 0;

    for (const char *p = allowed; p != NULL; index++) {
        const char *bar = strchr(p, '|');
        size_t length = bar != NULL ? (size_t)(bar - p) : strlen(p);

        if (length == n && memcmp(p, word, n) == 0)
            return index;
        p = bar != NULL ? bar + 1 : NULL;
    }
    return -1;
}

int ek_option_is_of(const ek_option *row, const char *word)
{
    return word == NULL || row->only == NULL || ek_option_choice_index(row->only, word) >= 0;
}

void ek_option_list_words(const char *words, const char *last, char *text, size_t cap)
{
    size_t used = 0;

    text[0] = '\0';
    while (*words != '\0' && used < cap) {
        size_t n = strcspn(words, "|");
        const char *next = words + n + (words[n] != '\0');
        const char *between = *next == '\0' ? "" : strchr(next, '|') != NULL ? ", " : last;

        used += (size_t)snprintf(text + used, cap - used, "%.*s%s", (int)n, words, between);
        words = next;
    }
}

static ek_status fail_value(const ek_option *row, const char *where, const char *shown)
{
    char wanted[TEXT_CAP];

    ek_option_describe(row, wanted, sizeof(wanted));
    return EK_FAIL(EK_EINVAL, "%s is %.*s%s: it must be %s", where, SHOWN_MAX, shown,
                   strlen(shown) > SHOWN_MAX ? "..." : "", wanted);
}

/* Sets *out to a new JSON value; NULL means that there was no memory (or the text is not UTF-8). */
static ek_status return_value(json_t *value, const char *where, json_t **out)
{
    EK_REQUIRE(value != NULL, EK_ENOMEM, "%s: no memory for its value", where);
    *out = value;
    return EK_OK;
}

static ek_status from_int(const ek_option *row, const char *where, const char *text, json_t **out)
{
    char *end;
    long long x;

    errno = 0;
    x = strtoll(text, &end, 10);
    if (isspace((unsigned char)text[0]) || end == text || *end != '\0' || errno != 0 ||
        !is_in_interval(row->allowed, (double)x))
        return fail_value(row, where, text[0] != '\0' ? text : "empty");
    return return_value(json_integer(x), where, out);
}

static ek_status from_uint(const ek_option *row, const char *where, const char *text, json_t **out)
{
    unsigned long long x;
    char *end;

    errno = 0;
    x = strtoull(text, &end, 10);
    if (!isdigit((unsigned char)text[0]) || *end != '\0' || errno != 0)
        return fail_value(row, where, text[0] != '\0' ? text : "empty");
    return return_value(ek_json_uint(x), where, out);
}

int ek_option_seconds(const char *text, int64_t *seconds)
{
    static const struct {
        char unit;
        int64_t s;
    } units[] = {{'s', 1}, {'m', 60}, {'h', 3600}};
    char *end;
    long long x;

    if (!isdigit((unsigned char)text[0]))
        return 0;
    errno = 0;
    x = strtoll(text, &end, 10);
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++)
        if (end[0] == units[i].unit && end[1] == '\0') {
            if (errno != 0 || x <= 0 || x > EK_OPTION_SECONDS_MAX / units[i].s)
                return 0;
            *seconds = x * units[i].s;
            return 1;
        }
    return 0;
}

/* The factor of a unit: "", "K", "KB", "KiB" and so on to T; 0: not a unit. */
static double unit_factor(const char *unit)
{
    static const char letters[] = "KMGT";
    const char *at = unit[0] != '\0' ? strchr(letters, toupper((unsigned char)unit[0])) : NULL;
    double factor = 1, step;

    if (unit[0] == '\0')
        return 1;
    if (at == NULL)
        return 0;
    if (unit[1] == '\0' || strcasecmp(unit + 1, "iB") == 0)
        step = 1024;
    else if (strcasecmp(unit + 1, "B") == 0)
        step = 1000;
    else
        return 0;
    for (const char *p = letters; p <= at; p++)
        factor *= step;
    return factor;
}

int ek_option_size(const char *text, int64_t *bytes)
{
    static const double most = 1152921504606846976.0; /* 2^60 */
    char *end;
    double x;

    *bytes = 0;
    if (strcmp(text, "auto") == 0)
        return 1;
    if (!isdigit((unsigned char)text[0]) || strspn(text, "0123456789.") > SIZE_DIGITS_MAX)
        return 0;
    x = strtod(text, &end);
    if (end != text + strspn(text, "0123456789.")) /* an exponent, or hexadecimal */
        return 0;
    x *= unit_factor(end);
    if (!(x >= 1) || x > most)
        return 0;
    *bytes = (int64_t)x;
    return 1;
}

static ek_status from_real(const ek_option *row, const char *where, const char *text, json_t **out)
{
    char *end;
    double x = strtod(text, &end);

    if (isspace((unsigned char)text[0]) || end == text || *end != '\0' || !isfinite(x) ||
        !is_in_interval(row->allowed, x))
        return fail_value(row, where, text[0] != '\0' ? text : "empty");
    return return_value(json_real(x), where, out);
}

static ek_status from_string(const ek_option *row, const char *where, const char *text,
                             json_t **out)
{
    json_t *value;

    if (text[0] == '\0')
        return fail_value(row, where, "empty");
    value = json_string(text); /* NULL if not UTF-8, as paths may be */
    if (value == NULL)
        value = json_string_nocheck(text);
    return return_value(value, where, out);
}

ek_status ek_option_from_text(const ek_option *row, const char *where, const char *text,
                              json_t **out)
{
    int64_t seconds, bytes;

    *out = NULL;
    switch (row->type) {
    case EK_OPTION_FLAG:
        if (strcmp(text, "true") != 0 && strcmp(text, "false") != 0)
            return fail_value(row, where, text);
        return return_value(json_boolean(text[0] == 't'), where, out);
    case EK_OPTION_INT: return from_int(row, where, text, out);
    case EK_OPTION_UINT: return from_uint(row, where, text, out);
    case EK_OPTION_EVERY:
        return ek_option_seconds(text, &seconds) || (allows_auto(row) && strcmp(text, "auto") == 0)
                   ? from_string(row, where, text, out)
                   : from_int(row, where, text, out);
    case EK_OPTION_SIZE:
        return ek_option_size(text, &bytes)
                   ? from_string(row, where, text, out)
                   : fail_value(row, where, text[0] != '\0' ? text : "empty");
    case EK_OPTION_REAL: return from_real(row, where, text, out);
    case EK_OPTION_CHOICE:
        if (ek_option_choice_index(row->allowed, text) < 0)
            return fail_value(row, where, text[0] != '\0' ? text : "empty");
        return from_string(row, where, text, out);
    case EK_OPTION_TEXT:
    case EK_OPTION_LIST: return from_string(row, where, text, out);
    }
    return EK_FAIL(EK_EINTERNAL, "%s: unknown type of option", where);
}

/* A text or a whole number of a list. */
static ek_status item_from_json(const ek_option *row, const char *where, const json_t *value,
                                json_t **out)
{
    char text[32];

    if (json_is_string(value))
        return ek_option_from_text(row, where, json_string_value(value), out);
    if (!json_is_integer(value))
        return fail_value(row, where, ek_json_type_name(value));
    snprintf(text, sizeof(text), "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    return ek_option_from_text(row, where, text, out);
}

/* A JSON array of such items. */
static ek_status list_from_json(const ek_option *row, const char *where, const json_t *value,
                                json_t **out)
{
    json_t *list = json_array(), *item;
    ek_status st = EK_OK;

    EK_REQUIRE(list != NULL, EK_ENOMEM, "%s: no memory for its value", where);
    for (size_t i = 0; i < json_array_size(value); i++) {
        EK_TRY_OUT(item_from_json(row, where, json_array_get(value, i), &item));
        EK_REQUIRE_OUT(json_array_append_new(list, item) == 0, EK_ENOMEM,
                       "%s: no memory for its value", where);
    }
    if (json_array_size(list) == 0) {
        st = fail_value(row, where, "empty");
        goto out;
    }
    *out = json_incref(list);
out:
    json_decref(list);
    return st;
}

ek_status ek_option_from_json(const ek_option *row, const char *where, const json_t *value,
                              json_t **out)
{
    char text[64];
    int number =
        json_is_integer(value) && (row->type == EK_OPTION_INT || row->type == EK_OPTION_UINT ||
                                   row->type == EK_OPTION_EVERY || row->type == EK_OPTION_SIZE ||
                                   row->type == EK_OPTION_REAL || row->type == EK_OPTION_CHOICE);

    *out = NULL;
    if (number) { /* also for a choice such as "1|2|4|auto" */
        snprintf(text, sizeof(text), "%lld", (long long)json_integer_value(value));
        return ek_option_from_text(row, where, text, out);
    }
    if (json_is_real(value) && row->type == EK_OPTION_REAL) {
        snprintf(text, sizeof(text), "%.17g", json_real_value(value));
        return ek_option_from_text(row, where, text, out);
    }
    if (json_is_boolean(value) && row->type == EK_OPTION_FLAG)
        return ek_option_from_text(row, where, json_is_true(value) ? "true" : "false", out);
    if (row->type == EK_OPTION_LIST)
        return json_is_array(value) ? list_from_json(row, where, value, out)
                                    : item_from_json(row, where, value, out);
    if (json_is_string(value) && (row->type == EK_OPTION_TEXT || row->type == EK_OPTION_CHOICE ||
                                  row->type == EK_OPTION_UINT || row->type == EK_OPTION_EVERY ||
                                  row->type == EK_OPTION_SIZE))
        return ek_option_from_text(row, where, json_string_value(value), out);
    return fail_value(row, where, ek_json_type_name(value));
}
