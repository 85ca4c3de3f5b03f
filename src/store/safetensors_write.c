/* The streaming safetensors writer: the header, then data in its order, through one conversion
 * buffer and a running checksum. */
#include "store/convert.h"
#include "store/safetensors.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { BUFFER = 1 << 20 };

typedef struct {
    char *name;
    int64_t index; /* index in the caller's declarations */
    ek_dtype dtype;
    int64_t elements;
} item;

struct ek_safetensors_writer {
    ek_file_out file;
    ek_path path;
    item *items;         /* in the order of the data */
    int64_t n, at, done; /* number of items, current item, elements of it written */
    XXH64_state_t *hash;
    unsigned char *buffer; /* BUFFER bytes */
};

static const char *type_name(ek_dtype t)
{
    static const char *const names[] = {
        [EK_F64] = "F64", [EK_F32] = "F32", [EK_BF16] = "BF16", [EK_F16] = "F16"};

    return names[t];
}

static int by_place(const void *a, const void *b)
{
    const item *x = a, *y = b;
    size_t p = ek_dtype_size(x->dtype), q = ek_dtype_size(y->dtype);

    return p != q ? (p > q ? -1 : 1) : strcmp(x->name, y->name);
}

/* Copies, checks and sorts the declarations. */
static ek_status copy_decls(ek_safetensors_writer *w, const ek_tensor_decl *decls, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const ek_tensor_decl *d = &decls[i];
        item *it = &w->items[i];

        EK_REQUIRE(d->dims >= 0 && d->dims <= EK_TENSOR_DIMS_MAX, EK_EINVAL,
                   "%s: tensor '%s' has %d dimensions, 0 to %d are supported", w->path.s, d->name,
                   d->dims, EK_TENSOR_DIMS_MAX);
        *it = (item){.index = i, .dtype = d->dtype, .elements = 1, .name = strdup(d->name)};
        EK_REQUIRE(it->name != NULL, EK_ENOMEM, "no memory for the name %s", d->name);
        w->n++;
        for (int k = 0; k < d->dims; k++)
            EK_REQUIRE(d->shape[k] >= 0 &&
                           !__builtin_mul_overflow(it->elements, d->shape[k], &it->elements),
                       EK_EINVAL, "%s: dimension %d of tensor '%s' is out of range: %" PRId64,
                       w->path.s, k, d->name, d->shape[k]);
    }
    if (n > 1)
        qsort(w->items, (size_t)n, sizeof(*w->items), by_place);
    return EK_OK;
}

/* Adds the header entry of one tensor and advances the offset to its end. */
static ek_status add_entry(ek_safetensors_writer *w, json_t *root, const item *it,
                           const ek_tensor_decl *d, int64_t *offset)
{
    json_t *shape;
    int64_t bytes, end;

    EK_REQUIRE(json_object_get(root, it->name) == NULL && strcmp(it->name, "__metadata__") != 0,
               EK_EINVAL, "%s: tensor name '%s' is taken", w->path.s, it->name);
    EK_REQUIRE(!__builtin_mul_overflow(it->elements, (int64_t)ek_dtype_size(it->dtype), &bytes) &&
                   !__builtin_add_overflow(*offset, bytes, &end),
               EK_EINVAL, "%s: tensor '%s' is too large", w->path.s, it->name);
    shape = json_array();
    for (int k = 0; k < d->dims; k++)
        json_array_append_new(shape, json_integer(d->shape[k]));
    EK_REQUIRE(json_object_set_new(root, it->name,
                                   json_pack("{s:s, s:o, s:[I, I]}", "dtype", type_name(it->dtype),
                                             "shape", shape, "data_offsets", (json_int_t)*offset,
                                             (json_int_t)end)) == 0,
               EK_EINVAL, "%s: tensor name '%s' is not valid UTF-8", w->path.s, it->name);
    *offset = end;
    return EK_OK;
}

static ek_status write_bytes(ek_safetensors_writer *w, const void *data, size_t bytes)
{
    EK_TRY(ek_file_out_write(&w->file, data, bytes));
    XXH64_update(w->hash, data, bytes);
    return EK_OK;
}

/* Writes length, JSON, and padding to a multiple of 8. */
static ek_status write_header(ek_safetensors_writer *w, const ek_tensor_decl *decls)
{
    json_t *root = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    unsigned char length[8];
    int64_t offset = 0;
    char *text = NULL;
    size_t n, pad;
    ek_status st = EK_OK;

    EK_REQUIRE_OUT(root != NULL, EK_ENOMEM, "no memory for the header of %s", w->path.s);
    for (int64_t i = 0; i < w->n; i++)
        EK_TRY_OUT(add_entry(w, root, &w->items[i], &decls[w->items[i].index], &offset));
    text = json_dumps(root, JSON_COMPACT);
    EK_REQUIRE_OUT(text != NULL, EK_ENOMEM, "no memory for the header of %s", w->path.s);
    n = strlen(text);
    pad = (8 - n % 8) % 8;
    EK_REQUIRE_OUT(n + pad <= EK_SAFETENSORS_HEADER_MAX, EK_EINVAL,
                   "%s: the header of %zu bytes is over the limit of %d", w->path.s, n,
                   EK_SAFETENSORS_HEADER_MAX);
    for (int i = 0; i < 8; i++)
        length[i] = (unsigned char)((uint64_t)(n + pad) >> (8 * i));
    EK_TRY_OUT(write_bytes(w, length, sizeof(length)));
    EK_TRY_OUT(write_bytes(w, text, n));
    EK_TRY_OUT(write_bytes(w, "        ", pad));
out:
    free(text);
    json_decref(root);
    return st;
}

