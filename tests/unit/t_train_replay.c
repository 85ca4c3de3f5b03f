/* Training whose gates replay a trace: every step has the recorded loads, and any layout trains as
 * one rank does.  Ranks are threads. */
#include "balance/workload.h"
#include "equal_threads.h"
#include "model/hf/init.h"
#include "tensor/select/select.h"

enum { ITERATIONS = 3, LAYERS = 2, SOURCES = 4, EXPERTS = 5, NUMBERS = 20 };

/* A workload as a trace in memory. */
static const ek_trace *trace_of(const char *name, int64_t tokens, int64_t top_k)
{
    static uint32_t x[ITERATIONS * LAYERS * NUMBERS];
    static ek_trace t = {.data = (const unsigned char *)x,
                         .width = sizeof(*x),
                         .iterations = ITERATIONS,
                         .layers = LAYERS,
                         .sources = SOURCES,
                         .experts = EXPERTS};
    ek_workload_shape s = {.iterations = ITERATIONS,
                           .layers = LAYERS,
                           .sources = SOURCES,
                           .experts = EXPERTS,
                           .tokens = tokens,
                           .top_k = top_k,
                           .seed = 3};
    ek_workload_maker *m = NULL;

    CHECK(ek_workload_open(ek_workload_find(name), &s, &m) == EK_OK);
    for (int64_t i = 0; i < ITERATIONS * LAYERS; i++)
        ek_workload_counts(m, i / LAYERS, i % LAYERS, x + i * NUMBERS);
    ek_workload_close(&m);
    return &t;
}

/* Of all sources. */
static int64_t recorded(const ek_trace *t, int64_t iteration, int64_t layer, int64_t expert)
{
    int64_t sum = 0;

    for (int64_t r = 0; r < SOURCES; r++)
        sum += ek_trace_number(
            t, ((iteration % ITERATIONS * LAYERS + layer) * SOURCES + r) * EXPERTS + expert);
    return sum;
}

/* A model of four layers, the first of them dense. */
static void open_model(ek_kernels **k, ek_model **m)
{
    ek_model_spec spec;

    equal_spec(0, &spec);
    spec.dense[0] = 1;
    spec.dense_ff = 7;
    CHECK(ek_kernels_create(EK_MODE_FP64, EK_ISA_REF, 1, k) == EK_OK);
    CHECK(ek_model_create(&spec, *k, &(ek_model_config){.trained = 1}, m) == EK_OK);
    CHECK(ek_model_init(*m, 1) == EK_OK);
    CHECK(ek_model_pack(*m) == EK_OK);
}

static void loads_are_the_recorded_ones(void)
{
    ek_trainer_config cfg = {
        .batch = 4,
        .seq = 9,
        .micro_batch = 4,
        .moe = {.replay = trace_of("W1", 9, 2)},
        .optimizer = {.lr = 1e-3, .steps = 9, .beta1 = 0.9, .beta2 = 0.9, .eps = 1e-8}};
    ek_trainer *tr = NULL;
    ek_kernels *k = NULL;
    ek_model *m = NULL;
    const int64_t layer_of[] = {0, 0, 1}; /* of the trace: three MoE layers spread over two */
    ek_step_result r;

    open_model(&k, &m);
    CHECK(ek_trainer_create(m, &cfg, &tr) == EK_OK);
    ek_trainer_resume(tr, 1);
    for (int64_t i = 1; i < 6; i++) {
        equal_tokens(tr, (int)i, 9, m->spec.vocab);
        CHECK(ek_trainer_step(tr, &r) == EK_OK);
        for (int64_t l = 1; l < 4; l++)
            for (int64_t e = 0; e < EXPERTS; e++)
                CHECK_INT((int64_t)ek_pass_load(ek_trainer_pass(tr), l)[e],
                          recorded(cfg.moe.replay, i, layer_of[l - 1], e));
    }
    ek_trainer_destroy(&tr);
    ek_model_destroy(&m);
    ek_kernels_destroy(&k);
}

/* Tensor parallel ranks, expert shards, stages, chunks; micro-batches of other sizes at the end;
 * a number of choices that changes (11), capacity (6), recomputation, a dense layer (1). */
static void any_layout_trains_as_one_rank(void)
{
    static const equal_layout layouts[] = {
        {.model = 0, .shape = 0, .ranks = 2, .tp = 2, .ep = 2, .degree = 2},
        {.model = 0, .shape = 0, .ranks = 3, .tp = 1, .ep = 3, .degree = 4},
        {.model = 0, .shape = 0, .ranks = 4, .tp = 2, .ep = 2, .etp = 2, .zero = 3, .degree = 1},
        {.model = 0, .shape = 0, .ranks = 4, .pp = 2, .model_chunks = 2, .ep = 2, .group = 1},
        {.model = 1, .shape = 3, .ranks = 3, .ep = 3, .degree = 3, .recompute = EK_RECOMPUTE_FULL},
        {.model = 6, .shape = 5, .ranks = 4, .tp = 2, .ep = 4, .degree = 2},
        {.model = 11, .shape = 5, .ranks = 4, .ep = 2, .zero = 1, .degree = 2},
        {.model = 0, .shape = 2, .ranks = 4, .ep = 2, .degree = 1},
    };
    const ek_trace *t = trace_of("W4", 50, 2);

    for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++) {
        equal_layout l = layouts[i];

        l.pp = l.pp > 0 ? l.pp : 1;
        l.model_chunks = l.model_chunks > 0 ? l.model_chunks : 1;
        l.tp = l.tp > 0 ? l.tp : 1;
        l.etp = l.etp > 0 ? l.etp : 1;
        l.replay = t;
        equal_check(&l);
    }
}

static const ek_case cases[] = {
    EK_CASE(loads_are_the_recorded_ones),
    EK_CASE(any_layout_trains_as_one_rank),
};
EK_TEST_MAIN(cases)
