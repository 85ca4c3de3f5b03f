/* Steps in the steady state allocate nothing, whatever the tokens and so the experts' loads: this
 * program counts every call of the allocator that we make. */
#include "base/random.h"
#include "count_allocations.h"
#include "ek_test.h"
#include "model/hf/init.h"
#include "tensor/select/select.h"
#include "train/trainer.h"

enum { BATCH = 5, MICRO = 2, SEQ = 40, VOCAB = 300, WARM = 2, STEPS = 5 };

static ek_model_spec base_spec(void)
{
    ek_model_spec s;

    CHECK(ek_model_preset("tiny", &s) == EK_OK);
    s.vocab = VOCAB;
    s.hidden = 64;
    s.layers = 2;
    s.heads = 4;
    s.kv_heads = 2;
    s.head_dim = 16;
    s.experts = 6;
    s.top_k = 2;
    s.ff = 48;
    return s;
}

/* Tokens of step `step`: some steps few different ones, so that loads go from even to all to one.
 */
static void fill(ek_trainer *tr, uint64_t step)
{
    uint64_t kinds = step % 3 == 0 ? 1 : step % 3 == 1 ? 5 : VOCAB;

    for (uint64_t i = 0; i < BATCH * SEQ; i++) {
        ek_trainer_inputs(tr)[i] = (int32_t)(ek_random_bits(step, 1, i) % kinds);
        ek_trainer_targets(tr)[i] = (int32_t)(ek_random_bits(step, 2, i) % VOCAB);
    }
}

static int steps_allocate(const ek_model_spec *spec, ek_mode mode, ek_trainer_config cfg)
{
    ek_kernels *k = NULL;
    ek_model *m = NULL;
    ek_trainer *tr = NULL;
    ek_step_result r;

    cfg.batch = BATCH;
    cfg.micro_batch = MICRO;
    cfg.seq = SEQ;
    cfg.optimizer = (ek_optimizer_config){
        .lr = 1e-3, .steps = 100, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .clip = 1};
    CHECK(ek_kernels_create(mode, ek_cpu_isa(), 2, &k) == EK_OK);
    CHECK(ek_model_create(spec, k, &(ek_model_config){.trained = 1}, &m) == EK_OK);
    CHECK(ek_model_init(m, 1) == EK_OK);
    CHECK(ek_model_pack(m) == EK_OK);
    CHECK(ek_trainer_create(m, &cfg, &tr) == EK_OK);
    for (uint64_t step = 0; step < WARM + STEPS; step++) {
        fill(tr, step);
        atomic_store(&allocations, 0);
        atomic_store(&counting, step >= WARM);
        CHECK(ek_trainer_step(tr, &r) == EK_OK);
        atomic_store(&counting, 0);
        if (atomic_load(&allocations) > 0)
            break;
    }
    ek_trainer_destroy(&tr);
    ek_model_destroy(&m);
    ek_kernels_destroy(&k);
    return atomic_load(&allocations);
}

static void check_modes(const ek_model_spec *spec, ek_trainer_config cfg)
{
    CHECK_INT(steps_allocate(spec, EK_MODE_FP64, cfg), 0);
    CHECK_INT(steps_allocate(spec, EK_MODE_FP32, cfg), 0);
    CHECK_INT(steps_allocate(spec, EK_MODE_BF16, cfg), 0);
}

static void the_counter_counts(void)
{
    void *volatile p;

    if (!COUNTED)
        SKIP("a sanitizer owns the allocator");
    atomic_store(&allocations, 0);
    atomic_store(&counting, 1);
    p = malloc(10);
    free(p);
    atomic_store(&counting, 0);
    CHECK_INT(atomic_load(&allocations), 2);
}

static void plain_steps(void)
{
    ek_model_spec s = base_spec();

    check_modes(&s, (ek_trainer_config){.aux_coef = 0.01});
}

/* In some steps every token ends a document, and no target counts. */
static void documents_apart(void)
{
    ek_model_spec s = base_spec();

    check_modes(&s, (ek_trainer_config){.document_mask = 1, .document_end = 0});
}

static void recomputation(void)
{
    ek_model_spec s = base_spec();

    check_modes(&s, (ek_trainer_config){.recompute = EK_RECOMPUTE_ATTENTION});
    check_modes(&s, (ek_trainer_config){.recompute = EK_RECOMPUTE_FULL});
}

static void capacity_shared_and_dense(void)
{
    ek_model_spec s = base_spec();

    s.arch = EK_ARCH_QWEN2_MOE;
    s.qkv_bias = 1;
    s.shared_ff = 80;
    s.shared_gated = 1;
    s.dense_ff = 112;
    s.dense[0] = 1;
    check_modes(&s, (ek_trainer_config){.capacity_factor = 0.5, .z_coef = 0.001, .top_k = 1});
}

static void other_gates(void)
{
    ek_model_spec s = base_spec();

    s.qk_norm = EK_QK_NORM_HEAD;
    s.gate.kind = EK_GATE_SIGMOID_BIAS;
    s.gate.groups = 3;
    s.gate.group_top = 2;
    check_modes(&s, (ek_trainer_config){0});
    s = base_spec();
    s.qk_norm = EK_QK_NORM_FULL;
    s.tie_embeddings = 1;
    s.gate.kind = EK_GATE_EXPERT_CHOICE;
    check_modes(&s, (ek_trainer_config){0});
}

static void replayed_loads(void)
{
    static const unsigned char numbers[] = {9, 0, 200, 7, 1, 5, 0, 0, 0, 3, 0, 0};
    static const ek_trace trace = {
        .data = numbers, .width = 1, .iterations = 1, .layers = 1, .sources = 2, .experts = 6};
    ek_model_spec s = base_spec();

    check_modes(&s, (ek_trainer_config){.moe = {.replay = &trace}});
}

static const ek_case cases[] = {
    EK_CASE(the_counter_counts),        EK_CASE(plain_steps), EK_CASE(recomputation),
    EK_CASE(capacity_shared_and_dense), EK_CASE(other_gates), EK_CASE(replayed_loads),
    EK_CASE(documents_apart),
};
EK_TEST_MAIN(cases)
