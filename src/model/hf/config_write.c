/* Writing config.json. rope_theta, rope_scaling and torch_dtype are written where transformers 4
 * puts them, which 5 reads too. */
#include "base/json.h"
#include "model/hf/config.h"
#include "model/hf/family.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Properties without a key in the family must have their default. */
static ek_status check_family(const ek_model_spec *m, const hf_family *f)
{
    int own = m->arch == EK_ARCH_MIXTRAL;

    EK_REQUIRE(
        m->qk_norm == f->qk_norm, EK_EUNSUPPORTED,
        "a config.json of model_type %s has no key for this normalisation of queries and keys",
        f->model_type);
    EK_REQUIRE(f->takes_head_dim || m->heads * m->head_dim == m->hidden, EK_EUNSUPPORTED,
               "a config.json of model_type %s has no key for head_dim %lld", f->model_type,
               (long long)m->head_dim);
    EK_REQUIRE(f->takes_bias || !m->qkv_bias, EK_EUNSUPPORTED,
               "a config.json of model_type %s has no key for biases of queries, keys and values",
               f->model_type);
    EK_REQUIRE(f->takes_dense || ek_model_moe_layers(m) == m->layers, EK_EUNSUPPORTED,
               "a config.json of model_type %s has no key for dense layers", f->model_type);
    EK_REQUIRE(own || (m->shared_ff > 0) == f->takes_shared, EK_EUNSUPPORTED,
               "a config.json of model_type %s has no key for a shared expert of width %lld",
               f->model_type, (long long)m->shared_ff);
    EK_REQUIRE(own || m->shared_gated == f->takes_shared, EK_EUNSUPPORTED,
               "a config.json of model_type %s has no key for an ungated shared expert",
               f->model_type);
    EK_REQUIRE(own || (m->gate.kind == EK_GATE_SOFTMAX && m->gate.groups == 0 &&
                       m->gate.scale == 1 && m->gate.jitter == 0 && m->router_dim == 0),
               EK_EUNSUPPORTED, "a config.json of model_type %s has no key for this gate",
               f->model_type);
    EK_REQUIRE(own || m->sliding_window == 0, EK_EUNSUPPORTED,
               "a config.json of model_type %s cannot have sliding_window %lld", f->model_type,
               (long long)m->sliding_window);
    return EK_OK;
}

/* Each returns 0, or -1 without memory. */
static int put_int(json_t *o, const char *key, int64_t x)
{
    return json_object_set_new(o, key, json_integer(x));
}

static int put_real(json_t *o, const char *key, double x)
{
    return json_object_set_new(o, key, json_real(x));
}

static int put_bool(json_t *o, const char *key, int x)
{
    return json_object_set_new(o, key, json_boolean(x));
}

static int put_text(json_t *o, const char *key, const char *x)
{
    return json_object_set_new(o, key, json_string(x));
}

/* null for -1, "none" */
static int put_id(json_t *o, const char *key, int64_t x, int64_t none)
{
    return json_object_set_new(o, key, x == none ? json_null() : json_integer(x));
}

/* The object rope_scaling; nothing if rotary embeddings are not scaled. */
static int put_rope(json_t *o, const ek_rope_scaling *r)
{
    json_t *rope;
    int bad;

    if (r->type == EK_ROPE_DEFAULT)
        return 0;
    rope = json_object();
    bad = rope == NULL ? -1 : 0;
    bad |= put_text(rope, "rope_type", hf_rope_names[r->type]);
    bad |= put_real(rope, "factor", r->factor);
    if (r->type == EK_ROPE_LLAMA3 || r->type == EK_ROPE_YARN)
        bad |= put_int(rope, "original_max_position_embeddings", r->original_positions);
    if (r->type == EK_ROPE_LLAMA3) {
        bad |= put_real(rope, "low_freq_factor", r->low_freq);
        bad |= put_real(rope, "high_freq_factor", r->high_freq);
    }
    if (r->type == EK_ROPE_YARN) {
        bad |= put_real(rope, "beta_fast", r->beta_fast);
        bad |= put_real(rope, "beta_slow", r->beta_slow);
        if (r->attention_factor > 0)
            bad |= put_real(rope, "attention_factor", r->attention_factor);
        if (r->mscale > 0)
            bad |= put_real(rope, "mscale", r->mscale);
        if (r->mscale_all_dim > 0)
            bad |= put_real(rope, "mscale_all_dim", r->mscale_all_dim);
        bad |= put_bool(rope, "truncate", r->truncate);
    }
    return bad | json_object_set_new(o, "rope_scaling", rope);
}

