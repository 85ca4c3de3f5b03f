/* base/json.h - checked access to JSON (jansson), with messages that name file and key.
 *
 * `file` is only for messages: "FILE: key `hidden_size`: ...".  Integers out of range, numbers
 * that are not finite and values of another type are refused with EK_EFORMAT.
 * Ownership    a parsed value is the caller's (json_decref); strings are borrowed from it. */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include "evenkeel/err.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

/* Whether a key must be there.  An optional key that is absent or null leaves *out as it was. */
typedef enum { EK_JSON_REQUIRED, EK_JSON_OPTIONAL } ek_json_need;

/* What a file holds decides how large it may be, and how much memory its values may take: at most
 * 30 times its size (and 1 MiB), and never more than the kind's limit.  More is refused before
 * memory is taken. */
typedef enum {
    EK_JSON_SETTINGS,  /* settings, states, configs: 16 MiB, 128 MiB of values */
    EK_JSON_TENSORS,   /* lists of tensors or files: 100 MB, 1 GiB of values */
    EK_JSON_VOCABULARY /* tokenizers: 128 MiB, 1 GiB of values */
} ek_json_kind;

/* The most bytes that a text of this kind may have. */
size_t ek_json_text_max(ek_json_kind kind);

/* `bytes` of text -> a value.  Duplicate keys, anything after the value, a byte order mark, deep
 * nesting and more than the kind's limits are errors (EK_EFORMAT, with line and column). */
EK_CHECKED ek_status ek_json_parse_as(ek_json_kind kind, const char *text, size_t bytes,
                                      const char *file, json_t **out);

/* A whole regular file -> a value.  EK_ENOENT, EK_EIO, EK_EFORMAT. */
EK_CHECKED ek_status ek_json_read_as(ek_json_kind kind, const char *path, json_t **out);

/* The same for EK_JSON_SETTINGS. */
EK_CHECKED ek_status ek_json_parse(const char *text, size_t bytes, const char *file, json_t **out);
EK_CHECKED ek_status ek_json_read(const char *path, json_t **out);

/* An integer of [lo, hi]. */
EK_CHECKED ek_status ek_json_int(const json_t *object, const char *file, const char *key,
                                 ek_json_need need, int64_t lo, int64_t hi, int64_t *out);

/* A finite number, written with or without a point. */
EK_CHECKED ek_status ek_json_real(const json_t *object, const char *file, const char *key,
                                  ek_json_need need, double *out);

EK_CHECKED ek_status ek_json_text(const json_t *object, const char *file, const char *key,
                                  ek_json_need need, const char **out);

/* true or false -> 1 or 0. */
EK_CHECKED ek_status ek_json_bool(const json_t *object, const char *file, const char *key,
                                  ek_json_need need, int *out);

/* A text that need not be UTF-8, such as a path, as a new string: bytes that are not UTF-8 become
 * \xHH, and so does a backslash that stands before what looks like such an escape.  NULL: there is
 * no memory. */
json_t *ek_json_text_of(const char *text);

/* A new value whose strings are those of `value` in that form, as JSON has to be written; and back:
 * strings may then be no UTF-8, and the value is for this program alone. */
json_t *ek_json_escaped(const json_t *value);
json_t *ek_json_unescaped(const json_t *value);

/* A number of 0 to 2^64 - 1.  From 2^63 on, which integers of jansson do not hold, it is a string
 * of digits.  Read back: 0 for values of another type. */
json_t *ek_json_uint(uint64_t x);
uint64_t ek_json_uint_value(const json_t *value);

/* "an object", "a string", ...: the type of a value, for messages. */
const char *ek_json_type_name(const json_t *value);

#endif
