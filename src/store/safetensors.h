/* store/safetensors.h - reading and writing safetensors files.
 *
 * A file is  [8 bytes: N, little endian][N bytes: JSON header][data].  The header maps each name
 * to {"dtype", "shape", "data_offsets": [begin, end)}, offsets relative to the start of the data;
 * tensors fill the data without gaps.  A set of files (safetensors shards) is described by
 * model.safetensors.index.json, whose weight_map gives the file of each tensor.
 *
 * Reader       checks every header completely at opening, so that later reads stay within the
 *              file, and keeps the files open; data are read when they are asked for, and no file
 *              is mapped.  Returned pointers are valid until ek_safetensors_close.
 * Writer       streams: all names and shapes are declared first, then the data follow in chunks.
 *              The same declarations and data give the same bytes.
 * Errors       EK_EFORMAT names the file, the tensor, and the defect; EK_EIO: the file cannot be
 * read. Threads      an open reader may be used by many threads at once; a writer by one. */
#ifndef STORE_SAFETENSORS_H
#define STORE_SAFETENSORS_H

#include "evenkeel/err.h"

#include "base/file.h"
#include "tensor/dtype.h"

#include <stddef.h>
#include <stdint.h>

enum { EK_TENSOR_DIMS_MAX = 8, EK_SAFETENSORS_HEADER_MAX = 100000000 };

/* --- reader ----------------------------------------------------------------------------------- */

typedef struct ek_safetensors ek_safetensors;

/* One tensor of an open file. */
typedef struct {
    const char *name;
    const char *file; /* path of the file that holds it */
    const char *type; /* element type as named in the file, such as "BF16" or "I64" */
    int readable;     /* elements of this type can be converted: F64, F32, BF16, F16 */
    ek_dtype dtype;   /* valid if readable */
    int dims;
    int64_t shape[EK_TENSOR_DIMS_MAX];
    int64_t elements;
    int64_t at, bytes;  /* of the elements in the file, row-major, little endian */
    const void *memory; /* the file, if it is in memory (ek_safetensors_parse); else NULL */
    int fd;             /* the open file; -1: in memory */
} ek_safetensor;

/* Opens a .safetensors file, an index (*.index.json), or a folder with model.safetensors or
 * model.safetensors.index.json.  EK_ENOENT: none of them exists. */
EK_CHECKED ek_status ek_safetensors_open(const char *path, ek_safetensors **out);

/* Opens a file in memory, which the caller keeps until the close; `name` is its name in
 * messages. */
EK_CHECKED ek_status ek_safetensors_parse(const void *data, size_t bytes, const char *name,
                                          ek_safetensors **out);

/* Closes the files and frees *st. */
void ek_safetensors_close(ek_safetensors **st);

/* Tensors in byte order of their names, 0 <= i < count; borrowed. */
int64_t ek_safetensors_count(const ek_safetensors *st);
const ek_safetensor *ek_safetensors_get(const ek_safetensors *st, int64_t i);

/* NULL: there is no such tensor. */
const ek_safetensor *ek_safetensors_find(const ek_safetensors *st, const char *name);

/* Reads elements [first, first + n) to dst, converted to `to` by store/convert.h.  EK_EINVAL: the
 * range exceeds the tensor; EK_EFORMAT: its type is not readable, or the file was cut short since
 * it was opened; EK_EIO. */
EK_CHECKED ek_status ek_safetensor_read(const ek_safetensor *t, int64_t first, int64_t n, void *dst,
                                        ek_dtype to);

/* --- writer ----------------------------------------------------------------------------------- */

typedef struct ek_safetensors_writer ek_safetensors_writer;

/* Declaration of a tensor to be written. */
typedef struct {
    const char *name;
    ek_dtype dtype; /* as stored */
    int dims;
    int64_t shape[EK_TENSOR_DIMS_MAX];
} ek_tensor_decl;

/* Size and XXH64 (seed 0) of a finished file. */
typedef struct {
    int64_t bytes;
    uint64_t xxh64;
} ek_file_sum;

/* Writes the header.  Data are stored, and must be appended, in this order: larger element types
 * first, then by name, so that every tensor is aligned to its elements and the data to 8 bytes.
 * Names are copied. io: NULL for the system. */
EK_CHECKED ek_status ek_safetensors_create(const ek_io *io, const char *path, ek_write_mode mode,
                                           const ek_tensor_decl *decls, int64_t n,
                                           ek_safetensors_writer **out);

/* Index in `decls` of the tensor to append next; -1 when all are written. */
int64_t ek_safetensors_next(const ek_safetensors_writer *w);

/* Appends the next n elements of tensor `name`, converted from `from`. EK_EINVAL: another tensor is
 * next, or n exceeds the elements left. */
EK_CHECKED ek_status ek_safetensors_append(ek_safetensors_writer *w, const char *name, int64_t n,
                                           const void *src, ek_dtype from);

/* Syncs, closes and renames the file to `path`. Frees the writer in any case.  After a failure
 * `path` is unchanged, or, if only the sync of its folder failed, the whole new file.  EK_ESTATE:
 * data are missing. sum may be NULL. */
EK_CHECKED ek_status ek_safetensors_finish(ek_safetensors_writer **w, ek_file_sum *sum);

/* Deletes the partial file and frees the writer.  Leaves the error text unchanged. */
void ek_safetensors_abort(ek_safetensors_writer **w);

/* The text of an index (*.index.json) of these files of a folder, from their headers.  EK_EFORMAT:
 * two files hold a tensor of the same name.  The caller frees *text. */
EK_CHECKED ek_status ek_safetensors_index_text(const char *folder, const char *const *names,
                                               int64_t n, char **text);

#endif
