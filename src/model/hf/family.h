/* model/hf/family.h - how config.json differs between families: private to config*.c.
 *
 * Numbers are the defaults of the families' config classes in transformers. */
#ifndef MODEL_HF_FAMILY_H
#define MODEL_HF_FAMILY_H

#include "spec/model.h"

typedef struct {
    ek_arch arch;
    const char *model_type, *architecture;
    const char *experts_key; /* key of the number of experts that transformers 4 and 5 both read */
    const char *ff_key;      /* width of one routed expert */
    ek_qk_norm qk_norm;
    int normalises;     /* weights are always normalised; other families have norm_topk_prob */
    int takes_dense;    /* mlp_only_layers, decoder_sparse_step, intermediate_size */
    int takes_shared;   /* shared_expert_intermediate_size, always gated */
    int takes_bias;     /* qkv_bias */
    int takes_head_dim; /* otherwise head_dim is hidden_size / num_attention_heads */
    int64_t kv_heads;   /* 0: as many as heads */
    int64_t top_k, max_positions;
    int64_t bos_id, eos_id; /* -1: none */
    double rope_theta, rms_eps, aux_coef;
} hf_family;

extern const hf_family hf_families[4]; /* by ek_arch */

/* Default width of the shared expert of Qwen2. */
enum { HF_SHARED_FF = 5632 };

/* Values of rope_type, by ek_rope_type. */
enum { HF_ROPE_TYPES = 5 };
extern const char *const hf_rope_names[HF_ROPE_TYPES];

/* Values of evenkeel.gate, by ek_gate_kind. */
extern const char *const hf_gate_names[3];

/* Default width of a cosine router: Tutel's. */
enum { HF_ROUTER_DIM = 256 };

#endif
