/* Reading config.json.  Each function reads one group of keys into the spec and refuses invalid
 * values; ek_model_check checks the sizes together at the end. */
#include "model/hf/config.h"

#include "base/json.h"
#include "model/hf/family.h"

#include <stdio.h>
#include <string.h>

const hf_family hf_families[4] = {
    [EK_ARCH_MIXTRAL] = {.arch = EK_ARCH_MIXTRAL,
                         .model_type = "mixtral",
                         .architecture = "MixtralForCausalLM",
                         .experts_key = "num_local_experts",
                         .ff_key = "intermediate_size",
                         .normalises = 1,
                         .takes_head_dim = 1,
                         .kv_heads = 8,
                         .top_k = 2,
                         .max_positions = 131072,
                         .bos_id = 1,
                         .eos_id = 2,
                         .rope_theta = 1e6,
                         .rms_eps = 1e-5,
                         .aux_coef = 0.001},
    [EK_ARCH_OLMOE] = {.arch = EK_ARCH_OLMOE,
                       .model_type = "olmoe",
                       .architecture = "OlmoeForCausalLM",
                       .experts_key = "num_experts",
                       .ff_key = "intermediate_size",
                       .qk_norm = EK_QK_NORM_FULL,
                       .top_k = 8,
                       .max_positions = 4096,
                       .bos_id = -1,
                       .eos_id = 50279,
                       .rope_theta = 1e4,
                       .rms_eps = 1e-5,
                       .aux_coef = 0.01},
    [EK_ARCH_QWEN2_MOE] = {.arch = EK_ARCH_QWEN2_MOE,
                           .model_type = "qwen2_moe",
                           .architecture = "Qwen2MoeForCausalLM",
                           .experts_key = "num_experts",
                           .ff_key = "moe_intermediate_size",
                           .takes_dense = 1,
                           .takes_shared = 1,
                           .takes_bias = 1,
                           .takes_head_dim = 1,
                           .kv_heads = 16,
                           .top_k = 4,
                           .max_positions = 32768,
                           .bos_id = -1,
                           .eos_id = -1,
                           .rope_theta = 1e4,
                           .rms_eps = 1e-6,
                           .aux_coef = 0.001},
    [EK_ARCH_QWEN3_MOE] = {.arch = EK_ARCH_QWEN3_MOE,
                           .model_type = "qwen3_moe",
                           .architecture = "Qwen3MoeForCausalLM",
                           .experts_key = "num_experts",
                           .ff_key = "moe_intermediate_size",
                           .qk_norm = EK_QK_NORM_HEAD,
                           .takes_dense = 1,
                           .takes_head_dim = 1,
                           .kv_heads = 4,
                           .top_k = 8,
                           .max_positions = 32768,
                           .bos_id = -1,
                           .eos_id = -1,
                           .rope_theta = 1e4,
                           .rms_eps = 1e-6,
                           .aux_coef = 0.001},
};

const char *const hf_rope_names[HF_ROPE_TYPES] = {"default", "linear", "dynamic", "llama3", "yarn"};

const char *const hf_gate_names[3] = {"softmax", "sigmoid-bias", "expert-choice"};

/* One config being read. */
typedef struct {
    const json_t *json;
    const char *file;
    const hf_family *family;
    ek_model_spec *m;
} reader;

static ek_status get_int(const reader *r, const char *key, int64_t lo, int64_t *out)
{
    return ek_json_int(r->json, r->file, key, EK_JSON_OPTIONAL, lo, INT32_MAX, out);
}

/* A size that determines weight shapes: it has no default. */
static ek_status get_size(const reader *r, const char *key, int64_t *out)
{
    return ek_json_int(r->json, r->file, key, EK_JSON_REQUIRED, 1, INT32_MAX, out);
}

static ek_status get_real(const reader *r, const char *key, double *out)
{
    return ek_json_real(r->json, r->file, key, EK_JSON_OPTIONAL, out);
}

static ek_status get_bool(const reader *r, const char *key, int *out)
{
    return ek_json_bool(r->json, r->file, key, EK_JSON_OPTIONAL, out);
}

