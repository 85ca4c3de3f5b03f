/* Slices of tensors: their names, the set that files hold, and reads that gather a slice from the
 * stored ones that intersect it.  Stored slices do not overlap, which is checked once, at opening,
 * so a read is complete exactly when the areas of the intersections add up to its area. */
#include "store/tensor_slices.h"

#include "store/convert.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ek_slice_set {
    ek_safetensors *own;     /* files to close; NULL: owned by the caller */
    ek_stored_slice *slices; /* by name, then by position */
    ek_sliced_tensor *tensors;
    char *names; /* of all tensors, consecutive */
    int64_t n;
    const char *path;
};

/* --- names ------------------------------------------------------------------------------------ */

void ek_tensor_slice_name(char *out, size_t cap, const char *name, const ek_tensor_slice *slice,
                          int dims, const int64_t *shape)
{
    long long r0 = slice->row, r1 = r0 + slice->rows, c0 = slice->col, c1 = c0 + slice->cols;

    if (slice->rows == shape[0] && (dims == 1 || slice->cols == shape[1]))
        snprintf(out, cap, "%s", name);
    else if (dims == 1)
        snprintf(out, cap, "%s[%lld:%lld]", name, r0, r1);
    else
        snprintf(out, cap, "%s[%lld:%lld,%lld:%lld]", name, r0, r1, c0, c1);
}

/* Parses the suffix of a name that ek_tensor_slice_name wrote; gives the slice and its dims.
 * Returns false if there is none. */
static int parse_slice(const char *name, size_t *length, ek_tensor_slice *slice, int *dims)
{
    const char *at = strrchr(name, '[');
    long long r0 = 0, r1 = 0, c0 = 0, c1 = 1;
    char again[EK_SLICE_NAME_MAX];

    if (at == NULL || at == name)
        return 0;
    if (sscanf(at, "[%18lld:%18lld,%18lld:%18lld]", &r0, &r1, &c0, &c1) == 4) {
        snprintf(again, sizeof(again), "[%lld:%lld,%lld:%lld]", r0, r1, c0, c1);
        *dims = 2;
    } else if (sscanf(at, "[%18lld:%18lld]", &r0, &r1) == 2) {
        c0 = 0;
        c1 = 1;
        snprintf(again, sizeof(again), "[%lld:%lld]", r0, r1);
        *dims = 1;
    } else {
        return 0;
    }
    if (strcmp(at, again) != 0 || r0 < 0 || r0 >= r1 || c0 < 0 || c0 >= c1)
        return 0;
    *length = (size_t)(at - name);
    *slice = (ek_tensor_slice){r0, r1 - r0, c0, c1 - c0};
    return 1;
}

static void shape_text(char *out, size_t cap, int dims, const int64_t *shape)
{
    size_t n = 0;

    for (int i = 0; i < dims && n < cap; i++)
        n += (size_t)snprintf(out + n, cap - n, "%s%" PRId64, i > 0 ? ", " : "", shape[i]);
}

/* --- opening ---------------------------------------------------------------------------------- */

/* The slice that one stored tensor holds. */
static ek_status parse_stored(const ek_safetensor *t, ek_stored_slice *p)
{
    char shape[192] = "";
    int dims = 0;

    *p = (ek_stored_slice){.t = t};
    p->part = parse_slice(t->name, &p->name, &p->slice, &dims);
    if (!p->part) {
        int64_t cols = t->dims > 1 ? t->shape[t->dims - 1] : 1;

        p->name = strlen(t->name);
        p->slice = (ek_tensor_slice){0, cols > 0 ? t->elements / cols : 0, 0, cols};
        return EK_OK;
    }
    shape_text(shape, sizeof(shape), t->dims, t->shape);
    EK_REQUIRE(t->dims == dims && t->shape[0] == p->slice.rows &&
                   (dims == 1 || t->shape[1] == p->slice.cols),
               EK_EFORMAT, "%s: tensor '%.200s' has shape [%s], which is not that of its name",
               t->file, t->name, shape);
    return EK_OK;
}

static int compare_names(const ek_stored_slice *x, const ek_stored_slice *y)
{
    size_t n = x->name < y->name ? x->name : y->name;
    int c = memcmp(x->t->name, y->t->name, n);

    return c != 0 ? c : (x->name > y->name) - (x->name < y->name);
}

static int by_name_and_place(const void *a, const void *b)
{
    const ek_stored_slice *x = a, *y = b;
    int c = compare_names(x, y);

    if (c != 0)
        return c;
    if (x->slice.row != y->slice.row)
        return x->slice.row < y->slice.row ? -1 : 1;
    return (x->slice.col > y->slice.col) - (x->slice.col < y->slice.col);
}

