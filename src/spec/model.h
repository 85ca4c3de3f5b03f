/* spec/model.h - the description of a model: sizes and choices, as plain data.
 *
 * Names follow the Hugging Face config keys of the Mixtral family.  All layers are alike except
 * dense layers (a Qwen option), which have one SwiGLU network instead of experts. */
#ifndef SPEC_MODEL_H
#define SPEC_MODEL_H

#include "evenkeel/err.h"

#include <stdint.h>

/* The Hugging Face family, which decides key and tensor names. */
typedef enum { EK_ARCH_MIXTRAL, EK_ARCH_OLMOE, EK_ARCH_QWEN2_MOE, EK_ARCH_QWEN3_MOE } ek_arch;

/* Normalisation of queries and keys before the rotation. */
typedef enum {
    EK_QK_NORM_NONE,
    EK_QK_NORM_FULL, /* OLMoE: over all heads of a token together */
    EK_QK_NORM_HEAD  /* Qwen3: over each head, one weight of head_dim */
} ek_qk_norm;

/* How experts and tokens are matched. */
typedef enum {
    EK_GATE_SOFTMAX,      /* softmax over all experts, then the k largest */
    EK_GATE_SIGMOID_BIAS, /* sigmoid scores; a bias, updated by feedback, is added for the choice
                             only */
    EK_GATE_EXPERT_CHOICE /* each expert selects its best tokens of a sequence */
} ek_gate_kind;

typedef struct {
    ek_gate_kind kind;
    int normalise; /* weights divided by their sum over the k chosen (norm_topk_prob) */
    int groups,
        group_top;    /* group-limited: experts of the best group_top of `groups` groups; 0 off */
    double scale;     /* factor on the weights (routed_scaling_factor), 1 off */
    double jitter;    /* logits times uniform(1 - j, 1 + j) while training, 0 off */
    double bias_rate; /* step of the sigmoid bias feedback */
} ek_gate_spec;

/* Scaling of rotary frequencies for sequences longer than the pretraining length (`rope_type` of
 * the Hugging Face key `rope_scaling`); formulas in model/blocks/rope.h. */
typedef enum {
    EK_ROPE_DEFAULT, /* not scaled */
    EK_ROPE_LINEAR,
    EK_ROPE_DYNAMIC,
    EK_ROPE_LLAMA3,
    EK_ROPE_YARN
} ek_rope_type;

typedef struct {
    ek_rope_type type;
    double factor;                 /* 1 or more; every type but the default has it */
    int64_t original_positions;    /* original_max_position_embeddings; llama3 and yarn */
    double low_freq, high_freq;    /* low_freq_factor and high_freq_factor of llama3 */
    double beta_fast, beta_slow;   /* of yarn: rotations that bound the interpolated range */
    double attention_factor;       /* of yarn: on cosines and sines; 0: from the three below */
    double mscale, mscale_all_dim; /* of yarn; 0: not given */
    int truncate;                  /* of yarn: the bounds of the range are whole numbers */
} ek_rope_scaling;

enum { EK_LAYERS_MAX = 512 };

/* Limits of gates that use groups or choose by other scores than probabilities. */
enum { EK_GATE_EXPERTS_MAX = 1024, EK_GATE_GROUPS_MAX = 64 };

typedef struct {
    ek_arch arch;
    int64_t vocab, hidden, layers;
    int64_t heads, kv_heads, head_dim;
    int64_t experts, top_k;
    int64_t ff;                         /* width of one routed expert */
    int64_t shared_ff;                  /* width of the shared expert, 0: none */
    int shared_gated;                   /* its output is multiplied by sigmoid(gate . x) */
    int64_t dense_ff;                   /* width of the network of dense layers */
    unsigned char dense[EK_LAYERS_MAX]; /* 1: this layer is dense */
    ek_gate_spec gate;
    int64_t router_dim; /* of a cosine router's space (moe/cosine.h); 0: the router is linear */
    ek_qk_norm qk_norm;
    int qkv_bias;
    int tie_embeddings;
    double rope_theta, rms_eps, init_range;
    ek_rope_scaling rope;
    int64_t max_positions;  /* max_position_embeddings; ek_model_longest() is the limit */
    int64_t sliding_window; /* longest sequence for which full attention is equivalent; 0: any */
    int64_t bos_id, eos_id; /* -1: none */
    double config_aux_coef; /* router_aux_loss_coef, kept for export only */
    char torch_dtype[16];   /* "float32" or "bfloat16": element type of an exported folder */
} ek_model_spec;

/* A Mixtral with every choice at its default and sizes 0. */
void ek_model_default(ek_model_spec *m);

/* Sets `m` to a preset (tiny, small, base).  EK_EINVAL names the known ones. */
EK_CHECKED ek_status ek_model_preset(const char *name, ek_model_spec *m);

/* The longest supported sequence in tokens: max_positions; with dynamic rope scaling max_positions
 * times its factor. */
int64_t ek_model_longest(const ek_model_spec *m);

/* The number of MoE layers (those that are not dense): of all layers; of those below `layer`. */
int64_t ek_model_moe_layers(const ek_model_spec *m);
int64_t ek_model_moe_layers_below(const ek_model_spec *m, int64_t layer);

/* Whether all layers are dense, or none is. */
int ek_model_layers_are_alike(const ek_model_spec *m);

/* Checks all sizes and choices.  EK_EINVAL names the key at fault. */
EK_CHECKED ek_status ek_model_check(const ek_model_spec *m);

#endif