static ek_status read_family(reader *r)
{
    const char *type = NULL;

    EK_REQUIRE(!json_is_object(r->json) || json_object_get(r->json, "model_type") != NULL,
               EK_EFORMAT, "%s: not a Hugging Face config.json, as key `model_type` is missing",
               r->file);
    EK_TRY(ek_json_text(r->json, r->file, "model_type", EK_JSON_REQUIRED, &type));
    for (size_t i = 0; i < sizeof(hf_families) / sizeof(hf_families[0]); i++)
        if (strcmp(type, hf_families[i].model_type) == 0)
            r->family = &hf_families[i];
    EK_REQUIRE(r->family != NULL, EK_EFORMAT,
               "%s: key `model_type`: \"%.40s\" is not known; mixtral, olmoe, qwen2_moe and "
               "qwen3_moe are",
               r->file, type);
    r->m->arch = r->family->arch;
    r->m->qk_norm = r->family->qk_norm;
    return EK_OK;
}

/* Keys of which only the value without effect is implemented. */
static ek_status refuse_number(const reader *r, const char *key, double neutral)
{
    double x = neutral;

    EK_TRY(get_real(r, key, &x));
    EK_REQUIRE(x == neutral, EK_EUNSUPPORTED, "%s: key `%s`: %g is not implemented; only %g is",
               r->file, key, x, neutral);
    return EK_OK;
}

static ek_status refuse_true(const reader *r, const char *key)
{
    int x = 0;

    EK_TRY(get_bool(r, key, &x));
    EK_REQUIRE(!x, EK_EUNSUPPORTED, "%s: key `%s`: true is not implemented", r->file, key);
    return EK_OK;
}

static ek_status refuse_value(const reader *r, const char *key)
{
    const json_t *x = json_object_get(r->json, key);

    EK_REQUIRE(x == NULL || json_is_null(x), EK_EUNSUPPORTED,
               "%s: key `%s`: %s is not implemented; only null is", r->file, key,
               ek_json_type_name(x));
    return EK_OK;
}

static ek_status refuse_layer_types(const reader *r)
{
    const json_t *types = json_object_get(r->json, "layer_types");

    EK_REQUIRE(types == NULL || json_is_null(types) || json_is_array(types), EK_EFORMAT,
               "%s: key `layer_types`: expected an array, found %s", r->file,
               ek_json_type_name(types));
    for (size_t i = 0; i < json_array_size(types); i++) {
        const char *s = json_string_value(json_array_get(types, i));

        EK_REQUIRE(s != NULL, EK_EFORMAT, "%s: key `layer_types`: entry %zu is not a string",
                   r->file, i);
        EK_REQUIRE(strcmp(s, "full_attention") == 0, EK_EUNSUPPORTED,
                   "%s: key `layer_types`: \"%.40s\" of layer %zu is not implemented; only "
                   "full_attention is",
                   r->file, s, i);
    }
    return EK_OK;
}

static ek_status refuse_unsupported(const reader *r)
{
    const char *act = "silu";

    EK_TRY(refuse_value(r, "clip_qkv"));
    EK_TRY(refuse_value(r, "quantization_config"));
    EK_TRY(refuse_true(r, "attention_bias"));
    EK_TRY(refuse_true(r, "mlp_bias"));
    EK_TRY(refuse_number(r, "attention_dropout", 0));
    EK_TRY(refuse_number(r, "partial_rotary_factor", 1));
    EK_TRY(refuse_layer_types(r));
    EK_TRY(ek_json_text(r->json, r->file, "hidden_act", EK_JSON_OPTIONAL, &act));
    EK_REQUIRE(strcmp(act, "silu") == 0 || strcmp(act, "swish") == 0, EK_EUNSUPPORTED,
               "%s: key `hidden_act`: \"%.40s\" is not implemented; only silu is", r->file, act);
    return EK_OK;
}

