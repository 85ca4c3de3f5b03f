/* config.json of the four families: files of transformers are read, defaults are those of the
 * families, written files read back, and everything else is refused by file and key. */
#include "base/json.h"
#include "ek_test.h"
#include "model/hf/config.h"

#define MODELS EK_TEST_DATA "/golden/models/"
#define COMMON                                                                                     \
    "\"vocab_size\":96,\"hidden_size\":24,\"num_hidden_layers\":4,\"num_attention_heads\":4,"

/* The smallest config of each family. */
static const char mixtral[] =
    "{\"model_type\":\"mixtral\"," COMMON "\"num_key_value_heads\":2,\"num_local_experts\":5,"
    "\"intermediate_size\":10}";
static const char olmoe[] =
    "{\"model_type\":\"olmoe\"," COMMON "\"num_experts\":9,\"intermediate_size\":10}";
static const char qwen2[] = "{\"model_type\":\"qwen2_moe\"," COMMON
                            "\"num_key_value_heads\":2,\"num_experts\":5,\"intermediate_size\":20,"
                            "\"moe_intermediate_size\":10}";
static const char qwen3[] =
    "{\"model_type\":\"qwen3_moe\"," COMMON "\"num_experts\":9,\"intermediate_size\":20,"
    "\"moe_intermediate_size\":10}";

/* Reads `base` with the keys of `patch` set; a key set to "absent" is removed. */
static ek_status read_patched(const char *base, const char *patch, ek_model_spec *m)
{
    json_t *o = json_loads(base, 0, NULL), *p = json_loads(patch, 0, NULL);
    const char *key;
    char *text;
    json_t *x;
    ek_status st;

    if (o == NULL || p == NULL)
        EK_T_FAIL("test input is not JSON: %s", patch);
    json_object_foreach(p, key, x)
    {
        if (json_is_string(x) && strcmp(json_string_value(x), "absent") == 0)
            json_object_del(o, key);
        else
            json_object_set(o, key, x);
    }
    text = json_dumps(o, 0);
    st = ek_hf_config_parse(text, strlen(text), "F", m);
    free(text);
    json_decref(o);
    json_decref(p);
    return st;
}

static void refused(int line, const char *base, const char *patch, ek_status want,
                    const char *words)
{
    ek_model_spec m, before;
    ek_status st;

    memset(&m, 0x5a, sizeof(m));
    before = m;
    st = read_patched(base, patch, &m);
    if (st != want)
        EK_T_FAIL("line %d: status %d (%s), expected %d", line, st,
                  st == EK_OK ? "" : ek_err_message(), want);
    else if (strstr(ek_err_message(), words) == NULL || strncmp(ek_err_message(), "F: ", 3) != 0)
        EK_T_FAIL("line %d: \"%s\" lacks \"%s\"", line, ek_err_message(), words);
    CHECK(memcmp(&m, &before, sizeof(m)) == 0); /* the output is unchanged on failure */
}

#define BAD(base, patch, words)         refused(__LINE__, base, patch, EK_EFORMAT, words)
#define UNSUPPORTED(base, patch, words) refused(__LINE__, base, patch, EK_EUNSUPPORTED, words)

static void mixtral_defaults(void)
{
    ek_model_spec m;

    CHECK(read_patched(mixtral, "{}", &m) == EK_OK);
    CHECK_INT(m.arch, EK_ARCH_MIXTRAL);
    CHECK_INT(m.head_dim, 6);
    CHECK_INT(m.kv_heads, 2);
    CHECK_INT(m.top_k, 2);
    CHECK_INT(m.ff, 10);
    CHECK_INT(m.shared_ff, 0);
    CHECK_INT(m.sliding_window, 0);
    CHECK_INT(m.max_positions, 131072);
    CHECK_INT(m.bos_id, 1);
    CHECK_INT(m.eos_id, 2);
    CHECK(m.rope_theta == 1e6 && m.rms_eps == 1e-5 && m.init_range == 0.02);
    CHECK(m.gate.normalise && m.gate.jitter == 0 && m.config_aux_coef == 0.001);
    CHECK(!m.qkv_bias && !m.tie_embeddings && m.qk_norm == EK_QK_NORM_NONE);
    CHECK(strcmp(m.torch_dtype, "float32") == 0);
    BAD(mixtral, "{\"num_key_value_heads\":\"absent\"}", "num_key_value_heads 8"); /* the default */
    CHECK(read_patched(mixtral, "{\"num_key_value_heads\":null}", &m) == EK_OK);
    CHECK_INT(m.kv_heads, 4);
}

