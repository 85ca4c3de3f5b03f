/* equal_models.h - small models and batches of odd sizes, one for each feature that parallel
 * training has to handle.  Each model can be written as a config.json, so that it can be saved. */
#ifndef EQUAL_MODELS_H
#define EQUAL_MODELS_H

#include "base/random.h"
#include "ek_test.h"
#include "train/trainer.h"

enum { EQUAL_MODELS = 16, EQUAL_SHAPES = 6, EQUAL_SEQ_MAX = 9 };

static inline void equal_qwen2(ek_model_spec *s)
{
    s->arch = EK_ARCH_QWEN2_MOE;
    s->heads = s->kv_heads = 3;
    s->qkv_bias = 1;
    s->shared_gated = 1;
    s->shared_ff = 7;
    s->gate.normalise = 0;
}

/* Changes the plain model (0) to model number `model`. */
static inline void equal_vary(int model, ek_model_spec *s)
{
    switch (model) {
    case 1: /* a gated shared expert, first layer dense, tied embedding, biased attention */
        equal_qwen2(s);
        s->dense[0] = 1;
        s->dense_ff = 11;
        s->tie_embeddings = 1;
        break;
    case 2: /* sigmoid with bias, in groups */
        s->experts = 6;
        s->gate = (ek_gate_spec){EK_GATE_SIGMOID_BIAS, 1, 3, 2, 1.5, 0, 1e-3};
        break;
    case 3: /* norms of query and key heads; one choice; the last layers dense */
        s->arch = EK_ARCH_QWEN3_MOE;
        s->qk_norm = EK_QK_NORM_HEAD;
        s->top_k = 1;
        s->heads = 4;
        s->kv_heads = 2;
        s->dense[2] = s->dense[3] = 1;
        s->dense_ff = 3;
        break;
    case 4: /* expert-choice gate */
        s->gate.kind = EK_GATE_EXPERT_CHOICE;
        s->kv_heads = 6;
        break;
    case 5: /* noise; one key head */
        s->gate.jitter = 0.1;
        s->heads = 3;
        s->kv_heads = 1;
        s->experts = 7;
        s->top_k = 3;
        break;
    case 7: /* norms over all heads together; capped without padding */
        s->arch = EK_ARCH_OLMOE;
        s->qk_norm = EK_QK_NORM_FULL;
        s->heads = s->kv_heads = 3;
        s->gate.normalise = 0;
        break;
    case 8: /* a shared expert, not gated, narrower than many ranks; five layers */
        s->shared_ff = 3;
        s->layers = 5;
        break;
    case 9: /* every expert is chosen */ s->experts = s->top_k = 3; break;
    case 10: /* two experts; tied embedding; bias without groups */
        s->experts = 2;
        s->top_k = 1;
        s->gate.kind = EK_GATE_SIGMOID_BIAS;
        s->tie_embeddings = 1;
        break;
    case 11: /* the number of choices changes from step to step */ s->top_k = 3; break;
    case 12: /* most sizes below the number of ranks */
        s->vocab = 5;
        s->hidden = 3;
        s->heads = 2;
        s->kv_heads = 1;
        s->head_dim = 2;
        s->ff = 2;
        break;
    case 13: /* many thin layers; norms over all heads */
        s->arch = EK_ARCH_OLMOE;
        s->qk_norm = EK_QK_NORM_FULL;
        s->heads = s->kv_heads = 6;
        s->head_dim = 2;
        s->layers = 8;
        s->ff = 4;
        s->gate.normalise = 0;
        break;
    case 15: /* a cosine router; choices evened out by re-routing */ s->router_dim = 3; break;
    default: /* 6: capacity; 14: choices spread evenly */ break;
    }
}

static inline void equal_spec(int model, ek_model_spec *s)
{
    CHECK(ek_model_preset("tiny", s) == EK_OK);
    s->vocab = 61;
    s->hidden = 12;
    s->layers = 4;
    s->heads = 6;
    s->kv_heads = 3;
    s->head_dim = 4;
    s->experts = 5;
    s->top_k = 2;
    s->ff = 9;
    s->eos_id = -1;
    s->init_range = 0.2;
    s->rope_theta = 100;
    equal_vary(model, s);
}

static inline int64_t equal_layers(int model)
{
    ek_model_spec s;

    equal_spec(model, &s);
    return s.layers;
}

static inline int equal_tied(int model)
{
    ek_model_spec s;

    equal_spec(model, &s);
    return s.tie_embeddings;
}

static inline double equal_capacity(int model)
{
    return model == 6 ? 0.8 : model == 7 ? -0.7 : 0;
}

/* Experts a token in step `step`; 0: the model's. */
static inline int64_t equal_top_k(int model, int step)
{
    return model == 11 ? 1 + step / 2 % 3 : 0;
}

/* Sequences a step and a micro-batch, tokens a sequence: most are odd, and some leave ranks without
 * a sequence. */
typedef struct {
    int batch, micro, seq;
} equal_shape;

static inline equal_shape equal_shape_of(int shape)
{
    static const equal_shape shapes[EQUAL_SHAPES] = {{5, 2, 8}, {8, 8, 6}, {1, 1, 9},
                                                     {7, 3, 5}, {6, 1, 6}, {9, 4, 3}};

    return shapes[shape];
}

/* Whether a document mask is used; token EQUAL_END ends a document. */
enum { EQUAL_END = 1 };

static inline int equal_masked(int shape)
{
    return shape % 2;
}

/* No token occurs twice in a row: equal tokens at the start of a sequence have equal scores, and
 * rounding would decide which of them an expert chooses. */
static inline int32_t equal_token(int step, uint64_t at, int64_t vocab)
{
    uint64_t half = (uint64_t)vocab / 2;

    return (int32_t)(ek_random_bits(5, (uint64_t)step, at) % half + (at % 2) * half);
}

static inline void equal_tokens(ek_trainer *tr, int step, int64_t seq, int64_t vocab)
{
    for (int64_t i = 0; i < ek_trainer_sequences(tr); i++) {
        uint64_t row = (uint64_t)ek_trainer_sequence(tr, i);

        for (int64_t t = 0; t < seq; t++) {
            uint64_t at = row * (uint64_t)(seq + 1) + (uint64_t)t;

            ek_trainer_inputs(tr)[i * seq + t] = equal_token(step, at, vocab);
            ek_trainer_targets(tr)[i * seq + t] = equal_token(step, at + 1, vocab);
        }
    }
}

#endif
