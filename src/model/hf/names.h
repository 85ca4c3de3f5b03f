/* model/hf/names.h - the tensors of a model and their names in Hugging Face files.
 *
 * Tensors are numbered from 0: the embedding, then layer by layer, then the final norm and the
 * head.  Each expert matrix is a tensor of its own, as these families are published.  The grouped
 * layout, all experts of a layer in one 3-D tensor, is accepted when reading.
 *
 * The spec must have passed ek_model_check. */
#ifndef MODEL_HF_NAMES_H
#define MODEL_HF_NAMES_H

#include "spec/model.h"

/* Role of a tensor.  A matrix is stored [outputs][inputs], as in torch. */
typedef enum {
    EK_ROLE_EMBED,
    EK_ROLE_NORM1, /* input_layernorm: before attention */
    EK_ROLE_Q,
    EK_ROLE_K,
    EK_ROLE_V,
    EK_ROLE_O,
    EK_ROLE_Q_BIAS,
    EK_ROLE_K_BIAS,
    EK_ROLE_V_BIAS,
    EK_ROLE_Q_NORM,
    EK_ROLE_K_NORM,
    EK_ROLE_NORM2, /* post_attention_layernorm: before the experts */
    EK_ROLE_DENSE_GATE,
    EK_ROLE_DENSE_UP,
    EK_ROLE_DENSE_DOWN,
    EK_ROLE_ROUTER,
    EK_ROLE_ROUTER_PROJECTION, /* of a cosine router, as is the scale */
    EK_ROLE_ROUTER_SCALE,
    EK_ROLE_ROUTER_BIAS, /* of the sigmoid gate; not trained by gradients */
    EK_ROLE_SHARED_ROUTER,
    EK_ROLE_SHARED_GATE,
    EK_ROLE_SHARED_UP,
    EK_ROLE_SHARED_DOWN,
    EK_ROLE_EXPERT_GATE, /* w1, gate_proj */
    EK_ROLE_EXPERT_UP,   /* w3, up_proj */
    EK_ROLE_EXPERT_DOWN, /* w2, down_proj */
    EK_ROLE_FINAL_NORM,
    EK_ROLE_HEAD, /* absent when tied to the embedding */
    EK_ROLE_COUNT
} ek_role;

enum { EK_HF_NAME_MAX = 96 };

typedef struct {
    ek_role role;
    int64_t layer, expert; /* -1 where there is none */
    char name[EK_HF_NAME_MAX];
    int dims;
    int64_t shape[2];
} ek_hf_tensor;

/* Alternative source of a tensor: a range of elements of another tensor. */
typedef struct {
    char name[EK_HF_NAME_MAX];
    int dims;
    int64_t shape[3];     /* of the other tensor */
    int64_t first, count; /* elements */
} ek_hf_source;

/* Number of tensors of the model. */
int64_t ek_hf_count(const ek_model_spec *m);

/* Tensor i, 0 <= i < ek_hf_count. */
void ek_hf_tensor_at(const ek_model_spec *m, int64_t i, ek_hf_tensor *out);

/* The tensor of a role; layer and expert are -1 where the role has none.  Returns 0 and leaves *out
 * unchanged if the model has no such tensor. */
int ek_hf_tensor_of(const ek_model_spec *m, ek_role role, int64_t layer, int64_t expert,
                    ek_hf_tensor *out);

/* The alternative source of tensor t.  Returns 0 if there is none. */
int ek_hf_alternative(const ek_model_spec *m, const ek_hf_tensor *t, ek_hf_source *out);

/* Elements of all tensors. */
int64_t ek_hf_elements(const ek_model_spec *spec);
/* Those that one token uses: without experts to which it is not routed. */
int64_t ek_hf_active_elements(const ek_model_spec *spec);

#endif
