/* Dynamic top-k: the experts a token in use may change from one step to the next. */
#include "ek_test.h"
#include "model/hf/init.h"
#include "tensor/select/select.h"
#include "train/trainer.h"

enum { BATCH = 3, SEQ = 8 };

static int64_t assignments(const ek_trainer *tr, int64_t layer)
{
    const ek_pass *p = ek_trainer_pass(tr);
    int64_t sum = 0;

    for (int64_t e = 0; e < p->model->spec.experts; e++)
        sum += p->moe[layer].stats.load[e];
    return sum;
}

static void follows_the_step(void)
{
    static const int64_t ks[] = {2, 1, 2};
    ek_trainer_config cfg = {
        .batch = BATCH,
        .seq = SEQ,
        .micro_batch = 2,
        .optimizer = {.lr = 1e-3, .steps = 3, .beta1 = 0.9, .beta2 = 0.9, .eps = 1e-8}};
    ek_model_spec spec;
    ek_kernels *k = NULL;
    ek_model *m = NULL;
    ek_trainer *tr = NULL;
    ek_step_result r;

    CHECK(ek_model_preset("tiny", &spec) == EK_OK);
    spec.layers = 2;
    CHECK(ek_kernels_create(EK_MODE_FP64, EK_ISA_REF, 1, &k) == EK_OK);
    CHECK(ek_model_create(&spec, k, &(ek_model_config){.trained = 1}, &m) == EK_OK);
    CHECK(ek_model_init(m, 1) == EK_OK);
    CHECK(ek_trainer_create(m, &cfg, &tr) == EK_OK);
    for (int i = 0; i < 3; i++) {
        CHECK(ek_trainer_set_top_k(tr, ks[i]) == EK_OK);
        CHECK(ek_trainer_step(tr, &r) == EK_OK);
        CHECK_INT(assignments(tr, 0), ks[i] * BATCH * SEQ);
        CHECK_INT(assignments(tr, 1), ks[i] * BATCH * SEQ);
    }
    CHECK(ek_trainer_set_top_k(tr, 3) == EK_EINVAL);
    CHECK(ek_trainer_set_top_k(tr, 0) == EK_EINVAL);
    ek_trainer_destroy(&tr);
    ek_model_destroy(&m);
    ek_kernels_destroy(&k);
}

static const ek_case cases[] = {EK_CASE(follows_the_step)};
EK_TEST_MAIN(cases)
