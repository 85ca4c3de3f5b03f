/* Names and shapes of tensors: one table by role.  The families differ only in the names of the MoE
 * block of a layer and of an expert's three matrices. */
#include "model/hf/names.h"

#include <stdio.h>
#include <string.h>

/* Symbolic sizes of shapes. */
typedef enum {
    NONE, /* a vector has no second dimension */
    ONE,
    VOCAB,
    HIDDEN,
    Q_WIDTH,
    KV_WIDTH,
    Q_NORM_WIDTH,
    K_NORM_WIDTH,
    EXPERTS,
    ROUTER_IN,
    ROUTER_DIM,
    FF,
    SHARED_FF,
    DENSE_FF
} size_name;

/* Scope of a tensor: the prefix of its name. */
typedef enum {
    IN_MODEL,  /* NAME */
    IN_LAYER,  /* model.layers.L.NAME */
    IN_BLOCK,  /* model.layers.L.BLOCK.NAME */
    IN_EXPERT, /* model.layers.L.BLOCK.experts.E.(the family's word).weight */
} place;

typedef struct {
    place where;
    size_name rows, cols;
    const char *name;
} role_row;

static const role_row roles[EK_ROLE_COUNT] = {
    [EK_ROLE_EMBED] = {IN_MODEL, VOCAB, HIDDEN, "model.embed_tokens.weight"},
    [EK_ROLE_NORM1] = {IN_LAYER, HIDDEN, NONE, "input_layernorm.weight"},
    [EK_ROLE_Q] = {IN_LAYER, Q_WIDTH, HIDDEN, "self_attn.q_proj.weight"},
    [EK_ROLE_K] = {IN_LAYER, KV_WIDTH, HIDDEN, "self_attn.k_proj.weight"},
    [EK_ROLE_V] = {IN_LAYER, KV_WIDTH, HIDDEN, "self_attn.v_proj.weight"},
    [EK_ROLE_O] = {IN_LAYER, HIDDEN, Q_WIDTH, "self_attn.o_proj.weight"},
    [EK_ROLE_Q_BIAS] = {IN_LAYER, Q_WIDTH, NONE, "self_attn.q_proj.bias"},
    [EK_ROLE_K_BIAS] = {IN_LAYER, KV_WIDTH, NONE, "self_attn.k_proj.bias"},
    [EK_ROLE_V_BIAS] = {IN_LAYER, KV_WIDTH, NONE, "self_attn.v_proj.bias"},
    [EK_ROLE_Q_NORM] = {IN_LAYER, Q_NORM_WIDTH, NONE, "self_attn.q_norm.weight"},
    [EK_ROLE_K_NORM] = {IN_LAYER, K_NORM_WIDTH, NONE, "self_attn.k_norm.weight"},
    [EK_ROLE_NORM2] = {IN_LAYER, HIDDEN, NONE, "post_attention_layernorm.weight"},
    [EK_ROLE_DENSE_GATE] = {IN_LAYER, DENSE_FF, HIDDEN, "mlp.gate_proj.weight"},
    [EK_ROLE_DENSE_UP] = {IN_LAYER, DENSE_FF, HIDDEN, "mlp.up_proj.weight"},
    [EK_ROLE_DENSE_DOWN] = {IN_LAYER, HIDDEN, DENSE_FF, "mlp.down_proj.weight"},
    [EK_ROLE_ROUTER] = {IN_BLOCK, EXPERTS, ROUTER_IN, "gate.weight"},
    [EK_ROLE_ROUTER_PROJECTION] = {IN_BLOCK, ROUTER_DIM, HIDDEN, "gate.projection.weight"},
    [EK_ROLE_ROUTER_SCALE] = {IN_BLOCK, ONE, NONE, "gate.log_scale"},
    [EK_ROLE_ROUTER_BIAS] = {IN_BLOCK, EXPERTS, NONE, "gate.e_score_correction_bias"},
    [EK_ROLE_SHARED_ROUTER] = {IN_BLOCK, ONE, HIDDEN, "shared_expert_gate.weight"},
    [EK_ROLE_SHARED_GATE] = {IN_BLOCK, SHARED_FF, HIDDEN, "shared_expert.gate_proj.weight"},
    [EK_ROLE_SHARED_UP] = {IN_BLOCK, SHARED_FF, HIDDEN, "shared_expert.up_proj.weight"},
    [EK_ROLE_SHARED_DOWN] = {IN_BLOCK, HIDDEN, SHARED_FF, "shared_expert.down_proj.weight"},
    [EK_ROLE_EXPERT_GATE] = {IN_EXPERT, FF, HIDDEN, NULL},
    [EK_ROLE_EXPERT_UP] = {IN_EXPERT, FF, HIDDEN, NULL},
    [EK_ROLE_EXPERT_DOWN] = {IN_EXPERT, HIDDEN, FF, NULL},
    [EK_ROLE_FINAL_NORM] = {IN_MODEL, HIDDEN, NONE, "model.norm.weight"},
    [EK_ROLE_HEAD] = {IN_MODEL, VOCAB, HIDDEN, "lm_head.weight"},
};

