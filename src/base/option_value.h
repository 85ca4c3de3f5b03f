/* base/option_value.h - one value of an options table: from text or JSON, checked.
 *
 * A value is kept as JSON: true/false, integer, real, string, or an array of strings. */
#ifndef BASE_OPTION_VALUE_H
#define BASE_OPTION_VALUE_H

#include "base/option_table.h"

/* `where` names the option in messages: "`--lr`" or "run.json: key `lr`".
 * *out is a new reference.  EK_EINVAL names where, value and what is allowed. */
EK_CHECKED ek_status ek_option_from_text(const ek_option *row, const char *where, const char *text,
                                         json_t **out);
EK_CHECKED ek_status ek_option_from_json(const ek_option *row, const char *where,
                                         const json_t *value, json_t **out);

/* The values that a row allows, as text: "at least 1", "one of bf16, fp32", "an integer". */
void ek_option_describe(const ek_option *row, char *text, size_t cap);

/* Index of a word in "a|b|c", or -1. */
int ek_option_choice_index(const char *allowed, const char *word);

/* Whether a word of the table's positional argument has this option; word NULL: yes. */
int ek_option_is_of(const ek_option *row, const char *word);

/* The words "a|b|c" as text: "a, b and c" if last is " and ". */
void ek_option_list_words(const char *words, const char *last, char *text, size_t cap);

/* Parses a time such as "90s", "10m", "2h": 1 to EK_OPTION_SECONDS_MAX seconds, a whole number of
 * its unit.  False: not such a time. */
enum { EK_OPTION_SECONDS_MAX = 1000000000 };
int ek_option_seconds(const char *text, int64_t *seconds);

/* Parses a size such as "8G", "1.5GiB", "512MB" or "4096" (bytes): K, M, G, T and KiB to TiB are
 * powers of 1024, KB to TB powers of 1000; from 1 byte to 2^60.  "auto" is 0.  False: not a size.
 */
int ek_option_size(const char *text, int64_t *bytes);

#endif
