/* Parses the header of one safetensors file.  The file is not trusted: every number is checked
 * before use, and the tensors must tile the data. */
#include "base/json.h"
#include "store/safetensors_priv.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *name;
    int64_t bits;
    int readable;
    ek_dtype dtype;
} element_type;

/* clang-format off */
static const element_type types[] = {
    {"F64",  64, 1, EK_F64},  {"F32", 32, 1, EK_F32},
    {"BF16", 16, 1, EK_BF16}, {"F16", 16, 1, EK_F16},
    {"I64", 64, 0, 0}, {"U64", 64, 0, 0}, {"C64", 64, 0, 0}, {"I32", 32, 0, 0}, {"U32", 32, 0, 0},
    {"I16", 16, 0, 0}, {"U16", 16, 0, 0}, {"I8", 8, 0, 0}, {"U8", 8, 0, 0}, {"BOOL", 8, 0, 0},
    {"F8_E4M3", 8, 0, 0}, {"F8_E5M2", 8, 0, 0}, {"F8_E8M0", 8, 0, 0},
    {"F6_E2M3", 6, 0, 0}, {"F6_E3M2", 6, 0, 0}, {"F4", 4, 0, 0},
};
/* clang-format on */

static const element_type *type_of(const char *name)
{
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        if (strcmp(types[i].name, name) == 0)
            return &types[i];
    return NULL;
}

/* Prefix of all errors of one tensor. */
#define TENSOR_REQUIRE(cond, what, ...)                                                            \
    EK_REQUIRE(cond, EK_EFORMAT, "%s: tensor '%.200s': " what, path, name, __VA_ARGS__)

/* dtype and shape; *bytes is what they take. */
static ek_status parse_shape(const char *path, const char *name, json_t *entry, ek_safetensor *t,
                             int64_t *bytes)
{
    const char *type = json_string_value(json_object_get(entry, "dtype"));
    json_t *shape = json_object_get(entry, "shape");
    const element_type *e;
    int64_t bits;

    TENSOR_REQUIRE(type != NULL, "dtype is %s", "missing or not a string");
    e = type_of(type);
    TENSOR_REQUIRE(e != NULL, "dtype '%.40s' is unknown", type);
    TENSOR_REQUIRE(json_is_array(shape), "shape is %s", "missing or not a list");
    TENSOR_REQUIRE(json_array_size(shape) <= EK_TENSOR_DIMS_MAX,
                   "shape has %zu dimensions, more than the %d supported", json_array_size(shape),
                   EK_TENSOR_DIMS_MAX);
    t->type = e->name;
    t->readable = e->readable;
    t->dtype = e->dtype;
    t->dims = (int)json_array_size(shape);
    t->elements = 1;
    for (int i = 0; i < t->dims; i++) {
        json_t *d = json_array_get(shape, (size_t)i);

        TENSOR_REQUIRE(json_is_integer(d), "dimension %d of its shape is not an integer", i);
        t->shape[i] = json_integer_value(d);
        TENSOR_REQUIRE(t->shape[i] >= 0, "dimension %d of its shape is negative: %" PRId64, i,
                       t->shape[i]);
        TENSOR_REQUIRE(!__builtin_mul_overflow(t->elements, t->shape[i], &t->elements),
                       "the %s of its shape overflows", "number of elements");
    }
    TENSOR_REQUIRE(!__builtin_mul_overflow(t->elements, e->bits, &bits),
                   "the %s of its shape overflows", "number of bytes");
    TENSOR_REQUIRE(bits % 8 == 0, "%" PRId64 " elements of %s do not fill whole bytes", t->elements,
                   e->name);
    *bytes = bits / 8;
    return EK_OK;
}

/* data_offsets, checked against the size of the data. */
static ek_status parse_offsets(const char *path, const char *name, json_t *entry,
                               int64_t data_bytes, int64_t *begin, int64_t *end)
{
    json_t *offsets = json_object_get(entry, "data_offsets");
    json_t *b = json_array_get(offsets, 0), *e = json_array_get(offsets, 1);

    TENSOR_REQUIRE(json_array_size(offsets) == 2 && json_is_integer(b) && json_is_integer(e),
                   "data_offsets are %s", "missing or not two integers");
    *begin = json_integer_value(b);
    *end = json_integer_value(e);
    TENSOR_REQUIRE(*begin >= 0 && *begin <= *end,
                   "data_offsets [%" PRId64 ", %" PRId64 "] are not a range", *begin, *end);
    TENSOR_REQUIRE(*end <= data_bytes,
                   "its data end at byte %" PRId64 ", but the file has only %" PRId64
                   " bytes of data (cut short?)",
                   *end, data_bytes);
    return EK_OK;
}

/* data: offset of the data in the file. */
static ek_status parse_tensor(const ek_tensor_file *s, const char *name, json_t *entry,
                              int64_t data, int64_t data_bytes, ek_safetensor *t)
{
    const char *path = s->path;
    int64_t begin = 0, end = 0, bytes = 0;

    TENSOR_REQUIRE(json_is_object(entry), "its entry is %s", "not an object");
    EK_TRY(parse_shape(path, name, entry, t, &bytes));
    EK_TRY(parse_offsets(path, name, entry, data_bytes, &begin, &end));
    TENSOR_REQUIRE(end - begin == bytes,
                   "shape and dtype %s need %" PRId64 " bytes, data_offsets hold %" PRId64, t->type,
                   bytes, end - begin);
    t->file = path;
    t->memory = s->memory;
    t->fd = s->fd;
    t->at = data + begin;
    t->bytes = bytes;
    t->name = strdup(name);
    EK_REQUIRE(t->name != NULL, EK_ENOMEM, "%s: no memory for a tensor name", path);
    return EK_OK;
}

