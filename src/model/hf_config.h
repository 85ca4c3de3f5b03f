/* model/hf_config.h - Hugging Face config.json <-> ek_model_spec.
 *
 * Read: mixtral, olmoe, qwen2_moe, qwen3_moe, as transformers 4 and 5 write them.  A key that is
 * absent has the default of its family's config class; the sizes that shape the weights must be
 * there.  A key that would change the arithmetic and is not implemented is EK_EUNSUPPORTED, a
 * wrong type, a size out of range or a contradiction EK_EFORMAT; the message names file and key.
 * Keys that change nothing are ignored.
 *
 * Gates that no Hugging Face family here has are said under one key of a mixtral config:
 *   "evenkeel": {"gate": "softmax" | "sigmoid-bias" | "expert-choice", "groups": 0, "group_top": 0,
 *                "scale": 1, "normalise": true, "bias_rate": 0.001, "shared_ff": 0,
 *                "shared_gated": false}
 * with these defaults; it is written only where one of them is not the default. */
#ifndef MODEL_HF_CONFIG_H
#define MODEL_HF_CONFIG_H

#include "spec/model.h"

#include <stddef.h>

/* Reads a config.json.  *out is untouched on failure. */
EK_CHECKED ek_status ek_hf_config_read(const char *path, ek_model_spec *out);

/* The same from memory; `file` is for messages. */
EK_CHECKED ek_status ek_hf_config_parse(const char *text, size_t bytes, const char *file,
                                        ek_model_spec *out);

/* The text of a config.json that transformers reads (keys sorted, a newline at the end).  The
 * caller frees *text.  EK_EUNSUPPORTED when the family's keys cannot say what the model is. */
EK_CHECKED ek_status ek_hf_config_text(const ek_model_spec *m, char **text);

#endif
