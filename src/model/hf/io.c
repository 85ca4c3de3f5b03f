/* Copies between the model's arrays and safetensors files, tensor by tensor. */
#include "model/hf/io.h"

#include "model/hf/weights.h"
#include "model/offload.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_MAX_LEN = EK_HF_NAME_MAX + 16, COPY_ELEMENTS = 1 << 18 };

/* --- where a tensor is stored ----------------------------------------------------------------- */

/* Tensor t starts at row `row` of the stored tensor. */
typedef struct {
    const ek_sliced_tensor *stored;
    int64_t row;
} stored_at;

/* Finds and checks one array of one tensor. */
static ek_status locate_array(const ek_model_spec *spec, const ek_slice_set *files,
                              const ek_hf_tensor *t, const char *suffix, stored_at *out)
{
    char name[NAME_MAX_LEN];
    ek_hf_source other;

    snprintf(name, sizeof(name), "%s%s", t->name, suffix);
    *out = (stored_at){ek_slice_set_find(files, name), 0};
    if (out->stored != NULL)
        return ek_sliced_tensor_check(out->stored, t->dims, t->shape);
    if (suffix[0] == '\0' && ek_hf_alternative(spec, t, &other) &&
        (out->stored = ek_slice_set_find(files, other.name)) != NULL) {
        out->row = other.dims > 1 ? other.first / other.shape[other.dims - 1] : other.first;
        return ek_sliced_tensor_check(out->stored, other.dims, other.shape);
    }
    return EK_FAIL(EK_EFORMAT, "%s: tensor %s is missing; the config asks for it",
                   ek_slice_set_path(files), name);
}

/* Tensors that some writers add to the model's: rotary tables, the head of a tied model. */
static int is_ignored_tensor(const ek_model_spec *spec, const char *name)
{
    static const char inv_freq[] = "rotary_emb.inv_freq";
    size_t n = strlen(name), k = sizeof(inv_freq) - 1;

    return (n >= k && strcmp(name + n - k, inv_freq) == 0) ||
           (spec->tie_embeddings && strcmp(name, "lm_head.weight") == 0);
}

ek_status ek_hf_check(const ek_model_spec *spec, const ek_slice_set *files, ek_weight_arrays part)
{
    int n_arrays;
    const ek_weight_array *arrays = ek_weight_arrays_of(part, &n_arrays);
    int64_t count = ek_hf_count(spec), stored = ek_slice_set_count(files);
    unsigned char *seen = calloc((size_t)stored + 1, 1);
    ek_status st = EK_OK;

    EK_REQUIRE(seen != NULL, EK_ENOMEM, "no memory to read %lld tensors", (long long)stored);
    for (int64_t i = 0; i < count; i++) {
        ek_hf_tensor t;
        stored_at at;

        ek_hf_tensor_at(spec, i, &t);
        for (int a = 0; a < n_arrays; a++) {
            EK_TRY_OUT(locate_array(spec, files, &t, arrays[a].suffix, &at));
            seen[at.stored - ek_slice_set_get(files, 0)] = 1;
        }
    }
    for (int64_t i = 0; i < stored; i++) {
        const ek_sliced_tensor *x = ek_slice_set_get(files, i);

        EK_REQUIRE_OUT(seen[i] || is_ignored_tensor(spec, x->name), EK_EFORMAT,
                       "%s: tensor %s is not part of the model that the config describes",
                       x->slices[0].t->file, x->name);
    }
out:
    free(seen);
    return st;
}

/* --- reading ---------------------------------------------------------------------------------- */

/* A range of a weight must be whole rows, and a span all columns, for intersections to be
 * slices. */
static ek_status check_rows(const ek_span *s, const ek_hf_tensor *t, int64_t first, int64_t n)
{
    int64_t width = s->w->in > 0 ? s->w->in : 1;

    EK_REQUIRE(s->ld == width && s->cols == width && s->first % width == 0 && first % width == 0 &&
                   n % width == 0,
               EK_EINTERNAL, "the range of %lld elements from %lld is not whole rows of %s",
               (long long)n, (long long)first, t->name);
    return EK_OK;
}