static void olmoe_defaults(void)
{
    ek_model_spec m;

    CHECK(read_patched(olmoe, "{}", &m) == EK_OK);
    CHECK_INT(m.kv_heads, 4);
    CHECK_INT(m.top_k, 8);
    CHECK_INT(m.max_positions, 4096);
    CHECK_INT(m.eos_id, -1); /* 50279 is not in this vocabulary */
    CHECK(m.rope_theta == 1e4 && m.rms_eps == 1e-5 && m.config_aux_coef == 0.01);
    CHECK(!m.gate.normalise && m.qk_norm == EK_QK_NORM_FULL && !m.qkv_bias);
}

static void qwen_defaults(void)
{
    ek_model_spec m;

    CHECK(read_patched(qwen2, "{}", &m) == EK_OK);
    CHECK_INT(m.top_k, 4);
    CHECK_INT(m.ff, 10);
    CHECK_INT(m.dense_ff, 20);
    CHECK_INT(m.shared_ff, 5632);
    CHECK_INT(m.max_positions, 32768);
    CHECK(m.shared_gated && m.qkv_bias && !m.gate.normalise && m.qk_norm == EK_QK_NORM_NONE);
    CHECK(m.rope_theta == 1e4 && m.rms_eps == 1e-6 && m.config_aux_coef == 0.001);
    CHECK(read_patched(qwen3, "{}", &m) == EK_OK);
    CHECK_INT(m.kv_heads, 4);
    CHECK_INT(m.top_k, 8);
    CHECK_INT(m.shared_ff, 0);
    CHECK(!m.qkv_bias && m.qk_norm == EK_QK_NORM_HEAD && m.rms_eps == 1e-6);
}

static void every_key_is_read(void)
{
    ek_model_spec m;

    CHECK(read_patched(mixtral,
                       "{\"head_dim\":8,\"num_experts_per_tok\":3,\"rms_norm_eps\":1e-6,"
                       "\"initializer_range\":0.1,\"max_position_embeddings\":77,\"rope_theta\":"
                       "5000,\"tie_word_embeddings\":true,\"router_jitter_noise\":0.25,"
                       "\"sliding_window\":16,\"bos_token_id\":null,\"eos_token_id\":[7,8],"
                       "\"torch_dtype\":\"bfloat16\",\"router_aux_loss_coef\":0.5}",
                       &m) == EK_OK);
    CHECK_INT(m.head_dim, 8);
    CHECK_INT(m.top_k, 3);
    CHECK_INT(m.max_positions, 77);
    CHECK_INT(m.sliding_window, 16);
    CHECK_INT(m.bos_id, -1);
    CHECK_INT(m.eos_id, 7);
    CHECK(m.rms_eps == 1e-6 && m.init_range == 0.1 && m.rope_theta == 5000);
    CHECK(m.tie_embeddings && m.gate.jitter == 0.25 && m.config_aux_coef == 0.5);
    CHECK(strcmp(m.torch_dtype, "bfloat16") == 0);
    CHECK(read_patched(qwen2,
                       "{\"qkv_bias\":false,\"norm_topk_prob\":true,\"shared_expert_intermediate_"
                       "size\":12,\"dtype\":\"bfloat16\",\"sliding_window\":4096,"
                       "\"use_sliding_window\":false,\"max_window_layers\":21}",
                       &m) == EK_OK);
    CHECK(!m.qkv_bias && m.gate.normalise);
    CHECK_INT(m.shared_ff, 12);
    CHECK_INT(m.sliding_window, 0);
    CHECK(strcmp(m.torch_dtype, "bfloat16") == 0);
}

static void rope_is_read_from_either_place(void)
{
    ek_model_spec m;

    CHECK(read_patched(qwen3, "{\"rope_parameters\":{\"rope_theta\":77,\"rope_type\":\"default\"}}",
                       &m) == EK_OK);
    CHECK(m.rope_theta == 77);
    CHECK(read_patched(qwen3, "{\"rope_theta\":88,\"rope_scaling\":null}", &m) == EK_OK);
    CHECK(m.rope_theta == 88);
    CHECK(read_patched(qwen3, "{\"rope_theta\":88,\"rope_scaling\":{\"type\":\"default\"}}", &m) ==
          EK_OK);
    CHECK(m.rope_theta == 88);
}

