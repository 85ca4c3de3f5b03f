/* Checked access to jansson values, and size limits checked before jansson parses a text. */
#include "base/json.h"

#include "base/file.h"
#include "base/nearest.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

json_t *ek_json_uint(uint64_t x)
{
    return x <= INT64_MAX ? json_integer((json_int_t)x) : json_sprintf("%" PRIu64, x);
}

uint64_t ek_json_uint_value(const json_t *value)
{
    if (json_is_string(value))
        return strtoull(json_string_value(value), NULL, 10);
    return (uint64_t)json_integer_value(value);
}

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

/* --- limits ----------------------------------------------------------------------------------- */

/* A value can take far more memory than its text: "{}," becomes about 250 bytes.  A text is
 * therefore first scanned for the memory of its values; the scan allocates nothing. */

enum {
    DEPTH_MAX = 64,
    BYTES_A_BYTE = 30,   /* memory of the values per byte of text, at most, ... */
    FREE_BYTES = 1 << 20 /* ... plus this */
};

/* Memory that jansson allocates, rounded up to sizes of malloc. */
enum {
    OBJECT_BYTES = 240, /* with its first table of buckets */
    ARRAY_BYTES = 128,  /* with a capacity of 8 elements */
    STRING_BYTES = 72,  /* and its characters */
    NUMBER_BYTES = 32,
    MEMBER_BYTES = 104, /* of an object, and the characters of its key */
    ELEMENT_BYTES = 24  /* of an array, while the array grows */
};

typedef struct {
    size_t text_max, values_max; /* bytes of a text, and of the values made from it */
} size_limits;

static const size_limits limits_of[] = {
    [EK_JSON_SETTINGS] = {(size_t)16 << 20, (size_t)128 << 20},
    [EK_JSON_TENSORS] = {100000000, (size_t)1 << 30}, /* the limit of safetensors */
    [EK_JSON_VOCABULARY] = {(size_t)128 << 20, (size_t)1 << 30},
};

typedef struct {
    const unsigned char *p;
    size_t n, at, bytes; /* bytes: memory of the values up to `at` */
    int depth, deepest;
} scan;

/* Moves past the string that begins at s->at; returns its bytes, escapes not decoded. */
static size_t skip_string(scan *s)
{
    size_t from = ++s->at;

    while (s->at < s->n && s->p[s->at] != '"')
        s->at += s->p[s->at] == '\\' ? 2 : 1;
    if (s->at > s->n)
        s->at = s->n;
    return s->at - from;
}

/* Adds up the memory of a text's values.  Invalid JSON is left to the parser, which stops there and
 * so builds no more than was counted. */
static void scan_values(scan *s)
{
    for (; s->at < s->n; s->at++) {
        unsigned char c = s->p[s->at];

        if (c == '{' || c == '[') {
            s->bytes += c == '{' ? OBJECT_BYTES : ARRAY_BYTES;
            s->depth++;
            s->deepest = s->depth > s->deepest ? s->depth : s->deepest;
        } else if (c == '}' || c == ']') {
            s->depth--;
        } else if (c == '"') {
            s->bytes += STRING_BYTES + skip_string(s);
        } else if (c == ':') {
            s->bytes += MEMBER_BYTES - STRING_BYTES; /* its key was counted as a string */
        } else if (c == ',') {
            s->bytes += ELEMENT_BYTES;
        } else if (c == '-' || (c >= '0' && c <= '9')) {
            s->bytes += NUMBER_BYTES;
            while (s->at + 1 < s->n && strchr("+-.0123456789eE", s->p[s->at + 1]) != NULL &&
                   s->p[s->at + 1] != '\0')
                s->at++;
        }
    }
}

static ek_status check_limits(const char *text, size_t bytes, const char *file, ek_json_kind kind)
{
    const size_limits *l = &limits_of[kind];
    scan s = {.p = (const unsigned char *)text, .n = bytes};
    int utf8 = bytes >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0;
    int utf16 =
        bytes >= 2 && (memcmp(text, "\xFF\xFE", 2) == 0 || memcmp(text, "\xFE\xFF", 2) == 0);

    EK_REQUIRE(!utf8 && !utf16, EK_EFORMAT,
               "%s: begins with a byte order mark (%s), which JSON does not allow: save it as "
               "UTF-8 without one",
               file, utf8 ? "BOM" : "of UTF-16");
    EK_REQUIRE(bytes <= l->text_max, EK_EFORMAT,
               "%s: %zu bytes of JSON are over the limit of %zu for such a file", file, bytes,
               l->text_max);
    scan_values(&s);
    EK_REQUIRE(s.deepest <= DEPTH_MAX, EK_EFORMAT,
               "%s: its JSON is nested %d deep, over the "
               "limit of %d",
               file, s.deepest, DEPTH_MAX);
    EK_REQUIRE(s.bytes <= l->values_max && s.bytes <= BYTES_A_BYTE * bytes + FREE_BYTES, EK_EFORMAT,
               "%s: the values in its %zu bytes of JSON would take %zu MB of memory, more than any "
               "file of its kind needs: it is damaged, or another kind of file",
               file, bytes, s.bytes / 1000000);
    return EK_OK;
}

size_t ek_json_text_max(ek_json_kind kind)
{
    return limits_of[kind].text_max;
}

/* --- parsing ---------------------------------------------------------------------------------- */

ek_status ek_json_parse_as(ek_json_kind kind, const char *text, size_t bytes, const char *file,
                           json_t **out)
{
    json_error_t error;

    *out = NULL;
    EK_TRY(check_limits(text, bytes, file, kind));
    *out = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
    EK_REQUIRE(*out != NULL, EK_EFORMAT, "%s: not valid JSON: line %d, column %d: %s", file,
               error.line, error.column, error.text);
    return EK_OK;
}