static ek_status read_sizes(const reader *r)
{
    ek_model_spec *m = r->m;
    const hf_family *f = r->family;

    EK_TRY(get_size(r, "vocab_size", &m->vocab));
    EK_TRY(get_size(r, "hidden_size", &m->hidden));
    EK_TRY(get_size(r, "num_hidden_layers", &m->layers));
    EK_REQUIRE(m->layers <= EK_LAYERS_MAX, EK_EFORMAT,
               "%s: key `num_hidden_layers`: %lld layers are more than %d", r->file,
               (long long)m->layers, EK_LAYERS_MAX);
    EK_TRY(get_size(r, f->ff_key, &m->ff));
    m->max_positions = f->max_positions;
    EK_TRY(get_int(r, "max_position_embeddings", 1, &m->max_positions));
    m->rms_eps = f->rms_eps;
    EK_TRY(get_real(r, "rms_norm_eps", &m->rms_eps));
    EK_TRY(get_real(r, "initializer_range", &m->init_range));
    EK_TRY(get_bool(r, "tie_word_embeddings", &m->tie_embeddings));
    return EK_OK;
}

static ek_status read_heads(const reader *r)
{
    ek_model_spec *m = r->m;
    const hf_family *f = r->family;
    const json_t *kv = json_object_get(r->json, "num_key_value_heads");

    EK_TRY(get_size(r, "num_attention_heads", &m->heads));
    m->kv_heads = kv != NULL || f->kv_heads == 0 ? m->heads : f->kv_heads; /* null: as heads */
    EK_TRY(get_int(r, "num_key_value_heads", 1, &m->kv_heads));
    m->head_dim = 0;
    EK_TRY(get_int(r, "head_dim", 1, &m->head_dim));
    if (m->head_dim == 0) {
        EK_REQUIRE(
            m->hidden % m->heads == 0, EK_EFORMAT,
            "%s: key `num_attention_heads`: %lld does not divide hidden_size %lld, and there "
            "is no head_dim",
            r->file, (long long)m->heads, (long long)m->hidden);
        m->head_dim = m->hidden / m->heads;
    }
    EK_REQUIRE(f->takes_head_dim || m->heads * m->head_dim == m->hidden, EK_EFORMAT,
               "%s: key `head_dim`: %lld times %lld heads is not hidden_size %lld, which %s models "
               "need",
               r->file, (long long)m->head_dim, (long long)m->heads, (long long)m->hidden,
               f->model_type);
    m->qkv_bias = f->takes_bias;
    if (f->takes_bias)
        EK_TRY(get_bool(r, "qkv_bias", &m->qkv_bias));
    return EK_OK;
}

/* Mixtral uses the window in all layers whenever it is set; Qwen only with use_sliding_window. */
static ek_status read_window(const reader *r)
{
    int64_t window = 0;
    int slides = 0;

    EK_TRY(get_int(r, "sliding_window", 0, &window));
    EK_TRY(get_bool(r, "use_sliding_window", &slides));
    if (r->family->arch == EK_ARCH_MIXTRAL) {
        r->m->sliding_window = window;
        return EK_OK;
    }
    EK_REQUIRE(!slides || window == 0 || window >= r->m->max_positions, EK_EUNSUPPORTED,
               "%s: key `sliding_window`: a window of %lld, shorter than max_position_embeddings "
               "%lld, is not implemented",
               r->file, (long long)window, (long long)r->m->max_positions);
    return EK_OK;
}

/* The pretraining length, in the object or (in some configs) beside it. */
static ek_status read_original_positions(const reader *r, const json_t *rope, const char *key)
{
    static const char *const name = "original_max_position_embeddings";
    int64_t beside = 0, *out = &r->m->rope.original_positions;

    EK_TRY(get_int(r, name, 1, &beside));
    *out = beside > 0 ? beside : r->m->max_positions;
    EK_TRY(ek_json_int(rope, r->file, name, EK_JSON_OPTIONAL, 1, INT32_MAX, out));
    EK_REQUIRE(beside == 0 || *out == beside, EK_EUNSUPPORTED,
               "%s: key `%s`: original_max_position_embeddings is %lld in it and %lld beside it",
               r->file, key, (long long)*out, (long long)beside);
    return EK_OK;
}

