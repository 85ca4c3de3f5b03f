/* base/json.h - checked access to JSON (jansson), with messages that name file and key.
 *
 * `file` is only for messages: "FILE: key `hidden_size`: ...".  EK_EFORMAT for integers out of
 * range, numbers that are not finite, and values of another type.
 * Ownership    the caller releases a parsed value (json_decref); strings are borrowed from it. */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include "evenkeel/err.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Whether a key must be there.  An optional key that is absent or null leaves *out as it was. */
typedef enum { EK_JSON_REQUIRED, EK_JSON_OPTIONAL } ek_json_need;

/* The kind of a file limits its size and the memory of its parsed values: 30 times its size plus
 * 1 MiB, and never more than the kind's limit.  Both are checked before memory is allocated. */
typedef enum {
    EK_JSON_SETTINGS,  /* settings, states, configs: 16 MiB, 128 MiB of values */
    EK_JSON_TENSORS,   /* lists of tensors or files: 100 MB, 1 GiB of values */
    EK_JSON_VOCABULARY /* tokenizers: 128 MiB, 1 GiB of values */
} ek_json_kind;

/* Largest size of a text of this kind, in bytes. */
size_t ek_json_text_max(ek_json_kind kind);

/* `bytes` of text -> a value.  EK_EFORMAT (with line and column) for duplicate keys, text after the
 * value, a byte order mark, deep nesting, and texts over the kind's limits. */
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

/* A string, borrowed from the object. */
EK_CHECKED ek_status ek_json_text(const json_t *object, const char *file, const char *key,
                                  ek_json_need need, const char **out);

/* A string of less than `cap` bytes, copied. */
EK_CHECKED ek_status ek_json_copy_text(const json_t *object, const char *file, const char *key,
                                       ek_json_need need, char *to, size_t cap);

/* An object, or an array, borrowed from the object. */
EK_CHECKED ek_status ek_json_object(const json_t *object, const char *file, const char *key,
                                    ek_json_need need, json_t **out);
EK_CHECKED ek_status ek_json_array(const json_t *object, const char *file, const char *key,
                                   ek_json_need need, json_t **out);

/* Refuses keys of the object that are not in the NULL-terminated list. */
EK_CHECKED ek_status ek_json_check_keys(const json_t *object, const char *file,
                                        const char *const *keys);

/* true or false -> 1 or 0. */
EK_CHECKED ek_status ek_json_bool(const json_t *object, const char *file, const char *key,
                                  ek_json_need need, int *out);

/* A new JSON string from a text that need not be UTF-8, such as a path: bytes that are not UTF-8
 * become \xHH, and so does a backslash that begins such an escape.  NULL: no memory. */
json_t *ek_json_text_of(const char *text);

/* A copy of `value` with all strings escaped in that form, as required to write JSON; and the
 * reverse, whose strings need not be UTF-8, for use inside this process only.  New values; NULL: no
 * memory. */
json_t *ek_json_escaped(const json_t *value);
json_t *ek_json_unescaped(const json_t *value);

/* A number of 0 to 2^64 - 1; from 2^63 on, beyond jansson's integers, as a string of digits.
 * NULL: no memory.  ek_json_uint_value reads it back: 0 for values of another type. */
json_t *ek_json_uint(uint64_t x);
uint64_t ek_json_uint_value(const json_t *value);

/* Write a number with the fewest digits that read back as the same; and a text, quoted, in the form
 * of ek_json_text_of: EK_ENOMEM.  Errors of f are left to the caller. */
void ek_json_write_real(FILE *f, double x);
EK_CHECKED ek_status ek_json_write_text(FILE *f, const char *text);

/* The text that `write` writes of `from`, which is called `what` in messages.  The caller frees
 * *text.  EK_ENOMEM. */
EK_CHECKED ek_status ek_json_written(ek_status (*write)(FILE *f, const void *from),
                                     const void *from, const char *what, char **text,
                                     size_t *bytes);

/* "an object", "a string", ...: the type of a value, for messages. */
const char *ek_json_type_name(const json_t *value);

#endif
