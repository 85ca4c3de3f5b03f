/* Presets and the check of sizes.  ek_model_check is the only place that decides which sizes are
 * valid: config readers, presets and callers that fill a spec all use it, so later layers may
 * divide, multiply and index by these numbers without checks. */
#include "spec/model.h"

#include "base/checked.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* Bounds above any model trained today, low enough that no product of sizes overflows. */
#define PARAMETERS_MAX (INT64_C(1) << 46)
enum {
    WIDTH_MAX = 1 << 20,
    VOCAB_MAX = 1 << 24,
    EXPERTS_MAX = 1 << 16,
    HEADS_MAX = 1 << 16,
    POSITIONS_MAX = 1 << 30
};

typedef struct {
    const char *name;
    int64_t vocab, hidden, layers, heads, kv_heads, head_dim, experts, ff;
} preset;

/* The byte tokenizer has 257 ids; 320 is the next multiple of 64. */
static const preset presets[] = {
    {"tiny", 320, 128, 4, 4, 2, 32, 8, 192},
    {"small", 320, 512, 4, 8, 4, 64, 8, 1024},
    {"base", 32000, 1024, 12, 16, 4, 64, 16, 2048},
};

void ek_model_default(ek_model_spec *m)
{
    memset(m, 0, sizeof(*m));
    m->arch = EK_ARCH_MIXTRAL;
    m->gate.kind = EK_GATE_SOFTMAX;
    m->gate.normalise = 1;
    m->gate.scale = 1;
    m->gate.bias_rate = 1e-3;
    m->config_aux_coef = 0.001;
    m->rope_theta = 1e6;
    m->rope.factor = 1;
    m->rms_eps = 1e-5;
    m->init_range = 0.02;
    m->max_positions = 4096;
    m->bos_id = m->eos_id = -1;
    snprintf(m->torch_dtype, sizeof(m->torch_dtype), "float32");
}

ek_status ek_model_preset(const char *name, ek_model_spec *m)
{
    for (size_t i = 0; i < sizeof(presets) / sizeof(presets[0]); i++) {
        const preset *p = &presets[i];

        if (strcmp(name, p->name) != 0)
            continue;
        ek_model_default(m);
        m->vocab = p->vocab;
        m->hidden = p->hidden;
        m->layers = p->layers;
        m->heads = p->heads;
        m->kv_heads = p->kv_heads;
        m->head_dim = p->head_dim;
        m->experts = p->experts;
        m->top_k = 2;
        m->ff = p->ff;
        m->eos_id = 256; /* ends a document of the byte tokenizer, the default of every preset */
        return EK_OK;
    }
    return EK_FAIL(EK_EINVAL, "no model preset is called \"%s\"; there are tiny, small and base",
                   name);
}

typedef struct {
    const char *key;
    size_t offset;
    int64_t lo, hi;
} size_rule;

#define RULE(key, field, lo, hi)                                                                   \
    {                                                                                              \
        key, offsetof(ek_model_spec, field), lo, hi                                                \
    }

static const size_rule size_rules[] = {
    RULE("vocab_size", vocab, 1, VOCAB_MAX),
    RULE("hidden_size", hidden, 1, WIDTH_MAX),
    RULE("num_hidden_layers", layers, 1, EK_LAYERS_MAX),
    RULE("num_attention_heads", heads, 1, HEADS_MAX),
    RULE("num_key_value_heads", kv_heads, 1, HEADS_MAX),
    RULE("head_dim", head_dim, 2, WIDTH_MAX),
    RULE("num_experts", experts, 1, EXPERTS_MAX),
    RULE("num_experts_per_tok", top_k, 1, EXPERTS_MAX),
    RULE("the experts' intermediate size", ff, 1, WIDTH_MAX),
    RULE("shared_expert_intermediate_size", shared_ff, 0, WIDTH_MAX),
    RULE("intermediate_size", dense_ff, 0, WIDTH_MAX),
    RULE("router_dim", router_dim, 0, WIDTH_MAX),
    RULE("max_position_embeddings", max_positions, 1, POSITIONS_MAX),
    RULE("sliding_window", sliding_window, 0, POSITIONS_MAX),
};

