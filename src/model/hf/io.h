/* model/hf/io.h - a model's weights and moments in safetensors files, under Hugging Face names.
 *
 * Each tensor is stored by itself, so files do not depend on the memory layout.  A rank writes the
 * row ranges that it owns (`own`, tensor/weight.h): a whole tensor under its name, a slice under a
 * name with its rows and columns (store/tensor_slices.h).  It reads the ranges that it keeps
 * (`kept`) from whichever files and slices hold them, so a checkpoint does not depend on the
 * parallel layout. */
#ifndef MODEL_HF_IO_H
#define MODEL_HF_IO_H

#include "model/hf/fill.h"
#include "model/offload.h"
#include "model/param_buckets.h"

#include <stdatomic.h>

/* --- reading ---------------------------------------------------------------------------------- */

/* Checks that the files hold every tensor of the model, each element once, and nothing else;
 * experts may also be in grouped 3-D tensors.  EK_EFORMAT names a tensor that is missing,
 * incomplete, of another shape, or unknown.  Reads names and shapes only. */
EK_CHECKED ek_status ek_hf_check(const ek_model_spec *spec, const ek_slice_set *files,
                                 ek_weight_arrays part);

/* Values of a model's tensors from files; all borrowed. */
typedef struct {
    const ek_model_spec *spec;
    const ek_slice_set *files;
} ek_hf_values;

/* Where a slice of the masters of a tensor lies in a file.  False: not contiguous, or not stored.
 */
int ek_hf_range(const ek_hf_values *values, const ek_hf_tensor *t, const ek_tensor_slice *slice,
                ek_tensor_range *out);

/* Borrows `values`. */
ek_value_source ek_hf_value_source(ek_hf_values *values);
/* How files are read. */
typedef struct {
    ek_load_progress progress;
    ek_file_reader_config files;
} ek_load_options;

/* Runs ek_hf_check, then fills the weights of this rank (model/hf/fill.h) from the files, converted
 * to R. ek_model_pack() makes masters of other ranks and packed forms.  A failure of the check is
 * the same on every rank. how: NULL for the defaults. */
EK_CHECKED ek_status ek_model_load(ek_model *m, const ek_slice_set *files, ek_weight_arrays part,
                                   const ek_load_options *how);

/* Copies the masters in `files` to one file of whole tensors, as `dtype`, through a buffer of a few
 * rows. */
EK_CHECKED ek_status ek_hf_copy(const ek_model_spec *spec, const ek_slice_set *files,
                                ek_dtype dtype, const ek_io *io, const char *path,
                                ek_write_mode mode);

/* --- writing ---------------------------------------------------------------------------------- */

/* A tensor or slice that a rank owns, with its contiguous elements. */
typedef struct {
    char name[EK_HF_NAME_MAX + 16 + EK_SLICE_NAME_MAX];
    int dims;
    int64_t shape[2];
    const void *data; /* R; NULL: of a bucket whose state is on disk, */
    void *copy;       /* the caller's */
    const ek_param_bucket *bucket;
    const ek_weight *w; /* in which it is this array, */
    const ek_weight_array *array;
    int64_t from; /* from this element of its kept range on */
    int64_t elements;
} ek_owned_tensor;

typedef struct {
    ek_model *m;
    ek_owned_tensor *items;
    int64_t n, elements;
    ek_dtype real;
    ek_offload_reader *reader; /* the caller's, for those on disk; NULL: there are none */
} ek_owned_tensors;

/* Lists the tensors and slices that this rank owns.  Data pointers refer to the model's memory, or
 * are NULL for what is on disk, which the caller sets a reader for.
 * ek_owned_tensors_free frees the list. */
EK_CHECKED ek_status ek_model_list_owned(ek_model *m, ek_weight_arrays part, ek_owned_tensors *out);
void ek_owned_tensors_free(ek_owned_tensors *o);

/* Writes a list as `dtype` (EK_F32, EK_F64, EK_BF16). stop: may be NULL; nonzero ends the write
 * with EK_ECANCELED before the next tensor. */
EK_CHECKED ek_status ek_owned_tensors_write(const ek_owned_tensors *o, ek_dtype dtype,
                                            const ek_io *io, const char *path, ek_write_mode mode,
                                            const atomic_int *stop, ek_file_sum *sum);

#endif
