/* store/tensor_slices.h - tensors that files hold whole or in parts, read by the part that is
 * wanted.
 *
 * A part of a matrix NAME is a dense tensor [rows, cols] under the name "NAME[r0:r1,c0:c1]", one of
 * a vector "NAME[r0:r1]": rows r0 to r1 - 1, columns c0 to c1 - 1.  A name without such an end
 * stands for a whole tensor.  Whoever reads says which box of the tensor is wanted, and gets it
 * from whichever parts, in whichever files, hold it.
 *
 * A box counts rows and columns: a vector is one column, and a tensor of more dimensions is the
 * matrix that has all but the last of them as rows.
 *
 * Errors       EK_EFORMAT names file, tensor, and what is missing or there twice.
 * Threads      an open set may be used by many threads at once. */
#ifndef STORE_TENSOR_SLICES_H
#define STORE_TENSOR_SLICES_H

#include "store/safetensors.h"

typedef struct {
    int64_t row, rows, col, cols;
} ek_tensor_slice;

enum { EK_SLICE_NAME_MAX = 96 }; /* characters that a box adds to a name, at most */

/* "NAME[r0:r1,c0:c1]", or "NAME[r0:r1]" where dims is 1; NAME alone where the box is all of
 * `shape`. */
void ek_tensor_slice_name(char *out, size_t cap, const char *name, const ek_tensor_slice *slice,
                          int dims, const int64_t *shape);

/* One tensor of a file, and where it belongs. */
typedef struct {
    const ek_safetensor *t;
    size_t name; /* length of the name without the box */
    int part;    /* the name says a box */
    ek_tensor_slice slice;
} ek_stored_slice;

/* All that a set of files holds of one tensor: pieces that do not overlap, by first row. */
typedef struct {
    const char *name;
    const ek_stored_slice *slices;
    int64_t n;
} ek_sliced_tensor;

typedef struct ek_slice_set ek_slice_set;

/* Opens what ek_safetensors_open takes.  Parts that overlap are refused. */
EK_CHECKED ek_status ek_slice_set_open(const char *path, ek_slice_set **out);

/* Opens FOLDER/NAME.safetensors, or where only its index is there,
 * FOLDER/NAME.safetensors.index.json, the files that it names. */
EK_CHECKED ek_status ek_slice_set_open_in(const char *folder, const char *name, ek_slice_set **out);

/* The same of files that are open; they are the caller's and must stay so. */
EK_CHECKED ek_status ek_slice_set_of(const ek_safetensors *files, ek_slice_set **out);

void ek_slice_set_close(ek_slice_set **b);

/* Tensors in byte order of their names. */
int64_t ek_slice_set_count(const ek_slice_set *b);
const ek_sliced_tensor *ek_slice_set_get(const ek_slice_set *b, int64_t i);
/* NULL when there is nothing of it. */
const ek_sliced_tensor *ek_slice_set_find(const ek_slice_set *b, const char *name);

/* Where messages say that something is missing: the first file. */
const char *ek_slice_set_path(const ek_slice_set *b);

/* Whether the tensor has this shape, a type that can be read, and every element of it is there,
 * once. */
EK_CHECKED ek_status ek_sliced_tensor_check(const ek_sliced_tensor *x, int dims,
                                            const int64_t *shape);

/* Copies the elements of a box, converted to `to` (store/convert.h), to dst, whose rows are ld
 * elements apart.  EK_EFORMAT where one is not there. */
EK_CHECKED ek_status ek_sliced_tensor_read(const ek_sliced_tensor *x, const ek_tensor_slice *want,
                                           void *dst, int64_t ld, ek_dtype to);

#endif
