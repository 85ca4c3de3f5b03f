/* model/model.h - a transformer with mixture-of-experts layers: its weights.
 *
 * Per layer   x += Wo attention(rope(Wqkv norm1(x)));  x += experts(norm2(x))
 * then        logits = head(final_norm(x)).
 *
 * Query, key and value weights are one matrix [(heads + 2 kv_heads) head_dim, hidden], the gate
 * and up weights of an expert one of [2 ff, hidden], so that each is one product; Hugging Face
 * tensors are runs of rows of them (ek_model_find).
 *
 * Memory       every weight has a master, and where it is trained a gradient and two moments, all
 *              R (16 bytes a parameter in fp32), and the packed forms that the kernels read. */
#ifndef MODEL_MODEL_H
#define MODEL_MODEL_H

#include "base/arena.h"
#include "model/hf_names.h"
#include "moe/moe.h"
#include "spec/model.h"
#include "tensor/kernels.h"
#include "tensor/weight.h"

typedef struct {
    ek_weight norm1, qkv, qkv_bias, q_norm, k_norm, out, norm2;
    ek_moe_weights experts;
} ek_layer;

/* One weight for those who treat all alike (optimizer, norm of the gradient, packing). */
typedef struct {
    ek_weight *w;
    int32_t layer, expert; /* -1: of no layer, no expert */
    int decay;             /* a matrix: weight decay applies */
    int trained;           /* 0: kept by feedback (router bias), not by gradients */
} ek_param;

typedef struct {
    ek_model_spec spec;
    const ek_kernels *k;
    int trained;                       /* gradients and moments exist */
    ek_weight embed, final_norm, head; /* head.p == embed.p when they are tied */
    ek_layer *layers;
    ek_param *params;
    int64_t n_params;   /* entries of params */
    int64_t n_elements; /* numbers held in masters, each once */
    ek_arena arena;
} ek_model;

/* Lays out a model; masters are zero.  trained: with gradients, moments and backward forms. */
EK_CHECKED ek_status ek_model_create(const ek_model_spec *spec, const ek_kernels *k, int trained,
                                     ek_model **out);
void ek_model_destroy(ek_model **m);

/* Initial weights: normal with the spec's init_range, norms one, biases zero; a number depends
 * on seed, tensor name and index alone. */
void ek_model_init(ek_model *m, uint64_t seed);

/* Makes the packed forms of all weights from the masters. */
EK_CHECKED ek_status ek_model_pack(ek_model *m);

/* The weight that a Hugging Face tensor lives in, and its first element there. */
ek_weight *ek_model_find(ek_model *m, const ek_hf_tensor *t, int64_t *first);

#endif
