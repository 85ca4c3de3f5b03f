/* model/source.h - what a user names as a model: a preset, a config, a folder, a checkpoint.
 *
 *   tiny | small | base      a preset, without weights
 *   FILE.json                a Hugging Face config, without weights
 *   FOLDER                   config.json, perhaps weights and tokenizer.json; or a run's folder
 *                            or its checkpoint/, of which the newest complete checkpoint counts */
#ifndef MODEL_SOURCE_H
#define MODEL_SOURCE_H

#include "base/file.h"
#include "model/model.h"

typedef struct {
    ek_model_spec spec;
    ek_path folder;    /* "" for a preset or a config file */
    ek_path weights;   /* what ek_safetensors_open takes; "": none */
    ek_path tokenizer; /* tokenizer.json, whatever stands there; "": none */
    char preset[16];   /* its name; "": no preset */
} ek_model_source;

/* EK_ENOENT when there is no such thing; else the errors of reading it. */
EK_CHECKED ek_status ek_model_source_open(const char *name, ek_model_source *out);

/* The tokenizer of this model's texts, as ek_tokenizer_open takes it: `named` where that is not
 * NULL, else the folder's tokenizer.json, else "bytes" for a preset.  *out is borrowed from s or
 * `named`.  EK_ENOENT, EK_EFORMAT: there is none, or none that can be read; the message says what
 * to do. */
EK_CHECKED ek_status ek_model_source_tokenizer(const ek_model_source *s, const char *named,
                                               const char **out);

/* Fails where the folder has no weights that are read, but others: a model of random weights is not
 * what was meant. */
EK_CHECKED ek_status ek_model_source_no_weights(const ek_model_source *s);

/* Reads the weights at `path` (a file, index or folder) into the masters. */
EK_CHECKED ek_status ek_model_load_path(ek_model *m, const char *path);

#endif