/* The block's name, and an expert's matrices in the order gate, up, down. */
typedef struct {
    const char *block, *matrix[3];
} family_words;

static const family_words mixtral_words = {"block_sparse_moe", {"w1", "w3", "w2"}};
static const family_words common_words = {"mlp", {"gate_proj", "up_proj", "down_proj"}};

static const family_words *words_of(const ek_model_spec *m)
{
    return m->arch == EK_ARCH_MIXTRAL ? &mixtral_words : &common_words;
}

static int64_t size_of(const ek_model_spec *m, size_name s)
{
    int whole = m->qk_norm == EK_QK_NORM_FULL;

    switch (s) {
    case NONE: return 0;
    case ONE: return 1;
    case VOCAB: return m->vocab;
    case HIDDEN: return m->hidden;
    case Q_WIDTH: return m->heads * m->head_dim;
    case KV_WIDTH: return m->kv_heads * m->head_dim;
    case Q_NORM_WIDTH: return (whole ? m->heads : 1) * m->head_dim;
    case K_NORM_WIDTH: return (whole ? m->kv_heads : 1) * m->head_dim;
    case EXPERTS: return m->experts;
    case ROUTER_IN: return m->router_dim > 0 ? m->router_dim : m->hidden;
    case ROUTER_DIM: return m->router_dim;
    case FF: return m->ff;
    case SHARED_FF: return m->shared_ff;
    case DENSE_FF: return m->dense_ff;
    }
    return 0;
}

/* Whether the model has this role, and in this layer (-1: no layer). */
static int has_role(const ek_model_spec *m, ek_role role, int64_t layer)
{
    int dense;

    if ((roles[role].where == IN_MODEL) != (layer < 0) || layer >= m->layers)
        return 0;
    dense = layer >= 0 && m->dense[layer];
    switch (role) {
    case EK_ROLE_Q_BIAS:
    case EK_ROLE_K_BIAS:
    case EK_ROLE_V_BIAS: return m->qkv_bias;
    case EK_ROLE_Q_NORM:
    case EK_ROLE_K_NORM: return m->qk_norm != EK_QK_NORM_NONE;
    case EK_ROLE_DENSE_GATE:
    case EK_ROLE_DENSE_UP:
    case EK_ROLE_DENSE_DOWN: return dense;
    case EK_ROLE_ROUTER:
    case EK_ROLE_EXPERT_GATE:
    case EK_ROLE_EXPERT_UP:
    case EK_ROLE_EXPERT_DOWN: return !dense;
    case EK_ROLE_ROUTER_PROJECTION:
    case EK_ROLE_ROUTER_SCALE: return !dense && m->router_dim > 0;
    case EK_ROLE_ROUTER_BIAS: return !dense && m->gate.kind == EK_GATE_SIGMOID_BIAS;
    case EK_ROLE_SHARED_ROUTER: return !dense && m->shared_ff > 0 && m->shared_gated;
    case EK_ROLE_SHARED_GATE:
    case EK_ROLE_SHARED_UP:
    case EK_ROLE_SHARED_DOWN: return !dense && m->shared_ff > 0;
    case EK_ROLE_HEAD: return !m->tie_embeddings;
    case EK_ROLE_EMBED:
    case EK_ROLE_NORM1:
    case EK_ROLE_Q:
    case EK_ROLE_K:
    case EK_ROLE_V:
    case EK_ROLE_O:
    case EK_ROLE_NORM2:
    case EK_ROLE_FINAL_NORM: return 1;
    case EK_ROLE_COUNT: break;
    }
    return 0;
}

int ek_hf_tensor_of(const ek_model_spec *m, ek_role role, int64_t layer, int64_t expert,
                    ek_hf_tensor *out)
{
    const role_row *r = &roles[role];
    const family_words *w = words_of(m);
    long long l = layer, e = expert;

    if (!has_role(m, role, layer) || (r->where == IN_EXPERT) != (expert >= 0) ||
        expert >= m->experts)
        return 0;
    memset(out, 0, sizeof(*out));
    out->role = role;
    out->layer = layer;
    out->expert = expert;
    out->dims = r->cols == NONE ? 1 : 2;
    out->shape[0] = size_of(m, r->rows);
    out->shape[1] = size_of(m, r->cols);
    switch (r->where) {
    case IN_MODEL: snprintf(out->name, sizeof(out->name), "%s", r->name); break;
    case IN_LAYER:
        snprintf(out->name, sizeof(out->name), "model.layers.%lld.%s", l, r->name);
        break;
    case IN_BLOCK:
        snprintf(out->name, sizeof(out->name), "model.layers.%lld.%s.%s", l, w->block, r->name);
        break;
    case IN_EXPERT:
        snprintf(out->name, sizeof(out->name), "model.layers.%lld.%s.experts.%lld.%s.weight", l,
                 w->block, e, w->matrix[role - EK_ROLE_EXPERT_GATE]);
        break;
    }
    return 1;
}