/* A required positive number; `need` allows its absence. */
static ek_status get_rope_real(const reader *r, const json_t *rope, const char *key,
                               const char *name, ek_json_need need, double *out)
{
    double x = need == EK_JSON_REQUIRED ? 0 : 1;

    EK_TRY(ek_json_real(rope, r->file, name, EK_JSON_OPTIONAL, &x));
    EK_REQUIRE(need == EK_JSON_OPTIONAL || json_is_number(json_object_get(rope, name)), EK_EFORMAT,
               "%s: key `%s`: %s is missing, which its rope_type needs", r->file, key, name);
    EK_REQUIRE(x > 0, EK_EFORMAT, "%s: key `%s`: %s is %g; it must be positive", r->file, key, name,
               x);
    if (json_is_number(json_object_get(rope, name)))
        *out = x;
    return EK_OK;
}

static ek_status read_llama3(const reader *r, const json_t *rope, const char *key)
{
    ek_rope_scaling *s = &r->m->rope;

    EK_TRY(read_original_positions(r, rope, key));
    EK_TRY(get_rope_real(r, rope, key, "low_freq_factor", EK_JSON_REQUIRED, &s->low_freq));
    return get_rope_real(r, rope, key, "high_freq_factor", EK_JSON_REQUIRED, &s->high_freq);
}

static ek_status read_yarn(const reader *r, const json_t *rope, const char *key)
{
    ek_rope_scaling *s = &r->m->rope;

    s->beta_fast = 32;
    s->beta_slow = 1;
    s->truncate = 1;
    EK_TRY(get_rope_real(r, rope, key, "beta_fast", EK_JSON_OPTIONAL, &s->beta_fast));
    EK_TRY(get_rope_real(r, rope, key, "beta_slow", EK_JSON_OPTIONAL, &s->beta_slow));
    EK_TRY(get_rope_real(r, rope, key, "attention_factor", EK_JSON_OPTIONAL, &s->attention_factor));
    EK_TRY(ek_json_real(rope, r->file, "mscale", EK_JSON_OPTIONAL, &s->mscale));
    EK_TRY(ek_json_real(rope, r->file, "mscale_all_dim", EK_JSON_OPTIONAL, &s->mscale_all_dim));
    return ek_json_bool(rope, r->file, "truncate", EK_JSON_OPTIONAL, &s->truncate);
}

/* The parameters of a type. yarn's factor defaults to the ratio of the lengths. */
static ek_status read_rope_type(const reader *r, const json_t *rope, const char *key,
                                const char *type)
{
    ek_rope_scaling *s = &r->m->rope;
    int t = EK_ROPE_DEFAULT;

    while (t < HF_ROPE_TYPES && strcmp(type, hf_rope_names[t]) != 0)
        t++;
    EK_REQUIRE(t < HF_ROPE_TYPES, EK_EUNSUPPORTED,
               "%s: key `%s`: rope_type \"%.40s\" is not implemented; default, linear, dynamic, "
               "llama3 and yarn are",
               r->file, key, type);
    s->type = (ek_rope_type)t;
    if (s->type == EK_ROPE_DEFAULT)
        return EK_OK;
    if (s->type == EK_ROPE_YARN) {
        EK_TRY(read_original_positions(r, rope, key));
        s->factor = (double)r->m->max_positions / (double)s->original_positions;
        EK_TRY(get_rope_real(r, rope, key, "factor", EK_JSON_OPTIONAL, &s->factor));
        return read_yarn(r, rope, key);
    }
    EK_TRY(get_rope_real(r, rope, key, "factor", EK_JSON_REQUIRED, &s->factor));
    return s->type == EK_ROPE_LLAMA3 ? read_llama3(r, rope, key) : EK_OK;
}

