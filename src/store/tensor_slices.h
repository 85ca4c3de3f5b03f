/* store/boxes.h - tensors that files hold whole or in parts, read by the part that is wanted.
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
#ifndef STORE_BOXES_H
#define STORE_BOXES_H

#include "store/safetensors.h"

typedef struct {
    int64_t row, rows, col, cols;
} ek_box;

enum { EK_BOX_NAME_MAX = 96 }; /* characters that a box adds to a name, at most */

/* "NAME[r0:r1,c0:c1]", or "NAME[r0:r1]" where dims is 1; NAME alone where the box is all of
 * `shape`. */
void ek_box_name(char *out, size_t cap, const char *name, const ek_box *box, int dims,
                 const int64_t *shape);

/* One tensor of a file, and where it belongs. */
typedef struct {
    const ek_safetensor *t;
    size_t name; /* length of the name without the box */
    int part;    /* the name says a box */
    ek_box box;
} ek_piece;

/* All that a set of files holds of one tensor: pieces that do not overlap, by first row. */
typedef struct {
    const char *name;
    const ek_piece *pieces;
    int64_t n;
} ek_boxed;

typedef struct ek_boxes ek_boxes;

/* Opens what ek_safetensors_open takes.  Parts that overlap are refused. */
EK_CHECKED ek_status ek_boxes_open(const char *path, ek_boxes **out);

/* Opens FOLDER/NAME.safetensors, or where only its index is there,
 * FOLDER/NAME.safetensors.index.json, the files that it names. */
EK_CHECKED ek_status ek_boxes_open_in(const char *folder, const char *name, ek_boxes **out);

/* The same of files that are open; they are the caller's and must stay so. */
EK_CHECKED ek_status ek_boxes_of(const ek_safetensors *files, ek_boxes **out);

void ek_boxes_close(ek_boxes **b);

/* Tensors in byte order of their names. */
int64_t ek_boxes_count(const ek_boxes *b);
const ek_boxed *ek_boxes_get(const ek_boxes *b, int64_t i);
/* NULL when there is nothing of it. */
const ek_boxed *ek_boxes_find(const ek_boxes *b, const char *name);

/* Where messages say that something is missing: the first file. */
const char *ek_boxes_path(const ek_boxes *b);

/* Whether the tensor has this shape, a type that can be read, and every element of it is there,
 * once. */
EK_CHECKED ek_status ek_boxed_check(const ek_boxed *x, int dims, const int64_t *shape);

/* Copies the elements of a box, converted to `to` (store/convert.h), to dst, whose rows are ld
 * elements apart.  EK_EFORMAT where one is not there. */
EK_CHECKED ek_status ek_boxed_read(const ek_boxed *x, const ek_box *want, void *dst, int64_t ld,
                                   ek_dtype to);

#endif
