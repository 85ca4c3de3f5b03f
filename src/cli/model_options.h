/* cli/model_options.h - what eval and generate share: the model, and how it is opened. */
#ifndef CLI_MODEL_OPTIONS_H
#define CLI_MODEL_OPTIONS_H

#include "evenkeel/lm.h"

#include "base/options.h"

typedef struct {
    const char *model;
    ek_lm_config lm;
} cli_model_settings;

enum { CLI_MODEL_OPTIONS = 10 };

/* Writes the n rows of a command's own options into rows, after --model and before the other
 * options of a model, which are stored in the cli_model_settings at the start of the command's
 * settings.  rows: room for CLI_MODEL_OPTIONS + n.  Returns their number. */
size_t cli_model_options(const ek_option *own, size_t n, ek_option *rows);

#endif