/* One of rope_scaling (transformers 4) and rope_parameters (5), an object. */
static ek_status read_rope_object(const reader *r, const char *key, ek_json_need type_need)
{
    const json_t *rope = json_object_get(r->json, key);
    const char *type = NULL, *name;
    const json_t *x;
    double part = 1;

    EK_REQUIRE(json_is_object(rope), EK_EFORMAT, "%s: key `%s`: expected an object, found %s",
               r->file, key, ek_json_type_name(rope));
    json_object_foreach((json_t *)rope, name, x)
        EK_REQUIRE(!json_is_object(x), EK_EUNSUPPORTED,
                   "%s: key `%s`: parameters of their own for \"%.40s\" are not implemented",
                   r->file, key, name);
    EK_TRY(ek_json_text(rope, r->file, "type", EK_JSON_OPTIONAL, &type));
    EK_TRY(ek_json_text(rope, r->file, "rope_type", EK_JSON_OPTIONAL, &type));
    EK_REQUIRE(type != NULL || type_need == EK_JSON_OPTIONAL, EK_EUNSUPPORTED,
               "%s: key `%s`: an object without rope_type is not implemented; add one of "
               "default, linear, dynamic, llama3 and yarn",
               r->file, key);
    if (type != NULL)
        EK_TRY(read_rope_type(r, rope, key, type));
    EK_TRY(ek_json_real(rope, r->file, "partial_rotary_factor", EK_JSON_OPTIONAL, &part));
    EK_REQUIRE(part == 1, EK_EUNSUPPORTED,
               "%s: key `%s`: partial_rotary_factor %g is not implemented; only 1 is", r->file, key,
               part);
    return ek_json_real(rope, r->file, "rope_theta", EK_JSON_OPTIONAL, &r->m->rope_theta);
}

/* As in transformers 5: a non-empty rope_scaling replaces rope_parameters. */
static ek_status read_rope(const reader *r)
{
    const json_t *scaling = json_object_get(r->json, "rope_scaling");
    const json_t *parameters = json_object_get(r->json, "rope_parameters");

    r->m->rope_theta = r->family->rope_theta;
    EK_TRY(get_real(r, "rope_theta", &r->m->rope_theta));
    if (scaling != NULL && !json_is_null(scaling))
        return read_rope_object(r, "rope_scaling", EK_JSON_REQUIRED);
    if (parameters != NULL && !json_is_null(parameters))
        return read_rope_object(r, "rope_parameters", EK_JSON_OPTIONAL);
    return EK_OK;
}

static ek_status read_experts(const reader *r)
{
    ek_model_spec *m = r->m;
    const hf_family *f = r->family;
    int64_t local = 0, plain = 0;

    EK_TRY(get_int(r, "num_local_experts", 1, &local)); /* transformers accepts either key */
    EK_TRY(get_int(r, "num_experts", 1, &plain));
    EK_REQUIRE(local != 0 || plain != 0, EK_EFORMAT, "%s: key `%s` is missing", r->file,
               f->experts_key);
    EK_REQUIRE(local == 0 || plain == 0 || local == plain, EK_EFORMAT,
               "%s: key `num_local_experts`: %lld contradicts num_experts %lld", r->file,
               (long long)local, (long long)plain);
    m->experts = local != 0 ? local : plain;
    m->top_k = f->top_k;
    EK_TRY(get_int(r, "num_experts_per_tok", 1, &m->top_k));
    m->gate.normalise = f->normalises;
    if (!f->normalises)
        EK_TRY(get_bool(r, "norm_topk_prob", &m->gate.normalise));
    if (f->arch == EK_ARCH_MIXTRAL)
        EK_TRY(get_real(r, "router_jitter_noise", &m->gate.jitter));
    m->config_aux_coef = f->aux_coef;
    EK_TRY(get_real(r, "router_aux_loss_coef", &m->config_aux_coef));
    if (f->takes_shared) {
        m->shared_ff = HF_SHARED_FF;
        m->shared_gated = 1;
        EK_TRY(get_int(r, "shared_expert_intermediate_size", 1, &m->shared_ff));
    }
    return EK_OK;
}

/* A layer has experts when decoder_sparse_step divides its number, counted from 1, and
 * mlp_only_layers, counted from 0, does not name it. */