/* Skips complete tensors, and those without elements. */
static void skip_full(ek_safetensors_writer *w)
{
    while (w->at < w->n && w->done == w->items[w->at].elements) {
        w->at++;
        w->done = 0;
    }
}

static void writer_free(ek_safetensors_writer **w)
{
    for (int64_t i = 0; i < (*w)->n; i++)
        free((*w)->items[i].name);
    free((*w)->items);
    free((*w)->buffer);
    XXH64_freeState((*w)->hash);
    free(*w);
    *w = NULL;
}

ek_status ek_safetensors_create(const ek_io *io, const char *path, ek_write_mode mode,
                                const ek_tensor_decl *decls, int64_t n, ek_safetensors_writer **out)
{
    ek_safetensors_writer *w = calloc(1, sizeof(*w));
    ek_status st;

    EK_REQUIRE(w != NULL, EK_ENOMEM, "no memory to write %s", path);
    w->file.fd = -1;
    w->items = calloc((size_t)n + 1, sizeof(*w->items));
    w->buffer = malloc(BUFFER);
    w->hash = XXH64_createState();
    EK_REQUIRE_OUT(w->items != NULL && w->buffer != NULL && w->hash != NULL, EK_ENOMEM,
                   "no memory to write %s", path);
    XXH64_reset(w->hash, 0);
    EK_TRY_OUT(ek_path_set(&w->path, "%s", path));
    EK_TRY_OUT(copy_decls(w, decls, n));
    EK_TRY_OUT(ek_file_out_open(io, path, mode, &w->file));
    EK_TRY_OUT(write_header(w, decls));
    skip_full(w);
    *out = w;
    w = NULL;
out:
    if (w != NULL && w->file.fd >= 0)
        ek_file_out_discard(&w->file);
    if (w != NULL)
        writer_free(&w);
    return st;
}

int64_t ek_safetensors_next(const ek_safetensors_writer *w)
{
    return w->at < w->n ? w->items[w->at].index : -1;
}

ek_status ek_safetensors_append(ek_safetensors_writer *w, const char *name, int64_t n,
                                const void *src, ek_dtype from)
{
    const unsigned char *s = src;
    const item *it = w->at < w->n ? &w->items[w->at] : NULL;
    size_t size;

    EK_REQUIRE(it != NULL && strcmp(it->name, name) == 0, EK_EINVAL,
               "%s: data of tensor '%s' come out of order, next is '%s'", w->path.s, name,
               it != NULL ? it->name : "the end");
    EK_REQUIRE(n >= 0 && n <= it->elements - w->done, EK_EINVAL,
               "%s: %" PRId64 " elements given to tensor '%s', which has %" PRId64 " left",
               w->path.s, n, name, it->elements - w->done);
    size = ek_dtype_size(it->dtype);
    if (from == it->dtype)
        EK_TRY(write_bytes(w, src, (size_t)n * size));
    for (int64_t i = 0, m; from != it->dtype && i < n; i += m) {
        m = n - i < (int64_t)(BUFFER / size) ? n - i : (int64_t)(BUFFER / size);
        ek_convert(m, s + (size_t)i * ek_dtype_size(from), from, w->buffer, it->dtype);
        EK_TRY(write_bytes(w, w->buffer, (size_t)m * size));
    }
    w->done += n;
    skip_full(w);
    return EK_OK;
}

ek_status ek_safetensors_finish(ek_safetensors_writer **w, ek_file_sum *sum)
{
    ek_safetensors_writer *x = *w;
    ek_status st;

    EK_REQUIRE_OUT(x->at == x->n, EK_ESTATE, "%s: the data of tensor '%s' are not complete",
                   x->path.s, x->items[x->at].name);
    EK_TRY_OUT(ek_file_out_close(&x->file));
    if (sum != NULL)
        *sum = (ek_file_sum){.bytes = x->file.bytes, .xxh64 = XXH64_digest(x->hash)};
out:
    if (st < 0)
        ek_file_out_discard(&x->file);
    writer_free(w);
    return st;
}

void ek_safetensors_abort(ek_safetensors_writer **w)
{
    if (*w == NULL)
        return;
    ek_file_out_discard(&(*w)->file);
    writer_free(w);
}
