/* train/checkpoint.h - what a training run keeps, written to and read from a checkpoint folder.
 *
 *   config.json           the model, as Hugging Face reads it
 *   model.safetensors     masters, under Hugging Face names (F32; F64 in fp64)
 *   optimizer.safetensors NAME.exp_avg and NAME.exp_avg_sq
 *   tokenizer.json        where there is a tokenizer
 *   state.json            steps done, what the matrix products were made of, and the settings
 *                         that a resumed run must share
 *   manifest.json         sizes and checksums (store/checkpoint.h) */
#ifndef TRAIN_CHECKPOINT_H
#define TRAIN_CHECKPOINT_H

#include "data/tokenizer.h"
#include "model/model.h"

#include <jansson.h>

/* Saves step `steps_done` under out_dir and keeps the newest `keep` checkpoints.  settings:
 * borrowed; tokenizer may be NULL. */
EK_CHECKED ek_status ek_train_save(ek_model *m, const ek_tokenizer *tokenizer,
                                   const json_t *settings, int64_t steps_done, int64_t keep,
                                   const char *out_dir);

/* Reads steps done from a checkpoint folder, and refuses settings or a model that differ.  Kernels
 * that differ are worth a warning: bits will too. */
EK_CHECKED ek_status ek_train_state(const char *folder, const json_t *settings, const ek_kernels *k,
                                    const ek_model_spec *spec, int64_t *steps_done);

/* Reads masters and moments. */
EK_CHECKED ek_status ek_train_load(ek_model *m, const char *folder);

#endif