static ek_status read_dense_layers(const reader *r)
{
    ek_model_spec *m = r->m;
    const json_t *list = json_object_get(r->json, "mlp_only_layers");
    int64_t step = 1;

    if (!r->family->takes_dense)
        return EK_OK;
    EK_TRY(get_size(r, "intermediate_size", &m->dense_ff));
    EK_TRY(get_int(r, "decoder_sparse_step", 1, &step));
    for (int64_t l = 0; l < m->layers; l++)
        m->dense[l] = (l + 1) % step != 0;
    EK_REQUIRE(list == NULL || json_is_null(list) || json_is_array(list), EK_EFORMAT,
               "%s: key `mlp_only_layers`: expected an array, found %s", r->file,
               ek_json_type_name(list));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *x = json_array_get(list, i);
        int64_t l = json_is_integer(x) ? json_integer_value(x) : -1;

        EK_REQUIRE(l >= 0 && l < m->layers, EK_EFORMAT,
                   "%s: key `mlp_only_layers`: entry %zu is not a layer from 0 to %lld", r->file, i,
                   (long long)m->layers - 1);
        m->dense[l] = 1;
    }
    return EK_OK;
}

/* Family defaults name tokens of their own vocabulary; an id that this model lacks can never be
 * produced and counts as none.  Of a list of end tokens the first counts. */
static ek_status read_token(const reader *r, const char *key, int64_t *id)
{
    const json_t *x = json_object_get(r->json, key);

    if (json_is_null(x) || (json_is_array(x) && json_array_size(x) == 0))
        *id = -1;
    if (json_is_array(x))
        x = json_array_get(x, 0);
    EK_REQUIRE(x == NULL || json_is_null(x) || json_is_integer(x), EK_EFORMAT,
               "%s: key `%s`: expected an integer, found %s", r->file, key, ek_json_type_name(x));
    if (json_is_integer(x))
        *id = json_integer_value(x);
    if (*id < 0 || *id >= r->m->vocab)
        *id = -1;
    return EK_OK;
}

static ek_status read_rest(const reader *r)
{
    ek_model_spec *m = r->m;
    const char *dtype = "float32";

    m->bos_id = r->family->bos_id;
    m->eos_id = r->family->eos_id;
    EK_TRY(read_token(r, "bos_token_id", &m->bos_id));
    EK_TRY(read_token(r, "eos_token_id", &m->eos_id));
    EK_TRY(ek_json_text(r->json, r->file, "torch_dtype", EK_JSON_OPTIONAL, &dtype));
    EK_TRY(ek_json_text(r->json, r->file, "dtype", EK_JSON_OPTIONAL, &dtype));
    /* float16 and others are exported as float32, which holds their values */
    snprintf(m->torch_dtype, sizeof(m->torch_dtype), "%s",
             strcmp(dtype, "bfloat16") == 0 ? "bfloat16" : "float32");
    return EK_OK;
}

static ek_status check_own_keys(const reader *r, const json_t *own)
{
    static const char *const known[] = {"gate",      "groups",    "group_top", "scale",
                                        "normalise", "bias_rate", "shared_ff", "shared_gated",
                                        "router",    "router_dim"};
    const char *name;
    const json_t *x;

    EK_REQUIRE(r->family->arch == EK_ARCH_MIXTRAL, EK_EFORMAT,
               "%s: key `evenkeel`: only configs of model_type mixtral may have it", r->file);
    EK_REQUIRE(json_is_object(own), EK_EFORMAT, "%s: key `evenkeel`: expected an object, found %s",
               r->file, ek_json_type_name(own));
    json_object_foreach((json_t *)own, name, x)
    {
        size_t i = 0;

        while (i < sizeof(known) / sizeof(known[0]) && strcmp(name, known[i]) != 0)
            i++;
        EK_REQUIRE(i < sizeof(known) / sizeof(known[0]), EK_EFORMAT,
                   "%s: key `evenkeel.%.40s` is not known", r->file, name);
    }
    return EK_OK;
}