static int put_common(json_t *o, const ek_model_spec *m, const hf_family *f)
{
    json_t *names = json_pack("[s]", f->architecture);
    int bad = json_object_set_new(o, "architectures", names);

    bad |= put_text(o, "model_type", f->model_type);
    bad |= put_text(o, "torch_dtype", m->torch_dtype);
    bad |= put_int(o, "vocab_size", m->vocab);
    bad |= put_int(o, "hidden_size", m->hidden);
    bad |= put_int(o, "num_hidden_layers", m->layers);
    bad |= put_int(o, "num_attention_heads", m->heads);
    bad |= put_int(o, "num_key_value_heads", m->kv_heads);
    if (f->takes_head_dim)
        bad |= put_int(o, "head_dim", m->head_dim);
    bad |= put_int(o, f->experts_key, m->experts);
    bad |= put_int(o, f->ff_key, m->ff);
    bad |= put_int(o, "num_experts_per_tok", m->top_k);
    bad |= put_int(o, "max_position_embeddings", m->max_positions);
    bad |= put_id(o, "bos_token_id", m->bos_id, -1);
    bad |= put_id(o, "eos_token_id", m->eos_id, -1);
    bad |= put_id(o, "pad_token_id", -1, -1);
    bad |= put_text(o, "hidden_act", "silu");
    bad |= put_real(o, "rope_theta", m->rope_theta);
    bad |= put_rope(o, &m->rope);
    bad |= put_real(o, "rms_norm_eps", m->rms_eps);
    bad |= put_real(o, "initializer_range", m->init_range);
    bad |= put_real(o, "attention_dropout", 0);
    bad |= put_real(o, "router_aux_loss_coef", m->config_aux_coef);
    bad |= put_bool(o, "output_router_logits", 0);
    bad |= put_bool(o, "tie_word_embeddings", m->tie_embeddings);
    bad |= put_bool(o, "use_cache", 1);
    return bad;
}

static int put_dense_layers(json_t *o, const ek_model_spec *m)
{
    json_t *list = json_array();
    int bad = 0;

    for (int64_t l = 0; l < m->layers; l++)
        if (m->dense[l])
            bad |= json_array_append_new(list, json_integer(l));
    bad |= json_object_set_new(o, "mlp_only_layers", list);
    bad |= put_int(o, "decoder_sparse_step", 1);
    bad |= put_int(o, "intermediate_size", m->dense_ff > 0 ? m->dense_ff : m->ff);
    return bad;
}

static int put_own(json_t *o, const ek_model_spec *m)
{
    const ek_gate_spec *g = &m->gate;
    ek_model_spec normal;
    json_t *own = json_object();
    int bad = own == NULL ? -1 : 0;

    ek_model_default(&normal);
    if (g->kind != normal.gate.kind)
        bad |= put_text(own, "gate", hf_gate_names[g->kind]);
    if (m->router_dim > 0) {
        bad |= put_text(own, "router", "cosine");
        bad |= put_int(own, "router_dim", m->router_dim);
    }
    if (g->groups > 0) {
        bad |= put_int(own, "groups", g->groups);
        bad |= put_int(own, "group_top", g->group_top);
    }
    if (g->scale != normal.gate.scale)
        bad |= put_real(own, "scale", g->scale);
    if (!g->normalise)
        bad |= put_bool(own, "normalise", 0);
    if (g->bias_rate != normal.gate.bias_rate)
        bad |= put_real(own, "bias_rate", g->bias_rate);
    if (m->shared_ff > 0) {
        bad |= put_int(own, "shared_ff", m->shared_ff);
        bad |= put_bool(own, "shared_gated", m->shared_gated);
    }
    if (json_object_size(own) > 0)
        bad |= json_object_set(o, "evenkeel", own);
    json_decref(own);
    return bad;
}

static int put_family(json_t *o, const ek_model_spec *m, const hf_family *f)
{
    int bad = 0;

    if (m->arch == EK_ARCH_MIXTRAL) {
        bad |= put_real(o, "router_jitter_noise", m->gate.jitter);
        bad |= put_id(o, "sliding_window", m->sliding_window, 0);
        bad |= put_own(o, m);
    } else {
        bad |= put_bool(o, "norm_topk_prob", m->gate.normalise);
    }
    if (f->takes_dense) {
        bad |= put_dense_layers(o, m);
        bad |= put_bool(o, "use_sliding_window", 0);
    }
    if (f->takes_shared)
        bad |= put_int(o, "shared_expert_intermediate_size", m->shared_ff);
    if (f->takes_bias)
        bad |= put_bool(o, "qkv_bias", m->qkv_bias);
    else if (m->arch != EK_ARCH_MIXTRAL)
        bad |= put_bool(o, "attention_bias", 0);
    return bad;
}

/* Uses the fewest digits that reproduce every number. */
static char *dump_json(const json_t *o)
{
    for (size_t digits = 6; digits <= 17; digits++) {
        char *s = json_dumps(o, JSON_SORT_KEYS | JSON_INDENT(2) | JSON_REAL_PRECISION(digits));
        json_t *back = s == NULL ? NULL : json_loads(s, 0, NULL);
        int same = json_equal(o, back);

        json_decref(back);
        if (same)
            return s;
        free(s);
    }
    return NULL;
}

ek_status ek_hf_config_text(const ek_model_spec *m, char **text)
{
    const hf_family *f = &hf_families[m->arch];
    json_t *o = NULL;
    char *s = NULL, *line = NULL;
    ek_status st;

    EK_TRY_OUT(check_family(m, f));
    o = json_object();
    EK_REQUIRE_OUT(o != NULL && put_common(o, m, f) == 0 && put_family(o, m, f) == 0, EK_ENOMEM,
                   "no memory for a config.json");
    s = dump_json(o);
    line = s == NULL ? NULL : realloc(s, strlen(s) + 2);
    EK_REQUIRE_OUT(line != NULL, EK_ENOMEM, "no memory for a config.json");
    s = NULL;
    strcat(line, "\n");
    *text = line;
out:
    free(s);
    json_decref(o);
    return st;
}
