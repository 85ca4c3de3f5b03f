/* Checked access to jansson values. */
#include "base/json.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { FILE_MAX = 1 << 29 }; /* bytes; tokenizers, the largest we read, take some 20 MB */

const char *ek_json_type_name(const json_t *value)
{
    if (value == NULL)
        return "nothing";
    switch (json_typeof(value)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "an integer";
    case JSON_REAL: return "a number";
    case JSON_TRUE: return "true";
    case JSON_FALSE: return "false";
    case JSON_NULL: return "null";
    }
    return "an unknown type";
}

ek_status ek_json_parse(const char *text, size_t bytes, const char *file, json_t **out)
{
    json_error_t error;

    *out = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
    EK_REQUIRE(*out != NULL, EK_EFORMAT, "%s: not valid JSON: line %d, column %d: %s", file,
               error.line, error.column, error.text);
    return EK_OK;
}

/* The bytes of an open regular file. */
static ek_status slurp(FILE *f, const char *path, char **text, size_t *bytes)
{
    struct stat s;
    size_t room;

    EK_REQUIRE(fstat(fileno(f), &s) == 0, EK_EIO, "%s: %s", path, strerror(errno));
    EK_REQUIRE(S_ISREG(s.st_mode), EK_EFORMAT, "%s: not a regular file", path);
    EK_REQUIRE(s.st_size <= FILE_MAX, EK_EFORMAT, "%s: %lld bytes are too many for a JSON file",
               path, (long long)s.st_size);
    room = (size_t)s.st_size + 1;
    *text = malloc(room);
    EK_REQUIRE(*text != NULL, EK_ENOMEM, "%s: cannot hold its %zu bytes", path, room);
    *bytes = fread(*text, 1, room, f);
    EK_REQUIRE(!ferror(f), EK_EIO, "%s: %s", path, strerror(errno));
    EK_REQUIRE(*bytes < room, EK_EIO, "%s: the file grew while it was read", path);
    return EK_OK;
}

ek_status ek_json_read(const char *path, json_t **out)
{
    FILE *f = fopen(path, "re");
    char *text = NULL;
    size_t bytes = 0;
    ek_status st;

    *out = NULL;
    EK_REQUIRE(f != NULL, errno == ENOENT || errno == ENOTDIR ? EK_ENOENT : EK_EIO, "%s: %s", path,
               strerror(errno));
    EK_TRY_OUT(slurp(f, path, &text, &bytes));
    EK_TRY_OUT(ek_json_parse(text, bytes, path, out));
out:
    free(text);
    fclose(f);
    return st;
}

/* The value of a key; *out is NULL when an optional one is absent or null. */
static ek_status find(const json_t *object, const char *file, const char *key, ek_json_need need,
                      json_t **out)
{
    EK_REQUIRE(json_is_object(object), EK_EFORMAT, "%s: expected an object with key `%s`, found %s",
               file, key, ek_json_type_name(object));
    *out = json_object_get(object, key);
    if (need == EK_JSON_OPTIONAL && json_is_null(*out))
        *out = NULL;
    EK_REQUIRE(*out != NULL || need == EK_JSON_OPTIONAL, EK_EFORMAT, "%s: key `%s` is missing",
               file, key);
    return EK_OK;
}

ek_status ek_json_int(const json_t *object, const char *file, const char *key, ek_json_need need,
                      int64_t lo, int64_t hi, int64_t *out)
{
    json_t *value = NULL;
    int64_t x;

    EK_TRY(find(object, file, key, need, &value));
    if (value == NULL)
        return EK_OK;
    EK_REQUIRE(json_is_integer(value), EK_EFORMAT, "%s: key `%s`: expected an integer, found %s",
               file, key, ek_json_type_name(value));
    x = json_integer_value(value);
    EK_REQUIRE(x >= lo && x <= hi, EK_EFORMAT, "%s: key `%s`: %lld is not between %lld and %lld",
               file, key, (long long)x, (long long)lo, (long long)hi);
    *out = x;
    return EK_OK;
}

ek_status ek_json_real(const json_t *object, const char *file, const char *key, ek_json_need need,
                       double *out)
{
    json_t *value = NULL;
    double x;

    EK_TRY(find(object, file, key, need, &value));
    if (value == NULL)
        return EK_OK;
    EK_REQUIRE(json_is_number(value), EK_EFORMAT, "%s: key `%s`: expected a number, found %s", file,
               key, ek_json_type_name(value));
    x = json_number_value(value);
    EK_REQUIRE(isfinite(x), EK_EFORMAT, "%s: key `%s`: the number is not finite", file, key);
    *out = x;
    return EK_OK;
}

ek_status ek_json_text(const json_t *object, const char *file, const char *key, ek_json_need need,
                       const char **out)
{
    json_t *value = NULL;

    EK_TRY(find(object, file, key, need, &value));
    if (value == NULL)
        return EK_OK;
    EK_REQUIRE(json_is_string(value), EK_EFORMAT, "%s: key `%s`: expected a string, found %s", file,
               key, ek_json_type_name(value));
    *out = json_string_value(value);
    return EK_OK;
}

ek_status ek_json_bool(const json_t *object, const char *file, const char *key, ek_json_need need,
                       int *out)
{
    json_t *value = NULL;

    EK_TRY(find(object, file, key, need, &value));
    if (value == NULL)
        return EK_OK;
    EK_REQUIRE(json_is_boolean(value), EK_EFORMAT, "%s: key `%s`: expected true or false, found %s",
               file, key, ek_json_type_name(value));
    *out = json_is_true(value);
    return EK_OK;
}