/* The intersection; rows or cols are 0 if it is empty. */
static ek_tensor_slice intersect_slices(const ek_tensor_slice *a, const ek_tensor_slice *b)
{
    int64_t r0 = a->row > b->row ? a->row : b->row, c0 = a->col > b->col ? a->col : b->col;
    int64_t r1 = a->row + a->rows, c1 = a->col + a->cols;

    r1 = r1 < b->row + b->rows ? r1 : b->row + b->rows;
    c1 = c1 < b->col + b->cols ? c1 : b->col + b->cols;
    if (r0 >= r1 || c0 >= c1)
        return (ek_tensor_slice){0};
    return (ek_tensor_slice){r0, r1 - r0, c0, c1 - c0};
}

static ek_status check_overlaps(const ek_sliced_tensor *x)
{
    for (int64_t i = 0; i < x->n; i++) {
        const ek_stored_slice *p = &x->slices[i];

        for (int64_t k = i + 1; k < x->n; k++) {
            const ek_stored_slice *q = &x->slices[k];

            if (q->slice.row >= p->slice.row + p->slice.rows)
                break;
            EK_REQUIRE(intersect_slices(&p->slice, &q->slice).rows == 0, EK_EFORMAT,
                       "tensor '%.200s' in %s overlaps '%.200s' in %s", q->t->name, q->t->file,
                       p->t->name, p->t->file);
        }
    }
    return EK_OK;
}

/* Groups the sorted slices by tensor. */
static ek_status group_by_tensor(ek_slice_set *b, int64_t n)
{
    char *name = b->names;

    for (int64_t i = 0, end; i < n; i = end) {
        ek_sliced_tensor *x = &b->tensors[b->n++];

        for (end = i + 1; end < n && compare_names(&b->slices[i], &b->slices[end]) == 0;)
            end++;
        *x = (ek_sliced_tensor){name, &b->slices[i], end - i};
        memcpy(name, b->slices[i].t->name, b->slices[i].name);
        name += b->slices[i].name;
        *name++ = '\0';
        EK_TRY(check_overlaps(x));
    }
    return EK_OK;
}

ek_status ek_slice_set_of(const ek_safetensors *files, ek_slice_set **out)
{
    int64_t n = ek_safetensors_count(files);
    ek_slice_set *b = calloc(1, sizeof(*b));
    size_t bytes = 1;
    ek_status st = EK_OK;

    for (int64_t i = 0; i < n; i++)
        bytes += strlen(ek_safetensors_get(files, i)->name) + 1;
    EK_REQUIRE(b != NULL, EK_ENOMEM, "no memory for a list of %" PRId64 " tensors", n);
    b->slices = calloc((size_t)n + 1, sizeof(*b->slices));
    b->tensors = calloc((size_t)n + 1, sizeof(*b->tensors));
    b->names = malloc(bytes);
    EK_REQUIRE_OUT(b->slices != NULL && b->tensors != NULL && b->names != NULL, EK_ENOMEM,
                   "no memory for a list of %" PRId64 " tensors", n);
    for (int64_t i = 0; i < n; i++)
        EK_TRY_OUT(parse_stored(ek_safetensors_get(files, i), &b->slices[i]));
    if (n > 1)
        qsort(b->slices, (size_t)n, sizeof(*b->slices), by_name_and_place);
    EK_TRY_OUT(group_by_tensor(b, n));
    b->path = n > 0 ? ek_safetensors_get(files, 0)->file : "an empty file";
    *out = b;
    b = NULL;
out:
    ek_slice_set_close(&b);
    return st;
}

ek_status ek_slice_set_open(const char *path, ek_slice_set **out)
{
    ek_safetensors *files = NULL;
    ek_slice_set *b = NULL;
    ek_status st;

    EK_TRY_OUT(ek_safetensors_open(path, &files));
    EK_TRY_OUT(ek_slice_set_of(files, &b));
    b->own = files;
    files = NULL;
    *out = b;
out:
    ek_safetensors_close(&files);
    return st;
}

ek_status ek_slice_set_open_in(const char *folder, const char *name, ek_slice_set **out)
{
    ek_path plain, index;

    EK_TRY(ek_path_set(&plain, "%s/%s.safetensors", folder, name));
    EK_TRY(ek_path_set(&index, "%s/%s.safetensors.index.json", folder, name));
    if (ek_file_kind_of(plain.s) == EK_FILE_NONE && ek_file_kind_of(index.s) != EK_FILE_NONE)
        return ek_slice_set_open(index.s, out);
    return ek_slice_set_open(plain.s, out);
}

