/* Presets are valid, and ek_model_check names the key at fault. */
#include "ek_test.h"
#include "spec/model.h"

static void presets_pass_the_check(void)
{
    static const char *const names[] = {"tiny", "small", "base"};
    ek_model_spec m;

    for (size_t i = 0; i < 3; i++) {
        CHECK(ek_model_preset(names[i], &m) == EK_OK);
        CHECK(ek_model_check(&m) == EK_OK);
        CHECK_INT(m.arch, EK_ARCH_MIXTRAL);
        CHECK_INT(m.heads * m.head_dim, m.hidden);
        CHECK_INT(m.top_k, 2);
        CHECK_INT(m.eos_id, 256);
        CHECK_INT(m.max_positions, 4096);
        CHECK(m.rope_theta == 1e6 && m.rms_eps == 1e-5 && m.init_range == 0.02);
        CHECK(m.gate.normalise && m.gate.scale == 1 && m.gate.kind == EK_GATE_SOFTMAX);
    }
    CHECK(ek_model_preset("small", &m) == EK_OK);
    CHECK_INT(m.vocab, 320);
    CHECK_INT(m.hidden, 512);
    CHECK_INT(m.layers, 4);
    CHECK_INT(m.kv_heads, 4);
    CHECK_INT(m.experts, 8);
    CHECK_INT(m.ff, 1024);
}

static void an_unknown_preset_names_the_known_ones(void)
{
    ek_model_spec m;

    CHECK(ek_model_preset("huge", &m) == EK_EINVAL);
    CHECK(strstr(ek_err_message(), "\"huge\"") != NULL);
    CHECK(strstr(ek_err_message(), "tiny, small and base") != NULL);
}

/* `m` must be refused, with `words` in the message. */
static void refused(int line, const ek_model_spec *m, const char *words)
{
    if (ek_model_check(m) != EK_EINVAL)
        EK_T_FAIL("line %d: accepted", line);
    else if (strstr(ek_err_message(), words) == NULL)
        EK_T_FAIL("line %d: \"%s\" lacks \"%s\"", line, ek_err_message(), words);
}

/* tiny with one statement changed */
#define REFUSED(change, words)                                                                     \
    do {                                                                                           \
        ek_model_spec m;                                                                           \
        CHECK(ek_model_preset("tiny", &m) == EK_OK);                                               \
        change;                                                                                    \
        refused(__LINE__, &m, words);                                                              \
    } while (0)

static void sizes_are_refused_by_name(void)
{
    REFUSED(m.vocab = 0, "vocab_size is 0");
    REFUSED(m.vocab = 100, "eos_token_id 256 is outside the vocabulary of 100");
    REFUSED(m.bos_id = -2, "bos_token_id");
    REFUSED(m.hidden = -1, "hidden_size is -1");
    REFUSED(m.hidden = INT64_MAX, "hidden_size");
    REFUSED(m.layers = EK_LAYERS_MAX + 1, "num_hidden_layers is 513");
    REFUSED(m.layers = 0, "num_hidden_layers");
    REFUSED(m.heads = 0, "num_attention_heads");
    REFUSED(m.kv_heads = 0, "num_key_value_heads");
    REFUSED(m.kv_heads = 3, "4 is not a multiple of num_key_value_heads 3");
    REFUSED(m.kv_heads = 8, "not a multiple");
    REFUSED(m.head_dim = 63, "even");
    REFUSED(m.head_dim = 0, "head_dim");
    REFUSED(m.head_dim = 1 << 20, "num_attention_heads 4 times head_dim");
    REFUSED(m.experts = 0, "num_experts");
    REFUSED(m.top_k = 9, "num_experts_per_tok 9 exceeds 8 experts");
    REFUSED(m.top_k = 0, "num_experts_per_tok is 0");
    REFUSED(m.ff = 0, "intermediate size");
    REFUSED(m.shared_ff = -4, "shared_expert_intermediate_size");
    REFUSED(m.shared_gated = 1, "shared_gated");
    REFUSED(m.router_dim = -1, "router_dim is -1");
    REFUSED(m.router_dim = (1 << 20) + 1, "router_dim");
    REFUSED(m.max_positions = 0, "max_position_embeddings");
    REFUSED(m.sliding_window = -1, "sliding_window");
}

static void a_model_beyond_all_memory_is_refused(void)
{
    REFUSED(m.experts = 1 << 16; m.ff = 1 << 20; m.hidden = 1 << 20; m.layers = 512, "parameters");
    REFUSED(m.dense_ff = m.hidden = 1 << 20; m.layers = 512;
            memset(m.dense, 1, sizeof(m.dense) - 1), "parameters");
}

static void dense_layers_need_a_width(void)
{
    REFUSED(m.dense[1] = 1, "intermediate_size is 0, but 1 layers are dense");
    REFUSED(memset(m.dense, 1, 4), "no layer with experts");
}

static void moe_layers_are_counted(void)
{
    ek_model_spec m;

    CHECK(ek_model_preset("tiny", &m) == EK_OK);
    CHECK_INT(ek_model_moe_layers(&m), 4);
    m.dense[0] = m.dense[2] = m.dense[4] = 1;
    CHECK_INT(ek_model_moe_layers(&m), 2);
    CHECK_INT(ek_model_moe_layers_below(&m, 0), 0);
    CHECK_INT(ek_model_moe_layers_below(&m, 1), 0);
    CHECK_INT(ek_model_moe_layers_below(&m, 3), 1);
}

static void gates_and_numbers_are_refused_by_name(void)
{
    REFUSED(m.gate.groups = 4, "group_top is 0 and groups is 4");
    REFUSED(m.gate.groups = 2; m.gate.group_top = 3, "group_top is 3");
    REFUSED(m.gate.groups = 3; m.gate.group_top = 1, "does not divide 8 experts");
    REFUSED(m.gate.groups = 8; m.gate.group_top = 1, "exceeds the 1 experts of group_top 1");
    REFUSED(m.gate.groups = 2; m.gate.group_top = 1;
            m.gate.kind = EK_GATE_EXPERT_CHOICE, "expert choice");
    REFUSED(m.gate.scale = 0, "scale is 0");
    REFUSED(m.gate.scale = (double)NAN, "scale");
    REFUSED(m.gate.jitter = 1, "router_jitter_noise");
    REFUSED(m.gate.bias_rate = -1, "bias_rate");
    REFUSED(m.rope_theta = 0, "rope_theta");
    REFUSED(m.rope_theta = (double)INFINITY, "rope_theta");
    REFUSED(m.rms_eps = 0, "rms_norm_eps");
    REFUSED(m.init_range = -0.1, "initializer_range");
    REFUSED(m.config_aux_coef = (double)NAN, "router_aux_loss_coef");
    REFUSED(memcpy(m.torch_dtype, "int8", 5), "torch_dtype is \"int8\"");
}

static const ek_case cases[] = {
    EK_CASE(presets_pass_the_check),    EK_CASE(an_unknown_preset_names_the_known_ones),
    EK_CASE(sizes_are_refused_by_name), EK_CASE(a_model_beyond_all_memory_is_refused),
    EK_CASE(dense_layers_need_a_width), EK_CASE(gates_and_numbers_are_refused_by_name),
    EK_CASE(moe_layers_are_counted),
};

EK_TEST_MAIN(cases)