ek_status ek_json_parse(const char *text, size_t bytes, const char *file, json_t **out)
{
    return ek_json_parse_as(EK_JSON_SETTINGS, text, bytes, file, out);
}

ek_status ek_json_read_as(ek_json_kind kind, const char *path, json_t **out)
{
    char *text = NULL;
    size_t bytes = 0;
    ek_status st;

    *out = NULL;
    EK_TRY(ek_file_read(path, limits_of[kind].text_max, &text, &bytes));
    st = ek_json_parse_as(kind, text, bytes, path, out);
    free(text);
    return st;
}

ek_status ek_json_read(const char *path, json_t **out)
{
    return ek_json_read_as(EK_JSON_SETTINGS, path, out);
}

/* --- access ----------------------------------------------------------------------------------- */

/* The value of a key; *out is NULL when an optional one is absent or null. */
static ek_status find_key(const json_t *object, const char *file, const char *key,
                          ek_json_need need, json_t **out)
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

    EK_TRY(find_key(object, file, key, need, &value));
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

    EK_TRY(find_key(object, file, key, need, &value));
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

    EK_TRY(find_key(object, file, key, need, &value));
    if (value == NULL)
        return EK_OK;
    EK_REQUIRE(json_is_string(value), EK_EFORMAT, "%s: key `%s`: expected a string, found %s", file,
               key, ek_json_type_name(value));
    *out = json_string_value(value);
    return EK_OK;
}

ek_status ek_json_copy_text(const json_t *object, const char *file, const char *key,
                            ek_json_need need, char *to, size_t cap)
{
    const char *text = NULL;

    EK_TRY(ek_json_text(object, file, key, need, &text));
    if (text == NULL)
        return EK_OK;
    EK_REQUIRE(strlen(text) < cap, EK_EFORMAT, "%s: key `%s`: longer than %zu bytes", file, key,
               cap - 1);
    memcpy(to, text, strlen(text) + 1);
    return EK_OK;
}

ek_status ek_json_object(const json_t *object, const char *file, const char *key, ek_json_need need,
                         json_t **out)
{
    json_t *value = NULL;

    EK_TRY(find_key(object, file, key, need, &value));
    if (value == NULL)
        return EK_OK;
    EK_REQUIRE(json_is_object(value), EK_EFORMAT, "%s: key `%s`: expected an object, found %s",
               file, key, ek_json_type_name(value));
    *out = value;
    return EK_OK;
}

ek_status ek_json_array(const json_t *object, const char *file, const char *key, ek_json_need need,
                        json_t **out)
{
    json_t *value = NULL;

    EK_TRY(find_key(object, file, key, need, &value));
    if (value == NULL)
        return EK_OK;
    EK_REQUIRE(json_is_array(value), EK_EFORMAT, "%s: key `%s`: expected an array, found %s", file,
               key, ek_json_type_name(value));
    *out = value;
    return EK_OK;
}

static ek_status refuse_key(const char *file, const char *key, const char *const *keys)
{
    ek_spelling search = {.name = key, .n = strlen(key)};

    for (int i = 0; keys[i] != NULL; i++)
        ek_spelling_try(&search, keys[i]);
    EK_REQUIRE(!ek_spelling_is_likely(&search), EK_EFORMAT,
               "%s: key `%s` is unknown; the nearest is `%s`", file, key, search.best);
    return EK_FAIL(EK_EFORMAT, "%s: key `%s` is unknown", file, key);
}

ek_status ek_json_check_keys(const json_t *object, const char *file, const char *const *keys)
{
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)object, key, value)
    {
        int i = 0;

        while (keys[i] != NULL && strcmp(keys[i], key) != 0)
            i++;
        if (keys[i] == NULL)
            return refuse_key(file, key, keys);
    }
    return EK_OK;
}

ek_status ek_json_bool(const json_t *object, const char *file, const char *key, ek_json_need need,
                       int *out)
{
    json_t *value = NULL;

    EK_TRY(find_key(object, file, key, need, &value));
    if (value == NULL)
        return EK_OK;
    EK_REQUIRE(json_is_boolean(value), EK_EFORMAT, "%s: key `%s`: expected true or false, found %s",
               file, key, ek_json_type_name(value));
    *out = json_is_true(value);
    return EK_OK;
}

/* --- writing ---------------------------------------------------------------------------------- */

void ek_json_write_real(FILE *f, double x)
{
    char text[40];

    for (int digits = 4; digits <= 17; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, x);
        if (strtod(text, NULL) == x)
            break;
    }
    fputs(text, f);
}

ek_status ek_json_write_text(FILE *f, const char *text)
{
    json_t *value = ek_json_text_of(text);
    char *quoted = value != NULL ? json_dumps(value, JSON_ENCODE_ANY) : NULL;

    json_decref(value);
    EK_REQUIRE(quoted != NULL, EK_ENOMEM, "no memory for a text of %zu bytes", strlen(text));
    fputs(quoted, f);
    free(quoted);
    return EK_OK;
}

ek_status ek_json_written(ek_status (*write)(FILE *f, const void *from), const void *from,
                          const char *what, char **text, size_t *bytes)
{
    FILE *f;
    ek_status st;
    int lost;

    *text = NULL;
    f = open_memstream(text, bytes);
    EK_REQUIRE(f != NULL, EK_ENOMEM, "no memory for a %s", what);
    st = write(f, from);
    lost = ferror(f);
    lost |= fclose(f);
    if (st == EK_OK && lost)
        st = EK_FAIL(EK_ENOMEM, "no memory for a %s", what);
    if (st < 0) {
        free(*text);
        *text = NULL;
    }
    return st;
}