static void rope_scaling_is_read_from_either_place(void)
{
    ek_model_spec m;

    CHECK(read_patched(mixtral, "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":4}}", &m) ==
          EK_OK);
    CHECK(m.rope.type == EK_ROPE_LINEAR && m.rope.factor == 4 && m.rope_theta == 1e6);
    CHECK(read_patched(olmoe,
                       "{\"rope_parameters\":{\"rope_type\":\"dynamic\",\"factor\":2.5,"
                       "\"rope_theta\":77}}",
                       &m) == EK_OK);
    CHECK(m.rope.type == EK_ROPE_DYNAMIC && m.rope.factor == 2.5 && m.rope_theta == 77);
    CHECK_INT(ek_model_longest(&m), 10240);
    CHECK(read_patched(qwen3,
                       "{\"rope_scaling\":{\"type\":\"linear\",\"rope_type\":\"llama3\","
                       "\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":4,"
                       "\"original_max_position_embeddings\":8192},"
                       "\"rope_parameters\":{\"rope_type\":\"default\"}}",
                       &m) == EK_OK);
    CHECK(m.rope.type == EK_ROPE_LLAMA3 && m.rope.low_freq == 1 && m.rope.high_freq == 4);
    CHECK_INT(m.rope.original_positions, 8192);
}

static void yarn_has_defaults(void)
{
    ek_model_spec m;

    CHECK(read_patched(mixtral,
                       "{\"max_position_embeddings\":64,\"rope_scaling\":{\"type\":\"yarn\","
                       "\"original_max_position_embeddings\":16,\"beta_fast\":null}}",
                       &m) == EK_OK);
    CHECK(m.rope.factor == 4 && m.rope.beta_fast == 32 && m.rope.beta_slow == 1);
    CHECK(m.rope.truncate && m.rope.attention_factor == 0 && m.rope.mscale == 0);
    CHECK(read_patched(mixtral,
                       "{\"max_position_embeddings\":64,\"original_max_position_embeddings\":32,"
                       "\"rope_scaling\":{\"type\":\"yarn\",\"truncate\":false,"
                       "\"attention_factor\":1.5,\"mscale\":0.7,\"mscale_all_dim\":0.8}}",
                       &m) == EK_OK);
    CHECK(m.rope.factor == 2 && !m.rope.truncate && m.rope.attention_factor == 1.5);
    CHECK(m.rope.mscale == 0.7 && m.rope.mscale_all_dim == 0.8);
}

#define ROPE(fields) "{\"rope_scaling\":{" fields "}}"
#define LLAMA3       "\"type\":\"llama3\",\"factor\":8,"

