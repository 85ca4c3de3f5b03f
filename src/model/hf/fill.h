/* model/hf/fill.h - gives this rank's weights their values, Hugging Face tensor by tensor.
 *
 * A weight with a master gets the rows that it keeps there.  A weight without one, of which kernels
 * read only the packed form (an untrained model), is packed a few rows at a time from a small
 * buffer of each thread, so that no second copy of it ever exists. */
#ifndef MODEL_HF_FILL_H
#define MODEL_HF_FILL_H

#include "model/hf/names.h"
#include "model/model.h"
#include "store/file_batch.h"
#include "store/tensor_slices.h"

/* Which arrays of a weight. */
typedef enum {
    EK_ARRAYS_MASTER, /* named as in Hugging Face files */
    EK_ARRAYS_MOMENTS /* NAME.exp_avg and NAME.exp_avg_sq */
} ek_weight_arrays;

/* One of these arrays: the suffix of its tensors' names, and where ek_weight has its kept range. */
typedef struct {
    const char *suffix;
    size_t kept; /* offset in ek_weight */
} ek_weight_array;

/* The arrays of `part`; *n: how many. */
const ek_weight_array *ek_weight_arrays_of(ek_weight_arrays part, int *n);
/* The array of the kept range; NULL if there is none. */
void *ek_weight_kept(const ek_weight *w, const ek_weight_array *a);

/* Called by the caller's thread with elements, the last time with all of them; function NULL: not
 * wanted. */
typedef struct {
    void (*function)(void *context, int64_t done, int64_t all);
    void *context;
} ek_load_progress;

/* Where values come from. */
typedef struct {
    /* Gives a slice of an array of a tensor, as `type` at dst, rows at a stride of ld elements;
     * from `in`, which has its pieces, unless that is NULL.  Called by several threads at once. */
    ek_status (*read)(void *context, const ek_hf_tensor *t, const ek_weight_array *a,
                      const ek_tensor_slice *slice, const ek_file_batch *in, ek_dtype type,
                      void *dst, int64_t ld);
    int real_only; /* `type` must be R; else it may be C, too */
    /* The same rows where `in` has them, if they are of that type, dense and aligned to it; else
     * NULL, and they are read.  function NULL: never. */
    const void *(*in_place)(void *context, const ek_hf_tensor *t, const ek_weight_array *a,
                            const ek_tensor_slice *slice, const ek_file_batch *in, ek_dtype type);
    /* Adds the pieces of files that hold a slice; NULL: values are not in files. */
    ek_status (*pieces)(void *context, const ek_hf_tensor *t, const ek_weight_array *a,
                        const ek_tensor_slice *slice, ek_file_batch *out);
    ek_file_reader_config files; /* how they are read */
    void *context;
    ek_load_progress progress;
} ek_value_source;

/* Gives all weights of this rank their values, on the model's compute threads.  What lies in files
 * is read in the order of the files, several megabytes ahead.  A failure is that of `read`, or of
 * reading files, the first one; some weights are then undefined. */
EK_CHECKED ek_status ek_model_fill(ek_model *m, ek_weight_arrays part, const ek_value_source *from);

/* Bytes of the buffers of such a call, unless the rows of a weight are unusually long. */
size_t ek_model_fill_bytes(const ek_kernels *k);

/* --- forms of single weights ------------------------------------------------------------------ */

/* Reads forms of weights that the model does not hold (model/model.h, experts_elsewhere).  Threads:
 * one at a time; it uses the model's compute threads. */
typedef struct ek_filler ek_filler;

/* m and what `from` refers to are borrowed. */
EK_CHECKED ek_status ek_filler_create(ek_model *m, const ek_value_source *from, ek_filler **out);
void ek_filler_destroy(ek_filler **f);

/* A weight of the model, and memory for the form that the kernels' forward reads: the packed one,
 * or R [out, in] if there is none. */
typedef struct {
    const ek_weight *w;
    void *to;
} ek_weight_form;

/* Bytes of that form. */
size_t ek_weight_form_bytes(const ek_kernels *k, const ek_weight *w);

/* Reads n forms, all together, from `in` if that is not NULL: it has their pieces.  From the second
 * call of a size on it allocates nothing. */
EK_CHECKED ek_status ek_filler_read(ek_filler *f, int64_t n, const ek_weight_form *forms,
                                    const ek_file_batch *in);
/* Where a batch has rows [row, row + rows) of a weight, if they are there as C, dense and aligned;
 * else NULL. */
const void *ek_filler_find_rows(const ek_filler *f, const ek_weight *w, int64_t row, int64_t rows,
                                const ek_file_batch *in);
/* Adds the pieces of files that hold a weight's values (ek_value_source.pieces). */
EK_CHECKED ek_status ek_filler_pieces(ek_filler *f, const ek_weight *w, ek_file_batch *out);

#endif