static ek_status check_metadata(const char *path, json_t *meta)
{
    const char *key;
    json_t *value;

    EK_REQUIRE(json_is_object(meta), EK_EFORMAT, "%s: __metadata__ is not an object", path);
    json_object_foreach(meta, key, value) EK_REQUIRE(
        json_is_string(value), EK_EFORMAT, "%s: __metadata__ '%.200s' is not a string", path, key);
    return EK_OK;
}

static int by_place(const void *a, const void *b)
{
    const ek_safetensor *x = a, *y = b;

    if (x->at != y->at)
        return x->at < y->at ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes); /* empty ones first */
}

/* The tensors, sorted by offset, must follow each other without overlap or gap to the end. */
static ek_status check_tiling(const char *path, const ek_safetensor *t, int64_t n, int64_t data,
                              int64_t data_bytes)
{
    int64_t at = data;

    for (int64_t i = 0; i < n; i++) {
        int64_t begin = t[i].at;

        EK_REQUIRE(begin >= at, EK_EFORMAT,
                   "%s: tensor '%.200s' overlaps '%.200s' (it begins at byte %" PRId64
                   ", the other ends at %" PRId64 ")",
                   path, t[i].name, t[i - 1].name, begin - data, at - data);
        EK_REQUIRE(begin == at, EK_EFORMAT,
                   "%s: a hole of %" PRId64 " bytes before tensor '%.200s' belongs to no tensor",
                   path, begin - at, t[i].name);
        at += t[i].bytes;
    }
    EK_REQUIRE(at - data == data_bytes, EK_EFORMAT,
               "%s: %" PRId64 " bytes after the last tensor belong to no tensor", path,
               data_bytes - (at - data));
    return EK_OK;
}

/* Checks and parses the text of a header. */
static ek_status parse_header(const ek_tensor_file *s, const char *text, size_t n, json_t **root)
{
    char what[sizeof(ek_path) + 16];

    EK_REQUIRE(n > 0 && text[0] == '{', EK_EFORMAT, "%s: the header does not begin with '{'",
               s->path);
    snprintf(what, sizeof(what), "%s: the header", s->path);
    return ek_json_parse_as(EK_JSON_TENSORS, text, n, what, root);
}

/* The JSON of the header, and its bytes. */
static ek_status load_header(const ek_tensor_file *s, json_t **root, uint64_t *header_bytes)
{
    unsigned char length[8];
    uint64_t n = 0;
    char *text;
    ek_status st;

    EK_REQUIRE(s->bytes >= 8, EK_EFORMAT,
               "%s: %" PRId64
               " bytes are too few for a safetensors file, whose header length takes 8",
               s->path, s->bytes);
    EK_TRY(ek_tensor_file_read(s->path, s->memory, s->fd, 0, sizeof(length), length));
    for (int i = 7; i >= 0; i--)
        n = n << 8 | length[i];
    EK_REQUIRE(n <= EK_SAFETENSORS_HEADER_MAX, EK_EFORMAT,
               "%s: a header of %" PRIu64
               " bytes is over the limit of %d (not a safetensors file?)",
               s->path, n, EK_SAFETENSORS_HEADER_MAX);
    EK_REQUIRE(n <= (uint64_t)s->bytes - 8, EK_EFORMAT,
               "%s: the header takes %" PRIu64 " bytes, but only %" PRId64
               " follow its length (cut short?)",
               s->path, n, s->bytes - 8);
    text = malloc((size_t)n + 1);
    EK_REQUIRE(text != NULL, EK_ENOMEM, "%s: no memory for a header of %" PRIu64 " bytes", s->path,
               n);
    EK_TRY_OUT(ek_tensor_file_read(s->path, s->memory, s->fd, 8, (size_t)n, text));
    EK_TRY_OUT(parse_header(s, text, (size_t)n, root));
    *header_bytes = n;
out:
    free(text);
    return st;
}

ek_status ek_safetensors_header(const ek_tensor_file *s, ek_safetensor **list, int64_t *n)
{
    int64_t data, data_bytes, first = *n;
    ek_safetensor *grown;
    json_t *root = NULL, *entry;
    uint64_t header_bytes = 0;
    const char *name;
    ek_status st;

    EK_TRY_OUT(load_header(s, &root, &header_bytes));
    data = 8 + (int64_t)header_bytes;
    data_bytes = s->bytes - data;
    grown = realloc(*list, ((size_t)*n + json_object_size(root) + 1) * sizeof(*grown));
    EK_REQUIRE_OUT(grown != NULL, EK_ENOMEM, "%s: no memory for a list of %zu tensors", s->path,
                   json_object_size(root));
    *list = grown;
    json_object_foreach(root, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0) {
            EK_TRY_OUT(check_metadata(s->path, entry));
            continue;
        }
        memset(&grown[*n], 0, sizeof(*grown));
        EK_TRY_OUT(parse_tensor(s, name, entry, data, data_bytes, &grown[*n]));
        (*n)++;
    }
    if (*n - first > 1)
        qsort(grown + first, (size_t)(*n - first), sizeof(*grown), by_place);
    EK_TRY_OUT(check_tiling(s->path, grown + first, *n - first, data, data_bytes));
out:
    json_decref(root);
    return st;
}
