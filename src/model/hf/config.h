/* model/hf/config.h - Hugging Face config.json <-> ek_model_spec.
 *
 * Reads mixtral, olmoe, qwen2_moe and qwen3_moe configs, as transformers 4 and 5 write them.  An
 * absent key has the default of its family's config class; sizes that determine weight shapes are
 * required.  EK_EUNSUPPORTED: a key would change the arithmetic and is not implemented.
 * EK_EFORMAT: wrong type, size out of range, or contradiction.  Messages name file and key.  Keys
 * without effect are ignored.
 *
 * Gates that no supported Hugging Face family has are configured by one object of a mixtral config:
 *   "evenkeel": {"gate": "softmax" | "sigmoid-bias" | "expert-choice", "groups": 0, "group_top": 0,
 *                "scale": 1, "normalise": true, "bias_rate": 0.001, "shared_ff": 0,
 *                "shared_gated": false, "router": "linear" | "cosine", "router_dim": 256}
 * with these defaults; it is written only if a value differs from its default. */
#ifndef MODEL_HF_CONFIG_H
#define MODEL_HF_CONFIG_H

#include "spec/model.h"

#include <stddef.h>

/* Reads a config.json. *out is unchanged on failure. */
EK_CHECKED ek_status ek_hf_config_read(const char *path, ek_model_spec *out);

/* Parses a config in memory; `file` is its name in messages. */
EK_CHECKED ek_status ek_hf_config_parse(const char *text, size_t bytes, const char *file,
                                        ek_model_spec *out);

/* The text of a config.json that transformers reads (sorted keys, trailing newline).  The caller
 * frees *text.  EK_EUNSUPPORTED: the family has no key for a property of the model. */
EK_CHECKED ek_status ek_hf_config_text(const ek_model_spec *m, char **text);

#endif