static void rope_scaling_is_refused_by_key(void)
{
    UNSUPPORTED(mixtral, ROPE("\"factor\":4"), "`rope_scaling`: an object without rope_type");
    UNSUPPORTED(mixtral, ROPE("\"type\":\"longrope\",\"factor\":4"), "rope_type \"longrope\"");
    UNSUPPORTED(qwen3, "{\"rope_parameters\":{\"rope_type\":\"proportional\"}}",
                "`rope_parameters`: rope_type \"proportional\"");
    UNSUPPORTED(mixtral,
                "{\"original_max_position_embeddings\":8,\"rope_scaling\":{\"type\":\"yarn\","
                "\"factor\":4,\"original_max_position_embeddings\":16}}",
                "original_max_position_embeddings is 16 in it and 8 beside it");
    BAD(mixtral, ROPE("\"type\":\"linear\""), "factor is missing");
    BAD(mixtral, ROPE("\"type\":\"dynamic\",\"factor\":null"), "factor is missing");
    BAD(mixtral, ROPE("\"type\":\"linear\",\"factor\":\"4\""), "`factor`: expected a number");
    BAD(mixtral, ROPE("\"type\":\"linear\",\"factor\":0.5"), "factor is 0.5");
    BAD(mixtral, ROPE("\"type\":\"linear\",\"factor\":-1"), "factor is -1");
    BAD(mixtral, ROPE(LLAMA3 "\"low_freq_factor\":1"), "high_freq_factor is missing");
    BAD(mixtral, ROPE(LLAMA3 "\"low_freq_factor\":4,\"high_freq_factor\":4"), "low_freq_factor 4");
    BAD(mixtral, ROPE("\"type\":\"yarn\",\"factor\":4,\"beta_fast\":0"), "beta_fast is 0");
    BAD(mixtral, ROPE("\"type\":\"yarn\",\"factor\":4,\"beta_fast\":0.5"), "beta_fast 0.5");
    BAD(mixtral, ROPE("\"type\":\"yarn\",\"factor\":4,\"attention_factor\":0"),
        "attention_factor is 0");
    BAD(mixtral, ROPE("\"type\":\"yarn\",\"factor\":4,\"mscale\":-1"), "mscale is -1");
    BAD(mixtral, ROPE("\"type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":0"),
        "original_max_position_embeddings");
}

static void dense_layers_follow_both_keys(void)
{
    static const char want[4] = {1, 1, 1, 0};
    ek_model_spec m;

    CHECK(read_patched(qwen2, "{\"decoder_sparse_step\":2,\"mlp_only_layers\":[1]}", &m) == EK_OK);
    CHECK(memcmp(m.dense, want, 4) == 0);
    CHECK(read_patched(qwen3, "{\"mlp_only_layers\":[0,1,2]}", &m) == EK_OK);
    CHECK(memcmp(m.dense, want, 4) == 0);
}

static void own_gates_are_read(void)
{
    ek_model_spec m;

    CHECK(read_patched(mixtral,
                       "{\"num_local_experts\":8,\"evenkeel\":{\"gate\":\"sigmoid-bias\",\"groups\""
                       ":4,\"group_top\":2,\"scale\":2.5,\"normalise\":false,\"bias_rate\":0.01,"
                       "\"shared_ff\":14,\"shared_gated\":true}}",
                       &m) == EK_OK);
    CHECK_INT(m.gate.kind, EK_GATE_SIGMOID_BIAS);
    CHECK_INT(m.gate.groups, 4);
    CHECK_INT(m.gate.group_top, 2);
    CHECK_INT(m.shared_ff, 14);
    CHECK(m.gate.scale == 2.5 && !m.gate.normalise && m.gate.bias_rate == 0.01 && m.shared_gated);
    CHECK(read_patched(mixtral, "{\"evenkeel\":{\"gate\":\"expert-choice\"}}", &m) == EK_OK);
    CHECK_INT(m.gate.kind, EK_GATE_EXPERT_CHOICE);
    CHECK_INT(m.router_dim, 0);
    CHECK(read_patched(mixtral, "{\"evenkeel\":{\"router\":\"cosine\"}}", &m) == EK_OK);
    CHECK_INT(m.router_dim, 256);
    CHECK(read_patched(mixtral, "{\"evenkeel\":{\"router\":\"cosine\",\"router_dim\":16}}", &m) ==
          EK_OK);
    CHECK_INT(m.router_dim, 16);
    CHECK(read_patched(mixtral, "{\"evenkeel\":{\"router\":\"linear\"}}", &m) == EK_OK);
    CHECK_INT(m.router_dim, 0);
}

static void other_arithmetic_is_refused_by_key(void)
{
    UNSUPPORTED(qwen3, "{\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\"}}}",
                "\"full_attention\"");
    UNSUPPORTED(qwen3, "{\"rope_parameters\":{\"partial_rotary_factor\":0.5}}", "partial_rotary");
    UNSUPPORTED(qwen3, "{\"partial_rotary_factor\":0.5}", "`partial_rotary_factor`: 0.5");
    UNSUPPORTED(olmoe, "{\"clip_qkv\":8.0}", "`clip_qkv`");
    UNSUPPORTED(olmoe, "{\"attention_bias\":true}", "`attention_bias`");
    UNSUPPORTED(qwen3, "{\"mlp_bias\":true}", "`mlp_bias`");
    UNSUPPORTED(mixtral, "{\"hidden_act\":\"gelu\"}", "`hidden_act`: \"gelu\"");
    UNSUPPORTED(mixtral, "{\"attention_dropout\":0.1}", "`attention_dropout`: 0.1");
    UNSUPPORTED(mixtral, "{\"quantization_config\":{\"bits\":4}}", "`quantization_config`");
    UNSUPPORTED(qwen2, "{\"use_sliding_window\":true,\"sliding_window\":4096}",
                "`sliding_window`: a window of 4096");
    UNSUPPORTED(qwen2, "{\"layer_types\":[\"full_attention\",\"sliding_attention\"]}",
                "`layer_types`: \"sliding_attention\" of layer 1");
}

static void wrong_types_and_sizes_are_refused_by_key(void)
{
    BAD(mixtral, "{\"vocab_size\":\"absent\"}", "key `vocab_size` is missing");
    BAD(mixtral, "{\"hidden_size\":\"24\"}", "key `hidden_size`: expected an integer");
    BAD(mixtral, "{\"hidden_size\":24.0}", "key `hidden_size`");
    BAD(mixtral, "{\"hidden_size\":0}", "key `hidden_size`: 0");
    BAD(mixtral, "{\"num_hidden_layers\":-1}", "key `num_hidden_layers`: -1");
    BAD(mixtral, "{\"num_hidden_layers\":100000}", "`num_hidden_layers`: 100000 layers");
    BAD(mixtral, "{\"vocab_size\":9223372036854775807}", "`vocab_size`: 9223372036854775807");
    BAD(mixtral, "{\"hidden_size\":2147483640}", "hidden_size is 2147483640");
    BAD(mixtral, "{\"num_local_experts\":0}", "`num_local_experts`: 0");
    BAD(mixtral, "{\"num_local_experts\":\"absent\"}", "key `num_local_experts` is missing");
    BAD(mixtral, "{\"intermediate_size\":null}", "key `intermediate_size`: expected an integer");
    BAD(mixtral, "{\"tie_word_embeddings\":1}", "`tie_word_embeddings`: expected true or false");
    BAD(mixtral, "{\"rms_norm_eps\":\"1e-5\"}", "`rms_norm_eps`: expected a number");
    BAD(mixtral, "{\"rms_norm_eps\":-1}", "rms_norm_eps is -1");
    BAD(mixtral, "{\"rope_theta\":0}", "rope_theta is 0");
    BAD(mixtral, "{\"rope_parameters\":[1]}", "`rope_parameters`: expected an object");
    BAD(mixtral, "{\"eos_token_id\":\"x\"}", "`eos_token_id`: expected an integer");
    BAD(mixtral, "{\"router_jitter_noise\":1.5}", "router_jitter_noise is 1.5");
    BAD(mixtral, "{\"model_type\":\"llama\"}", "key `model_type`: \"llama\" is not known");
    BAD(mixtral, "{\"model_type\":\"absent\"}", "key `model_type` is missing");
    BAD(qwen2, "{\"decoder_sparse_step\":0}", "`decoder_sparse_step`: 0");
    BAD(qwen2, "{\"mlp_only_layers\":3}", "`mlp_only_layers`: expected an array");
    BAD(qwen2, "{\"shared_expert_intermediate_size\":0}", "`shared_expert_intermediate_size`: 0");
    BAD(qwen2, "{\"layer_types\":[1]}", "`layer_types`: entry 0");
}

static void contradictions_are_refused_by_key(void)
{
    BAD(mixtral, "{\"num_experts_per_tok\":6}", "num_experts_per_tok 6 exceeds 5 experts");
    BAD(mixtral, "{\"num_attention_heads\":5}", "key `num_attention_heads`: 5 does not divide");
    BAD(mixtral, "{\"num_key_value_heads\":3}", "num_key_value_heads 3");
    BAD(mixtral, "{\"head_dim\":7}", "head_dim is 7");
    BAD(mixtral, "{\"num_experts\":4}", "`num_local_experts`: 5 contradicts num_experts 4");
    BAD(olmoe, "{\"head_dim\":8}", "key `head_dim`: 8 times 4 heads is not hidden_size 24");
    BAD(qwen2, "{\"mlp_only_layers\":[4]}", "`mlp_only_layers`: entry 0 is not a layer");
    BAD(qwen2, "{\"mlp_only_layers\":[0,1,2,3]}", "no layer with experts");
    BAD(olmoe, "{\"evenkeel\":{}}", "key `evenkeel`");
    BAD(mixtral, "{\"evenkeel\":{\"gate\":\"hash\"}}", "`evenkeel.gate`: \"hash\"");
    BAD(mixtral, "{\"evenkeel\":{\"router\":\"square\"}}", "`evenkeel.router`: \"square\"");
    BAD(mixtral, "{\"evenkeel\":{\"router\":\"cosine\",\"router_dim\":0}}", "router_dim");
    BAD(mixtral, "{\"evenkeel\":{\"router_dim\":16}}", "`evenkeel.router_dim`");
    BAD(mixtral, "{\"evenkeel\":{\"group\":2}}", "`evenkeel.group` is not known");
    BAD(mixtral, "{\"evenkeel\":{\"groups\":2,\"group_top\":1}}", "groups is 2");
    BAD(mixtral, "{\"evenkeel\":[]}", "key `evenkeel`: expected an object");
}

static void malformed_json_is_refused_by_line(void)
{
    static const char *const texts[] = {
        "", "{", "[1]", "{\"a\":1}x", "{\"a\":1,\"a\":2}", "{\"a\":NaN}", "\xff\xfe"};
    ek_model_spec m;

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        CHECK(ek_hf_config_parse(texts[i], strlen(texts[i]), "F", &m) == EK_EFORMAT);
        CHECK(strncmp(ek_err_message(), "F: ", 3) == 0);
    }
    CHECK(ek_hf_config_read(MODELS "no/config.json", &m) == EK_ENOENT);
    CHECK(ek_hf_config_read(MODELS "mixtral/model.safetensors", &m) == EK_EFORMAT);
}

