/* cli/loaded.h - a model for use: its source, kernels, weights and tokenizer, opened together. */
#ifndef CLI_LOADED_H
#define CLI_LOADED_H

#include "cli/cli.h"
#include "data/tokenizer.h"
#include "model/source.h"

typedef struct {
    ek_model_source source;
    ek_kernels *kernels;
    ek_model *model;
    ek_tokenizer *tokenizer; /* NULL if the model has none and none was named */
} cli_loaded;

/* Opens a model that has weights, for forward use.  tokenizer: a name, or NULL for the model's. */
EK_CHECKED ek_status cli_load(const char *name, const char *tokenizer, ek_mode mode, int threads,
                              cli_loaded *out);
void cli_unload(cli_loaded *l);

#endif
