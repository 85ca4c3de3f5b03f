/* store/tensor_slices.h - tensors stored whole or in slices, read by any slice.
 *
 * A slice of a matrix NAME is a dense tensor [rows, cols] named "NAME[r0:r1,c0:c1]", one of a
 * vector "NAME[r0:r1]": rows r0 to r1 - 1, columns c0 to c1 - 1.  A name without this suffix is a
 * whole tensor.  A read of any slice is assembled from the stored slices that intersect it, in
 * whichever files they are.
 *
 * Rows and columns: a vector is one column; a tensor of more than two dimensions is the matrix
 * whose rows are all dimensions but the last.
 *
 * Errors       EK_EFORMAT names the file, the tensor, and what is missing or duplicate.
 * Threads      an open set may be used by many threads at once. */
#ifndef STORE_TENSOR_SLICES_H
#define STORE_TENSOR_SLICES_H

#include "store/file_batch.h"
#include "store/safetensors.h"

typedef struct {
    int64_t row, rows, col, cols;
} ek_tensor_slice;

enum { EK_SLICE_NAME_MAX = 96 }; /* maximum length of a slice suffix */

/* Writes "NAME[r0:r1,c0:c1]", or "NAME[r0:r1]" if dims is 1; NAME alone if the slice covers
 * `shape`. */
void ek_tensor_slice_name(char *out, size_t cap, const char *name, const ek_tensor_slice *slice,
                          int dims, const int64_t *shape);

/* A stored tensor, and the slice that it holds. */
typedef struct {
    const ek_safetensor *t;
    size_t name; /* length of the name without the suffix */
    int part;    /* the name has a slice suffix */
    ek_tensor_slice slice;
} ek_stored_slice;

/* All stored slices of one tensor, without overlap, by first row. */
typedef struct {
    const char *name;
    const ek_stored_slice *slices;
    int64_t n;
} ek_sliced_tensor;

typedef struct ek_slice_set ek_slice_set;

/* Opens a path as ek_safetensors_open.  EK_EFORMAT: slices overlap. */
EK_CHECKED ek_status ek_slice_set_open(const char *path, ek_slice_set **out);

/* Opens FOLDER/NAME.safetensors, or if only its index exists, FOLDER/NAME.safetensors.index.json
 * with its files. */
EK_CHECKED ek_status ek_slice_set_open_in(const char *folder, const char *name, ek_slice_set **out);

/* The same for open files, which the caller owns and must keep open. */
EK_CHECKED ek_status ek_slice_set_of(const ek_safetensors *files, ek_slice_set **out);

/* Frees *b, and closes files that it has opened itself. */
void ek_slice_set_close(ek_slice_set **b);

/* Tensors in byte order of their names, 0 <= i < count; borrowed. */
int64_t ek_slice_set_count(const ek_slice_set *b);
const ek_sliced_tensor *ek_slice_set_get(const ek_slice_set *b, int64_t i);
/* NULL: nothing of it is stored. */
const ek_sliced_tensor *ek_slice_set_find(const ek_slice_set *b, const char *name);

/* Name of the set in messages about missing data: the first file. */
const char *ek_slice_set_path(const ek_slice_set *b);

/* Checks that the tensor has this shape and a readable type, and that every element is stored
 * once. */
EK_CHECKED ek_status ek_sliced_tensor_check(const ek_sliced_tensor *x, int dims,
                                            const int64_t *shape);

/* Copies the elements of a slice, converted to `to` (store/convert.h), to dst, whose rows have a
 * stride of ld elements.  EK_EFORMAT: an element is missing. */
EK_CHECKED ek_status ek_sliced_tensor_read(const ek_sliced_tensor *x, const ek_tensor_slice *want,
                                           void *dst, int64_t ld, ek_dtype to);

/* Adds the pieces of files that hold the rows of a slice to a batch.  EK_ENOMEM. */
EK_CHECKED ek_status ek_sliced_tensor_pieces(const ek_sliced_tensor *x, const ek_tensor_slice *want,
                                             ek_file_batch *b);
/* As ek_sliced_tensor_read, from a batch that has these pieces and was read. */
EK_CHECKED ek_status ek_sliced_tensor_take(const ek_sliced_tensor *x, const ek_tensor_slice *want,
                                           const ek_file_batch *b, void *dst, int64_t ld,
                                           ek_dtype to);

/* The elements of a slice where a batch that was read has them: NULL unless they are of this type
 * and aligned to it, and the slice is contiguous. */
const void *ek_sliced_tensor_in(const ek_sliced_tensor *x, const ek_tensor_slice *want,
                                const ek_file_batch *b, ek_dtype type);

/* Where a slice lies in a file, if it is contiguous there. */
typedef struct {
    const ek_safetensor *t;
    int64_t at, bytes; /* in the file */
} ek_tensor_range;

/* False: it is in several pieces, or not complete. */
int ek_sliced_tensor_range(const ek_sliced_tensor *x, const ek_tensor_slice *want,
                           ek_tensor_range *out);

#endif