/* Number of tensors of a layer without the experts' (which come last). */
static int64_t plain_of_layer(const ek_model_spec *m, int64_t layer)
{
    int64_t n = 0;

    for (int r = EK_ROLE_NORM1; r < EK_ROLE_EXPERT_GATE; r++)
        n += has_role(m, (ek_role)r, layer);
    return n;
}

static int64_t experts_of_layer(const ek_model_spec *m, int64_t layer)
{
    return m->dense[layer] ? 0 : 3 * m->experts;
}

int64_t ek_hf_count(const ek_model_spec *m)
{
    int64_t n = m->tie_embeddings ? 2 : 3; /* embedding, final norm, head */

    for (int64_t l = 0; l < m->layers; l++)
        n += plain_of_layer(m, l) + experts_of_layer(m, l);
    return n;
}

static void tensor_of_layer(const ek_model_spec *m, int64_t layer, int64_t i, ek_hf_tensor *out)
{
    int64_t plain = plain_of_layer(m, layer);

    if (i >= plain) {
        i -= plain;
        ek_hf_tensor_of(m, (ek_role)(EK_ROLE_EXPERT_GATE + i % 3), layer, i / 3, out);
        return;
    }
    for (int r = EK_ROLE_NORM1; r < EK_ROLE_EXPERT_GATE; r++) {
        if (has_role(m, (ek_role)r, layer) && i-- == 0) {
            ek_hf_tensor_of(m, (ek_role)r, layer, -1, out);
            return;
        }
    }
}

void ek_hf_tensor_at(const ek_model_spec *m, int64_t i, ek_hf_tensor *out)
{
    if (i-- == 0) {
        ek_hf_tensor_of(m, EK_ROLE_EMBED, -1, -1, out);
        return;
    }
    for (int64_t l = 0; l < m->layers; l++) {
        int64_t n = plain_of_layer(m, l) + experts_of_layer(m, l);

        if (i < n) {
            tensor_of_layer(m, l, i, out);
            return;
        }
        i -= n;
    }
    ek_hf_tensor_of(m, i == 0 ? EK_ROLE_FINAL_NORM : EK_ROLE_HEAD, -1, -1, out);
}

/* The grouped layout is transformers 5's layout in memory: the block is called mlp in every family,
 * gate_up_proj [E][2 ff][hidden] has the gate rows of an expert before its up rows, and down_proj
 * is [E][hidden][ff]. */
int ek_hf_alternative(const ek_model_spec *m, const ek_hf_tensor *t, ek_hf_source *out)
{
    const role_row *r = &roles[t->role];
    int down = t->role == EK_ROLE_EXPERT_DOWN;
    int64_t n = m->ff * m->hidden;

    if (r->where != IN_EXPERT && (r->where != IN_BLOCK || m->arch != EK_ARCH_MIXTRAL))
        return 0;
    memset(out, 0, sizeof(*out));
    if (r->where == IN_BLOCK) {
        snprintf(out->name, sizeof(out->name), "model.layers.%lld.mlp.%s", (long long)t->layer,
                 r->name);
        out->dims = t->dims;
        memcpy(out->shape, t->shape, sizeof(t->shape));
        out->count = t->shape[0] * (t->dims == 2 ? t->shape[1] : 1);
        return 1;
    }
    snprintf(out->name, sizeof(out->name), "model.layers.%lld.mlp.experts.%s", (long long)t->layer,
             down ? "down_proj" : "gate_up_proj");
    out->dims = 3;
    out->shape[0] = m->experts;
    out->shape[1] = down ? m->hidden : 2 * m->ff;
    out->shape[2] = down ? m->ff : m->hidden;
    out->first = down ? t->expert * n : (2 * t->expert + (t->role == EK_ROLE_EXPERT_UP)) * n;
    out->count = n;
    return 1;
}

/* Of a role in one place; 0: the model does not have it there. */
static int64_t elements_of(const ek_model_spec *m, ek_role role, int64_t layer)
{
    const role_row *r = &roles[role];

    if (!has_role(m, role, layer))
        return 0;
    return size_of(m, r->rows) * (r->cols == NONE ? 1 : size_of(m, r->cols)) *
           (r->where == IN_EXPERT ? m->experts : 1);
}

int64_t ek_hf_elements(const ek_model_spec *spec)
{
    int64_t n = 0;

    for (int role = 0; role < EK_ROLE_COUNT; role++)
        for (int64_t layer = -1; layer < spec->layers; layer++)
            n += elements_of(spec, (ek_role)role, layer);
    return n;
}

int64_t ek_hf_active_elements(const ek_model_spec *spec)
{
    int64_t idle = (spec->experts - spec->top_k) * 3 * spec->hidden * spec->ff;

    return ek_hf_elements(spec) - ek_model_moe_layers(spec) * idle;
}