/* Text made of a spec reads back to a spec that makes the same text. */
static void round_trip(const ek_model_spec *m)
{
    char *once = NULL, *twice = NULL;
    ek_model_spec back;

    if (ek_hf_config_text(m, &once) < 0 ||
        ek_hf_config_parse(once, strlen(once), "written", &back) < 0 ||
        ek_hf_config_text(&back, &twice) < 0)
        EK_T_FAIL("%s", ek_err_text());
    CHECK(once != NULL && twice != NULL && strcmp(once, twice) == 0);
    CHECK_INT(back.head_dim, m->head_dim);
    CHECK_INT(back.experts, m->experts);
    CHECK_INT(back.ff, m->ff);
    CHECK_INT(back.shared_ff, m->shared_ff);
    CHECK_INT(back.gate.kind, m->gate.kind);
    CHECK_INT(back.gate.groups, m->gate.groups);
    CHECK_INT(back.router_dim, m->router_dim);
    CHECK_INT(back.gate.normalise, m->gate.normalise);
    CHECK_INT(back.qkv_bias, m->qkv_bias);
    CHECK_INT(back.qk_norm, m->qk_norm);
    CHECK_INT(back.sliding_window, m->sliding_window);
    CHECK_INT(back.eos_id, m->eos_id);
    CHECK(memcmp(&back.rope, &m->rope, sizeof(back.rope)) == 0);
    CHECK(back.rope_theta == m->rope_theta && back.rms_eps == m->rms_eps);
    CHECK(back.gate.scale == m->gate.scale && back.gate.bias_rate == m->gate.bias_rate);
    CHECK(memcmp(back.dense, m->dense, sizeof(back.dense)) == 0);
    CHECK(strcmp(back.torch_dtype, m->torch_dtype) == 0);
    free(once);
    free(twice);
}

