/* Tensor by tensor between the model's arrays and safetensors files. */
#include "model/hf_io.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_MAX_LEN = EK_HF_NAME_MAX + 16 };

/* The arrays of a weight that a part holds, and what is added to the tensor's name. */
typedef struct {
    const char *suffix;
    size_t offset; /* in ek_weight */
} part_array;

static const part_array master[] = {{"", offsetof(ek_weight, p)}};
static const part_array moments[] = {{".exp_avg", offsetof(ek_weight, m)},
                                     {".exp_avg_sq", offsetof(ek_weight, v)}};

static const part_array *arrays_of(ek_part part, int *n)
{
    *n = part == EK_PART_MASTER ? 1 : 2;
    return part == EK_PART_MASTER ? master : moments;
}

static char *array_at(const ek_model *m, const ek_weight *w, const part_array *a, int64_t first)
{
    char *p;

    memcpy(&p, (const char *)w + a->offset, sizeof(p));
    return p + first * (int64_t)ek_dtype_size(m->k->real);
}

static int64_t elements(const ek_hf_tensor *t)
{
    return t->shape[0] * (t->dims > 1 ? t->shape[1] : 1);
}

static void shape_text(char *out, size_t cap, int dims, const int64_t *shape)
{
    size_t n = 0;

    for (int i = 0; i < dims && n < cap; i++)
        n += (size_t)snprintf(out + n, cap - n, "%s%lld", i > 0 ? ", " : "", (long long)shape[i]);
}

static ek_status check_shape(const ek_safetensor *s, int dims, const int64_t *shape)
{
    char want[96], got[192];
    int same = s->dims == dims;

    for (int i = 0; i < dims && same; i++)
        same = s->shape[i] == shape[i];
    if (same)
        return EK_OK;
    shape_text(want, sizeof(want), dims, shape);
    shape_text(got, sizeof(got), s->dims, s->shape);
    return EK_FAIL(EK_EFORMAT, "%s: tensor %s has shape [%s], the config says [%s]", s->file,
                   s->name, got, want);
}

/* Reads one array of one tensor; marks what it used in seen. */
static ek_status load_one(ek_model *m, const ek_safetensors *st, const ek_hf_tensor *t,
                          const part_array *a, unsigned char *seen)
{
    char name[NAME_MAX_LEN];
    const ek_safetensor *s;
    ek_hf_source other;
    int64_t from = 0;
    ek_span at;

    EK_REQUIRE(ek_model_span(m, t, &at), EK_EINTERNAL, "the model has no %s", t->name);
    snprintf(name, sizeof(name), "%s%s", t->name, a->suffix);
    s = ek_safetensors_find(st, name);
    if (s != NULL) {
        EK_TRY(check_shape(s, t->dims, t->shape));
    } else if (a->suffix[0] == '\0' && ek_hf_alternative(&m->spec, t, &other) &&
               (s = ek_safetensors_find(st, other.name)) != NULL) {
        EK_TRY(check_shape(s, other.dims, other.shape));
        from = other.first;
    }
    EK_REQUIRE(s != NULL, EK_EFORMAT, "%s: tensor %s is missing; the config asks for it",
               ek_safetensors_count(st) > 0 ? ek_safetensors_get(st, 0)->file : "weights", name);
    seen[s - ek_safetensors_get(st, 0)] = 1;
    return ek_safetensor_read(s, from, elements(t), array_at(m, at.w, a, at.first), m->k->real);
}

/* Tensors that some writers add and that hold nothing of the model's own. */
static int harmless(const ek_model *m, const char *name)
{
    static const char inv_freq[] = "rotary_emb.inv_freq";
    size_t n = strlen(name), k = sizeof(inv_freq) - 1;

    return (n >= k && strcmp(name + n - k, inv_freq) == 0) ||
           (m->spec.tie_embeddings && strcmp(name, "lm_head.weight") == 0);
}

ek_status ek_model_load(ek_model *m, const ek_safetensors *st, ek_part part)
{
    int n_arrays;
    const part_array *arrays = arrays_of(part, &n_arrays);
    int64_t count = ek_hf_count(&m->spec), in_file = ek_safetensors_count(st);
    unsigned char *seen = calloc((size_t)in_file + 1, 1);
    ek_status status = EK_OK;

    EK_REQUIRE(seen != NULL, EK_ENOMEM, "no memory to read %lld tensors", (long long)in_file);
    for (int64_t i = 0; i < count && status == EK_OK; i++) {
        ek_hf_tensor t;

        ek_hf_tensor_at(&m->spec, i, &t);
        for (int a = 0; a < n_arrays && status == EK_OK; a++)
            status = load_one(m, st, &t, &arrays[a], seen);
    }
    for (int64_t i = 0; i < in_file && status == EK_OK; i++) {
        const ek_safetensor *s = ek_safetensors_get(st, i);

        if (!seen[i] && !harmless(m, s->name))
            status = EK_FAIL(EK_EFORMAT,
                             "%s: tensor %s is not part of the model that the config "
                             "describes",
                             s->file, s->name);
    }
    free(seen);
    return status;
}

/* --- writing --------------------------------------------------------------------------------- */

/* Declarations of all arrays of a part, with their names. */
typedef struct {
    ek_tensor_decl *decls;
    char (*names)[NAME_MAX_LEN];
    int64_t n;
} declared;

static ek_status declare(const ek_model *m, const part_array *arrays, int n_arrays, ek_dtype dtype,
                         declared *d)
{
    int64_t count = ek_hf_count(&m->spec);

    d->n = count * n_arrays;
    d->decls = calloc((size_t)d->n, sizeof(*d->decls));
    d->names = calloc((size_t)d->n, sizeof(*d->names));
    EK_REQUIRE(d->decls != NULL && d->names != NULL, EK_ENOMEM, "no memory to write %lld tensors",
               (long long)d->n);
    for (int64_t i = 0; i < d->n; i++) {
        ek_hf_tensor t;

        ek_hf_tensor_at(&m->spec, i / n_arrays, &t);
        snprintf(d->names[i], sizeof(d->names[i]), "%s%s", t.name, arrays[i % n_arrays].suffix);
        d->decls[i] = (ek_tensor_decl){d->names[i], dtype, t.dims, {t.shape[0], t.shape[1]}};
    }
    return EK_OK;
}

ek_status ek_model_save(ek_model *m, ek_part part, ek_dtype dtype, const ek_io *io,
                        const char *path, ek_write_mode mode, ek_file_sum *sum)
{
    int n_arrays;
    const part_array *arrays = arrays_of(part, &n_arrays);
    ek_safetensors_writer *w = NULL;
    declared d = {0};
    ek_status st = EK_OK;
    int64_t i;

    EK_TRY_OUT(declare(m, arrays, n_arrays, dtype, &d));
    EK_TRY_OUT(ek_safetensors_create(io, path, mode, d.decls, d.n, &w));
    while ((i = ek_safetensors_next(w)) >= 0) {
        ek_hf_tensor t;
        ek_span at;

        ek_hf_tensor_at(&m->spec, i / n_arrays, &t);
        EK_REQUIRE_OUT(ek_model_span(m, &t, &at), EK_EINTERNAL, "the model has no %s", t.name);
        EK_TRY_OUT(ek_safetensors_append(w, d.names[i], elements(&t),
                                         array_at(m, at.w, &arrays[i % n_arrays], at.first),
                                         m->k->real));
    }
    EK_TRY_OUT(ek_safetensors_finish(&w, sum));
out:
    ek_safetensors_abort(&w);
    free(d.decls);
    free(d.names);
    return st;
}
