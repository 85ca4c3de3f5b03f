/* model/hf/source.h - resolves the model that a user names: preset, config, folder, checkpoint.
 *
 *   tiny | small | base      a preset, without weights
 *   FILE.json                a Hugging Face config, without weights
 *   FOLDER                   config.json, optionally weights and tokenizer.json; or a run's folder
 *                            or its checkpoint/: the newest complete checkpoint */
#ifndef MODEL_HF_SOURCE_H
#define MODEL_HF_SOURCE_H

#include "base/file.h"
#include "model/hf/io.h"

typedef struct {
    ek_model_spec spec;
    ek_path folder;    /* "" for a preset or a config file */
    ek_path weights;   /* argument of ek_safetensors_open; "": none */
    ek_path tokenizer; /* path named tokenizer.json, of any file type; "": none */
    char preset[16];   /* name of the preset; "": none */
} ek_model_source;

/* EK_ENOENT if there is no such model; else the errors of reading it. */
EK_CHECKED ek_status ek_model_source_open(const char *name, ek_model_source *out);

/* The tokenizer argument (ek_tokenizer_open) for this model: `named` if not NULL, else the folder's
 * tokenizer.json, else "bytes" for a preset. *out is borrowed from s or `named`.  EK_ENOENT,
 * EK_EFORMAT: none, or not readable; the message says what to do. */
EK_CHECKED ek_status ek_model_source_tokenizer(const ek_model_source *s, const char *named,
                                               const char **out);

/* Fails if the folder has weights only in formats that are not read: random weights would not be
 * what the user meant. */
EK_CHECKED ek_status ek_model_source_no_weights(const ek_model_source *s);

/* Reads the weights at `path` (a file, index or folder): ek_model_load. */
EK_CHECKED ek_status ek_model_load_path(ek_model *m, const char *path, const ek_load_options *how);

#endif