static void what_transformers_wrote_round_trips(void)
{
    static const char *const names[] = {
        "mixtral",       "mixtral_grouped",   "mixtral_sharded_bf16",
        "olmoe",         "qwen2_moe",         "qwen2_moe_dense",
        "qwen3_moe",     "qwen3_moe_grouped", "mixtral_linear",
        "olmoe_dynamic", "mixtral_llama3",    "mixtral_yarn_mscale",
        "qwen3_moe_yarn"};
    char path[512];
    ek_model_spec m;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        snprintf(path, sizeof(path), MODELS "%s/config.json", names[i]);
        if (ek_hf_config_read(path, &m) < 0)
            EK_T_FAIL("%s", ek_err_text());
        round_trip(&m);
    }
    CHECK(ek_hf_config_read(MODELS "qwen2_moe_dense/config.json", &m) == EK_OK);
    CHECK(m.dense[0] && m.dense[1] && m.dense[2] && !m.dense[3]);
    CHECK_INT(m.dense_ff, 14);
    CHECK(ek_hf_config_read(MODELS "qwen3_moe/config.json", &m) == EK_OK);
    CHECK_INT(m.experts, 6);
    CHECK(m.tie_embeddings && m.gate.normalise);
    CHECK(ek_hf_config_read(MODELS "mixtral_sharded_bf16/config.json", &m) == EK_OK);
    CHECK(strcmp(m.torch_dtype, "bfloat16") == 0);
}

