/* Models with rope scaling continue a text as Hugging Face transformers does (the `cached` logits
 * of tests/golden/make_models.py), and a dynamic one computes each sequence by its own length. */
#include "base/file.h"
#include "base/json.h"
#include "ek_test.h"
#include "infer/session.h"
#include "model/hf/config.h"
#include "model/hf/io.h"
#include "model/hf/source.h"
#include "model/step/pass.h"
#include "tensor/select/select.h"

#define MODELS EK_TEST_DATA "/golden/models"

enum { TOKENS = 24, AT_ONCE = 5, SHORT = 10, VOCAB_MAX = 128 };

typedef struct {
    ek_model_spec spec;
    int32_t ids[TOKENS + 1];
    ek_kernels *k;
    ek_model *model;
    ek_safetensors *answers;
    const ek_safetensor *cached;
} fixture;

static int setup(fixture *f, const char *name)
{
    ek_path config, golden, answers, weights;
    json_t *json = NULL;

    memset(f, 0, sizeof(*f));
    CHECK(ek_path_set(&config, MODELS "/%s/config.json", name) == EK_OK);
    CHECK(ek_path_set(&golden, MODELS "/%s/golden.json", name) == EK_OK);
    CHECK(ek_path_set(&answers, MODELS "/%s/golden.safetensors", name) == EK_OK);
    CHECK(ek_path_set(&weights, MODELS "/%s/model.safetensors", name) == EK_OK);
    CHECK(ek_hf_config_read(config.s, &f->spec) == EK_OK);
    CHECK(ek_json_read(golden.s, &json) == EK_OK);
    for (size_t t = 0; t <= TOKENS; t++)
        f->ids[t] = (int32_t)json_integer_value(
            json_array_get(json_array_get(json_object_get(json, "ids"), 0), t));
    json_decref(json);
    CHECK(ek_safetensors_open(answers.s, &f->answers) == EK_OK);
    f->cached = ek_safetensors_find(f->answers, "cached");
    CHECK(ek_kernels_create(EK_MODE_FP64, EK_ISA_REF, 1, &f->k) == EK_OK);
    CHECK(ek_model_create(&f->spec, f->k, &(ek_model_config){.trained = 0}, &f->model) == EK_OK);
    CHECK(ek_model_load_path(f->model, weights.s, NULL) == EK_OK);
    CHECK(ek_model_pack(f->model) == EK_OK);
    return f->cached != NULL && f->spec.vocab <= VOCAB_MAX &&
           f->cached->elements == TOKENS * f->spec.vocab;
}

static void teardown(fixture *f)
{
    ek_model_destroy(&f->model);
    ek_kernels_destroy(&f->k);
    ek_safetensors_close(&f->answers);
}

static void compare(const fixture *f, const ek_session *s, const char *name)
{
    int64_t t = ek_session_position(s) - 1, vocab = f->spec.vocab;
    double got[VOCAB_MAX], want[VOCAB_MAX];

    ek_session_logits_f64(s, got);
    CHECK(ek_safetensor_read(f->cached, t * vocab, vocab, want, EK_F64) == EK_OK);
    for (int64_t v = 0; v < vocab; v++) {
        if (!(fabs(got[v] - want[v]) <= 1e-6 * (1 + fabs(want[v])))) {
            EK_T_FAIL("%s, position %d, token %d: logit %.9g, transformers has %.9g", name, (int)t,
                      (int)v, got[v], want[v]);
            return;
        }
    }
}

static void a_session_continues_as_transformers_does(void)
{
    static const char *const names[] = {"mixtral_linear", "mixtral_dynamic", "olmoe_dynamic",
                                        "mixtral_llama3", "mixtral_yarn",    "mixtral_yarn_mscale",
                                        "qwen3_moe_yarn"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        ek_session_config cfg = {.capacity = TOKENS, .block = 2};
        ek_session *s = NULL;
        fixture f;

        CHECK(setup(&f, names[i]));
        CHECK(ek_session_create(f.model, &cfg, &s) == EK_OK);
        for (int again = 0; again < 2; again++) { /* earlier sequences have no effect */
            ek_session_reset(s);
            CHECK(ek_session_feed(s, f.ids, AT_ONCE) == EK_OK);
            compare(&f, s, names[i]);
            for (int t = AT_ONCE; t < TOKENS; t++) {
                CHECK(ek_session_feed(s, f.ids + t, 1) == EK_OK);
                compare(&f, s, names[i]);
            }
        }
        ek_session_destroy(&s);
        teardown(&f);
    }
}

static double loss_of(ek_pass *pass, const fixture *f, int64_t seq)
{
    ek_moe_step step = {.top_k = f->spec.top_k};
    ek_micro micro = ek_micro_alone(1, seq, 1, 0, f->ids, f->ids + 1);
    ek_exec *exec = NULL;
    ek_graph graph;

    ek_graph_init(&graph);
    CHECK(ek_exec_create(NULL, &exec) == EK_OK);
    CHECK(ek_pass_begin(pass, &step, &micro, 1) == EK_OK);
    CHECK(ek_pass_build(pass, &graph) == EK_OK);
    CHECK(ek_exec_run(exec, &graph) == EK_OK);
    ek_exec_destroy(&exec);
    ek_graph_fini(&graph);
    return pass->backward.loss.sum;
}

static void a_pass_takes_each_sequence_by_its_own_length(void)
{
    ek_pass_config whole = {.max_seqs = 1, .max_seq = TOKENS};
    ek_pass_config part = {.max_seqs = 1, .max_seq = SHORT + 4};
    ek_pass *a = NULL, *b = NULL;
    double longer;
    fixture f;

    CHECK(setup(&f, "mixtral_dynamic")); /* 12 positions before frequencies change */
    CHECK(ek_pass_create(f.model, &whole, &a) == EK_OK);
    CHECK(ek_pass_create(f.model, &part, &b) == EK_OK);
    longer = loss_of(a, &f, TOKENS);
    CHECK(loss_of(a, &f, SHORT) == loss_of(b, &f, SHORT));
    CHECK(loss_of(a, &f, SHORT + 4) == loss_of(b, &f, SHORT + 4));
    CHECK(loss_of(a, &f, TOKENS) == longer);
    ek_pass_destroy(&a);
    ek_pass_destroy(&b);
    teardown(&f);
}

static const ek_case cases[] = {
    EK_CASE(a_session_continues_as_transformers_does),
    EK_CASE(a_pass_takes_each_sequence_by_its_own_length),
};

EK_TEST_MAIN(cases)
