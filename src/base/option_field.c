/* Fields of a struct of settings <-> values of options; defaults of rows. */
#include "base/option_field.h"

#include "base/json.h"
#include "base/option_value.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NUMBER_CAP = 32 };

/* The word of a choice whose field holds this number: "auto" for a 0 that is no choice. */
static json_t *number_word(const ek_option *row, int x)
{
    char word[NUMBER_CAP];

    snprintf(word, sizeof(word), "%d", x);
    return json_string(x == 0 && ek_option_choice_index(row->allowed, word) < 0 ? "auto" : word);
}

/* The word of this index. */
static json_t *index_word(const ek_option *row, int index)
{
    const char *word = row->allowed;

    for (; index > 0 && word != NULL; index--) {
        word = strchr(word, '|');
        word = word != NULL ? word + 1 : NULL;
    }
    return word != NULL ? json_stringn(word, strcspn(word, "|")) : NULL;
}

/* A time in the largest unit that divides it. */
static json_t *time_text(int64_t s)
{
    if (s % 3600 == 0)
        return json_sprintf("%lldh", (long long)(s / 3600));
    if (s % 60 == 0)
        return json_sprintf("%lldm", (long long)(s / 60));
    return json_sprintf("%llds", (long long)s);
}

/* Bytes in the largest unit that divides them. */
static json_t *size_text(int64_t bytes)
{
    static const char *const units[] = {"", "K", "M", "G", "T"};
    size_t i = 0;

    if (bytes == 0)
        return json_string("auto");
    for (; i + 1 < sizeof(units) / sizeof(units[0]) && bytes % 1024 == 0; i++)
        bytes /= 1024;
    return json_sprintf("%lld%s", (long long)bytes, units[i]);
}

static json_t *list_value(const ek_option_list *list)
{
    json_t *out = list->items != NULL ? json_array() : NULL;

    for (int64_t i = 0; out != NULL && i < list->n; i++)
        if (json_array_append_new(out, json_string_nocheck(list->items[i])) != 0) {
            json_decref(out);
            out = NULL;
        }
    return out;
}

json_t *ek_option_field_get(const ek_option *row, const void *settings)
{
    const void *field = (const char *)settings + row->offset;
    int64_t seconds;

    switch (row->field) {
    case EK_FIELD_NONE: return NULL;
    case EK_FIELD_INT:
        if (row->type == EK_OPTION_FLAG)
            return json_boolean(*(const int *)field);
        return row->type == EK_OPTION_CHOICE ? number_word(row, *(const int *)field)
                                             : json_integer(*(const int *)field);
    case EK_FIELD_INT64: return json_integer(*(const int64_t *)field);
    case EK_FIELD_UINT64: return ek_json_uint(*(const uint64_t *)field);
    case EK_FIELD_REAL: return json_real(*(const double *)field);
    case EK_FIELD_TEXT: return json_string_nocheck(*(const char *const *)field);
    case EK_FIELD_INDEX: return index_word(row, *(const int *)field);
    case EK_FIELD_LIST: return list_value(field);
    case EK_FIELD_SIZE: return size_text(*(const int64_t *)field);
    case EK_FIELD_EVERY:
        seconds = *(const int64_t *)(const void *)((const char *)settings + row->seconds_offset);
        if (seconds > 0)
            return time_text(seconds);
        return *(const int64_t *)field < 0 ? json_string("auto")
                                           : json_integer(*(const int64_t *)field);
    }
    return NULL;
}

static void set_every(const ek_option *row, const json_t *value, void *settings)
{
    int64_t *number = (void *)((char *)settings + row->offset);
    int64_t *seconds = (void *)((char *)settings + row->seconds_offset);
    const char *time = json_string_value(value);

    *number = time != NULL && strcmp(time, "auto") == 0 ? -1 : json_integer_value(value);
    if (time == NULL || !ek_option_seconds(time, seconds))
        *seconds = 0;
}

static int int_value(const ek_option *row, const json_t *value)
{
    if (row->type == EK_OPTION_FLAG)
        return json_is_true(value);
    if (row->type == EK_OPTION_CHOICE)
        return atoi(json_string_value(value)); /* "auto": 0 */
    return (int)json_integer_value(value);
}

void ek_option_field_set(const ek_option *row, const json_t *value, void *settings)
{
    void *field = (char *)settings + row->offset;

    switch (row->field) {
    case EK_FIELD_NONE:
    case EK_FIELD_LIST: break;
    case EK_FIELD_INT: *(int *)field = int_value(row, value); break;
    case EK_FIELD_INT64: *(int64_t *)field = json_integer_value(value); break;
    case EK_FIELD_UINT64: *(uint64_t *)field = ek_json_uint_value(value); break;
    case EK_FIELD_REAL: *(double *)field = json_number_value(value); break;
    case EK_FIELD_TEXT: *(const char **)field = json_string_value(value); break;
    case EK_FIELD_INDEX:
        *(int *)field = ek_option_choice_index(row->allowed, json_string_value(value));
        break;
    case EK_FIELD_SIZE: (void)ek_option_size(json_string_value(value), field); break;
    case EK_FIELD_EVERY: set_every(row, value, settings); break;
    }
}

/* --- defaults --------------------------------------------------------------------------------- */

json_t *ek_option_field_default(const ek_option_table *table, const ek_option *row)
{
    if (table->defaults == NULL || row->fallback != NULL || row->shown != NULL ||
        row->type == EK_OPTION_FLAG || row->type == EK_OPTION_LIST)
        return NULL;
    return ek_option_field_get(row, table->defaults);
}

/* The shorter of "0.001" and "1e-3"; of equally long ones the first. */
static void real_text(double x, char *text, size_t cap)
{
    char power[NUMBER_CAP], *exponent;
    int digits = 0;

    do /* the fewest digits that read back as x */
        snprintf(power, sizeof(power), "%.*e", digits, x);
    while (digits++ < 16 && (strtod(power, NULL) < x || strtod(power, NULL) > x));
    exponent = strchr(power, 'e');
    snprintf(text, cap, "%.15g", x);
    if (exponent == NULL)
        return;
    snprintf(exponent + 1, sizeof(power) - (size_t)(exponent + 1 - power), "%d",
             atoi(exponent + 1)); /* e-03 -> e-3 */
    if (strlen(power) < strlen(text))
        snprintf(text, cap, "%s", power);
}

void ek_option_show_default(const ek_option_table *table, const ek_option *row, char *text,
                            size_t cap)
{
    json_t *value = ek_option_field_default(table, row);

    if (json_is_real(value))
        real_text(json_real_value(value), text, cap);
    else if (json_is_integer(value))
        snprintf(text, cap, "%lld", (long long)json_integer_value(value));
    else if (json_is_string(value))
        snprintf(text, cap, "%s", json_string_value(value));
    else
        snprintf(text, cap, "%s",
                 row->fallback != NULL ? row->fallback
                 : row->shown != NULL  ? row->shown
                                       : "");
    json_decref(value);
}