static void presets_and_own_gates_round_trip(void)
{
    ek_model_spec m;

    CHECK(ek_model_preset("tiny", &m) == EK_OK);
    round_trip(&m);
    m.gate = (ek_gate_spec){.kind = EK_GATE_SIGMOID_BIAS,
                            .groups = 4,
                            .group_top = 2,
                            .scale = 1.0 / 3,
                            .bias_rate = 1e-4,
                            .jitter = 0.01};
    m.shared_ff = 100;
    m.shared_gated = 1;
    m.sliding_window = 128;
    m.bos_id = 3;
    m.eos_id = -1;
    m.rope_theta = 12345.678901234567;
    round_trip(&m);
    m.gate.kind = EK_GATE_EXPERT_CHOICE;
    m.gate.groups = m.gate.group_top = 0;
    m.router_dim = 48;
    round_trip(&m);
}

static void plain_mixtral_text_holds_no_own_key(void)
{
    ek_model_spec m;
    char *text = NULL;

    CHECK(ek_model_preset("small", &m) == EK_OK);
    CHECK(ek_hf_config_text(&m, &text) == EK_OK);
    CHECK(strstr(text, "evenkeel") == NULL);
    CHECK(strstr(text, "\"rms_norm_eps\": 1e-5,") != NULL); /* no spurious digits */
    free(text);
}

static void a_family_says_only_what_its_keys_can(void)
{
    ek_model_spec m, base;
    char *text = NULL;

    CHECK(read_patched(olmoe, "{}", &base) == EK_OK);
    m = base;
    m.gate.kind = EK_GATE_EXPERT_CHOICE;
    CHECK(ek_hf_config_text(&m, &text) == EK_EUNSUPPORTED);
    m = base;
    m.router_dim = 8;
    CHECK(ek_hf_config_text(&m, &text) == EK_EUNSUPPORTED);
    m = base;
    m.shared_ff = 8;
    CHECK(ek_hf_config_text(&m, &text) == EK_EUNSUPPORTED);
    m = base;
    m.head_dim = 8;
    CHECK(ek_hf_config_text(&m, &text) == EK_EUNSUPPORTED);
    m = base;
    m.qk_norm = EK_QK_NORM_HEAD;
    CHECK(ek_hf_config_text(&m, &text) == EK_EUNSUPPORTED);
    m = base;
    m.qkv_bias = 1;
    CHECK(ek_hf_config_text(&m, &text) == EK_EUNSUPPORTED);
    m = base;
    m.dense[0] = 1;
    CHECK(ek_hf_config_text(&m, &text) == EK_EUNSUPPORTED);
    CHECK(text == NULL);
}

static const ek_case cases[] = {
    EK_CASE(mixtral_defaults),
    EK_CASE(olmoe_defaults),
    EK_CASE(qwen_defaults),
    EK_CASE(every_key_is_read),
    EK_CASE(rope_is_read_from_either_place),
    EK_CASE(rope_scaling_is_read_from_either_place),
    EK_CASE(yarn_has_defaults),
    EK_CASE(rope_scaling_is_refused_by_key),
    EK_CASE(dense_layers_follow_both_keys),
    EK_CASE(own_gates_are_read),
    EK_CASE(other_arithmetic_is_refused_by_key),
    EK_CASE(wrong_types_and_sizes_are_refused_by_key),
    EK_CASE(contradictions_are_refused_by_key),
    EK_CASE(malformed_json_is_refused_by_line),
    EK_CASE(what_transformers_wrote_round_trips),
    EK_CASE(presets_and_own_gates_round_trip),
    EK_CASE(plain_mixtral_text_holds_no_own_key),
    EK_CASE(a_family_says_only_what_its_keys_can),
};

EK_TEST_MAIN(cases)