void ek_slice_set_close(ek_slice_set **pb)
{
    ek_slice_set *b = *pb;

    if (b == NULL)
        return;
    ek_safetensors_close(&b->own);
    free(b->slices);
    free(b->tensors);
    free(b->names);
    free(b);
    *pb = NULL;
}

/* --- lookup and reads ------------------------------------------------------------------------- */

int64_t ek_slice_set_count(const ek_slice_set *b)
{
    return b->n;
}

const ek_sliced_tensor *ek_slice_set_get(const ek_slice_set *b, int64_t i)
{
    return i >= 0 && i < b->n ? &b->tensors[i] : NULL;
}

static int by_name(const void *key, const void *x)
{
    return strcmp(key, ((const ek_sliced_tensor *)x)->name);
}

const ek_sliced_tensor *ek_slice_set_find(const ek_slice_set *b, const char *name)
{
    if (b->n == 0)
        return NULL;
    return bsearch(name, b->tensors, (size_t)b->n, sizeof(*b->tensors), by_name);
}

const char *ek_slice_set_path(const ek_slice_set *b)
{
    return b->path;
}

/* The stored slice that holds an element; NULL: none does. */
static const ek_stored_slice *slice_at(const ek_sliced_tensor *x, int64_t row, int64_t col)
{
    const ek_tensor_slice at = {row, 1, col, 1};

    for (int64_t i = 0; i < x->n; i++)
        if (intersect_slices(&x->slices[i].slice, &at).rows > 0)
            return &x->slices[i];
    return NULL;
}

/* Fails with the first missing element of a slice, row by row; rows that intersect the same stored
 * slices are checked once. */
static ek_status fail_missing(const ek_sliced_tensor *x, const ek_tensor_slice *want)
{
    int64_t row = want->row, end = want->row + want->rows;

    while (row < end) {
        int64_t next = end;

        for (int64_t i = 0; i < x->n; i++) {
            const ek_tensor_slice *b = &x->slices[i].slice;

            next = b->row > row && b->row < next ? b->row : next;
            next = b->row + b->rows > row && b->row + b->rows < next ? b->row + b->rows : next;
        }
        for (int64_t col = want->col; col < want->col + want->cols;) {
            const ek_stored_slice *p = slice_at(x, row, col);

            EK_REQUIRE(p != NULL, EK_EFORMAT,
                       "%s: of tensor %s, row %" PRId64 " from column %" PRId64
                       " on is in none of the files",
                       x->slices[0].t->file, x->name, row, col);
            col = p->slice.col + p->slice.cols;
        }
        row = next;
    }
    return EK_FAIL(EK_EINTERNAL, "tensor %s is complete", x->name);
}

static ek_status check_complete(const ek_sliced_tensor *x, const ek_tensor_slice *want)
{
    int64_t have = 0;

    for (int64_t i = 0; i < x->n; i++) {
        ek_tensor_slice b = intersect_slices(&x->slices[i].slice, want);

        have += b.rows * b.cols;
    }
    return have == want->rows * want->cols ? EK_OK : fail_missing(x, want);
}

ek_status ek_sliced_tensor_check(const ek_sliced_tensor *x, int dims, const int64_t *shape)
{
    const ek_safetensor *t = x->slices[0].t;
    ek_tensor_slice all = {0, shape[0], 0, dims > 1 ? shape[dims - 1] : 1};
    char want[96], got[192] = "";
    double none;
    int same = 1;

    for (int i = 1; i < dims - 1; i++)
        all.rows *= shape[i];
    if (!x->slices[0].part) {
        same = t->dims == dims;
        for (int i = 0; i < dims && same; i++)
            same = t->shape[i] == shape[i];
    }
    for (int64_t i = 0; i < x->n && same; i++) {
        const ek_tensor_slice *b = &x->slices[i].slice;

        t = x->slices[i].t;
        same = !x->slices[i].part ||
               (t->dims == dims && b->row + b->rows <= all.rows && b->col + b->cols <= all.cols);
    }
    shape_text(want, sizeof(want), dims, shape);
    shape_text(got, sizeof(got), t->dims, t->shape);
    EK_REQUIRE(same, EK_EFORMAT, "%s: tensor %s has shape [%s], the config says [%s]", t->file,
               t->name, got, want);
    for (int64_t i = 0; i < x->n; i++) /* fails if its element type is not readable */
        EK_TRY(ek_safetensor_read(x->slices[i].t, 0, 0, &none, EK_F64));
    return check_complete(x, &all);
}