static ek_status check_sizes(const ek_model_spec *m)
{
    for (size_t i = 0; i < sizeof(size_rules) / sizeof(size_rules[0]); i++) {
        const size_rule *r = &size_rules[i];
        int64_t x;

        memcpy(&x, (const char *)m + r->offset, sizeof(x));
        EK_REQUIRE(x >= r->lo && x <= r->hi, EK_EINVAL, "%s is %lld; it must be from %lld to %lld",
                   r->key, (long long)x, (long long)r->lo, (long long)r->hi);
    }
    EK_REQUIRE(m->head_dim % 2 == 0, EK_EINVAL,
               "head_dim is %lld; rotary embeddings need an even number", (long long)m->head_dim);
    EK_REQUIRE(m->heads * m->head_dim <= WIDTH_MAX, EK_EINVAL,
               "num_attention_heads %lld times head_dim %lld is more than %d", (long long)m->heads,
               (long long)m->head_dim, WIDTH_MAX);
    EK_REQUIRE(m->heads % m->kv_heads == 0, EK_EINVAL,
               "num_attention_heads %lld is not a multiple of num_key_value_heads %lld",
               (long long)m->heads, (long long)m->kv_heads);
    EK_REQUIRE(m->top_k <= m->experts, EK_EINVAL, "num_experts_per_tok %lld exceeds %lld experts",
               (long long)m->top_k, (long long)m->experts);
    EK_REQUIRE(m->bos_id >= -1 && m->bos_id < m->vocab, EK_EINVAL,
               "bos_token_id %lld is outside the vocabulary of %lld", (long long)m->bos_id,
               (long long)m->vocab);
    EK_REQUIRE(m->eos_id >= -1 && m->eos_id < m->vocab, EK_EINVAL,
               "eos_token_id %lld is outside the vocabulary of %lld", (long long)m->eos_id,
               (long long)m->vocab);
    return EK_OK;
}

/* Every factor is at most 2^24 here, so a product of two fits; sums over layers are checked. */
static ek_status check_total(const ek_model_spec *m)
{
    int64_t d = m->hidden, total = 2 * m->vocab * d, attention, ffn;

    attention = 2 * d * m->head_dim * (m->heads + m->kv_heads);
    for (int64_t l = 0; l < m->layers; l++) {
        int fits = m->dense[l] ? ek_i64_mul(3 * d, m->dense_ff, &ffn)
                               : ek_i64_mul(m->experts, 3 * d * m->ff + d, &ffn) &&
                                     ek_i64_add(ffn, 3 * d * m->shared_ff, &ffn) &&
                                     ek_i64_add(ffn, m->router_dim * (d + m->experts), &ffn);

        fits = fits && ek_i64_add(total, attention, &total) && ek_i64_add(total, ffn, &total);
        EK_REQUIRE(fits && total <= PARAMETERS_MAX, EK_EINVAL,
                   "hidden_size %lld, %lld layers and %lld experts give more than %lld parameters",
                   (long long)d, (long long)m->layers, (long long)m->experts,
                   (long long)PARAMETERS_MAX);
    }
    return EK_OK;
}

int ek_model_layers_are_alike(const ek_model_spec *m)
{
    int64_t routed = ek_model_moe_layers(m);

    return routed == 0 || routed == m->layers;
}

int64_t ek_model_moe_layers_below(const ek_model_spec *m, int64_t layer)
{
    int64_t n = 0;

    for (int64_t l = 0; l < layer; l++)
        n += !m->dense[l];
    return n;
}

int64_t ek_model_moe_layers(const ek_model_spec *m)
{
    return ek_model_moe_layers_below(m, m->layers);
}

static ek_status check_layers(const ek_model_spec *m)
{
    int64_t dense = m->layers - ek_model_moe_layers(m);

    EK_REQUIRE(dense < m->layers, EK_EINVAL,
               "mlp_only_layers and decoder_sparse_step leave no layer with experts");
    EK_REQUIRE(dense == 0 || m->dense_ff > 0, EK_EINVAL,
               "intermediate_size is 0, but %lld layers are dense", (long long)dense);
    EK_REQUIRE(!m->shared_gated || m->shared_ff > 0, EK_EINVAL,
               "shared_gated is set, but there is no shared expert");
    return EK_OK;
}

static ek_status check_gate(const ek_gate_spec *g, int64_t experts, int64_t top_k)
{
    EK_REQUIRE(g->groups >= 0 && g->group_top >= 0 && g->group_top <= g->groups &&
                   (g->groups == 0) == (g->group_top == 0),
               EK_EINVAL, "group_top is %d and groups is %d; both 0, or group_top from 1 to groups",
               g->group_top, g->groups);
    EK_REQUIRE(g->groups == 0 || experts % g->groups == 0, EK_EINVAL,
               "groups is %d, which does not divide %lld experts", g->groups, (long long)experts);
    EK_REQUIRE(g->groups == 0 || g->group_top * (experts / g->groups) >= top_k, EK_EINVAL,
               "num_experts_per_tok %lld exceeds the %lld experts of group_top %d groups",
               (long long)top_k, (long long)(g->group_top * (experts / g->groups)), g->group_top);
    EK_REQUIRE(g->groups == 0 || g->kind != EK_GATE_EXPERT_CHOICE, EK_EINVAL,
               "groups is %d, but expert choice does not support groups", g->groups);
    EK_REQUIRE((g->kind == EK_GATE_SOFTMAX && g->groups == 0) ||
                   (experts <= EK_GATE_EXPERTS_MAX && g->groups <= EK_GATE_GROUPS_MAX),
               EK_EINVAL, "%lld experts in %d groups; this gate takes %d in %d at most",
               (long long)experts, g->groups, EK_GATE_EXPERTS_MAX, EK_GATE_GROUPS_MAX);
    EK_REQUIRE(g->scale > 0 && isfinite(g->scale), EK_EINVAL,
               "scale is %g; it must be positive and finite", g->scale);
    EK_REQUIRE(g->jitter >= 0 && g->jitter < 1, EK_EINVAL,
               "router_jitter_noise is %g; it must be at least 0 and below 1", g->jitter);
    EK_REQUIRE(g->bias_rate >= 0 && isfinite(g->bias_rate), EK_EINVAL,
               "bias_rate is %g; it must be 0 or more and finite", g->bias_rate);
    return EK_OK;
}