/* The router: linear, or cosine with a width. */
static ek_status read_router(const reader *r, const json_t *own)
{
    const char *router = "linear";

    EK_TRY(ek_json_text(own, r->file, "router", EK_JSON_OPTIONAL, &router));
    if (strcmp(router, "cosine") == 0) {
        r->m->router_dim = HF_ROUTER_DIM;
        return ek_json_int(own, r->file, "router_dim", EK_JSON_OPTIONAL, 1, INT32_MAX,
                           &r->m->router_dim);
    }
    EK_REQUIRE(strcmp(router, "linear") == 0, EK_EFORMAT,
               "%s: key `evenkeel.router`: \"%.40s\" is not known; linear and cosine are", r->file,
               router);
    EK_REQUIRE(json_object_get(own, "router_dim") == NULL, EK_EFORMAT,
               "%s: key `evenkeel.router_dim`: it is of router cosine alone", r->file);
    return EK_OK;
}

static ek_status read_own(const reader *r)
{
    const json_t *own = json_object_get(r->json, "evenkeel");
    ek_gate_spec *g = &r->m->gate;
    const char *gate = hf_gate_names[g->kind];
    int64_t groups = 0, top = 0;
    int kind = 0;

    if (own == NULL || json_is_null(own))
        return EK_OK;
    EK_TRY(check_own_keys(r, own));
    EK_TRY(ek_json_text(own, r->file, "gate", EK_JSON_OPTIONAL, &gate));
    while (kind < 3 && strcmp(gate, hf_gate_names[kind]) != 0)
        kind++;
    EK_REQUIRE(kind < 3, EK_EFORMAT,
               "%s: key `evenkeel.gate`: \"%.40s\" is not known; softmax, sigmoid-bias and "
               "expert-choice are",
               r->file, gate);
    g->kind = (ek_gate_kind)kind;
    EK_TRY(read_router(r, own));
    EK_TRY(ek_json_int(own, r->file, "groups", EK_JSON_OPTIONAL, 0, INT16_MAX, &groups));
    EK_TRY(ek_json_int(own, r->file, "group_top", EK_JSON_OPTIONAL, 0, INT16_MAX, &top));
    g->groups = (int)groups;
    g->group_top = (int)top;
    EK_TRY(ek_json_real(own, r->file, "scale", EK_JSON_OPTIONAL, &g->scale));
    EK_TRY(ek_json_bool(own, r->file, "normalise", EK_JSON_OPTIONAL, &g->normalise));
    EK_TRY(ek_json_real(own, r->file, "bias_rate", EK_JSON_OPTIONAL, &g->bias_rate));
    EK_TRY(
        ek_json_int(own, r->file, "shared_ff", EK_JSON_OPTIONAL, 0, INT32_MAX, &r->m->shared_ff));
    return ek_json_bool(own, r->file, "shared_gated", EK_JSON_OPTIONAL, &r->m->shared_gated);
}

static ek_status read_all(const json_t *json, const char *file, ek_model_spec *out)
{
    ek_model_spec m;
    reader r = {json, file, NULL, &m};

    EK_REQUIRE(json_is_object(json), EK_EFORMAT, "%s: expected an object, found %s", file,
               ek_json_type_name(json));
    ek_model_default(&m);
    EK_TRY(read_family(&r));
    EK_TRY(refuse_unsupported(&r));
    EK_TRY(read_sizes(&r));
    EK_TRY(read_heads(&r));
    EK_TRY(read_window(&r));
    EK_TRY(read_rope(&r));
    EK_TRY(read_experts(&r));
    EK_TRY(read_dense_layers(&r));
    EK_TRY(read_rest(&r));
    EK_TRY(read_own(&r));
    if (ek_model_check(&m) < 0)
        return EK_FAIL(EK_EFORMAT, "%s: %s", file, ek_err_message());
    *out = m;
    return EK_OK;
}

ek_status ek_hf_config_parse(const char *text, size_t bytes, const char *file, ek_model_spec *out)
{
    json_t *json = NULL;
    ek_status st;

    EK_TRY_OUT(ek_json_parse(text, bytes, file, &json));
    EK_TRY_OUT(read_all(json, file, out));
out:
    json_decref(json);
    return st;
}

ek_status ek_hf_config_read(const char *path, ek_model_spec *out)
{
    json_t *json = NULL;
    ek_status st;

    EK_TRY_OUT(ek_json_read(path, &json));
    EK_TRY_OUT(read_all(json, path, out));
out:
    json_decref(json);
    return st;
}