/* Reads elements from a file, or from a batch that holds them. */
static ek_status read_elements(const ek_safetensor *t, const ek_file_batch *from, int64_t first,
                               int64_t n, void *dst, ek_dtype to)
{
    int64_t size = (int64_t)ek_dtype_size(t->dtype);
    const void *bytes;

    if (from == NULL || t->memory != NULL)
        return ek_safetensor_read(t, first, n, dst, to);
    bytes = ek_file_batch_find(from, t->file, t->at + first * size, n * size);
    EK_REQUIRE(bytes != NULL, EK_EINTERNAL, "%s: elements of tensor %.200s were not read", t->file,
               t->name);
    ek_convert(n, bytes, t->dtype, dst, to);
    return EK_OK;
}

/* Reads the intersection of a slice with one stored slice. */
static ek_status read_intersection(const ek_stored_slice *p, const ek_tensor_slice *want,
                                   const ek_file_batch *from, unsigned char *dst, int64_t ld,
                                   ek_dtype to)
{
    ek_tensor_slice b = intersect_slices(&p->slice, want);
    int64_t first = (b.row - p->slice.row) * p->slice.cols + b.col - p->slice.col;
    int64_t at = (b.row - want->row) * ld + b.col - want->col;
    int64_t size = (int64_t)ek_dtype_size(to);

    if (b.cols == p->slice.cols && b.cols == ld)
        return read_elements(p->t, from, first, b.rows * b.cols, dst + at * size, to);
    for (int64_t r = 0; r < b.rows; r++)
        EK_TRY(read_elements(p->t, from, first + r * p->slice.cols, b.cols,
                             dst + (at + r * ld) * size, to));
    return EK_OK;
}

ek_status ek_sliced_tensor_take(const ek_sliced_tensor *x, const ek_tensor_slice *want,
                                const ek_file_batch *from, void *dst, int64_t ld, ek_dtype to)
{
    EK_REQUIRE(want->row >= 0 && want->rows >= 0 && want->col >= 0 && want->cols >= 0 &&
                   ld >= want->cols,
               EK_EINVAL,
               "no slice of tensor %s: %" PRId64 " rows from %" PRId64 ", %" PRId64
               " columns from %" PRId64,
               x->name, want->rows, want->row, want->cols, want->col);
    EK_TRY(check_complete(x, want));
    for (int64_t i = 0; i < x->n; i++)
        if (intersect_slices(&x->slices[i].slice, want).rows > 0)
            EK_TRY(read_intersection(&x->slices[i], want, from, dst, ld, to));
    return EK_OK;
}

ek_status ek_sliced_tensor_read(const ek_sliced_tensor *x, const ek_tensor_slice *want, void *dst,
                                int64_t ld, ek_dtype to)
{
    return ek_sliced_tensor_take(x, want, NULL, dst, ld, to);
}

ek_status ek_sliced_tensor_pieces(const ek_sliced_tensor *x, const ek_tensor_slice *want,
                                  ek_file_batch *batch)
{
    for (int64_t i = 0; i < x->n; i++) {
        const ek_tensor_slice *p = &x->slices[i].slice;
        const ek_safetensor *t = x->slices[i].t;
        ek_tensor_slice b = intersect_slices(p, want);
        int64_t size = (int64_t)ek_dtype_size(t->dtype);

        if (b.rows == 0 || t->memory != NULL)
            continue;
        EK_TRY(ek_file_batch_add(batch, t->file,
                                 t->at + ((b.row - p->row) * p->cols + b.col - p->col) * size,
                                 ((b.rows - 1) * p->cols + b.cols) * size));
    }
    return EK_OK;
}

int ek_sliced_tensor_range(const ek_sliced_tensor *x, const ek_tensor_slice *want,
                           ek_tensor_range *out)
{
    for (int64_t i = 0; i < x->n; i++) {
        const ek_tensor_slice *p = &x->slices[i].slice;
        const ek_safetensor *t = x->slices[i].t;
        ek_tensor_slice b = intersect_slices(p, want);
        int64_t size = (int64_t)ek_dtype_size(t->dtype);

        if (b.rows != want->rows || b.cols != want->cols || b.rows == 0)
            continue;
        if (!t->readable || (b.rows > 1 && b.cols != p->cols))
            return 0;
        *out = (ek_tensor_range){t, t->at + ((b.row - p->row) * p->cols + b.col - p->col) * size,
                                 b.rows * b.cols * size};
        return 1;
    }
    return 0;
}

const void *ek_sliced_tensor_in(const ek_sliced_tensor *x, const ek_tensor_slice *want,
                                const ek_file_batch *b, ek_dtype type)
{
    ek_tensor_range at;
    const void *data;

    if (!ek_sliced_tensor_range(x, want, &at) || at.t->dtype != type || at.t->memory != NULL)
        return NULL;
    data = ek_file_batch_find(b, at.t->file, at.at, at.bytes);
    return (uintptr_t)data % ek_dtype_size(type) == 0 ? data : NULL;
}