int64_t ek_model_longest(const ek_model_spec *m)
{
    double longest = (double)m->max_positions;

    if (m->rope.type == EK_ROPE_DYNAMIC)
        longest *= m->rope.factor;
    return longest < POSITIONS_MAX ? (int64_t)longest : POSITIONS_MAX;
}

static ek_status check_yarn(const ek_rope_scaling *r)
{
    EK_REQUIRE(r->beta_slow > 0 && r->beta_fast >= r->beta_slow && isfinite(r->beta_fast),
               EK_EINVAL,
               "rope_scaling: beta_fast %g and beta_slow %g; they must be positive and beta_fast "
               "at least beta_slow",
               r->beta_fast, r->beta_slow);
    EK_REQUIRE(r->attention_factor >= 0 && isfinite(r->attention_factor), EK_EINVAL,
               "rope_scaling: attention_factor is %g; it must be positive and finite",
               r->attention_factor);
    EK_REQUIRE(
        r->mscale >= 0 && isfinite(r->mscale) && r->mscale_all_dim >= 0 &&
            isfinite(r->mscale_all_dim),
        EK_EINVAL,
        "rope_scaling: mscale is %g and mscale_all_dim %g; they must be 0 or more and finite",
        r->mscale, r->mscale_all_dim);
    return EK_OK;
}

static ek_status check_rope(const ek_model_spec *m)
{
    const ek_rope_scaling *r = &m->rope;

    EK_REQUIRE(m->rope_theta > 0 && isfinite(m->rope_theta), EK_EINVAL,
               "rope_theta is %g; it must be positive and finite", m->rope_theta);
    if (r->type == EK_ROPE_DEFAULT)
        return EK_OK;
    EK_REQUIRE(r->factor >= 1 && isfinite(r->factor), EK_EINVAL,
               "rope_scaling: factor is %g; it must be 1 or more and finite", r->factor);
    EK_REQUIRE(r->type != EK_ROPE_DYNAMIC || m->head_dim > 2, EK_EINVAL,
               "rope_scaling: rope_type dynamic needs a head_dim above 2");
    if (r->type != EK_ROPE_LLAMA3 && r->type != EK_ROPE_YARN)
        return EK_OK;
    EK_REQUIRE(r->original_positions >= 1 && r->original_positions <= POSITIONS_MAX, EK_EINVAL,
               "rope_scaling: original_max_position_embeddings is %lld; it must be from 1 to %d",
               (long long)r->original_positions, POSITIONS_MAX);
    EK_REQUIRE(r->type != EK_ROPE_LLAMA3 ||
                   (r->low_freq > 0 && r->high_freq > r->low_freq && isfinite(r->high_freq)),
               EK_EINVAL,
               "rope_scaling: low_freq_factor %g and high_freq_factor %g; they must be positive, "
               "and the second above the first",
               r->low_freq, r->high_freq);
    EK_REQUIRE(r->type != EK_ROPE_YARN || m->rope_theta > 1, EK_EINVAL,
               "rope_theta is %g; rope_type yarn needs one above 1", m->rope_theta);
    return r->type == EK_ROPE_YARN ? check_yarn(r) : EK_OK;
}

ek_status ek_model_check(const ek_model_spec *m)
{
    EK_TRY(check_sizes(m));
    EK_TRY(check_layers(m));
    EK_TRY(check_total(m));
    EK_TRY(check_gate(&m->gate, m->experts, m->top_k));
    EK_TRY(check_rope(m));
    EK_REQUIRE(m->rms_eps > 0 && m->rms_eps <= 1, EK_EINVAL,
               "rms_norm_eps is %g; it must be above 0 and at most 1", m->rms_eps);
    EK_REQUIRE(m->init_range >= 0 && isfinite(m->init_range), EK_EINVAL,
               "initializer_range is %g; it must be 0 or more and finite", m->init_range);
    EK_REQUIRE(isfinite(m->config_aux_coef), EK_EINVAL, "router_aux_loss_coef is not finite");
    EK_REQUIRE(strcmp(m->torch_dtype, "float32") == 0 || strcmp(m->torch_dtype, "bfloat16") == 0,
               EK_EINVAL, "torch_dtype is \"%s\"; an exported folder holds float32 or bfloat16",
               m->torch_dtype);
    return EK_OK;
}