/* The slice of a stored tensor that is a slice of t. */
static ek_status locate_slice(const ek_hf_values *v, const ek_hf_tensor *t, const char *suffix,
                              const ek_tensor_slice *slice, const ek_sliced_tensor **stored,
                              ek_tensor_slice *out)
{
    stored_at at;

    EK_TRY(locate_array(v->spec, v->files, t, suffix, &at));
    *stored = at.stored;
    *out = *slice;
    out->row += at.row;
    return EK_OK;
}

static ek_status read_stored(void *context, const ek_hf_tensor *t, const ek_weight_array *a,
                             const ek_tensor_slice *slice, const ek_file_batch *in, ek_dtype type,
                             void *dst, int64_t ld)
{
    const ek_sliced_tensor *stored = NULL;
    ek_tensor_slice at;

    EK_TRY(locate_slice(context, t, a->suffix, slice, &stored, &at));
    return ek_sliced_tensor_take(stored, &at, in, dst, ld, type);
}

static const void *stored_in_place(void *context, const ek_hf_tensor *t, const ek_weight_array *a,
                                   const ek_tensor_slice *slice, const ek_file_batch *in,
                                   ek_dtype type)
{
    const ek_sliced_tensor *stored = NULL;
    ek_tensor_slice at;

    if (locate_slice(context, t, a->suffix, slice, &stored, &at) < 0)
        return NULL; /* reading it says why */
    return ek_sliced_tensor_in(stored, &at, in, type);
}

static ek_status stored_pieces(void *context, const ek_hf_tensor *t, const ek_weight_array *a,
                               const ek_tensor_slice *slice, ek_file_batch *out)
{
    const ek_sliced_tensor *stored = NULL;
    ek_tensor_slice at;

    EK_TRY(locate_slice(context, t, a->suffix, slice, &stored, &at));
    return ek_sliced_tensor_pieces(stored, &at, out);
}

int ek_hf_range(const ek_hf_values *values, const ek_hf_tensor *t, const ek_tensor_slice *slice,
                ek_tensor_range *out)
{
    const ek_sliced_tensor *stored = NULL;
    ek_tensor_slice at;

    return locate_slice(values, t, "", slice, &stored, &at) >= 0 &&
           ek_sliced_tensor_range(stored, &at, out);
}

ek_value_source ek_hf_value_source(ek_hf_values *values)
{
    return (ek_value_source){.read = read_stored,
                             .in_place = stored_in_place,
                             .pieces = stored_pieces,
                             .context = values};
}

ek_status ek_model_load(ek_model *m, const ek_slice_set *files, ek_weight_arrays part,
                        const ek_load_options *how)
{
    ek_hf_values values = {.spec = &m->spec, .files = files};
    ek_value_source from = ek_hf_value_source(&values);

    if (how != NULL) {
        from.progress = how->progress;
        from.files = how->files;
    }
    EK_TRY(ek_hf_check(&m->spec, files, part));
    return ek_model_fill(m, part, &from);
}

/* --- writing --------------------------------------------------------------------------------- */

void ek_owned_tensors_free(ek_owned_tensors *o)
{
    free(o->items);
    memset(o, 0, sizeof(*o));
}

