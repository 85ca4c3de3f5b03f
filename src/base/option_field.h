/* base/option_field.h - the value of a row of an options table in a struct of settings. */
#ifndef BASE_OPTION_FIELD_H
#define BASE_OPTION_FIELD_H

#include "base/option_table.h"

/* The value of the row's field as JSON, a new reference, in the form that ek_option_from_json
 * returns.  NULL: the row has no field, the text or the list is NULL, or there is no memory. */
json_t *ek_option_field_get(const ek_option *row, const void *settings);

/* Sets the field; texts are borrowed from the value.  Not for lists. */
void ek_option_field_set(const ek_option *row, const json_t *value, void *settings);

/* A list, and the length that follows it in a struct of settings. */
typedef struct {
    const char *const *items;
    int64_t n;
} ek_option_list;

/* The default that the table's defaults hold for a row, as ek_option_field_get; NULL also if the
 * row's default is its own text, or depends on something. */
json_t *ek_option_field_default(const ek_option_table *table, const ek_option *row);

/* What --help shows as the default of a row, in `text`; "": nothing. */
void ek_option_show_default(const ek_option_table *table, const ek_option *row, char *text,
                            size_t cap);

#endif
