/* model/hf_io.h - weights and moments of a model from and to safetensors, under Hugging Face
 * names, each tensor on its own, so that a file does not depend on how the model lies in memory. */
#ifndef MODEL_HF_IO_H
#define MODEL_HF_IO_H

#include "model/model.h"
#include "store/safetensors.h"

/* Which numbers of a weight. */
typedef enum {
    EK_PART_MASTER, /* named as in Hugging Face files */
    EK_PART_MOMENTS /* NAME.exp_avg and NAME.exp_avg_sq */
} ek_part;

/* Reads every tensor of the model (converted to R); experts may also lie in grouped 3-D tensors.
 * EK_EFORMAT when one is missing, has another shape, or when the file has one that the model has
 * not; the message names it.  Masters only: packed forms are the caller's to make. */
EK_CHECKED ek_status ek_model_load(ek_model *m, const ek_safetensors *st, ek_part part);

/* Writes every tensor of the model as `dtype` (EK_F32, EK_F64, EK_BF16). */
EK_CHECKED ek_status ek_model_save(ek_model *m, ek_part part, ek_dtype dtype, const ek_io *io,
                                   const char *path, ek_write_mode mode, ek_file_sum *sum);

#endif