/* Adds the slice of a tensor that this rank owns. */
static ek_status add_own(ek_owned_tensors *o, const ek_hf_tensor *t, const ek_span *s,
                         const ek_weight_array *arrays, int n_arrays)
{
    const ek_weight *w = s->w;
    const ek_param_bucket *on_disk = ek_offload_bucket_of(o->m, w, t->layer, t->expert);
    char name[NAME_MAX_LEN];
    int64_t from;
    ek_tensor_slice slice;

    EK_TRY(check_rows(s, t, w->own_first, w->own));
    if (!ek_span_part(s, w->own_first, w->own, &slice, &from))
        return EK_OK;
    EK_REQUIRE(w->own_first >= w->kept_first && w->own_first + w->own <= w->kept_first + w->kept,
               EK_EINTERNAL,
               "the range of %s that this rank owns is outside the range that it keeps", t->name);
    for (int a = 0; a < n_arrays; a++) {
        const char *kept = ek_weight_kept(w, &arrays[a]);
        ek_owned_tensor *x = &o->items[o->n++];

        EK_REQUIRE(kept != NULL || on_disk != NULL, EK_ESTATE, "the model has no %s%s to write",
                   t->name, arrays[a].suffix);
        snprintf(name, sizeof(name), "%s%s", t->name, arrays[a].suffix);
        ek_tensor_slice_name(x->name, sizeof(x->name), name, &slice, t->dims, t->shape);
        x->dims = t->dims;
        x->shape[0] = slice.rows;
        x->shape[1] = slice.cols;
        x->bucket = on_disk;
        x->w = w;
        x->array = &arrays[a];
        x->from = from - w->kept_first;
        x->data = on_disk != NULL ? NULL : kept + x->from * (int64_t)ek_dtype_size(o->real);
        x->elements = slice.rows * slice.cols;
        o->elements += x->elements;
    }
    return EK_OK;
}

ek_status ek_model_list_owned(ek_model *m, ek_weight_arrays part, ek_owned_tensors *out)
{
    int n_arrays;
    const ek_weight_array *arrays = ek_weight_arrays_of(part, &n_arrays);
    int64_t count = ek_hf_count(&m->spec);
    ek_owned_tensors o = {.m = m, .real = m->k->real};
    ek_status st = EK_OK;

    o.items = calloc((size_t)(count * n_arrays), sizeof(*o.items));
    EK_REQUIRE_OUT(o.items != NULL, EK_ENOMEM, "no memory to write %lld tensors",
                   (long long)(count * n_arrays));
    for (int64_t i = 0; i < count; i++) {
        ek_hf_tensor t;
        ek_span s;

        ek_hf_tensor_at(&m->spec, i, &t);
        if (ek_model_span(m, &t, &s))
            EK_TRY_OUT(add_own(&o, &t, &s, arrays, n_arrays));
    }
    *out = o;
    o.items = NULL;
out:
    free(o.items);
    return st;
}

static ek_offload_part part_of(const ek_weight_array *a)
{
    return a->kept == offsetof(ek_weight, m)   ? EK_PART_M
           : a->kept == offsetof(ek_weight, v) ? EK_PART_V
                                               : EK_PART_MASTER;
}

/* The elements of an item; what is on disk is read, together with the rest of its bucket. */
static ek_status find_elements(const ek_owned_tensors *o, const ek_owned_tensor *x,
                               const void **data)
{
    *data = x->data;
    if (x->data != NULL)
        return EK_OK;
    EK_REQUIRE(o->reader != NULL, EK_EINTERNAL, "%s is on disk, and nothing reads it", x->name);
    return ek_offload_read(o->reader, x->bucket, x->w, part_of(x->array), x->from, data);
}

