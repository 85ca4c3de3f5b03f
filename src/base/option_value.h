/* base/option_value.h - one value of an options table: from text or JSON, checked.
 *
 * Private to base/options.c.  A value is kept as JSON: true/false, integer, real, string, or an
 * array of strings. */
#ifndef BASE_OPTION_VALUE_H
#define BASE_OPTION_VALUE_H

#include "base/options.h"

/* `where` names the option in messages: "`--lr`" or "run.json: key `lr`".
 * *out is a new reference.  EK_EINVAL names where, value and what is allowed. */
EK_CHECKED ek_status ek_option_from_text(const ek_option *row, const char *where, const char *text,
                                         json_t **out);
EK_CHECKED ek_status ek_option_from_json(const ek_option *row, const char *where,
                                         const json_t *value, json_t **out);

/* What a row allows, in words: "at least 1", "one of bf16, fp32, fp64", "an integer". */
void ek_option_describe(const ek_option *row, char *text, size_t cap);

/* The place of a word of n letters in "a|b|c", or -1. */
int ek_option_choice_index(const char *allowed, const char *word);

/* Seconds of a time such as "90s", "10m", "2h": a whole number from 1 on, at most
 * EK_OPTION_SECONDS_MAX seconds.  False: the text is none. */
enum { EK_OPTION_SECONDS_MAX = 1000000000 };
int ek_option_seconds(const char *text, int64_t *seconds);

#endif
