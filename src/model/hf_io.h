/* model/hf_io.h - weights and moments of a model from and to safetensors, under Hugging Face
 * names, each tensor on its own, so that a file does not depend on how the model lies in memory.
 *
 * A rank writes the runs that it answers for ("own", tensor/weight.h): a whole tensor under its
 * name, a part under a name that says which (store/tensor_slices.h).  It reads the runs that it
 * keeps, from whichever files and parts have them: a checkpoint does not depend on the layout
 * either.
 */
#ifndef MODEL_HF_IO_H
#define MODEL_HF_IO_H

#include "model/model.h"
#include "store/tensor_slices.h"

#include <stdatomic.h>

/* Which numbers of a weight. */
typedef enum {
    EK_PART_MASTER, /* named as in Hugging Face files */
    EK_PART_MOMENTS /* NAME.exp_avg and NAME.exp_avg_sq */
} ek_part;

/* --- reading ---------------------------------------------------------------------------------- */

/* Whether the files hold every tensor of such a model, each element once, and nothing else; experts
 * may also lie in grouped 3-D tensors.  EK_EFORMAT names the tensor that is missing, incomplete, of
 * another shape, or not the model's.  Reads names and shapes alone. */
EK_CHECKED ek_status ek_hf_check(const ek_model_spec *spec, const ek_slice_set *files,
                                 ek_part part);

/* Checks that, and reads the runs that this rank keeps (converted to R).  What others keep of the
 * masters, and packed forms, are ek_model_pack's to bring.  A failure of the check is the same on
 * every rank. */
EK_CHECKED ek_status ek_model_load(ek_model *m, const ek_slice_set *files, ek_part part);

/* Copies the masters in `files` into one file with whole tensors, as `dtype`, through a buffer of a
 * few rows. */
EK_CHECKED ek_status ek_hf_copy(const ek_model_spec *spec, const ek_slice_set *files,
                                ek_dtype dtype, const ek_io *io, const char *path,
                                ek_write_mode mode);

/* --- writing ---------------------------------------------------------------------------------- */

/* One tensor or part that a rank answers for, and where its elements are, without gaps. */
typedef struct {
    char name[EK_HF_NAME_MAX + 16 + EK_SLICE_NAME_MAX];
    int dims;
    int64_t shape[2];
    const void *data;        /* R */
    int64_t elements, first; /* first: elements of those before it in the list */
} ek_own;

typedef struct {
    ek_own *items;
    int64_t n, elements;
    ek_dtype real;
} ek_owns;

/* Lists what this rank answers for of a part.  The data are those of the model. */
EK_CHECKED ek_status ek_model_own(ek_model *m, ek_part part, ek_owns *out);
void ek_owns_free(ek_owns *o);

/* Writes a list as `dtype` (EK_F32, EK_F64, EK_BF16).  stop: may be NULL; not 0: EK_ECANCELED
 * before the next tensor. */
EK_CHECKED ek_status ek_owns_write(const ek_owns *o, ek_dtype dtype, const ek_io *io,
                                   const char *path, ek_write_mode mode, const atomic_int *stop,
                                   ek_file_sum *sum);

/* Lists and writes. */
EK_CHECKED ek_status ek_model_save(ek_model *m, ek_part part, ek_dtype dtype, const ek_io *io,
                                   const char *path, ek_write_mode mode, ek_file_sum *sum);

#endif