ek_status ek_owned_tensors_write(const ek_owned_tensors *o, ek_dtype dtype, const ek_io *io,
                                 const char *path, ek_write_mode mode, const atomic_int *stop,
                                 ek_file_sum *sum)
{
    ek_tensor_decl *decls = calloc((size_t)o->n + 1, sizeof(*decls));
    ek_safetensors_writer *w = NULL;
    ek_status st = EK_OK;
    int64_t i;

    EK_REQUIRE_OUT(decls != NULL, EK_ENOMEM, "no memory to write %lld tensors", (long long)o->n);
    for (i = 0; i < o->n; i++) {
        const ek_owned_tensor *x = &o->items[i];

        decls[i] = (ek_tensor_decl){x->name, dtype, x->dims, {x->shape[0], x->shape[1]}};
    }
    EK_TRY_OUT(ek_safetensors_create(io, path, mode, decls, o->n, &w));
    while ((i = ek_safetensors_next(w)) >= 0) {
        const ek_owned_tensor *x = &o->items[i];
        const void *data;

        EK_REQUIRE_OUT(stop == NULL || !atomic_load(stop), EK_ECANCELED,
                       "%s is not wanted any more", path);
        EK_TRY_OUT(find_elements(o, x, &data));
        EK_TRY_OUT(ek_safetensors_append(w, x->name, x->elements, data, o->real));
    }
    EK_TRY_OUT(ek_safetensors_finish(&w, sum));
out:
    ek_safetensors_abort(&w);
    free(decls);
    return st;
}

/* --- from files to a file --------------------------------------------------------------------- */

/* Appends a tensor, as many rows at a time as the buffer holds.  The buffer is double, so that
 * values are rounded once. */
static ek_status copy_tensor(const ek_model_spec *spec, const ek_slice_set *files,
                             const ek_hf_tensor *t, ek_safetensors_writer *w)
{
    int64_t cols = t->dims > 1 ? t->shape[1] : 1;
    int64_t most = COPY_ELEMENTS / cols > 0 ? COPY_ELEMENTS / cols : 1;
    double *buffer = NULL;
    stored_at at;
    ek_status st = EK_OK;

    most = most < t->shape[0] ? most : t->shape[0];
    EK_TRY(locate_array(spec, files, t, "", &at));
    buffer = malloc((size_t)(most * cols) * sizeof(*buffer));
    EK_REQUIRE(buffer != NULL, EK_ENOMEM, "no memory for %lld rows of %s", (long long)most,
               t->name);
    for (int64_t row = 0, rows; row < t->shape[0]; row += rows) {
        ek_tensor_slice slice;

        rows = t->shape[0] - row < most ? t->shape[0] - row : most;
        slice = (ek_tensor_slice){at.row + row, rows, 0, cols};
        EK_TRY_OUT(ek_sliced_tensor_read(at.stored, &slice, buffer, cols, EK_F64));
        EK_TRY_OUT(ek_safetensors_append(w, t->name, rows * cols, buffer, EK_F64));
    }
out:
    free(buffer);
    return st;
}

ek_status ek_hf_copy(const ek_model_spec *spec, const ek_slice_set *files, ek_dtype dtype,
                     const ek_io *io, const char *path, ek_write_mode mode)
{
    int64_t count = ek_hf_count(spec), i;
    ek_hf_tensor *tensors = calloc((size_t)count, sizeof(*tensors));
    ek_tensor_decl *decls = calloc((size_t)count, sizeof(*decls));
    ek_safetensors_writer *w = NULL;
    ek_status st = EK_OK;

    EK_REQUIRE_OUT(tensors != NULL && decls != NULL, EK_ENOMEM, "no memory to write %lld tensors",
                   (long long)count);
    EK_TRY_OUT(ek_hf_check(spec, files, EK_ARRAYS_MASTER));
    for (i = 0; i < count; i++) {
        ek_hf_tensor *t = &tensors[i];

        ek_hf_tensor_at(spec, i, t);
        decls[i] = (ek_tensor_decl){t->name, dtype, t->dims, {t->shape[0], t->shape[1]}};
    }
    EK_TRY_OUT(ek_safetensors_create(io, path, mode, decls, count, &w));
    while ((i = ek_safetensors_next(w)) >= 0)
        EK_TRY_OUT(copy_tensor(spec, files, &tensors[i], w));
    EK_TRY_OUT(ek_safetensors_finish(&w, NULL));
out:
    ek_safetensors_abort(&w);
    free(tensors);
    free(decls);
    return st;
}
